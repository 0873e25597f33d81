"""Figures of a markdown page: a TOML file defines them, and the page refers to them by keys.

A page names the file and its own part of it once: `<!-- figures profiles/h200/figures.toml softmax -->`.
A number in a sentence has its key right after it: `98 %<!-- registers.share -->`. A table has its name on the line
above: `<!-- columns ladder -->`. Marks within code are left alone. The file:

    [softmax]
    registers.share = "bench.json rows[variant=registers,shape=8192x8192].of_ceiling .0%"

    [softmax.tables.ladder]
    row = "variant"                               # the heading of the cells that name the rows; default: the first
    names.torch = "peer:torch"                    # what {row} stands for in the row torch
    columns."GB/s" = "bench.json rows[variant={row},shape=8192x8192].gbps ,.0f"
    rows.registers."GB/s" = "softmax.json rows[variant=registers].gbps ,.0f"

A definition is the path of a JSON file, from the TOML file's folder, and a place in it: see cudakit.show.figures. For a
cell with several figures, join their definitions with ", ". `{row}` is replaced by the row's name, without its link,
and `{column}` by the column's heading. If several columns share a heading, write a list of definitions for it, from
left to right. A row may have its own definitions: one per heading, or one for all its columns. Cells that are empty,
`-`, or have their own key are not changed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cudakit.errors import Refused
from cudakit.show import figures, markdown
from cudakit.show.outputs import reading

Load = Callable[[str], Mapping[str, Any]]

NUMBER = r"(?<![\w.,])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?(?:\s%)?"
_KEY = re.compile(rf"(?P<number>{NUMBER})?<!--\s+(?P<key>\w+(?:\.\w+)+)\s+-->")
_PAGE = re.compile(r"<!-- figures (?P<file>\S+) (?P<page>\w+) -->")
_TABLE = re.compile(r"^ *<!-- columns (?P<name>\w+) -->\n(?P<table>(?: *\|.*(?:\n|\Z))*)", re.MULTILINE)
_CODE = re.compile(
    r"^ *```.*?^ *```|(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n *\n).)+?(?<!`)(?P=ticks)(?!`)", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")


class Definitions:
    """The part of a TOML file that belongs to one page."""

    def __init__(self, file: str, page: str, load: Load) -> None:
        self.file, self.page, self.load = file, page, load
        part = load(file).get(page)
        if not isinstance(part, Mapping):
            raise Refused(f"{file} has no table [{page}]")
        self.tables = part.get("tables", {})
        self.keys = dict(self._flat({key: value for key, value in part.items() if key != "tables"}, ()))
        self.used: set[str] = set()

    def _flat(self, part: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for key, value in part.items():
            if isinstance(value, Mapping):
                yield from self._flat(value, (*above, key))
            else:
                yield ".".join((*above, key)), value

    def written(self, definition: Any) -> str:
        """The text of a definition's figures. Raises Refused if a figure does not exist."""
        if not isinstance(definition, str):
            raise Refused(f"{definition!r} is not a definition: write a string, 'FILE.json PLACE FORM'")
        texts = []
        for one in re.split(r", (?![^\[]*\])", definition):
            source, _, place = one.partition(" ")
            path = posixpath.normpath(posixpath.join(posixpath.dirname(self.file), source))
            try:
                with reading("not this kind of report"):
                    texts.append(str(markdown.escaped(figures.written(place, self.load(path)))))
            except Refused as error:
                raise Refused(f"{path}: {error}") from error
        return ", ".join(texts)

    def number(self, key: str, before: str | None) -> str:
        """Return the number defined by `key`, which replaces the text `before`."""
        if key not in self.keys:
            raise Refused(f"{self.file} does not define it in [{self.page}]")
        self.used.add(key)
        if before is None:
            raise Refused(f"there is no number right before the mark: write one, as in 98 %<!-- {key} -->")
        text = self.written(self.keys[key])
        if not re.fullmatch(NUMBER, text):
            raise Refused(f"{text} is not a number: only tables can have figures that are words")
        return before if " ".join(before.split()) == text else text

    def table(self, name: str) -> Any:
        """Return the definitions of a table, and mark them as used."""
        if name not in self.tables:
            raise Refused(f"{self.file} does not define it in [{self.page}.tables]")
        self.used.add(f"tables.{name}")
        return self.tables[name]

    def unused(self) -> list[str]:
        """A sentence for each definition that no mark has used."""
        names = [*self.keys, *(f"tables.{name}" for name in self.tables)]
        return [f"no mark uses {name} of [{self.page}] in {self.file}" for name in names if name not in self.used]


