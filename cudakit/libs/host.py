"""Shared by the numpy versions of CUDA's libraries for the simulated device: device memory, and the queueing of work.

`host_blas` and `host_fft` have the functions of nvmath-python's bindings, so their callers are the same on a GPU. A
call queues numpy's work as a host function on the handle's stream, and declares the bytes that it reads and writes. So
it runs in stream order, and the device checks it like a copy.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cudakit.driver.context import Context
from cudakit.memory import layout
from cudakit.memory.array import as_dtype

Array = npt.NDArray[Any]
Rows = tuple[int, int, int, int]  # address, width, height and pitch in bytes


class DeviceOperand:
    """An array in device memory that queued work reads or writes. steps: its strides, in bytes."""

    def __init__(self, context: Context, pointer: int, dtype: Any, shape: Sequence[int], steps: Sequence[int]) -> None:
        self.context, self.pointer, self.dtype = context, pointer, as_dtype(dtype)
        self.shape, self.steps = tuple(shape), tuple(steps)
        self._low, self._high = layout.span(self.shape, self.steps, self.dtype.itemsize)

    def rows(self) -> list[Rows]:
        """Return its bytes in the simulated driver's form: as few sets of equal rows as possible."""
        if 0 in self.shape:
            return []
        width = self.dtype.itemsize
        dims: list[tuple[int, int]] = []
        for step, extent in sorted((abs(step), extent) for step, extent in zip(self.steps, self.shape, strict=True)):
            if extent == 1 or step == 0:
                continue
            if not dims and step == width:
                width *= extent
            elif dims and step == math.prod(dims[-1]):
                dims[-1] = (dims[-1][0] * extent, dims[-1][1])
            else:
                dims.append((extent, step))
        height, pitch = dims.pop(0) if dims else (1, width)
        starts = itertools.product(*(range(0, extent * step, step) for extent, step in dims))
        return [(self.pointer + self._low + sum(start), width, height, pitch) for start in starts]

    def view(self) -> Array:
        """Return the elements as a numpy array over the device memory."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        flat = self.context.driver.simHostView(self.pointer + self._low, self._high - self._low, define=False)
        made: Array = np.ndarray(self.shape, self.dtype, buffer=flat, offset=-self._low, strides=self.steps)
        return made


def enqueue(
    context: Context,
    stream: int,
    name: str,
    work: Callable[[], None],
    reads: Sequence[DeviceOperand],
    writes: Sequence[DeviceOperand],
) -> None:
    """Queue `work` on a stream, unless all of `writes` are empty. It may only read `reads` and write `writes`; with no
    `writes` it only reads."""
    read = [rows for place in reads for rows in place.rows()]
    written = [rows for place in writes for rows in place.rows()]
    if written or not writes:

        def quietly() -> None:
            with np.errstate(all="ignore"):  # infinities and NaN are valid results
                work()

        context.call("simLaunchHost", stream, quietly, name, read, written)


def scalar(address: int, dtype: Any) -> Any:
    """Read the number at a host address, as a numpy scalar."""
    kind = as_dtype(dtype)
    return np.frombuffer(ctypes.string_at(address, kind.itemsize), kind)[0]
