"""`cudakit bench` and the examples that measure a family: run its ladder, print, plot and write the result."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from cudakit.commands import against, cli
from cudakit.errors import Refused
from cudakit.measure.bench import Bench, Selection
from cudakit.measure.rows import BenchReport
from cudakit.names import hint
from cudakit.shapes import Shape
from cudakit.show import outputs, plots, tables

if TYPE_CHECKING:
    from rich.console import Console

    from cudakit.device import Device
    from cudakit.family import Ladder


def main(description: str, family: str, arguments: Sequence[str] | None = None) -> int:
    """The main function of an example for one family. Returns the exit status."""
    parser = argparse.ArgumentParser(description=description, formatter_class=cli.HelpFormatter)
    cli.add_bench_arguments(parser)
    cli.add_against_argument(parser, "measure the rows of an older --json again, on the same kind of device")
    parsed = parser.parse_args(arguments)
    return cli.guarded(lambda: run(parsed, [family], parsed.against))


def run(arguments: argparse.Namespace, names: Sequence[str], old: str | None = None) -> int:
    """Measure the families `names` with the flags of `cli.add_bench_arguments`. old: the file of an older report to
    compare with. If no flag selects rows, the rows of the older report are measured. Returns the exit status."""
    outputs.check_destination("--json", arguments.json)
    if arguments.plot is not None:
        plots.check(arguments.plot)
    earlier = None if old is None else against.load(old)
    once = arguments.once or cli.under_profiler()
    said = arguments.shapes or arguments.sweep or arguments.variants or arguments.dtypes or arguments.modes
    if earlier is not None and said and not names:
        names = against.families(earlier)
    families = [cli.family(name) for name in dict.fromkeys(names)]
    chosen = [one for family in families for one in selected(family, arguments)]
    table, progress = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device:
        work = [(family, _shapes(family, device.kind, arguments, once), selection) for family, selection in chosen]
        if old is not None and earlier is not None:
            why = against.refusal(earlier, device.info())
            if not why and not said:
                work = against.work(earlier, families)
                why = "" if work else against.no_rows(earlier, families)
            if why:
                return against.nothing_compared(old, why)
        if arguments.back_to_back and (once or device.kind != "gpu"):
            raise Refused("--back-to-back times launches: it needs a GPU, and cannot be combined with --once or ncu")
        bench = Bench(device, once=once, back_to_back=arguments.back_to_back, kernels_only=arguments.kernels_only)
        report = _measure(device, work, bench, progress)
    status = finish(report, arguments, table)
    if arguments.plot is not None:  # plots come last: an error while plotting must not lose the measurements
        plots.plot(report.as_dict(), arguments.plot)
    if old is not None and earlier is not None:
        status = max(status, against.conclude(earlier, report.as_dict(), old, table))
    return status


def selected(family: Ladder[Any], arguments: argparse.Namespace) -> list[tuple[Ladder[Any], Selection]]:
    """Return the variants, dtypes and modes to run, for the family and for the families that its function uses for
    other dtypes and options: float16 softmax, for example, is in softmax_modes. Raises Refused for an unknown variant,
    dtype or mode."""
    from cudakit import ops

    dtypes = {dtype: None for other in ops.families().values() for dtype in other.dtypes}
    related = {other.name: other for other in (family, *(family.instead(dtype) for dtype in dtypes)) if other}
    wanted: dict[str, list[tuple[str, str]]] = {}
    for mode in arguments.modes or list(family.modes)[:1]:
        for dtype in arguments.dtypes or family.usual_dtypes[:1]:
            members = [other for other in related.values() if dtype in other.usual_dtypes and mode in other.modes]
            if not members:
                _refuse(family, related, dtype, mode)
            wanted.setdefault(members[0].name, []).append((dtype, mode))
    chosen = []
    for name, pairs in wanted.items():
        several, modes = list(dict.fromkeys(d for d, _ in pairs)), list(dict.fromkeys(m for _, m in pairs))
        whole = len(pairs) == len(several) * len(modes)
        parts = [(several, modes)] if whole else [([dtype], [mode]) for dtype, mode in pairs]
        chosen += [(related[name], Selection(arguments.variants, *part)) for part in parts]
    for member, selection in chosen:
        selection.of(member)
    return chosen


def _refuse(family: Ladder[Any], related: Mapping[str, Ladder[Any]], dtype: str, mode: str) -> NoReturn:
    """Raise Refused for a dtype and mode that no family has; the message lists the existing ones."""
    dtypes = list(dict.fromkeys(name for other in related.values() for name in other.usual_dtypes))
    modes = list(dict.fromkeys(name for other in related.values() for name in other.modes))
    for what, name, known in (("dtype", dtype, dtypes), ("mode", mode, modes)):
        if name not in known:
            have = ", ".join(map(repr, known))
            raise Refused(f"{family.name} has no {what} {name!r}; it has {have}{hint(name, known)}")
    raise Refused(f"{family.name} has the mode {mode!r}, but not for {dtype}")


def finish(report: BenchReport, arguments: argparse.Namespace, table: Console) -> int:
    """Print the table of a measuring script's report, and write its JSON for --json. Returns the exit status."""
    result = report.as_dict()
    if not arguments.quiet:
        tables.show(result, table)
    if arguments.json:
        outputs.write_json(result, arguments.json)
    return cli.verdict(report)


def _measure(
    device: Device, work: Sequence[tuple[Ladder[Any], Sequence[Shape], Selection]], bench: Bench, console: Console
) -> BenchReport:
    report = BenchReport(device.info())
    total = sum(bench.steps(family, shapes, selection) for family, shapes, selection in work)
    with cli.progress(console, total) as bench.step:
        for family, shapes, selection in work:
            report.merge(bench.run(family, shapes, selection))
    if bench.device is not device:  # a faulting kernel made the device unusable
        bench.device.close()
    return report


def _shapes(family: Ladder[Any], kind: str, arguments: argparse.Namespace, once: bool) -> Sequence[Shape]:
    """The requested shapes, or the family's own for this kind of device."""
    asked: Sequence[Shape] | None = arguments.shapes
    return family.shapes_for(kind, sweep=arguments.sweep, once=once) if asked is None else asked
