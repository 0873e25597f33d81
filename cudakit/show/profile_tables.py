"""Tables of a profile, one row per launch: as markdown between marks, or in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cudakit.profiling.binding import percent
from cudakit.show import markdown as pages
from cudakit.show import terminal
from cudakit.show.digits import NOTHING, number

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]


def _share(key: str) -> Callable[[Row], str]:
    return lambda row: NOTHING if row[key] is None else percent(row[key])


def _figure(key: str, digits: int = 3) -> Callable[[Row], str]:
    return lambda row: number(row[key], digits)


def name_of(row: Row, *, short: bool = False) -> str:
    """The name of a row: its range (short: without the family), and the kernel's name unless the range contains it."""
    kernel = str(row["kernel"])
    if not row["range"]:
        return kernel
    name = str(row["variant"] if short and row["variant"] else row["range"])
    # gemm.tiled16 is the kernel `tiled` with a tile size
    said = row["variant"].rstrip("0123456789") == kernel.rstrip("0123456789")
    return name if said else f"{name}: {kernel}"


def _pipes(row: Row) -> str:
    """The busier one of the FMA pipe and the tensor pipe."""
    fma, tensor = row["fma_share"], row["tensor_share"]
    if fma is None and tensor is None:
        return NOTHING
    if fma is None or (tensor or 0) > fma:
        return f"{percent(tensor)} (tensor)"
    return percent(fma)


def _hits(row: Row) -> str:
    return " / ".join(_share(key)(row).removesuffix(" %") for key in ("l1_hit", "l2_hit"))


def _sectors(row: Row) -> str:
    return " / ".join(number(row[key]) for key in ("sectors_per_load", "sectors_per_store"))


def _wavefronts(row: Row) -> str:
    """Wavefronts of shared memory relative to the fewest that its bytes need: 1 means no bank conflicts."""
    actual, ideal = row["shared_wavefronts"], row["shared_wavefronts_ideal"]
    return number(actual / ideal) if actual and ideal else NOTHING


def _occupancy(row: Row) -> str:
    if row["occupancy"] is None:
        return NOTHING
    most = row["occupancy_theoretical"]
    # the theoretical occupancy is shown if the achieved one is well below it
    short = f" of {percent(most)}" if most is not None and row["occupancy"] < 0.9 * most else ""
    return percent(row["occupancy"]) + short + (f", {row['limited_by']}" if row["limited_by"] else "")


def _waits(count: int) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        return ", ".join(f"{why} {percent(share)}" for why, share in list(row["stalls"].items())[:count]) or NOTHING

    return text


_BOTTLENECK: Column = ("bottleneck", lambda row: row["binds"] or NOTHING)
# Rates, and fractions of the peaks.
REACHED: list[Column] = [
    ("us", _figure("time_us")),
    ("TFLOP/s", _figure("tflops")),
    ("GB/s", _figure("gbps")),
    ("FLOP/byte", _figure("intensity")),
    ("DRAM", _share("dram_share")),
    ("FMA or tensor", _pipes),
    ("issue", _share("issue_share")),
    _BOTTLENECK,
]
# Causes of lower rates.
CAUSES: list[Column] = [
    ("L1 / L2 hits, %", _hits),
    ("sectors per load / store", _sectors),
    ("wavefronts, x ideal", _wavefronts),
    ("regs", _figure("registers")),
    ("occupancy", _occupancy),
    ("stalls", _waits(2)),
]
# A terminal's table: each heading, and its place in the order in which columns are left out (cudakit.show.terminal).
_TERMINAL = {
    "us": 0, "TFLOP/s": 3, "GB/s": 2, "FLOP/byte": 5, "DRAM": 0, "FMA or tensor": 0, "issue": 4,
    "L1 / L2": 8, "sectors": 7, "occupancy": 6, "stalls": 1, "bottleneck": 0,
}  # fmt: skip
_OWN: list[Column] = [
    ("L1 / L2", _hits),
    ("sectors", _sectors),
    ("occupancy", _share("occupancy")),
    ("stalls", _waits(1)),
]
TERMINAL: list[Column] = [
    *(column for column in REACHED[:-1] if column[0] in _TERMINAL),
    *_OWN,
    _BOTTLENECK,
]


def cells(rows: Sequence[Row], columns: Sequence[Column]) -> tuple[list[str], list[list[str]]]:
    """Headings and text cells."""
    return [name for name, _ in columns], [[text(row) for _, text in columns] for row in rows]


def ceilings_line(report: Mapping[str, Any]) -> str:
    """The ceilings of the report in words: `copy 4,195 GB/s; FFMA 60.1 TFLOP/s`."""
    units = {"gbps": "GB/s", "tflops": "TFLOP/s"}
    ceilings = report["ceilings"].values()
    return "; ".join(f"{one['name']} {number(one['value'])} {units[one['kind']]}" for one in ceilings)


def device_line(report: Mapping[str, Any]) -> str:
    device = report["device"]
    said = [device["name"], device["arch"], f"ncu {report['ncu']}" if report["ncu"] else "", report["date"]]
    return ", ".join(part for part in said if part)


def markdown(report: Mapping[str, Any]) -> str:
    """Two tables in markdown, of each launch's rates and of their causes, and below them one sentence per launch."""
    launch: Column = ("launch", lambda row: name_of(row, short=_one_family(report)))
    last = "; ".join(part for part in (ceilings_line(report), device_line(report)) if part)
    tables = [pages.table(*cells(report["rows"], [launch, *columns])) for columns in (REACHED, CAUSES)]
    return "\n".join(
        [
            *tables[0],
            "",
            *tables[1],
            "",
            sentences(report),
            "",
            last,
        ]
    )


def _one_family(report: Mapping[str, Any]) -> bool:
    """Whether all launches are of one family, so that its name is not repeated in each line."""
    return len({row["family"] for row in report["rows"]}) == 1


def sentences(report: Mapping[str, Any]) -> str:
    """One line per launch: its bottleneck and why."""
    short = _one_family(report)
    return "\n".join(f"- `{name_of(row, short=short)}`: {row['sentence']}" for row in report["rows"] if row["sentence"])


def show(report: Mapping[str, Any], console: Console) -> None:
    """Print the table, then one sentence per launch."""
    rows, short = report["rows"], _one_family(report)
    names = [name_of(row, short=short) for row in rows]
    columns = [terminal.Column("launch", names, words=True)]
    for heading, text in TERMINAL:
        words = heading in ("stalls", "bottleneck")
        columns.append(terminal.Column(heading, [text(row) for row in rows], _TERMINAL[heading], words))
    ceilings = ceilings_line(report)
    terminal.show_table(console, report["command"], columns, notes=[ceilings] if ceilings else [])
    for row in rows:
        if row["sentence"]:
            terminal.show_text(console, f"{name_of(row)}: {row['sentence']}")
    terminal.show_text(console, device_line(report))
