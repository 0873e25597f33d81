"""Compare the simulated device with a GPU: every form of instruction, and random programs.

    python -m tests.differential --json profiles/h200/conformance.json
    python -m tests.differential --only shfl --count 4096
    python -m tests.differential --record tests/data/forms_h200.npz
    python -m tests.differential --markdown profiles/h200/conformance.json

Exit status: 0 if every difference has an explanation, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cudakit

from . import recording
from .catalogue import catalogue
from .forms import BLOCK, Form, module
from .operands import Words
from .programs import Program, random_program
from .programs import form as program_form
from .runner import Comparison, Runner, compare, differ
from .shrink import shrink
from .table import Table, lines_of, markdown

PROGRAMS = "random programs"
SHRINKS = 8  # programs that one run shrinks


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=2048, help="operand vectors per form (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of operands and programs (default: %(default)s)")
    parser.add_argument("--programs", type=int, default=500, help="number of random programs (default: %(default)s)")
    parser.add_argument("--only", default="", help="only forms whose group or name contains this text")
    parser.add_argument("--against", default="gpu", help="the device to compare with (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the table here")
    parser.add_argument("--details", type=Path, help="write operands and results of forms that differ here (.npz)")
    parser.add_argument("--record", type=Path, help="record the GPU's results of every form here (.npz)")
    parser.add_argument("--markdown", type=Path, help="only print the table of a JSON file that --json wrote")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    if arguments.markdown:
        print(markdown(json.loads(arguments.markdown.read_text())))
        return 0
    only = arguments.only
    forms = [form for form in catalogue() if only in form.group or only in form.name]
    drawn = [
        random_program(arguments.seed * 1_000_000 + k) for k in range(arguments.programs if only in PROGRAMS else 0)
    ]
    of_program = {made.name: (made, program) for program in drawn for made in [program_form(program, PROGRAMS)]}
    if arguments.record:
        _record(forms, arguments.record, arguments.against)
    if not (arguments.json or arguments.details) and arguments.record:
        return 0
    table, details, start, shrunk = Table(), _Details(), time.perf_counter(), 0
    small = min(arguments.count, 256)
    with Runner("sim") as ours, Runner(arguments.against) as theirs:
        for found in differ(forms, arguments.count, arguments.seed, ours, theirs):
            if found.mismatches:
                details.add(found)
            table.add(found.form.group, found)
        for found in differ([made for made, _ in of_program.values()], small, arguments.seed, ours, theirs):
            known = len(table.unexplained)
            table.add(PROGRAMS, found)
            if len(table.unexplained) > known and found.wrong.any() and shrunk < SHRINKS:
                shrunk += 1
                print(_shrunk(of_program[found.form.name][1], found, ours, theirs))
    print(*lines_of(table.rows.values()), sep="\n")
    for line in table.unexplained[:400]:
        print(line)
    took, left = time.perf_counter() - start, len(table.unexplained)
    print(f"{len(forms)} forms and {len(of_program)} programs in {took:.0f} s, {left} unexplained differences")
    if arguments.json:
        with cudakit.Device(arguments.against) as device:
            about = device.info()
        record = table.record(about | {"count": arguments.count, "seed": arguments.seed})
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    if arguments.details:
        details.save(arguments.details)
    return 1 if table.unexplained else 0


def _shrunk(program: Program, found: Comparison, ours: Runner, theirs: Runner) -> str:
    """Return the smallest program and operands that show a difference, with the kernel's PTX."""

    def both(candidate: Program, operands: Words) -> Comparison:
        made = program_form(candidate, PROGRAMS)
        (here,), (there,) = ours.run([made], [operands]), theirs.run([made], [operands])
        return compare(made, operands, here, there)

    def differs(candidate: Program, operands: Words) -> bool:
        table = Table()
        table.add(PROGRAMS, both(candidate, operands))
        return bool(table.unexplained)

    program, operands = shrink(program, found.operands, int(found.wrong.argmax()), differs)
    least = both(program, operands)
    return "\n".join(["", "A random program differs; reduced to:", *least.lines(1), module([least.form])])


def _record(forms: Sequence[Form], path: Path, spec: str) -> None:
    with Runner(spec) as runner:
        outcomes = runner.run(forms, [recording.operands(form) for form in forms])
    kept = [(form, o.results) for form, o in zip(forms, outcomes, strict=True) if o.results is not None]
    recording.save(path, [form for form, _ in kept], [results for _, results in kept])
    for form, outcome in zip(forms, outcomes, strict=True):
        if outcome.error:
            print(f"not recorded: {form.name}: {outcome.error}")
    print(f"recorded {len(kept)} forms in {path} ({path.stat().st_size / 1024:.0f} KB)")


class _Details:
    """The first few blocks of lanes with a difference, for each form."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self.names: list[str] = []

    def add(self, found: Comparison) -> None:
        number = len(self.names)
        self.names.append(f"{found.form.name} | sim {found.sim.error or 'ran'} | gpu {found.gpu.error or 'ran'}")
        lanes = np.arange(min(found.cases, BLOCK))
        if found.wrong.size:
            blocks = np.unique(np.flatnonzero(found.wrong) // BLOCK)[:4]
            lanes = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        self.arrays[f"operands{number}"] = found.operands[:, lanes]
        self.arrays[f"wrong{number}"] = found.wrong[lanes] if found.wrong.size else found.wrong
        for name, outcome in (("sim", found.sim), ("gpu", found.gpu)):
            if outcome.results is not None:
                self.arrays[f"{name}{number}"] = outcome.results[:, lanes]

    def save(self, path: Path) -> None:
        np.savez_compressed(path, names=np.array(self.names), **self.arrays)


if __name__ == "__main__":
    sys.exit(main())
