"""The float64 shadows of floats in memory.

An element has a shadow as long as its bits are those of the store that made the shadow: writes by the host, by copies
and by instructions that are not followed end it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.lockstep.lanes import Array


class Shadow(NamedTuple):
    """The shadows of a float register, one per lane (NaN: no shadow); the codes of the lines that lost their
    accuracy; and the exponent of the unit roundoff of the coarsest format that the values have been rounded to."""

    values: Array
    codes: Array
    unit: int


class Cells:
    """The elements of ``width`` bytes of one memory."""

    def __init__(self, width: int, count: int) -> None:
        self.width = width
        self.values = np.full(count, np.nan)
        self.bits = np.zeros(count, f"u{width}")
        self.codes = np.zeros(count, np.int32)
        self.units = np.full(count, -99, np.int8)

    def read(self, index: Array, bits: Array) -> Shadow | None:
        """The shadows of elements with these bits; None if no element has one."""
        same = self.bits[index] == bits
        values = np.where(same, self.values[index], np.nan)
        if np.isnan(values).all():
            return None
        return Shadow(values, np.where(same, self.codes[index], np.int32(0)), int(self.units[index].max()))

    def write(self, index: Array, bits: Array, shadow: Shadow | None) -> None:
        """Set the shadows of elements; None: remove them."""
        if shadow is None:
            self.values[index] = np.nan
            return
        self.values[index], self.codes[index] = shadow.values, shadow.codes
        self.bits[index], self.units[index] = bits, shadow.unit


class ShadowMemory:
    """The cells of all memories, by their home (places.py) and the width of the elements."""

    def __init__(self) -> None:
        # with the home, which keeps its id
        self._cells: dict[tuple[int, int], tuple[Any, Cells]] = {}

    def cells(self, home: Any, width: int, *, make: bool) -> Cells | None:
        """The cells of a memory for elements of a width; None if there are none and ``make`` is false."""
        found = self._cells.get((id(home), width))
        if found is not None and found[0] is home:
            return found[1]
        if not make:
            return None
        size = len(home.store) if hasattr(home, "store") else len(home.bytes)
        made = Cells(width, size // width)
        self._cells[id(home), width] = home, made
        return made

    def load(self, home: Any, offsets: Array, width: int, bits: Array) -> Shadow | None:
        """The shadows of elements that were loaded as ``bits``."""
        cells = self.cells(home, width, make=False)
        return None if cells is None else cells.read(offsets // width, bits)

    def store(self, home: Any, offsets: Array, width: int, bits: Array, shadow: Shadow | None) -> None:
        """Set the shadows of elements that are stored as ``bits``."""
        cells = self.cells(home, width, make=shadow is not None)
        if cells is not None:
            cells.write(offsets // width, bits, shadow)

    @property
    def any(self) -> bool:
        """Whether any memory has cells."""
        return bool(self._cells)

    def remove(self, home: Any, offsets: Array, size: int) -> None:
        """Remove the shadows of the elements that overlap ``size`` bytes at each offset."""
        for width in (2, 4, 8):
            for at in range(0, size, width):
                self.store(home, offsets + at, width, offsets, None)

    def forget_freed(self) -> None:
        """Drop the cells of freed memory."""
        for key, (home, _) in list(self._cells.items()):
            if not getattr(home, "live", True):
                del self._cells[key]

    def forget(self, homes: list[Any]) -> None:
        """Drop the cells of the shared and local memory of a batch that has ended."""
        gone = {id(home) for home in homes if home is not None}
        for key in [key for key in self._cells if key[0] in gone]:
            del self._cells[key]
