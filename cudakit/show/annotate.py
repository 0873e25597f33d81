"""The source with counters next to each line: one HTML page that needs no network and no script.

`kernels` adds up the launches that a watch recorded; `page` writes them as HTML. The page explains its figures.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from cudakit.launch.mangling import demangle
from cudakit.show import advice

# lines shown around each counted one, in files other than the first
_AROUND = 3


@dataclass
class AnnotatedKernel:
    """A kernel's launches, added up. `shapes`: (grid, block, bytes of dynamic shared memory), each with its number of
    launches. `spilled`: bytes of spills, None if ptxas's report is not available."""

    mangled: str
    name: str
    registers: int
    static_shared: int
    counters: Any
    shapes: dict[tuple[tuple[int, ...], tuple[int, ...], int], int] = field(default_factory=dict)
    spilled: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The entry in JSON: totals, shapes, and the counters of each line that are not 0."""
        return {
            "kernel": self.name,
            "registers": self.registers,
            "static_shared": self.static_shared,
            "spill_bytes": self.spilled,
            "shapes": [
                {"grid": list(grid), "block": list(block), "shared": shared, "launches": count}
                for (grid, block, shared), count in self.shapes.items()
            ],
            "counters": self.counters.as_dict(),
            "look_first": [
                {"kind": hint.kind, "file": hint.place and hint.place[0], "line": hint.place and hint.place[1],
                 "why": hint.why}
                for hint in advice.hints(self.counters)
            ],
            "lines": [
                {"file": file, "line": line, **{name: n for name, n in vars(share).items() if n and name != "mix"}}
                for (file, line), share in sorted(self.counters.per_line.items())
            ],
        }  # fmt: skip


def kernels(launches: Iterable[Any], spills: Mapping[str, int]) -> list[AnnotatedKernel]:
    """Launch records added up by kernel, in the order of their first launch. spills: bytes by mangled name."""
    by_name: dict[str, AnnotatedKernel] = {}
    for record in launches:
        kernel = by_name.get(record.name)
        if kernel is None:
            known = demangle(record.name)
            kernel = by_name[record.name] = AnnotatedKernel(
                record.name,
                known.name if known is not None else record.name,
                record.registers,
                record.static_shared,
                type(record.counters)(),
                spilled=spills.get(record.name),
            )
        kernel.counters.merge(record.counters)
        shape = (tuple(record.grid), tuple(record.block), record.shared)
        kernel.shapes[shape] = kernel.shapes.get(shape, 0) + record.counters.launches
    return list(by_name.values())


def page(source: Path, annotated: Sequence[AnnotatedKernel], facts: Sequence[str]) -> str:
    """Return the page for a source file's kernels. facts: lines at the top of the page about how the kernels were
    run."""
    style = resources.files("cudakit.show").joinpath("annotate.css").read_text(encoding="utf-8")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(source.name)}: counters by line</title>",
        f"<style>\n{style}</style></head><body>",
        f"<h1>{escape(source.name)}</h1>",
        *(f'<p class="soft">{escape(fact)}</p>' for fact in facts),
    ]
    if len(annotated) > 1:
        links = "".join(f'<li><a href="#k{n}">{escape(kernel.name)}</a></li>' for n, kernel in enumerate(annotated))
        parts.append(f"<ul>{links}</ul>")
    for number, kernel in enumerate(annotated):
        parts.extend(_kernel(f"k{number}", source, kernel))
    parts.append(_MEANING)
    parts.append("</body></html>\n")
    return "\n".join(parts)


# One kernel -----------------------------------------------------------------------------------------------------------


def _kernel(anchor: str, source: Path, kernel: AnnotatedKernel) -> list[str]:
    counters = kernel.counters
    files = _files(source, counters)
    anchors = {file: f"{anchor}f{number}" for number, file in enumerate(files)}
    hints = advice.hints(counters)
    parts = [f'<section id="{anchor}"><h2>{escape(kernel.name)}</h2>', _look(hints, anchors)]
    parts += [_facts(kernel), _totals(counters), _mix(counters)]
    columns = _columns(counters)
    for number, file in enumerate(files):
        parts.append(_source(file, anchors[file], counters, columns, hints, whole=number == 0))
    parts.append("</section>")
    return parts


def _look(hints: Sequence[advice.Hint], anchors: Mapping[str, str]) -> str:
    """The advice at the top: for each item its kind, the source line and the explanation."""
    if not hints:
        return (
            '<p class="fine">Nothing to improve: accesses are coalesced, no bank conflicts, no divergent branches.</p>'
        )
    items = []
    for item in hints:
        code = f"<pre>{escape(_line(item.place).strip())}</pre>" if item.place else ""
        items.append(f"<li><b>{escape(item.kind)}</b>{_where(item.place, anchors)}{code}{escape(item.why)}</li>")
    return '<div class="look"><h3>Look here first</h3><ol>' + "\n".join(items) + "</ol></div>"


def _line(place: advice.SourceLine) -> str:
    """The text of a line; "" if its file cannot be read."""
    text = source_lines(place[0])
    return text[place[1] - 1] if 0 < place[1] <= len(text) else ""


def source_lines(file: str) -> list[str]:
    """The lines of a file; none if it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _files(source: Path, counters: Any) -> list[str]:
    """The files with counted lines: the source itself first, the others by their number of instructions."""
    weights: dict[str, int] = {}
    for (file, _), line in counters.per_line.items():
        weights[file] = weights.get(file, 0) + line.instructions
    own = [file for file in weights if same_file(file, source)] or [str(source)]
    return own[:1] + sorted((file for file in weights if file not in own), key=lambda file: (-weights[file], file))


