"""The checks of one batch, as those of asynchronous accesses use them; guard.py makes them."""

from __future__ import annotations

from typing import Any, Protocol

from cudakit.sim.checks.events import Events
from cudakit.sim.checks.global_memory import GlobalChecks
from cudakit.sim.checks.ordering import BatchOrder
from cudakit.sim.checks.releases import BlockFences
from cudakit.sim.checks.shared_memory import SharedChecks
from cudakit.sim.lockstep.fragment import Batch
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.pieces import Piece
from cudakit.sim.lockstep.report import Other


class BatchChecks(Protocol):
    """The checks of one batch. ``race``: whether races are checked."""

    batch: Batch
    events: Events
    order: BatchOrder
    fences: BlockFences
    cluster_fences: BlockFences | None
    memory: GlobalChecks
    shared: SharedChecks | None
    race: bool

    def read(self, f: Any, access: Any, pieces: list[Piece]) -> None:
        """Check a load."""

    def write(self, f: Any, access: Any, pieces: list[Piece], values: Array) -> None:
        """Check a store."""

    def update(self, f: Any, access: Any, pieces: list[Piece], *, reads: bool) -> None:
        """Check an atomic."""


def other_of(checks: BatchChecks, event: int, lane: int) -> tuple[Other, ...]:
    """The access of a lane of the batch at an event, for a report."""
    return (checks.batch.other(checks.events.site(event), lane),)
