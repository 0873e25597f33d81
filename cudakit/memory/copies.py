"""Copies and fills between strided layouts, made of the driver's linear and 2-D copies and fills.

A copy between two layouts of one shape is split into equal 2-D copies (`layout.plan`). A few are queued directly.
If there are many, the host gathers: host data is made contiguous first; device data is read as one span and rearranged
on the host, which waits for the stream. More than MOST copies into one destination raise ValueError.

Pageable host memory: the driver stages it, so the host array has been read, or is complete, when the call returns.
Pinned memory is read and written later, in stream order, and kept alive until then.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.memory import layout
from cudakit.memory.layout import CopyPlan, Shape
from cudakit.memory.pinned import is_pinned

#: Up to this many 2-D copies are queued directly from or to a strided host array.
FEW = 8
#: Up to this many 2-D copies are queued to read a strided device array; beyond that, its whole span is read.
MANY = 1024
#: More copies than this into one destination raise ValueError.
MOST = 65536

_FILL_BLOCK = 1 << 16
_BATCHES_FROM = 12080  # the first driver version with batches of copies


def _plan(context: Context, shape: Shape, itemsize: int, destination: Shape, source: Shape) -> CopyPlan | None:
    return layout.plan(shape, itemsize, destination, source, max_pitch=context.attribute("MAX_PITCH"))


def _run(
    context: Context, stream: Any, plan: CopyPlan, destination: int, source: int, *, to_host: bool, from_host: bool
) -> None:
    """Queue a plan on a stream (a driver handle), between two addresses of the host or the device."""
    driver = context.driver
    if plan.rows == 1:
        routine = "cuMemcpyHtoDAsync" if from_host else "cuMemcpyDtoHAsync" if to_host else "cuMemcpyDtoDAsync"
        for to, from_ in plan.offsets():
            context.call(routine, destination + to, source + from_, plan.width, stream)
        return
    kinds = driver.CUmemorytype
    copy = driver.CUDA_MEMCPY2D()
    copy.srcMemoryType = kinds.CU_MEMORYTYPE_HOST if from_host else kinds.CU_MEMORYTYPE_DEVICE
    copy.dstMemoryType = kinds.CU_MEMORYTYPE_HOST if to_host else kinds.CU_MEMORYTYPE_DEVICE
    copy.srcPitch = plan.source_pitch
    copy.dstPitch = plan.destination_pitch
    copy.WidthInBytes = plan.width
    copy.Height = plan.rows
    for to, from_ in plan.offsets():
        if from_host:
            copy.srcHost = source + from_
        else:
            copy.srcDevice = driver.CUdeviceptr(source + from_)
        if to_host:
            copy.dstHost = destination + to
        else:
            copy.dstDevice = driver.CUdeviceptr(destination + to)
        context.call("cuMemcpy2DAsync", copy, stream)


@nvtx.range("copy H2D")
def host_to_device(context: Context, stream: Any, pointer: int, strides: Shape, host: npt.NDArray[Any]) -> None:
    """Queue a copy of a host array of any strides to device memory of the same shape at `pointer`."""
    itemsize = host.dtype.itemsize
    plan = _plan(context, host.shape, itemsize, strides, host.strides)
    if plan is None:
        return
    pinned = is_pinned(context, host)
    if context.captures:
        _expect_capturable(context, stream, host, plan, pinned)
    gathered = plan.count > FEW
    if gathered:
        if context.kind == "sim" and pinned:
            low, high = layout.span(host.shape, host.strides, itemsize)
            context.driver.simHostReads(host.ctypes.data + low, high - low)
        host = np.ascontiguousarray(host)
        plan = _few_enough(_plan(context, host.shape, itemsize, strides, host.strides), host.shape, strides)
    _run(context, stream, plan, pointer, host.ctypes.data, to_host=False, from_host=True)
    if gathered or pinned:
        context.in_flight.hold(stream, host)


@nvtx.range("copy D2H")
def device_to_host(
    context: Context, stream: Any, host: npt.NDArray[Any], pointer: int, strides: Shape, synchronize: Callable[[], None]
) -> None:
    """Queue a copy of device memory to a host array of any strides. synchronize: called if the host has to gather."""
    shape, itemsize = host.shape, host.dtype.itemsize
    plan = _plan(context, shape, itemsize, host.strides, strides)
    if plan is None:
        return
    pinned = is_pinned(context, host)
    if context.captures:
        _expect_capturable(context, stream, host, plan, pinned)
    if plan.count <= FEW:
        _run(context, stream, plan, host.ctypes.data, pointer, to_host=True, from_host=False)
        if pinned:
            context.in_flight.hold(stream, host)
        return
    gathered = np.empty(shape, host.dtype)
    plan = _plan(context, shape, itemsize, gathered.strides, strides)
    if plan is not None and plan.count <= MANY:
        _run(context, stream, plan, gathered.ctypes.data, pointer, to_host=True, from_host=False)
        synchronize()
        host[...] = gathered
        return
    low, high = layout.span(shape, strides, itemsize)
    raw = np.empty(high - low, np.uint8)
    context.call("cuMemcpyDtoHAsync", raw.ctypes.data, pointer + low, high - low, stream)
    synchronize()
    host[...] = np.ndarray(shape, host.dtype, raw, -low, strides)


def _expect_capturable(context: Context, stream: Any, host: npt.NDArray[Any], plan: CopyPlan, pinned: bool) -> None:
    """Raise GraphError if a graph could not repeat a copy of a host array."""
    if not pinned:
        context.captures.refuse(
            stream,
            "a copy from or to pageable host memory cannot be captured, because the host takes part in it; use a "
            "pinned array (device.pinned), or copy outside the capture",
        )
    elif plan.count > FEW:
        context.captures.refuse(
            stream,
            f"a copy of a host array of shape {host.shape} and strides {host.strides} cannot be captured, because the "
            f"host gathers its {plan.count} pieces; use a contiguous pinned array",
        )


@nvtx.range("copy D2D")
def device_to_device(
    context: Context, stream: Any, shape: Shape, itemsize: int, to: tuple[int, Shape], from_: tuple[int, Shape]
) -> bool:
    """Queue a copy within one device, between two (pointer, strides) that do not overlap.

    Returns False, and queues nothing, if the layouts need so many pieces that the copy should go through the host.
    """
    plan = _plan(context, shape, itemsize, to[1], from_[1])
    if plan is None:
        return True
    if plan.count > MANY:
        return False
    _run(context, stream, plan, to[0], from_[0], to_host=False, from_host=False)
    return True


def beside_kernels(
    context: Context, stream: Any, shape: Shape, itemsize: int, to: tuple[int, Shape], from_: tuple[int, Shape]
) -> None:
    """Queue a copy like `device_to_device`, by a copy engine if the driver can, so that it overlaps with kernels.

    The driver's other copies within a device use the multiprocessors: they wait until running kernels leave some free.
    Raises ValueError if the layouts need too many pieces.
    """
    plan = _plan(context, shape, itemsize, to[1], from_[1])
    if plan is None:
        return
    plan, driver = _few_enough(plan, shape, to[1]), context.driver
    if context.kind != "gpu" or _driver_version(context) < _BATCHES_FROM or context.captures.of(stream) is not None:
        _run(context, stream, plan, to[0], from_[0], to_host=False, from_host=False)
        return
    operations = []
    for target, source in plan.offsets():
        one = driver.CUDA_MEMCPY3D_BATCH_OP()
        for operand, address, pitch in (
            (one.src, from_[0] + source, plan.source_pitch),
            (one.dst, to[0] + target, plan.destination_pitch),
        ):
            operand.type = driver.CUmemcpy3DOperandType.CU_MEMCPY_OPERAND_TYPE_POINTER
            operand.op.ptr.ptr = driver.CUdeviceptr(address)
            operand.op.ptr.rowLength = pitch if plan.rows > 1 else 0
        one.extent.width, one.extent.height, one.extent.depth = plan.width, plan.rows, 1
        one.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        one.flags = driver.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE
        operations.append(one)
    context.call("cuMemcpy3DBatchAsync", len(operations), operations, 0, stream)


def _driver_version(context: Context) -> int:
    return int(context.call("cuDriverGetVersion"))


def _few_enough(plan: CopyPlan | None, shape: Shape, strides: Shape) -> CopyPlan:
    if plan is None or plan.count > MOST:
        raise ValueError(
            f"a destination of shape {shape} and strides {strides} takes {plan.count if plan else 0} separate copies, "
            f"at most {MOST} are queued; copy into a contiguous array, and rearrange it with a kernel"
        )
    return plan


@nvtx.range("fill")
def fill(context: Context, stream: Any, pointer: int, shape: Shape, strides: Shape, element: bytes) -> None:
    """Queue writing one element's bytes to every element of a layout that does not overlap itself."""
    itemsize = len(element)
    plan = layout.plan(shape, itemsize, strides, strides)
    if plan is None:
        return
    unit = _unit(pointer, plan, element, repeating=True)
    if unit:
        value = int.from_bytes(element[:unit], "little")
        for offset, _ in _few_enough(plan, shape, strides).offsets():
            _set(context, stream, unit, pointer + offset, plan.destination_pitch, value, plan.width, plan.rows)
        return
    # Doubling starts from a block of host memory, which would be freed before a captured graph runs.
    if plan.rows == 1 and plan.count == 1 and context.captures.of(stream) is None:
        _fill_by_doubling(context, stream, pointer + plan.destination_offset, plan.width, element)
        return
    # One memset per word of the element: that word's column over all elements.
    plan = _few_enough(layout.plan(shape, itemsize, strides, strides, absorb=False), shape, strides)
    unit = _unit(pointer, plan, element, repeating=False)
    for place in range(0, itemsize, unit):
        value = int.from_bytes(element[place : place + unit], "little")
        for offset, _ in plan.offsets():
            _set(context, stream, unit, pointer + offset + place, plan.destination_pitch, value, unit, plan.rows)


