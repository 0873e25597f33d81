"""The simulated driver as host code uses it: order, waits, contexts, rejected calls, faults, leaks."""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu
from simulated import INVALID_HANDLE, INVALID_VALUE, NON_BLOCKING, NOT_READY, OK, Host, start

from cudakit.sim import Driver
from cudakit.sim.chips.properties import CHIPS


@pytest.fixture
def host() -> Host:
    return start()


@pytest.fixture
def unchecked() -> Host:
    """A host without checks, for tests of the effects of host bugs that the checks would report."""
    return start(checks=())


# ---- getting started ----


def test_nothing_works_before_cuinit_nor_without_a_context() -> None:
    driver = Driver()
    assert driver.cuDeviceGetCount() == (cu.CUresult.CUDA_ERROR_NOT_INITIALIZED, None)
    driver.cuInit(0)
    assert driver.cuMemAlloc(16) == (cu.CUresult.CUDA_ERROR_INVALID_CONTEXT, None)
    assert "cuCtxSetCurrent" in driver.simLastMessage()


def test_results_are_the_bindings_own_types(host: Host) -> None:
    # code without int() must fail here as it would on a GPU
    assert isinstance(host.cuMemAlloc(16), cu.CUdeviceptr)
    assert isinstance(host.stream(), cu.CUstream)
    assert isinstance(host.event(), cu.CUevent)
    assert isinstance(host.cuCtxGetCurrent(), cu.CUcontext)
    assert host.driver.CUresult is cu.CUresult
    assert not hasattr(host.driver, "cuGraphCreate")


@pytest.mark.parametrize("arch", sorted(CHIPS))
def test_every_device_attribute_is_answered(arch: str) -> None:
    host = start(arch=arch)
    values = {a.name: host.cuDeviceGetAttribute(a, 0) for a in cu.CUdevice_attribute if not a.name.endswith("_MAX")}
    assert all(isinstance(value, int) for value in values.values())
    short = {name.removeprefix("CU_DEVICE_ATTRIBUTE_"): value for name, value in values.items()}
    major, minor = short["COMPUTE_CAPABILITY_MAJOR"], short["COMPUTE_CAPABILITY_MINOR"]
    assert f"sm_{major}{minor}" == arch
    assert short["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"] <= short["MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"]
    assert host.cuDeviceGetName(64, 0).split(b"\0")[0].startswith(b"Simulated")


def test_an_h200_is_what_the_default_device_looks_like(host: Host) -> None:
    def attribute(name: str) -> int:
        return int(host.cuDeviceGetAttribute(getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), 0))

    assert attribute("MULTIPROCESSOR_COUNT") == 132
    assert attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") == 232448
    assert attribute("L2_CACHE_SIZE") == 62914560


@pytest.mark.parametrize("arch", ["sm_13", "sm_90f", "sm_89a", "sm_90b"])
def test_an_unknown_architecture_is_refused(arch: str) -> None:
    with pytest.raises(ValueError, match="sm_90"):
        Driver(arch)


def test_error_names_and_texts(host: Host) -> None:
    assert host.cuGetErrorName(cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS) == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    assert host.cuGetErrorString(700) == b"an illegal memory access was encountered"
    assert all(host.cuGetErrorString(code) for code in cu.CUresult)
    assert host.driver.cuGetErrorName(12345)[0] == INVALID_VALUE


# ---- streams and events ----


@pytest.mark.parametrize("order", ["newest", "oldest", "random"])
def test_a_stream_keeps_its_own_order(order: str) -> None:
    host = start(order=order)
    pointer = host.cuMemAlloc(4)
    streams = [host.stream() for _ in range(3)]
    for value in range(20):
        host.cuMemsetD32Async(pointer, value, 1, streams[0])
        host.cuMemsetD32Async(host.cuMemAlloc(4), 0, 1, streams[value % 3])
    host.cuStreamSynchronize(streams[0])
    assert host.download(pointer, 1, np.uint32)[0] == 19


@pytest.mark.parametrize("ordered", [False, True])
def test_a_missing_event_wait_shows(unchecked: Host, ordered: bool) -> None:
    host = unchecked
    producer, consumer, ready = host.stream(), host.stream(), host.event()
    source, target = host.upload(np.zeros(4, np.uint32)), host.upload(np.zeros(4, np.uint32))
    host.cuMemsetD32Async(source, 5, 4, producer)
    host.cuEventRecord(ready, producer)
    if ordered:
        host.cuStreamWaitEvent(consumer, ready, 0)
    host.cuMemcpyDtoDAsync(target, source, 16, consumer)
    host.cuCtxSynchronize()
    assert (host.download(target, 4, np.uint32) == (5 if ordered else 0)).all()


