"""Reports of what went wrong in a kernel, and the exception that carries one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cudakit.sim.memory import Allocation

Index3 = tuple[int, int, int]


@dataclass
class Place:
    """A line of source; ``text`` is None where the source is not at hand."""

    file: str
    line: int
    text: str | None = None
    function: str | None = None


@dataclass
class Report:
    """One fault. ``kind`` is "out of bounds", "misaligned", "use after free", "write to constant memory", "divergent
    barrier", "deadlock", "hang", "trap", "assertion", "stack overflow"... ``detail`` is one sentence. ``places`` is the
    source line of the instruction first, then the lines into which it was inlined. ``lanes`` counts the lanes that do
    the same at the same moment.
    """

    kind: str
    detail: str
    kernel: str
    block: Index3 = (0, 0, 0)
    thread: Index3 = (0, 0, 0)
    address: int | None = None
    size: int = 0
    space: str = ""
    access: str = ""
    allocation: Allocation | None = None
    file: str | None = None
    line: int | None = None
    text: str | None = None
    places: tuple[Place, ...] = ()
    instruction: str = ""
    lanes: int = 1
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.detail}"]
        where = f"  kernel {plain_name(self.kernel)}, block {self.block}, thread {self.thread}"
        if self.lanes > 1:
            where += f" and {self.lanes - 1} more lane{'s' * (self.lanes > 2)}"
        lines.append(where)
        for number, place in enumerate(self.places):
            head = "at" if number == 0 else "inlined from"
            name = f" in {plain_name(place.function)}" if place.function else ""
            lines.append(f"  {head} {place.file}:{place.line}{name}")
            if place.text is not None:
                lines.append(f"      {place.text.strip()}")
        if not self.places and self.instruction:
            lines.append(f"  at PTX instruction {self.instruction}")
        lines.extend(f"  {note}" for note in self.notes)
        return "\n".join(lines)


class KernelFault(Exception):
    """A kernel was stopped; ``report`` says where and why."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


def plain_name(mangled: str) -> str:
    """The C++ name in a mangled one, without parameters and template arguments: ``_ZN3foo3barEPi`` is ``foo::bar``."""
    parts = []
    rest = re.sub(r"^_ZN?K?|^_ZZ\d*", "", mangled)
    if rest == mangled:
        return mangled
    while found := re.match(r"L?(\d+)", rest):
        start, length = found.end(), int(found.group(1))
        parts.append(rest[start : start + length])
        rest = rest[start + length :]
        if not mangled.startswith("_ZN"):
            break
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N")) or mangled
