"""Arrays from and to other libraries: devices they may be on, the order of their use, what keeps them alive."""

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

# Host memory that was registered with a simulated device for a wrap: how many wraps use each (address, bytes).
_registered: weakref.WeakKeyDictionary[Context, dict[tuple[int, int], int]] = weakref.WeakKeyDictionary()


def take(context: Context, stream: Stream, exporter: Any) -> ImportedArray:
    """The array that `exporter` exports, on `context`'s device, in the order of `stream`."""
    if hasattr(exporter, "__dlpack__") and hasattr(exporter, "__dlpack_device__"):
        kind, number = (int(part) for part in exporter.__dlpack_device__())
        expect_same_device(context, exporter, kind, number)
        return dlpack.take(exporter, (int(stream.expect_open()) or LEGACY_DEFAULT) if kind in _ON_GPU else None)
    description = getattr(exporter, "__cuda_array_interface__", None)
    if description is None:
        raise TypeError(
            f"{type(exporter).__name__} has neither __dlpack__ nor __cuda_array_interface__: array() copies host data"
        )
    imported = dlpack.take_interface(exporter, description)
    expect_same_device(context, exporter, dlpack.CUDA, _ordinal(context, imported.pointer))
    theirs = description.get("stream")
    if theirs is not None:
        stream.wait(Stream(context, handle=int(theirs), owner=exporter))
    return imported


def keep(context: Context, allocation: Allocation, uses: Uses, imported: ImportedArray) -> None:
    """Have `allocation` let go of an imported array's owner once work on it is done."""
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
            # Pinned already, by us or others: it is there for as long as its owner is.
            return
    ranges[key] = ranges.get(key, 0) + 1
    allocation.release_with(_unregister, context, ranges, key, [imported.owner])


def host_memory(
    context: Context, pointer: int, shape: layout.Shape, strides: layout.Shape, itemsize: int
) -> tuple[int, object]:
    """(host address of the first element, what keeps it alive) of an array of the simulated device."""
    low, high = layout.span(shape, strides, itemsize)
    if high == low:
        return 0, None
    backing: np.ndarray[Any, Any] = context.driver.simHostView(pointer + low, high - low)
    return int(backing.ctypes.data) - low, backing


def _let_go(context: Context, uses: Uses, owner: list[object]) -> None:
    # The owner may reuse its memory once it is let go of, so it is kept until the streams that use it are past here.
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
    """The number of the GPU that a pointer is of."""
    if pointer == 0 or context.kind != "gpu":
        return context.ordinal
    attribute = context.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(context.call("cuPointerGetAttribute", attribute, pointer))


def expect_same_device(context: Context, exporter: Any, kind: int, number: int) -> None:
    """Raise DeviceMismatch for an array on another device than `context`'s. kind, number: the array's, as DLPack has
    them."""
    name = type(exporter).__name__
    if context.kind == "sim":
        if kind != dlpack.CPU:
            raise DeviceMismatch(f"{name} is in a GPU's memory, which {context.spec} cannot reach: copy it to the host")
        return
    if kind == dlpack.CPU:
        raise DeviceMismatch(
            f"{name} is in host memory, which kernels on {context.spec} do not read: array() copies it"
        )
    if kind not in _ON_GPU:
        raise DeviceMismatch(f"{name} is on a device of DLPack's kind {kind}, which is not CUDA")
    if kind == dlpack.CUDA and number != context.ordinal:
        raise DeviceMismatch(f"{name} is on gpu:{number}, not on {context.spec}: copy it there")
