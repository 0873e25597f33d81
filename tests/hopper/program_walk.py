"""The random walk that makes an mbarrier program; `programs` states its rules."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from .programs import LANES, MAXIMUM, SLOT, SLOTS, Op, Program, Segment

Key = tuple[str, int, int]
# ("warp", w, 0): operations of w that are known to be done; ("phases", b, n): phases of b after n renewals
View = dict[Key, int]


def _merge(into: View, other: View) -> None:
    for key, value in other.items():
        into[key] = max(into.get(key, 0), value)


@dataclass
class _Arrival:
    """An arrival in the current phase, with what its warp knew. at: the word for the pending count, -1 for none."""

    warp: int
    place: int
    count: int
    view: View
    late: bool = False  # asynchronous: later than its place
    at: int = -1

    def before(self, other: _Arrival) -> bool:
        return not self.late and other.view.get(("warp", self.warp, 0), 0) >= self.place

    def after(self, other: _Arrival) -> bool:
        """Return whether this one is later than another, which is not asynchronous."""
        return self.view.get(("warp", other.warp, 0), 0) >= other.place


@dataclass
class _Barrier:
    """A barrier in the state of the walk. last: the number of phases that the walk completes. expected, upcoming: the
    counts of this phase and the next. owed: bytes expected minus bytes completed. used: whether the phase has bytes or
    asynchronous arrivals. reserved: arrivals that warps still owe in this phase. gathering: what its arrivals pass on;
    released: the same of the last phase."""

    number: int
    home: int
    expected: int
    last: int
    renewals: int = 0
    phase: int = 0
    owed: int = 0
    used: bool = False
    pending: int = field(init=False)
    upcoming: int = field(init=False)
    reserved: dict[int, int] = field(default_factory=dict)
    arrivals: list[_Arrival] = field(default_factory=list)
    gathering: View = field(default_factory=dict)
    released: View = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pending = self.upcoming = self.expected

    @property
    def key(self) -> Key:
        return ("phases", self.number, self.renewals)

    @property
    def done(self) -> bool:
        """Whether the walk completes no more phases."""
        return self.phase >= self.last

    @property
    def fresh(self) -> bool:
        """Whether nothing has been done in the current phase."""
        return self.pending == self.expected == self.upcoming and not (self.owed or self.used or self.reserved)

    def free(self, warp: int) -> int:
        """Arrivals that a warp may do and leave those that others owe."""
        return self.pending - sum(count for other, count in self.reserved.items() if other != warp)


class Walk:
    """The state of a walk. `program` returns the program that it has made."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.seed = seed
        self.blocks = 2 if seed % 3 == 2 else 1
        self.warps = 1 + self._below(4)
        count = 1 + self._below(MAXIMUM)
        homes = [self._below(self.blocks) for _ in range(count)]
        self.barriers = [_Barrier(k, home, self._count(), 1 + self._below(5)) for k, home in enumerate(homes)]
        self._first = tuple(barrier.expected for barrier in self.barriers)
        roles = range(self.blocks * self.warps)
        self._views: list[View] = [{} for _ in roles]
        self._segments: list[Segment] = [{w: [] for w in roles}]
        self._renewed: list[dict[int, int]] = [{}]
        self._words = 1  # word 0: whether a wait was given up
        self._expected: dict[int, int] = {}
        self._reads: list[tuple[int, int, int]] = []
        self._copies: dict[tuple[int, int], tuple[Op, int]] = {}
        self._landed: list[tuple[_Barrier, int, int]] = []  # barrier, phase, slot
        self._slots = [0] * self.blocks
        self._tokens = 0
        self._held: dict[tuple[int, int], tuple[int, int]] = {}  # warp, barrier: phase and number of its last token
        self._read: set[tuple[int, int, int]] = set()
        self._waited: dict[tuple[int, int], int] = {}  # warp, barrier: the phase that the warp last waited for

    # Choices ----------------------------------------------------------------------------------------------------------

    def _below(self, bound: int) -> int:
        return int(self._random.random() * bound)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _count(self) -> int:
        """Return an expected count."""
        which = self._below(8)
        if which < 6:
            return 1 + self._below(6)
        return LANES + self._below(6) if which < 7 else 40 + self._below(200)

    # State ------------------------------------------------------------------------------------------------------------

    def _knows(self, warp: int, barrier: _Barrier) -> int:
        """Return the number of phases that a warp knows to be complete."""
        return self._views[warp].get(barrier.key, 0)

    def _local(self, warp: int, barrier: _Barrier) -> bool:
        return warp // self.warps == barrier.home

    def _current(self, warp: int, barrier: _Barrier) -> bool:
        """Return whether what a warp does to a barrier counts for its current phase, which will be completed."""
        return not barrier.done and self._knows(warp, barrier) == barrier.phase

    def _add(self, warp: int, op: Op) -> int:
        """Append an operation and return its place among those of its warp."""
        view = self._views[warp]
        place = view[("warp", warp, 0)] = view.get(("warp", warp, 0), 0) + 1
        self._segments[-1][warp].append(op)
        return place

    def _word(self, count: int = 1) -> int:
        self._words += count
        return self._words - count

    def _reserve(self, warp: int, barrier: _Barrier) -> bool:
        """Make a warp owe an arrival; return False if there is none left."""
        if barrier.reserved.get(warp):
            return True
        if barrier.free(warp) < 1:
            return False
        barrier.reserved[warp] = 1
        return True

    def _complete(self, barrier: _Barrier) -> None:
        """End the phase if all has arrived."""
        if barrier.pending or barrier.owed:
            return
        self._settle(barrier)
        barrier.phase += 1
        barrier.released, barrier.gathering = barrier.gathering, {}
        barrier.released[barrier.key] = barrier.phase
        barrier.pending = barrier.expected = barrier.upcoming
        barrier.arrivals, barrier.reserved, barrier.used = [], {}, False

    def _settle(self, barrier: _Barrier) -> None:
        """Determine the pending counts of the states that the phase's arrivals returned, if their order is known."""
        for one in barrier.arrivals:
            if one.at < 0:
                continue
            others = [other for other in barrier.arrivals if other is not one]
            if all(other.before(one) or other.after(one) for other in others):
                before = sum(other.count for other in others if other.before(one))
                self._expected[one.at] = barrier.expected - before

    def _in_turn(self, warp: int, barrier: _Barrier, late: int) -> bool:
        """Return whether a warp has waited for each phase but the last `late`. If it has skipped some, a parity is not
        wrong, as a barrier of all threads has passed on that they are complete; but it looks as if the warp had
        missed a phase, so only a state is used then."""
        return self._waited.get((warp, barrier.number), -1) >= barrier.phase - 1 - late

    # Operations: each returns whether it was legal --------------------------------------------------------------------

    def arrive(self, warp: int, barrier: _Barrier, all_of_it: bool = False) -> bool:
        available, local = barrier.free(warp), self._local(warp, barrier)
        if not self._current(warp, barrier) or available < 1:
            return False
        lanes = LANES if available >= LANES and self._chance(0.5) and not all_of_it else 1
        count = available if all_of_it else 1
        if lanes == 1 and not all_of_it and self._chance(0.4):
            count = 1 + self._below(min(available, 4)) if self._chance(0.8) else available
        total, owes = lanes * count, barrier.reserved.get(warp, 0)
        tx = 0
        if total == barrier.pending and barrier.owed < 0:
            if total > 1:
                return False
            tx = -barrier.owed
        elif total == 1 and self._chance(0.25):
            tx = 4 * (1 + self._below(40))
        drop = self._chance(0.15) and barrier.upcoming - total >= 1
        # without completion: another arrival of this warp is certain to follow
        stays = owes > 0 and total < available and self._chance(0.5)
        complete = not (stays and local and lanes == 1 and not tx and self._chance(0.5))
        token = at = -1
        if local and lanes == 1 and self._chance(0.6):
            token, at = self._tokens, self._word()
            self._tokens += 1
            self._held[warp, barrier.number] = (barrier.phase, token)
        barrier.owed += tx
        barrier.used |= bool(tx)
        op = Op("arrive", barrier.number, lanes, count, drop, complete, tx, token, at=at)
        place = self._add(warp, op)
        view = self._views[warp]
        barrier.arrivals.append(_Arrival(warp, place, total, dict(view), at=at))
        _merge(barrier.gathering, view)
        barrier.pending -= total
        barrier.upcoming -= total * drop
        if owes and not stays:
            del barrier.reserved[warp]
        self._complete(barrier)
        return True

    def expect(self, warp: int, barrier: _Barrier) -> bool:
        if not self._current(warp, barrier) or not self._reserve(warp, barrier):
            return False
        tx = -barrier.owed if barrier.owed < 0 and self._chance(0.7) else 4 * (1 + self._below(60))
        barrier.owed += tx
        barrier.used = True
        self._add(warp, Op("expect", barrier.number, tx=tx))
        return True

    def bytes(self, warp: int, barrier: _Barrier, exactly: bool = False) -> bool:
        """Complete bytes, by an instruction or a copy."""
        if not self._current(warp, barrier):
            return False
        home, local = barrier.home, self._local(warp, barrier)
        slot = self._slots[home]
        ways = ["complete", "complete"] + (["load"] if local else ["send", "store"]) * (slot < SLOTS)
        what = ways[self._below(len(ways))] if not exactly else "complete"
        lanes = LANES if what == "store" and self._chance(0.5) else 1
        size = {"complete": 4 * (1 + self._below(60)), "store": 4 * lanes if lanes > 1 else 8}.get(
            what, 16 << self._below(4)
        )
        if exactly or (what == "complete" and barrier.owed > 0 and self._chance(0.6)):
            size = barrier.owed
        if size > barrier.owed and not self._reserve(warp, barrier):  # this warp can expect them later
            return False
        op = Op(what, barrier.number, lanes, tx=size, slot=-1 if what == "complete" else slot)
        if what != "complete":
            self._land(barrier, op, size)
        self._add(warp, op)
        barrier.owed -= size
        barrier.used = True
        self._complete(barrier)
        return True

    def _land(self, barrier: _Barrier, op: Op, size: int) -> None:
        """Note that an operation writes the next slot of the barrier's block."""
        self._copies[barrier.home, op.slot] = (op, size)
        self._landed.append((barrier, barrier.phase, op.slot))
        self._slots[barrier.home] += 1

    def copy_and_arrive(self, warp: int, barrier: _Barrier) -> bool:
        """cp.async, whose completion arrives."""
        available, slot = barrier.free(warp), self._slots[barrier.home]
        if not (self._current(warp, barrier) and self._local(warp, barrier) and available and slot < SLOTS):
            return False
        lanes = LANES if available >= LANES and self._chance(0.7) else 1
        if lanes == barrier.pending and barrier.owed < 0:
            return False
        op = Op("cp.async", barrier.number, lanes, slot=slot)
        self._land(barrier, op, 4 * lanes if lanes > 1 else 16)
        place = self._add(warp, op)
        barrier.arrivals.append(_Arrival(warp, place, lanes, dict(self._views[warp]), late=True))
        barrier.pending -= lanes
        barrier.used = True
        barrier.reserved.pop(warp, None)
        self._complete(barrier)
        return True

    def wait(self, warp: int, barrier: _Barrier) -> bool:
        if not self._local(warp, barrier) or self._knows(warp, barrier) != barrier.phase - 1:
            return False
        how, token = ("try", "test", "hint")[self._below(3)], -1
        phase, held = self._held.get((warp, barrier.number), (-1, -1))
        if phase == barrier.phase - 1 and self._chance(0.6):
            token = held
        if token < 0 and not self._in_turn(warp, barrier, 1):
            return False
        if not barrier.done and not self._reserve(warp, barrier):
            return False
        lanes = 1 if token >= 0 or self._chance(0.3) else LANES
        self._add(warp, Op("wait", barrier.number, lanes, token=token, parity=(barrier.phase - 1) % 2, how=how))
        _merge(self._views[warp], barrier.released)
        self._waited[warp, barrier.number] = barrier.phase - 1
        return True

    def test(self, warp: int, barrier: _Barrier) -> bool:
        """Test a phase if the result is certain."""
        if not self._local(warp, barrier) or self._knows(warp, barrier) != barrier.phase:
            return False
        if not barrier.done and not barrier.reserved.get(warp):
            return False
        parity, token = self._below(2), -1
        passes = parity == (barrier.phase - 1) % 2
        phase, held = self._held.get((warp, barrier.number), (-1, -1))
        if phase >= barrier.phase - 1 >= 0 and self._chance(0.5):
            token, passes = held, phase == barrier.phase - 1
        elif not self._in_turn(warp, barrier, 1):
            return False
        at = self._word()
        self._expected[at] = int(passes)
        how = "try" if passes and self._chance(0.3) else "test"
        self._add(warp, Op("test", barrier.number, token=token, parity=parity, at=at, how=how))
        return True

    def read(self, warp: int) -> bool:
        """Read copied data."""
        known = [
            (barrier.home, slot)
            for barrier, phase, slot in self._landed
            if self._local(warp, barrier) and self._knows(warp, barrier) > phase
            if (warp, barrier.home, slot) not in self._read
        ]
        if not known:
            return False
        home, slot = known[self._below(len(known))]
        self._read.add((warp, home, slot))
        at = self._word(SLOT // 4)
        self._reads.append((at, home, slot))
        self._add(warp, Op("read", -1, LANES, slot=slot, at=at))
        return True

    # The whole --------------------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """A barrier of all threads; barriers whose phase is known to be complete, and new, may be renewed."""
        merged: View = {}
        for view in self._views:
            _merge(merged, view)
        renewed = {}
        for barrier in self.barriers:
            if barrier.phase and merged.get(barrier.key, 0) == barrier.phase and barrier.fresh and self._chance(0.5):
                renewed[barrier.number] = count = self._count()
                self._landed = [one for one in self._landed if one[0] is not barrier]
                again = _Barrier(barrier.number, barrier.home, count, 1 + self._below(3), barrier.renewals + 1)
                self.barriers[barrier.number] = again
                for states in (self._held, self._waited):
                    for of in [one for one in states if one[1] == barrier.number]:
                        del states[of]
        self._views = [dict(merged) for _ in self._views]
        self._segments.append({w: [] for w in self._segments[-1]})
        self._renewed.append(renewed)

    def _step(self) -> None:
        warp = self._below(len(self._views))
        barrier = self.barriers[self._below(len(self.barriers))]
        which = self._below(20)
        if which < 6:
            self.arrive(warp, barrier)
        elif which < 7:
            self.expect(warp, barrier)
        elif which < 9:
            self.bytes(warp, barrier)
        elif which < 10:
            self.copy_and_arrive(warp, barrier)
        elif which < 15:
            self.wait(warp, barrier)
        elif which < 18:
            self.test(warp, barrier)
        else:
            self.read(warp)

    def _finish(self, barrier: _Barrier) -> None:
        """Complete the current phase if it has bytes or asynchronous arrivals, and make a warp of its block wait."""
        phase = barrier.phase
        while barrier.phase == phase and not barrier.done and (barrier.used or barrier.owed):
            warp = next(iter(barrier.reserved), None)
            if warp is None:
                warp = next(w for w in range(len(self._views)) if self._current(w, barrier))
            if barrier.owed < 0:
                self.expect(warp, barrier)
            elif barrier.pending:
                self.arrive(warp, barrier, all_of_it=True)
            else:
                self.bytes(warp, barrier, exactly=True)
        barrier.last = min(barrier.last, barrier.phase)  # nothing more will arrive
        warps = self._warps_of(barrier)
        if all(self._knows(w, barrier) < barrier.phase for w in warps) and not any(
            self.wait(w, barrier) for w in warps
        ):
            raise RuntimeError(f"program {self.seed}: no warp can wait for the last phase of barrier {barrier.number}")

    def _warps_of(self, barrier: _Barrier) -> range:
        """Return the warps of a barrier's block."""
        return range(barrier.home * self.warps, (barrier.home + 1) * self.warps)

    def _final(self, barrier: _Barrier) -> tuple[int, int, int]:
        """Return the warp that tests the last phase, its parity, and the pending count."""
        warp = next(w for w in self._warps_of(barrier) if self._in_turn(w, barrier, 1))
        return warp, (barrier.phase - 1) % 2, barrier.pending

    def program(self) -> Program:
        """Walk to the end."""
        for _ in range(30 + self._below(30 * len(self._views) + 30)):
            if self._chance(0.03):
                self._meet()
            self._step()
        for barrier in self.barriers:
            self._finish(barrier)
        for barrier in self.barriers:
            self._settle(barrier)
        return Program(
            self.seed,
            self.blocks,
            self.warps,
            self._first,
            tuple(barrier.home for barrier in self.barriers),
            tuple(self._segments),
            tuple(self._renewed),
            self._words,
            self._expected,
            tuple(self._reads),
            self._copies,
            tuple(self._final(barrier) for barrier in self.barriers),
        )