@pytest.mark.parametrize("ordered", [False, True])
def test_overwriting_what_another_stream_still_reads_shows(unchecked: Host, ordered: bool) -> None:
    host = unchecked
    reader, writer, done = host.stream(), host.stream(), host.event()
    source, target = host.upload(np.full(4, 1, np.uint32)), host.upload(np.zeros(4, np.uint32))
    host.cuMemcpyDtoDAsync(target, source, 16, reader)
    host.cuEventRecord(done, reader)
    if ordered:
        host.cuStreamWaitEvent(writer, done, 0)
    host.cuMemsetD32Async(source, 2, 4, writer)
    host.cuStreamSynchronize(reader)
    assert (host.download(target, 4, np.uint32) == (1 if ordered else 2)).all()


def test_an_event_waits_for_what_was_recorded_when_the_wait_was_made(host: Host) -> None:
    one, two, event = host.stream(), host.stream(), host.event()
    pointer, seen = host.upload(np.zeros(1, np.uint32)), host.upload(np.zeros(1, np.uint32))
    host.cuMemsetD32Async(pointer, 1, 1, one)
    host.cuEventRecord(event, one)
    host.cuStreamWaitEvent(two, event, 0)
    host.cuMemcpyDtoDAsync(seen, pointer, 4, two)
    host.cuEventRecord(event, one)  # recorded again: this does not affect the wait above
    host.cuEventSynchronize(event)
    host.cuStreamSynchronize(two)
    assert host.download(seen, 1, np.uint32)[0] == 1


def test_an_event_never_recorded_is_done_and_is_not_waited_for(host: Host) -> None:
    event = host.event()
    host.cuEventQuery(event)
    host.cuEventSynchronize(event)
    host.cuStreamWaitEvent(host.stream(), event, 0)


def test_polling_ends(host: Host) -> None:
    stream, event = host.stream(), host.event()
    pointer = host.cuMemAlloc(64)
    for _ in range(5):
        host.cuMemsetD8Async(pointer, 0, 64, stream)
    host.cuEventRecord(event, stream)
    assert host.driver.cuEventQuery(event) == (NOT_READY,)
    polls = 1
    while host.driver.cuStreamQuery(stream) == (NOT_READY,):
        polls += 1
        assert polls < 20
    assert polls > 2
    host.cuEventQuery(event)


@pytest.mark.parametrize("flags", [0, NON_BLOCKING])
def test_the_legacy_stream_orders_blocking_streams_only(unchecked: Host, flags: int) -> None:
    host = unchecked
    stream = host.stream(flags)
    pointer, seen = host.upload(np.zeros(1, np.uint32)), host.upload(np.zeros(1, np.uint32))
    host.cuMemsetD32Async(pointer, 3, 1, 0)
    host.cuMemcpyDtoDAsync(seen, pointer, 4, stream)
    host.cuStreamSynchronize(stream)
    assert host.download(seen, 1, np.uint32)[0] == (3 if flags == 0 else 0)
    host.cuMemsetD32Async(pointer, 4, 1, stream)
    host.cuMemcpyDtoDAsync(seen, pointer, 4, 0)
    host.cuStreamSynchronize(0)
    assert host.download(seen, 1, np.uint32)[0] == (4 if flags == 0 else 3)


def test_nothing_runs_before_somebody_waits(host: Host) -> None:
    stream = host.stream()
    pointer = host.cuMemAlloc(64)
    host.cuMemsetD8Async(pointer, 1, 64, stream)
    assert host.driver.simStats().pending == 1
    host.cuStreamSynchronize(stream)
    assert host.driver.simStats().pending == 0


def test_elapsed_time_is_refused_not_made_up(host: Host) -> None:
    first, last = host.cuEventCreate(0), host.cuEventCreate(0)
    driver = host.driver
    assert driver.cuEventElapsedTime(first, last) == (INVALID_HANDLE, None)
    host.cuEventRecord(first, 0)
    host.cuEventRecord(last, 0)
    assert driver.cuEventElapsedTime(first, last) == (NOT_READY, None)
    host.cuEventSynchronize(last)
    assert driver.cuEventElapsedTime(first, last) == (cu.CUresult.CUDA_ERROR_NOT_SUPPORTED, None)
    assert "no clock" in driver.simLastMessage()


