"""Many threads on one device, each on a stream of its own."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from core_fixtures import DEVICES, opened

from cudakit.driver import driver as drivers
from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.errors import Closed, ContextLost, CudaError, DeviceFault
from cudakit.memory import array as memory
from cudakit.memory import makers

THREADS = 8


@pytest.fixture(params=DEVICES)
def context(request):
    with opened(request.param) as made:
        yield made


def together(work, count=THREADS):
    """Results of `work(number)` on `count` threads that start at once; raises what any raised."""
    barrier = threading.Barrier(count)

    def start(number):
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def test_each_on_its_own_stream(context):
    def work(number):
        with Stream(context) as stream:
            total = 0
            for round_ in range(5):
                host = np.full((33, 17), number * 100 + round_, np.int32)
                array = makers.array(context, stream, host)
                other = makers.zeros(context, stream, (17, 33), np.int32)
                other.T.copy_from(array)
                total += int(other.numpy().sum())
            return total

    assert together(work) == [33 * 17 * (5 * number * 100 + 10) for number in range(THREADS)]


def test_all_on_one_stream(context):
    with Stream(context) as stream:

        def work(number):
            return makers.full(context, stream, (257,), number, np.int64).numpy().sum()

        assert together(work) == [257 * number for number in range(THREADS)]


def test_objects_made_on_one_thread_die_on_another(context):
    made = together(lambda number: (Stream(context), makers.zeros(context, Stream(context), (100,))))
    del made
    gc.collect()
    context.synchronize()
    if context.kind == "sim":
        assert context.driver.simStats().allocations == 0
        assert context.driver.simStats().streams == 0


def test_pinned_copies_from_many_threads(context):
    def work(number):
        stream = Stream(context)
        array = memory.empty(context, stream, (1000,), np.int32)
        for value in range(40):
            source = makers.pinned(context, (1000,), np.int32)
            source[:] = value
            array.copy_from(source)
        return int(array.numpy()[0])

    assert together(work) == [39] * THREADS
    context.synchronize()
    assert len(context.in_flight) == 0
    gc.collect()
    if context.kind == "sim":
        assert context.driver.simStats().pinned == 0


def test_a_context_lost_on_one_thread_is_lost_on_all():
    with opened("sim") as context:
        streams = [Stream(context) for _ in range(THREADS)]
        context.driver.simInject("context_lost")

        def work(number):
            for _ in range(3):
                try:
                    streams[number].synchronize()
                    makers.zeros(context, streams[number], (10,))
                except ContextLost as error:
                    return type(error)
            return None

        kinds = together(work)
        assert set(kinds) <= {ContextLost, DeviceFault}
        assert DeviceFault in kinds
        assert isinstance(context.lost, DeviceFault)


def test_closing_while_others_work():
    """They get an error; nothing hangs or leaks."""
    driver = drivers.open("sim", fresh=True).driver
    context = Context(drivers.Opened(driver, 0, "sim", "sim"))

    def work(number):
        if number == 0:
            time.sleep(0.05)
            context.close()
            return "closed it"
        try:
            while True:
                makers.zeros(context, Stream(context), (10,)).numpy()
        except (Closed, CudaError) as error:
            # CudaError: the call was under way when the context went.
            return type(error).__name__

    assert set(together(work, 4)) <= {"closed it", "Closed", "CudaError", "ContextLost", "DeviceFault"}
    gc.collect()
    stats = driver.simStats()
    assert (stats.allocations, stats.streams, stats.contexts) == (0, 0, 0)


SOURCE = """
extern "C" __global__ void add(int* data, int count, int value)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        data[i] += value;
}
"""


def test_launches_from_many_threads(device):
    """One kernel object, launched by every thread on its own stream: plans are a thread's own."""
    kernel = device.compile(source=SOURCE, name="add.cu")["add"]

    def work(number):
        with device.stream() as stream:
            data = device.zeros(1000 + number, np.int32, stream=stream)
            for round_ in range(10):
                kernel.launch(stream, grid=5, block=256, args=(data, 1000 + number, number + round_))
            return set(data.numpy(stream=stream).tolist())

    assert together(work) == [{10 * number + 45} for number in range(THREADS)]


def test_rubbish_collected_in_the_middle_of_a_call():
    """Finalizers call the driver whenever the collector runs, and the driver must be at rest then."""

    class Node:
        pass

    with opened("sim") as context:
        streams = [Stream(context) for _ in range(3)]
        threshold = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for number in range(300):
                node = Node()
                node.itself = node
                node.array = makers.zeros(context, streams[number % 3], (16,), np.int32)
                node.source = makers.pinned(context, (16,), np.int32)
                node.source[:] = number
                node.stream = Stream(context)
                node.stream.wait(node.array.stream)
                node.array.copy_from(node.source, node.stream)
                if number % 7 == 0:
                    context.synchronize()
        finally:
            gc.set_threshold(*threshold)
        assert gc.isenabled()
        del node
        gc.collect()
        context.synchronize()
        stats = context.driver.simStats()
        assert (stats.allocations, stats.streams) == (0, 3)
