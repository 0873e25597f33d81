"""Text that fits a terminal: tables that leave out whole columns and never cut a number, and prose wrapped at words.

A table has one line per row. Columns that do not fit are left out in the order of their `leave`, the greatest first,
and a line under the table names them. Reasons are notes under the table, which rows refer to by a mark such as [1].
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Width of a table that goes to a file or a pipe if COLUMNS is not set: every column of every table fits.
UNBOUNDED = 250
_GAP = "  "
_BOLD, _RED, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[0m"


def width_of(file: IO[str]) -> int | None:
    """The width for text on `file`: $COLUMNS, or the terminal's; None if `file` is not a terminal."""
    if not (os.environ.get("COLUMNS", "").isdigit() or file.isatty()):
        return None
    return shutil.get_terminal_size().columns


def has_colour(file: IO[str]) -> bool:
    """Whether text on `file` may have colours: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console for tables, as wide as its terminal, or as UNBOUNDED."""
    from rich.console import Console

    width = width_of(sys.stderr if stderr else sys.stdout) or UNBOUNDED
    return Console(stderr=stderr, quiet=quiet, width=width, highlight=False)


def wrapped(text: str, width: int | None, hang: str = "  ") -> str:
    """Return `text` with each line longer than `width` wrapped at words; continuation lines are indented by `hang`
    more. Words are never cut. width None: `text` unchanged."""
    if width is None:
        return text
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) <= width:
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line.lstrip(),
            width,
            initial_indent=indent,
            subsequent_indent=indent + hang,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
    return "\n".join(lines)


def joined(text: str) -> str:
    """`text` with the lines of each paragraph joined. Indented lines, such as commands, stay as they are."""
    lines: list[str] = []
    for line in text.strip("\n").split("\n"):
        if lines and lines[-1][:1].strip() and line[:1].strip(" -*"):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return "\n".join(lines)


def say(text: str, file: IO[str] | None = None) -> None:
    """Print `text`, wrapped at words if `file` (default: stdout) is a terminal."""
    file = sys.stdout if file is None else file
    print(wrapped(text, width_of(file)), file=file)


def wrapping(file: IO[str]) -> IO[str]:
    """`file` itself, or, for a terminal, a stream that writes to it and wraps each line at words."""
    return _Wrapping(file) if width_of(file) is not None else file


class _Wrapping(io.StringIO):
    """Writes lines to a file once they are complete, wrapped at words."""

    def __init__(self, file: IO[str]) -> None:
        super().__init__()
        self._file = file

    def write(self, text: str) -> int:
        *lines, rest = (self.getvalue() + text).split("\n")
        for line in lines:
            say(line, self._file)
        self.seek(0)
        self.truncate()
        super().write(rest)
        return len(text)

    def isatty(self) -> bool:
        return self._file.isatty()

    def flush(self) -> None:
        self._file.flush()


def say_error(text: str, file: IO[str]) -> None:
    """`say`, in colour on a terminal: the word before the first colon and carets with their messages are red, source
    lines marked by > are bold."""
    shown = wrapped(text, width_of(file))
    if has_colour(file):
        shown = re.sub(r"\A *\w+:", lambda word: f"{_RED}{word[0]}{_PLAIN}", shown)
        shown = re.sub(r"(?m)^> *\d+ \|.*$", lambda line: f"{_BOLD}{line[0]}{_PLAIN}", shown)
        shown = re.sub(r"(?m)^( +\|\s*)(\^.*)$", lambda line: f"{line[1]}{_RED}{line[2]}{_PLAIN}", shown)
    print(shown, file=file)


@dataclass(frozen=True)
class Column:
    """One column: its heading, which wraps at words, and the text of each row. leave: the columns with the greatest
    number are left out first, those with 0 never. words: the cells are text, aligned to the left; they wrap at words if
    the columns that are never left out do not fit otherwise."""

    heading: str
    cells: Sequence[str]
    leave: int = 0
    words: bool = False

    @property
    def least(self) -> int:
        """The smallest width at which no cell and no word of the heading is cut."""
        longest = max(map(len, self.heading.split()), default=0)
        return max(longest, *(len(cell) for cell in self.cells), 1) if self.cells else max(longest, 1)