def same_file(file: str, path: Path) -> bool:
    """Whether a file name from line info refers to `path`."""
    return Path(file).resolve() == path.resolve()


def shown_path(file: str) -> str:
    """A path for the page: relative if the file is below the working directory."""
    clean = os.path.normpath(file)
    below = os.path.relpath(clean)
    return clean if below.startswith(os.pardir) else below


def _where(place: advice.SourceLine | None, anchors: Mapping[str, str]) -> str:
    if place is None:
        return ""
    text = f"{os.path.basename(place[0])}:{place[1]}"
    return (
        f' at <a href="#{anchors[place[0]]}l{place[1]}">{escape(text)}</a>'
        if place[0] in anchors
        else f" at {escape(text)}"
    )


def _boxes(values: Iterable[tuple[str, str, bool]]) -> str:
    """Named figures; bad ones are highlighted."""
    boxes = [
        f"<div{' class=bad' if bad else ''}><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value, bad in values
    ]
    return '<dl class="facts">' + "".join(boxes) + "</dl>"


def _facts(kernel: AnnotatedKernel) -> str:
    grids = [
        f"{_dims(grid)} x {_dims(block)}" + (f" ({n} launches)" if n > 1 else "")
        for (grid, block, _), n in kernel.shapes.items()
    ]
    dynamic = sorted({shared for _, _, shared in kernel.shapes})
    shown = grids[:3] + ([f"{len(grids) - 3} more"] if len(grids) > 3 else [])
    values = [
        ("grid x block", "; ".join(shown), False),
        ("registers per thread", str(kernel.registers), False),
        ("shared memory per block", f"{kernel.static_shared} + {' or '.join(map(str, dynamic[:3]))} bytes", False),
    ]
    if kernel.spilled is not None:
        values.append(("spills", f"{kernel.spilled} bytes" if kernel.spilled else "none", kernel.spilled > 0))
    occupancy = kernel.counters.occupancy
    if occupancy is not None:
        low = occupancy.fraction < advice.LOW_OCCUPANCY
        values.append(("theoretical occupancy", advice.occupancy_text(occupancy).replace(" occupancy", ""), low))
    return _boxes(values)


def _dims(dims: Sequence[int]) -> str:
    """(8, 1, 1) is 8, (8, 4, 1) is (8, 4)."""
    kept = list(dims)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return str(kept[0]) if len(kept) == 1 else f"({', '.join(map(str, kept))})"


