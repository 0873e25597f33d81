"""Each driver call fails in turn: the caller gets an error that names it, and nothing leaks."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from core_fixtures import opened
from cuda.bindings import driver as cu

from cudakit.driver import driver as drivers
from cudakit.driver.context import Context
from cudakit.driver.stream import Event, Stream
from cudakit.errors import ContextLost, CudaError, DeviceFault, OutOfMemory
from cudakit.memory import makers

R = cu.CUresult
HOST = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """Exclude objects of earlier tests from the hundreds of garbage collections here."""
    gc.collect()
    gc.freeze()


def use_everything(context: Context) -> None:
    """Use every feature of the core at least once."""
    context.synchronize()
    context.memory_info()
    context.stream_priorities()
    context.set_limit("STACK_SIZE", context.limit("STACK_SIZE"))
    assert context.name
    with Stream(context, priority=-1) as stream, Stream(context) as other, Event(context) as event:
        assert stream.priority == -1
        array = makers.array(context, stream, HOST)
        copied = array.copy()
        array[::2, ::2].copy_from(copied[1::2, 1::2])
        array[:, 1:].copy_from(array[:, :-1])
        array.fill(1.5)
        array.T[::2].fill(2)
        makers.full(context, stream, (5,), np.pi, np.float64)
        makers.zeros(context, stream, (3, 3))
        event.record(stream)
        other.wait(event)
        copied.copy_from(array, other)
        pinned = makers.pinned(context, (4, 6), np.float32)
        pinned[:] = HOST
        copied.copy_from(pinned, other)
        copied.copy_to(pinned[::-1], other)
        other.synchronize()
        stream.query()
        event.query()
        event.synchronize()
        wrapped = makers.wrap(context, stream, HOST)
        assert wrapped.numpy().shape == HOST.shape
        assert np.from_dlpack(copied).shape == HOST.shape
        copied.numpy(other)
        stream.synchronize()


class Recorder:
    """A driver that records its calls."""

    def __init__(self, driver):
        self.driver = driver
        self.calls = {}

    def __getattr__(self, name):
        found = getattr(self.driver, name)
        if not name.startswith("cu") or not name[2].isupper() or not callable(found):
            return found

        def call(*arguments):
            self.calls[name] = self.calls.get(name, 0) + 1
            return found(*arguments)

        return call


def calls_made() -> dict[str, int]:
    recorder = Recorder(drivers.open("sim", fresh=True).driver)
    context = Context(drivers.Opened(recorder, 0, "sim", "sim"))
    use_everything(context)
    recorded = dict(recorder.calls)
    context.close()
    return recorded


CALLS = calls_made()
# Queries that only select a method, and the texts of errors.
ADVISORY = {"cuGetErrorName", "cuGetErrorString", "cuPointerGetAttribute", "cuStreamIsCapturing"}
# Calls of finalizers, which must not raise, with the changes of context and capture mode that they need.
FREEING = {
    "cuMemFreeAsync", "cuMemFreeHost", "cuStreamDestroy", "cuEventDestroy", "cuMemHostUnregister", "cuCtxPushCurrent",
    "cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode",
}  # fmt: skip
SITES = [(name, nth) for name, count in sorted(CALLS.items()) for nth in range(count)]


def test_what_is_used_is_what_the_core_calls():
    assert len(CALLS) > 30
    assert {"cuMemAllocAsync", "cuMemHostAlloc", "cuMemcpy2DAsync", "cuMemsetD2D32Async", "cuStreamWaitEvent"} <= set(
        CALLS
    )


def stats_without_freeing(driver):
    stats = driver.simStats()
    return stats.allocations, stats.pinned, stats.streams, stats.events, stats.contexts


@pytest.mark.parametrize(("name", "nth"), [site for site in SITES if site[0] not in ADVISORY | FREEING])
def test_each_call_that_fails_is_an_error_and_leaves_nothing_behind(name, nth):
    driver = drivers.open("sim", fresh=True).driver
    before = stats_without_freeing(driver)
    driver.simInject(name, after=nth, code=R.CUDA_ERROR_INVALID_VALUE)
    context = error = None
    try:
        context = Context(drivers.Opened(driver, 0, "sim", "sim"))
        use_everything(context)
    except CudaError as caught:
        error = str(caught)
    # Only the work of finalizers, or events recorded for them, has a fallback.
    if error is None:
        assert name in ("cuEventCreate", "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent", "cuCtxSynchronize")
    else:
        assert error.startswith(f"{name} failed with CUDA_ERROR_INVALID_VALUE (1): invalid argument: injected fault")
    driver.simClearFaults()
    if context is not None:
        context.synchronize()
        use_everything(context)
        context.close()
    del context
    gc.collect()
    assert stats_without_freeing(driver) == before
    assert driver.simLeaks() == []


@pytest.mark.parametrize(("name", "nth"), [site for site in SITES if site[0] in FREEING])
def test_a_failing_free_raises_nothing(name, nth):
    driver = drivers.open("sim", fresh=True).driver
    context = Context(drivers.Opened(driver, 0, "sim", "sim"))
    driver.simInject(name, after=nth, code=R.CUDA_ERROR_INVALID_VALUE)
    use_everything(context)
    context.close()


@pytest.mark.parametrize(("name", "nth"), [site for site in SITES if site[0] not in ADVISORY])
def test_a_context_lost_at_any_call_is_lost_for_good(name, nth):
    driver = drivers.open("sim", fresh=True).driver
    driver.simInject(name, after=nth, code=R.CUDA_ERROR_ILLEGAL_ADDRESS)
    try:
        context = Context(drivers.Opened(driver, 0, "sim", "sim"))
    except DeviceFault:
        return
    lost = False
    try:
        use_everything(context)
    except ContextLost as error:
        lost = True
        first = error if isinstance(error, DeviceFault) else error.__cause__
        assert isinstance(first, DeviceFault)
        assert first.code == 700
    if lost:
        with pytest.raises(ContextLost, match="lost after an earlier failure"):
            context.synchronize()
        with pytest.raises(ContextLost):
            use_everything(context)
    # Live objects are freed silently.
    gc.collect()
    context.close()
    del context
    gc.collect()


@pytest.mark.parametrize("after", range(12))
def test_out_of_memory_at_each_allocation(after):
    with opened("sim") as context:
        use_everything(context)
        gc.collect()
        context.synchronize()
        before = context.driver.simStats().allocations, context.driver.simStats().pinned
        context.driver.simInject("out_of_memory", after=after)
        if after < CALLS["cuMemAllocAsync"] + CALLS["cuMemHostAlloc"]:
            with pytest.raises(OutOfMemory, match=r"\d+ bytes"):
                use_everything(context)
        else:
            use_everything(context)
        context.driver.simClearFaults()
        gc.collect()
        context.synchronize()
        assert (context.driver.simStats().allocations, context.driver.simStats().pinned) == before
        use_everything(context)


def test_a_copy_that_fails_leaves_no_array():
    with opened("sim") as context:
        stream = Stream(context)
        context.driver.simInject("cuMemcpyHtoDAsync", code=R.CUDA_ERROR_INVALID_VALUE)
        with pytest.raises(CudaError) as caught:
            makers.array(context, stream, HOST)
        # The memory is free although the traceback still holds the frames of the failure.
        assert context.driver.simStats().allocations == 0
        assert caught.value.routine == "cuMemcpyHtoDAsync"


def test_an_event_that_cannot_be_recorded_is_not_left():
    with opened("sim") as context:
        stream = Stream(context)
        before = context.driver.simStats().events
        context.driver.simInject("cuEventRecord", code=R.CUDA_ERROR_INVALID_VALUE)
        with pytest.raises(CudaError) as caught:
            stream.record()
        assert context.driver.simStats().events == before
        assert caught.value.routine == "cuEventRecord"


def test_pinned_memory_that_cannot_be_had():
    with opened("sim") as context:
        context.driver.simInject("out_of_memory")
        with pytest.raises(OutOfMemory, match="4000 bytes of pinned host memory"):
            makers.pinned(context, (1000,), np.float32)
        assert makers.pinned(context, (1000,), np.float32).shape == (1000,)


def test_a_mistake_of_the_host_is_reported_where_it_shows():
    """The error is not sticky: the simulated device reports it and remains usable."""
    with opened("sim") as context:
        stream = Stream(context)
        source = makers.pinned(context, (64,), np.float32)
        source[:] = 1
        target = makers.array(context, stream, source)
        source[:] = 2
        with pytest.raises(CudaError, match=r"changed[\s\S]*test_faults\.py"):
            stream.synchronize()
        assert context.lost is None
        assert target.numpy().shape == (64,)


OVERRUN = """
__global__ void overrun(float* data, int count)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= count)
        data[i] = 1.0f;  // one too many
}
"""


def test_a_kernels_fault_is_the_errors_text(sim):
    kernel = sim.compile(source=OVERRUN, name="overrun.cu")["overrun"]
    stream = sim.stream()
    data = sim.zeros(100, np.float32, stream=stream)
    kernel.launch(stream, grid=1, block=128, args=(data, 100))
    with pytest.raises(DeviceFault) as caught:
        stream.synchronize()
    text = str(caught.value)
    for part in (
        "overrun.cu:6",
        "data[i] = 1.0f;  // one too many",
        "allocation of 400 bytes",
        "test_faults.py",
        "overrun",
    ):
        assert part in text, text
    assert caught.value.report is not None
    with pytest.raises(ContextLost, match="lost after an earlier failure"):
        data.numpy()
    with pytest.raises(ContextLost):
        kernel.launch(stream, grid=1, block=128, args=(data, 100))
    data.close()
    stream.close()


def test_a_launch_that_fails_by_itself(sim):
    kernel = sim.compile(source=OVERRUN, name="overrun.cu")["overrun"]
    data = sim.zeros(200, np.float32)
    sim.context.driver.simInject("launch_failure")
    kernel.launch(sim.default_stream, grid=1, block=64, args=(data, 100))
    with pytest.raises(DeviceFault, match="CUDA_ERROR_LAUNCH_FAILED"):
        sim.synchronize()
