"""The columns next to a kernel's source: the counters of each line, as cells of an HTML table."""

from __future__ import annotations

from html import escape
from typing import Any

from cudakit.show import advice

_HEAD = (
    ("instructions", "warps times PTX instructions of this line"),
    (
        "share of the kernel",
        "the line's fraction of all instructions; the paler part is code of other lines, inlined here",
    ),
    ("lanes", "mean number of active lanes, of 32"),
    ("sectors/load", "sectors of 32 bytes that one global load of a warp touches / the fewest possible"),
    ("sectors/store", "sectors of 32 bytes that one global store of a warp touches / the fewest possible"),
    ("bulk bytes", "bytes of bulk copies, tensor copies and asynchronous stores, and the part outside of the tensor"),
    ("bank conflict", "n-way shared-memory bank conflict: the mean, and the worst if it differs"),
    ("branch splits", "how often the lanes of a warp took both paths of the branch, of all its executions"),
    ("atomics on one address", "lanes of a warp at one address: the mean, and the worst if it differs"),
    ("waits ready", "how often a warp's wait found the mbarrier's phase complete, of all its waits"),
    ("multiply-adds", "multiply-adds of matrix products, by the type of the first operand"),
)
# the first columns, which every table has
_ALWAYS = 3


class LineColumns:
    """The columns of a kernel's tables: the first three, and each other one that has a figure in some line. headings:
    each with its meaning."""

    def __init__(self, counters: Any) -> None:
        self._total = counters.instructions
        rows = [_cells(line, 0, self._total) for line in counters.per_line.values()]
        empty = _cell("")
        self._shown = [
            number for number in range(len(_HEAD)) if number < _ALWAYS or any(row[number] != empty for row in rows)
        ]
        self.headings = [_HEAD[column] for column in self._shown]

    def cells(self, line: Any, inlined: int) -> list[str]:
        """The cells of one line, as HTML. line: its counters, or None. inlined: instructions of other lines in it."""
        made = _cells(line, inlined, self._total)
        return [made[column] for column in self._shown]


def mean_and_worst(mean: float, worst: int, unit: str) -> str:
    """ "2.4-way, worst 8"; "1-way" if the worst is not above the mean."""
    if not mean:
        return ""
    text = f"{mean:.1f}".removesuffix(".0") + unit
    return text if worst <= mean else f"{text}, worst {worst}"


def _cells(line: Any, inlined: int, total: int) -> list[str]:
    """The cells left of a source line; a cell is empty if the line does not have its counter."""
    own = line.instructions if line is not None else 0
    bar = "".join(
        f'<span class="{kind}" style="width:{100 * count / total / 17:.3f}rem"></span>'
        for kind, count in (("own", own), ("inlined", inlined))
        if count
    )
    share = f"{100 * own / total:.1f} %" if own else ""
    if inlined:
        share += f" +{100 * inlined / total:.1f} %"
    first = [_cell(f"{own:,}" if own else ""), f'<td class="bar">{bar} {share}</td>']
    if line is None:
        return first + [_cell("")] * (len(_HEAD) - len(first))
    few = line.lanes_per_instruction < advice.LANES and own >= advice.IDLE_SHARE * total
    first.append(_cell(f"{line.lanes_per_instruction:.1f}" if own else "", few))
    return [*first, *_traffic(line), *_work(line)]


def _traffic(line: Any) -> list[str]:
    """The cells about global memory: sectors per load and per store, bulk bytes."""
    made = []
    by_kind = {access.kind: access for access in advice.global_traffic(line)}
    for kind in ("load", "store"):
        access = by_kind.get(kind)
        if access is None:
            made.append(_cell(""))
        else:
            text = f"{access.each:.1f} / {access.ideal / access.requests:.1f}"
            made.append(_cell(text, access.over >= advice.SECTORS_OVER_IDEAL))
    moved, outside = line.bulk_bytes + line.async_store_bytes, advice.clipped(line)
    text = f"{moved:,}" if moved else ""
    if outside:
        text += f", {100 * outside:.0f} % outside"
    return [*made, _cell(text, outside >= advice.CLIPPED)]


def _work(line: Any) -> list[str]:
    """The cells about bank conflicts, branches, atomics, waits and matrix products."""
    ways, worst = advice.conflict_ways(line), line.worst_bank_conflict
    split = f"{line.divergent_branches:,} of {line.branches:,}" if line.divergent_branches else ""
    depth = line.mean_contention
    ready = f"{line.mbarrier_waits_ready:,} of {line.mbarrier_waits:,}" if line.mbarrier_waits else ""
    products = ", ".join(f"{kind} {count:,}" for kind, count in sorted(line.multiply_adds.items()))
    return [
        _cell(mean_and_worst(ways, worst, "-way"), ways >= advice.CONFLICT_WAYS),
        _cell(split, line.divergent_branches * 10 >= max(line.branches, 1)),
        _cell(mean_and_worst(depth, line.worst_contention, ""), depth >= advice.CONTENTION),
        _cell(ready),
        _cell(products),
    ]


def _cell(text: str, bad: bool = False) -> str:
    return f'<td class="bad">{escape(text)}</td>' if bad and text else f"<td>{escape(text)}</td>"
