"""The PTX memory model: the outcomes that it allows for a litmus test, and which of them have a data race.

It follows the chapter "Memory Consistency Model" of the PTX ISA, and "A Formal Analysis of the NVIDIA PTX Memory
Consistency Model" (ASPLOS 2019) for SC-per-location. Every candidate execution is enumerated: a write for each read,
the order of morally strong fence.sc, and the coherence order, which is partial: writes in a data race are unrelated.
Relations are sets of pairs of event numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from .program import UNSET, Instruction, Place, Variant

Relation = frozenset[tuple[int, int]]
_INITIAL = -1  # the thread of the writes of initial values


@dataclass(frozen=True)
class Event:
    """An instruction as executed by a thread; number: its index among all events."""

    number: int
    thread: int
    what: Instruction


@dataclass
class Verdict:
    """The outcomes that the model allows. racy: those of an execution with a data race."""

    allowed: set[tuple[int, ...]]
    racy: set[tuple[int, ...]]

    @property
    def race(self) -> bool:
        return bool(self.racy)


@cache
def judge(variant: Variant) -> Verdict:
    """Return the model's verdict on a litmus test."""
    verdict = Verdict(set(), set())
    guards = sorted({one.guard for thread in variant.threads for one in thread if one.guard})
    for taken in itertools.product((False, True), repeat=len(guards)):
        for outcome, race in _executions(variant, dict(zip(guards, taken, strict=True))):
            verdict.allowed.add(outcome)
            if race:
                verdict.racy.add(outcome)
    return verdict