def _unit(pointer: int, plan: CopyPlan, element: bytes, *, repeating: bool) -> int:
    """Return the widest word (4, 2 or 1 bytes) that divides every address of the fill, or 0.

    repeating: all words of the element must be equal.
    """
    steps = math.gcd(pointer, plan.width, plan.destination_pitch, plan.destination_offset, len(element))
    steps = math.gcd(steps, *(stride for _, stride, _ in plan.outer))
    for unit in (4, 2, 1):
        if steps % unit == 0 and (not repeating or element == element[:unit] * (len(element) // unit)):
            return unit
    return 0


def _set(context: Context, stream: Any, unit: int, pointer: int, pitch: int, value: int, width: int, rows: int) -> None:
    """Queue a memset of `rows` rows of `width` bytes, in words of `unit` bytes."""
    if rows == 1:
        context.call(f"cuMemsetD{8 * unit}Async", pointer, value, width // unit, stream)
    else:
        context.call(f"cuMemsetD2D{8 * unit}Async", pointer, pitch, value, width // unit, rows, stream)


def _fill_by_doubling(context: Context, stream: Any, pointer: int, nbytes: int, element: bytes) -> None:
    """Fill contiguous memory with an element that no memset can write: copy one block from the host, then double it."""
    block = np.frombuffer(element * min(nbytes // len(element), max(_FILL_BLOCK // len(element), 1)), np.uint8)
    context.call("cuMemcpyHtoDAsync", pointer, block.ctypes.data, block.nbytes, stream)
    done = block.nbytes
    while done < nbytes:
        step = min(done, nbytes - done)
        context.call("cuMemcpyDtoDAsync", pointer + done, pointer, step, stream)
        done += step
