"""Pinned host memory, which numpy sees as ordinary arrays and the device copies from and to on its own."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.driver.primary import Primary
from cudakit.errors import OutOfMemory
from cudakit.memory.allocation import expect_countable
from cudakit.memory.layout import as_shape

# Every block that is alive, so that one is found again by an address in it.
_blocks: weakref.WeakSet[PinnedBlock] = weakref.WeakSet()
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for every device of the process


class PinnedBlock:
    """One piece of pinned memory: the base of every array over it, freed with the last of them."""

    __slots__ = ("__array_interface__", "__weakref__", "address", "nbytes")

    def __init__(self, primary: Primary, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.__array_interface__ = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}
        # The block holds the primary context itself: closing the Context must not unmap what numpy looks at, and
        # neither must the end of the interpreter.
        finalizer = weakref.finalize(self, _free, primary, address)
        finalizer.atexit = False


def _free(primary: Primary, address: int) -> None:
    with nvtx.range("free pinned"):
        primary.attempt("cuMemFreeHost", address)


def pinned(context: Context, shape: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A pinned array in C order, its contents undefined. Freed with its last view, or once copies are done with it.

    Raises OutOfMemory if the system cannot pin that much.
    """
    extents = as_shape(shape)
    kind = np.dtype(dtype)
    nbytes = math.prod(extents) * kind.itemsize
    if kind.hasobject:
        raise TypeError(f"{kind} holds Python objects, which cannot be pinned")
    if nbytes == 0:
        return np.empty(extents, kind)
    try:
        expect_countable("cuMemHostAlloc", nbytes)
        with nvtx.range("allocate pinned"), context.relaxed():
            address = int(context.call("cuMemHostAlloc", nbytes, _PORTABLE))
    except OutOfMemory as error:
        raise OutOfMemory(
            error.routine, error.code, error.name, f"{error.text}: {nbytes} bytes of pinned host memory were asked for",
            "Pinned memory is taken from the system's own: pin less, and look at ulimit -l.",
        ) from error  # fmt: skip
    block = PinnedBlock(context.primary, address, nbytes)
    _blocks.add(block)
    return np.asarray(block).view(kind).reshape(extents)


def blocks() -> list[PinnedBlock]:
    """All pinned memory that cudakit made and that is still in use."""
    return list(_blocks)


def is_pinned(context: Context, array: npt.NDArray[Any]) -> bool:
    """Whether the device copies from and to this array's memory by itself, whoever pinned it."""
    if array.nbytes == 0:
        return False
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, PinnedBlock):
        return True
    return is_known(context, array.ctypes.data)


def is_known(context: Context, address: int) -> bool:
    """Whether the driver knows the memory at an address: pinned or registered host memory, or a device's."""
    attribute = context.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    # The plural form answers 0 for memory it does not know; the singular one fails, which sanitizers report.
    return bool(int(context.call("cuPointerGetAttributes", 1, [attribute], address)[0]))
