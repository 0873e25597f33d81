"""Nsight Compute (ncu) run on a command: found, started with the right flags, and its failures said in a sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cudakit.errors import CudakitError

# What ncu's own lines begin with; all others are the profiled program's.
NCU_LINE = "=="

NO_NCU = (
    "ncu (Nsight Compute) was not found in PATH, $CUDA_HOME/bin, /usr/local/cuda*/bin or /opt/nvidia/nsight-compute: "
    "install Nsight Compute, which also comes with the CUDA toolkit"
)

# What ncu says, and what to do about it.
_HINTS = {
    "ERR_NVGPUCTRPERM": "The driver lets only administrators read the GPU's performance counters. Either run this "
    "command as root, or let every user read them: write `options nvidia NVreg_RestrictProfilingToAdminUsers=0` to a "
    "file in /etc/modprobe.d, rebuild the initial ramdisk and restart the machine. A container needs the SYS_ADMIN "
    "capability (docker run --cap-add=SYS_ADMIN) besides.",
    "LibraryNotLoaded": "ncu finds no NVIDIA driver (libcuda.so.1) here.",
    "Failed to find metric": "`ncu --query-metrics` lists the metrics of this GPU.",
    "is not a valid option": "This ncu may be too old: cudakit is tried with 2025.3.",
    "unrecognised option": "This ncu may be too old: cudakit is tried with 2025.3.",
    "Another instance": "Performance counters serve one profiler at a time: wait for the other, or end it.",
    "lock file": "Another user's ncu left its lock behind: set TMPDIR to a folder of your own, or have it removed.",
    "Failed to prepare kernel": "The kernel's memory is saved and put back between passes: give it a smaller problem, "
    "or fewer passes (--set basic).",
    "returned an error code": "Run the command without the profiler to see whether it works at all.",
}


class ProfilerError(CudakitError):
    """A profile could not be made or read. The text has the profiler's own words, and what to do."""


def find_ncu() -> str | None:
    """The path of Nsight Compute's command line, or None: in PATH, the CUDA toolkit, or where it is installed alone."""
    path = shutil.which("ncu")
    if path:
        return path
    folders = [Path(os.environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders += sorted(Path("/usr/local").glob("cuda*/bin"), reverse=True)
    folders += sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True)
    return next((str(folder / "ncu") for folder in folders if (folder / "ncu").is_file()), None)


def ncu_version(ncu: str) -> str:
    """What `ncu --version` calls itself, such as "2025.3.1.0"; empty where it does not say."""
    try:
        done = subprocess.run([ncu, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    words = done.stdout.split()
    return words[words.index("Version") + 1] if "Version" in words[:-1] else ""


def arguments(
    report: Path,
    *,
    metrics: Sequence[str] | None = None,
    sections: Sequence[str] = (),
    set: str = "full",
    kernels: str | None = None,
    ranges: Sequence[str] = (),
) -> list[str]:
    """ncu's flags for `run_ncu` of the same arguments.

    Clocks are left alone (`--clock-control none`): ncu would otherwise lock the chip to its base clock, which needs
    permission and gives times that no run without a profiler has. Caches are flushed before every pass, its default.
    """
    flags = ["--nvtx", "--clock-control", "none", "--force-overwrite", "--export", str(report)]
    flags += ["--metrics", ",".join(metrics)] if metrics is not None else ["--set", set]
    for name in sections:
        flags += ["--section", name]
    if kernels:
        flags += ["--kernel-name", f"regex:{kernels}"]
    for name in ranges:
        flags += ["--nvtx-include", name]
    return flags


def run_ncu(
    command: Sequence[str],
    report: Path,
    *,
    metrics: Sequence[str] | None = None,
    sections: Sequence[str] = (),
    set: str = "full",
    kernels: str | None = None,
    ranges: Sequence[str] = (),
    line: Callable[[str], None] | None = None,
) -> None:
    """Profiles `command` and writes `report` (a path that ends in .ncu-rep), over what stood there.

    metrics: these ncu metrics alone, instead of the section set named `set` (basic, detailed, full). sections: these
    sections besides.
    kernels: a regular expression; only kernels whose name (without template arguments) has a match are profiled.
    ranges: only launches within these NVTX ranges, in ncu's own notation: "cudakit@softmax.tree_reduce/".
    line: is given every line of output, the program's and ncu's (which begin with ==), as it comes.

    Raises ProfilerError, with ncu's own words, where ncu is not there or fails, or no kernel was profiled.
    """
    ncu = find_ncu()
    if ncu is None:
        raise ProfilerError(NO_NCU)
    if report.suffix != ".ncu-rep":
        raise ProfilerError(f"{report} is no name for a report: ncu's end in .ncu-rep")
    report.unlink(missing_ok=True)  # an old one must not be taken for this run's
    whole = [
        ncu,
        *arguments(report, metrics=metrics, sections=sections, set=set, kernels=kernels, ranges=ranges),
        *command,
    ]
    own: list[str] = []
    others: list[str] = []
    try:
        running = subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    except OSError as error:
        raise ProfilerError(f"{ncu} cannot be started: {error}") from error
    with running:
        for text in running.stdout or ():
            text = text.rstrip("\n")
            (own if text.startswith(NCU_LINE) else others).append(text)
            if line is not None:
                line(text)
    problem = _problem(running.returncode, own, others, report)
    if problem:
        raise ProfilerError(problem)


def _problem(status: int, own: Sequence[str], others: Sequence[str], report: Path) -> str | None:
    """What went wrong, in ncu's words and ours, or None."""
    said = [text.split("==", 2)[2].strip() for text in own if text.startswith(("==ERROR==", "==WARNING=="))]
    hints = [hint for words, hint in _HINTS.items() if any(words in text for text in (*own, *others))]
    if status == 0 and report.is_file():
        return None
    if any("No kernels were profiled" in text for text in own) and not hints:
        hints.append(
            "The command launched no kernel on a GPU that was asked for: look at its --device, at --kernels and at the "
            "ranges (names that fit: `cudakit profile --help`)."
        )
    what = "ncu profiled nothing" if status == 0 else f"ncu failed (exit status {status})"
    # A script that failed says why at the end of its own output.
    own_words = said or [text for text in own if text] or ["it said nothing"]
    tail = [text for text in others if text.strip()][-8:]
    parts = [f"{what}: {' '.join(own_words)}", *hints]
    if tail:
        parts.append("The end of the output:\n" + "\n".join(f"    {text}" for text in tail))
    if report.is_file():
        parts.append(f"What was profiled until then is in {report}: --import reads it.")
    return "\n".join(parts)


def script_command(script: str, rest: Sequence[str], *, module: bool = False) -> list[str]:
    """How `script` is run: a .py file or a module by this Python, anything else as a program of its own.

    Raises ProfilerError where there is no such file or program.
    """
    if module:
        return [sys.executable, "-m", script, *rest]
    path = Path(script)
    if path.is_file() and (path.suffix == ".py" or not os.access(path, os.X_OK)):
        return [sys.executable, script, *rest]
    if path.is_file():
        return [str(path.resolve()), *rest]
    program = shutil.which(script)
    if program is None:
        raise ProfilerError(f"there is no script {script}, and no program of that name in PATH")
    return [program, *rest]
