"""Measures what the debugger costs before a thread stops, on this machine.

`python -m tests.debugger_cost --json profiles/sim/debugger.json` runs each variant of the ladders on small problems,
compiled with -G, without the debugger, with a breakpoint in another file, and with a breakpoint at the line that the
kernel executes most often, whose condition is evaluated each time and is never true. Written are the minimum of several
launches of each, in seconds of processor time, because other processes can only increase it, and the ratios to the
launch without the debugger: in the engine that it takes by itself, and in the interpreter, which runs the kernels that
the debugger follows.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import cudakit
from cudakit.compile import options
from cudakit.debugger import attached
from cudakit.debugger.breakpoints import Breakpoint
from cudakit.debugger.console import Console
from cudakit.shapes import shape_text
from cudakit.show import terminal

from .costs import summary_of, write
from .counters.problems import Problem, Run, runs

PROBLEMS = (
    Problem("softmax", (9, 1001), without=("blas_read_back", "blas_on_device")),
    Problem("gemm", (66, 70, 50)),
    Problem("gemm_half", (72, 64, 136), "float16"),
    Problem("attention", (1, 1, 1, 33, 65, 64), "bfloat16"),
    Problem("add_broadcast", (6, 7, 101)),
    Problem("sum", (9, 1001)),
    Problem("blur", (1, 33, 64)),
)
LAUNCHES = 3
NEVER = "threadIdx.x > 4095"
RATIOS = ("elsewhere", "condition", "condition_to_interpreter")


@contextlib.contextmanager
def code_for_debugging() -> Iterator[None]:
    """Compile with -G, as the debugger does."""
    with mock.patch.object(options, "debug_code", True):
        yield


def seconds(device: cudakit.Device, run: Run) -> float:
    """Return the processor seconds of one launch."""
    run.launch()  # compiles the kernel
    device.synchronize()
    took = []
    for _ in range(LAUNCHES):
        start = time.process_time()
        run.launch()
        device.synchronize()
        took.append(time.process_time() - start)
    return min(took)


def each(problem: Problem) -> Iterator[tuple[cudakit.Device, Run]]:
    with cudakit.Device("sim", fresh=True) as device:
        for run in runs(device, problem):
            yield device, run


def without(problem: Problem, engine: str) -> dict[str, float]:
    """Return the seconds without the debugger, by variant."""
    with mock.patch.dict(os.environ, CUDAKIT_SIM_ENGINE=engine), code_for_debugging():
        return {run.variant: seconds(device, run) for device, run in each(problem)}


def busiest(problem: Problem) -> dict[str, str]:
    """Return the line that is executed most often, by variant."""
    found = {}
    with code_for_debugging():
        for device, run in each(problem):
            with device.counters() as counted:
                run.launch()
            lines: dict[str, int] = {}
            for counters in counted.values():
                for (file, line), share in counters.per_line.items():
                    if line and file in counted.sources and "/kernels/" in file.replace(os.sep, "/"):
                        lines[f"{file}:{line}"] = share.instructions
            found[run.variant] = max(lines, key=lines.__getitem__)
    return found


def under(problem: Problem, places: dict[str, str], *, there: bool) -> dict[str, float]:
    """Return the seconds under the debugger with a condition at these places, by variant. there: the kernel has code at
    its place."""
    found = {}
    console = Console(read=lambda prompt: None, write=lambda text: None)
    with attached.attached(console):
        for device, run in each(problem):
            one = Breakpoint(console.session.number(), places[run.variant], NEVER)
            console.session.add(one)
            found[run.variant] = seconds(device, run)
            if one.resolved != there:
                raise SystemExit(f"{problem.name} {run.variant}: {one} was {'not ' * there}set")
            console.session.remove(one.number)
    return found


def rows_of(problem: Problem) -> Iterator[dict[str, Any]]:
    """Yield the measured row of each variant."""
    places = busiest(problem)
    alone, interpreted = without(problem, "auto"), without(problem, "interpreter")
    elsewhere = under(problem, dict.fromkeys(places, "elsewhere.cu:1"), there=False)
    condition = under(problem, places, there=True)
    for variant, place in places.items():
        row: dict[str, Any] = {"family": problem.family, "shape": shape_text(problem.shape), "variant": variant}
        row["line"] = place.replace(os.sep, "/").partition("/kernels/")[2]
        row["seconds"] = {
            "alone": alone[variant],
            "alone_in_interpreter": interpreted[variant],
            "elsewhere": elsewhere[variant],
            "condition": condition[variant],
        }
        row["elsewhere"] = elsewhere[variant] / alone[variant]
        row["condition"] = condition[variant] / alone[variant]
        row["condition_to_interpreter"] = condition[variant] / interpreted[variant]
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args()
    rows = []
    for problem in PROBLEMS:
        for row in rows_of(problem):
            rows.append(row)
            ratios = "  ".join(f"{name} {row[name]:.2f}" for name in RATIOS)
            terminal.say(f"{problem.name} {row['variant']}: {ratios}")
    write({name: summary_of((row[name] for row in rows), 5) for name in RATIOS}, rows, arguments.json)


if __name__ == "__main__":
    main()
