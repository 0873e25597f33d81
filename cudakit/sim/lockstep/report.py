"""Reports of faults in kernels and in host code, as text for a terminal and as data for JSON.

    out-of-bounds access: global store of 4 bytes at 0x10..., 0 bytes past the end of the device allocation of 400 bytes
      kernel overrun, block (0, 0, 0), thread (100, 0, 0) and 27 more lanes
      at overrun.cu:6
          data[i] = 1.0f;
      device allocation of 400 bytes at 0x1000000000, made at train.py:12
          data = dev.zeros(100)

A report consists of its title and one sentence; the kernel's thread or the host call that caused it; the
source line with its text, and the lines into which it was inlined; the conflicting accesses; the allocation, with the
Python lines that made and freed it; and notes.
"""

from __future__ import annotations

import linecache
import re
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any

from cudakit.sim.lockstep.memory import Allocation

Index3 = tuple[int, int, int]

# how the text of a report begins, for the kinds that are not already the usual term
_TITLES = {
    "out of bounds": "out-of-bounds access",
    "misaligned": "misaligned access",
    "shared memory race": "data race",
    "global memory race": "data race",
    "benign race": "benign data race",
    "race between streams": "data race between streams",
    "race on pinned memory": "data race on pinned memory",
    "read before cp.async wait": "cp.async result used before the wait",
    "divergent barrier": "divergent __syncthreads()",
    "lanes missing from a warp operation": "inactive lanes in a warp operation",
}


@dataclass
class SourcePlace:
    """A line of source; ``text`` is None if the source is not available."""

    file: str
    line: int
    text: str | None = None
    function: str | None = None


class Origin(str):
    """The line of Python that made or freed an object: the text "at FILE:LINE", with file and line as attributes."""

    __slots__ = ("file", "line")
    file: str
    line: int

    def __new__(cls, file: str, line: int) -> Origin:
        made = super().__new__(cls, f"at {file}:{line}")
        made.file, made.line = file, line
        return made

    def __getnewargs__(self) -> tuple[str, int]:  # type: ignore[override]
        return self.file, self.line


def python_place(file: str, line: int) -> SourcePlace:
    """A line of Python with its text, as it is now."""
    return SourcePlace(file, line, linecache.getline(file, line).strip() or None)


@dataclass
class Other:
    """The access that a fault conflicts with. ``access`` describes it ("shared store"), ``places`` are its source
    lines. ``block`` and ``thread`` are None if unknown."""

    access: str
    block: Index3 | None = None
    thread: Index3 | None = None
    places: tuple[SourcePlace, ...] = ()

    def __str__(self) -> str:
        named = (("block", self.block), ("thread", self.thread))
        who = ", ".join(f"{name} {index}" for name, index in named if index is not None)
        by = f" by {who}" if who else ""
        return "\n".join([f"  conflicts with the {self.access}{by}", *place_lines(self.places)])


@dataclass(frozen=True)
class AllocationFacts:
    """An allocation as it was when a report was made. ``origin`` and ``free_origin`` name the lines that made and freed
    it."""

    kind: str
    address: int
    size: int
    origin: str
    free_origin: str | None

    @classmethod
    def of(cls, allocation: Allocation) -> AllocationFacts:
        return cls(
            allocation.kind, allocation.address, allocation.size, allocation.origin, allocation.free_origin
        )  # fmt: skip

    @property
    def end(self) -> int:
        return self.address + self.size

    def lines(self, *, freed: bool) -> list[str]:
        """The printed form: kind, size and address, and the line that made it; with ``freed`` also the line that freed
        it."""
        made = f", made {self.origin}" if self.origin else ""
        lines = [f"  {self.kind} allocation of {self.size} bytes at {self.address:#x}{made}"]
        lines.extend(_origin_text(self.origin))
        if freed and self.free_origin is not None:
            lines.append(f"  freed {self.free_origin}")
            lines.extend(_origin_text(self.free_origin))
        return lines

    def as_dict(self) -> dict[str, Any]:
        """The fields in plain types, for JSON: the places if known, otherwise the texts of the origins."""
        return {
            "kind": self.kind,
            "address": self.address,
            "size": self.size,
            "made": _origin_dict(self.origin),
            "freed": _origin_dict(self.free_origin),
        }


