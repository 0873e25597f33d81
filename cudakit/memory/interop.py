"""Arrays from and to other libraries: their device, the order of work on them, and their lifetime."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from cudakit.driver.context import Context
from cudakit.driver.stream import LEGACY_DEFAULT, Stream
from cudakit.errors import CudaError, DeviceMismatch
from cudakit.memory import dlpack, layout, pinned
from cudakit.memory.allocation import Allocation, Uses
from cudakit.memory.dlpack import ImportedArray

_ON_GPU = (dlpack.CUDA, dlpack.CUDA_HOST, dlpack.CUDA_MANAGED)
_ALREADY_REGISTERED = 712

# Host memory registered with a simulated device for wrap(): the number of wraps per (address, bytes).
_registered: weakref.WeakKeyDictionary[Context, dict[tuple[int, int], int]] = weakref.WeakKeyDictionary()


def take(context: Context, stream: Stream, exporter: Any) -> ImportedArray:
    """Return the array that `exporter` exports, on `context`'s device, ordered before later work on `stream`."""
    if hasattr(exporter, "__dlpack__") and hasattr(exporter, "__dlpack_device__"):
        kind, number = (int(part) for part in exporter.__dlpack_device__())
        expect_same_device(context, exporter, kind, number)
        return dlpack.take(exporter, (int(stream.expect_open()) or LEGACY_DEFAULT) if kind in _ON_GPU else None)
    description = getattr(exporter, "__cuda_array_interface__", None)
    if description is None:
        raise TypeError(
            f"{type(exporter).__name__} has neither __dlpack__ nor __cuda_array_interface__; use array() to copy it"
        )
    imported = dlpack.take_interface(exporter, description)
    expect_same_device(context, exporter, dlpack.CUDA, _ordinal(context, imported.pointer))
    theirs = description.get("stream")
    if theirs is not None:
        stream.wait(Stream(context, handle=int(theirs), owner=exporter))
    return imported


def keep(context: Context, allocation: Allocation, uses: Uses, imported: ImportedArray) -> None:
    """Make `allocation` release the imported array's owner after the work on it is done."""
    if context.kind == "gpu":
        allocation.release_with(_let_go, context, uses, [imported.owner])
        return
    low, high = layout.span(imported.shape, imported.strides, imported.dtype.itemsize)
    if high == low:
        return
    key = (imported.pointer + low, high - low)
    ranges = _registered.setdefault(context, {})
    if not ranges.get(key):
        try:
            with context.relaxed():
                context.call("cuMemHostRegister", *key, 0)
        except CudaError as error:
            ends = (key[0], key[0] + key[1] - 1)
            if error.code != _ALREADY_REGISTERED or not all(pinned.is_known(context, end) for end in ends):
                raise
            # Already pinned, by cudakit or another library; it stays pinned as long as its owner lives.
            return
    ranges[key] = ranges.get(key, 0) + 1
    allocation.release_with(_unregister, context, ranges, key, [imported.owner])


def host_memory(
    context: Context, pointer: int, shape: layout.Shape, strides: layout.Shape, itemsize: int
) -> tuple[int, object]:
    """Return (host address of the first element, the object that keeps it alive) for a simulated device's array."""
    low, high = layout.span(shape, strides, itemsize)
    if high == low:
        return 0, None
    backing: np.ndarray[Any, Any] = context.driver.simHostView(pointer + low, high - low)
    return int(backing.ctypes.data) - low, backing


def _let_go(context: Context, uses: Uses, owner: list[object]) -> None:
    # The owner may reuse its memory once released, so it is kept until the work queued so far has ended.
    context.in_flight.hold(uses.join(), owner.pop())


def _unregister(
    context: Context, ranges: dict[tuple[int, int], int], key: tuple[int, int], owner: list[object]
) -> None:
    ranges[key] -= 1
    if not ranges[key]:
        del ranges[key]
        context.attempt("cuMemHostUnregister", key[0])
    owner.clear()


def _ordinal(context: Context, pointer: int) -> int:
    """Return the number of the GPU that a pointer belongs to."""
    if pointer == 0 or context.kind != "gpu":
        return context.ordinal
    attribute = context.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(context.call("cuPointerGetAttribute", attribute, pointer))


def expect_same_device(context: Context, exporter: Any, kind: int, number: int) -> None:
    """Raise DeviceMismatch if an array is not on `context`'s device. kind, number: the array's device in DLPack."""
    name = type(exporter).__name__
    if context.kind == "sim":
        if kind != dlpack.CPU:
            raise DeviceMismatch(f"{name} is in GPU memory, which {context.spec} cannot access; copy it to the host")
        return
    if kind == dlpack.CPU:
        raise DeviceMismatch(
            f"{name} is in host memory, which kernels on {context.spec} cannot access; copy it with array()"
        )
    if kind not in _ON_GPU:
        raise DeviceMismatch(f"{name} is on a device of DLPack's type {kind}, which is not a CUDA device")
    if kind == dlpack.CUDA and number != context.ordinal:
        raise DeviceMismatch(f"{name} is on gpu:{number}, not on {context.spec}; copy it there")