def _totals(c: Any) -> str:
    values = [
        ("instructions (warps)", f"{c.instructions:,}", False),
        (
            "active lanes per instruction",
            f"{c.lanes_per_instruction:.1f} of 32",
            c.lanes_per_instruction < advice.LANES,
        ),
    ]
    if c.branches:
        values.append(("branches without divergence", f"{100 * c.branch_efficiency:.1f} %", False))
    for access in advice.global_traffic(c):
        text = f"{access.each:.1f}, ideal {access.ideal / access.requests:.1f}"
        values.append((f"sectors per global {access.kind}", text, access.over >= advice.SECTORS_OVER_IDEAL))
    if c.global_sector_bytes:
        values.append(("global memory moved", f"{c.global_sector_bytes:,} bytes for {c.global_bytes:,}", False))
    if c.mean_bank_conflict:
        ways = advice.conflict_ways(c)
        text = _mean_and_worst(ways, c.worst_bank_conflict, "-way") if c.worst_bank_conflict > 1 else "none"
        values.append(("bank conflicts", text, ways >= advice.CONFLICT_WAYS))
    if c.atomics:
        depth = _mean_and_worst(c.mean_contention, c.worst_contention, " lanes at one address")
        values.append(("atomics (warps)", f"{c.atomics:,}, {depth}", c.mean_contention >= advice.CONTENTION))
    local = c.local_load_bytes + c.local_store_bytes
    if local:
        values.append(("local memory moved", f"{local:,} bytes", True))
    if c.barriers:
        values.append(("barriers (warps)", f"{c.barriers:,}", False))
    return _boxes(values)


def _mix(counters: Any) -> str:
    """The instructions by class, as one bar: the seven largest classes and the rest."""
    ranked = sorted(counters.mix.items(), key=lambda item: (-item[1], item[0]))
    total = max(sum(counters.mix.values()), 1)
    shown, rest = ranked[:7], sum(count for _, count in ranked[7:])
    if rest:
        shown.append(("the rest: " + ", ".join(name.replace("_", " ") for name, _ in ranked[7:]), rest))
    bar, legend = [], []
    for number, (name, count) in enumerate(shown):
        percent = f"{100 * count / total:.1f}"
        label = name.replace("_", " ")
        bar.append(
            f'<div style="width:{percent}%;background:var(--c{number})" title="{escape(label)} {percent} %"></div>'
        )
        legend.append(f'<li><i style="background:var(--c{number})"></i>{escape(label)} {percent} %</li>')
    return (
        f'<h3>Instructions by class</h3><div class="mix">{"".join(bar)}</div><ul class="legend">{"".join(legend)}</ul>'
    )


# The source -----------------------------------------------------------------------------------------------------------

_HEAD = (
    ("instructions", "warps times PTX instructions of this line"),
    (
        "share of the kernel",
        "the line's fraction of all instructions; the paler part is code of other lines, inlined here",
    ),
    ("lanes", "mean number of active lanes, of 32"),
    ("sectors/load", "sectors of 32 bytes that one global load of a warp touches / the fewest possible"),
    ("sectors/store", "sectors of 32 bytes that one global store of a warp touches / the fewest possible"),
    ("bank conflict", "n-way shared-memory bank conflict: the mean, and the worst if it differs"),
    ("branch splits", "how often the lanes of a warp took both paths of the branch, of all its executions"),
    ("atomics on one address", "lanes of a warp at one address: the mean, and the worst if it differs"),
)


class SourceColumns:
    """The columns next to a kernel's source. headings: each with its meaning."""

    def __init__(self, counters: Any) -> None:
        self._total = counters.instructions
        self._shown = _columns(counters)
        self.headings = [_HEAD[column] for column in self._shown]

    def cells(self, line: Any, inlined: int) -> list[str]:
        """The cells of one line, as HTML. line: its counters, or None. inlined: instructions of other lines in it."""
        made = _cells(line, inlined, self._total)
        return [made[column] for column in self._shown]


def _columns(counters: Any) -> list[int]:
    """The columns of a kernel's tables: the first three, and each other column that has a figure in some line."""
    rows = [_cells(line, 0, counters.instructions) for line in counters.per_line.values()]
    return [number for number in range(len(_HEAD)) if number < 3 or any(row[number] != _cell("") for row in rows)]