@dataclass(repr=False)
class FaultReport:
    """The fields of every report. ``kind`` is the class of the fault, ``detail`` one sentence about this fault.
    ``places`` is the line at fault, then the lines into which it was inlined. ``others`` are the conflicting accesses.
    ``allocation`` is the memory that was accessed; an Allocation is recorded as it is when the report is made.
    """

    kind: str
    detail: str
    _: KW_ONLY
    places: tuple[SourcePlace, ...] = ()
    others: tuple[Other, ...] = ()
    allocation: AllocationFacts | None = None
    notes: list[str] = field(default_factory=list)
    # a call has returned this report, or another one that was pending at the same time
    told: bool = field(default=False, repr=False, compare=False)
    # an exit or a close has collected it
    taken: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # a report may be printed later and must not change if the allocation is freed in the meantime
        if isinstance(self.allocation, Allocation):
            self.allocation = AllocationFacts.of(self.allocation)

    def __repr__(self) -> str:
        place = "" if self.file is None else f", {self.file}:{self.line}"
        return f"{type(self).__name__}({self.title}: {self.detail}{place})"

    @property
    def file(self) -> str | None:
        """The file at fault, or None if unknown."""
        return self.places[0].file if self.places else None

    @property
    def line(self) -> int | None:
        """The line at fault, from 1, or None if unknown."""
        return self.places[0].line if self.places else None

    @property
    def text(self) -> str | None:
        """The text of the line at fault, or None if the source is not available."""
        return self.places[0].text if self.places else None

    @property
    def name(self) -> str | None:
        """The C++ name of the kernel at fault, or None if no kernel is involved."""
        return None

    @property
    def title(self) -> str:
        """The kind as the text of the report names it."""
        return _TITLES.get(self.kind, self.kind)

    def who(self) -> str:
        """The line of the report that names the thread or the call; "" if there is none."""
        return ""

    def where(self) -> list[str]:
        """The lines of the report that name the source lines."""
        return place_lines(self.places)

    def memory(self) -> list[str]:
        """The lines of the report that describe the allocation."""
        if self.allocation is None:
            return []
        places = [*self.places, *(place for other in self.others for place in other.places)]
        told = {f"at {place.file}:{place.line}" for place in places}
        return self.allocation.lines(freed=self.allocation.free_origin not in told)

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.detail}"]
        if who := self.who():
            lines.append(f"  {who}")
        lines.extend(self.where())
        lines.extend(str(other) for other in self.others)
        lines.extend(self.memory())
        lines.extend(f"  {note}" for note in self.notes)
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The fields in plain types, for JSON."""
        allocation = self.allocation
        return {
            "kind": self.kind,
            "detail": self.detail,
            "file": self.file,
            "line": self.line,
            "text": self.text,
            "places": [asdict(place) for place in self.places],
            "others": [asdict(other) for other in self.others],
            "allocation": None if allocation is None else allocation.as_dict(),
            "notes": list(self.notes),
        }


@dataclass(repr=False)
class KernelReport(FaultReport):
    """A fault of a kernel. ``kind`` is "out of bounds", "misaligned", "use after free", "write to constant memory",
    "divergent barrier", "deadlock", "hang", "endless loop", "trap"... ``block`` and ``thread`` are those of
    the first lane at fault; ``lanes`` counts the lanes with the same fault in the same instruction, and ``spread``
    describes the range of their threads or blocks, if known. ``kernel`` is the mangled name, ``launched`` the line that
    launched it, ``device`` the device that ran it ("sim:1"), "" if there is only one. ``parameter`` names the
    parameters that pointed to the allocation ("parameter 0 (`x`)"). For an access near address 0, ``null`` are the
    parameters that were null.
    """

    kernel: str
    block: Index3 = (0, 0, 0)
    thread: Index3 = (0, 0, 0)
    address: int | None = None
    size: int = 0
    space: str = ""
    access: str = ""
    instruction: str = ""
    lanes: int = 1
    spread: str = ""
    launched: Origin | None = None
    device: str = ""
    parameter: str = ""
    null: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return plain_name(self.kernel)

    @property
    def title(self) -> str:
        if self.kind == "divergent barrier" and ("cluster" in self.instruction or "," in self.instruction):
            # of a cluster, or of some of the block's threads
            return self.kind
        return super().title

    def who(self) -> str:
        on = f" on {self.device}" if self.device else ""
        text = f"kernel {self.name}{on}, block {self.block}, thread {self.thread}"
        if self.lanes > 1:
            text += f" and {self.lanes - 1} more lane{'s' * (self.lanes > 2)}"
        return f"{text} {self.spread}" if self.spread else text

    def where(self) -> list[str]:
        launched = [] if self.launched is None else [f"  launched {self.launched}"]
        if not self.places and self.instruction:
            return [*launched, f"  at PTX instruction {self.instruction}"]
        return [*launched, *super().where()]

    def memory(self) -> list[str]:
        if self.null:
            return [f"  {' and '.join(self.null)} {'was' if len(self.null) == 1 else 'were'} None"]
        lines = super().memory()
        if lines and self.parameter:
            lines[0] += f", passed as {self.parameter}"
        return lines

    def as_dict(self) -> dict[str, Any]:
        return {
            **super().as_dict(),
            "kernel": self.kernel,
            "name": self.name,
            "block": list(self.block),
            "thread": list(self.thread),
            "lanes": self.lanes,
            "spread": self.spread,
            "access": self.access,
            "space": self.space,
            "address": self.address,
            "size": self.size,
            "instruction": self.instruction,
            "launched": _origin_dict(self.launched),
            "device": self.device,
            "parameter": self.parameter,
            "null": list(self.null),
        }


@dataclass(repr=False)
class HostReport(FaultReport):
    """A mistake in host code, or queued work that failed when it ran. ``call`` is the driver function, or "kernel NAME"
    for a launch; ``places`` is the line of Python that made the call."""

    call: str = ""

    @property
    def name(self) -> str | None:
        return self.call.removeprefix("kernel ") if self.call.startswith("kernel ") else None

    def who(self) -> str:
        if not self.call:
            return ""
        return f"launch of {self.call}" if self.call.startswith("kernel ") else f"host call {self.call}"

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "call": self.call}


@dataclass
class Held:
    """Live objects that one line made: ``count`` objects of the kind ``what`` ("device memory", "stream"), ``bytes`` in
    total. ``made`` is the origin as text, ``place`` the line of Python, if it is one."""

    what: str
    count: int
    bytes: int
    made: str
    place: SourcePlace | None

    def __str__(self) -> str:
        times = f"{self.count} x " if self.count > 1 else ""
        size = f" of {self.bytes} bytes{' in total' * (self.count > 1)}" if self.bytes else ""
        return f"{times}{self.what}{size}" + (f", made {self.made}" if self.made else "")


@dataclass(repr=False)
class LeakReport(HostReport):
    """The objects still alive when their context ended, largest first; ``places`` is the line that made the first."""

    held: tuple[Held, ...] = ()

    def where(self) -> list[str]:
        lines = []
        for held in self.held:
            lines.append(f"  {held}")
            if held.place is not None and held.place.text is not None:
                lines.append(f"      {held.place.text}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "held": [asdict(held) for held in self.held]}


class KernelFault(Exception):
    """Stops a kernel; ``report`` describes the fault."""

    def __init__(self, report: KernelReport) -> None:
        super().__init__(str(report))
        self.report = report


def place_lines(places: tuple[SourcePlace, ...]) -> list[str]:
    """The printed form of source places: the line at fault and its text, then the lines into which it was inlined."""
    lines = []
    for number, place in enumerate(places):
        name = f" in {plain_name(place.function)}" if place.function else ""
        lines.append(f"  {'at' if number == 0 else 'inlined from'} {place.file}:{place.line}{name}")
        if place.text is not None:
            lines.append(f"      {place.text.strip()}")
    return lines


def _origin_text(origin: str) -> list[str]:
    text = python_place(origin.file, origin.line).text if isinstance(origin, Origin) else None
    return [] if text is None else [f"      {text}"]


def _origin_dict(origin: str | None) -> Any:
    """The origin as a place if it is a line of Python, otherwise its text."""
    return asdict(python_place(origin.file, origin.line)) if isinstance(origin, Origin) else origin


def plain_name(mangled: str) -> str:
    """The C++ name without parameters and template arguments: ``foo::bar`` for ``_ZN3foo3barEPi``."""
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
