"""The host's cost of calls as users write them: ours through cudakit.ops, and the peers', in turns within one run.

Our functions get tensors if torch is installed and sees the GPU, else cudakit's own arrays.
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

# Calls per burst, and the GPU's milliseconds that a burst may queue: bursts of slow kernels have fewer calls, since the
# GPU's whole work is waited for after each of them.
CALLS, BURST_GPU_MS = 300, 5.0
# Calls before each burst, which bring the code back into the host's caches after the wait; and bursts per call.
LEAD, BURSTS = 10, 5


@dataclass(frozen=True)
class _Measured:
    """A call with the row that its cost belongs to. within: the context it is made in. arrays: whose it was given."""

    row: Row
    call: Launch
    within: Any
    arrays: str

    def burst(self) -> Burst:
        """As many calls as the GPU works through in a moment."""
        device = self.row.times.device
        most = CALLS if device is None else max(1, int(BURST_GPU_MS / device.median))
        return Burst(self.call, min(CALLS, most), min(LEAD, most), self.within)


def take_calls(case: BenchCase, ours: Iterable[tuple[Variant[Any], Row]], theirs: Iterable[tuple[Peer, Row]]) -> None:
    """Fills in the host's cost per call of every row that is right, on the case's first set of arrays.

    A row whose work no user's call does is left without one; so is a peer whose call fails. One of ours that fails is a
    false row.
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
        # As its own functions do, ours then take torch's current stream.
        within = functools.partial(with_torch.on_stream, case.stream, case.device.ordinal)
        arrays = (*with_torch.tensors(inputs, output), None)
    try:
        call = case.family.call_of(variant, *arrays, **case.options)
        if call is None:
            return None
        _try(call, within(), case)
    except ContextLost:
        row.fail("the device was lost in the call of its function")
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
    except Exception:  # not our code: its row stands without a cost
        return None
    return _Measured(row, call, within, peer.arrays)


def _try(call: Launch, within: AbstractContextManager[Any], case: BenchCase) -> None:
    """Makes a call once, to its end."""
    with within:
        call()
    case.stream.synchronize()