def _source(
    file: str, anchor: str, counters: Any, columns: Sequence[int], hints: Sequence[advice.Hint], *, whole: bool
) -> str:
    """A table of a file's lines with their counters, and the advice about each line below it. Shows the whole file, or
    only lines near counted lines."""
    text = source_lines(file)
    lines = {line: share for (name, line), share in counters.per_line.items() if name == file}
    inlined = {line: count for (name, line), count in counters.inlined.items() if name == file}
    last = max([len(text), *lines, *inlined])
    if whole:
        shown = set(range(1, last + 1))
    else:
        shown = {near for line in lines for near in range(line - _AROUND, line + _AROUND + 1) if 1 <= near <= last}
    named = (_HEAD[column] for column in columns)
    head = "".join(f'<th scope="col" title="{escape(meaning)}">{escape(name)}</th>' for name, meaning in named)
    notes: dict[int, list[str]] = {}
    for item in hints:
        if item.place is not None and item.place[0] == file:
            notes.setdefault(item.place[1], []).append(f"<b>{escape(item.kind)}</b>: {escape(item.why)}")
    rows = []
    previous = 0
    for number in sorted(shown):
        if number != previous + 1:
            rows.append(f'<tr class="gap"><td colspan="{len(columns) + 2}">...</td></tr>')
        previous = number
        code = text[number - 1] if number <= len(text) else ""
        cells = _cells(lines.get(number), inlined.get(number, 0), counters.instructions)
        told = ' class="told"' if number in notes else ""
        rows.append(
            f'<tr id="{anchor}l{number}"{told}>{"".join(cells[column] for column in columns)}'
            f'<td class="line">{number}</td><td class="code">{escape(code)}</td></tr>'
        )
        rows += [
            f'<tr class="note"><td colspan="{len(columns) + 1}"></td><td><p>{note}</p></td></tr>'
            for note in notes.get(number, [])
        ]
    return (
        f'<p class="file">{escape(shown_path(file))}</p><div class="scroll"><table class="source"><thead><tr>{head}'
        '<th scope="col">line</th><th scope="col" class="code">source</th></tr></thead><tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


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
        return first + [_cell("")] * (len(_HEAD) - 2)
    few = line.lanes_per_instruction < advice.LANES and own >= advice.IDLE_SHARE * total
    first.append(_cell(f"{line.lanes_per_instruction:.1f}" if own else "", few))
    by_kind = {access.kind: access for access in advice.global_traffic(line)}
    for kind in ("load", "store"):
        access = by_kind.get(kind)
        if access is None:
            first.append(_cell(""))
        else:
            text = f"{access.each:.1f} / {access.ideal / access.requests:.1f}"
            first.append(_cell(text, access.over >= advice.SECTORS_OVER_IDEAL))
    ways, worst = advice.conflict_ways(line), line.worst_bank_conflict
    first.append(_cell(_mean_and_worst(ways, worst, "-way"), ways >= advice.CONFLICT_WAYS))
    split = f"{line.divergent_branches:,} of {line.branches:,}" if line.divergent_branches else ""
    first.append(_cell(split, line.divergent_branches * 10 >= max(line.branches, 1)))
    depth = line.mean_contention
    first.append(_cell(_mean_and_worst(depth, line.worst_contention, ""), depth >= advice.CONTENTION))
    return first


def _mean_and_worst(mean: float, worst: int, unit: str) -> str:
    """ "2.4-way, worst 8"; "1-way" if the worst is not above the mean."""
    if not mean:
        return ""
    text = f"{mean:.1f}".removesuffix(".0") + unit
    return text if worst <= mean else f"{text}, worst {worst}"


def _cell(text: str, bad: bool = False) -> str:
    return f'<td class="bad">{escape(text)}</td>' if bad and text else f"<td>{escape(text)}</td>"


_MEANING = """<details><summary>What the figures mean</summary>
<p>The figures were counted by cudakit's simulated device, which runs the PTX compiled by NVRTC. It has no clock: no
figure here is a time. Instructions are PTX instructions, counted once per warp; machine code differs in detail.</p>
<p><b>Sectors</b> are pieces of 32 bytes of global memory. A load of 4 bytes per lane by 32 neighbouring lanes touches
4, of 16 bytes 16. Many more than the fewest possible mean that the lanes' addresses are far apart.</p>
<p><b>n-way bank conflict</b>: shared memory has 32 banks of 4 bytes; lanes that access different words of one bank
are served one after another, in n wavefronts instead of one.</p>
<p><b>Branch splits</b>: how often lanes of one warp took both paths of a branch. Each path then runs with the lanes of
the other inactive, which shows as few <b>lanes</b> in its lines.</p>
<p><b>Atomics on one address</b>: lanes of a warp that update one address are served one after another.</p>
<p>Code of CUDA's own headers counts for the line that uses it. Code of other functions and headers counts for its own
line, and as the paler part of the bar for the lines into which it was inlined. <b>Theoretical occupancy</b> is the
fraction of a multiprocessor's warps that can be resident, limited by registers, shared memory, blocks and threads.</p>
</details>"""