@dataclass
class Notes:
    """The notes under a table: one mark per text; several rows may refer to it."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """`[1]`, the mark of `text`."""
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"

    def verdict(self, text: str) -> str:
        """A short cell for a verdict: "yes", or "NO [1]" or "- [2]" with the reason as a note."""
        word, colon, _ = text.partition(": ")
        if not colon:
            return text
        return f"{'-' if word == 'skipped' else word} {self.mark(text)}"

    def lines(self) -> list[str]:
        return [f"{self.mark(text)} {text}" for text in self.texts]


def show_table(
    out: Console,
    title: str,
    columns: Sequence[Column],
    *,
    notes: Sequence[str] = (),
    styles: Sequence[str | None] = (),
) -> None:
    """Print a table on `out`, its notes, and the headings of the columns that were left out.

    notes: lines under the table. styles: rich's style of each row, or None. If even the columns that are never
    left out do not fit, their text wraps at words; if that is not enough, lines are longer than the terminal.
    """
    shown, widths = fit(columns, out.width)
    _lines(out, wrapped(title, out.width).split("\n"), "italic")
    _lines(out, _row(shown, widths, [column.heading for column in shown], heading=True), "bold")
    _lines(out, ["-" * (sum(widths) + len(_GAP) * (len(widths) - 1))])
    for number in range(len(columns[0].cells) if columns else 0):
        style = styles[number] if styles else None
        _lines(out, _row(shown, widths, [column.cells[number] for column in shown]), style)
    left_out = [column.heading for column in columns if column not in shown]
    if left_out:
        notes = [*notes, f"left out at {out.width} columns: {'; '.join(left_out)} (use a wider terminal or --json)"]
    for note in notes:
        _lines(out, wrapped(note, out.width).split("\n"))


def show_text(out: Console, text: str, style: str | None = None) -> None:
    """Print prose on `out`, wrapped at words."""
    _lines(out, wrapped(text, out.width).split("\n"), style)


def fit(columns: Sequence[Column], width: int) -> tuple[list[Column], list[int]]:
    """The columns that fit `width` characters, and the width of each."""
    shown = list(columns)

    def total() -> int:
        return sum(column.least for column in shown) + len(_GAP) * (len(shown) - 1)

    while total() > width and any(column.leave for column in shown):
        shown.remove(max(shown, key=lambda column: column.leave))
    widths = [column.least for column in shown]
    over = total() - width
    for place in sorted(range(len(shown)), key=lambda place: -widths[place]):
        if over > 0 and shown[place].words:
            words = " ".join((shown[place].heading, *shown[place].cells)).split()
            narrow = max(max(map(len, words), default=1), widths[place] - over)
            over -= widths[place] - narrow
            widths[place] = narrow
    for place, column in enumerate(shown):  # headings stay on one line if there is room
        more = len(column.heading) - widths[place]
        if 0 < more <= -over:
            over += more
            widths[place] += more
    return shown, widths


def _row(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str], *, heading: bool = False) -> list[str]:
    """Return the lines of one row: a single line, unless a heading or a text wraps. Headings are aligned at the
    bottom."""
    parts = [
        textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False) or [""]
        for cell, width in zip(cells, widths, strict=True)
    ]
    height = max(map(len, parts), default=0)
    lines = []
    for number in range(height):
        texts = []
        for column, width, part in zip(columns, widths, parts, strict=True):
            place = number - (height - len(part)) if heading else number
            text = part[place] if 0 <= place < len(part) else ""
            texts.append(text.ljust(width) if column.words else text.rjust(width))
        lines.append(_GAP.join(texts).rstrip())
    return lines


def _lines(out: Console, lines: Sequence[str], style: str | None = None) -> None:
    from rich.text import Text

    for line in lines:
        out.print(Text(line, style or ""), no_wrap=True, overflow="ignore", crop=False)
