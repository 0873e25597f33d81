"""The verdicts on a text: that of the simulated device, and that of ptxas if it is installed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import signal
import subprocess
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from cudakit.sim.lockstep.memory import AddressSpace
from cudakit.sim.machine.loading import LoadedModule
from cudakit.sim.ptx.ir import PtxError, UnsupportedPtx
from tests.mutants.bases import texts

LOADED, REFUSED, UNSUPPORTED, BROKEN = "loaded", "refused", "unsupported", "broken"


class Hang(BaseException):
    """Raised in a load that takes too long; no handler of Exception catches it."""


def _interrupt(number: int, frame: Any) -> None:
    raise Hang("the load does not end")


def load(text: str, limit: float = 10) -> tuple[str, str]:
    """Load a module and compile all its functions, with the guarded instructions. Returns the verdict, and the message
    of the error: BROKEN if it is not a PtxError with a line, or if the load takes more than ``limit`` seconds."""
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        module = LoadedModule(text, AddressSpace())
        for program in module.programs.values():
            program.prepare()
            for bound in list(program.namespace.values()):
                if hasattr(bound, "source") and hasattr(bound, "namespace"):
                    compile(bound.source, "<guarded>", "exec")
        module.close()
        for refusal in [program.refusal for program in module.programs.values() if program.refusal is not None]:
            raise refusal
    except UnsupportedPtx as error:
        return UNSUPPORTED, str(error)
    except PtxError as error:
        return (REFUSED if error.line else BROKEN), str(error)
    except (Exception, Hang) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return (
            BROKEN,
            f"{type(error).__name__}: {str(error)[:200]} in {Path(last.filename).name}:{last.lineno} {last.name}",
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return LOADED, ""


@cache
def missing_ptxas() -> str:
    """The reason why no verdicts of ptxas can be had: it is not installed, or does not know the PTX of these texts."""
    if not ptxas():
        return "ptxas was not found: pip install nvidia-cuda-nvcc"
    accepted, said = judge(texts()[-1])
    return "" if accepted else f"{ptxas()} does not accept what NVRTC makes: {said.strip()}"


@cache
def ptxas() -> str:
    """The path of ptxas: in the wheel nvidia-cuda-nvcc, or on PATH; "" if there is none."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or () if found is not None else ():
        for place in (Path(folder) / "cu13" / "bin" / "ptxas", Path(folder) / "cuda_nvcc" / "bin" / "ptxas"):
            if place.exists():
                return str(place)
    return shutil.which("ptxas") or ""


def judge(text: str) -> tuple[bool, str]:
    """Whether ptxas accepts a text for its own target, and its messages."""
    target = re.search(r"\.target\s+(sm_\d+[af]?)\b", text)
    with tempfile.NamedTemporaryFile("wb", suffix=".ptx") as file:
        file.write(text.encode("utf-8", "surrogatepass"))
        file.flush()
        command = [ptxas(), "-O0", "-arch", target.group(1) if target else "sm_90a", "-o", "/dev/null", file.name]
        run = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    return run.returncode == 0, (run.stderr + run.stdout).replace(file.name, "text")


Verdict = tuple[int, str, str, bool | None, str]


def verdict(make: Callable[[int], str], seed: int, against: bool) -> Verdict:
    """The verdicts on one mutant: its seed, ours and our message, that of ptxas (None if it is not asked) and its."""
    text = make(seed)
    ours, message = load(text)
    accepted, said = judge(text) if against else (None, "")
    return seed, ours, message, accepted, said
