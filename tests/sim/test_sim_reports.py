"""Reports of the simulated device: their format, and reports on bugs of host code, each tested with a correct twin."""

from __future__ import annotations

import ctypes
import json
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import INVALID_VALUE, Host, address_of, start

import cudakit
from cudakit.sim.driver.order import overlap
from cudakit.sim.lockstep.memory import AddressSpace
from cudakit.sim.lockstep.report import KernelReport, Origin, Other, SourcePlace

ILLEGAL_STATE = cu.CUresult.CUDA_ERROR_ILLEGAL_STATE

# each thread, by `what`: 0 does nothing, 2 reads out[i], 4 adds to it atomically; any other value is stored there
PTX = b"""
.version 7.0
.target sm_75
.address_size 64

.visible .entry fill(.param .u64 out, .param .u32 what)
{
    .reg .pred %p<4>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [what];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra done;
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    setp.eq.u32 %p2, %r1, 2;
    @%p2 ld.global.u32 %r3, [%rd3];
    @%p2 bra done;
    setp.eq.u32 %p3, %r1, 4;
    @%p3 red.global.add.u32 [%rd3], 1;
    @%p3 bra done;
    st.global.u32 [%rd3], %r1;
done:
    ret;
}
"""

# half of the lanes access shared memory, the other half global memory
MIXED = """
__global__ void mixed(float* data)
{
    __shared__ float tile[64];
    float* where = threadIdx.x % 2 ? data + threadIdx.x : tile + threadIdx.x;
    *(volatile float*)where = 1.0f;
}
"""

HOARD = """
__global__ void hoard(int keep)
{
    int* mine = (int*)malloc(16);
    mine[0] = keep;
    if (!mine[0])
        free(mine);
}
"""

# writes the second half of an array, and adds up the whole array
PAIR = """
__global__ void half(float* data)
{
    data[32 + threadIdx.x] = 1.0f;
}

__global__ void total(const float* data, float* sums)
{
    float sum = 0.0f;
    for (int i = 0; i < 64; ++i)
        sum += data[i];
    *sums = sum;
}
"""

OVERRUN = """
__device__ void put(float* data, int i) { data[i] = 1.0f; }

__global__ void overrun(float* data, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        put(data, i);
}
"""


def here() -> int:
    """Return the line number of the call."""
    return sys._getframe(1).f_lineno


def place_of(line: int) -> str:
    return f"{__file__}:{line}"


# ---- format ----


def test_a_report_says_what_who_where_against_what_and_in_which_memory() -> None:
    space = AddressSpace()
    line = here() + 1
    allocation = space.allocate(400, "device", Origin(__file__, line))
    report = KernelReport(
        "global memory race",
        "store of 4 bytes to what another block loads",
        "_Z3addPf",
        block=(1, 0, 0),
        thread=(3, 0, 0),
        lanes=29,
        places=(
            SourcePlace("add.cuh", 4, "    data[i] = 1;", "_Z3putPfi"),
            SourcePlace("add.cu", 9, "  put(data, i);"),
        ),
        others=(Other("global load", (0, 0, 0), (5, 0, 0), (SourcePlace("add.cu", 12, "  y = data[i];"),)),),
        allocation=allocation,
        notes=["blocks run in any order"],
    )
    assert str(report) == (
        "data race: store of 4 bytes to what another block loads\n"
        "  kernel add, block (1, 0, 0), thread (3, 0, 0) and 28 more lanes\n"
        "  at add.cuh:4 in put\n"
        "      data[i] = 1;\n"
        "  inlined from add.cu:9\n"
        "      put(data, i);\n"
        "  conflicts with the global load by block (0, 0, 0), thread (5, 0, 0)\n"
        "  at add.cu:12\n"
        "      y = data[i];\n"
        f"  device allocation of 400 bytes at {allocation.address:#x}, made at {place_of(line)}\n"
        '      allocation = space.allocate(400, "device", Origin(__file__, line))\n'
        "  blocks run in any order"
    )
    assert (report.file, report.line, report.text) == ("add.cuh", 4, "    data[i] = 1;")
    told = json.loads(json.dumps(report.as_dict()))
    assert (told["kind"], told["name"], told["line"], told["lanes"]) == ("global memory race", "add", 4, 29)
    assert told["others"][0]["thread"] == [5, 0, 0]
    assert told["others"][0]["places"][0]["line"] == 12
    assert told["allocation"]["made"]["line"] == line
    assert told["allocation"]["freed"] is None