def test_stream_properties(host: Host) -> None:
    least, greatest = host.cuCtxGetStreamPriorityRange()
    assert greatest < least
    stream = host.cuStreamCreateWithPriority(NON_BLOCKING, greatest - 100)
    assert host.cuStreamGetPriority(stream) == greatest
    assert host.cuStreamGetFlags(stream) == NON_BLOCKING
    assert host.cuStreamGetCtx(stream) == host.cuCtxGetCurrent()


def test_a_destroyed_stream_still_finishes_its_work(host: Host) -> None:
    stream = host.stream()
    pointer = host.upload(np.zeros(1, np.uint32))
    host.cuMemsetD32Async(pointer, 9, 1, stream)
    host.cuStreamDestroy(stream)
    assert host.driver.cuStreamSynchronize(stream) == (INVALID_HANDLE,)
    assert "destroyed" in host.driver.simLastMessage()
    host.cuCtxSynchronize()
    assert host.download(pointer, 1, np.uint32)[0] == 9


def test_handles_of_the_wrong_kind_are_refused(host: Host) -> None:
    stream, event = host.stream(), host.event()
    assert host.driver.cuStreamSynchronize(event) == (INVALID_HANDLE,)
    assert host.driver.cuEventRecord(stream, stream) == (INVALID_HANDLE,)
    assert host.driver.cuStreamSynchronize(0xDEAD) == (INVALID_HANDLE,)
    assert host.driver.cuStreamDestroy(0) == (INVALID_HANDLE,)


def test_host_functions_run_in_stream_order_and_may_not_call_the_driver(host: Host) -> None:
    seen: list[Any] = []
    stream = host.stream()
    host.driver.simLaunchHost(stream, lambda: seen.append(host.driver.cuMemGetInfo()[0]))
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(seen.append)
    host.cuLaunchHostFunc(stream, cu.CUhostFn(ctypes.cast(callback, ctypes.c_void_p).value), 17)
    assert seen == []
    host.cuStreamSynchronize(stream)
    assert seen == [cu.CUresult.CUDA_ERROR_NOT_PERMITTED, 17]
    host.cuMemGetInfo()


# ---- contexts, devices, threads ----


def test_two_devices_have_their_own_memory_and_copy_between_each_other() -> None:
    host = start(devices=2, memory=1 << 20)
    first = host.cuCtxGetCurrent()
    here = host.upload(np.arange(4, dtype=np.float32))
    second = host.cuDevicePrimaryCtxRetain(1)
    host.cuCtxPushCurrent(second)
    assert host.cuMemGetInfo()[0] == 1 << 20
    there = host.cuMemAlloc(16)
    assert host.cuPointerGetAttribute(cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, there) == 1
    host.cuMemcpyPeerAsync(there, second, here, first, 16, 0)
    assert (host.download(there, 4) == np.arange(4)).all()
    assert host.driver.cuMemcpyPeerAsync(there, first, here, second, 16, 0) == (INVALID_VALUE,)
    assert host.cuDeviceCanAccessPeer(0, 1) == 1
    host.cuCtxEnablePeerAccess(first, 0)
    assert host.driver.cuCtxEnablePeerAccess(first, 0)[0] == cu.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
    assert host.cuCtxPopCurrent() == second
    assert host.cuCtxGetCurrent() == first
    assert host.driver.cuDeviceGet(2)[0] == cu.CUresult.CUDA_ERROR_INVALID_DEVICE


