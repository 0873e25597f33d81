"""The order of accesses within a batch: which of them happened before which others.

Two accesses by threads of one block are ordered by:

- the program order of one thread;
- a barrier of the whole block (``floor``);
- within a warp, a bar.warp.sync or a barrier that both threads have executed since, and chains of releases and
  acquires by lanes that run apart;
- between warps, barriers of part of a block, and chains of releases and acquires (chains.py).

Blocks of a cluster are ordered by barrier.cluster too, and all blocks by the chains between blocks (releases.py).

Shuffles and votes have no memory ordering in PTX, so they do not make a store visible. But data that their members read
before them may be overwritten after them; cooperative groups rely on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.checks.chains import Chains
from cudakit.sim.checks.shadow import LANES
from cudakit.sim.lockstep.fragment import Batch
from cudakit.sim.lockstep.lanes import Array, LaneSet

# the most events, and lanes of them, that are kept out of the chains
_MOST_LATER = 1 << 14
_MOST_LANES_LATER = 1 << 23
_PAIRS_KEPT = 256


class BatchOrder:
    """The synchronisation of one batch so far. Events up to ``floor`` of a block happened before its last barrier,
    those up to ``cluster_floor`` before the last barrier of the cluster (None if there are no clusters)."""

    def __init__(self, batch: Batch) -> None:
        geometry, cluster = batch.geometry, batch.run.cluster_size
        self.geometry, self.first_block = geometry, batch.first_block
        self.threads = geometry.threads
        self.grid = batch.run.config.blocks > 1
        self.floor = np.zeros(geometry.blocks, np.int64)
        self.cluster_size = cluster
        self.cluster_floor = np.zeros(geometry.blocks // cluster, np.int64) if cluster > 1 else None
        # per cluster: its last barrier, even if that orders nothing
        self.cluster_met = np.zeros(geometry.blocks // cluster, np.int64) if cluster > 1 else None
        # per lane: its last bar.warp.sync or barrier of part of the block; per warp: the last one by all its lanes, as
        # a word
        self.synced = np.zeros(geometry.lanes, np.int64)
        self.warp_low = np.zeros(geometry.warps, np.int64)
        # per lane: its last shuffle, vote, match or redux; data that its members read before it may be overwritten
        self.voted = np.zeros(geometry.lanes, np.int64)
        # between warps, and between the lanes of one warp
        self.chains = Chains()
        self.lane_chains = Chains()
        # for each warp and each warp of its cluster: the second warp's latest event known to happen before now
        self.columns = cluster * geometry.warps_per_block
        self.known = np.zeros((geometry.warps, self.columns), np.int64)
        # per barrier of part of a block, and per block: for each warp, the latest event known to the warps that arrived
        self.gathered: dict[int, Array] = {}
        # strong accesses, fences and barriers of part of the block that are not in the chains yet, as calls that enter
        # them once accesses that no barrier orders ask about the chains
        self.later: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.lanes_later = 0
        # whether a fence or a release has happened: strong accesses before it order nothing
        self.stirred = False
        # for pairs of sets: the warps of the first, and for each the warps of the second in its block; None: they share
        # a warp
        self.pairs: dict[tuple[LaneSet, LaneSet], tuple[Array, Array] | None] = {}

    # ---- synchronisation ----

    def passed(self, blocks: Array | None, event: int) -> None:
        """Note that all threads of these blocks (None: all blocks) have passed a barrier."""
        which: Any = slice(None) if blocks is None else blocks
        self.floor[which] = event
        if self.cluster_floor is not None:
            # what one warp of a block knows of other blocks, all of them know now
            rows = self.known.reshape(self.geometry.blocks, -1, self.columns)
            rows[which] = rows[which].max(axis=1, keepdims=True)
        if blocks is None and not self.grid:
            # a chain between blocks may contain what was before
            self.later.clear()
            self.lanes_later = 0

    def met_cluster(self, clusters: Array, event: int) -> None:
        """Note a barrier of these clusters, which may order nothing."""
        if self.cluster_met is not None:
            self.cluster_met[clusters] = event

    def passed_cluster(self, clusters: Array, event: int) -> None:
        """Note that all threads of these clusters have arrived at their barrier."""
        if self.cluster_floor is None:
            self.passed(clusters, event)
        else:
            self.cluster_floor[clusters] = event
            self.floor.reshape(-1, self.cluster_size)[clusters] = event

    def synchronised(self, lanes: LaneSet, event: int) -> None:
        """Note a bar.warp.sync by these lanes."""
        self.synced[lanes.lanes] = event
        if lanes.complete:
            self.warp_low[lanes.warps] = (event + 1) << LANES.shift

    def strong(
        self, event: int, lanes: LaneSet, places: Array, *, reads: bool, writes: bool, release: bool, acquires: bool
    ) -> None:
        """Note a strong access: one location per lane, in the order in which the lanes take effect."""
        self.stirred |= release
        self.lanes_later += lanes.count
        self._enter_later(self._strong, event, lanes, places, reads, writes, release, acquires)

    def awake(self, release: bool) -> bool:
        """Whether a strong access can affect the order; ``release``: it has .release."""
        return release or self.stirred

    def fence(self, lanes: LaneSet, event: int, *, releases: bool, acquires: bool) -> None:
        self.stirred |= releases
        self._enter_later(self._fence, lanes, event, releases, acquires)

    def _strong(
        self, event: int, lanes: LaneSet, places: Array, reads: bool, writes: bool, release: bool, acquires: bool
    ) -> None:
        self.chains.strong(event, lanes.warp, places, reads=reads, writes=writes, release=release, acquires=acquires)
        # a lane acquires what earlier lanes of the same instruction release
        self.lane_chains.strong(
            event, lanes.lanes, places, reads=reads, writes=writes, release=release, acquires=acquires
        )

    def _fence(self, lanes: LaneSet, event: int, releases: bool, acquires: bool) -> None:
        if acquires:
            self.chains.settle(lanes.warps, event)
            self.lane_chains.settle(lanes.lanes, event)
        if releases:
            self.chains.fence(lanes.warps, event)
            self.lane_chains.fence(lanes.lanes, event)

    def arrived(self, lanes: LaneSet, number: int, event: int) -> None:
        """Note the arrival of lanes at a barrier, which may be for part of a block."""
        warps, geometry = lanes.warps, self.geometry
        rows = self.known.take(warps, axis=0)
        rows[np.arange(len(warps)), warps % self.columns] = event
        blocks = warps // geometry.warps_per_block
        starts = np.append(True, blocks[1:] != blocks[:-1]).nonzero()[0]
        here = blocks[starts]
        gathered = self.gathered.get(number)
        if gathered is None:
            gathered = self.gathered[number] = np.zeros((geometry.blocks, self.columns), np.int64)
        gathered[here] = np.maximum(gathered[here], np.maximum.reduceat(rows, starts, axis=0))
        self._enter_later(self._arrived, lanes, number, event)

    def departed(self, lanes: LaneSet, whole: LaneSet | None, number: int, event: int) -> None:
        """Note that lanes which waited at the barrier continue, among them ``whole`` warps."""
        warps = lanes.warps
        gathered = self.gathered[number].take(warps // self.geometry.warps_per_block, axis=0)
        self.known[warps] = np.maximum(self.known.take(warps, axis=0), gathered)
        if whole is not None:
            self.synchronised(whole, event)
        self._enter_later(self._departed, lanes, number, event)

    def _arrived(self, lanes: LaneSet, number: int, event: int) -> None:
        for warp in lanes.warps.tolist():
            self.chains.release(warp, (warp // self.geometry.warps_per_block, number), event)

    def _departed(self, lanes: LaneSet, number: int, event: int) -> None:
        for warp in lanes.warps.tolist():
            self.chains.acquire(event, warp, (warp // self.geometry.warps_per_block, number))

    def released(self, lanes: LaneSet, place: int, event: int) -> None:
        """Note that lanes release at a location, without a memory access."""
        self.stirred = True
        self._enter_later(self._released, lanes, place, event)

    def acquired(self, lanes: LaneSet, place: int, event: int) -> None:
        """Note that lanes acquire at a location, without a memory access."""
        self._enter_later(self._acquired, lanes, place, event)

    def _released(self, lanes: LaneSet, place: int, event: int) -> None:
        for warp in lanes.warps.tolist():
            self.chains.release(warp, place, event)
        for lane in lanes.lanes.tolist():
            self.lane_chains.release(lane, place, event)

    def _acquired(self, lanes: LaneSet, place: int, event: int) -> None:
        for warp in lanes.warps.tolist():
            self.chains.acquire(event, warp, place)
        for lane in lanes.lanes.tolist():
            self.lane_chains.acquire(event, lane, place)

    def _enter_later(self, enter: Callable[..., None], *arguments: Any) -> None:
        self.later.append((enter, arguments))
        if len(self.later) > _MOST_LATER or self.lanes_later > _MOST_LANES_LATER:
            self._enter_now()

    def _enter_now(self) -> None:
        """Enter in the chains what is not in them yet: ``known`` has what barriers alone order."""
        later, self.later, self.lanes_later = self.later, [], 0
        for enter, arguments in later:
            enter(*arguments)

    # ---- order ----

    def ordered(self, mine: Array, theirs: Array, since: Array, were_reads: bool) -> Array:
        """Whether accesses by lanes ``theirs`` at events ``since`` happen before the current accesses of ``mine``,
        which are other lanes of the same blocks. ``were_reads``: the earlier accesses were reads."""
        found: Array = since <= self.floor[mine // self.threads]
        if np.count_nonzero(found) == len(found):
            return found
        warps = self.geometry.warp
        one, another = warps[mine], warps[theirs]
        same = one == another
        if np.count_nonzero(same):
            met = np.maximum(self.synced, self.voted) if were_reads else self.synced
            found |= same & (met[mine] >= since) & (met[theirs] >= since)
            near = np.flatnonzero(~found & same)
            if len(near):
                self._enter_now()
                found[near] = self.lane_chains.all_ordered(theirs[near], since[near], mine[near])
        rest = np.flatnonzero(~found & ~same)
        if len(rest):
            found[rest] = self._chained(another[rest], since[rest], one[rest])
        return found

    def barriers_order(self, event: int, others: LaneSet, lanes: LaneSet) -> bool:
        """Whether barriers of part of the block order all accesses by ``others`` at an event before the current ones of
        ``lanes`` in the same block; False if that is not certain."""
        if (others, lanes) not in self.pairs:
            if len(self.pairs) >= _PAIRS_KEPT:
                self.pairs.clear()
            there = np.zeros(self.geometry.warps, np.bool_)
            there[others.warps] = True
            shared = np.count_nonzero(there[lanes.warps])
            rows = there.reshape(-1, self.columns)[lanes.warps // self.columns]
            self.pairs[others, lanes] = None if shared else (lanes.warps, rows)
        pair = self.pairs[others, lanes]
        return pair is not None and not np.count_nonzero((self.known.take(pair[0], axis=0) < event) & pair[1])

    def knowledge(self, warps: Array) -> Array:
        """The events of the warps of their cluster that warps know of, one row per warp."""
        rows = self.known.take(warps, axis=0)
        # barriers of blocks and of the cluster are not in the table
        if self.cluster_floor is None:
            np.maximum(rows, self.floor[warps // self.columns][:, None], out=rows)
            return rows
        cluster = warps // self.columns
        np.maximum(rows, self.cluster_floor[cluster][:, None], out=rows)
        per_block = self.geometry.warps_per_block
        block = warps // per_block
        inner = block % self.cluster_size
        for place, (one, first) in enumerate(zip(block.tolist(), (inner * per_block).tolist(), strict=True)):
            own = rows[place, first : first + per_block]
            np.maximum(own, self.floor[one], out=own)
        return rows

    def cluster_knows(self, mine: Array, theirs: Array, since: Array) -> Array:
        """Whether accesses by lanes ``theirs`` at events ``since`` happen before now for lanes ``mine`` of other blocks
        of their cluster, as far as barriers show."""
        warps = self.geometry.warp
        found: Array = since <= self.known[warps[mine], warps[theirs] % self.columns]
        if self.cluster_floor is not None:
            found |= since <= self.cluster_floor[mine // (self.threads * self.cluster_size)]
        return found

    def warp_ordered(self, other: int, event: int, one: int) -> bool:
        """Whether an access by warp ``other`` at an event happens before the current access of warp ``one``."""
        if event <= self.known[one, other % self.columns]:
            return True
        self._enter_now()
        return self.chains.ordered(other, event, one)

    def _chained(self, other: Array, since: Array, one: Array) -> Array:
        """Whether accesses by warps ``other`` at events ``since`` happen before the current access of warps ``one``."""
        inner = other % self.columns
        found: Array = since <= self.known[one, inner]
        if np.count_nonzero(found) == len(found):
            return found
        left = np.flatnonzero(~found)
        self._enter_now()
        found[left] = self.chains.all_ordered(other[left], since[left], one[left])
        held = np.flatnonzero(found)
        np.maximum.at(self.known, (one[held], inner[held]), since[held])
        return found
