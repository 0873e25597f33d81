"""The arrays of a simulated device, by the addresses of their memory: `out[12, 7]` for 0x1000000200."""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.driver.context import Context
from cudakit.memory import layout
from cudakit.memory.array import DeviceArray


@dataclass(frozen=True)
class ArrayLayout:
    """The memory of an array: the address of its first element, shape, strides in bytes and dtype."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, array: Any) -> ArrayLayout:
        """The layout of a DeviceArray, or of a numpy array in pinned memory."""
        pointer = array.pointer if isinstance(array, DeviceArray) else int(array.ctypes.data)
        return cls(pointer, tuple(array.shape), tuple(array.strides), array.dtype)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def contiguous(self) -> bool:
        """Whether the elements are in C order without gaps."""
        return layout.is_contiguous(self.shape, self.strides, self.dtype.itemsize)

    def index(self, address: int) -> tuple[int, ...] | None:
        """The index of the element that contains a byte; None if there is none, or the array is not contiguous."""
        flat = (address - self.pointer) // self.dtype.itemsize
        if not self.contiguous or not 0 <= flat < self.size:
            return None
        return tuple(int(i) for i in np.unravel_index(flat, self.shape)) if self.shape else ()


def live_arrays(driver: Any) -> list[DeviceArray]:
    """Return the arrays of a driver's devices that the program can still use. It searches all Python objects, so that
    arrays need no registry, which would cost time whenever one is made."""
    found = (one for one in gc.get_objects() if type(one) is DeviceArray)
    return [one for one in found if one.size and not one.closed and one.context.driver is driver]


def simulated_contexts() -> list[Context]:
    """Return the contexts of the simulated devices that the program can still use."""
    found = (one for one in gc.get_objects() if type(one) is Context)
    return [one for one in found if one.kind == "sim" and not one.closed and not one.driver.simLost()]


def flat_indices(shape: tuple[int, ...], index: Any) -> list[int]:
    """Return the flat indices (C order) of the elements that an index of ints and slices selects.

    Raises:
        IndexError: If an int is out of range, there are more indices than axes, or more than `MOST_ELEMENTS` elements.
        TypeError: If an index is of another type.
    """
    keys = index if isinstance(index, tuple) else (index,)
    # checks the types and the ranges
    layout.index(shape, (0,) * len(shape), keys)
    if None in keys:
        raise TypeError("None selects no elements; use ints and slices")
    if Ellipsis in keys:
        at = keys.index(Ellipsis)
        keys = (*keys[:at], *(slice(None),) * (len(shape) - len(keys) + 1), *keys[at + 1 :])
    axes = []
    for axis, extent in enumerate(shape):
        key = keys[axis] if axis < len(keys) else slice(None)
        axes.append(range(extent)[key] if isinstance(key, slice) else [int(key) % extent])
    count = math.prod(len(axis) for axis in axes)
    if count > MOST_ELEMENTS:
        raise IndexError(f"{index_text(keys)} selects {count} elements; at most {MOST_ELEMENTS} can be traced by index")
    if not shape:
        return [0]
    grid = np.ix_(*(np.asarray(axis, np.int64) for axis in axes))
    flat: list[int] = np.ravel_multi_index(grid, shape).reshape(-1).tolist() if count else []
    return flat


#: The most elements that an index may select.
MOST_ELEMENTS = 1024


def index_text(keys: Sequence[Any]) -> str:
    """Return an index as Python writes it: "[3, 4:6]"; "" if there is none."""
    return f"[{', '.join(_key_text(key) for key in keys)}]" if keys else ""


def _key_text(key: Any) -> str:
    if key is Ellipsis:
        return "..."
    if not isinstance(key, slice):
        return str(int(key))
    parts = ["" if part is None else str(part) for part in (key.start, key.stop, key.step)]
    return ":".join(parts if parts[2] else parts[:2])


def parameter_name(label: str) -> str:
    """Return the name in a parameter's label: "x" for "parameter 0 (`x`)"; the label if it contains no name."""
    found = re.search(r"\(`(\w+)`\)", label)
    return found[1] if found else label


class ArrayTable:
    """The layouts of the arrays that launches receive, for names of addresses. It keeps no array alive."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.layouts: dict[int, ArrayLayout] = {}
        self._asked: set[int] = set()

    def add(self, array: ArrayLayout) -> None:
        """Add an array; of several with one address, the last one is used."""
        self._asked.add(array.pointer)
        self.layouts[array.pointer] = array

    def launch(self, launched: Any) -> None:
        """Find the arrays whose addresses a launch passes."""
        new = {value for _, value in launched.pointers if value} - self._asked
        if not new:
            return
        self._asked |= new
        for array in live_arrays(self.driver):
            known = self.layouts.get(array.pointer)
            if array.pointer in new and array.is_contiguous and (known is None or known.size < array.size):
                self.layouts[array.pointer] = ArrayLayout.of(array)

    def name(self, address: int, size: int, launched: Any) -> str:
        """Return the name of an address: the parameter of the launch that points before it, and the index of its
        element; "" if no parameter points there. size: bytes of an element, if the array is not known."""
        found = ""
        best = -1
        for label, value in launched.pointers if launched is not None else ():
            array = self.layouts.get(value)
            within = array is None or address < value + array.size * array.dtype.itemsize
            if best < value <= address and within and self._same_memory(value, address):
                index = None if array is None else array.index(address)
                best, found = value, parameter_name(label) + index_text(index or [(address - value) // max(size, 1)])
        return found

    def dtype(self, address: int, launched: Any) -> np.dtype[Any] | None:
        """Return the dtype of the element at an address; None if it is not in a known array."""
        for _, value in launched.pointers if launched is not None else ():
            array = self.layouts.get(value)
            if array is not None and array.index(address) is not None:
                return array.dtype
        return None

    def _same_memory(self, one: int, other: int) -> bool:
        found = self.driver.simAllocation(one)
        return found is not None and bool(found[0] <= other < found[1])