def _executions(variant: Variant, taken: Mapping[tuple[str, int], bool]) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Yield the outcome of each execution with these guards taken, and whether it has a data race."""
    events = [
        Event(k, _INITIAL, Instruction("", "st", "weak", location=name)) for k, name in enumerate(variant.locations)
    ]
    for number, thread in enumerate(variant.threads):
        for one in thread:
            if one.guard is None or taken[one.guard]:
                events.append(Event(len(events), number, one))
    reads = [event for event in events if event.what.reads]
    writes = [event for event in events if event.what.writes]
    choices = [[w for w in writes if w.what.location == r.what.location and w is not r] for r in reads]
    static = _Static(variant, events)
    for chosen in itertools.product(*choices):
        source = {r.number: w.number for r, w in zip(reads, chosen, strict=True)}
        values = _values(events, source)
        if values is None or not _guards_hold(events, values, taken, variant):
            continue
        registers = {e.what.register: values[0][e.number] for e in reads if e.what.register}
        known = tuple(registers.get(name, UNSET) for name in variant.registers)
        for last, race in _Candidate(static, source).consistent(variant.final.split()):
            yield known + tuple(values[1][number] for number in last), race


def _values(events: Sequence[Event], source: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]] | None:
    """Return the value that each read returns and that each write stores; None if values depend on themselves."""
    read: dict[int, int] = {}
    written: dict[int, int] = {e.number: 0 for e in events if e.thread == _INITIAL}
    held: dict[tuple[int, str], int] = {}
    for _ in events:
        for e in events:
            what = e.what
            if what.reads and source[e.number] in written:
                read[e.number] = written[source[e.number]]
                if what.register:
                    held[e.thread, what.register] = read[e.number]
            if what.writes and e.thread != _INITIAL:
                value = held.get((e.thread, what.value)) if isinstance(what.value, str) else what.value
                if value is None or (what.operation == "add" and e.number not in read):
                    continue
                if what.operation == "add":
                    value += read[e.number]
                written[e.number] = value
    complete = all(e.number in read for e in events if e.what.reads)
    complete = complete and all(e.number in written for e in events if e.what.writes)
    return (read, written) if complete else None


def _guards_hold(
    events: Sequence[Event],
    values: tuple[dict[int, int], dict[int, int]],
    taken: Mapping[tuple[str, int], bool],
    variant: Variant,
) -> bool:
    held = {e.what.register: values[0][e.number] for e in events if e.what.reads and e.what.register}
    return all((held.get(register, UNSET) == value) == taken[register, value] for register, value in taken)


class _Static:
    """The relations that all executions of the same events share."""

    def __init__(self, variant: Variant, events: Sequence[Event]) -> None:
        self.events = events
        self.variant = variant
        places = variant.places
        own = [e for e in events if e.thread != _INITIAL]
        self.po: Relation = frozenset(
            (a.number, b.number) for a, b in itertools.combinations(own, 2) if a.thread == b.thread
        )
        # the same location
        self.overlap: Relation = frozenset(
            (a.number, b.number)
            for a, b in itertools.permutations(events, 2)
            if a.what.location and a.what.location == b.what.location
        )
        self.strong: Relation = frozenset(
            (a.number, b.number)
            for a, b in itertools.permutations(own, 2)
            if a.thread == b.thread
            or (_includes(a, places, b.thread, variant.cluster) and _includes(b, places, a.thread, variant.cluster))
        )
        initial = frozenset(
            (a.number, b.number) for a in events if a.thread == _INITIAL for b in own if b.what.location
        )
        self.initial = initial & self.overlap
        self.barriers = _barriers(own, places, variant)
        self.fences = [e.number for e in own if e.what.opcode == "fence" and e.what.semantics == "sc"]
        self.released = [*_release_patterns(own)]
        self.acquired = [*_acquire_patterns(own)]
        # dependencies of writes on reads
        self.depends: Relation = frozenset(
            (r.number, w.number)
            for r in own
            for w in own
            if (r.number, w.number) in self.po
            and r.what.register
            and w.what.writes
            and (w.what.value == r.what.register or (w.what.guard and w.what.guard[0] == r.what.register))
        )


def _includes(event: Event, places: Sequence[Place], thread: int, cluster: bool) -> bool:
    """Whether an operation is strong, with a scope that includes a thread."""
    scope = event.what.scope
    if scope == "cta":
        return places[event.thread].block == places[thread].block
    if scope == "cluster":
        return cluster or places[event.thread].block == places[thread].block
    return bool(scope)


def _barriers(own: Sequence[Event], places: Sequence[Place], variant: Variant) -> Relation:
    """The pairs of barrier operations that synchronise: an arrival and a wait of the same phase of one barrier."""
    arrivals: dict[tuple[object, ...], list[int]] = {}
    waits: dict[tuple[object, ...], list[int]] = {}
    phases: dict[tuple[object, ...], int] = {}
    for e in own:
        name, place = e.what.opcode, places[e.thread]
        if name in ("bar.sync", "bar.arrive"):
            which: tuple[object, ...] = ("block", place.block, e.what.barrier)
        elif name == "bar.warp.sync":
            which = ("warp", place.block, place.warp)
        elif name.startswith("barrier.cluster"):
            which = ("cluster",)
        else:
            continue
        waiting = name.startswith("barrier.cluster.wait")
        phase = phases.get((e.thread, which, waiting), 0)
        phases[e.thread, which, waiting] = phase + 1
        key = (which, phase)
        if not waiting and not name.endswith(".relaxed"):
            arrivals.setdefault(key, []).append(e.number)
        elif not waiting:
            # a relaxed arrival publishes what precedes a fence before it
            arrivals.setdefault(key, []).extend(
                fence.number
                for fence in own
                if fence.thread == e.thread
                and fence.number < e.number
                and fence.what.opcode == "fence"
                and fence.what.scope != "cta"
            )
        if waiting or name in ("bar.sync", "bar.warp.sync"):
            waits.setdefault(key, []).append(e.number)
    thread = {e.number: e.thread for e in own}
    return frozenset(
        (a, w) for key, found in arrivals.items() for a in found for w in waits.get(key, ()) if thread[a] != thread[w]
    )


def _release_patterns(own: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """Yield release patterns: the first operation, and the write."""
    for first in own:
        if not first.what.releases:
            continue
        if first.what.writes:
            yield first.number, first.number
        for write in own:
            later = write.thread == first.thread and write.number > first.number
            same = first.what.opcode == "fence" or first.what.location == write.what.location
            if later and same and write.what.writes and write.what.strong:
                yield first.number, write.number


def _acquire_patterns(own: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """Yield acquire patterns: the read, and the last operation."""
    for last in own:
        if not last.what.acquires:
            continue
        if last.what.reads:
            yield last.number, last.number
        for read in own:
            earlier = read.thread == last.thread and read.number < last.number
            same = last.what.opcode == "fence" or last.what.location == read.what.location
            if earlier and same and read.what.reads and read.what.strong and read.what.opcode != "red":
                yield read.number, last.number


class _Candidate:
    """A choice of the write that each read returns."""

    def __init__(self, static: _Static, source: Mapping[int, int]) -> None:
        self.static, self.source = static, source
        self.rf: Relation = frozenset((w, r) for r, w in source.items())

    def consistent(self, final: Sequence[str]) -> Iterator[tuple[tuple[int, ...], bool]]:
        """Yield the last writes to the locations `final` of each consistent execution, and whether it has a data
        race."""
        static, events = self.static, self.static.events
        if _cyclic(self.rf | static.depends):
            return
        # observation order: through morally strong reads, and chains of atomics
        observed = _closure(self.rf & static.strong, through={e.number for e in events if _atomic(e)})
        synchronised = static.barriers | {
            (first, last)
            for first, write in static.released
            for read, last in static.acquired
            if (write, read) in observed and (first, last) in static.strong
        }
        threads = {e.number: e.thread for e in events}
        pairs = [
            (a, b)
            for a, b in itertools.combinations(static.fences, 2)
            if (a, b) in static.strong and threads[a] != threads[b]
        ]
        for flips in itertools.product((False, True), repeat=len(pairs)):
            fences = frozenset((b, a) if flip else (a, b) for (a, b), flip in zip(pairs, flips, strict=True))
            base = _closure(static.po | synchronised | fences)
            if any((b, a) in base for a, b in fences):
                continue
            near = base & static.overlap
            cause = near | {(x, y) for x, z in observed for w, y in near if z == w and x != y} | static.initial
            yield from self._coherent(frozenset(cause), final)

    def _coherent(self, cause: Relation, final: Sequence[str]) -> Iterator[tuple[tuple[int, ...], bool]]:
        static, events = self.static, self.static.events
        writes = [e.number for e in events if e.what.writes]
        forced = frozenset((a, b) for a, b in cause if a in writes and b in writes)
        strong = static.strong & static.overlap
        free = [
            (a, b)
            for a, b in itertools.combinations(writes, 2)
            if (a, b) in strong and (a, b) not in forced and (b, a) not in forced
        ]
        for flips in itertools.product((False, True), repeat=len(free)):
            chosen = frozenset((b, a) if flip else (a, b) for (a, b), flip in zip(free, flips, strict=True))
            order = _closure(forced | chosen)
            if any(a == b for a, b in order):
                continue
            before = frozenset(
                (r, later) for r, w in self.source.items() for a, later in order if a == w and later != r
            )
            if self._forbidden(cause, order, before, strong):
                continue
            race = self._race(cause)
            last = [
                [
                    w
                    for w in writes
                    if events[w].what.location == name and not any((w, other) in order for other in writes)
                ]
                for name in final
            ]
            for picked in itertools.product(*last):
                yield picked, race

    def _forbidden(self, cause: Relation, order: Relation, before: Relation, strong: Relation) -> bool:
        """Whether an axiom forbids the execution. order: coherence; before: from a read to the writes that overwrite
        the one that it returned."""
        # causality
        if any((r, w) in cause for w, r in self.rf) or any((w, r) in cause for r, w in before):
            return True
        # SC per location
        if _cyclic(((self.rf | order | before) & strong) | (self.static.po & self.static.overlap)):
            return True
        # atomicity: no morally strong write between the write that an atomic reads and its own
        return any(
            (self.source[a], w) in order and (w, a) in order
            for a in self.source
            if _atomic(self.static.events[a])
            for other, w in strong
            if other == a and self.static.events[w].what.writes
        )

    def _race(self, cause: Relation) -> bool:
        static, events = self.static, self.static.events
        return any(
            (a, b) not in static.strong and (a, b) not in cause and (b, a) not in cause
            for a, b in static.overlap
            if a < b
            and events[a].thread != _INITIAL
            and events[b].thread != _INITIAL
            and (events[a].what.writes or events[b].what.writes)
        )


def _atomic(event: Event) -> bool:
    return event.what.opcode in ("atom", "red")


def _closure(pairs: Relation | set[tuple[int, int]], through: set[int] | None = None) -> Relation:
    """The transitive closure; `through`: only across these events."""
    after: dict[int, set[int]] = {}
    for a, b in pairs:
        after.setdefault(a, set()).add(b)
    changed = True
    while changed:
        changed = False
        for found in after.values():
            more = {c for b in found if through is None or b in through for c in after.get(b, ())} - found
            if more:
                found |= more
                changed = True
    return frozenset((a, b) for a, found in after.items() for b in found)


def _cyclic(pairs: Relation) -> bool:
    return any(a == b for a, b in _closure(pairs))
