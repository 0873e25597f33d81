"""Functions that make device and pinned arrays: of values, from host arrays, or over existing memory."""

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
    """Return a new array with every element set to `value`.

    Args:
        context: The device's context.
        stream: The home stream.
        shape: Extents, in elements.
        value: A number.
        dtype: The dtype; that of `value`, as numpy sees it, if None.
    """
    kind = np.asarray(value).dtype if dtype is None else dtype
    made = empty(context, stream, shape, kind)
    try:
        return made.fill(value)
    except BaseException:
        made.close()
        raise


def zeros(context: Context, stream: Any, shape: Any, dtype: Any = np.float32) -> DeviceArray:
    """Return a new array of zeros; its arguments are those of `empty`."""
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
    """Return a new contiguous array with the contents of a numpy array, anything numpy converts, or a device array.

    The copy is queued on `stream`; `DeviceArray.copy_from` says when the source has been read.

    Args:
        context: The device's context.
        stream: The home stream, on which the copy is queued.
        source: The contents.
        dtype: Host data is converted to it; the source's own dtype if None.

    Raises:
        TypeError: If `source` is a device array of another dtype, which a copy cannot convert.
    """
    if isinstance(source, DeviceArray):
        if dtype is not None and as_dtype(dtype) != source.dtype:
            raise TypeError(f"a device array of {source.dtype} cannot be converted to {dtype} by a copy; use a kernel")
    else:
        source = np.asarray(source, None if dtype is None else as_dtype(dtype))
    made = empty(context, stream, source.shape, source.dtype)
    try:
        return made.copy_from(source)
    except BaseException:
        made.close()
        raise


def pinned(context: Context, shape: Any, dtype: Any = np.float32) -> npt.NDArray[Any]:
    """Return a numpy array in pinned host memory, with undefined contents; freed with its last view."""
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
    """Return an array over existing device memory, such as a module's variable.

    Args:
        context: The device's context.
        stream: The home stream.
        pointer: Address of the first element.
        shape: Extents, in elements.
        dtype: A numpy dtype, or a name of ml_dtypes.
        strides: In bytes; contiguous if None.
        owner: An object to keep alive as long as the array.
        readonly: Whether writing is rejected.
    """
    extents = layout.as_shape(shape)
    kind = as_dtype(dtype)
    steps = layout.contiguous(extents, kind.itemsize) if strides is None else tuple(strides)
    low, high = layout.span(extents, steps, kind.itemsize)
    span = (int(pointer) + low, int(pointer) + high)
    allocation = Allocation(context, int(pointer), Uses(context, Stream.of(context, stream)), owner, span)
    return DeviceArray(allocation, int(pointer), extents, steps, kind, readonly)


def wrap(context: Context, stream: Any, exporter: Any) -> DeviceArray:
    """Return an array over another library's memory, without a copy, by `__dlpack__` or `__cuda_array_interface__`.

    `stream` waits for the exporter's work. The exporter is kept alive until work on the array is done. The simulated
    device accepts arrays in host memory.

    Args:
        context: The device's context.
        stream: The home stream.
        exporter: An array of torch, CuPy, numpy or another library.

    Raises:
        TypeError: If the object has neither interface.
        DeviceMismatch: If the array is on another device.
        GradientError: If it is a torch tensor that records gradients.
    """
    if isinstance(exporter, DeviceArray):
        if exporter.context.same_device(context):
            return exporter
        numbers = exporter.context.told_apart(context)
        raise DeviceMismatch(f"{exporter.summary} is not on {context.spec}{numbers}; copy it there with array()")
    if getattr(exporter, "requires_grad", False) is True:
        raise GradientError(
            f"wrap() got a {type(exporter).__name__} of shape {tuple(exporter.shape)} that records gradients, which "
            "writes through the array would bypass; wrap its .detach(), or use the ops of cudakit.torch, which have "
            "gradients"
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
