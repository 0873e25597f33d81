"""The values from which a stored value was computed, as sources.py finds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cudakit.sim.lockstep.report import Index3, SourcePlace


@dataclass(frozen=True)
class Source:
    """A value that was read. ``space``: "global", "shared", "local", "constant" (memory), "parameter", "special
    register" or "literal". ``bits`` are its bytes as an unsigned integer of ``size`` bytes, None if unknown; ``kind``
    is its PTX type ("f32"), "" if unknown. ``name``: of a register; ``parameter``: its number; ``offset``: bytes in it.
    ``block`` and ``thread`` are those that read it. ``stored``: for shared memory, the store of the value."""

    space: str
    bits: int | None = None
    size: int = 0
    kind: str = ""
    address: int | None = None
    name: str = ""
    parameter: int | None = None
    offset: int = 0
    instruction: str = ""
    places: tuple[SourcePlace, ...] = ()
    block: Index3 = (0, 0, 0)
    thread: Index3 = (0, 0, 0)
    stored: Stored | None = None

    @property
    def common(self) -> tuple[Any, ...]:
        """The facts about a parameter or literal that do not depend on the thread."""
        return self.space, self.parameter, self.offset, self.bits, self.size, self.kind, self.instruction

    @property
    def value(self) -> Any:
        """The value as its type; an unsigned integer if the type is not known. None if it was not recorded."""
        if self.bits is None or self.size not in (1, 2, 4, 8):
            return self.bits
        raw = np.array(self.bits, f"<u{self.size}")
        letter = self.kind[:1] if self.kind[1:] == str(8 * self.size) else "u"
        dtype = np.dtype(f"<{letter.replace('s', 'i') if letter in 'sf' else 'u'}{self.size}")
        return raw.view(dtype)[()] if dtype.kind != "f" or self.size > 1 else raw[()]


@dataclass(frozen=True)
class Stored:
    """A store, or an asynchronous copy, to shared memory: the thread, and the sources of the value."""

    access: str
    block: Index3
    thread: Index3
    places: tuple[SourcePlace, ...]
    sources: Sources


@dataclass
class Sources:
    """The sources of a value in the order in which they were read. ``more``: earlier ones are not listed."""

    found: list[Source] = field(default_factory=list)
    more: bool = False
    notes: list[str] = field(default_factory=list)
