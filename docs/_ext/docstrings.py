"""Our docstrings for autodoc: prose with `code` in backticks, lists with "- ", and examples that are indented."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_ITEM = re.compile(r"(?:- |\d+\. )")
_HEADING = re.compile(r"[A-Z][^.:]{0,60}\n[-=]{3,}")


def inline(text: str) -> str:
    """A paragraph in reStructuredText: code stays code, and nothing else is markup."""
    parts, end = [], 0
    for found in _CODE.finditer(text):
        parts.append(_plain(text[end : found.start()]))
        code = " ".join(found[2].split())
        # a name becomes a link where it is one of ours; what is no name there stays plain code
        parts.append(f"\\ :py:obj:`{code}`\\ " if _NAME.fullmatch(code) else f"\\ ``{code}``\\ ")
        end = found.end()
    parts.append(_plain(text[end:]))
    return "".join(parts)


def _plain(text: str) -> str:
    return re.sub(r"([\\*`|_])", r"\\\1", text)


def _chunks(text: str) -> Iterator[str]:
    """Paragraphs, and blocks of code with the blank lines that they have within."""
    code: list[str] = []
    for part in re.split(r"\n(?:[ \t]*\n)+", text.strip("\n")):
        if part.startswith("    "):
            code.append(part)
            continue
        if code:
            yield "\n\n".join(code)
            code = []
        yield part
    if code:
        yield "\n\n".join(code)


def _is_python(text: str) -> bool:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    return not all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Name | ast.Tuple) for node in tree.body)


def _block(chunk: str) -> list[str]:
    lines = [line[4:] for line in chunk.split("\n")]
    language = "python" if _is_python("\n".join(lines)) else "text"
    return [f".. code-block:: {language}", "", *(f"   {line}" for line in lines), ""]


def _items(chunk: str) -> list[str]:
    """A list: each item's lines in one."""
    items: list[str] = []
    for line in chunk.split("\n"):
        if _ITEM.match(line):
            items.append(line.strip())
        else:
            items[-1] += f" {line.strip()}"
    lines = []
    for item in items:
        mark, _, text = item.partition(" ")
        lines += [f"{mark} {inline(text)}"]
    return [*lines, ""]


def converted(text: str) -> list[str]:
    """The lines in reStructuredText."""
    lines: list[str] = []
    for chunk in _chunks(text):
        if chunk.startswith("    "):
            lines += _block(chunk)
        elif chunk.startswith("===="):  # a table, which reStructuredText has as we write it
            lines += [*chunk.split("\n"), ""]
        elif _ITEM.match(chunk):
            lines += _items(chunk)
        else:
            lines += [inline(" ".join(chunk.split())), ""]
    return lines


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    text = "\n".join(lines)
    if what == "module":  # whose indented blocks autodoc takes for its indentation where nothing else stands behind
        first, _, rest = (obj.__doc__ or "").partition("\n")
        text = f"{first.strip()}\n{rest}"
    lines[:] = converted(text)


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
