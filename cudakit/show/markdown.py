"""Texts of reports in markdown: nothing in them ends a cell, a table, a mark or a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


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
