"""The functions that make device and pinned arrays of values, of host arrays, or over memory that is there already."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.errors import DeviceMismatch, GradientError
from cudakit.memory import copies, interop, layout
from cudakit.memory import pinned as pinned_memory
from cudakit.memory.allocation import Allocation, Uses
from cudakit.memory.array import DeviceArray, as_dtype, empty
from cudakit.memory.layout import Shape


def full(context: Context, stream: Any, shape: Any, value: Any, dtype: Any = None) -> DeviceArray:
    """A new array of one value; dtype: the value's own, as numpy sees it, unless given."""
    kind = np.asarray(value).dtype if dtype is None else dtype
    made = empty(context, stream, shape, kind)
    try:
        return made.fill(value)
    except BaseException:
        made.close()
        raise


def zeros(context: Context, stream: Any, shape: Any, dtype: Any = np.float32) -> DeviceArray:
    """A new array of zero bytes."""
    made = empty(context, stream, shape, dtype)
    try:
        copies.fill(
            context, made.stream.expect_open(), made.pointer, made.shape, made.strides, bytes(made.itemsize)
        )  # fmt: skip
    except BaseException:
        made.close()
        raise
    return made


def array(context: Context, stream: Any, source: Any, dtype: Any = None) -> DeviceArray:
    """A new contiguous array with the contents of a numpy array (or what numpy makes one of), or of a device array.

    The copy is queued on `stream`: see `DeviceArray.copy_from` for when the source has been read.
    """
    if isinstance(source, DeviceArray):
        if dtype is not None and as_dtype(dtype) != source.dtype:
            raise TypeError(
                f"a device array of {source.dtype} is not converted to {dtype} by a copy: that takes a kernel"
            )
    else:
        source = np.asarray(source, None if dtype is None else as_dtype(dtype))
    made = empty(context, stream, source.shape, source.dtype)
    try:
        return made.copy_from(source)
    except BaseException:
        made.close()
        raise


def pinned(context: Context, shape: Any, dtype: Any = np.float32) -> npt.NDArray[Any]:
    """A numpy array in pinned host memory, its contents undefined; freed with its last view."""
    return pinned_memory.pinned(context, shape, as_dtype(dtype))


def over(
    context: Context,
    stream: Any,
    pointer: int,
    shape: Any,
    dtype: Any,
    *,
    strides: Shape | None = None,
    owner: object = None,
    readonly: bool = False,
) -> DeviceArray:
    """An array over memory of another owner, such as a module's variable. `owner` is kept alive with it."""
    extents = layout.as_shape(shape)
    kind = as_dtype(dtype)
    steps = layout.contiguous(extents, kind.itemsize) if strides is None else tuple(strides)
    low, high = layout.span(extents, steps, kind.itemsize)
    span = (int(pointer) + low, int(pointer) + high)
    allocation = Allocation(context, int(pointer), Uses(context, Stream.of(context, stream)), owner, span)
    return DeviceArray(allocation, int(pointer), extents, steps, kind, readonly)


def wrap(context: Context, stream: Any, exporter: Any) -> DeviceArray:
    """An array over another library's memory, without a copy, from `__dlpack__` or `__cuda_array_interface__`.

    `stream` waits for the exporter's work, and the exporter is kept until work on the array is done. On the simulated
    device this takes arrays of the CPU. Raises TypeError for what exports nothing, DeviceMismatch for another device's,
    GradientError for a torch tensor that records gradients.
    """
    if isinstance(exporter, DeviceArray):
        if exporter.context.same_device(context):
            return exporter
        numbers = exporter.context.told_apart(context)
        raise DeviceMismatch(f"{exporter.summary} is not of {context.spec}{numbers}: array() copies it there")
    if getattr(exporter, "requires_grad", False) is True:
        raise GradientError(
            f"wrap() was given a {type(exporter).__name__} of shape {tuple(exporter.shape)} that records gradients, "
            "and writes through the array would be missing from them: wrap its .detach(), or use the ops of "
            "cudakit.torch, which have gradients"
        )
    on = Stream.of(context, stream)
    imported = interop.take(context, on, exporter)
    uses = Uses(context, on)
    low, high = layout.span(imported.shape, imported.strides, imported.dtype.itemsize)
    span = (imported.pointer + low, imported.pointer + high)
    allocation = Allocation(context, imported.pointer, uses, imported.owner, span)
    try:
        interop.keep(context, allocation, uses, imported)
        kind = as_dtype(imported.dtype)
    except BaseException:
        allocation.close()
        raise
    return DeviceArray(allocation, imported.pointer, imported.shape, imported.strides, kind, imported.readonly)
