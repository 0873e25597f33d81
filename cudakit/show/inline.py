"""HTML that a notebook shows inline, without script: tables of reports, and the source with its counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from cudakit.show import advice, annotate, tables, tuning_tables
from cudakit.show.line_columns import LineColumns

#: The longest file that is shown whole; for a longer file, only lines near counted lines are shown.
_WHOLE = 80
_AROUND = 3

# scoped by the class; the colours suit light and dark pages
_STYLE = """<style>
.cudakit-inline { overflow-x: auto; }
.cudakit-inline table { border-collapse: collapse; margin: .4em 0; font-size: .85em; }
.cudakit-inline table { font-variant-numeric: tabular-nums; }
.cudakit-inline th, .cudakit-inline td { padding: .1em .4em; text-align: right; border: 0; white-space: nowrap; }
.cudakit-inline thead th { border-bottom: 1px solid #8888; vertical-align: bottom; white-space: normal; }
.cudakit-inline .words { text-align: left; }
.cudakit-inline td.code { text-align: left; white-space: pre; font-family: monospace; }
.cudakit-inline td.bad { background: #d0303040; font-weight: bold; }
.cudakit-inline td.bar span { display: none; }
.cudakit-inline td.note { text-align: left; white-space: normal; padding-bottom: .5em; }
.cudakit-inline td.note div { position: sticky; left: .5em; width: min(44em, 80vw); }
</style>"""


def table(title: str, headings: Sequence[str], lines: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """A table of texts under a title, with notes below it."""
    lines = list(lines)
    words = [any(cells[place][:1].isalpha() for cells in lines) for place in range(len(headings))]
    kinds = [' class="words"' if column else "" for column in words]
    head = "".join(f'<th scope="col"{kind}>{escape(text)}</th>' for kind, text in zip(kinds, headings, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(text)}</td>" for kind, text in zip(kinds, cells, strict=True)) + "</tr>"
        for cells in lines
    )
    below = "".join(f"<div>{escape(note)}</div>" for note in notes)
    return (
        f'<div class="cudakit-inline">{_STYLE}<div><b>{escape(title)}</b></div>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{below}</div>"
    )


def bench(report: Mapping[str, Any]) -> str:
    """The table of each shape of a bench's report, as its `as_dict` returns it."""
    counted = tables.is_counted(report)
    parts = []
    for group, rows in tables.by_shape(report["rows"]).items():
        headings, lines = tables.cells(report, rows, "terminal")
        ceilings = "" if counted else tables.ceiling_line(report, group)
        parts.append(table(tables.group_text(group), headings, lines, [ceilings] if ceilings else []))
    last = [tables.COUNTED_LINE] if counted else []
    return "".join(parts) + "".join(f"<div>{escape(line)}</div>" for line in (*last, tables.device_line(report)))


def tuning(report: Mapping[str, Any]) -> str:
    """The table of each search of a tuning's report, as its `as_dict` returns it."""
    counted = any(one["unit"] == "slots" for one in report["tunings"])
    shown = [f"<div>{escape(tuning_tables.COUNTS)}</div>"] if counted else []
    for one in report["tunings"]:
        title, columns, notes = tuning_tables.parts(one, report["device"])
        lines = list(zip(*(column.cells for column in columns), strict=True))
        shown.append(table(title, [column.heading for column in columns], lines, notes))
    return "".join(shown)


def counters(counted: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """The source of each kernel with its counters next to each line. sources: texts of files that are not on disk."""
    kernels = [_kernel(name, figures, sources) for name, figures in counted.items()]
    return f'<div class="cudakit-inline">{_STYLE}{"".join(kernels)}</div>'


def _kernel(name: str, figures: Any, sources: Mapping[str, str]) -> str:
    launches = f"{figures.launches} launch{'es' * (figures.launches != 1)}"
    blocks = f"{figures.blocks:,} block{'s' * (figures.blocks != 1)}"
    totals = f"{launches}, {blocks}, {figures.instructions:,} instructions (warps)"
    files: dict[str, int] = {}
    for (file, _), line in figures.per_line.items():
        files[file] = files.get(file, 0) + line.instructions
    hints = advice.hints(figures)
    parts = [f"<div><b>{escape(name)}</b>: {escape(totals)}</div>"]
    parts += [f"<div><b>{escape(hint.kind)}</b>: {escape(hint.why)}</div>" for hint in hints if hint.place is None]
    parts += [_file(file, figures, hints, sources) for file in sorted(files, key=lambda file: (-files[file], file))]
    return "".join(parts)


def _file(file: str, figures: Any, hints: Sequence[advice.Hint], sources: Mapping[str, str]) -> str:
    text = sources[file].splitlines() if file in sources else annotate.source_lines(file)
    lines = {line: share for (name, line), share in figures.per_line.items() if name == file}
    inlined = {line: count for (name, line), count in figures.inlined.items() if name == file}
    columns = LineColumns(figures)
    last = max([len(text), *lines])
    shown = set(range(1, last + 1))
    if last > _WHOLE:
        shown &= {near for line in lines for near in range(line - _AROUND, line + _AROUND + 1)}
    head = "".join(f'<th scope="col" title="{escape(why)}">{_breakable(name)}</th>' for name, why in columns.headings)
    rows = []
    for number in sorted(shown):
        code = text[number - 1] if number <= len(text) else ""
        cells = columns.cells(lines.get(number), inlined.get(number, 0))
        rows.append(f'<tr>{"".join(cells)}<td>{number}</td><td class="code">{escape(code)}</td></tr>')
        rows += [
            f'<tr><td class="note" colspan="{len(cells) + 2}"><div><b>{escape(hint.kind)}</b>: {escape(hint.why)}'
            "</div></td></tr>"
            for hint in hints
            if hint.place == (file, number)
        ]
    name = escape(file if file in sources else Path(file).name)
    return (
        f'<div>{name}</div><table><thead><tr>{head}<th scope="col">line</th>'
        f'<th scope="col" class="words">source</th></tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _breakable(heading: str) -> str:
    """A heading that may wrap after a slash, too."""
    return escape(heading).replace("/", "/<wbr/>")
