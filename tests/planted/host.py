"""Bugs of host code: memory freed too early, twice or never, and missing waits.

Not included: a pinned result read before its copy has run. A driver cannot see a read by the host; the simulated
device fills the destination with poison until the copy runs, so that the result is visibly wrong.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

import cudakit

from .catalogue import FOLDER, host

KERNELS = "host_kernels.cu"
N = 1000
VALUES = np.arange(N, dtype=np.float32)
GRID: dict[str, Any] = {"grid": 8, "block": 128}
VIEW = np.dtype([("data", "u8"), ("size", "i4")], align=True)

_kept: list[Any] = []


def kernel(device: cudakit.Device, name: str) -> cudakit.Kernel:
    return device.compile(FOLDER / KERNELS)[name]


@host("use after free", file=KERNELS)
def freed_then_launched(device: cudakit.Device, wrong: bool) -> None:
    """Launch with the address of a freed array"""
    x, y = device.array(VALUES), device.empty(N)
    pointer = ctypes.c_void_p(x.pointer)
    if wrong:
        x.close()
        device.synchronize()
    kernel(device, "scale").launch(device.default_stream, **GRID, args=(pointer, y, 3.0, N))
    device.synchronize()
    np.testing.assert_array_equal(y.numpy(), 3 * VALUES)


@host("use after free", file=KERNELS)
def struct_keeps_pointer(device: cudakit.Device, wrong: bool) -> None:
    """Device pointer in a struct whose array was garbage-collected"""
    x, y = device.array(VALUES), device.empty(N)
    view = np.zeros((), VIEW)
    view["data"], view["size"] = x.pointer, N
    if wrong:
        del x
        device.synchronize()
    kernel(device, "scale_view").launch(device.default_stream, **GRID, args=(view[()], y))
    device.synchronize()
    np.testing.assert_array_equal(y.numpy(), 2 * VALUES)


@host("use after free")
def copied_behind_free(device: cudakit.Device, wrong: bool) -> None:
    """Copy queued after its source was freed"""
    call, stream = device.context.call, device.default_stream
    x, y = device.array(VALUES), device.empty(N)
    source = x.pointer
    if wrong:
        x.close()  # OTHER
        call("cuMemcpyDtoDAsync", y.pointer, source, 4 * N, stream.handle)  # BUG
    else:
        call("cuMemcpyDtoDAsync", y.pointer, source, 4 * N, stream.handle)
        x.close()
    device.synchronize()


@host("double free")
def freed_twice(device: cudakit.Device, wrong: bool) -> None:
    """Memory freed twice"""
    pointer = device.context.call("cuMemAlloc", 4 * N)
    device.context.call("cuMemFree", pointer)  # OTHER
    if wrong:
        device.context.call("cuMemFree", pointer)  # BUG


@host("double free")
def freed_twice_in_order(device: cudakit.Device, wrong: bool) -> None:
    """Stream-ordered memory freed twice"""
    stream = device.default_stream
    pointer = device.context.call("cuMemAllocAsync", 4 * N, stream.handle)
    device.context.call("cuMemFreeAsync", pointer, stream.handle)  # OTHER
    if wrong:
        device.context.call("cuMemFreeAsync", pointer, stream.handle)  # BUG


@host("freed while in use")
def freed_on_other_stream(device: cudakit.Device, wrong: bool) -> None:
    """Memory freed on one stream while another stream's queued kernel uses it"""
    y, scale = device.empty(N), kernel(device, "scale")
    with device.stream() as first, device.stream() as second:
        pointer = device.context.call("cuMemAllocAsync", 4 * N, first.handle)
        device.context.call("cuMemsetD32Async", pointer, 0, N, first.handle)
        first.synchronize()
        y.stream.synchronize()
        scale.launch(first, **GRID, args=(ctypes.c_void_p(int(pointer)), y, 2.0, N))  # OTHER
        if not wrong:
            second.wait(first)
        device.context.call("cuMemFreeAsync", pointer, second.handle)  # BUG
        first.synchronize()
        second.synchronize()
        np.testing.assert_array_equal(y.numpy(first), 0)


