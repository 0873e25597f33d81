"""Run the litmus tests on a GPU, and compare its outcomes and the simulated device's reports with the PTX memory model.

    python -m tests.litmus --json profiles/h200/litmus.json
    python -m tests.litmus --markdown profiles/h200/litmus.json
    python -m tests.litmus --only IRIW

Exit status: 0 if the model allows every outcome, 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cudakit
from cudakit.measure.command import command_line

from .catalogue import catalogue
from .model import judge
from .runner import WAYS, observe
from .table import markdown


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.litmus", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--instances", type=int, default=1 << 17, help="per test and launch (default: %(default)s)")
    parser.add_argument("--only", default="", help="only tests whose name contains this text")
    parser.add_argument("--against", default="gpu", help="the device to run them on (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the outcomes here")
    parser.add_argument("--markdown", type=Path, help="only print the table of a JSON file that --json wrote")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    if arguments.markdown:
        print(markdown(json.loads(arguments.markdown.read_text())))
        return 0
    variants = [variant for variant in catalogue() if arguments.only in variant.name]
    tests, forbidden, start = {}, 0, time.perf_counter()
    # the warming loads of a launch are in a race with its stores
    options: Any = {"checks": ()} if arguments.against.startswith("sim") else {}
    with cudakit.Device(arguments.against, **options) as device:
        about = device.info()
        for variant, counts in observe(device, variants, arguments.instances):
            tests[variant.name] = {variant.outcome(values): count for values, count in sorted(counts.items())}
            for values in counts.keys() - judge(variant).allowed:
                forbidden += 1
                print(f"not allowed: {variant.outcome(values)}, {counts[values]} times: {variant.name}")
    print(f"{len(tests)} tests in {time.perf_counter() - start:.0f} s, {forbidden} outcomes that are not allowed")
    if arguments.json:
        about |= {"date": datetime.date.today().isoformat(), "command": command_line()}
        record = {"about": about | {"instances": arguments.instances, "launches": len(WAYS)}, "tests": tests}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if forbidden else 0


if __name__ == "__main__":
    sys.exit(main())
