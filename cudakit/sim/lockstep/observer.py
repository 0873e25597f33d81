"""The interface of a batch's checks. The machine notifies them through it and does not import them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.pieces import Piece
from cudakit.sim.ptx.ir import Instruction


class AccessObserver(Protocol):
    """Notified of every access of a batch before memory changes, and of all synchronisation. ``f`` is the fragment,
    ``access`` the ``MemoryAccess``. The methods raise KernelFault if a check fails."""

    def read(self, f: Any, access: Any, pieces: list[Piece]) -> None:
        """A load."""

    def write(self, f: Any, access: Any, pieces: list[Piece], values: Array) -> None:
        """A store of ``values`` in memory's dtype: one value per lane or one for all; for a vector, one row per
        lane."""

    def update(self, f: Any, access: Any, pieces: list[Piece], *, reads: bool) -> None:
        """An atomic; ``reads``: the old value is used."""

    def issue(self, f: Any, access: Any, piece: Piece) -> None:
        """cp.async begins to write a piece of shared memory."""

    def land(self, ids: Array, index: Array, access: Any) -> None:
        """The lanes ``ids`` of the batch have waited for copies to ``index`` of shared memory."""

    def begin_async_read(self, f: Any, site: Any, places: Array, lanes: Array) -> Any:
        """The async proxy begins to read chunks of 16 bytes. ``places``: their first bytes in the batch's shared
        memory; ``lanes``: for each, the first lane of the warpgroup that reads it. Returns a token."""

    def end_async_read(self, token: Any, lanes: Array | None = None) -> None:
        """The reads of a token have ended; ``lanes``: only those of these lanes, as passed at their begin."""

    def expect_defined(self, f: Any, position: int, offset: int, size: int, use: Instruction) -> None:
        """printf or assert reads bytes of the local memory of the lane at a position of the fragment."""

    def fence(self, f: Any, scope: int, *, releases: bool, acquires: bool) -> None:
        """A fence; ``scope``: BLOCK, CLUSTER or DEVICE (access.py)."""

    def predecessor_wait(self, lanes: LaneSet) -> None:
        """griddepcontrol.wait."""

    def warp_sync(self, lanes: LaneSet) -> None:
        """bar.warp.sync."""

    def warp_vote(self, lanes: LaneSet) -> None:
        """A shuffle, vote, match or redux."""

    def barrier(self, blocks: Array | None) -> None:
        """All threads of these blocks of the batch (a mask; None: all blocks) have met at a barrier."""

    def cluster_arrive(self, lanes: LaneSet, relaxed: bool) -> None:
        """Lanes arrive at the barrier of their cluster; ``relaxed``: the arrival orders no accesses."""

    def cluster_barrier(self, clusters: Array) -> None:
        """All threads of these clusters of the batch (a mask) have arrived at their barrier."""

    def arrive(self, lanes: LaneSet, number: int) -> None:
        """Lanes arrive at a barrier, which may be for part of a block."""

    def depart(self, lanes: LaneSet, number: int) -> None:
        """Lanes that waited at the barrier continue."""

    def proxy_fence(self, f: Any, *, in_shared: bool, in_global: bool) -> None:
        """fence.proxy.async: earlier accesses of these lanes are ordered before later asynchronous copies."""

    def mbarrier_fence(self, f: Any) -> None:
        """fence.mbarrier_init: asynchronous copies and the cluster see the lanes' initialised mbarriers."""

    def mbarrier_init(self, f: Any, barrier: Any) -> None:
        """An mbarrier has been initialised."""

    def mbarrier_invalid(self, f: Any, site: Any, barrier: Any, lane: int) -> None:
        """A lane of the batch has ended an mbarrier: its memory may be used for something else."""

    def mbarrier_used(self, f: Any, site: Any, barrier: Any, lanes: LaneSet) -> None:
        """Lanes are about to use an mbarrier."""

    def mbarrier_arrive(self, f: Any, site: Any, barrier: Any, lanes: LaneSet) -> None:
        """Lanes arrive at an mbarrier."""

    def mbarrier_complete(self, barrier: Any) -> None:
        """The phase of an mbarrier is complete; its number has gone up already."""

    def mbarrier_wait(self, site: Any, barrier: Any, lanes: LaneSet) -> None:
        """Lanes have waited for the last complete phase of an mbarrier."""

    def mbarrier_known(self, barrier: Any, lane: int, *, last: bool) -> bool:
        """Whether the end of an mbarrier's last phase is sure to happen before now for a lane of the batch."""

    def writer_of(self, position: int) -> tuple[Any, ...]:
        """The last store to a byte of the batch's shared memory, for a report."""

    def map_fence(self, f: Any, places: Array | None) -> None:
        """fence.proxy.tensormap: a release, or an acquire of the tensor maps at these addresses."""

    def map_read(self, f: Any, position: int, site: Any, allocation: Any, address: int) -> None:
        """The lane at a position is about to use the tensor map at an address of global memory."""

    def transfer_issued(self, transfer: Any) -> None:
        """An asynchronous copy starts."""

    def transfer_taken(self, transfer: Any) -> None:
        """An asynchronous copy has read its source, and its thread has waited for that, or it is about to arrive at its
        mbarrier."""

    def transfer_lands(self, transfer: Any) -> None:
        """An asynchronous copy is about to write its destination."""

    def transfers_complete(self, due: Callable[[list[Any]], list[Any]]) -> None:
        """Lanes have waited for the bulk stores that ``due`` selects among those in flight."""

    def leave(self, f: Any) -> None:
        """The lanes of a fragment have exited."""

    def enter(self, lanes: LaneSet, base: int, size: int) -> None:
        """A call: the callee's ``size`` bytes of local memory from ``base`` on are uninitialised."""