@host("source changed in flight")
def pinned_refilled(device: cudakit.Device, wrong: bool) -> None:
    """Pinned buffer refilled while its copy is in flight"""
    stream, pinned, x = device.default_stream, device.pinned(N), device.empty(N)
    pinned[:] = VALUES
    x.copy_from(pinned, stream)  # BUG
    if not wrong:
        stream.synchronize()
    pinned[:] = -1
    stream.synchronize()
    np.testing.assert_array_equal(x.numpy(), VALUES)


@host("destination changed in flight")
def pinned_result_cleared(device: cudakit.Device, wrong: bool) -> None:
    """Pinned destination cleared after the copy into it was queued"""
    stream, pinned, x = device.default_stream, device.pinned(N), device.array(VALUES)
    if not wrong:
        pinned[:] = 0
    x.copy_to(pinned, stream)  # BUG
    if wrong:
        pinned[:] = 0
    stream.synchronize()
    np.testing.assert_array_equal(pinned, VALUES)


@host("race on pinned memory")
def pinned_shared_by_streams(device: cudakit.Device, wrong: bool) -> None:
    """One pinned buffer for the results of two streams"""
    x = device.array(VALUES)
    device.synchronize()
    pinned = [device.pinned(N), device.pinned(N)]
    with device.stream() as first, device.stream() as second:
        x.copy_to(pinned[0], first)  # OTHER
        x.copy_to(pinned[0 if wrong else 1], second)  # BUG
        first.synchronize()
        second.synchronize()


@host("race between streams")
def streams_not_ordered(device: cudakit.Device, wrong: bool) -> None:
    """Copy whose source is still being written by another stream's copy"""
    x, y = device.zeros(N), device.zeros(N)
    device.synchronize()
    pinned = device.pinned(N)
    pinned[:] = VALUES
    with device.stream() as first, device.stream() as second:
        x.copy_from(pinned, first)  # OTHER
        if not wrong:
            second.wait(first)
        y.copy_from(x, second)  # BUG
        first.synchronize()
        second.synchronize()
        np.testing.assert_array_equal(y.numpy(), VALUES)


@host("race between streams")
def constant_replaced(device: cudakit.Device, wrong: bool) -> None:
    """Copy to a __constant__ variable that a kernel on another stream still reads"""
    module = device.compile(FOLDER / KERNELS)
    factors = module.constant("factors")
    factors.copy_from(np.ones(4, np.float32))
    x, y, new = device.array(VALUES), device.empty(N), device.array(np.full(4, 2, np.float32))
    device.synchronize()
    with device.stream() as first, device.stream() as second:
        module["scale_by_constant"].launch(first, **GRID, args=(x, y, N))  # BUG, OTHER
        if not wrong:
            second.wait(first)
        factors.copy_from(new, second)  # BUG, OTHER
        first.synchronize()
        second.synchronize()
        np.testing.assert_array_equal(y.numpy(), VALUES)


@host("race between streams")
def variable_of_other_kernel(device: cudakit.Device, wrong: bool) -> None:
    """Kernel that reads a __device__ variable while another stream's kernel stores to it"""
    module = device.compile(FOLDER / KERNELS)
    y = device.empty(64)
    device.synchronize()
    with device.stream() as first, device.stream() as second:
        module["set_offsets"].launch(first, grid=1, block=64, args=(3.0,))  # BUG, OTHER
        if not wrong:
            second.wait(first)
        module["get_offsets"].launch(second, grid=1, block=64, args=(y,))  # BUG, OTHER
        first.synchronize()
        second.synchronize()
        np.testing.assert_array_equal(y.numpy(), 3 + np.arange(64))


@host("race between streams")
def counter_reset_early(device: cudakit.Device, wrong: bool) -> None:
    """Fill of a __device__ counter while a kernel on another stream still adds to it"""
    module = device.compile(FOLDER / KERNELS)
    counter = module.variable("counter")
    x = device.array(VALUES)
    counter.fill(0)
    device.synchronize()
    with device.stream() as first, device.stream() as second:
        module["count_large"].launch(first, **GRID, args=(x, 10.0, N))  # BUG, OTHER
        if not wrong:
            second.wait(first)
        counter.fill(0, second)  # BUG, OTHER
        first.synchronize()
        second.synchronize()
        assert counter.numpy() == 0