def test_the_current_context_is_the_threads_own() -> None:
    host = start(devices=2)
    second = host.cuDevicePrimaryCtxRetain(1)
    found: dict[str, Any] = {}

    def work() -> None:
        found["before"] = host.driver.cuMemAlloc(16)[0]
        host.cuCtxSetCurrent(second)
        data = np.arange(1000, dtype=np.float32)
        stream = host.stream()
        pointer = host.cuMemAlloc(data.nbytes)
        for _ in range(50):
            host.cuMemcpyHtoDAsync(pointer, data, data.nbytes, stream)
        host.cuStreamSynchronize(stream)
        found["device"] = int(host.cuCtxGetDevice())
        found["data"] = host.download(pointer, 1000)

    thread = threading.Thread(target=work)
    thread.start()
    pointer = host.cuMemAlloc(64)
    for _ in range(50):
        host.cuMemsetD8Async(pointer, 3, 64, 0)
        host.cuStreamSynchronize(0)
    thread.join()
    assert found["before"] == cu.CUresult.CUDA_ERROR_INVALID_CONTEXT
    assert found["device"] == 1
    assert (found["data"] == np.arange(1000)).all()
    assert int(host.cuCtxGetDevice()) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_refused(host: Host) -> None:
    with host.driver._lock.raw:  # as if another thread of the parent were in a driver call: the child must not hang
        child = os.fork()
        if child == 0:
            refused = host.driver.cuMemGetInfo()[0] == cu.CUresult.CUDA_ERROR_NOT_INITIALIZED
            os._exit(0 if refused else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_releasing_the_primary_context_destroys_what_it_held_and_names_the_leaks(host: Host) -> None:
    stream = host.stream()
    pointer = host.cuMemAlloc(64)
    host.cuMemFree(host.cuMemAlloc(32))
    host.cuDevicePrimaryCtxRelease(0)
    assert host.driver.cuMemAlloc(16)[0] == cu.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED
    leaks = [str(held) for held in host.driver.simLeaks()]
    assert len(leaks) == 2
    assert leaks[0].startswith("device memory of 64 bytes, made at ")
    assert leaks[1].startswith("stream, made at ")
    assert "simulated.py" in leaks[1]
    host.cuCtxSetCurrent(host.cuDevicePrimaryCtxRetain(0))
    assert host.driver.cuStreamSynchronize(stream) == (INVALID_HANDLE,)
    assert host.driver.cuMemFree(pointer) == (INVALID_VALUE,)
    free, total = host.cuMemGetInfo()
    assert free == total
    assert host.driver.cuDevicePrimaryCtxRelease(0) == (OK,)
    assert host.driver.cuDevicePrimaryCtxRelease(0)[0] == cu.CUresult.CUDA_ERROR_INVALID_CONTEXT


def test_what_is_alive_is_counted(host: Host) -> None:
    stats = host.driver.simStats
    before = stats()
    assert (before.allocations, before.pinned, before.streams, before.events) == (0, 0, 0, 0)
    stream, event, pinned = host.stream(), host.event(), host.cuMemHostAlloc(100, 0)
    pointer = host.cuMemAllocAsync(100, stream)
    now = stats()
    assert (now.allocations, now.bytes, now.pinned, now.streams, now.events) == (1, 100, 1, 1, 1)
    host.cuMemFreeAsync(pointer, stream)
    host.cuStreamSynchronize(stream)
    host.cuStreamDestroy(stream)
    host.cuEventDestroy(event)
    host.cuMemFreeHost(pinned)
    assert stats() == before
    assert host.driver.simAlive() == []


# ---- faults ----


def test_injected_out_of_memory_strikes_the_nth_allocation(host: Host) -> None:
    host.driver.simInject("out_of_memory", after=1)
    host.cuMemAlloc(16)
    assert host.driver.cuMemAllocAsync(16, 0) == (cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
    assert "injected" in host.driver.simLastMessage()
    host.cuMemAlloc(16)


def test_any_function_can_be_made_to_fail(host: Host) -> None:
    host.driver.simInject("cuStreamCreateWithPriority", times=2, code=cu.CUresult.CUDA_ERROR_UNKNOWN)
    for _ in range(2):
        assert host.driver.cuStreamCreateWithPriority(0, 0) == (cu.CUresult.CUDA_ERROR_UNKNOWN, None)
    host.stream()
    host.driver.simInject("cuEventCreate", code=999)
    host.driver.simClearFaults()
    host.event()
    with pytest.raises(ValueError, match="code"):
        host.driver.simInject("cuMemAlloc")
    with pytest.raises(ValueError, match="launch_failure"):
        host.driver.simInject("meteor")


def test_a_lost_context_stays_lost_until_it_is_released(host: Host) -> None:
    driver, lost = host.driver, cu.CUresult.CUDA_ERROR_ECC_UNCORRECTABLE
    stream, pointer = host.stream(), host.cuMemAlloc(16)
    driver.simInject("context_lost", after=1)
    host.cuMemsetD8Async(pointer, 0, 16, stream)
    assert driver.cuMemsetD8Async(pointer, 0, 16, stream) == (lost,)
    for answer in (
        driver.cuMemAlloc(16),
        driver.cuStreamSynchronize(stream),
        driver.cuCtxSynchronize(),
        driver.cuMemFree(pointer),
        driver.cuStreamDestroy(stream),
    ):
        assert answer[0] == lost
    assert "lost" in driver.simLastMessage() or "injected" in driver.simLastMessage()
    host.cuDevicePrimaryCtxRelease(0)
    host.cuCtxSetCurrent(host.cuDevicePrimaryCtxRetain(0))
    host.cuMemFree(host.cuMemAlloc(16))


def test_a_failed_operation_ends_one_context_and_not_the_other() -> None:
    host = start(devices=2, checks=())
    first, second = host.cuCtxGetCurrent(), host.cuDevicePrimaryCtxRetain(1)
    stream = host.stream()
    pointer = host.cuMemAllocAsync(16, stream)
    host.cuMemsetD8Async(pointer, 0, 16, stream)
    host.cuMemFree(pointer)  # pool memory: the driver does not wait for the stream
    host.cuCtxSetCurrent(second)
    here = host.upload(np.zeros(4, np.float32))
    host.cuCtxSetCurrent(first)
    assert host.driver.cuStreamSynchronize(stream)[0] == cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    assert host.driver.cuCtxSynchronize()[0] == cu.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    host.cuCtxSetCurrent(second)
    host.cuCtxSynchronize()
    host.cuMemFree(here)


def test_a_host_function_that_raises_is_not_lost(host: Host) -> None:
    def fails() -> None:
        raise RuntimeError("the reason")

    host.driver.simLaunchHost(0, fails)
    with pytest.raises(RuntimeError, match="the reason"):
        host.driver.cuCtxSynchronize()
    assert host.driver.cuCtxSynchronize()[0] == cu.CUresult.CUDA_ERROR_LAUNCH_FAILED


def test_a_context_of_ones_own(host: Host) -> None:
    primary = host.cuCtxGetCurrent()
    own = host.cuCtxCreate(None, 0, 0)
    assert host.cuCtxGetCurrent() == own
    assert host.cuCtxGetId(own) != host.cuCtxGetId(primary)
    stream = host.stream()
    host.cuMemsetD8Async(host.cuMemAlloc(8), 0, 8, stream)
    host.cuCtxDestroy(own)
    assert host.cuCtxGetCurrent() == primary
    assert host.driver.cuStreamSynchronize(stream) == (INVALID_HANDLE,)
    assert host.driver.cuCtxSetCurrent(own) == (cu.CUresult.CUDA_ERROR_INVALID_CONTEXT,)
    assert host.driver.cuCtxDestroy(primary) == (cu.CUresult.CUDA_ERROR_INVALID_CONTEXT,)
    host.cuCtxSetCurrent(0)
    assert int(host.cuCtxGetCurrent()) == 0
    assert host.driver.cuCtxPopCurrent()[0] == cu.CUresult.CUDA_ERROR_INVALID_CONTEXT


def test_a_reset_keeps_the_context_and_drops_what_it_held(host: Host) -> None:
    host.driver.simInject("context_lost")
    assert host.driver.cuMemAlloc(8)[0] == cu.CUresult.CUDA_ERROR_ECC_UNCORRECTABLE
    host.cuDevicePrimaryCtxReset(0)
    host.cuMemFree(host.cuMemAlloc(8))
    assert host.cuDevicePrimaryCtxGetState(0)[1] == 1


def test_limits(host: Host) -> None:
    stack, cig = cu.CUlimit.CU_LIMIT_STACK_SIZE, cu.CUlimit.CU_LIMIT_CIG_ENABLED
    assert host.cuCtxGetLimit(stack) == 1024
    host.cuCtxSetLimit(stack, 4096)
    assert host.cuCtxGetLimit(stack) == 4096
    assert host.driver.cuCtxGetLimit(cig) == (cu.CUresult.CUDA_ERROR_UNSUPPORTED_LIMIT, None)


@pytest.mark.parametrize("bad", [{"checks": ["spelling"]}, {"memory": 0}, {"devices": 0}, {"order": "sorted"}])
def test_options_that_make_no_sense_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"checks|memory|order"):
        Driver(**bad)


def test_checks_that_are_off_report_nothing() -> None:
    host = start(checks=())
    stream, data = host.stream(), host.pinned(8, np.uint8)
    data[:] = 0
    host.cuMemcpyHtoDAsync(host.cuMemAlloc(8), int(data.ctypes.data), 8, stream)
    data[3] = 1
    host.cuStreamSynchronize(stream)
    assert host.driver.simLastReport() is None


SIMULATED = sorted(name for name in dir(Driver) if name.startswith("cu"))


def parameters_in_the_bindings(name: str) -> list[str]:
    """Return parameter names from the signature at the beginning of the bindings' docstrings."""
    line = (getattr(cu, name).__doc__ or "").strip().splitlines()[0]
    inside = line[line.index("(") + 1 : line.rindex(")")]
    while "[" in inside:  # annotations contain commas
        inside = re.sub(r"\[[^\[\]]*\]", "", inside)
    # "unsigned int Flags", "limit: CUlimit", "char *name", "dev", "size_t numNodes=0"
    found = [re.search(r"(\w+)$", re.split("[:=]", part)[0].strip()) for part in inside.split(",") if part]
    return [match[1] for match in found if match]


@pytest.mark.parametrize("name", SIMULATED)
def test_a_simulated_function_takes_what_the_bindings_take(name: str) -> None:
    assert list(inspect.signature(getattr(Driver, name)).parameters)[1:] == parameters_in_the_bindings(name)


def test_streams_and_devices_say_what_they_are() -> None:
    host = start(devices=2)
    stream = host.cuStreamCreate(0)
    assert host.cuStreamGetId(stream) != host.cuStreamGetId(host.cuStreamCreate(0))
    assert int(host.cuStreamGetDevice(stream)) == 0
    assert host.cuStreamIsCapturing(stream) == cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    assert host.driver.cuStreamCreate(2) == (INVALID_VALUE, None)
    names = [host.cuDeviceGetPCIBusId(16, device) for device in (0, 1)]
    assert names[0] != names[1]
    assert host.cuDeviceGetUuid(0).bytes != host.cuDeviceGetUuid(1).bytes
    assert host.cuDeviceTotalMem(1) == host.cuMemGetInfo()[1]


def test_events_are_checked(host: Host) -> None:
    assert host.driver.cuEventCreate(8) == (INVALID_VALUE, None)
    event = host.event()
    assert host.driver.cuEventRecordWithFlags(event, 0, 1) == (INVALID_VALUE,)
    host.cuEventRecordWithFlags(event, 0, 0)
    assert host.driver.cuStreamWaitEvent(0, event, 7) == (INVALID_VALUE,)
    host.cuCtxCreate(None, 0, 0)
    assert host.driver.cuEventRecord(event, 0) == (INVALID_HANDLE,)
    assert "different contexts" in host.driver.simLastMessage()
    # waiting for an event of another context is allowed
    host.cuStreamWaitEvent(0, event, 0)
    host.cuEventDestroy(event)
    host.cuCtxSynchronize()


def test_the_default_stream_of_a_thread_is_its_own(host: Host) -> None:
    pointer = host.upload(np.zeros(1, np.uint32))
    host.cuMemsetD32Async(pointer, 1, 1, 2)
    thread = threading.Thread(
        target=lambda: (host.cuCtxSetCurrent(host.cuDevicePrimaryCtxRetain(0)), host.cuStreamSynchronize(2))
    )
    thread.start()
    thread.join()
    assert host.driver.simStats().pending == 1  # the other thread waited for its own stream, which is empty
    host.cuStreamSynchronize(2)
    assert host.driver.simStats().pending == 0


def test_an_interrupt_leaves_the_driver_free_for_other_threads():
    script = """
import os, signal, threading, time
from cudakit import sim

driver = sim.Driver()
driver.cuInit(0)
ended = False

def other():
    while not ended:
        driver.cuDriverGetVersion()

def interrupt():
    for _ in range(250):
        time.sleep(0.004)
        os.kill(os.getpid(), signal.SIGINT)

threads = [threading.Thread(target=work, daemon=True) for work in (other, interrupt)]
end = time.monotonic() + 1.5
started = 0
while time.monotonic() < end:
    try:
        for thread in threads[started:]:
            started += 1
            thread.start()
        while time.monotonic() < end:
            driver.cuDriverGetVersion()
    except KeyboardInterrupt:
        pass
while True:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        break
    except KeyboardInterrupt:  # the last ones
        pass
ended = True
threads[0].join(20)
print("stuck" if threads[0].is_alive() else "free", flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "free", done.stderr
