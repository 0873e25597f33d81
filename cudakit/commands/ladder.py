"""The whole of a comparing script: measure a family's ladder, show it, draw it, write it down."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cudakit.commands import cli
from cudakit.errors import Refused
from cudakit.measure.bench import Bench, Selection
from cudakit.measure.rows import BenchReport
from cudakit.shapes import Shape
from cudakit.show import outputs, plots, tables

if TYPE_CHECKING:
    from rich.console import Console

    from cudakit.device import Device
    from cudakit.families.variant import Family


def main(description: str, family: str, arguments: Sequence[str] | None = None) -> int:
    """An example's main function for one family. Returns the exit status."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_bench_arguments(parser)
    return cli.guarded(lambda: run(parser.parse_args(arguments), [family]))


def run(arguments: argparse.Namespace, names: Sequence[str]) -> int:
    """Measures the families `names` as the flags of `cli.add_bench_arguments` say. Returns the exit status."""
    from cudakit import ops

    families = ops.families()
    unknown = [name for name in names if name not in families]
    if unknown:
        raise Refused(f"there is no family {unknown[0]!r}; there are {', '.join(families)}")
    outputs.check_destination("--json", arguments.json)
    if arguments.plot:
        plots.check(arguments.plot)
    table, progress = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device:
        report = _measure(device, [families[name] for name in names], arguments, progress)
    status = finish(report, arguments, table)
    if arguments.plot:  # last: what was measured stands, whether or not there is something to draw
        plots.plot(report.as_dict(), arguments.plot)
    return status


def finish(report: BenchReport, arguments: argparse.Namespace, table: Console) -> int:
    """How a measuring script ends: its table on `table`, its JSON where --json says. Returns the exit status."""
    result = report.as_dict()
    if not arguments.quiet:
        tables.show(result, table)
    if arguments.json:
        outputs.write_json(result, arguments.json)
    return cli.EXIT_OK if report.ok else cli.EXIT_FALSE


def _measure(
    device: Device, families: Sequence[Family[Any]], arguments: argparse.Namespace, console: Console
) -> BenchReport:
    once = arguments.once or cli.under_profiler()
    bench = Bench(device, once=once)
    report = BenchReport(device.info())
    selection = Selection(arguments.variants, arguments.dtypes, arguments.modes)
    work = [(family, _shapes(family, device.kind, arguments, once)) for family in families]
    total = sum(bench.steps(family, shapes, selection) for family, shapes in work)
    with cli.progress(console, total) as bench.step:
        for family, shapes in work:
            report.merge(bench.run(family, shapes, selection))
    return report


def _shapes(family: Family[Any], kind: str, arguments: argparse.Namespace, once: bool) -> Sequence[Shape]:
    """What was asked for, or the family's own shapes for this kind of device; fewer where it has fewer for a profile,
    which takes tens of passes over each launch."""
    asked: Sequence[Shape] | None = arguments.shapes
    if asked is not None:
        return asked
    if arguments.sweep:
        return family.shapes["sweep" if kind == "gpu" else "sim sweep"]
    return family.shapes.get(f"{kind} once", family.shapes[kind]) if once else family.shapes[kind]
