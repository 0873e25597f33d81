"""The paragraphs of a file that a person reads: Markdown, Python's docstrings, comments and messages, CUDA comments."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".md", ".py", ".cu", ".cuh")
# The sources of planted bugs, of generated tests and of this list's own samples are data.
DATA = ("tests/data/", "tests/prose/phrases.py")

_FENCE = re.compile(r"^(```+).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"\]\([^)]*\)")
_SENTENCE = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[A-Z`\"'(*\[])")
# an item of a list, an entry of Args or Raises, a heading of such a section
_ITEM = re.compile(r"[-*] |\d+\. |\w+(?:, \w+)*: |(?:Args|Returns|Yields|Raises|Attributes):$")
_TABLE = re.compile(r"={4,}[= ]*$")  # the first, second and last line of a table in a docstring
# generated Python, regular expressions, PTX and CUDA C++ among the strings
_CODE = re.compile(r"(?:\b\w+\.h\b.*){3}|\\|->|;$|==| = |\w\(\)? is |^\(")
_CUDA = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)


@dataclass(frozen=True)
class Paragraph:
    """Running text, and its lines: (offset in `text`, line number) for each line of the file that it has."""

    path: str
    kind: str  # page, table, docstring, comment or message
    text: str
    lines: tuple[tuple[int, int], ...]

    def line(self, offset: int) -> int:
        """The file's line that has the character at `offset`."""
        return max(number for start, number in self.lines if start <= offset)

    def sentences(self) -> Iterator[tuple[int, str]]:
        """(offset, sentence) for each sentence."""
        start = 0
        for found in _SENTENCE.finditer(self.text):
            yield start, self.text[start : found.start()]
            start = found.end()
        if start < len(self.text):
            yield start, self.text[start:]


def _joined(path: str, kind: str, lines: Iterable[tuple[int, str]]) -> Iterator[Paragraph]:
    """A paragraph from numbered lines; an empty line begins another, and so does an item of a list."""
    text, starts = "", []
    for number, line in lines:
        words = " ".join(line.split())
        if starts and (not words or _ITEM.match(words)):
            yield Paragraph(path, kind, text, tuple(starts))
            text, starts = "", []
        if words:
            starts.append((len(text) + bool(text), number))
            text = f"{text} {words}" if text else words
    if starts:
        yield Paragraph(path, kind, text, tuple(starts))


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def _markdown(path: str, source: str) -> Iterator[Paragraph]:
    source = _LINK.sub("]", _COMMENT.sub(_blank, _FENCE.sub(_blank, source)))
    plain: list[tuple[int, str]] = []
    for number, line in enumerate(source.split("\n"), 1):
        if line.lstrip().startswith("|"):
            for cell in line.strip().strip("|").split("|"):
                yield from _joined(path, "table", [(number, cell)])
            line = ""
        elif line.startswith("    ") and not (plain and plain[-1][1].strip()):
            line = ""  # code
        elif line.startswith("#"):
            yield from _joined(path, "page", [(number, line.lstrip("#"))])
            line = ""
        plain.append((number, line))
    yield from _joined(path, "page", plain)


def _without_examples(lines: list[tuple[int, str]], margin: int) -> list[tuple[int, str]]:
    """The lines of a docstring without its tables and examples, which are indented after an empty line."""
    kept, before, code, rules = [], "", False, 0
    for number, line in lines:
        if _TABLE.match(line.strip()):
            rules = (rules + 1) % 3
        if rules or _TABLE.match(line.strip()):
            kept.append((number, ""))
            continue
        indent = len(line) - len(line.lstrip())
        code = bool(line.strip()) and indent >= margin + 4 and (code or not before.strip())
        kept.append((number, "" if code else line))
        before = line
    return kept


def _python(path: str, source: str) -> Iterator[Paragraph]:
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not node.body:
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            docstrings.add(id(first.value))
            lines = list(enumerate(first.value.value.split("\n"), first.value.lineno))
            yield from _joined(path, "docstring", _without_examples(lines, first.value.col_offset))
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            own_line = token.line.lstrip().startswith("#")
            if comments and not (own_line and comments[-1][0] == token.start[0] - 1):
                yield from _joined(path, "comment", comments)
                comments = []
            comments.append((token.start[0], token.string.lstrip("#: ")))
    yield from _joined(path, "comment", comments)
    if not path.startswith("tests/"):
        yield from _messages(path, tree, docstrings)


def _messages(path: str, tree: ast.Module, docstrings: set[int]) -> Iterator[Paragraph]:
    """Strings of several words; a placeholder of an f-string is `{}`."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | parts:
            text = node.value
        else:
            continue
        if len(re.findall(r"[a-z]{2,}", text)) >= 3 and " " in text.strip() and not _CODE.search(text):
            yield from _joined(path, "message", [(node.lineno, line) for line in text.split("\n")])


def _cuda(path: str, source: str) -> Iterator[Paragraph]:
    comments: list[tuple[int, str]] = []
    for found in _CUDA.finditer(source):
        if found[0].startswith('"'):
            continue
        number = source.count("\n", 0, found.start()) + 1
        own_line = not source[source.rfind("\n", 0, found.start()) + 1 : found.start()].strip()
        if comments and not (own_line and comments[-1][0] == number - 1):
            yield from _joined(path, "comment", comments)
            comments = []
        for place, line in enumerate(found[0].split("\n")):
            comments.append((number + place, line.strip().removesuffix("*/").lstrip("/* ")))
    yield from _joined(path, "comment", comments)


def paragraphs(path: str, source: str) -> list[Paragraph]:
    """All running text of one file; `path` is relative to the repository and says by its ending how to read it."""
    if path.endswith(".md"):
        return list(_markdown(path, source))
    return list((_python if path.endswith(".py") else _cuda)(path, source))


def tracked(root: Path, places: Iterable[str] = ()) -> list[str]:
    """The files that git tracks and this reads, below `places` (default: all), except those that are data."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *places], cwd=root, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    return [name for name in listed if name.endswith(SUFFIXES) and not name.startswith(DATA)]