def test_a_report_does_not_tell_of_a_free_after_it() -> None:
    space = AddressSpace()
    allocation = space.allocate(4, "device", "by the test")
    before = KernelReport("out of bounds", "...", "k", allocation=allocation)
    space.free(allocation.address, "later")
    after = KernelReport("use after free", "...", "k", allocation=allocation)
    assert "freed" not in str(before)
    assert str(after).endswith("made by the test\n  freed later")


def test_without_source_a_report_names_the_instruction() -> None:
    report = KernelReport("trap", "the kernel executed a trap", "k", instruction="trap;")
    assert str(report).splitlines()[1:] == [
        "  kernel k, block (0, 0, 0), thread (0, 0, 0)",
        "  at PTX instruction trap;",
    ]
    assert report.file is None


def test_a_kernels_fault_in_full(sim: cudakit.Device) -> None:
    kernel = sim.compile(source=OVERRUN, name="overrun.cu")["overrun"]
    stream = sim.stream()
    line = here() + 1
    data = sim.zeros(100, np.float32, stream=stream)
    launch = here() + 1
    kernel.launch(stream, grid=1, block=128, args=(data, 128))
    with pytest.raises(cudakit.DeviceFault) as caught:
        stream.synchronize()
    report = caught.value.report
    assert str(report) == (
        f"out-of-bounds access: global store of 4 bytes at {data.pointer + 400:#x}, 0 bytes past the end of the device "
        "allocation of 400"
        " bytes\n"
        "  kernel overrun, block (0, 0, 0), thread (100, 0, 0) and 27 more lanes up to thread (127, 0, 0)\n"
        f"  launched at {place_of(launch)}\n"
        "  at overrun.cu:2 in put\n"
        "      __device__ void put(float* data, int i) { data[i] = 1.0f; }\n"
        "  inlined from overrun.cu:8\n"
        "      put(data, i);\n"
        f"  device allocation of 400 bytes at {data.pointer:#x}, made at {place_of(line)}, passed as parameter 0"
        " (`data`)\n"
        "      data = sim.zeros(100, np.float32, stream=stream)"
    )
    assert str(caught.value).startswith(
        f"cuStreamSynchronize failed with CUDA_ERROR_ILLEGAL_ADDRESS (700):\n{report}\n"
    )
    with pytest.raises(cudakit.ContextLost) as again:
        stream.synchronize()
    assert again.value.report is report
    assert "lost after an earlier failure" in str(again.value)


def test_lanes_of_many_blocks_that_do_the_same_are_one_report(sim: cudakit.Device) -> None:
    kernel = sim.compile(source=OVERRUN, name="overrun.cu")["overrun"]
    data = sim.zeros(100, np.float32)
    kernel.launch(sim.default_stream, grid=9, block=(16, 2), args=(data, 2**20))
    with pytest.raises(cudakit.DeviceFault) as caught:
        sim.synchronize()
    report = caught.value.report
    assert report.who() == (
        "kernel overrun, block (6, 0, 0), thread (4, 0, 0) and 87 more lanes in 3 blocks, up to block (8, 0, 0)"
    )


def test_the_lane_named_is_the_one_at_fault_where_lanes_mean_several_spaces(sim: cudakit.Device) -> None:
    kernel = sim.compile(source=MIXED, name="mixed.cu")["mixed"]
    data = sim.zeros(40, np.float32)
    kernel.launch(sim.default_stream, grid=1, block=64, args=(data,))
    with pytest.raises(cudakit.DeviceFault) as caught:
        sim.synchronize()
    report = caught.value.report
    assert report.thread == (41, 0, 0)
    assert report.who().endswith("and 11 more lanes up to thread (63, 0, 0)")


def test_a_copy_out_of_bounds_names_the_call_and_the_array() -> None:
    host = start()
    line = here() + 1
    pointer = host.driver.cuMemAlloc(16)[1]
    data = np.zeros(17, np.uint8)
    assert host.driver.cuMemcpyHtoD(pointer, data, 17) == (INVALID_VALUE,)
    assert str(host.driver.simFailureReport()) == (
        f"out-of-bounds access: 17 bytes at {int(pointer):#x}, of which the last 1 byte is past the end of the device "
        "allocation of"
        " 16 bytes\n"
        "  host call cuMemcpyHtoD\n"
        f"  at {place_of(line + 2)}\n"
        "      assert host.driver.cuMemcpyHtoD(pointer, data, 17) == (INVALID_VALUE,)\n"
        f"  device allocation of 16 bytes at {int(pointer):#x}, made at {place_of(line)}\n"
        "      pointer = host.driver.cuMemAlloc(16)[1]"
    )
    # a failure without a report clears the previous report
    assert host.driver.cuMemcpyHtoD(pointer, data[:3], 4) == (INVALID_VALUE,)
    assert host.driver.simFailureReport() is None