@host("race between streams")
def event_recorded_late(device: cudakit.Device, wrong: bool) -> None:
    """Wait for an event before it is recorded"""
    x, y = device.zeros(N), device.zeros(N)
    device.synchronize()
    with device.stream() as first, device.stream() as second, device.event() as ready:
        x.fill(7, first)  # OTHER
        if wrong:
            second.wait(ready)
            y.copy_from(x, second)  # BUG
            ready.record(first)
        else:
            ready.record(first)
            second.wait(ready)
            y.copy_from(x, second)
        first.synchronize()
        second.synchronize()
        np.testing.assert_array_equal(y.numpy(), 7)


@host("race between streams")
def graph_edge_missing(device: cudakit.Device, wrong: bool) -> None:
    """Graph whose capture misses a dependency"""
    x, y, z = device.zeros(N), device.zeros(N), device.zeros(N)
    device.synchronize()
    scale = kernel(device, "scale")
    with device.stream() as first, device.stream() as second:
        with device.capture(first) as graph:
            second.wait(first)
            scale.launch(first, **GRID, args=(x, y, 2.0, N))  # BUG, OTHER
            if not wrong:
                second.wait(first)
            z.copy_from(y, second)  # BUG, OTHER
            first.wait(second)
        with graph.instantiate() as ready:
            ready.launch(first)
            first.synchronize()


@host("used before its allocation")
def allocation_not_waited_for(device: cudakit.Device, wrong: bool) -> None:
    """Array used on a stream that does not wait for its allocation"""
    with device.stream() as first, device.stream() as second:
        x = device.zeros(N, stream=first)  # OTHER
        if not wrong:
            second.wait(first)
        x.fill(1, second)  # BUG
        first.synchronize()
        second.synchronize()
        x.close()


@host("race between streams")
def event_of_other_stream(device: cudakit.Device, wrong: bool) -> None:
    """Event recorded on the waiting stream instead of the producer's"""
    x, y = device.zeros(N), device.zeros(N)
    device.synchronize()
    with device.stream() as first, device.stream() as second, device.event() as ready:
        x.fill(7, first)  # OTHER
        ready.record(second if wrong else first)
        second.wait(ready)
        y.copy_from(x, second)  # BUG
        first.synchronize()
        second.synchronize()
        np.testing.assert_array_equal(y.numpy(), 7)


@host("race between streams")
def graph_branch_not_ordered(device: cudakit.Device, wrong: bool) -> None:
    """Replay of a graph while another stream still writes its input"""
    x, y = device.zeros(N), device.zeros(N)
    device.synchronize()
    with device.stream() as first, device.stream() as second:
        with device.capture(second) as graph:
            y.copy_from(x, second)  # BUG, OTHER
        replay = graph.instantiate()
        x.fill(7, first)  # BUG, OTHER
        if not wrong:
            second.wait(first)
        replay.launch(second)  # BUG, OTHER
        first.synchronize()
        second.synchronize()
        np.testing.assert_array_equal(y.numpy(), 7)


@host("use after free", file=KERNELS)
def pointer_before_growth(device: cudakit.Device, wrong: bool) -> None:
    """Pointer of an array that has since been replaced by a larger one"""
    x, y = device.array(VALUES), device.empty(N)
    pointer = ctypes.c_void_p(x.pointer)
    larger = device.zeros(2 * N)
    larger[:N].copy_from(x)
    x.close()
    device.synchronize()
    x = larger
    if not wrong:
        pointer = ctypes.c_void_p(x.pointer)
    kernel(device, "scale").launch(device.default_stream, **GRID, args=(pointer, y, 3.0, N))
    device.synchronize()
    np.testing.assert_array_equal(y.numpy(), 3 * VALUES)


@host("leak")
def array_kept(device: cudakit.Device, wrong: bool) -> None:
    """Array that outlives its device"""
    _kept.clear()
    x = device.array(VALUES)  # BUG
    _kept.append(x)
    if not wrong:
        _kept.pop().close()


@host("leak")
def memory_never_freed(device: cudakit.Device, wrong: bool) -> None:
    """Memory that is never freed"""
    pointer = device.context.call("cuMemAlloc", 4 * N)  # BUG
    if not wrong:
        device.context.call("cuMemFree", pointer)
