"""Capture modes: which driver calls break which captures, on both devices."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu

import cudakit
from cudakit.errors import CudaError
from cudakit.sim.driver.state import UNSAFE

SOURCE = "__global__ void scale(float* x, float f) { x[threadIdx.x] *= f; }"
GLOBAL = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
THREAD_LOCAL = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
RELAXED = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
UNSUPPORTED = cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
IMPLICIT = cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
ISOLATION = cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION
INVALID_VALUE = cu.CUresult.CUDA_ERROR_INVALID_VALUE
CAPTURED_EVENT = cu.CUresult.CUDA_ERROR_CAPTURED_EVENT
INVALIDATED = cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
SHARED = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Things:
    """Driver objects of a device, and a stream to capture."""

    def __init__(self, device: cudakit.Device, stream: cudakit.Stream, other: cudakit.Stream) -> None:
        self.context, self.driver = device.context, device.context.driver
        self.stream, self.other = stream.handle, other.handle
        self.host = np.zeros(16, np.float32)
        code = device.compile(source=SOURCE, name="scale.cu")
        self.image = code.cubin if self.context.kind == "gpu" else code.ptx.encode() + b"\0"
        self.kernel = code["scale"].mangled.encode()
        self.made: dict[str, Any] = {}  # by the routine that frees it
        self.make("cuMemFree", "cuMemAlloc", 64)
        self.make("cuMemFreeHost", "cuMemHostAlloc", 64, 0)
        self.make("cuModuleUnload", "cuModuleLoadData", self.image)
        self.pages = mmap.mmap(-1, mmap.PAGESIZE)
        self.page = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        self.context.call("cuMemHostRegister", self.page, mmap.PAGESIZE, 0)
        self.made["cuMemHostUnregister"] = self.page
        self.context.call("cuStreamBeginCapture", self.stream, RELAXED)
        self.graph = self.context.call("cuStreamEndCapture", self.stream)
        self.make("cuGraphExecDestroy", "cuGraphInstantiate", self.graph, 0)
        self.pool = self.context.call("cuDeviceGetDefaultMemPool", self.context.device)
        self.make("cuEventDestroy", "cuEventCreate", 2)
        self.event = self.context.call("cuEventCreate", 2)
        self.context.call("cuEventRecord", self.event, self.other)
        self.made["cuMemFreeAsync"] = self.context.call("cuMemAllocAsync", 64, self.other)
        self.function = self.context.call("cuModuleGetFunction", self.made["cuModuleUnload"], self.kernel)
        other.synchronize()

    def make(self, frees: str, routine: str, *arguments: Any) -> tuple[Any, ...]:
        """Call `routine`; if it succeeds, its result is the next object that `frees` frees."""
        answer: tuple[Any, ...] = getattr(self.driver, routine)(*arguments)
        if not answer[0]:
            if frees in self.made:
                self.context.attempt(frees, self.made[frees], *((self.other,) if frees == "cuMemFreeAsync" else ()))
            self.made[frees] = answer[1]
        return answer

    def free(self, routine: str) -> tuple[Any, ...]:
        """Call the routine that frees one object."""
        on = (self.other,) if routine == "cuMemFreeAsync" else ()
        answer: tuple[Any, ...] = getattr(self.driver, routine)(self.made[routine], *on)
        if not answer[0]:
            del self.made[routine]
        return answer

    def close(self) -> None:
        for routine in list(self.made):
            assert not self.free(routine)[0]
        for routine, handle in (("cuGraphDestroy", self.graph), ("cuEventDestroy", self.event)):
            self.context.call(routine, handle)


Call = Callable[[Things], tuple[Any, ...]]
ORDINAL = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

THRESHOLD = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
STACK = cu.CUlimit.CU_LIMIT_STACK_SIZE


def register_again(at: Things) -> tuple[Any, ...]:
    """Register a second page of memory."""
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    answer: tuple[Any, ...] = at.driver.cuMemHostRegister(address, mmap.PAGESIZE, 0)
    if not answer[0]:
        at.context.attempt("cuMemHostUnregister", address)
    return answer


# Calls that a capture forbids, on objects that are not part of it.
FORBIDDEN: dict[str, Call] = {
    "cuMemAlloc": lambda at: at.make("cuMemFree", "cuMemAlloc", 64),
    "cuMemFree": lambda at: at.free("cuMemFree"),
    "cuMemAllocAsync": lambda at: at.make("cuMemFreeAsync", "cuMemAllocAsync", 64, at.other),
    "cuMemFreeAsync": lambda at: at.free("cuMemFreeAsync"),
    "cuMemPoolSetAttribute": lambda at: at.driver.cuMemPoolSetAttribute(at.pool, THRESHOLD, cu.cuuint64_t(2**64 - 1)),
    "cuMemPoolGetAttribute": lambda at: at.driver.cuMemPoolGetAttribute(at.pool, THRESHOLD),
    "cuMemPoolTrimTo": lambda at: at.driver.cuMemPoolTrimTo(at.pool, 1 << 30),
    "cuMemHostAlloc": lambda at: at.make("cuMemFreeHost", "cuMemHostAlloc", 64, 0),
    "cuMemFreeHost": lambda at: at.free("cuMemFreeHost"),
    "cuMemHostRegister": register_again,
    "cuMemHostUnregister": lambda at: at.free("cuMemHostUnregister"),
    "cuModuleUnload": lambda at: at.free("cuModuleUnload"),
    "cuEventQuery": lambda at: at.driver.cuEventQuery(at.event),
    "cuEventSynchronize": lambda at: at.driver.cuEventSynchronize(at.event),
    "cuStreamQuery": lambda at: at.driver.cuStreamQuery(at.other),
    "cuStreamSynchronize": lambda at: at.driver.cuStreamSynchronize(at.other),
    "cuCtxSetLimit": lambda at: at.driver.cuCtxSetLimit(STACK, at.driver.cuCtxGetLimit(STACK)[1]),
    "cuGraphInstantiate": lambda at: at.make("cuGraphExecDestroy", "cuGraphInstantiate", at.graph, 0),
    "cuGraphExecDestroy": lambda at: at.free("cuGraphExecDestroy"),
}
# Calls that a capture allows, and that launches may need.
ALLOWED: dict[str, Call] = {
    "cuModuleLoadData": lambda at: at.make("cuModuleUnload", "cuModuleLoadData", at.image),
    "cuMemcpyHtoD": lambda at: at.driver.cuMemcpyHtoD(at.made["cuMemFree"], at.host.ctypes.data, 64),
    "cuMemcpyDtoH": lambda at: at.driver.cuMemcpyDtoH(at.host.ctypes.data, at.made["cuMemFree"], 64),
    "cuEventCreate": lambda at: at.make("cuEventDestroy", "cuEventCreate", 2),
    "cuEventRecord": lambda at: at.driver.cuEventRecord(at.event, at.other),
    "cuEventDestroy": lambda at: at.free("cuEventDestroy"),
    "cuStreamWaitEvent": lambda at: at.driver.cuStreamWaitEvent(at.other, at.event, 0),
    "cuPointerGetAttribute": lambda at: at.driver.cuPointerGetAttribute(ORDINAL, at.made["cuMemFree"]),
    "cuModuleGetFunction": lambda at: at.driver.cuModuleGetFunction(at.made["cuModuleUnload"], at.kernel),
    "cuFuncSetAttribute": lambda at: at.driver.cuFuncSetAttribute(at.function, SHARED, 1024),
    "cuFuncGetParamInfo": lambda at: at.driver.cuFuncGetParamInfo(at.function, 0),
    "cuStreamGetCtx": lambda at: at.driver.cuStreamGetCtx(at.other),
    "cuCtxSetCurrent": lambda at: at.driver.cuCtxSetCurrent(at.context.handle),
    "cuMemGetInfo": lambda at: at.driver.cuMemGetInfo(),
    "cuGraphGetNodes": lambda at: at.driver.cuGraphGetNodes(at.graph, 0),
}


def captured_event(at: Things) -> Any:
    """An event that is recorded in the capture."""
    assert not at.driver.cuEventRecord(at.event, at.stream)[0]
    return at.event


# Calls that no mode allows, with their result and that of the capture's end: on the captured stream, and on all work.
NEVER: dict[str, tuple[Call, Any, Any]] = {
    "cuCtxSynchronize": (lambda at: at.driver.cuCtxSynchronize(), UNSUPPORTED, INVALIDATED),
    "cuStreamQuery": (lambda at: at.driver.cuStreamQuery(at.stream), UNSUPPORTED, INVALIDATED),
    "cuStreamSynchronize": (lambda at: at.driver.cuStreamSynchronize(at.stream), UNSUPPORTED, INVALIDATED),
    "cuStreamWaitEvent": (lambda at: at.driver.cuStreamWaitEvent(at.stream, at.event, 0), ISOLATION, INVALIDATED),
    "cuMemFreeAsync": (lambda at: at.driver.cuMemFreeAsync(at.made["cuMemFreeAsync"], at.stream), INVALID_VALUE, 0),
    "cuEventQuery": (lambda at: at.driver.cuEventQuery(captured_event(at)), CAPTURED_EVENT, INVALIDATED),
    "cuEventSynchronize": (lambda at: at.driver.cuEventSynchronize(captured_event(at)), CAPTURED_EVENT, INVALIDATED),
}
# Calls on the legacy default stream, which waits for the captured stream if that is blocking.
LEGACY: dict[str, tuple[Call, Any]] = {
    "cuMemAllocAsync": (lambda at: at.driver.cuMemAllocAsync(64, 0), INVALIDATED),
    "cuMemFreeAsync": (lambda at: at.driver.cuMemFreeAsync(at.made["cuMemFreeAsync"], 0), INVALIDATED),
    "cuEventRecord": (lambda at: at.driver.cuEventRecord(at.event, 0), INVALIDATED),
    "cuStreamWaitEvent": (lambda at: at.driver.cuStreamWaitEvent(0, at.event, 0), INVALIDATED),
    "cuStreamQuery": (lambda at: at.driver.cuStreamQuery(0), INVALIDATED),
    "cuStreamSynchronize": (lambda at: at.driver.cuStreamSynchronize(0), INVALIDATED),
    "cuStreamGetCtx": (lambda at: at.driver.cuStreamGetCtx(0), INVALIDATED),
    "cuStreamGetPriority": (lambda at: at.driver.cuStreamGetPriority(0), INVALIDATED),
    "cuStreamIsCapturing": (lambda at: at.driver.cuStreamIsCapturing(0), 0),
    "cuStreamGetCaptureInfo": (lambda at: at.driver.cuStreamGetCaptureInfo(0), 0),
}


@pytest.fixture
def at(device: cudakit.Device) -> Iterator[Things]:
    with device.stream() as stream, device.stream() as other:
        things = Things(device, stream, other)
        yield things
        things.close()


def in_capture(at: Things, mode: Any, call: Call, *, elsewhere: bool = False) -> tuple[Any, Any]:
    """(what `call` returned while a stream was captured in `mode`, what the capture's end returned).

    elsewhere: the call is made by another thread."""
    at.context.make_current()
    assert not at.driver.cuStreamBeginCapture(at.stream, mode)[0]
    answers: list[Any] = []

    def make() -> None:
        at.driver.cuCtxSetCurrent(at.context.handle)
        answers.append(call(at))

    try:
        if elsewhere:
            thread = threading.Thread(target=make)
            thread.start()
            thread.join()
        else:
            make()
    finally:
        ended = at.driver.cuStreamEndCapture(at.stream)
    if not ended[0]:
        assert not at.driver.cuGraphDestroy(ended[1])[0]
    return answers[0][0], ended[0]


@pytest.mark.parametrize("name", FORBIDDEN)
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL], ids=["global", "thread_local"])
def test_a_call_that_a_capture_does_not_see_breaks_it(at: Things, name: str, mode: Any) -> None:
    assert in_capture(at, mode, FORBIDDEN[name]) == (UNSUPPORTED, INVALIDATED)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_only_a_global_capture_forbids_it_to_other_threads(at: Things, name: str) -> None:
    assert in_capture(at, GLOBAL, FORBIDDEN[name], elsewhere=True) == (UNSUPPORTED, INVALIDATED)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_thread_local_capture_leaves_other_threads_alone(at: Things, name: str) -> None:
    assert in_capture(at, THREAD_LOCAL, FORBIDDEN[name], elsewhere=True) == (0, 0)


@pytest.mark.parametrize("name", FORBIDDEN)
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED], ids=["global", "thread_local", "relaxed"])
def test_a_relaxed_thread_may_do_it(at: Things, name: str, mode: Any) -> None:
    def relaxed(at: Things) -> tuple[Any, ...]:
        with at.context.relaxed():
            return FORBIDDEN[name](at)

    assert in_capture(at, mode, relaxed) == (0, 0)


def test_every_call_that_the_simulated_driver_forbids_is_tried() -> None:
    assert set(FORBIDDEN) == UNSAFE


@pytest.mark.parametrize("relaxed", [False, True], ids=["unchanged", "relaxed"])
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED], ids=["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("name", NEVER)
def test_no_mode_allows_it(at: Things, name: str, mode: Any, relaxed: bool) -> None:
    call, code, ended = NEVER[name]

    def made(at: Things) -> tuple[Any, ...]:
        with at.context.relaxed() if relaxed else contextlib.nullcontext():
            return call(at)

    assert in_capture(at, mode, made) == (code, ended)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED], ids=["global", "thread_local", "relaxed"])
def test_a_wait_for_the_device_breaks_the_captures_of_other_threads(at: Things, mode: Any) -> None:
    call, code, ended = NEVER["cuCtxSynchronize"]
    assert in_capture(at, mode, call, elsewhere=True) == (code, ended)


@pytest.mark.parametrize("mode", [GLOBAL, RELAXED], ids=["global", "relaxed"])
@pytest.mark.parametrize("name", LEGACY)
def test_the_legacy_stream_is_not_used_while_a_blocking_stream_is_captured(
    device: cudakit.Device, name: str, mode: Any
) -> None:
    call, ended = LEGACY[name]
    with cudakit.Stream(device.context, blocking=True) as stream, device.stream() as other:
        at = Things(device, stream, other)
        assert in_capture(at, mode, call) == (IMPLICIT, ended)
        at.close()


@pytest.mark.parametrize("name", ALLOWED)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_what_launches_need_is_allowed(at: Things, name: str, elsewhere: bool) -> None:
    assert in_capture(at, GLOBAL, ALLOWED[name], elsewhere=elsewhere) == (0, 0)


def test_the_mode_is_the_threads_own_and_is_put_back(at: Things) -> None:
    exchange = at.driver.cuThreadExchangeStreamCaptureMode
    others: list[Any] = []
    assert exchange(THREAD_LOCAL)[1] == GLOBAL
    with at.context.relaxed():
        assert exchange(RELAXED)[1] == RELAXED
        thread = threading.Thread(target=lambda: others.append(exchange(GLOBAL)[1]))
        thread.start()
        thread.join()
    assert others == [GLOBAL]
    assert exchange(GLOBAL)[1] == THREAD_LOCAL


def test_a_capture_ends_on_its_own_thread(at: Things) -> None:
    def end(at: Things) -> tuple[Any, ...]:
        answer: tuple[Any, ...] = at.driver.cuStreamEndCapture(at.stream)
        return answer

    wrong_thread = cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
    assert in_capture(at, THREAD_LOCAL, end, elsewhere=True)[0] == wrong_thread


def test_a_forbidden_call_is_an_error_that_says_what_to_do(sim: cudakit.Device) -> None:
    with sim.stream() as stream, sim.stream() as other:
        sim.context.call("cuStreamBeginCapture", stream.handle, GLOBAL)
        with pytest.raises(CudaError, match=r"in a mode that forbids cuStreamQuery.*CAPTURE_MODE_RELAXED"):
            other.query()
        assert sim.context.driver.cuStreamEndCapture(stream.handle)[0] == INVALIDATED
