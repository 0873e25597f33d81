"""Tickets: one per chunk of a run, in the order in which they are handed out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cudakit.memory.array import DeviceArray
from cudakit.pipeline.buffers import ChunkBuffer, Clock, Mark
from cudakit.pipeline.files import HostArray
from cudakit.pipeline.ranges import Range, covers, left
from cudakit.pipeline.sources import Blocks


@dataclass(eq=False)
class Ticket:
    """One chunk during a run.

    block: its block from a generator. arrays: its inputs in pinned memory, or on the device if they were read there.
    results: its outputs in pinned memory. done: the end of its work on the device. error: the failure of reading it.
    """

    index: int
    start: int
    stop: int
    block: tuple[HostArray, ...] | None = None
    arrays: tuple[HostArray | DeviceArray, ...] = ()
    buffer: ChunkBuffer | None = None
    results: tuple[HostArray, ...] = ()
    out: ChunkBuffer | None = None
    done: Mark | None = None
    slot: int = 0
    device: int = 0
    clock: Clock | None = None
    error: BaseException | None = None

    @property
    def length(self) -> int:
        """Number of items."""
        return self.stop - self.start


class ChunkOrder(Protocol):
    """The chunks of a run. count: number of all items; None until it is known. skipped: finished by an earlier run."""

    count: int | None
    skipped: int

    def __iter__(self) -> Iterator[Ticket]: ...


class Tickets:
    """The chunks of a run in order.

    count: number of all items; None until a generator has ended or yielded as many as requested. skipped: number of
    items that an earlier run has finished. unit: every chunk starts at a multiple of it, and ends at one or at the end;
    `chunk` is a multiple of it. done: finished ranges, in whole units.
    """

    def __init__(
        self, blocks: Blocks | None, count: int | None, chunk: int, done: Sequence[Range], periods: Sequence[int],
        unit: int = 1,
    ) -> None:  # fmt: skip
        self._blocks, self._chunk, self._done, self._periods, self._unit = blocks, chunk, done, periods, unit
        self._most, self.count = count, count if blocks is None else None
        self.skipped = sum(stop - start for start, stop in done)

    def __iter__(self) -> Iterator[Ticket]:
        if self._blocks is None:
            ranges = left(self._done, self.count or 0, self._chunk, self._periods)
            yield from (Ticket(index, start, stop) for index, (start, stop) in enumerate(ranges))
            return
        index = start = 0
        for block in self._regrouped(self._blocks) if self._unit > 1 else self._blocks:
            stop = start + len(block[0])
            self._expect_short(stop - start)
            if self._most is not None and stop > self._most:
                stop = self._most
                block = tuple(array[: stop - start] for array in block)
            if start < stop and not covers(self._done, start, stop):
                yield Ticket(index, start, stop, block)
                index += 1
            start = stop
            if start == self._most:
                break
        self.count = start

    def _expect_short(self, length: int) -> None:
        if length > self._chunk:
            raise ValueError(
                f"a block must have at most {self._chunk:,} items, the chunk size, got {length:,}: pass chunk= as "
                "large as the largest block"
            )

    def _regrouped(self, blocks: Blocks) -> Iterator[tuple[HostArray, ...]]:
        """Yield the items of a generator in blocks of whole units; only the last one may be shorter."""
        kept: tuple[HostArray, ...] = ()
        for block in blocks:
            self._expect_short(len(block[0]))
            if kept:
                block = tuple(np.concatenate(parts) for parts in zip(kept, block, strict=True))
            whole = len(block[0]) // self._unit * self._unit
            for start in range(0, whole, self._chunk):
                yield tuple(array[start : min(start + self._chunk, whole)] for array in block)
            # copied, because the generator may use its array for the next block
            kept = tuple(array[whole:].copy() for array in block) if whole < len(block[0]) else ()
        if kept:
            yield kept
