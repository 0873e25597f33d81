"""Records of streams drop closed streams; the cost per stream does not grow with their number."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import numpy as np
import pytest

import cudakit
from cudakit.driver.in_flight import InFlight
from cudakit.sim.driver import allocations, state

MANY = 100


@pytest.fixture(scope="module")
def add_one(device: cudakit.Device) -> cudakit.Kernel:
    source = "__global__ void add_one(float* x) { atomicAdd(x + threadIdx.x, 1.0f); }"
    return device.compile(source=source, name="add_one.cu")["add_one"]


def events(device: cudakit.Device) -> int:
    return int(device.context.driver.simStats().events)


@pytest.mark.parametrize("closing", [True, False], ids=["closed", "dropped"])
def test_an_array_forgets_streams_that_are_gone(device: cudakit.Device, add_one: cudakit.Kernel, closing: bool) -> None:
    x = device.zeros(32)
    device.synchronize()
    for _ in range(MANY):
        stream = device.stream()
        add_one.launch(stream, grid=1, block=32, args=(x,))
        if closing:
            stream.close()
    device.synchronize()
    x.used_on(stream := device.stream())
    del stream
    assert len(x.allocation.uses.others) <= MANY / 2
    if device.kind == "sim":
        before = device.context.driver.simStats()
        assert before.events <= MANY / 2
        assert before.streams <= MANY / 2
    device.synchronize()
    assert (x.numpy() == MANY).all()
    x.close()


def test_a_free_waits_for_streams_that_were_dropped(device: cudakit.Device, add_one: cudakit.Kernel) -> None:
    home = device.stream()
    for _ in range(20):
        x = device.zeros(32, stream=home)
        stream = device.stream()
        stream.wait(home)
        add_one.launch(stream, grid=1, block=32, args=(x,))
        y = device.empty(32, stream=stream)
        y.copy_from(x, stream)
        del stream
        x.close()
        home.synchronize()  # which would raise "freed while in use"
        assert y.numpy().tolist() == [1] * 32


def test_waiting_for_an_array_waits_for_streams_that_were_dropped(
    device: cudakit.Device, add_one: cudakit.Kernel
) -> None:
    x = device.zeros(32)
    device.synchronize()
    add_one.launch(device.stream(), grid=1, block=32, args=(x,))
    x.allocation.uses.synchronize()
    assert x.numpy().tolist() == [1] * 32


def test_a_graph_forgets_streams_that_are_gone(device: cudakit.Device, add_one: cudakit.Kernel) -> None:
    x = device.zeros(32)
    device.synchronize()
    with device.stream() as stream:
        with stream.capture() as graph:
            add_one.launch(stream, grid=1, block=32, args=(x,))
        ready = graph.instantiate()
    for _ in range(MANY):
        with device.stream() as stream:
            ready.launch(stream)
            stream.synchronize()
    gc.collect()
    assert (x.numpy() == MANY).all()
    if device.kind == "sim":
        assert events(device) <= MANY / 2
    ready.close()
    graph.close()


def calls(work: Callable[[], object]) -> int:
    """How many calls of Python functions `work` makes, generators' steps among them."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_the_wait_costs_the_same_for_each_of_many_streams(sim: cudakit.Device, used: bool) -> None:
    arrays = [sim.zeros(4) for _ in range(200 if used else 0)]
    sim.synchronize()

    def opened_and_closed(count: int) -> None:
        for place in range(count):
            with sim.stream() as stream:
                if used:
                    arrays[place].fill(1.0, stream)
        sim.synchronize()

    few = calls(lambda: opened_and_closed(50))
    assert calls(lambda: opened_and_closed(200)) < 4 * 1.5 * few


def test_frees_that_nothing_waits_for_hold_a_bounded_amount_of_memory(
    sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocations, "MOST_FREEING", 1 << 20)
    stats = sim.context.driver.simStats
    for _ in range(20):
        sim.empty(1 << 18, "uint8").close()
        assert stats().freeing <= 1 << 20
    assert stats().freeing == 1 << 20
    sim.synchronize()
    assert stats().freeing == 0


def test_work_that_nothing_waits_for_is_bounded_and_what_the_host_sees_is_left_alone(
    sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MOST_WAITING", 100)
    stats = sim.context.driver.simStats
    x, y = sim.zeros(4), sim.zeros(4)
    host = sim.pinned(4)
    host[:] = 7
    sim.synchronize()
    with sim.stream() as other:
        x.copy_to(host, other)
        for _ in range(300):
            y.fill(1.0)
            assert stats().pending <= 101
        assert not (host == 0).any()
    sim.synchronize()
    assert np.array_equal(host, np.zeros(4))
    assert y.numpy().tolist() == [1] * 4


def test_what_failed_meanwhile_is_raised_by_the_call_that_came_upon_it(
    sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MOST_WAITING", 50)
    x = sim.zeros(4)
    overrun = sim.compile(source="__global__ void k(float* x) { x[4] = 1; }", name="k.cu")["k"]
    sim.synchronize()
    overrun.launch(sim.default_stream, grid=1, block=1, args=(x,))

    def more() -> None:
        for _ in range(60):
            x.fill(1.0)

    with pytest.raises(cudakit.DeviceFault, match="out-of-bounds access"):
        more()


def test_copies_that_nothing_waits_for_hold_a_bounded_amount_of_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InFlight, "MANY_BYTES", 1 << 16)
    with cudakit.Device("sim", fresh=True) as sim:
        x = sim.zeros(1 << 12)  # 16 KiB
        sim.synchronize()
        most = 0
        for _ in range(60):
            host = sim.pinned(1 << 12)
            host[:] = 1
            x.copy_from(host)
            del host
            most = max(most, sim.context.driver.simStats().pinned)
        assert most <= 20
        sim.synchronize()
        assert sim.context.driver.simStats().pinned == 0
        x.close()


def test_graph_launches_that_nothing_waits_for_are_bounded(
    sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MOST_WAITING", 50)
    x = sim.zeros(4)
    sim.synchronize()
    stream = sim.stream()
    with stream.capture() as graph:
        x.fill(1.0, stream)
    ready = graph.instantiate()
    for _ in range(100):
        ready.launch(stream)
        assert sim.context.driver.simStats().pending <= 60
    sim.synchronize()
    ready.close()
    graph.close()
