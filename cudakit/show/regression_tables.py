"""The comparison of two reports, in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudakit.measure.regression import FLOOR, Change, ReportComparison
from cudakit.show import terminal
from cudakit.show.digits import number

if TYPE_CHECKING:
    from rich.console import Console


def show(found: ReportComparison, old: Mapping[str, Any], new: Mapping[str, Any], name: str, console: Console) -> None:
    """Print the rows that changed, those that only one report has, and how many were compared with the report `name`.

    found: the comparison of the reports `old` and `new`.
    """
    simulated = new["device"]["kind"] == "sim"
    if found.changes:
        changes = found.changes
        columns = [
            terminal.Column("row", [change.row for change in changes], words=True),
            terminal.Column("figure", [change.figure.replace("_", " ") for change in changes], words=True),
            terminal.Column("old", [number(change.old, 4) for change in changes], leave=1),
            terminal.Column("new", [number(change.new, 4) for change in changes]),
            terminal.Column("change", [_percent(change) for change in changes]),
            terminal.Column("noise", [f"{_share(change):.1f} %" for change in changes], leave=2),
            terminal.Column("verdict", [_verdict(change, simulated) for change in changes], words=True),
        ]
        styles = ["red" if change.slower and change.judged else None for change in changes]
        terminal.show_table(console, f"changed beyond noise since {name}", columns, styles=styles)
    for what, rows in (
        (f"only in {name}", found.only_old),
        ("only in this run", found.only_new),
        ("measured in only one of the two", found.unmeasured),
    ):
        for row in rows:
            terminal.show_text(console, f"{what}: {row}")
    for what in ("driver", "nvrtc"):
        before, now = old["device"].get(what), new["device"].get(what)
        if before != now:
            terminal.show_text(console, f"{what} {before} in {name}, {now} now")
    terminal.show_text(console, _rule(simulated))
    terminal.show_text(console, _total(found, name, simulated))


def _percent(change: Change) -> str:
    return "new" if not change.old else f"{100 * (change.ratio - 1):+.1f} %"


def _share(change: Change) -> float:
    return 100 * change.noise / change.old if change.old else 0.0


def _verdict(change: Change, simulated: bool) -> str:
    better, worse = ("less", "MORE") if simulated else ("faster", "SLOWER")
    return (worse if change.slower else better) if change.judged else f"{worse.lower() if change.slower else better}*"


def _rule(simulated: bool) -> str:
    if simulated:
        return (
            "the simulated device has no clock, so its counters are compared, which are the same in every run; the "
            "host's time of the row cpu is not compared"
        )
    return (
        f"noise: the ranges from p10 to p90 overlap, or the medians differ by less than {100 * FLOOR:.0f} %; rows of "
        "the host and of peers (*) are not judged"
    )


def _total(found: ReportComparison, name: str, simulated: bool) -> str:
    def count(changes: Sequence[Change]) -> str:
        rows = len({change.row for change in changes})
        return f"{rows} row{'s' * (rows != 1)}"

    ours = [change for change in found.changes if change.judged]
    worse, better = [c for c in ours if c.slower], [c for c in ours if not c.slower]
    words = ("with more work", "with less") if simulated else ("slower", "faster")
    left = len(found.only_old) + len(found.unmeasured)
    rest = f"; {left} of {name} NOT COMPARED" if left else ""
    said = f"{found.rows} row{'s' * (found.rows != 1)} compared with {name}"
    return f"{said}: {count(worse)} {words[0]}, {count(better)} {words[1]}{rest}"
