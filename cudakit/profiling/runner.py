"""Run Nsight Compute (ncu) on a command: find it, start it with the flags needed, explain its errors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cudakit.errors import CudakitError

# the prefix of ncu's own lines; other lines are the profiled program's
NCU_LINE = "=="

NO_NCU = (
    "ncu (Nsight Compute) was not found in PATH, $CUDA_HOME/bin, /usr/local/cuda*/bin or /opt/nvidia/nsight-compute: "
    "install Nsight Compute, which also comes with the CUDA toolkit"
)

# words of ncu's messages, and the advice for each
_HINTS = {
    "ERR_NVGPUCTRPERM": "The driver allows only administrators to read the GPU's performance counters. Run this "
    "command as root, or allow all users: write `options nvidia NVreg_RestrictProfilingToAdminUsers=0` to a "
    "file in /etc/modprobe.d, rebuild the initial ramdisk and restart the machine. A container needs the SYS_ADMIN "
    "capability too (docker run --cap-add=SYS_ADMIN).",
    "LibraryNotLoaded": "ncu did not find the NVIDIA driver (libcuda.so.1).",
    "Failed to find metric": "`ncu --query-metrics` lists the metrics of this GPU.",
    "is not a valid option": "This ncu may be too old: cudakit is tested with 2025.3.",
    "unrecognised option": "This ncu may be too old: cudakit is tested with 2025.3.",
    "Another instance": "Only one profiler at a time can use the performance counters: wait for the other, or stop it.",
    "lock file": "Another user's ncu left its lock file: set TMPDIR to a folder of your own, or remove the file.",
    "Failed to prepare kernel": "ncu saves and restores the kernel's memory between passes: profile a smaller problem, "
    "or use fewer passes (--set basic).",
    "returned an error code": "Run the command without the profiler to check that it works.",
}


class ProfilerError(CudakitError):
    """A profile could not be made or read. The message quotes ncu and says what to do."""


def find_ncu() -> str | None:
    """Return the path of ncu, from PATH, the CUDA toolkit or Nsight Compute's own folder; None if it is not found."""
    path = shutil.which("ncu")
    if path:
        return path
    folders = [Path(os.environ[name]) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    folders += sorted(Path("/usr/local").glob("cuda*/bin"), reverse=True)
    folders += sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True)
    return next((str(folder / "ncu") for folder in folders if (folder / "ncu").is_file()), None)


def ncu_version(ncu: str) -> str:
    """Return the version that `ncu --version` prints, such as "2025.3.1.0"; "" if it prints none."""
    try:
        done = subprocess.run([ncu, "--version"], capture_output=True, encoding="utf-8", errors="replace", timeout=60)
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
    """Return the ncu flags that `run_ncu` uses for the same arguments.

    Clocks are not controlled (`--clock-control none`): by default ncu locks the chip to its base clock, which needs
    permission and makes kernels slower than without a profiler. Caches are flushed before each pass, ncu's default.
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
    """Profile a command and write a report.

    Args:
        command: The program and its arguments.
        report: The file to write, which ends in .ncu-rep; an existing one is replaced.
        metrics: Collect only these metrics of ncu, instead of a section set.
        sections: Collect these sections too.
        set: The section set: "basic", "detailed" or "full".
        kernels: A regular expression; only kernels whose name (without template arguments) has a match are profiled.
        ranges: Profile only launches within these NVTX ranges, in ncu's notation: "cudakit@softmax.tree_reduce/".
        line: Called with each line of output, the program's and ncu's (which begin with ==), when it is printed.

    Raises:
        ProfilerError: If ncu is not found or fails, or profiled no kernel. The message quotes ncu.
    """
    ncu = find_ncu()
    if ncu is None:
        raise ProfilerError(NO_NCU)
    if report.suffix != ".ncu-rep":
        raise ProfilerError(f"{report} cannot be a report's name: it must end in .ncu-rep")
    report.unlink(missing_ok=True)  # so that an old report is not mistaken for this run's
    whole = [
        ncu,
        *arguments(report, metrics=metrics, sections=sections, set=set, kernels=kernels, ranges=ranges),
        *command,
    ]
    own: list[str] = []
    others: list[str] = []
    try:
        running = subprocess.Popen(
            whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
        )
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
    """Return the error of a run, with ncu's messages and advice; None if it succeeded."""
    said = [text.split("==", 2)[2].strip() for text in own if text.startswith(("==ERROR==", "==WARNING=="))]
    hints = [hint for words, hint in _HINTS.items() if any(words in text for text in (*own, *others))]
    if status == 0 and report.is_file():
        return None
    if any("No kernels were profiled" in text for text in own) and not hints:
        hints.append(
            "The command launched no kernel on a GPU, or none that was requested: check its --device, --kernels and "
            "--ranges (see `cudakit profile --help`)."
        )
    what = "ncu profiled nothing" if status == 0 else f"ncu failed (exit status {status})"
    # the error of a failed script is at the end of its output
    own_words = said or [text for text in own if text] or ["it printed no message"]
    tail = [text for text in others if text.strip()][-8:]
    parts = [f"{what}: {' '.join(own_words)}", *hints]
    if tail:
        parts.append("The end of the output:\n" + "\n".join(f"    {text}" for text in tail))
    if report.is_file():
        parts.append(f"The launches profiled until then are in {report}: read it with --import.")
    return "\n".join(parts)


def script_command(script: str, rest: Sequence[str], *, module: bool = False) -> list[str]:
    """Return the command that runs `script`: a .py file or a module by this Python, another file as a program.

    Raises ProfilerError if there is no such file or program.
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
