"""Which threads of a programmatic dependent launch come after griddepcontrol.wait: before it, a kernel may run at the
same time as its predecessor, and does not see what that has written (PTX ISA, "griddepcontrol")."""

from __future__ import annotations

import numpy as np

from cudakit.sim.checks.ordering import BatchOrder
from cudakit.sim.checks.releases import GridChains
from cudakit.sim.lockstep.lanes import Array


class PredecessorWaits:
    """The waits of one batch. A lane comes after a wait if it has executed one, or has synchronised since with a thread
    of its cluster that has."""

    def __init__(self, order: BatchOrder, chains: GridChains) -> None:
        self.order, self.chains = order, chains
        # per lane: its first wait, or an event that comes after another lane's; 0: none
        self.waited = np.zeros(order.geometry.lanes, np.int64)
        # the first lane of each warp that has executed a wait
        self.first = np.zeros(0, np.int64)

    def wait(self, lanes: Array, event: int) -> None:
        """Note that lanes have executed a wait."""
        new = lanes[self.waited[lanes] == 0]
        self.waited[new] = event
        warps, places = np.unique(self.order.geometry.warp[new], return_index=True)
        known = np.isin(warps, self.order.geometry.warp[self.first])
        self.first = np.append(self.first, new[places[~known]])

    def before(self, lanes: Array, now: int) -> Array:
        """A mask of the lanes that no wait comes before, at their current access, the event ``now``."""
        found: Array = self.waited[lanes] == 0
        left = np.flatnonzero(found)
        if len(left) and len(self.first):
            order = self.order
            mine, theirs = lanes[left], self.first
            blocks, others = mine // order.threads, theirs // order.threads
            near = blocks[:, None] // order.cluster_size == others // order.cluster_size
            one, other = np.nonzero(near)
            mine, theirs = mine[one], theirs[other]
            same, since = blocks[one] == others[other], self.waited[theirs]
            ordered = np.zeros(len(one), np.bool_)
            ordered[same] = order.ordered(mine[same], theirs[same], since[same], False)
            far = np.flatnonzero(~same)
            if len(far):
                ordered[far] = order.cluster_knows(mine[far], theirs[far], since[far])
                far = far[~ordered[far]]
                block, thread = np.divmod(theirs[far], order.threads)
                ordered[far] = self.chains.all_ordered(block + order.first_block, thread, since[far], order, mine[far])
            after = left[np.unique(one[ordered])]
            self.waited[lanes[after]] = now
            found[after] = False
        return found