class _Table:
    """A markdown table, which begins at `first_line` of its page, and the definitions of its cells."""

    def __init__(self, name: str, spec: Mapping[str, Any], text: str, first_line: int) -> None:
        lines = text.splitlines(keepends=True)
        self.name, self.first_line = name, first_line
        self.cells = [_BETWEEN_CELLS.split(line) for line in lines]
        if len(lines) < 3 or set(lines[1].strip()) - set(" |:-"):
            raise Refused("there is no table on the lines after the mark")
        self.headings = [_plain(cell) for cell in self.cells[0][1:-1]]
        self.columns, self.rows, self.names = (spec.get(key, {}) for key in ("columns", "rows", "names"))
        self.row = spec.get("row", self.headings[0])
        own = [heading for row in self.rows.values() if isinstance(row, Mapping) for heading in row]
        for heading in (self.row, *self.columns, *own):
            if heading not in self.headings:
                raise Refused(f"no column is headed {heading!r}: there are {', '.join(map(repr, self.headings))}")
        there = {self._cell(cells, self.row) for cells in self.cells[2:]}
        for row in [*self.rows, *(name for name in self.names if name not in self.headings)]:
            if row not in there:
                raise Refused(f"no row has {row!r} under {self.row!r}")

    def _cell(self, cells: list[str], heading: str) -> str:
        place = self.headings.index(heading) + 1
        return _plain(cells[place]) if place < len(cells) else ""

    def _definition(self, row: str, place: int) -> Any:
        heading = self.headings[place]
        own = self.rows.get(row, {})
        found = own if isinstance(own, str) else own.get(heading, self.columns.get(heading))
        same = [number for number, other in enumerate(self.headings) if other == heading]
        if found is None or (isinstance(own, str) and heading == self.row):
            return None
        if isinstance(found, list):
            if len(found) != len(same):
                raise Refused(f"{len(found)} definitions for {len(same)} columns")
            return found[same.index(place)]
        if len(same) > 1:
            raise Refused(f"{len(same)} columns have this heading: define a list, from left to right")
        return found

    def filled(self, written: Callable[[Any], str], problems: list[str]) -> str:
        """The updated table; `problems` receives a sentence for each cell whose figure does not exist."""
        for number, cells in enumerate(self.cells[2:], self.first_line + 2):
            row = self._cell(cells, self.row)
            for place, heading in enumerate(self.headings):
                try:
                    if place + 1 >= len(cells):
                        continue
                    old = cells[place + 1].strip()
                    definition = self._definition(row, place)
                    if definition is None or old in ("", "-") or "<!-- " in old:
                        continue
                    new = written(self._filled_in(definition, row, heading)).replace("|", "\\|")
                    if new != old:
                        cells[place + 1] = f" {new} "
                except Refused as error:
                    problems.append(f"line {number}: columns {self.name}: row {row!r}, column {heading!r}: {error}")
        return "".join("|".join(cells) for cells in self.cells)

    def _filled_in(self, definition: Any, row: str, column: str) -> Any:
        if not isinstance(definition, str):
            return definition
        row, column = (str(self.names.get(text, text)) for text in (row, column))
        return definition.replace("{row}", row).replace("{column}", column)


def _plain(cell: str) -> str:
    return _LINK.sub(r"\1", cell).replace("`", "").strip(" *")


def without_code(text: str) -> str:
    """`text` with blanks for code, so that offsets stay the same."""
    return _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)


def _replaced(text: str, edits: list[tuple[tuple[int, int], str]]) -> str:
    for (start, end), new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _line(text: str, mark: re.Match[str]) -> int:
    return text.count("\n", 0, mark.start()) + 1


def _fill_tables(text: str, definitions: Definitions, problems: list[str]) -> str:
    edits = []
    for mark in _TABLE.finditer(without_code(text)):
        name, span = mark["name"], mark.span("table")
        try:
            table = _Table(name, definitions.table(name), text[slice(*span)], _line(text, mark) + 1)
            edits.append((span, table.filled(definitions.written, problems)))
        except Refused as error:
            problems.append(f"line {_line(text, mark)}: columns {name}: {error}")
    return _replaced(text, edits)


def _fill_numbers(text: str, definitions: Definitions, problems: list[str]) -> str:
    edits = []
    for mark in _KEY.finditer(without_code(text)):
        try:
            edits.append((mark.span("number"), definitions.number(mark["key"], mark["number"])))
        except Refused as error:
            problems.append(f"line {_line(text, mark)}: {mark['key']}: {error}")
    return _replaced(text, edits)


def fill(text: str, load: Load) -> tuple[str, list[str]]:
    """Update the figures of a page.

    Args:
        text: The page.
        load: Reads the TOML file that the page names, and the JSON files that the TOML file names.

    Returns:
        The page, and a sentence for each mark without a figure and each definition without a mark.
    """
    prose = without_code(text)
    pages = list(_PAGE.finditer(prose))
    if len(pages) != 1:
        marks = [mark for form in (_KEY, _TABLE) for mark in form.finditer(prose)] + pages[1:]
        if not marks:
            return text, []
        first = min(_line(text, mark) for mark in marks)
        many = "several marks" if pages else "no mark"
        return text, [f"line {first}: the page has {many} <!-- figures FILE.toml PAGE --> and needs one"]
    (page,) = pages
    problems: list[str] = []
    try:
        with reading(f"{page['file']} does not define figures"):
            definitions = Definitions(page["file"], page["page"], load)
            text = _fill_numbers(_fill_tables(text, definitions, problems), definitions, problems)
    except Refused as error:
        return text, [f"line {_line(text, page)}: {error}"]
    return text, problems + definitions.unused()
