"""Tables in markdown, and texts escaped so that they cannot end a cell, a table, a mark or a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cudakit.show.digits import NOTHING


def table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table. A column is left out if all its cells are empty or dashes, except the first column."""
    used = [
        place
        for place in range(len(headings))
        if place == 0 or not lines or any(line[place] not in ("", NOTHING) for line in lines)
    ]
    texts = [[line[place] for place in used] for line in (headings, *lines)]
    return [row(texts[0]), "|" + "---|" * len(used), *map(row, texts[1:])]


def row(cells: Iterable[str]) -> str:
    """A line of a table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def escaped(value: Any) -> Any:
    """`value` with every text in it on one line and without HTML. Mappings and lists are copied."""
    if isinstance(value, str):
        line = " ".join(value.splitlines())
        return line.replace("&", "&amp;").replace("<", "&lt;").replace("-->", "--&gt;")
    if isinstance(value, Mapping):
        return {key: escaped(item) for key, item in value.items()}
    return [escaped(item) for item in value] if isinstance(value, list) else value
