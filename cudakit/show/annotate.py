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
from cudakit.show.line_columns import LineColumns, mean_and_worst

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
                {"file": file, "line": line, **_counts(share)}
                for (file, line), share in sorted(self.counters.per_line.items())
            ],
        }  # fmt: skip


def _counts(line: Any) -> dict[str, int]:
    """The counters of a line that are not 0, without its instructions by class."""
    out = {name: n for name, n in vars(line).items() if isinstance(n, int) and n}
    return out | {f"multiply_adds_{name}": count for name, count in line.multiply_adds.items()}


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
    columns = LineColumns(counters)
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
    if c.bulk_requests:
        values += _bulk(c)
    if c.async_store_requests:
        text = f"{c.async_store_requests:,}, {c.async_store_bytes:,} bytes"
        values.append(("asynchronous stores (warps)", text, False))
    if c.mean_bank_conflict:
        ways = advice.conflict_ways(c)
        text = mean_and_worst(ways, c.worst_bank_conflict, "-way") if c.worst_bank_conflict > 1 else "none"
        values.append(("bank conflicts", text, ways >= advice.CONFLICT_WAYS))
    if c.atomics:
        depth = mean_and_worst(c.mean_contention, c.worst_contention, " lanes at one address")
        values.append(("atomics (warps)", f"{c.atomics:,}, {depth}", c.mean_contention >= advice.CONTENTION))
    local = c.local_load_bytes + c.local_store_bytes
    if local:
        values.append(("local memory moved", f"{local:,} bytes", True))
    for kind, count in sorted(c.multiply_adds.items()):
        values.append((f"multiply-adds of {kind} products", f"{count:,}", False))
    if c.barriers:
        values.append(("barriers (warps)", f"{c.barriers:,}", False))
    if c.mbarrier_waits:
        text = f"{c.mbarrier_waits:,}, {c.mbarrier_waits_ready:,} found the phase complete"
        values.append(("mbarrier waits (warps)", text, False))
    return _boxes(values)


def _bulk(c: Any) -> list[tuple[str, str, bool]]:
    """The figures of bulk and tensor copies: their requests, their bytes by direction, and clipped bytes."""
    loaded, stored, sent = c.bulk_load_bytes, c.bulk_store_bytes, c.bulk_distributed_bytes
    parts = ((loaded, "loaded"), (stored, "stored"), (sent, "sent to blocks of the cluster"))
    moved = ", ".join(f"{count:,} {direction}" for count, direction in parts if count)
    values = [("bulk copies (threads)", f"{c.bulk_requests:,}", False), ("bulk bytes", moved, False)]
    if c.bulk_clipped_bytes:
        text = f"{c.bulk_clipped_bytes:,}, {100 * advice.clipped(c):.0f} %"
        values.append(("bulk bytes outside of the tensor", text, advice.clipped(c) >= advice.CLIPPED))
    return values


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


def _source(
    file: str, anchor: str, counters: Any, columns: LineColumns, hints: Sequence[advice.Hint], *, whole: bool
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
    headings = columns.headings
    head = "".join(f'<th scope="col" title="{escape(meaning)}">{escape(name)}</th>' for name, meaning in headings)
    notes: dict[int, list[str]] = {}
    for item in hints:
        if item.place is not None and item.place[0] == file:
            notes.setdefault(item.place[1], []).append(f"<b>{escape(item.kind)}</b>: {escape(item.why)}")
    rows = []
    previous = 0
    for number in sorted(shown):
        if number != previous + 1:
            rows.append(f'<tr class="gap"><td colspan="{len(headings) + 2}">...</td></tr>')
        previous = number
        code = text[number - 1] if number <= len(text) else ""
        cells = columns.cells(lines.get(number), inlined.get(number, 0))
        told = ' class="told"' if number in notes else ""
        rows.append(
            f'<tr id="{anchor}l{number}"{told}>{"".join(cells)}'
            f'<td class="line">{number}</td><td class="code">{escape(code)}</td></tr>'
        )
        rows += [
            f'<tr class="note"><td colspan="{len(headings) + 1}"></td><td><p>{note}</p></td></tr>'
            for note in notes.get(number, [])
        ]
    return (
        f'<p class="file">{escape(shown_path(file))}</p><div class="scroll"><table class="source"><thead><tr>{head}'
        '<th scope="col">line</th><th scope="col" class="code">source</th></tr></thead><tbody>\n'
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


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
<p><b>Bulk bytes</b> are those of bulk and tensor copies, and of asynchronous stores to blocks of the cluster. A tensor
copy counts its whole box: elements outside of the tensor are filled when loaded, and dropped when stored.</p>
<p><b>Waits ready</b>: how often a warp that waited for an mbarrier found the phase complete, of all its waits. Copies
complete as late as the rules allow, unless the order is drawn, so this is not a measure of time.</p>
<p><b>Multiply-adds</b> are those of matrix products on tensor cores, by the type of the first operand.</p>
<p>Code of CUDA's own headers counts for the line that uses it. Code of other functions and headers counts for its own
line, and as the paler part of the bar for the lines into which it was inlined. <b>Theoretical occupancy</b> is the
fraction of a multiprocessor's warps that can be resident, limited by registers, shared memory, blocks and threads.</p>
</details>"""
