"""mbarrier objects in shared memory: arrivals, transactions and phases (PTX ISA, "mbarrier").

A barrier counts the arrivals that are still pending in its current phase, and the bytes of asynchronous copies that are
still due (its transaction count, which may be negative for a while). The phase is complete once both are zero; the next
one then begins with the expected number of arrivals.

The 64 bits in shared memory are our own layout, as the hardware's is not documented: pending and expected arrivals, the
transaction count and the parity of the phase. They are also the state that an arrival returns. An object whose bits in
memory differ from what its last operation left there was overwritten.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.sites import Site

BYTES = 8
# the most arrivals of a phase, and the most bytes of its transaction count, in either direction
MOST = (1 << 20) - 1
_TX_SHIFT, _EXPECTED_SHIFT, _PARITY_SHIFT = 40, 20, 61
_LIVE = 1 << 63


class Mbarrier:
    """One object: ``position`` is its first byte in the batch's shared memory. ``phase`` counts the completed phases,
    ``lane`` is the lane that initialised it at ``site``."""

    __slots__ = (
        "arrived",
        "block",
        "event",
        "expected",
        "expecting",
        "fenced",
        "lane",
        "offset",
        "order",
        "pending",
        "phase",
        "position",
        "received",
        "requested",
        "senders",
        "sent",
        "site",
        "tx",
        "waited",
    )

    def __init__(self, position: int, block: int, offset: int, count: int, lane: int, site: Site) -> None:
        self.position, self.block, self.offset = position, block, offset
        self.expected = self.pending = count
        self.tx = self.phase = 0
        self.lane, self.site = lane, site
        # the event of the initialisation, and whether a fence has made it visible to asynchronous copies
        self.event, self.fenced = 0, False
        # what the checks know of the order of its arrivals and waits
        self.order: Any = None
        # per warp of the batch: the last phase that it arrived at, and the last one that it has waited for
        self.arrived: dict[int, int] = {}
        self.waited: dict[int, int] = {}
        # the bytes that this phase expects and has received, and the last instruction and lane that expected some
        self.requested = self.received = 0
        # the blocks of the batch that have sent bytes, in any phase and in this one
        self.senders: set[int] = set()
        self.sent: set[int] = set()
        self.expecting: tuple[Site, int] | None = None

    def bits(self) -> int:
        """The object as it is in shared memory."""
        return (
            _LIVE
            | (self.phase & 3) << _PARITY_SHIFT
            | (self.tx + MOST + 1) << _TX_SHIFT
            | self.expected << _EXPECTED_SHIFT
            | self.pending
        )

    def named(self) -> str:
        return f"the mbarrier at byte {self.offset} of shared memory"

    def missing(self) -> str:
        """The arrivals and bytes that the current phase waits for, in words."""
        parts = []
        if self.pending:
            parts.append(f"{self.pending} of {self.expected} arrivals")
        if self.tx > 0:
            parts.append(f"{self.tx} of {self.requested} bytes")
        elif self.tx < 0:
            parts.append(f"the announcement of {-self.tx} bytes that have arrived")
        return f"phase {self.phase} waits for {' and '.join(parts)}" if parts else f"phase {self.phase} is complete"


def pending_count(states: Array) -> Array:
    """The pending arrivals in the states that arrivals returned, uint32."""
    found: Array = (states & np.uint64(MOST)).astype(np.uint32)
    return found


def phases_of(states: Array) -> Array:
    """The phase, modulo 4, in the states that arrivals returned, int64."""
    found: Array = (states >> np.uint64(_PARITY_SHIFT) & np.uint64(3)).astype(np.int64)
    return found


class Mbarriers:
    """The objects of a batch, by their first byte in its shared memory."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.at: dict[int, Mbarrier] = {}

    # ---- life ----

    def init(self, f: Fragment, site: Site, lanes: LaneSet, positions: Array, counts: Array) -> None:
        """Initialise objects, in the order of the lanes."""
        batch = self.batch
        stride = batch.shared.stride if batch.shared is not None else 1
        for number, (position, count) in enumerate(zip(positions.tolist(), counts.tolist(), strict=True)):
            if not 0 < count <= MOST:
                self._fail(f, site, lanes, number, "mbarrier count", f"a count of {count}; it may be 1 to {MOST}")
            old = self.at.get(position)
            if old is not None and self._bits_at(position) == old.bits():
                self._fail(
                    f,
                    site,
                    lanes,
                    number,
                    "mbarrier initialised again",
                    f"{old.named()} is in use already",
                    others=(batch.other(old.site, old.lane),),
                    notes=["call mbarrier.inval (or the destructor) before the memory is used for another barrier"],
                )
            block, offset = divmod(position, stride)
            made = Mbarrier(position, block, offset, count, int(lanes.lanes[number]), site)
            self.at[position] = made
            self._store(made)
            if batch.guard is not None:
                batch.guard.mbarrier_init(f, made)
        batch.progress += 1

    def invalidate(self, f: Fragment, site: Site, lanes: LaneSet, positions: Array) -> None:
        for number, position in enumerate(positions.tolist()):
            barrier = self.find(f, site, lanes, number, position)
            if barrier.tx or (barrier.pending != barrier.expected and self.batch.asynchrony.waits_for(barrier)):
                detail = f"{barrier.named()} is in use: {barrier.missing()}"
                self._fail(f, site, lanes, number, "mbarrier in use", detail)
            del self.at[position]
            self._view()[position // BYTES] = ~np.uint64(0)
            if self.batch.guard is not None:
                self.batch.guard.mbarrier_invalid(f, site, barrier, int(lanes.lanes[number]))
        self.batch.progress += 1

    def within(self, start: int, size: int) -> Mbarrier:
        """The first object in ``size`` bytes from byte ``start`` on."""
        return next(self.at[word] for word in range(start // BYTES * BYTES, start + size, BYTES) if word in self.at)

    def find(
        self, f: Fragment, site: Site, lanes: LaneSet, number: int, position: int, users: LaneSet | None = None
    ) -> Mbarrier:
        """The object at a position, for the lane with this number among ``lanes``; ``users``: for all these. Memory
        without a valid object is reported, as is one that is not initialised for the users."""
        barrier = self.at.get(position)
        batch = self.batch
        if barrier is None:
            offset = position % batch.shared.stride if batch.shared is not None else position
            self._fail(
                f,
                site,
                lanes,
                number,
                "mbarrier not initialised",
                f"no mbarrier was initialised at byte {offset} of shared memory",
                notes=["call mbarrier.init in one thread and __syncthreads() (or cluster.sync()) before it is used"],
            )
        if self._bits_at(position) != barrier.bits():
            self._fail(
                f,
                site,
                lanes,
                number,
                "mbarrier overwritten",
                f"{barrier.named()} was overwritten by something other than an mbarrier instruction",
                others=batch.guard.writer_of(position) if batch.guard is not None else (),
            )
        if batch.guard is not None:
            if users is None:
                users = LaneSet(batch.geometry, lanes.lanes[number : number + 1], 1)
            batch.guard.mbarrier_used(f, site, barrier, users)
        return barrier

    # ---- arrivals and transactions ----

    def arrive(
        self,
        f: Fragment,
        site: Site,
        lanes: LaneSet,
        positions: Array,
        counts: Array,
        expects: Array | None,
        *,
        drop: bool,
        completes: bool,
    ) -> Array:
        """Arrive, lane after lane; returns the state before each lane's arrival, uint64. ``expects``: bytes that the
        lane first adds to the transaction count. ``drop``: later phases expect the count no longer. ``completes``: the
        arrivals may complete the phase."""
        states = np.zeros(len(positions), np.uint64)
        for position in np.unique(positions).tolist():
            mask = positions == position
            here = np.flatnonzero(mask)
            barrier = self.find(f, site, lanes, int(here[0]), position, lanes.subset(mask)[1])
            same = expects is None and not drop and (counts[here] == 1).all()
            if same and completes:
                self._arrive_each(f, site, barrier, lanes, here, states)
                continue
            for number in here.tolist():
                if expects is not None:
                    self._expect(f, site, lanes, number, barrier, int(expects[number]))
                states[number] = barrier.bits()
                count = int(counts[number])
                if not 0 < count <= barrier.pending:
                    self._fail(
                        f,
                        site,
                        lanes,
                        number,
                        "mbarrier count",
                        f"{count} arrivals at {barrier.named()}, of which phase {barrier.phase} waits for "
                        f"{barrier.pending} (initialised with {barrier.expected})",
                    )
                self._note_arrival(f, site, barrier, lanes, np.array([number]))
                barrier.pending -= count
                if drop:
                    barrier.expected -= count
                if not completes and barrier.pending == 0:
                    self._fail(
                        f, site, lanes, number, "mbarrier count", f"a .noComplete arrival completes {barrier.named()}"
                    )
                self.settle(barrier)
            self._store(barrier)
        self.batch.progress += 1
        return states

    def _arrive_each(
        self, f: Fragment, site: Site, barrier: Mbarrier, lanes: LaneSet, here: Array, states: Array
    ) -> None:
        """One arrival by each of some lanes, as many at once as a phase waits for."""
        done = 0
        while done < len(here):
            if barrier.pending == 0:
                number = int(here[done])
                detail = f"an arrival beyond the {barrier.expected} that {barrier.named()} expects"
                self._fail(f, site, lanes, number, "mbarrier count", f"{detail}: {barrier.missing()}")
            some = here[done : done + barrier.pending]
            states[some] = np.uint64(barrier.bits()) - np.arange(len(some), dtype=np.uint64)
            self._note_arrival(f, site, barrier, lanes, some)
            barrier.pending -= len(some)
            self.settle(barrier)
            done += len(some)
        self._store(barrier)

    def _note_arrival(self, f: Fragment, site: Site, barrier: Mbarrier, lanes: LaneSet, here: Array) -> None:
        guard = self.batch.guard
        if guard is None:
            return
        _, some = lanes.at(here)
        for warp in some.warps.tolist():
            barrier.arrived[warp] = barrier.phase
        guard.mbarrier_arrive(f, site, barrier, some)

    def expect(self, f: Fragment, site: Site, lanes: LaneSet, positions: Array, sizes: Array) -> None:
        """Add bytes to the transaction counts."""
        for number, (position, size) in enumerate(zip(positions.tolist(), sizes.tolist(), strict=True)):
            barrier = self.find(f, site, lanes, number, position)
            self._expect(f, site, lanes, number, barrier, size)
            self._store(barrier)
        self.batch.progress += 1

    def _expect(self, f: Fragment, site: Site, lanes: LaneSet, number: int, barrier: Mbarrier, size: int) -> None:
        if size > MOST or abs(barrier.tx + size) > MOST:
            self._overflow(f, site, lanes, number, barrier, size)
        barrier.tx += size
        barrier.requested += size
        barrier.expecting = (site, int(lanes.lanes[number]))

    def complete(self, f: Fragment, site: Site, lanes: LaneSet, positions: Array, sizes: Array) -> None:
        """Subtract bytes that have arrived from the transaction counts."""
        for number, (position, size) in enumerate(zip(positions.tolist(), sizes.tolist(), strict=True)):
            barrier = self.find(f, site, lanes, number, position)
            if abs(barrier.tx - size) > MOST:
                self._overflow(f, site, lanes, number, barrier, -size)
            self.landed(barrier, size, int(lanes.lanes[number]))
        self.batch.progress += 1

    def landed(self, barrier: Mbarrier, size: int, lane: int) -> None:
        """Note that ``size`` bytes of an asynchronous copy by a lane have arrived."""
        barrier.tx -= size
        sender = lane // self.batch.geometry.threads
        barrier.senders.add(sender)
        barrier.sent.add(sender)
        barrier.received += size
        self.settle(barrier)
        self._store(barrier)

    def _overflow(self, f: Fragment, site: Site, lanes: LaneSet, number: int, barrier: Mbarrier, size: int) -> NoReturn:
        self._fail(
            f,
            site,
            lanes,
            number,
            "mbarrier transaction overflow",
            f"{barrier.named()}: a transaction count of {barrier.tx} {'+' if size >= 0 else '-'} {abs(size)} bytes is "
            f"not within -{MOST} to {MOST}",
            notes=["expect the bytes of each copy when it starts, and wait for the phase before the next copies"],
        )

    def raise_pending(self, f: Fragment, site: Site, lanes: LaneSet, number: int, barrier: Mbarrier) -> None:
        """Wait for one more arrival in the current phase."""
        if barrier.pending == MOST:
            detail = f"one more than the {MOST} pending arrivals of {barrier.named()}, the most that it counts"
            self._fail(f, site, lanes, number, "mbarrier count", detail, notes=["use the form with .noinc"])
        barrier.pending += 1
        self._store(barrier)

    def settle(self, barrier: Mbarrier) -> None:
        """Complete the current phase if nothing is pending."""
        if barrier.pending or barrier.tx:
            return
        barrier.phase += 1
        barrier.pending = barrier.expected
        barrier.requested = barrier.received = 0
        barrier.sent.clear()
        if self.batch.guard is not None:
            self.batch.guard.mbarrier_complete(barrier)

    # ---- memory and reports ----

    def _view(self) -> Array:
        store = self.batch.shared
        if store is None:
            raise RuntimeError("an mbarrier without shared memory")
        return store.view(np.dtype(np.uint64))

    def _bits_at(self, position: int) -> int:
        return int(self._view()[position // BYTES])

    def _store(self, barrier: Mbarrier) -> None:
        self._view()[barrier.position // BYTES] = barrier.bits()

    def _fail(
        self, f: Fragment, site: Site, lanes: LaneSet, number: int, kind: str, detail: str, **more: Any
    ) -> NoReturn:
        f.alone(int(lanes.lanes[number])).fail(site.instruction, kind, f"{site.kind}: {detail}", **more)
