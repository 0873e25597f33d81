"""Captures: calls that break one, the driver's results during a capture, and captured functions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from cuda.bindings import driver as cu
from graph_work import BLOCK, GRID, N, module, numbers, scale

import cudakit
from cudakit import graph as graphs
from cudakit import pipeline
from cudakit.errors import Closed, CudaError, DeviceMismatch, GraphError

# Broken captures ------------------------------------------------------------------------------------------------------


def outside_event(device, work):
    work.stream.wait(work.event)


def captured_event(device, work):
    work.stream.record().query()


BREAKS = {
    "synchronize": (lambda device, work: work.stream.synchronize(), CudaError, "cuStreamSynchronize failed"),
    "query": (lambda device, work: work.stream.query(), CudaError, "cuStreamQuery failed"),
    "device": (lambda device, work: device.synchronize(), CudaError, "cuCtxSynchronize failed"),
    "event": (captured_event, CudaError, "cuEventQuery failed"),
    "isolation": (outside_event, CudaError, "recorded outside the capture"),
}
REFUSED = {
    "numpy": (lambda device, work: work.x.numpy(work.stream), GraphError, "pageable"),
    "upload": (lambda device, work: work.x.copy_from(work.host, work.stream), GraphError, "pageable"),
    "strided": (
        lambda device, work: work.matrix.T.copy_to(work.pinned, work.stream), GraphError, "host gathers its 20 pieces"
    ),
    "empty": (lambda device, work: device.empty((4,), stream=work.stream), GraphError, "Make the array before"),
    "copy": (lambda device, work: work.x.copy(work.stream), GraphError, "Make the array before"),
}  # fmt: skip


@pytest.fixture
def breakable(device, work):
    work.event = work.stream.record()
    work.matrix = device.zeros((20, 30), stream=work.stream)
    work.pinned = device.pinned((30, 20))
    work.stream.synchronize()
    return work


def captured(device, work, act):
    """A capture of a launch, and of what `act` does."""
    with work.stream.capture() as graph:
        scale(device, work.stream, work.x, work.y, 2.0)
        act(device, work)
    return graph


@pytest.mark.parametrize("name", [*BREAKS, *REFUSED])
def test_what_cannot_be_captured_says_so_and_the_stream_is_itself_again(device, breakable, name):
    work = breakable
    act, error, words = {**BREAKS, **REFUSED}[name]
    with pytest.raises(error, match=words):
        captured(device, work, act)
    work.stream.synchronize()
    assert (work.y.numpy(work.stream) == 0).all()
    scale(device, work.stream, work.x, work.y, 2.0)
    assert np.array_equal(work.y.numpy(work.stream), 2 * work.host)


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_capture_names_the_call_that_broke_it(device, breakable, name):
    work = breakable
    act, _, words = BREAKS[name]
    routine = {"isolation": "cuStreamWaitEvent"}.get(name, words.split()[0])

    def swallow(device, work):
        with pytest.raises(CudaError):
            act(device, work)

    with pytest.raises(GraphError, match=f"broken by {routine}"):
        captured(device, work, swallow)
    work.stream.synchronize()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_in_time_does_not_break_the_capture(device, breakable, name):
    work = breakable
    with work.stream.capture() as graph:
        scale(device, work.stream, work.x, work.y, 2.0)
        with pytest.raises(GraphError):
            REFUSED[name][0](device, work)
    assert [node.name for node in graph.nodes] == ["scale"]


def test_a_branch_must_be_joined(device, work):
    s, t = work.stream, work.other

    def fork(device, work):
        t.wait(s)
        scale(device, t, work.x, work.y, 2.0)

    with pytest.raises(GraphError, match=r"was not waited for; call .*\.wait\(other\)"):
        captured(device, work, fork)
    for stream in (s, t):
        stream.synchronize()


def test_an_empty_graph_is_a_mistake(device, work):
    with pytest.raises(GraphError, match="nothing was captured"), work.stream.capture():
        scale(device, work.other, work.x, work.y, 2.0)  # on another stream
    work.other.synchronize()
    assert np.array_equal(work.y.numpy(work.stream), 2 * work.host)


def test_graphs_do_not_nest(device, work):
    s = work.stream
    with s.capture() as graph:
        scale(device, s, work.x, work.y, 2.0)
    ready = graph.instantiate()
    with pytest.raises(GraphError, match="do not nest"), s.capture():
        ready.launch(s)
    with pytest.raises(CudaError, match="ILLEGAL_STATE"), s.capture(), s.capture():
        pass
    ready.launch(s)
    assert np.array_equal(work.y.numpy(s), 2 * work.host)


def test_an_error_in_the_block_is_what_is_raised(device, work):
    with pytest.raises(ZeroDivisionError):
        captured(device, work, lambda device, work: 1 / 0)
    work.stream.synchronize()
    assert (work.y.numpy(work.stream) == 0).all()


def test_only_streams_of_the_device_are_captured_and_launched_on(device, work):
    with (
        pytest.raises(GraphError, match="legacy default stream"),
        device.capture(SimpleNamespace(__cuda_stream__=lambda: (0, 0))),
    ):
        pass
    with work.stream.capture() as graph:
        scale(device, work.stream, work.x, work.y, 2.0)
    ready = graph.instantiate()
    with cudakit.Device("sim", fresh=True) as elsewhere, elsewhere.stream() as stream, pytest.raises(DeviceMismatch):
        ready.launch(stream)
    with pytest.raises(TypeError):
        ready.launch(0)
    closed = device.stream()
    closed.close()
    with pytest.raises(Closed):
        ready.launch(closed)


# The driver's results -------------------------------------------------------------------------------------------------

R, ACTIVE, BROKEN = cu.CUresult, 1, 2
# An H200's result of a call while `s` is captured in relaxed mode, and the capture's state after it.
ANSWERS = {
    "cuStreamSynchronize": (lambda d, w: d.cuStreamSynchronize(w.stream.handle), 900, BROKEN),
    "cuStreamQuery": (lambda d, w: d.cuStreamQuery(w.stream.handle), 900, BROKEN),
    "cuCtxSynchronize": (lambda d, w: d.cuCtxSynchronize(), 900, BROKEN),
    "another stream": (lambda d, w: d.cuStreamSynchronize(w.other.handle), 0, ACTIVE),
    "an event outside": (lambda d, w: d.cuEventQuery(w.event.handle), 0, ACTIVE),
    "wait for one": (lambda d, w: d.cuStreamWaitEvent(w.stream.handle, w.event.handle, 0), 905, BROKEN),
    "wait for none": (lambda d, w: d.cuStreamWaitEvent(w.stream.handle, w.never.handle, 0), 0, ACTIVE),
    "an event inside": (lambda d, w: (w.never.record(w.stream), d.cuEventQuery(w.never.handle))[1], 907, BROKEN),
    "free": (lambda d, w: d.cuMemFreeAsync(w.x.pointer, w.stream.handle), 1, ACTIVE),
    "begin": (lambda d, w: d.cuStreamBeginCapture(w.stream.handle, relaxed(d)), 401, ACTIVE),
    "launch": (lambda d, w: d.cuGraphLaunch(w.ready.handle, w.stream.handle), 900, BROKEN),
}


def relaxed(driver):
    return driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


@pytest.mark.parametrize("name", ANSWERS)
def test_the_driver_answers_as_an_h200(device, work, name):
    driver, s = device.context.driver, work.stream
    work.event, work.never = s.record(), device.event()
    with s.capture() as graph:
        scale(device, s, work.x, work.y, 2.0)
    work.ready = graph.instantiate()
    s.synchronize()
    call, code, state = ANSWERS[name]
    assert int(driver.cuStreamBeginCapture(s.handle, relaxed(driver))[0]) == 0
    scale(device, s, work.x, work.y, 2.0)
    answer = call(driver, work)
    status = driver.cuStreamIsCapturing(s.handle)
    ended = driver.cuStreamEndCapture(s.handle)
    assert int(answer[0]) == code
    assert (int(status[0]), int(status[1])) == (0, state)
    assert int(ended[0]) == (901 if state == BROKEN else 0)
    if state == ACTIVE:
        assert int(driver.cuGraphDestroy(ended[1])[0]) == 0
    assert int(driver.cuStreamIsCapturing(s.handle)[1]) == 0
    assert int(driver.cuStreamEndCapture(s.handle)[0]) == int(R.CUDA_ERROR_ILLEGAL_STATE)


def test_the_legacy_default_stream_waits_for_blocking_streams_that_are_captured(device, work):
    driver, default = device.context.driver, device.default_stream
    implicit = R.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    assert driver.cuStreamBeginCapture(0, relaxed(driver))[0] == R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    assert int(driver.cuStreamBeginCapture(default.handle, relaxed(driver))[0]) == 0
    scale(device, default, work.x, work.y, 2.0)
    assert driver.cuStreamIsCapturing(0)[0] == implicit
    assert int(driver.cuStreamIsCapturing(default.handle)[1]) == ACTIVE
    assert driver.cuMemsetD8Async(work.z.pointer, 0, 4, 0)[0] == implicit
    assert driver.cuStreamEndCapture(default.handle)[0] == R.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    default.synchronize()


def test_the_driver_tells_what_a_graph_holds(device, work):
    driver, s, t = device.context.driver, work.stream, work.other
    with s.capture() as graph:
        scale(device, s, work.x, work.y, 2.0)
        t.wait(s)
        scale(device, t, work.x, work.z, 2.0)
        s.wait(t)
        work.y.copy_from(work.z, s)
    first, second, copy = graph.nodes
    code, nodes, count = driver.cuGraphGetNodes(graph.handle, 5)
    assert (int(code), count) == (0, 3)
    assert [int(node) for node in nodes[3:]] == [0, 0]
    assert {int(node) for node in nodes[:3]} == {int(node.handle) for node in graph.nodes}
    waits = driver.cuGraphNodeGetDependencies(copy.handle, 4)
    assert {int(node) for node in waits[1][: waits[-1]]} == {int(second.handle), int(first.handle)}
    params = driver.cuGraphKernelNodeGetParams(second.handle)[1]
    assert (int(params.func), params.gridDimX, params.blockDimX) == (int(second.kernel.handle), GRID, BLOCK)
    code, params = driver.cuGraphMemcpyNodeGetParams(copy.handle)
    assert (int(params.srcDevice), int(params.dstDevice)) == (work.z.pointer, work.y.pointer)
    assert driver.cuGraphMemcpyNodeGetParams(first.handle)[0] == R.CUDA_ERROR_INVALID_VALUE


# Captured functions ---------------------------------------------------------------------------------------------------


def test_a_captured_function_captures_once_for_each_set_of_arrays(device, work):
    s, x, y = work.stream, work.x, work.y
    queued = []

    @graphs.captured
    def step(stream, source, target, factor):
        """Scale."""
        queued.append(factor)
        scale(device, stream, source, target, factor)
        return target

    assert step.__doc__ == "Scale."
    for _ in range(3):
        assert step(s, x, y, 2.0) is y
        step(s, y, x, 0.5)
    assert queued == [2.0, 0.5]
    assert len(step) == 2
    step(s, x[:], y.reshape(N), 2.0)  # the same memory, shape, strides and dtype by other objects
    step(work.other, x, y, 2.0)
    work.other.synchronize()
    assert len(queued) == 2
    step(s, x, y, 3.0)
    step(s, x.view("int32").view("float32")[::1], y, 3.0)
    assert queued == [2.0, 0.5, 3.0]
    assert np.array_equal(y.numpy(s), 3 * work.host)
    # numbers are compared by their bits
    for factor in (0.0, -0.0, float("nan"), float("nan"), np.float32(3.0)):
        step(s, x, y, factor)
    assert len(queued) == 7
    step.close()
    assert len(step) == 0


def test_a_captured_function_keeps_a_bounded_number_of_graphs(device, work):
    s, x, y = work.stream, work.x, work.y
    step = graphs.captured(lambda stream, factor: scale(device, stream, x, y, factor), most=2)
    for factor in (1.0, 2.0, 3.0, 1.0):
        step(s, factor)
        assert np.array_equal(y.numpy(s), np.float32(factor) * work.host)
    assert len(step) == 2


def test_a_captured_function_works_on_the_stream_of_a_chunk(device, work):
    chunk = SimpleNamespace(stream=work.stream)
    step = graphs.captured(lambda chunk, x, y: scale(device, chunk.stream, x, y, 2.0))
    for _ in range(2):
        step(chunk, work.x, work.y)
    assert np.array_equal(work.y.numpy(work.stream), 2 * work.host)


def test_a_captured_function_in_a_pipeline(device):
    """A graph for each set of buffers, and one for the short chunk at the end; the rest of the chunks are replays."""
    items = np.stack([numbers(seed) for seed in range(20)])
    queued = []

    @graphs.captured
    def twice(chunk, x, y):
        queued.append(len(x))
        n = x.size
        module(device)["scale"].launch(chunk.stream, -(-n // BLOCK), BLOCK, args=(x, y, 2.0, n))
        module(device)["add"].launch(chunk.stream, -(-n // BLOCK), BLOCK, args=(x, y, n))

    result = np.zeros_like(items)
    pipeline.run(twice, items, result, devices=device, chunk=3, streams=2, measure=False)
    assert np.array_equal(result, 2 * items + items)
    assert 2 <= len(queued) == len(twice) <= 4 < len(items) // 3
    twice.close()


def test_a_captured_function_may_queue_nothing(device, work):
    queued = []
    step = graphs.captured(lambda stream, x, y, z: queued.append(x.size) or "nothing")
    assert [step(work.stream, work.x[:0], None, "text") for _ in range(2)] == ["nothing", "nothing"]
    assert queued == [0]


def test_a_captured_function_finds_a_new_array_at_an_old_address(device):
    with device.stream() as s:
        y = device.empty((N,), stream=s)
        step = graphs.captured(lambda stream, x, y: scale(device, stream, x, y, 2.0))
        for seed in range(3):
            with device.array(numbers(seed), stream=s) as x:
                step(s, x, y)
                assert np.array_equal(y.numpy(s), 2 * numbers(seed))


def test_a_captured_function_is_called_with_what_it_can_know_again(device, work):
    step = graphs.captured(lambda stream, x: None)
    with pytest.raises(TypeError, match="got list"):
        step(work.stream, [work.x])
    with pytest.raises(TypeError, match="first argument of a captured function must be a stream"):
        step(work.x, work.x)


def test_a_captured_function_that_queues_elsewhere_is_told(device) -> None:
    x, y = device.array(np.ones(8, np.float32)), device.zeros(8)
    elsewhere = device.stream()
    device.synchronize()
    step = graphs.captured(lambda stream, a, b: b.copy_from(a, elsewhere))
    with device.stream() as stream, pytest.raises(GraphError, match="queued nothing on"):
        step(stream, x, y)
    with pytest.raises(TypeError, match="needs a function, got NoneType"):
        graphs.captured(None)
    with pytest.raises(ValueError, match=r"most must be at least 1.*got 0"):
        graphs.captured(print, most=0)
