"""Shows each NVRTC diagnostic once: the numbered source lines around it, a caret, and the message below the caret."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_START = re.compile(
    r"^(?P<file>\S[^(\n]*)\((?P<line>\d+)\): (?P<kind>catastrophic error|error|warning)(?: #[\w-]+)?: (?P<message>.*)$"
)
_CARET = re.compile(r"^(\s*)\^\s*$")
_COUNT = re.compile(r"^\d+ (?:catastrophic )?errors? detected in the compilation of ")
_AROUND = 2  # source lines shown above and below a diagnostic's line


@dataclass
class Diagnostic:
    """One error or warning of a log. more: its further lines, such as the instantiated template. column: the caret's
    column, counted from the line's first non-blank character; None if the log has no caret. text: the source line, if
    `in_source` found it."""

    file: str
    line: int
    kind: str
    message: str
    more: list[str] = field(default_factory=list)
    column: int | None = None
    text: str | None = None

    @property
    def is_error(self) -> bool:
        return "error" in self.kind

    @property
    def source_column(self) -> int | None:
        """The caret's column in the source line, from 1, counting a tab as one; None without a caret or a source
        line."""
        if self.column is None or self.text is None:
            return None
        return len(self.text) - len(self.text.lstrip()) + self.column + 1


def read(log: str) -> list[Diagnostic]:
    """Return the diagnostics of a log, in its order."""
    found: list[Diagnostic] = []
    block: list[str] = []
    for line in [*log.splitlines(), ""]:
        start = _START.match(line)
        if start is None and line.strip() and not _COUNT.match(line):
            block.append(line)
            continue
        if found:
            _take(found[-1], block)
        block = []
        if start is not None:
            found.append(Diagnostic(start["file"], int(start["line"]), start["kind"], start["message"]))
    return found


def _take(diagnostic: Diagnostic, block: Sequence[str]) -> None:
    """Add the lines after a diagnostic's first one. The source line and the caret are reduced to the column."""
    for line in block:
        caret = _CARET.match(line)
        if caret is None:
            diagnostic.more.append(line)
            continue
        quoted = diagnostic.more.pop() if diagnostic.more else ""
        if diagnostic.column is None:  # a later caret belongs to a note
            diagnostic.column = max(len(caret[1]) - (len(quoted) - len(quoted.lstrip())), 0)


def in_source(log: str, name: str, source: str) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of a log, each with its source line if it can be read. name: the path of `source`."""
    found = read(log)
    for one in found:
        lines = _lines(one.file, name, source)
        one.text = lines[one.line - 1] if 1 <= one.line <= len(lines) else None
    return tuple(found)


def excerpt(log: str, name: str, source: str) -> str:
    """Return the numbered source lines around each error in `log`, with its message below; empty if there is no error.

    Lines of headers are read from disk; if a file cannot be read, only the message is shown. Warnings are shown only if
    there is no error.
    """
    found = read(log)
    wanted: dict[str, dict[int, list[Diagnostic]]] = {}
    for one in [one for one in found if one.is_error] or found:
        wanted.setdefault(one.file, {}).setdefault(one.line, []).append(one)
    parts: list[str] = []
    for file, marked in wanted.items():
        parts += _file(file, marked, _lines(file, name, source))
    return "\n".join(parts)


def _file(file: str, marked: dict[int, list[Diagnostic]], lines: Sequence[str]) -> list[str]:
    near = {at for line in marked for at in range(line - _AROUND, line + _AROUND + 1) if 1 <= at <= len(lines)}
    unseen = [
        text
        for line, many in marked.items()
        if line not in near
        for one in many
        for text in (f"{file}({line}): {one.kind}: {one.message}", *one.more)
    ]
    if not near:
        return unseen
    width = len(str(max(near)))
    parts, previous = [*unseen, f"{file}:"], 0
    for at in sorted(near):
        if previous and at != previous + 1:
            parts.append(f"  {'...':>{width}}")
        text = lines[at - 1]
        parts.append(f"{'>' if at in marked else ' '} {at:>{width}} | {text}".rstrip())
        for one in marked.get(at, ()):
            parts.append(f"  {' ' * width} | {_pad(text, one.column)}^ {one.kind}: {one.message}")
            parts += [f"  {' ' * width} | {' ' * 4}{line.strip()}" for line in one.more]
        previous = at
    return parts


def _pad(text: str, column: int | None) -> str:
    """Return the blanks before the caret, with a tab at each tab of the line."""
    start = len(text) - len(text.lstrip()) + (column or 0)
    return "".join("\t" if char == "\t" else " " for char in text[:start].ljust(start))


def _lines(file: str, name: str, source: str) -> list[str]:
    if file == name:
        return source.splitlines()
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []  # text that NVRTC adds, such as its list of name expressions