# ---- double free ----


def free_twice(host: Host, kind: str) -> tuple[int, int, int, Any]:
    """Return the lines of the allocation, the first and the second free, and the second free's result."""
    driver = host.driver
    if kind == "device":
        line = here() + 1
        pointer = driver.cuMemAlloc(64)[1]
        driver.cuMemFree(pointer)
        return line, line + 1, line + 3, driver.cuMemFree(pointer)
    if kind == "pinned":
        line = here() + 1
        pointer = driver.cuMemHostAlloc(64, 0)[1]
        driver.cuMemFreeHost(pointer)
        return line, line + 1, line + 3, driver.cuMemFreeHost(pointer)
    line = here() + 1
    pointer = driver.cuMemAllocAsync(64, 0)[1]
    driver.cuMemFreeAsync(pointer, 0)
    if kind == "pool, freed":
        driver.cuCtxSynchronize()
    return line, line + 1, line + 4, driver.cuMemFreeAsync(pointer, 0)


@pytest.mark.parametrize("kind", ["device", "pinned", "pool, queued", "pool, freed"])
def test_a_double_free_names_the_allocation_and_both_frees(kind: str) -> None:
    host = start(checks=())  # always on
    made, first, second, answer = free_twice(host, kind)
    assert answer == (INVALID_VALUE,)
    report = host.driver.simFailureReport()
    assert report is not None
    assert report.kind == "double free"
    if kind in ("device", "pinned"):
        second -= 1
    assert (report.file, report.line) == (__file__, second)
    assert [place.line for other in report.others for place in other.places] == [first]
    assert f"made at {place_of(made)}" in str(report)
    assert "conflicts with the first free\n" in str(report)
    assert host.driver.simStats().allocations == 0


def test_a_double_free_by_a_finalizer_is_told_at_the_next_wait(sim: cudakit.Device) -> None:
    array = sim.zeros(4)
    sim.context.call("cuMemFreeAsync", array.pointer, sim.default_stream.handle)
    line = here() + 1
    array.close()
    with pytest.raises(cudakit.CudaError) as caught:
        sim.synchronize()
    assert (caught.value.report.kind, caught.value.report.line) == ("double free", line)
    sim.synchronize()  # reported once


def test_arrays_closed_twice_are_freed_once(sim: cudakit.Device) -> None:
    array = sim.zeros(4)
    view = array[1:]
    array.close()
    array.close()
    view.close()
    del array, view
    sim.synchronize()


# ---- leaks ----


@pytest.mark.parametrize("end", ["release", "reset", "destroy"])
def test_what_a_context_still_holds_at_its_end_is_told_by_the_line_that_made_it(end: str) -> None:
    host = start()
    driver = host.driver
    own = host.cuCtxCreate(None, 0, 0) if end == "destroy" else None
    lines = [here() + 1, here() + 3, here() + 4, here() + 5]
    for _ in range(3):
        driver.cuMemAlloc(100)
    driver.cuMemHostAlloc(50, 0)
    driver.cuStreamCreate(0)
    driver.cuModuleLoadData(PTX)
    host.cuMemFree(host.cuMemAlloc(10))
    freed_later = host.cuMemAllocAsync(10, 0)
    host.cuMemFreeAsync(freed_later, 0)
    if end == "destroy":
        host.cuCtxDestroy(own)
    else:
        getattr(host, f"cuDevicePrimaryCtx{end.capitalize()}")(0)
    lines[0] += 1
    assert [str(held) for held in driver.simLeaks()] == [
        f"3 x device memory of 300 bytes in total, made at {place_of(lines[0])}",
        f"pinned host memory of 50 bytes, made at {place_of(lines[1])}",
        f"stream, made at {place_of(lines[2])}",
        f"module, made at {place_of(lines[3])}",
    ]
    report = driver.simLastReport()
    assert report is not None
    assert (report.kind, report.line) == ("leak", lines[0])
    assert report.as_dict()["held"][0]["count"] == 3
    assert driver.simStats().allocations == 0


