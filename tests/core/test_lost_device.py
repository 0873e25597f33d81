"""A lost simulated device: the next one starts clean, and the failed run's memory is released."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from traceback import walk_stack
from types import FrameType

import numpy as np
import pytest

import cudakit
from cudakit.driver import driver as drivers

N = 1 << 20  # floats in the arrays of a failed run: 4 MiB

SOURCE = """
__global__ void overrun(float* x, int n) { x[n + threadIdx.x] = 1.0f; }
__global__ void speaks(int* y) { printf("running\\n"); *y = 7; }
"""


@pytest.fixture
def shared() -> Iterator[None]:
    """The process's shared simulated devices are this test's own."""
    with drivers.watching():
        yield


def fault(device: cudakit.Device) -> None:
    """A run that fails: arrays and pinned memory of its own, copies in flight, and a kernel with an overrun."""
    kernel = device.compile(source=SOURCE, name="lost.cu")["overrun"]
    x = device.zeros(N)
    host = device.pinned(N)
    host[:] = 1
    x.copy_from(host)
    with device.stream() as other:
        device.zeros(N, stream=other)
    kernel.launch(device.default_stream, grid=1, block=32, args=(x, N))
    device.synchronize()


def interrupt(device: cudakit.Device) -> None:
    """A run that Ctrl-C ends in the middle of a kernel."""
    x = device.zeros(N)
    host = device.pinned(N)
    host[:] = 1
    x.copy_from(host)
    y = device.zeros(1, "int32")
    kernel = device.compile(source=SOURCE, name="lost.cu")["speaks"]
    device.synchronize()
    device.context.driver.printf = lambda text: signal.raise_signal(signal.SIGINT)
    kernel.launch(device.default_stream, grid=1, block=1, args=(y,))
    device.synchronize()


def lose(device: cudakit.Device) -> None:
    """A run whose context is lost by a failure of the device, such as an ECC error."""
    x = device.zeros(N)
    host = device.pinned(N)
    host[:] = 1
    x.copy_from(host)
    device.context.driver.simInject("context_lost")
    device.synchronize()


WAYS = {
    "fault": (fault, cudakit.DeviceFault),
    "Ctrl-C": (interrupt, KeyboardInterrupt),
    "ECC": (lose, cudakit.DeviceFault),
}


def works(device: cudakit.Device) -> None:
    with device.stream() as stream, device.array(np.arange(5, dtype=np.float32), stream=stream) as x:
        assert x.numpy().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("way", WAYS)
def test_the_next_device_starts_fresh_and_the_lost_one_holds_nothing(way: str) -> None:
    run, kind = WAYS[way]
    device = cudakit.Device("sim")
    driver = device.context.driver
    with pytest.raises(kind):
        run(device)
    # At once, with no call on the lost device between; the lost one and its error are still held.
    again = cudakit.Device("sim")
    assert again.context.driver is not driver
    works(again)
    with pytest.raises(cudakit.ContextLost, match="a new Device"):
        device.synchronize()
    gc.collect()
    stats = driver.simStats()
    assert (stats.allocations, stats.bytes, stats.pinned, stats.pending) == (0, 0, 0, 0)
    device.close()
    works(again)


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("way", WAYS)
def test_repeated_losses_do_not_add_up_while_the_lost_devices_are_held(way: str) -> None:
    run, kind = WAYS[way]
    held = []

    def once() -> int:
        device = cudakit.Device("sim")
        with pytest.raises(kind):
            run(device)
        with pytest.raises(cudakit.ContextLost):
            device.synchronize()
        held.append(device)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    once()
    tracemalloc.start()
    try:
        first, second = once(), once()
    finally:
        tracemalloc.stop()
    assert second - first < N  # one array alone has 4 N bytes


def test_the_error_that_lost_a_device_keeps_no_frames(sim: cudakit.Device) -> None:
    class Local:
        pass

    seen: list[weakref.ref[Local]] = []

    def failing() -> None:
        local = Local()
        seen.append(weakref.ref(local))
        fault(sim)

    with pytest.raises(cudakit.DeviceFault):
        failing()
    with pytest.raises(cudakit.ContextLost) as again:
        sim.synchronize()
    assert again.value.report is not None
    gc.collect()
    assert seen[0]() is None


def test_pinned_memory_stays_readable_after_a_loss(sim: cudakit.Device) -> None:
    host = sim.pinned(1000)
    host[:] = 3
    with pytest.raises(cudakit.DeviceFault):
        fault(sim)
    gc.collect()
    assert sim.context.driver.simStats().pinned == 1
    assert (host == 3).all()
    del host
    assert sim.context.driver.simStats().pinned == 0


@pytest.mark.usefixtures("shared")
def test_threads_that_wait_for_an_interrupted_device_learn_of_it_and_go_on_with_a_new_one() -> None:
    device = cudakit.Device("sim")
    kernel = device.compile(source=SOURCE, name="lost.cu")["speaks"]
    y = device.zeros(1, "int32")
    device.synchronize()
    said: list[str] = []
    begun = threading.Event()

    def wait() -> None:
        begun.wait(20)
        try:
            device.synchronize()
        except cudakit.ContextLost as error:
            said.append(str(error))
        works(cudakit.Device("sim"))
        said.append("works")

    def stop(text: str) -> None:
        begun.set()
        signal.raise_signal(signal.SIGINT)

    device.context.driver.printf = stop
    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    kernel.launch(device.default_stream, grid=1, block=1, args=(y,))
    with pytest.raises(KeyboardInterrupt):
        device.synchronize()
    for thread in threads:
        thread.join(60)
    assert said.count("works") == 3
    assert sum("interrupted: kernel speaks did not finish" in text for text in said) == 3


def test_an_interrupt_while_another_thread_runs_the_kernel_loses_nothing(sim: cudakit.Device) -> None:
    kernel = sim.compile(source=SOURCE, name="lost.cu")["speaks"]
    y = sim.zeros(1, "int32")
    sim.synchronize()
    running, waiting = threading.Event(), threading.Event()

    def hold(text: str) -> None:
        running.set()
        waiting.wait(20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    sim.context.driver.printf = hold
    kernel.launch(sim.default_stream, grid=1, block=1, args=(y,))
    thread = threading.Thread(target=sim.synchronize)
    thread.start()

    def wait() -> None:
        running.wait(20)
        waiting.set()
        end = time.monotonic() + 20
        while time.monotonic() < end:
            sim.synchronize()

    with pytest.raises(KeyboardInterrupt):
        wait()
    thread.join(20)
    assert y.numpy().tolist() == [7]


def interrupted_after(count: int, work: Callable[[], object]) -> bool:
    """Whether Ctrl-C struck: at the simulated driver's `count`th call of a function of its own in `work`."""
    left = count

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        file = frame.f_code.co_filename
        if event == "call" and "cudakit/sim/driver" in file and not file.endswith("lock.py"):
            left -= 1
            # Python itself drops what is raised in a finalizer.
            if left <= 0 and weakref.__file__ not in (caller.f_code.co_filename for caller, _ in walk_stack(frame)):
                left = sys.maxsize
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.usefixtures("shared")
def test_after_an_interrupt_anywhere_in_the_driver_a_device_works_or_says_that_it_is_lost() -> None:
    kinds, held = set(), []
    count = 1
    while True:
        device = cudakit.Device("sim")
        held.append(device)  # not freed in the middle of what is interrupted
        if not interrupted_after(count, lambda device=device: works(device)):
            break
        try:
            works(device)
            kinds.add("works")
        except cudakit.ContextLost:
            kinds.add("lost")
        works(cudakit.Device("sim"))
        count += 7
    assert kinds == {"works", "lost"}
    assert count > 100
