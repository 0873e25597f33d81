"""The division of a cluster run's items among workers, in simulated time."""

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudakit.pipeline.cluster import part_of_host
from cudakit.pipeline.shares import LOSSES, ItemsLost, Shares
from cudakit.pipeline.worker import Place

LIMIT = 100_000  # events: far more than any run needs


def simulated(shares, speeds, losses=()):
    """Run workers of these speeds (items per second) in simulated time, and return the finished ranges with the end.

    losses: (time, worker) at which one leaves the cluster.
    """
    now, order = 0.0, itertools.count()
    events: list[tuple[float, int, str, object]] = [(when, next(order), "lost", worker) for when, worker in losses]
    heapq.heapify(events)
    free = dict.fromkeys(speeds, 0.0)
    computed = dict.fromkeys(speeds, 0)
    dropped, finished = set(), []
    for worker in speeds:
        shares.join(worker)
    for _ in range(LIMIT):
        if shares.over:
            return finished, now
        new, gone = shares.assign(now)
        dropped |= set(gone)
        for share in new:
            free[share.worker] = max(free[share.worker], now) + share.length / speeds[share.worker]
            heapq.heappush(events, (free[share.worker], next(order), "done", share))
        if not events:
            break
        now, _, kind, what = heapq.heappop(events)
        if kind == "lost":
            shares.leave(what)
            dropped |= set(shares.forfeit(what))
        elif what not in dropped:
            computed[what.worker] += what.length
            shares.computed(what.worker, computed[what.worker], now)
            finished.append((what.start, what.stop))
            rival = shares.finish(what, now)
            if rival is not None:
                dropped.add(rival)
                free[rival.worker] = now
    raise AssertionError("the run does not end")


@given(
    count=st.integers(0, 5000), unit=st.integers(1, 70), rivals=st.booleans(),
    speeds=st.lists(st.sampled_from([1.0, 10.0, 90.0, 100.0, 1000.0]), min_size=1, max_size=6), data=st.data(),
)  # fmt: skip
def test_every_item_is_finished_once_whoever_is_lost(count, unit, rivals, speeds, data):
    workers = {f"w{number}": speed for number, speed in enumerate(speeds)}
    most = min(len(workers) - 1, LOSSES - 1)
    lost = data.draw(st.lists(st.sampled_from(sorted(workers)), unique=True, max_size=most))
    losses = [(data.draw(st.floats(0, 50)), worker) for worker in lost]
    begin, end = sorted(data.draw(st.integers(0, count)) // unit * unit for _ in range(2))
    ranges = [(0, begin), (end, count)]
    finished, _ = simulated(Shares(ranges, unit, rivals=rivals), workers, losses)
    times, due = np.zeros(count, int), np.zeros(count, int)
    for start, stop in finished:
        times[start:stop] += 1
        assert start % unit == 0
        assert stop % unit == 0 or stop == count
    for start, stop in ranges:
        due[start:stop] = 1
    np.testing.assert_array_equal(times, due)


@pytest.mark.parametrize("speeds", [[100, 100], [100, 10], [1000, 10, 10], [100, 100, 1], [5, 50, 500]])
def test_workers_end_at_about_the_same_time(speeds):
    workers = {f"w{number}": float(speed) for number, speed in enumerate(speeds)}
    count = 20 * sum(speeds)
    _, end = simulated(Shares([(0, count)], 1, rivals=True), workers)  # of a simulated clock
    assert end < 1.15 * 20


def test_a_stalled_worker_does_not_hold_up_the_end():
    workers = {"slow": 0.01, "quick": 100.0, "other": 100.0}
    _, end = simulated(Shares([(0, 2000)], 1, rivals=True), workers)
    assert end < 30


def test_shares_are_not_doubled_if_results_go_straight_to_their_place():
    shares = Shares([(0, 2000)], 1, rivals=False)
    simulated(shares, {"slow": 1.0, "quick": 100.0})
    assert shares.doubled == 0
    assert shares.taken > 0


@pytest.mark.parametrize(
    ("gpus", "visible", "parts"),
    [
        (2, [None, None], [["gpu:0"], ["gpu:1"]]),
        (4, [None], [["gpu:0", "gpu:1", "gpu:2", "gpu:3"]]),
        (4, [None, None], [["gpu:0", "gpu:2"], ["gpu:1", "gpu:3"]]),
        (1, [None, None, None], [["gpu:0"], ["gpu:0"], ["gpu:0"]]),
        (2, ["0,1", "1,0"], [["gpu:0"], ["gpu:0"]]),
        (0, [None, None], [[], []]),
    ],
)
def test_the_workers_of_a_host_divide_its_gpus(gpus, visible, parts):
    places = [Place("host", names, gpus) for names in visible]
    assert [list(part_of_host(place, number, places)) for number, place in enumerate(places)] == parts


def test_items_that_are_lost_with_every_worker_end_the_run():
    shares = Shares([(0, 100)], 1, rivals=True)
    with pytest.raises(ItemsLost) as caught:  # noqa: PT012
        for number in range(LOSSES):
            shares.join(f"w{number}")
            shares.assign(float(number))
            shares.leave(f"w{number}")
            shares.forfeit(f"w{number}")
    assert caught.value.args[0] == 0
    assert caught.value.args[2] == LOSSES
