"""Docstrings for autodoc: prose with `code` in backticks, lists with "- ", indented examples, and Google's sections.

The sections Args, Attributes, Returns, Yields and Raises become the field lists that Sphinx shows as parameter lists.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from typing import Any

_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_ITEM = re.compile(r"(?:- |\d+\. )")
# Google's sections, and the field that Sphinx has for an entry of each
_SECTIONS = {"Args": "param", "Attributes": "", "Raises": "raises", "Returns": "returns", "Yields": "yields"}
_SECTION = re.compile(rf"({'|'.join(_SECTIONS)}):\n(?=    )")
_ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): +")


def inline(text: str) -> str:
    """A paragraph in reStructuredText: code stays code, and nothing else is markup."""
    parts, end = [], 0
    for found in _CODE.finditer(text):
        parts.append(_plain(text[end : found.start()]))
        code = " ".join(found[2].split())
        # a name of the reference becomes a link; other code stays plain
        parts.append(f"\\ :py:obj:`{code}`\\ " if _NAME.fullmatch(code) else f"\\ ``{code}``\\ ")
        end = found.end()
    parts.append(_plain(text[end:]))
    return "".join(parts)


def _plain(text: str) -> str:
    return re.sub(r"([\\*`|_])", r"\\\1", text)


def _chunks(text: str) -> Iterator[str]:
    """Paragraphs, sections, and blocks of code with their blank lines."""
    code: list[str] = []
    text = re.sub(rf"\n(?={_SECTION.pattern})", "\n\n", text)
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


def _fields(chunk: str) -> list[str]:
    """A section as a field list: one field per entry of Args, Attributes and Raises, one in all for the others."""
    heading, _, text = chunk.partition(":\n")
    kind, body = _SECTIONS[heading], textwrap.dedent(text).strip()
    if kind in ("returns", "yields"):
        return [f":{kind}: {inline(' '.join(body.split()))}", ""]
    lines = [] if kind else [":Attributes:", ""]
    for entry in re.split(r"\n(?=\S)", body):
        found = _ENTRY.match(entry)
        if found is None:
            raise ValueError(f"{heading}: an entry is `name: text`, its further lines indented: {entry!r}")
        name = found[1].replace("*", "\\*")
        if kind:
            name = name.replace(", ", ",")  # Sphinx would read "start, stop" as a type and a name
        said = inline(" ".join(entry[found.end() :].split()))
        lines.append(f":{kind} {name}: {said}" if kind else f"   - **{name}** -- {said}")
    return [*lines, ""]


def converted(text: str) -> list[str]:
    """The lines in reStructuredText."""
    lines: list[str] = []
    for chunk in _chunks(text):
        if chunk.startswith("    "):
            lines += _block(chunk)
        elif _SECTION.match(chunk):
            lines += _fields(chunk)
        elif chunk.startswith("===="):  # a table, which reStructuredText has as we write it
            lines += [*chunk.split("\n"), ""]
        elif _ITEM.match(chunk):
            lines += _items(chunk)
        else:
            lines += [inline(" ".join(chunk.split())), ""]
    return lines


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    text = "\n".join(lines)
    if what == "module":  # if only indented blocks follow the first line, autodoc removes their indentation
        first, _, rest = (obj.__doc__ or "").partition("\n")
        text = f"{first.strip()}\n{rest}"
    lines[:] = converted(text)


def readable(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A signature without the parameters of exceptions and of classes that users do not construct, and with `...`
    instead of defaults that are not Python."""
    if signature is None:
        return None, returns
    if what == "exception" or (what == "class" and obj.__name__ in app.config.docstrings_not_constructed):
        return "", ""
    signature = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", signature)
    signature = re.sub(r"= ?<(?:[^<>]|<[^<>]*>)*>", "= ...", signature)
    return signature, returns


def setup(app: Any) -> dict[str, bool]:
    app.add_config_value("docstrings_not_constructed", [], "env")
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", readable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
