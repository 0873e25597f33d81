"""Marks in markdown: `cudakit fill` updates the tables and figures at them from JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from cudakit.errors import Refused
from cudakit.show import example_tables, markdown, page_figures, profile_tables, tables
from cudakit.show.outputs import reading

WRITERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "tables": tables.markdown,
    "summary": tables.summary,
    "launches": example_tables.launches,
    "calls": example_tables.calls,
    "profile": profile_tables.markdown,
    "profile_sentences": profile_tables.sentences,
    "mistakes": example_tables.mistakes,
    "ranges": example_tables.ranges,
}

# Between a table's marks there are no other marks: filling a table must not delete prose after a mark without an end.
_MARK = re.compile(r"(<!-- (?P<writer>\w+) (?P<source>\S+) -->\n)(?:(?!<!-- ).)*(<!-- end -->)", re.DOTALL)
_OF_A_FILE = re.compile(r"<!-- (?P<writer>\w+) \S+\.json\b.*?-->")


def count(text: str) -> int:
    """The number of marks of tables and figures in `text`, well formed or not."""
    return len(re.findall(r"<!-- \w+ \S+.*?-->|<!--\s+\w+(?:\.\w+)+\s+-->", text))


def fill_marks(text: str, load: Callable[[str], Mapping[str, Any]]) -> tuple[str, list[str]]:
    """Update the tables between `<!-- summary profiles/h200/softmax.json -->` and `<!-- end -->`, and the figures.

    Args:
        text: The page. cudakit.show.page_figures describes the marks of figures.
        load: Reads the JSON or TOML file that a mark names.

    Returns:
        The page, and a sentence for each mark that could not be filled; its text stays.
    """
    problems = [
        f"{mark[0]} names no table: use one of {', '.join(WRITERS)}"
        for mark in _OF_A_FILE.finditer(page_figures.without_code(text))
        if mark["writer"] not in WRITERS
    ]

    def fill(mark: re.Match[str]) -> str:
        writer = WRITERS.get(mark["writer"])
        if writer is None:
            return mark[0]
        try:
            report = load(mark["source"])
            if not isinstance(report.get("rows"), list):
                raise Refused(f"{mark['source']} is not a report: it has no rows")
            with reading(f"{mark['source']} is not a report that {mark['writer']} can write"):
                return f"{mark[1]}{writer(markdown.escaped(report))}\n{mark[4]}"
        except Refused as error:
            problems.append(str(error))
        return mark[0]

    filled, missing = page_figures.fill(_MARK.sub(fill, text), load)
    marks = re.compile(rf"<!-- (?:{'|'.join(WRITERS)}) \S+ -->")
    unended = len(marks.findall(text)) - sum(mark["writer"] in WRITERS for mark in _MARK.finditer(text))
    if unended:
        problems.append(f"{unended} of the marks of tables have no line <!-- end --> before the next mark")
    return filled, problems + missing