def test_what_kernels_allocate_and_leave_is_a_leak() -> None:
    device = opened()
    kernel = device.compile(source=HOARD, name="hoard.cu")["hoard"]
    kernel.launch(device.default_stream, grid=1, block=8, args=(0,))
    device.synchronize()
    kernel.launch(device.default_stream, grid=1, block=8, args=(1,))
    (caught,) = closing(device)
    (held,) = caught.message.report.held
    assert str(held) == (
        "8 x memory of the device heap of 128 bytes in total, made by malloc() in the kernel at hoard.cu:4"
    )


def test_leaks_are_told_of_only_where_they_are_checked() -> None:
    host = start(checks=["streams"])
    host.cuMemAlloc(100)
    host.cuDevicePrimaryCtxRelease(0)
    assert host.driver.simLastReport() is None
    assert len(host.driver.simLeaks()) == 1


def opened(**options: Any) -> cudakit.Device:
    return cudakit.Device("sim", fresh=True, **options)


def closing(device: cudakit.Device) -> list[Any]:
    """Return the warnings of closing a device."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        device.close()
    return caught


def test_arrays_alive_when_the_device_is_closed_are_warned_of() -> None:
    device = opened()
    line = here() + 1
    kept = [device.zeros(100) for _ in range(5)]
    stream = device.stream()
    event = stream.record()
    pinned = device.pinned(10)
    (caught,) = closing(device)
    assert caught.category is cudakit.LeakWarning
    assert caught.filename == __file__
    report = caught.message.report
    assert [(held.what, held.count, held.bytes, held.place.line) for held in report.held] == [
        ("device memory", 5, 2000, line),
        ("pinned host memory", 1, 40, line + 3),
        ("stream", 1, 0, line + 1),
        ("event", 1, 0, line + 2),
    ]
    assert f"5 x device memory of 2000 bytes in total, made at {place_of(line)}\n      kept = [" in str(report)
    # they were freed nevertheless
    assert device.context.driver.simStats().allocations == 0
    assert device.context.driver.simLeaks() == []
    assert len(kept) == 5
    assert (stream.closed, event.alive, pinned.size) == (False, False, 10)


def test_what_is_closed_or_rubbish_or_the_devices_own_is_no_leak() -> None:
    device = opened()
    kernel = device.compile(source=OVERRUN, name="overrun.cu")["overrun"]
    array = device.array(np.zeros(4, np.float32))
    array.close()
    with device.stream() as stream, device.event() as event:
        event.record(stream)
        on_closed = device.zeros(4, stream=stream)
    on_closed.close()
    cycle: list[Any] = [device.zeros(4)]
    cycle.append(cycle)
    del cycle
    default = device.default_stream
    source = device.pinned(4)
    source[:] = 1
    target = device.empty(4)
    target.copy_from(source)  # in flight: tracked by an event of cudakit
    target.close()
    del source, target
    assert closing(device) == []
    assert kernel
    assert default


def test_a_block_that_an_exception_ends_tells_of_no_leak() -> None:
    kept = []

    def fails() -> None:
        with opened() as device:
            kept.append(device.zeros(4))
            raise KeyError

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(KeyError):
            fails()
    assert caught == []
    assert len(kept) == 1


def test_leaks_can_be_errors_and_the_device_is_closed_then() -> None:
    device = opened()
    array = device.zeros(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", cudakit.LeakWarning)
        with pytest.raises(cudakit.LeakWarning, match="16 bytes"):
            device.close()
    assert device.context.closed
    assert device.context.driver.simStats().contexts == 0
    assert array is not None


def test_leaks_are_told_of_by_the_last_device_of_a_driver_only() -> None:
    first = opened()
    second = cudakit.Device(cudakit.Context(first.context._opened))
    array = first.zeros(4)
    assert closing(first) == []
    del array
    kept = second.zeros(4)
    assert len(closing(second)) == 1
    assert kept is not None


def test_no_leak_is_told_of_with_the_check_off() -> None:
    device = opened(checks=["race", "streams"] if "race" in cudakit.sim.ALL_CHECKS else ["streams"])
    array = device.zeros(4)
    assert closing(device) == []
    assert array is not None


def test_a_fault_that_nobody_waited_for_is_told_at_the_end() -> None:
    device = opened()
    kernel = device.compile(source=OVERRUN, name="overrun.cu")["overrun"]
    data = device.zeros(100, np.float32)
    kernel.launch(device.default_stream, grid=1, block=128, args=(data, 128))
    data.close()
    (caught,) = closing(device)
    assert caught.category is cudakit.UnseenFault
    assert caught.message.report.kind == "out of bounds"


# ---- the order of streams ----


class Streams:
    """Two streams, memory, and the kernel above, on a new driver."""

    def __init__(self, **options: Any) -> None:
        self.host = start(**options)
        self.driver = self.host.driver
        self.one, self.two = self.host.stream(), self.host.stream()
        self.kernel = self.host.cuModuleGetFunction(self.host.cuModuleLoadData(PTX), b"fill")

    def wait(self) -> None:
        """Make the second stream wait for the first."""
        event = self.host.event()
        self.host.cuEventRecord(event, self.one)
        self.host.cuStreamWaitEvent(self.two, event, 0)

    def launch(self, pointer: Any, stream: Any, what: int = 1) -> None:
        values = ((int(pointer), what), (ctypes.c_void_p, ctypes.c_uint32))
        self.host.cuLaunchKernel(self.kernel, 1, 1, 1, 4, 1, 1, 0, stream, values, 0)

    def told(self) -> list[str]:
        """Return the kinds of the reports, in order."""
        kinds = []
        while self.driver.cuCtxSynchronize()[0] == ILLEGAL_STATE:
            report = self.driver.simFailureReport()
            assert report is not None
            kinds.append(report.kind)
        self.host.cuCtxSynchronize()
        return kinds


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("use", ["copy", "fill", "kernel"])
def test_memory_freed_while_another_stream_uses_it(use: str, ordered: bool, order: str) -> None:
    it = Streams(order=order)
    pointer = it.host.cuMemAllocAsync(16, it.one)
    it.host.cuCtxSynchronize()
    line = here()
    if use == "copy":
        it.driver.cuMemcpyHtoDAsync(pointer, np.zeros(16, np.uint8), 16, it.one)
    elif use == "fill":
        it.driver.cuMemsetD8Async(pointer, 0, 16, it.one)
    else:
        it.launch(pointer, it.one)
    if ordered:
        it.wait()
    free = here() + 1
    it.driver.cuMemFreeAsync(pointer, it.two)
    assert it.told() == ([] if ordered else ["freed while in use"])
    assert it.driver.simStats().allocations == 0
    if not ordered:
        report = it.driver.simLastReport()
        assert report is not None
        assert report.line == free
        if use != "kernel":
            assert report.others[0].places[0].line in range(line, free)


def test_memory_of_a_pool_freed_at_once_while_it_is_used() -> None:
    it = Streams()
    pointer = it.host.cuMemAllocAsync(16, it.one)
    it.host.cuMemsetD8Async(pointer, 0, 16, it.one)
    assert it.driver.cuMemFree(pointer) == (ILLEGAL_STATE,)
    assert "freed while in use" in it.driver.simLastMessage()
    other = it.host.cuMemAllocAsync(16, it.one)
    it.host.cuMemsetD8Async(other, 0, 16, it.one)
    it.host.cuStreamSynchronize(it.one)
    it.host.cuMemFree(other)
    # freeing memory that is not from a pool waits
    third = it.host.cuMemAlloc(16)
    it.host.cuMemsetD8Async(third, 0, 16, it.one)
    it.host.cuMemFree(third)
    assert it.told() == []
    assert it.driver.simStats().allocations == 0


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("use", ["fill", "kernel"])
def test_memory_used_before_its_allocation(use: str, ordered: bool) -> None:
    it = Streams()
    pointer = it.host.cuMemAllocAsync(16, it.one)
    if ordered:
        it.wait()
    if use == "fill":
        it.host.cuMemsetD8Async(pointer, 0, 16, it.two)
    else:
        it.launch(pointer, it.two)
    assert it.told() == ([] if ordered else ["used before its allocation"])


def test_a_kernel_given_memory_that_was_freed_in_stream_order() -> None:
    it = Streams()
    pointer = it.host.cuMemAllocAsync(16, it.one)
    it.host.cuMemFreeAsync(pointer, it.one)
    it.launch(pointer, it.one, what=0)
    assert it.told() == ["use after free"]
    again = it.host.cuMemAllocAsync(16, it.one)
    it.host.cuMemFreeAsync(again, it.one)
    assert it.driver.cuMemsetD8Async(again, 0, 16, it.one) == (INVALID_VALUE,)
    report = it.driver.simFailureReport()
    assert report is not None
    assert report.kind == "use after free"
    assert "conflicts with the queued free" in str(report)


KERNELS = {"idle kernel": 0, "kernel": 1, "reading kernel": 2, "other kernel": 3, "atomic kernel": 4}
PAIRS = [
    ("write", "write", True),
    ("write", "read", True),
    ("read", "read", False),
    ("write", "write elsewhere", False),
    ("write", "kernel", True),
    ("write", "reading kernel", True),
    ("write", "idle kernel", False),
    ("write half", "kernel", True),
    ("write half", "reading kernel", True),
    ("write half", "idle kernel", False),
    ("read", "kernel", True),
    ("read", "atomic kernel", True),
    ("read", "reading kernel", False),
    ("read", "idle kernel", False),
    ("kernel", "other kernel", True),
    ("kernel", "kernel", False),  # the same values
    ("kernel", "reading kernel", True),
    ("kernel", "atomic kernel", True),
    ("kernel", "idle kernel", False),
    ("reading kernel", "reading kernel", False),
    ("atomic kernel", "atomic kernel", False),
]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "bad"), [*PAIRS, *((second, first, bad) for first, second, bad in PAIRS if first != second)]
)
def test_work_on_two_streams_and_the_same_bytes(first: str, second: str, bad: bool, ordered: bool) -> None:
    it = Streams()
    memory, other = it.host.upload(np.zeros(4, np.uint32)), it.host.cuMemAlloc(64)

    def do(what: str, stream: Any) -> None:
        if what == "write":
            it.host.cuMemsetD8Async(memory, 0, 16, stream)
        elif what == "write half":
            it.host.cuMemsetD8Async(memory, 0, 8, stream)
        elif what == "write elsewhere":
            it.host.cuMemsetD8Async(other, 0, 16, stream)
        elif what == "read":
            it.host.cuMemcpyDtoDAsync(int(other) + (0 if stream is it.one else 32), memory, 16, stream)
        else:
            it.launch(memory, stream, KERNELS[what])

    do(first, it.one)
    if ordered:
        it.wait()
    do(second, it.two)
    assert it.told() == (["race between streams"] if bad and not ordered else [])


def test_storing_what_is_there_conflicts_with_a_copy() -> None:
    it = Streams()
    memory = it.host.upload(np.ones(4, np.uint32))
    it.host.cuMemsetD8Async(memory, 0, 16, it.one)
    it.launch(memory, it.two, 1)  # runs first, and changes nothing
    assert it.told() == ["race between streams"]


@pytest.mark.parametrize(
    ("copy", "kernel", "bad"),
    [
        ("all", 0, True),  # assumed to use its arguments
        ("all", 2, True),
        ("half", 1, True),
        ("half", 2, False),  # its reads are unknown
    ],
)
def test_without_the_checks_of_kernels_what_they_change_is_known(copy: str, kernel: int, bad: bool) -> None:
    it = Streams(checks=["streams"])
    memory = it.host.upload(np.zeros(4, np.uint32))
    it.host.cuMemsetD8Async(memory, 0, 16 if copy == "all" else 8, it.one)
    it.launch(memory, it.two, kernel)
    assert it.told() == (["race between streams"] if bad else [])


def test_a_race_of_two_kernels_names_the_line_of_each_launch_and_of_the_access(sim: cudakit.Device) -> None:
    module = sim.compile(source=PAIR, name="pair.cu")
    data, sums = sim.zeros(64, np.float32), sim.zeros(1, np.float32)
    sim.synchronize()
    with sim.stream() as one, sim.stream() as two:
        for _ in range(2):  # so that later launches reuse a known one
            module["half"].launch(one, grid=1, block=32, args=(data,))
            module["total"].launch(one, grid=1, block=1, args=(data, sums))
        sim.synchronize()
        line = here() + 1
        module["half"].launch(one, grid=1, block=32, args=(data,))
        module["total"].launch(two, grid=1, block=1, args=(data, sums))
        with pytest.raises(cudakit.CudaError) as caught:
            sim.synchronize()
    report = caught.value.report
    assert report.kind == "race between streams"
    lines = {report.line, report.others[0].places[0].line}
    assert lines == {line, line + 1}
    (note,) = [note for note in report.notes if "both access" in note]
    assert "at <string>" not in str(report)
    assert note.startswith("both access 128 bytes; the first is byte 128 of the allocation, by a ")
    # the result of the kernel that ran second
    assert note.endswith(
        (
            "by a global store of kernel half at pair.cu:4\n      data[32 + threadIdx.x] = 1.0f;",
            "by a global load of kernel total at pair.cu:11\n      sum += data[i];",
        )
    )


def test_an_uninitialised_read_says_what_the_kernel_did_not_wait_for(sim: cudakit.Device) -> None:
    module = sim.compile(source=PAIR, name="pair.cu")
    data, sums = sim.empty(64, np.float32), sim.zeros(1, np.float32)
    sim.synchronize()
    with sim.stream() as stream:
        line = here() + 1
        data.copy_from(np.ones(64, np.float32))
        module["total"].launch(stream, grid=1, block=1, args=(data, sums))
        with pytest.raises(cudakit.DeviceFault) as caught:
            stream.synchronize()
    report = caught.value.report
    assert (report.kind, report.line) == ("uninitialised read", 11)
    assert report.others[0].places[0].line == line
    assert "conflicts with the cuMemcpyHtoDAsync on the default stream of sim:sm_90a\n" in str(report)


def test_a_race_names_both_lines_and_a_wait_that_did_nothing() -> None:
    it = Streams()
    memory, event = it.host.cuMemAlloc(16), it.host.event()
    wait = here() + 1
    it.driver.cuStreamWaitEvent(it.two, event, 0)
    it.driver.cuMemsetD8Async(memory, 0, 16, it.one)
    it.driver.cuMemcpyDtoHAsync(address_of(it.host.pinned(4)), memory, 16, it.two)
    assert it.told() == ["race between streams"]
    report = it.driver.simLastReport()
    assert report is not None
    assert (report.line, report.others[0].places[0].line) == (wait + 2, wait + 1)
    assert f"  the wait for an event at {place_of(wait)} had no effect: the event had not been recorded" in str(report)


def test_a_loop_makes_one_report() -> None:
    it = Streams()
    memory = it.host.cuMemAlloc(16)
    for _ in range(50):
        it.host.cuMemsetD8Async(memory, 0, 16, it.one)
        it.host.cuMemsetD8Async(memory, 0, 16, it.two)
    assert len(it.told()) <= 2  # in both orders


def test_the_halves_of_an_array_may_be_worked_on_at_once() -> None:
    # copy in and compute in pieces: each piece is ordered by its stream, and all share one allocation
    it = Streams()
    memory = int(it.host.cuMemAlloc(32))
    source = it.host.pinned(8, np.uint32)
    for stream, at in ((it.one, 0), (it.two, 16)):
        it.host.cuMemcpyHtoDAsync(memory + at, address_of(source) + at, 16, stream)
        it.launch(memory + at, stream)
        it.host.cuMemcpyDtoHAsync(address_of(source) + at, memory + at, 16, stream)
    assert it.told() == []
    assert (source == 1).all()


def test_the_legacy_stream_is_in_order_with_blocking_streams() -> None:
    it = Streams()
    blocking = it.host.stream(0)
    memory = it.host.cuMemAllocAsync(16, 0)
    it.host.cuMemsetD8Async(memory, 0, 16, blocking)
    it.launch(memory, 0)
    it.host.cuMemcpyDtoDAsync(it.host.cuMemAlloc(16), memory, 16, blocking)
    it.host.cuMemFreeAsync(memory, 0)
    assert it.told() == []


def test_columns_of_a_matrix_do_not_overlap() -> None:
    left, right, middle = (0, 4, 3, 8), (4, 4, 3, 8), (2, 4, 3, 8)
    assert not overlap(left, right)
    assert overlap(left, middle)
    assert overlap(middle, right)
    assert overlap(left, (17, 1, 1, 1))
    assert not overlap(left, (20, 4, 1, 4))
    assert not overlap(left, (24, 4, 1, 4))


def test_a_pinned_destination_that_the_host_writes_to_in_flight() -> None:
    it = Streams()
    memory, out = it.host.upload(np.arange(4, dtype=np.uint32)), it.host.pinned(4, np.uint32)
    line = here() + 1
    it.driver.cuMemcpyDtoHAsync(address_of(out), memory, 16, it.one)
    out[2] = 7
    assert it.told() == ["destination changed in flight"]
    report = it.driver.simLastReport()
    assert report is not None
    assert report.line == line
    # both copies, to different places, are tracked
    second = it.host.pinned(4, np.uint32)
    for to in (out, second):
        it.host.cuMemcpyDtoHAsync(address_of(to), memory, 16, it.one)
    second[0] = 7
    assert it.told() == ["destination changed in flight"]


def test_a_pinned_destination_may_be_written_twice_in_order() -> None:
    it = Streams()
    memory, out = it.host.upload(np.arange(4, dtype=np.uint32)), it.host.pinned(4, np.uint32)
    it.host.cuMemcpyDtoHAsync(address_of(out), memory, 16, it.one)
    it.host.cuMemcpyDtoHAsync(address_of(out), memory, 16, it.one)
    assert it.told() == []
    assert out.tolist() == [0, 1, 2, 3]


def test_a_mistake_does_not_keep_pinned_memory_from_being_freed() -> None:
    it = Streams()
    source = it.host.pinned(4, np.uint32)
    source[:] = 1
    it.host.cuMemcpyHtoDAsync(it.host.cuMemAlloc(16), address_of(source), 16, it.one)
    source[:] = 2
    assert it.driver.cuMemFreeHost(address_of(source)) == (ILLEGAL_STATE,)
    assert it.driver.simStats().pinned == 0


def test_a_kernel_on_pinned_memory_that_a_copy_of_another_stream_fills() -> None:
    it = Streams()
    out, memory = it.host.pinned(4, np.uint32), it.host.upload(np.zeros(4, np.uint32))
    it.host.cuMemcpyDtoHAsync(address_of(out), memory, 16, it.one)
    it.launch(address_of(out), it.two, what=2)
    assert it.told() == ["race on pinned memory"]
    it.host.cuMemcpyDtoHAsync(address_of(out), memory, 16, it.one)
    it.wait()
    it.launch(address_of(out), it.two)
    assert it.told() == []
    assert (out == 1).all()


def test_a_result_that_cudakit_reads_while_its_copy_is_in_flight(sim: cudakit.Device) -> None:
    data, out = sim.array(np.arange(128.0).reshape(16, 8)), sim.pinned((16, 8), np.float64)
    target = sim.empty((16, 2, 2), np.float64)
    for waits in (True, False):
        data.copy_to(out)
        if waits:
            sim.synchronize()
        # many pieces, so the host gathers them
        line = here() + 1
        target.copy_from(out.reshape(16, 2, 4)[::-1, :, ::2])
        if waits:
            sim.synchronize()
    with pytest.raises(cudakit.CudaError) as caught:
        sim.synchronize()
    assert (caught.value.report.kind, caught.value.report.line) == ("result read in flight", line)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("fill"), st.integers(0, 3)),
            st.tuples(st.just("record"), st.integers(0, 3), st.integers(0, 1)),
            st.tuples(st.just("wait"), st.integers(0, 3), st.integers(0, 1)),
        ),
        max_size=12,
    )
)
@settings(max_examples=max(150, settings.default.max_examples))
def test_unordered_fills_are_told_of_and_ordered_ones_are_not(steps: list[tuple[Any, ...]]) -> None:
    """Compared with the definition of happens-before: stream order, events, and the legacy stream's rule."""
    host = start()
    memory = host.cuMemAlloc(16)
    # the legacy stream, a blocking one, and two non-blocking ones
    streams = [0, host.stream(0), host.stream(), host.stream()]
    events = [host.event(), host.event()]
    before: list[set[int]] = [set() for _ in streams]  # fills complete before the stream's next operation
    recorded: list[set[int]] = [set(), set()]
    fills: list[set[int]] = []
    for step in steps:
        what, on = step[0], step[1]
        if on == 0:
            before[0] |= before[1]
        elif on == 1:
            before[1] |= before[0]
        if what == "fill":
            host.cuMemsetD8Async(memory, 0, 16, streams[on])
            fills.append(set(before[on]))
            before[on] |= {len(fills) - 1}
        elif what == "record":
            host.cuEventRecord(events[step[2]], streams[on])
            recorded[step[2]] = set(before[on])
        else:
            host.cuStreamWaitEvent(streams[on], events[step[2]], 0)
            before[on] |= recorded[step[2]]
    unordered = any(first not in fills[second] for second in range(len(fills)) for first in range(second))
    told = host.driver.cuCtxSynchronize()[0] == ILLEGAL_STATE
    assert told == unordered
