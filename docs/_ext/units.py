"""Keeps a number and its percent sign on one line: in narrow table cells they would break apart."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes

_PERCENT = re.compile(r"(?<=\d) (?=%)")


def bind(app: Any, doctree: nodes.document) -> None:
    for text in list(doctree.findall(nodes.Text)):
        if isinstance(text.parent, nodes.literal | nodes.literal_block):
            continue
        bound = _PERCENT.sub("\N{NO-BREAK SPACE}", text)
        if bound != text:
            text.parent.replace(text, nodes.Text(bound))


def setup(app: Any) -> dict[str, bool]:
    app.connect("doctree-read", bind)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
