"""The host time per call of our functions in cudakit.ops and of the peers' functions, measured in turns in one run.

Our functions get torch tensors if torch is installed and sees the GPU, otherwise cudakit's own arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudakit.errors import ContextLost, CudakitError
from cudakit.measure.peers.installed import torch_on
from cudakit.measure.timing import Burst, Launch, host_costs

if TYPE_CHECKING:
    from cudakit.family import Variant
    from cudakit.measure.case import BenchCase
    from cudakit.measure.peers.peer import Peer
    from cudakit.measure.rows import Row

# Calls per burst, and the maximum GPU time, in milliseconds, that a burst may queue. Bursts of slow kernels have fewer
# calls, because the host waits for all of the GPU's work after each burst.
CALLS, BURST_GPU_MS = 300, 5.0
# Warm-up calls before each burst, which load the code into the host's caches after the wait; and bursts per call.
LEAD, BURSTS = 10, 5


@dataclass(frozen=True)
class _Measured:
    """A call, and the row that receives its cost. within: the context that the call is made in. arrays: the library
    whose arrays the call uses."""

    row: Row
    call: Launch
    within: Any
    arrays: str

    def burst(self) -> Burst:
        """Return a burst that takes at most BURST_GPU_MS of GPU time."""
        device = self.row.times.device
        most = CALLS if device is None else max(1, int(BURST_GPU_MS / device.median))
        return Burst(self.call, min(CALLS, most), min(LEAD, most), self.within)


def take_calls(case: BenchCase, ours: Iterable[tuple[Variant[Any], Row]], theirs: Iterable[tuple[Peer, Row]]) -> None:
    """Measure the host's cost per call of every row whose check passed, on the case's first set of arrays.

    A row gets no cost if users have no call that does its work, or if it is a peer's row and the call fails. If one of
    our calls fails, its row fails.
    """
    measured = [found for variant, row in ours if row.ok and (found := _our_call(case, variant, row)) is not None]
    measured += [found for peer, row in theirs if row.ok and (found := _their_call(case, peer, row)) is not None]
    costs = host_costs(
        {str(number): each.burst() for number, each in enumerate(measured)}, case.stream.synchronize, bursts=BURSTS
    )
    for each, cost in zip(measured, costs.values(), strict=True):
        each.row.called(cost, each.arrays)


def _our_call(case: BenchCase, variant: Variant[Any], row: Row) -> _Measured | None:
    inputs, output = case.sets[0]
    with_torch = torch_on(case.device.ordinal) if case.device.kind == "gpu" else None
    within: Any = nullcontext
    arrays: tuple[Any, Any, Any] = (inputs, output, case.stream)
    if with_torch is not None:
        # Given torch tensors, our functions use torch's current stream, as torch's own functions do.
        within = functools.partial(with_torch.on_stream, case.stream, case.device.ordinal)
        arrays = (*with_torch.tensors(inputs, output), None)
    try:
        call = case.family.call_of(variant, *arrays, **case.options)
        if call is None:
            return None
        _try(call, within(), case)
    except ContextLost:
        row.fail("its function's call lost the device")
        raise
    except (CudakitError, TypeError, ValueError) as error:
        row.fail(f"the call of its function: {error}")
        return None
    return _Measured(row, call, within, "cudakit" if with_torch is None else "torch")


def _their_call(case: BenchCase, peer: Peer, row: Row) -> _Measured | None:
    within = functools.partial(peer.on, case.stream)
    try:
        with within():
            call = peer.call(case.sets[0], case.stream)
        if call is None:
            return None
        _try(call, within(), case)
    except ContextLost:
        raise
    except Exception:  # an error in a peer's code: its row gets no cost
        return None
    return _Measured(row, call, within, peer.arrays)


def _try(call: Launch, within: AbstractContextManager[Any], case: BenchCase) -> None:
    """Make a call once and wait for it."""
    with within:
        call()
    case.stream.synchronize()
