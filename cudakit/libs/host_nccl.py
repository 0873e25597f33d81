"""Collectives between simulated devices of one process: a host function per call, which all ranks' streams wait for.

A call takes effect when all its ranks have made it. Until then the calling thread waits, as NCCL's calls may; if the
other ranks do not call in time, every rank's call raises CollectiveTimeout.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cudakit.errors import CollectiveTimeout, CudakitError
from cudakit.libs import collectives, host
from cudakit.libs.collectives import Call
from cudakit.libs.host import DeviceOperand
from cudakit.memory.array import DeviceArray


@dataclass(eq=False)
class _Meeting:
    """One call of several ranks, and the ranks that have made it. number: its number in the communicator."""

    ranks: frozenset[int]
    number: int
    calls: dict[int, Call] = field(default_factory=dict)
    done: bool = False


class Clique:
    """The communicators of all ranks of one process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._counts: Counter[Any] = Counter()
        self._meetings: dict[Any, _Meeting] = {}
        self._broken: CudakitError | None = None

    def launch(self, calls: Sequence[Call], timeout: float) -> None:
        """Queue the calls of one group, when the other ranks have made theirs.

        Raises CollectiveTimeout if they do not in `timeout` seconds, and CudakitError if their calls differ.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            self._expect_whole()
            joined = [self._join(call) for call in calls]
            for meeting in joined:
                if not meeting.done and len(meeting.calls) == len(meeting.ranks):
                    self._queue(meeting)
            self._changed.notify_all()
            while not all(meeting.done for meeting in joined):
                self._expect_whole()
                if not self._changed.wait(deadline - time.monotonic()):
                    self._break(_missed(next(one for one in joined if not one.done), timeout))

    def abort(self, why: str) -> None:
        """Let calls that wait, and later ones, raise."""
        with self._changed:
            self._broken = self._broken or collectives.broken(why)
            self._changed.notify_all()

    def _join(self, call: Call) -> _Meeting:
        rank, key, ranks = call.communicator.rank, "all", frozenset(range(self.size))
        if call.form.kind in collectives.PAIRWISE:
            ends = (rank, call.peer) if call.form.kind == "send" else (call.peer, rank)
            key, ranks = f"{ends[0]} to {ends[1]}", frozenset(ends)
        self._counts[key, rank] += 1
        number = self._counts[key, rank]
        meeting = self._meetings.setdefault((key, number), _Meeting(ranks, number))
        meeting.calls[rank] = call
        return meeting

    def _queue(self, meeting: _Meeting) -> None:
        for key, kept in list(self._meetings.items()):
            if kept is meeting:
                del self._meetings[key]
        calls = meeting.calls
        why = collectives.mismatch(meeting.number, {rank: call.form for rank, call in calls.items()})
        if why:
            self._break(collectives.broken(why))
        _queue_together([calls[rank] for rank in sorted(calls)])
        meeting.done = True

    def _expect_whole(self) -> None:
        if self._broken is not None:
            raise _copy(self._broken)

    def _break(self, error: CudakitError) -> None:
        self._broken = error
        self._changed.notify_all()
        raise error


def _copy(error: CudakitError) -> CudakitError:
    return type(error)(*error.args)


def _missed(meeting: _Meeting, timeout: float) -> CollectiveTimeout:
    rank, call = next(iter(meeting.calls.items()))
    absent = sorted(meeting.ranks - set(meeting.calls))
    names = f"rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))}"
    return CollectiveTimeout(
        f"{call.form.kind}, call number {meeting.number} of rank {rank}, waited {timeout:g} s for {names}: a "
        "deadlock. One thread with several communicators must make a call of all ranks in one group (`with "
        "nccl.group():`), and all ranks must make the same calls in the same order. Close the communicators and make "
        "new ones"
    )


def _queue_together(calls: Sequence[Call]) -> None:
    """Queue one host function, after the work of all ranks' streams; their later work waits for it."""
    first, *others = (call.stream for call in calls)
    others = [stream for stream in others if stream is not first]
    for stream in others:
        first.wait(stream)
    sources = {call.communicator.rank: _operand(call.source) for call in calls if call.source is not None}
    targets = [(call, _operand(call.target)) for call in calls if call.target is not None and call.writes]

    def work() -> None:
        parts = {rank: source.view() for rank, source in sources.items()}
        made = [(target, collectives.results(call.form, call.communicator.rank, parts)) for call, target in targets]
        for target, result in [(target, None if one is None else one.copy()) for target, one in made]:
            if result is not None:
                target.view()[...] = result

    context = first.context
    root = calls[0].form.root
    reads = [source for rank, source in sources.items() if root in (-1, rank)]
    host.enqueue(context, int(first), f"nccl.{calls[0].form.kind}", work, reads, [target for _, target in targets])
    for stream in others:
        stream.wait(first)
    for call in calls:
        collectives.keep(call)


def _operand(array: DeviceArray) -> DeviceOperand:
    return DeviceOperand(array.context, array.pointer, array.dtype, (array.size,), (array.itemsize,))
