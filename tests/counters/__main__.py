"""Compare the simulated device's counters with a GPU's under Nsight Compute.

    python -m tests.counters --device gpu --json profiles/h200/counters.json --ptx tests/data/counters_h200.json.xz
    python -m tests.counters --device gpu --families gemm --report gemm.ncu-rep
    python -m tests.counters --against profiles/h200/counters.json --ptx tests/data/counters_h200.json.xz \\
        --markdown profiles/h200/counters.md

The first counts on a GPU under ncu and stores the PTX that ran. The last counts on the simulated device, with that PTX,
and writes a table of both. Exit status: 0 if every difference has an explanation, 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cudakit
from cudakit import profiling
from cudakit.commands import cli
from cudakit.errors import Refused
from cudakit.measure.command import command_line
from cudakit.show import outputs

from . import compiled, hardware, simulated
from .launches import Counted, gathered, read
from .problems import chosen
from .table import compare, markdown


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.counters", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="sim", help="where to count: gpu, with ncu, or sim (default: %(default)s)")
    parser.add_argument("--families", type=cli.parse_names, default=[], help="only these families (default: all)")
    parser.add_argument("--json", metavar="FILE", help="write the counts here")
    parser.add_argument("--ptx", type=Path, metavar="FILE.json.xz", help="write the GPU's PTX here; on sim: run it")
    parser.add_argument("--report", type=Path, metavar="FILE.ncu-rep", help="keep ncu's report")
    parser.add_argument("--against", type=Path, metavar="FILE.json", help="compare with these counts of a GPU")
    parser.add_argument("--markdown", type=Path, metavar="FILE.md", help="write the comparison here")
    parser.add_argument("--launch", action="store_true", help="only launch the kernels, to be run under ncu")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    if arguments.markdown and not arguments.against:
        raise Refused("--markdown is a table of two devices: name the GPU's counts with --against FILE.json")
    problems = chosen(arguments.families)
    if not problems:
        raise Refused(f"no problem is of {', '.join(arguments.families)}")
    with cli.open_device(arguments.device) as device:
        if arguments.launch:
            hardware.launch(device, problems)
            return 0
        record = _record(device, arguments)
    if arguments.json:
        outputs.write_json(record, arguments.json)
    if not arguments.against:
        print(f"{len(record['rows'])} kernels counted on {record['device']['name']}")
        return 0
    return _held_against(read(record["rows"]), json.loads(arguments.against.read_text()), arguments)


def _record(device: cudakit.Device, arguments: argparse.Namespace) -> dict[str, Any]:
    about: dict[str, Any] = {
        "device": device.info(),
        "date": datetime.date.today().isoformat(),
        "command": command_line(),
    }
    if device.kind == "sim":
        if arguments.ptx:
            compiled.use(device, compiled.read(arguments.ptx))
        rows: Iterable[Counted] = simulated.count(device, chosen(arguments.families))
    else:
        rows = _profiled(device, arguments)
        about["ncu"] = profiling.ncu_version(profiling.find_ncu() or "ncu")
    return about | {"rows": [row.as_dict() for row in gathered(rows).values()]}


def _profiled(device: cudakit.Device, arguments: argparse.Namespace) -> list[Counted]:
    with tempfile.TemporaryDirectory() as folder:
        report = arguments.report or Path(folder) / "counters.ncu-rep"
        hardware.profile(arguments.families, arguments.device, report)
        sources = hardware.launch(device, chosen(arguments.families))
        if arguments.ptx:
            compiled.write(compiled.kernels(device), arguments.ptx)
        return list(hardware.count(report, sources))


def _held_against(rows: Sequence[Counted], record: dict[str, Any], arguments: argparse.Namespace) -> int:
    families = arguments.families
    found = compare(rows, [row for row in read(record["rows"]) if not families or row.family in families])
    if arguments.markdown:
        arguments.markdown.write_text(markdown(record, found) + "\n", encoding="utf-8")
    again = "measure again: python -m tests.counters --device gpu --json"
    problems = [
        *(f"{rung} has changed since it was measured; {again}" for rung in found.changed),
        *(f"{line} was not measured; {again}" for line in found.missing),
        *found.unexplained,
    ]
    print(*problems, f"{len(found.rows)} kernels compared, {len(found.unexplained)} unexplained differences", sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(cli.guarded(main))
