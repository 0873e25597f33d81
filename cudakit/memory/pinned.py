"""Pinned host memory: numpy arrays that the device copies from and to asynchronously."""

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

# All live blocks, to find the one that contains an address.
_blocks: weakref.WeakSet[PinnedBlock] = weakref.WeakSet()
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for every device of the process


class PinnedBlock:
    """One piece of pinned memory, the base of every array over it; freed with the last of them."""

    __slots__ = ("__array_interface__", "__weakref__", "address", "nbytes")

    def __init__(self, primary: Primary, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.__array_interface__ = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}
        # The block holds the primary context: closing the Context, or the end of the interpreter, must not unmap
        # memory that numpy arrays still use.
        finalizer = weakref.finalize(self, _free, primary, address)
        finalizer.atexit = False


def _free(primary: Primary, address: int) -> None:
    with nvtx.range("free pinned"):
        primary.attempt("cuMemFreeHost", address)


def pinned(context: Context, shape: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a pinned array in C order, with undefined contents.

    It is freed with its last view, once copies from and to it are done.

    Args:
        context: The device's context.
        shape: Extents, in elements.
        dtype: A numpy dtype.

    Raises:
        OutOfMemory: If the system cannot pin that much.
        TypeError: If the dtype holds Python objects.
    """
    extents = as_shape(shape)
    kind = np.dtype(dtype)
    nbytes = math.prod(extents) * kind.itemsize
    if kind.hasobject:
        raise TypeError(f"dtype {kind} holds Python objects, which cannot be pinned; use a numeric dtype")
    if nbytes == 0:
        return np.empty(extents, kind)
    try:
        expect_countable("cuMemHostAlloc", nbytes)
        with nvtx.range("allocate pinned"), context.relaxed():
            address = int(context.call("cuMemHostAlloc", nbytes, _PORTABLE))
    except OutOfMemory as error:
        raise OutOfMemory(
            error.routine, error.code, error.name, f"{error.text}: {nbytes} bytes of pinned host memory were requested",
            "Pinned memory uses the host's RAM: pin less, and check ulimit -l.",
        ) from error  # fmt: skip
    block = PinnedBlock(context.primary, address, nbytes)
    _blocks.add(block)
    return np.asarray(block).view(kind).reshape(extents)


def blocks() -> list[PinnedBlock]:
    """Return all blocks of pinned memory that cudakit made and that are still in use."""
    return list(_blocks)


def is_pinned(context: Context, array: npt.NDArray[Any]) -> bool:
    """Return whether the memory of `array` is pinned, by cudakit or another library."""
    if array.nbytes == 0:
        return False
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, PinnedBlock):
        return True
    return is_known(context, array.ctypes.data)


def is_known(context: Context, address: int) -> bool:
    """Return whether the driver knows the memory at an address: pinned or registered host memory, or device memory."""
    attribute = context.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    # The plural call returns 0 for unknown memory; the singular one fails, which compute-sanitizer reports.
    return bool(int(context.call("cuPointerGetAttributes", 1, [attribute], address)[0]))
