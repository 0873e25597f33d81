"""Launches in a capture that another library began: first launches, prepared ones, arrays dropped meanwhile."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cu
from graph_work import BLOCK, GRID, SOURCE, N, numbers

import cudakit
from cudakit.errors import GraphError
from cudakit.memory.allocation import Allocation, trim
from cudakit.memory.scratch import scratch

MODES = cu.CUstreamCaptureMode


class Library:
    """A stand-in for another library: it captures its own stream in a given mode, and replays the graph.

    The stream is destroyed with the object, as other libraries' are: an array that it uses keeps the object.
    """

    def __init__(self, device: cudakit.Device) -> None:
        self.context, self.driver = device.context, device.context.driver
        self.handle = self.context.call("cuStreamCreate", 1)
        self.graph = self.ready = None
        weakref.finalize(self, self.context.attempt, "cuStreamDestroy", self.handle).atexit = False

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, int(self.handle)

    def begin(self, mode: Any = MODES.CU_STREAM_CAPTURE_MODE_GLOBAL) -> None:
        self.context.call("cuStreamBeginCapture", self.handle, mode)

    def end(self) -> int:
        """The number of nodes that were captured."""
        self.graph = self.context.call("cuStreamEndCapture", self.handle)
        self.ready = self.context.call("cuGraphInstantiate", self.graph, 0)
        return int(self.context.call("cuGraphGetNodes", self.graph, 0)[1])

    def replay(self) -> None:
        self.context.call("cuGraphLaunch", self.ready, self.handle)
        self.context.call("cuStreamSynchronize", self.handle)

    def close(self) -> None:
        if self.ready is not None:
            self.context.call("cuGraphExecDestroy", self.ready)
            self.context.call("cuGraphDestroy", self.graph)


@pytest.fixture
def library(device: cudakit.Device) -> Iterator[Library]:
    made = Library(device)
    yield made
    made.close()


@pytest.fixture
def arrays(device: cudakit.Device) -> Iterator[tuple[cudakit.DeviceArray, cudakit.DeviceArray]]:
    x, y = device.array(numbers()), device.zeros((N,), np.float32)
    device.synchronize()
    yield x, y
    device.synchronize()


def replays(library: Library, x: cudakit.DeviceArray, y: cudakit.DeviceArray, factor: float) -> None:
    """Two replays with new data have y = factor * x."""
    for seed in (1, 2):
        host = numbers(seed)
        library.context.synchronize()
        x.copy_from(host)
        library.context.synchronize()
        library.replay()
        np.testing.assert_allclose(y.numpy(), np.float32(factor) * host, rtol=1e-6)


@pytest.mark.parametrize("mode", ["GLOBAL", "THREAD_LOCAL", "RELAXED"])
def test_a_first_launch_is_captured(device: cudakit.Device, library: Library, arrays: Any, mode: str) -> None:
    x, y = arrays
    source = f"// {mode}\n{SOURCE}"  # a module of its own: it is loaded within the capture
    library.begin(getattr(MODES, f"CU_STREAM_CAPTURE_MODE_{mode}"))
    kernel = device.compile(source=source, name=f"{mode}.cu")["scale"]
    kernel.launch(library, GRID, BLOCK, args=(x, y, 3.0, N))
    assert library.end() == 1
    replays(library, x, y, 3.0)


def test_later_and_prepared_launches_are_captured(device: cudakit.Device, library: Library, arrays: Any) -> None:
    x, y = arrays
    module = device.compile(source=SOURCE, name="graph.cu")
    scale, add = module["scale"], module["add"]
    stream = cudakit.Stream.of(device.context, library)
    scale.launch(stream, GRID, BLOCK, args=(x, y, 2.0, N))
    prepared = add.prepare(grid=GRID, block=BLOCK, args=(x, y, N))
    library.begin()
    scale.launch(stream, GRID, BLOCK, args=(x, y, 2.0, N))
    scale.launch(library, GRID, BLOCK, args=(x, y, 4.0, N))
    prepared.launch(stream)
    prepared.launch(library)
    assert library.end() == 4
    replays(library, x, y, 6.0)


def test_a_launch_with_much_shared_memory_is_captured(device: cudakit.Device, library: Library, arrays: Any) -> None:
    x, y = arrays
    kernel = device.compile(source=f"// much\n{SOURCE}", name="much.cu")["block_sum"]
    library.begin()
    kernel.launch(library, GRID, BLOCK, kernel.max_dynamic_shared, args=(x, y, N))
    assert library.end() == 1
    library.replay()
    sums = [x.numpy()[at : at + BLOCK].sum(dtype=np.float64) for at in range(0, N, BLOCK)]
    np.testing.assert_allclose(y.numpy()[::BLOCK], sums, rtol=1e-4, atol=1e-4)


def test_objects_dropped_in_a_capture_do_not_break_it(device: cudakit.Device, library: Library, arrays: Any) -> None:
    """Their finalizers free memory, unload modules and query events, whichever thread drops them."""
    x, y = arrays
    stream = cudakit.Stream.of(device.context, library)
    scale = device.compile(source=SOURCE, name="graph.cu")["scale"]

    def things() -> list[Any]:
        used, own = device.array(numbers()), device.zeros((N,), stream=stream)
        device.synchronize()
        scale.launch(stream, GRID, BLOCK, args=(used, own, 2.0, N))
        pinned = device.pinned((N,))
        device.array(numbers()).copy_to(pinned)  # in flight
        module = cudakit.launch.module.Module(device.context, scale.module.compiled)
        return [used, own, pinned, module, device.stream(), device.event()]

    here, elsewhere = things(), [things()]
    device.synchronize()
    library.begin()
    scale.launch(stream, GRID, BLOCK, args=(x, y, 3.0, N))
    scale.launch(stream, GRID, BLOCK, args=(here[0], here[1], 3.0, N))
    here.clear()
    thread = threading.Thread(target=elsewhere.clear)
    thread.start()
    thread.join()
    gc.collect()
    device.context.in_flight.prune()
    assert library.end() == 2


def test_memory_dropped_in_a_capture_is_freed_after_it(sim: cudakit.Device) -> None:
    library = Library(sim)
    stream = cudakit.Stream.of(sim.context, library)
    scale = sim.compile(source=SOURCE, name="graph.cu")["scale"]
    x, y = sim.array(numbers()), sim.zeros((N,), stream=stream)
    sim.synchronize()
    before = sim.context.driver.simStats().allocations
    library.begin()
    scale.launch(stream, GRID, BLOCK, args=(x, y, 3.0, N))
    del x, y
    assert sim.context.driver.simStats().allocations == before
    assert library.end() == 1
    with sim.zeros((N,)):
        sim.synchronize()
        assert sim.context.driver.simStats().allocations == before - 1
    library.close()


def test_memory_is_not_made_on_a_captured_stream(device: cudakit.Device, library: Library) -> None:
    """Such memory would belong to the graph, and cudakit could neither keep nor free it."""
    stream = cudakit.Stream.of(device.context, library)
    library.begin()
    with pytest.raises(GraphError, match=r"cannot be allocated on .* while it is being captured"):
        device.empty((N,), stream=stream)
    device.empty((N,)).close()
    assert library.end() == 0


@pytest.mark.parametrize("mode", ["GLOBAL", "THREAD_LOCAL", "RELAXED"])
def test_what_cudakit_makes_meanwhile_does_not_break_a_capture(
    device: cudakit.Device, library: Library, mode: str
) -> None:
    with device.stream() as stream, device.zeros((N,), stream=stream) as x, device.zeros((N,), stream=stream) as y:
        with stream.capture() as graph:
            x.copy_from(y, stream)
        library.begin(getattr(MODES, f"CU_STREAM_CAPTURE_MODE_{mode}"))
        made = [device.empty((N,)), device.zeros((N,)), device.array(numbers()), device.pinned((N,)), device.event()]
        made.append(graph.instantiate())
        assert scratch(stream, 64)
        device.context.set_limit("STACK_SIZE", device.context.limit("STACK_SIZE"))
        trim(device.context, 1 << 30)
        made.clear()
        gc.collect()
        assert library.end() == 0


def test_memory_dropped_in_a_capture_whose_stream_may_be_gone(device: cudakit.Device, library: Library) -> None:
    """The device is waited for, by no call that breaks the capture."""
    with device.stream() as stream:
        x, y = device.zeros((N,)), device.zeros((N,), stream=stream)
        x.used_on(cudakit.Stream(device.context, handle=int(stream)))
        y.used_on(cudakit.Stream(device.context, handle=0))
        device.synchronize()
        library.begin()
        del x, y
        assert library.end() == 0


def test_memory_of_the_legacy_stream_is_freed_after_the_capture_of_a_blocking_stream(device: cudakit.Device) -> None:
    with cudakit.Stream(device.context, blocking=True) as stream:
        x = device.zeros((N,))
        x.used_on(cudakit.Stream(device.context, handle=0))
        kept = weakref.ref(x)
        device.synchronize()
        device.context.call("cuStreamBeginCapture", stream.handle, MODES.CU_STREAM_CAPTURE_MODE_GLOBAL)
        del x
        assert kept() is None
        device.context.call("cuGraphDestroy", device.context.call("cuStreamEndCapture", stream.handle))


def test_memory_that_is_not_of_the_pool_is_freed_with_the_device() -> None:
    """The context itself may live on, held by another library."""
    device = cudakit.Device("sim", fresh=True)
    driver = device.context.driver
    kept = Allocation.unordered(device.context, device.default_stream, 64)
    device.context.own.add(kept)
    assert not driver.cuDevicePrimaryCtxRetain(0)[0]
    assert driver.simStats().bytes == 64
    device.close()
    assert driver.simStats().bytes == 0
    driver.cuDevicePrimaryCtxRelease(0)


@pytest.mark.gpu
def test_scratch_of_another_librarys_graph_is_freed_after_it(gpu: cudakit.Device) -> None:
    """The driver calls back as the graph is destroyed; the next capture frees the memory."""

    def allocations() -> int:
        return sum(isinstance(each, Allocation) for each in gpu.context.made())

    before = allocations()
    for _ in range(6):
        library = Library(gpu)
        library.begin()
        assert scratch(cudakit.Stream.of(gpu.context, library), 1 << 20)
        library.end()
        library.close()
        time.sleep(0.2)  # the driver calls back on a thread of its own
    assert allocations() <= before + 2


def test_a_wrapped_array_dropped_in_a_capture_does_not_break_it(device: cudakit.Device, library: Library) -> None:
    """Keeping it until the stream passes this point would wait for an event that never completes."""
    stream = cudakit.Stream.of(device.context, library)
    library.begin()
    device.context.in_flight.hold(stream.handle, object())
    device.context.in_flight.prune()
    assert library.end() == 0
