"""Measures the cost of the simulated device's checks over the ladders, on this machine.

`python -m tests.checks_cost --json profiles/sim/checks.json` runs each variant of the problems of `tests.counters`
without checks and with all of them, in the interpreter and in machine code. Written are the minimum of several launches
of each, in seconds of processor time, because other processes can only increase it, and their ratio. Results are not
compared here: tests do that.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any
from unittest import mock

import cudakit
from cudakit.shapes import shape_text

from .costs import summary_of, write
from .counters.problems import PROBLEMS, runs

ENGINES = ("interpreter", "compiled")
LAUNCHES = 5


def seconds(engine: str, **options: Any) -> dict[tuple[str, str, str], float]:
    """Return the processor seconds of one launch, by family, shape and variant."""
    found = {}
    with mock.patch.dict(os.environ, CUDAKIT_SIM_ENGINE=engine), cudakit.Device("sim", fresh=True, **options) as device:
        for problem in PROBLEMS:
            for run in runs(device, problem):
                run.launch()  # compiles the kernel
                device.synchronize()
                took = []
                for _ in range(LAUNCHES):
                    start = time.process_time()
                    run.launch()
                    device.synchronize()
                    took.append(time.process_time() - start)
                found[problem.family, shape_text(problem.shape), run.variant] = min(took)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for engine in ENGINES:
        without, with_checks = seconds(engine, checks=()), seconds(engine)
        for (family, shape, variant), base in without.items():
            checked = with_checks[family, shape, variant]
            row = {"engine": engine, "family": family, "shape": shape, "variant": variant}
            rows.append(row | {"unchecked": base, "checked": checked, "ratio": checked / base})
    summary = {engine: summary_of((row["ratio"] for row in rows if row["engine"] == engine), 2) for engine in ENGINES}
    write(summary, rows, arguments.json)


if __name__ == "__main__":
    main()
