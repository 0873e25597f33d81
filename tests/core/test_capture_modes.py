"""Capture modes: which driver calls break whose capture, on either device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu

import cudakit
from cudakit.errors import CudaError

SOURCE = "__global__ void scale(float* x, float f) { x[threadIdx.x] *= f; }"
GLOBAL = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
THREAD_LOCAL = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
RELAXED = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
UNSUPPORTED = cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
INVALIDATED = cu.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
SHARED = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Things:
    """A device's own things, made by the driver's calls, and a stream to capture."""

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
        self.make("cuEventDestroy", "cuEventCreate", 2)
        self.event = self.context.call("cuEventCreate", 2)
        self.context.call("cuEventRecord", self.event, self.other)
        self.pooled = self.context.call("cuMemAllocAsync", 64, self.other)
        self.function = self.context.call("cuModuleGetFunction", self.made["cuModuleUnload"], self.kernel)
        other.synchronize()

    def make(self, frees: str, routine: str, *arguments: Any) -> tuple[Any, ...]:
        """Call `routine`; if it succeeds, what it made takes the place of what `frees` is to free."""
        answer: tuple[Any, ...] = getattr(self.driver, routine)(*arguments)
        if not answer[0]:
            if frees in self.made:
                self.context.attempt(frees, self.made[frees])
            self.made[frees] = answer[1]
        return answer

    def free(self, routine: str) -> tuple[Any, ...]:
        """Call the routine that frees one of them."""
        answer: tuple[Any, ...] = getattr(self.driver, routine)(self.made[routine])
        if not answer[0]:
            del self.made[routine]
        return answer

    def close(self) -> None:
        for routine in list(self.made):
            assert not self.free(routine)[0]
        for routine, *arguments in (("cuMemFreeAsync", self.pooled, self.other), ("cuEventDestroy", self.event)):
            self.context.call(routine, *arguments)


Call = Callable[[Things], tuple[Any, ...]]
ORDINAL = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

# What a capture in progress forbids, on things that it has nothing to do with.
FORBIDDEN: dict[str, Call] = {
    "cuMemAlloc": lambda at: at.make("cuMemFree", "cuMemAlloc", 64),
    "cuMemFree": lambda at: at.free("cuMemFree"),
    "cuMemHostAlloc": lambda at: at.make("cuMemFreeHost", "cuMemHostAlloc", 64, 0),
    "cuMemFreeHost": lambda at: at.free("cuMemFreeHost"),
    "cuModuleLoadData": lambda at: at.make("cuModuleUnload", "cuModuleLoadData", at.image),
    "cuModuleUnload": lambda at: at.free("cuModuleUnload"),
    "cuEventQuery": lambda at: at.driver.cuEventQuery(at.event),
    "cuEventSynchronize": lambda at: at.driver.cuEventSynchronize(at.event),
    "cuStreamQuery": lambda at: at.driver.cuStreamQuery(at.other),
    "cuStreamSynchronize": lambda at: at.driver.cuStreamSynchronize(at.other),
    "cuMemcpyHtoD": lambda at: at.driver.cuMemcpyHtoD(at.made["cuMemFree"], at.host.ctypes.data, 64),
}
# What it does not forbid, and launches may need.
ALLOWED: dict[str, Call] = {
    "cuEventCreate": lambda at: at.make("cuEventDestroy", "cuEventCreate", 2),
    "cuEventRecord": lambda at: at.driver.cuEventRecord(at.event, at.other),
    "cuEventDestroy": lambda at: at.free("cuEventDestroy"),
    "cuMemFreeAsync": lambda at: at.driver.cuMemFreeAsync(*at.driver.cuMemAllocAsync(64, at.other)[1:], at.other),
    "cuPointerGetAttribute": lambda at: at.driver.cuPointerGetAttribute(ORDINAL, at.made["cuMemFree"]),
    "cuModuleGetFunction": lambda at: at.driver.cuModuleGetFunction(at.made["cuModuleUnload"], at.kernel),
    "cuFuncSetAttribute": lambda at: at.driver.cuFuncSetAttribute(at.function, SHARED, 1024),
    "cuFuncGetParamInfo": lambda at: at.driver.cuFuncGetParamInfo(at.function, 0),
    "cuStreamGetCtx": lambda at: at.driver.cuStreamGetCtx(at.other),
    "cuCtxSetCurrent": lambda at: at.driver.cuCtxSetCurrent(at.context.handle),
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
