"""Record an H200's results of Hopper's instructions, and compare the simulated device with them.

    python -m tests.hopper --record tests/data/hopper_h200.npz
    python -m tests.hopper --record tests/data/hopper_h200.npz --only wgmma
    python -m tests.hopper --facts facts_h200.txt
    python -m tests.hopper --compare "mbarrier program 17"
    python -m tests.hopper --table

Exit status: 0 if all cases ran and agree, 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cudakit
from cudakit.measure.command import command_line

from . import facts, program_ptx, recording, table
from .case import Bytes, Case
from .catalogue import FAMILIES, selected
from .program_walk import Walk
from .runner import Runner

_SHOWN = 40  # lines per kind of problem


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.hopper", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help=f"{', '.join(FAMILIES)}, or text in the names or groups of cases")
    parser.add_argument("--against", default="gpu", help="the device to record or compare with (default: %(default)s)")
    parser.add_argument("--record", type=Path, help="record the results here (.npz); other cases in the file are kept")
    parser.add_argument("--results", type=Path, help="a folder for the results themselves; --compare reads them there")
    parser.add_argument("--facts", type=Path, help="write the results of the experiments here, as text to be diffed")
    parser.add_argument("--compare", metavar="CASE", help="find the first differing element of cases with this text")
    parser.add_argument("--show", action="store_true", help="with --compare: print the PTX, and a program's operations")
    parser.add_argument("--table", action="store_true", help="compare all cases with the recording; write the table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    failed = False
    if arguments.record:
        failed |= _record(arguments)
    if arguments.facts:
        with Runner(arguments.against, **_unchecked(arguments.against)) as runner, arguments.facts.open("w") as file:
            for line in facts.lines(runner):
                print(line, file=file, flush=True)
    if arguments.compare is not None:
        failed |= _compare(arguments)
    if arguments.table:
        failed |= table.write()
    return int(failed)


def _unchecked(spec: str) -> dict[str, Any]:
    """Return the options of a simulated device whose results alone are of interest."""
    return {"checks": ()} if spec.startswith("sim") else {}


def _record(arguments: argparse.Namespace) -> bool:
    """Run the cases, write the recording, and return whether something went wrong."""
    problems: list[str] = []
    start = time.perf_counter()
    recorded = 0
    with Runner(arguments.against, **_unchecked(arguments.against)) as runner:
        about = runner.about() | {"date": datetime.date.today().isoformat(), "command": command_line()}
        for family, cases in selected(arguments.only).items():
            began, groups, found = time.perf_counter(), Counter[str](), []
            for case, outcome in runner.run(cases):
                if outcome.result is None:
                    problems.append(f"no result: {case.name}: {outcome.error}")
                    continue
                if case.gave_up(outcome.result):
                    problems.append(f"not recorded, a wait was given up: {case.name}")
                    continue
                found.append((case, outcome.result))
                groups[case.group] += 1
            problems += _against_the_rules(family, found)
            # each family at once: a later one may fail
            kept = recording.Recording(arguments.record) if arguments.record.exists() else None
            recording.save(arguments.record, found, about, kept)
            recorded += len(found)
            if arguments.results:
                arguments.results.mkdir(parents=True, exist_ok=True)
                recording.keep(arguments.results, family, found)
            for group, count in groups.items():
                print(f"{group:40} {count:5} cases")
            print(f"{family}: {len(found)} of {len(cases)} cases in {time.perf_counter() - began:.0f} s", flush=True)
    size = arguments.record.stat().st_size / 1024 if recorded else 0
    print(f"recorded {recorded} cases in {arguments.record} ({size:.0f} KB, {time.perf_counter() - start:.0f} s)")
    for problem in problems[:_SHOWN]:
        print(problem)
    if len(problems) > _SHOWN:
        print(f"and {len(problems) - _SHOWN} more")
    return bool(problems)


def _against_the_rules(family: str, found: Sequence[tuple[Case, Bytes]]) -> list[str]:
    """Return the mbarrier programs whose results are not those that the rules determine."""
    if family != "mbarrier":
        return []
    wrong = []
    for case, result in found:
        expected = program_ptx.determined(Walk(int(case.name.split()[-1])).program())
        places = np.flatnonzero(result != expected)
        if len(places):
            at = int(places[0]) // 4
            got, rule = (int(array.view(np.uint32)[at]) for array in (result, expected))
            wrong.append(f"not what the rules determine: {case.name}, word {at}: {got:#x}, by the rules {rule:#x}")
    return wrong


def _compare(arguments: argparse.Namespace) -> bool:
    """Run cases on the simulated device and on the GPU, or read the GPU's results, and print the differences."""
    different = compared = 0
    for family, every in selected(arguments.only).items():
        cases = [case for case in every if arguments.compare in case.name]
        if not cases:
            continue
        if arguments.results:
            theirs = recording.kept(arguments.results, family)
        else:
            with Runner(arguments.against) as gpu:
                theirs = {case.key: made.result for case, made in gpu.run(cases) if made.result is not None}
        with Runner("sim", checks=()) as sim:
            for case, outcome in sim.run(cases):
                if arguments.show:
                    print(Walk(int(case.name.split()[-1])).program() if family == "mbarrier" else case.entry("k0"))
                line = _difference(case, outcome.result, theirs.get(case.key), outcome.error)
                compared += 1
                different += bool(line)
                if line:
                    print(f"{case.name}: {line}")
    print(f"{different} of {compared} cases differ")
    return different > 0


def _difference(case: Case, sim: Bytes | None, gpu: Bytes | None, error: str) -> str:
    if sim is None or gpu is None:
        return error if sim is None else "no result of the GPU"
    wrong = np.flatnonzero(sim != gpu)
    if not len(wrong):
        return ""
    at = int(wrong[0])
    word = slice(at // 4 * 4, at // 4 * 4 + 4)
    ours, theirs = (int.from_bytes(array[word].tobytes(), "little") for array in (sim, gpu))
    words = len(np.unique(wrong // 4))
    return f"{words} of {len(sim) // 4} words differ, first {case.locate(at)}: sim {ours:#010x}, gpu {theirs:#010x}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except cudakit.DeviceUnavailable as error:
        sys.exit(str(error))
