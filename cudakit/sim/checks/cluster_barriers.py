"""The order by barriers of clusters (barrier.cluster): accesses of the lanes whose arrivals publish them."""

from __future__ import annotations

import numpy as np

from cudakit.sim.checks.batch_checks import BatchChecks
from cudakit.sim.checks.mbarrier_order import MbarrierOrder, by_fence
from cudakit.sim.lockstep.lanes import Array, LaneSet


class ClusterBarriers:
    """The barriers of the clusters of one batch."""

    def __init__(self, checks: BatchChecks, mbarriers: MbarrierOrder) -> None:
        batch = checks.batch
        self.checks, self.mbarriers, self.batch = checks, mbarriers, batch
        # clusters in which an arrival at the current barrier publishes accesses, and those in which one is relaxed
        self.published, self.relaxed = np.zeros((2, batch.geometry.blocks // batch.run.cluster_size), np.bool_)
        # the lanes whose arrivals at the current barrier publish accesses, up to an event (0: up to the barrier)
        self.publishing: list[tuple[LaneSet, int]] = []

    def arrive(self, lanes: LaneSet, relaxed: bool) -> None:
        """Note that lanes arrive at the barrier of their cluster. Relaxed arrivals publish the lanes' accesses before
        their last fence, if that is since the last barrier."""
        size, fences = self.batch.run.cluster_size, self.checks.cluster_fences
        if not relaxed:
            self.published[lanes.block // size] = True
            self.publishing.append((lanes, 0))
            return
        self.relaxed[lanes.block // size] = True
        if fences is None or self.checks.order.cluster_met is None:
            return
        fenced = fences.event[lanes.lanes]
        fenced = np.where(fenced > self.checks.order.cluster_met[lanes.block // size], fenced, 0)
        for event, some in by_fence(lanes, fenced):
            self.published[some.block // size] = True
            self.publishing.append((some, event))

    def met(self, clusters: Array) -> None:
        """Record that all threads of the clusters in a mask have arrived at their barrier. It orders the accesses of
        the lanes whose arrivals publish them."""
        event, size = self.checks.events.last(), self.batch.run.cluster_size
        self.checks.order.met_cluster(clusters, event)
        partly, clusters = clusters & self.relaxed, clusters & self.published & ~self.relaxed
        for cluster in np.flatnonzero(partly & self.published).tolist():
            self._meet_partly(cluster, event)
        met = partly | clusters
        self.published &= ~met
        self.relaxed &= ~met
        left = [] if met.all() else [(lanes.subset(~met[lanes.block // size])[1], at) for lanes, at in self.publishing]
        self.publishing = [(lanes, at) for lanes, at in left if lanes.count]
        if not clusters.any():
            return
        self.checks.order.passed_cluster(clusters, event)
        if self.checks.shared is not None:
            self.checks.shared.passed_cluster()
        if self.checks.memory.grid:
            # the barrier also orders accesses of the cluster's blocks to global memory
            for cluster in np.flatnonzero(clusters).tolist():
                first = self.batch.first_block + cluster * size
                self.checks.memory.chains.meet(range(first, first + size), ("cluster", first), event)

    def _meet_partly(self, cluster: int, event: int) -> None:
        """Record a barrier of a cluster at which only some lanes publish their accesses."""
        threads = self.batch.run.cluster_size * self.checks.order.threads
        mine = [(lanes.subset(lanes.lanes // threads == cluster)[1], at or event) for lanes, at in self.publishing]
        everyone = LaneSet(self.batch.geometry, np.arange(cluster * threads, (cluster + 1) * threads), threads)
        self.mbarriers.meet([(lanes, at) for lanes, at in mine if lanes.count], everyone, event)
