"""Breakpoints: which instructions they stop at, and for which threads."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cudakit.debugger.code import Code, Entry
from cudakit.debugger.expressions import evaluate, truth
from cudakit.debugger.state import View
from cudakit.debugger.syntax import ExpressionError, Node, parse
from cudakit.debugger.types import NAMED, Array
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.report import Index3


@dataclass
class Breakpoint:
    """Stops threads at a line or a function.

    Attributes:
        number: The number that commands use.
        location: "file.cu:12", "12" (in the file `default_file`), or the name of a function.
        condition: A C++ expression; only threads for which it is true stop. "" for none.
        block, thread: The only block and thread that stop; None for all.
        temporary: Deleted once it has stopped a thread.
        ignore: The number of stops that are skipped.
        hits: How often threads have stopped at it.
        found: Per module, the entries at which it stops.
        instead: Called with the Stop instead of stopping the threads.
        until: Deleted at the next stop, whatever causes it.
    """

    number: int
    location: str
    condition: str = ""
    block: Index3 | None = None
    thread: Index3 | None = None
    temporary: bool = False
    enabled: bool = True
    ignore: int = 0
    hits: int = 0
    default_file: str = ""
    commands: list[str] = field(default_factory=list)
    found: dict[int, list[Entry]] = field(default_factory=dict)
    line: int = 0
    file: str = ""
    instead: Callable[[Any], None] | None = None
    until: bool = False
    _nodes: dict[tuple[int, str], Node] = field(default_factory=dict)

    def entries(self, code: Code) -> list[Entry]:
        """The entries in a module at which it stops."""
        known = self.found.get(id(code))
        if known is None:
            known = self.found[id(code)] = self._find(code)
        return known

    def _find(self, code: Code) -> list[Entry]:
        file, line = split_location(self.location)
        if line is None:
            found = code.of_function(file)
        else:
            files = code.files(file or self.default_file)
            self.line, found = code.on_line(files, line) if files else (line, [])
        if found:
            self.line, self.file = found[0].line, code.file(found[0].file)
        return found

    @property
    def resolved(self) -> bool:
        return any(self.found.values())

    def node(self, code: Code) -> Node:
        """The parsed condition. Raises ExpressionError if it cannot be parsed."""
        key = (id(code), self.condition)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = parse(self.condition, lambda name: name in code.info.types)
        return found

    def stops(self, code: Code, view: View) -> Array:
        """The threads of a view that it stops, as a mask. Raises ExpressionError if the condition has no value."""
        chosen = self._filter(view.f)[view.positions]
        if not self.condition or not chosen.any():
            return chosen
        inner = view if chosen.all() else view.subset(chosen)
        result = chosen.copy()
        result[chosen] = truth(evaluate(self.node(code), inner), inner)
        return result

    def _filter(self, f: Fragment) -> Array:
        mask = np.ones(f.lanes.count, np.bool_)
        if self.block is not None:
            mask &= (f.batch.indices[f.lanes.block] == np.array(self.block)).all(axis=1)
        if self.thread is not None:
            x, y, _ = f.batch.geometry.dims
            wanted = self.thread[0] + x * (self.thread[1] + y * self.thread[2])
            mask &= f.lanes.pick(f.batch.geometry.thread) == wanted
        return mask

    def __str__(self) -> str:
        kind = "temporary breakpoint" if self.temporary else "breakpoint"
        where = f"{self.file}:{self.line}" if self.file else self.location
        condition = f", if {self.condition}" if self.condition else ""
        only = "".join(
            f", {name} {index}" for name, index in (("block", self.block), ("thread", self.thread)) if index is not None
        )
        return f"{kind} {self.number} at {where}{condition}{only}"


def check_condition(text: str) -> None:
    """Raise ExpressionError if a condition cannot be parsed; one with a cast to a user's type is parsed later."""
    try:
        parse(text, lambda name: name in NAMED)
    except ExpressionError:
        if re.search(r"\([\w:]+\s*\**\)\s*[\w(*&]", text) is None:
            raise


def split_location(text: str) -> tuple[str, int | None]:
    """The file (or "") and the line of "k.cu:12" or "12"; the name of a function and None."""
    match = re.fullmatch(r"(?:(.+):)?(\d+)", text.strip())
    return (match[1] or "", int(match[2])) if match is not None else (text.strip(), None)
