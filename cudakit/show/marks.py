"""Marks in markdown between which a table or a figure is written anew from the JSON that the mark names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from cudakit.errors import Refused
from cudakit.show import example_tables, figures, markdown, profile_tables, tables
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

# Between a table's marks there are no other marks: prose behind a mark that was never ended must not go with its table.
_MARK = re.compile(r"(<!-- (?P<writer>\w+) (?P<source>\S+) -->\n)(?:(?!<!-- ).)*(<!-- end -->)", re.DOTALL)
_FIGURE = re.compile(r"(<!-- figure (?P<source>\S+) (?P<figure>[^>]*?) ?-->)[^<\n]*(<!-- end -->)")


def count(text: str) -> int:
    """How many marks of tables and figures there are in `text`, well formed or not."""
    return len(re.findall(r"<!-- \w+ \S+.*?-->", text))


def fill_marks(text: str, load: Callable[[str], Mapping[str, Any]]) -> tuple[str, list[str]]:
    """`text` with what stands between `<!-- summary profiles/h200/softmax.json -->` and `<!-- end -->` written anew.

    So is what stands within a line between `<!-- figure profiles/h200/softmax.json rows[0].gbps .0f -->` and
    `<!-- end -->`: see cudakit.show.figures.

    `load` reads the JSON named in the mark. Also gives the marks that could not be filled, each with the reason; what
    stands between them stays.
    """
    problems = []

    def fill(mark: re.Match[str]) -> str:
        writer = WRITERS.get(mark["writer"])
        if writer is None:
            problems.append(f"{mark[1].strip()} names no table: use one of {', '.join(WRITERS)}")
            return mark[0]
        try:
            report = load(mark["source"])
            if not isinstance(report.get("rows"), list):
                raise Refused(f"{mark['source']} is no report: it has no rows")
            with reading(f"{mark['source']} is no report that {mark['writer']} can write"):
                return f"{mark[1]}{writer(markdown.escaped(report))}\n{mark[4]}"
        except Refused as error:
            problems.append(str(error))
        return mark[0]

    def fill_figure(mark: re.Match[str]) -> str:
        try:
            with reading("not this kind of report"):
                return f"{mark[1]}{markdown.escaped(figures.written(mark['figure'], load(mark['source'])))}{mark[4]}"
        except Refused as error:
            problems.append(f"{mark['source']}: {error}")
            return mark[0]

    filled = _FIGURE.sub(fill_figure, _MARK.sub(fill, text))
    marks = re.compile(rf"<!-- (?:{'|'.join(WRITERS)}) \S+ -->")
    unended = len(marks.findall(text)) - sum(mark["writer"] in WRITERS for mark in _MARK.finditer(text))
    if unended:
        problems.append(f"{unended} of the marks of tables have no line <!-- end --> before the next mark")
    unended = text.count("<!-- figure ") - len(_FIGURE.findall(text))
    if unended:
        problems.append(f"{unended} of the marks <!-- figure FILE PLACE --> have no <!-- end --> on their line")
    return filled, problems
