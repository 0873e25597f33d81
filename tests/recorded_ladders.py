"""Records the ladders of softmax and GEMM on one device, and replays them on another.

`python -m tests.recorded_ladders ladders.cudakit` launches each variant of these families on small problems of odd
sizes, compiled without contraction to fused multiply-adds, and records the launches. The output is NaN before each.
`python -m tests.recorded_ladders ladders.cudakit --replay profiles/h200/ladders_replayed.json` replays them on the
simulated device, and writes the verdict per launch, with the largest distance in ulp.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
from unittest import mock

import cudakit
from cudakit.compile import compiler
from cudakit.measure.command import command_line
from cudakit.recording import load
from cudakit.show import outputs, terminal

from .counters.problems import Problem, chosen, runs

PROBLEMS = (
    *chosen(("softmax", "gemm")),
    Problem("gemm_half", (192, 160, 224), "float16"),
    Problem("gemm_half", (136, 72, 200), "float16"),
)


def record(path: str) -> None:
    """Record on the default device."""
    request = functools.partial(compiler.request_of, fmad=False)
    with mock.patch.object(compiler, "request_of", request), cudakit.Device(fresh=True) as device:
        # those with a library's kernels cannot be replayed as a whole
        launches = [(p, run) for p in PROBLEMS for run in runs(device, p) if "blas" not in run.variant]
        for _, run in launches:
            run.launch()  # compiles, and sets what a variant sets once
        with cudakit.record(path):
            for _, run in launches:
                run.output.fill(float("nan"))
                run.launch()
        for problem, some in itertools.groupby(launches, key=lambda launch: launch[0].name):
            terminal.say(f"{problem}: {' '.join(run.variant for _, run in some)}")


def replay(path: str, target: str) -> None:
    """Replay on the simulated device, and write the verdicts."""
    with load(path) as recording:
        launches = recording.replay().launches
        about = {"device": recording.device, "date": datetime.date.today().isoformat(), "command": command_line()}
    rows = [
        {
            "launch": one.launch.number,
            "kernel": one.launch.kernel,
            "grid": one.launch.grid,
            "block": one.launch.block,
            "written": one.written,
            "outcome": one.outcome,
            "ulp": max((difference.ulp or 0 for difference in one.differences), default=0),
        }
        for one in launches
    ]
    outcomes = {
        outcome: [row for row in rows if row["outcome"] == outcome] for outcome in {one.outcome for one in launches}
    }
    summary = {
        name: {"launches": len(some), "most_ulp": max(row["ulp"] for row in some)} for name, some in outcomes.items()
    }
    outputs.write_json(about | {"summary": summary, "launches": rows}, target)
    terminal.say(str(summary))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--replay", metavar="JSON", help="replay the file, and write the verdicts")
    arguments = parser.parse_args()
    if arguments.replay:
        replay(arguments.file, arguments.replay)
    else:
        record(arguments.file)


if __name__ == "__main__":
    main()
