"""Timing: GPU time by events around batches of launches, host time per call in bursts.

Two events add one to two microseconds to a single launch, and a kernel shorter than its launch leaves the GPU waiting
for the host. So launches are timed in batches of about a millisecond, and the stream is held while the host queues a
batch, so that only GPU time is measured. Peers are timed by the same code on the same stream.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.driver.stream import Stream

Launch = Callable[[], object]

# Launches per batch. The launch queue has about a thousand entries and blocks the host when it is full.
BURST = 200
BATCH_MS = 1.0
# The launches of `GpuTimer.back_to_back`: untimed, then timed.
WARM_UPS, RUNS = 10, 50
# The longest time that a stream is held, in nanoseconds; it limits the delay that a slow host can cause.
LONGEST_HOLD_NS = 50_000_000

_HOLD = """
// Keeps the stream busy for `nanoseconds`, so that work queued after it starts without gaps.
__global__ void hold(unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
}
"""


@dataclass(frozen=True)
class Spread:
    """Median and percentiles of repeated measurements. `n`: the number of samples; a sample of GPU time is the mean of
    one batch."""

    median: float
    p10: float
    p90: float
    n: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Return the spread of at least one sample."""
        if not samples:
            raise ValueError("a spread needs at least one sample, got none")
        p10, median, p90 = np.percentile(np.asarray(samples, dtype=np.float64), (10, 50, 90))
        return cls(float(median), float(p10), float(p90), len(samples))

    def scaled(self, factor: float) -> Spread:
        return Spread(self.median * factor, self.p10 * factor, self.p90 * factor, self.n)

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


class GpuTimer:
    """Times launches on one stream of a GPU. Raises ValueError for a simulated device, which does not model time."""

    def __init__(self, device: Device, stream: Stream, *, budget_ms: float = 200.0) -> None:
        if device.kind != "gpu":
            raise ValueError(f"{device.name} does not model time: read its counters (Device.counters) instead")
        self.stream = stream
        self.budget_ms = budget_ms
        self._hold = device.compile(source=_HOLD, name="hold.cu")["hold"]

    def time(self, launches: Sequence[Launch]) -> Spread:
        """Return milliseconds per launch. `launches` do the same work on different memory and are called in turns.

        A launch must only queue work on this timer's stream.
        """
        if not launches:
            raise ValueError("nothing to time: pass at least one launch")
        turn = 0

        def run(count: int) -> None:
            nonlocal turn
            for _ in range(count):
                launches[turn % len(launches)]()
                turn += 1

        run(1)
        self.stream.synchronize()
        # The first launch loads and allocates; later ones do not.
        estimate = max(self._batch(run, 1, 0), 1e-4)
        batch = max(1, min(BURST, math.ceil(BATCH_MS / estimate)))
        hold = 0
        if batch > 1:
            begin = time.perf_counter_ns()
            run(batch)
            hold = min(LONGEST_HOLD_NS, 20_000 + (time.perf_counter_ns() - begin) * 3 // 2)
            self.stream.synchronize()
            estimate = max(self._batch(run, batch, hold), 1e-4)
        samples = max(3, min(100, math.ceil(self.budget_ms / (estimate * batch))))
        return Spread.of([self._batch(run, batch, hold) for _ in range(samples)])

    def back_to_back(self, launch: Launch) -> float:
        """Return milliseconds per launch of RUNS launches in a row on the same memory, after WARM_UPS launches.

        Most tutorials time kernels like this. Unlike `time`, the result includes the gaps between launches if the host
        queues them more slowly than the GPU runs them, and small inputs are read from the L2.
        """
        for _ in range(WARM_UPS):
            launch()
        start = self.stream.record(timing=True)
        for _ in range(RUNS):
            launch()
        stop = self.stream.record(timing=True)
        stop.synchronize()
        return float(stop.elapsed_since(start)) / RUNS

    def _batch(self, run: Callable[[int], None], count: int, hold: int) -> float:
        """Return milliseconds per launch of `count` launches, queued while the stream is held for `hold`
        nanoseconds."""
        if hold:
            self._hold.launch(self.stream, grid=1, block=1, args=(hold,))
        start = self.stream.record(timing=True)
        run(count)
        stop = self.stream.record(timing=True)
        stop.synchronize()
        return float(stop.elapsed_since(start)) / count


def rotations(bytes_touched: int, l2_bytes: int, *, free_bytes: int | None = None, most: int = 256) -> int:
    """Return the number of copies of a problem that together are three times as large as the L2, so that no launch
    finds its inputs there.

    The number is at least one, at most `most`, and limited by `free_bytes` of device memory.
    """
    count = math.ceil(3 * l2_bytes / max(bytes_touched, 1))
    if free_bytes is not None:
        count = min(count, free_bytes // max(bytes_touched, 1))
    return max(1, min(count, most))


@dataclass(frozen=True)
class Burst:
    """A measurement of the host time of `call`: `count` timed calls after `lead` untimed calls. All are made within the
    context that `within` returns; entering it is not timed."""

    call: Launch
    count: int = BURST
    lead: int = 0
    within: Callable[[], AbstractContextManager[Any]] = nullcontext

    def microseconds(self) -> float:
        """Run one burst and return the host's microseconds per call."""
        call = self.call
        with self.within():
            for _ in range(self.lead):
                call()
            begin = time.perf_counter_ns()
            for _ in range(self.count):
                call()
            return (time.perf_counter_ns() - begin) / self.count / 1000


def host_costs(
    calls: Mapping[str, Launch | Burst], settle: Launch, *, burst: int = BURST, bursts: int = 50
) -> dict[str, Spread]:
    """Return the host's microseconds per call of each of `calls`, measured in bursts; `settle` is called after each
    burst.

    Bursts of the different calls alternate, so that a change of the clock affects all of them equally. Bursts stay well
    below the depth of the launch queue: with a full queue the host would wait for the GPU.
    """
    each = {name: call if isinstance(call, Burst) else Burst(call, burst) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(bursts + 1):
        for name, measured in each.items():
            took = measured.microseconds()
            settle()
            if number:  # the first burst warms up
                samples[name].append(took)
    return {name: Spread.of(taken) for name, taken in samples.items()}


def wall_clock(
    work: Launch, *, budget_s: float = 0.3, most: int = 20, least: int = 1, longest_s: float = 10.0
) -> Spread:
    """Return milliseconds of `work` by the host's clock, for CPU work or work that ends with a synchronisation.

    Args:
        work: The call to time.
        budget_s: No further call is made after this many seconds, except to reach `least`.
        most: The largest number of calls.
        least: The smallest number of calls; fewer are made only if they take more than `longest_s`.
        longest_s: No further call is made after this many seconds, except the first one.

    Returns:
        The spread of the calls' times.
    """
    samples: list[float] = []
    spent = 0.0
    while not samples or (len(samples) < most and spent < (longest_s if len(samples) < least else budget_s)):
        begin = time.perf_counter()
        work()
        took = time.perf_counter() - begin
        spent += took
        samples.append(took * 1000)
    return Spread.of(samples)
