"""The items of a large stream. All chunks differ, so a result written to the wrong chunk is detected.

A stream of 100,000 items is larger than memory, and the measured time must not include making its items. So the items
are windows into a ring buffer: item i starts i items after item 0. The ring's length and a chunk's length have no
common factor, so all chunks start at different places, unless there are more chunks than places.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit import pipeline
from cudakit.compare import Comparison, compare
from cudakit.driver.context import Context
from cudakit.errors import Refused
from cudakit.memory.pinned import is_pinned

if TYPE_CHECKING:
    from cudakit.device import Device

Host = np.ndarray[Any, Any]
RING_BYTES = 256 << 20  # size of a ring, all inputs together: larger than the caches of a processor
MOST_BYTES = 4 << 30  # maximum size of a ring that is enlarged because there are many chunks
RESIDENT_BYTES = 1 << 30  # pinned memory from which the stream is read repeatedly


@dataclass(frozen=True)
class Workload:
    """The work on one stream of items. name: the family's name in the report. function: the function for
    `pipeline.run`. inputs: the number of inputs. item, dtype: shape and dtype of an item and of a result. reference:
    computes the results for a list of blocks of items in float64; plain: computes them in the work's own precision.
    reach: the number of rows above and below that a row of the result depends on; None if it depends on all rows.
    terms: the length of the longest sum in an element; 1 if there are no sums."""

    name: str
    function: Callable[..., Any]
    inputs: int
    item: tuple[int, ...]
    reference: Callable[[list[Host]], Host]
    plain: Callable[[list[Host]], Host]
    dtype: str = "float32"
    reach: int | None = None
    terms: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of one item of one input."""
        return int(np.prod(self.item, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def result(self) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of one result."""
        return self.item, self.dtype

    @property
    def by_rows(self) -> bool:
        """Whether windows may start at any row of the ring, because the result of a row does not depend on the whole
        item."""
        return self.reach is not None and len(self.item) == 2 and self.item[0] > 2 * self.reach


@dataclass(frozen=True)
class Ring:
    """The places of items in a ring. units: places per item (its rows, or 1). period: places in the ring."""

    units: int
    period: int

    @classmethod
    def of(cls, work: Workload, count: int, chunk: int) -> Ring:
        """The ring for `count` items in chunks of `chunk`. Raises Refused if the chunks need too much memory."""
        units = work.item[0] if work.by_rows else 1
        nbytes = work.nbytes * work.inputs // units  # of one place
        chunks = -(-count // chunk)
        period = max(min(count * units, RING_BYTES // max(nbytes, 1)), chunks, 1)
        while math.gcd(period, chunk * units) > 1:
            period += 1
        if chunks * nbytes > MOST_BYTES:
            raise Refused(
                f"{chunks:,} different chunks need {chunks * nbytes:,} bytes of inputs, more than the "
                f"{MOST_BYTES:,} allowed: pass a larger --chunk or a smaller --count"
            )
        return cls(units, period)

    def place(self, number: Any) -> Any:
        """Return the place at which an item starts; for an array of item numbers, an array of places."""
        return number * self.units % self.period


class FromRing(pipeline.Source):
    """A stream of `count` items from a ring in memory, copied to the device directly from the ring if that is pinned.
    array: the ring, followed by a copy of its beginning that is at least one item long. Ranges of items that end within
    it are contiguous."""

    def __init__(self, array: Host, ring: Ring, item: pipeline.Item, count: int) -> None:
        self.array, self.item, self.count = array, item, count
        self._ring = ring
        self._pinned: bool | None = None

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, Host]]:
        """Yield the items in contiguous parts, as (offset from start, items)."""
        units, at = self._ring.units, start
        while at < stop:
            place = self._ring.place(at)
            taken = min(stop - at, (len(self.array) - place) // units)
            yield at - start, self.array[place : place + taken * units].reshape(taken, *self.item.shape)
            at += taken

    def read(self, start: int, stop: int, into: Host) -> None:
        for offset, part in self._parts(start, stop):
            np.copyto(into[offset : offset + len(part)], part)

    def view(self, start: int, stop: int) -> Host | None:
        parts = list(self._parts(start, stop))
        return parts[0][1] if len(parts) == 1 else None

    def pinned(self, context: Context, start: int, stop: int) -> Host | None:
        if self._pinned is None:
            self._pinned = is_pinned(context, self.array)
        return self.view(start, stop) if self._pinned else None


@dataclass
class Items:
    """The stream's items: windows of a ring of standard normal numbers, used in chunks of at most `longest` items.

    inputs: one ring per input, followed by a copy of its first item.
    """

    work: Workload
    ring: Ring
    longest: int
    inputs: list[Host]
    exact: Host = field(init=False)  # the result at each place of the ring: a row or an item
    plain: Host = field(init=False)

    def __post_init__(self) -> None:
        period, reach = self.ring.period, self.work.reach or 0
        if self.work.by_rows:
            # the ring as one tall item, extended on both sides by the rows that its first and last rows depend on
            around = np.arange(-reach, period + reach) % period
            tall = [host[around][None] for host in self.inputs]
            exact, plain = (result(tall)[0] for result in (self.work.reference, self.work.plain))
            self.exact, self.plain = exact[reach : reach + period], plain[reach : reach + period]
        else:
            whole = [host[:period] for host in self.inputs]
            self.exact, self.plain = self.work.reference(whole), self.work.plain(whole)

    @classmethod
    def make(cls, work: Workload, count: int, chunk: int, seed: int = 0) -> Items:
        """Make `count` items such that all chunks of `chunk` items differ. Raises Refused if that needs too much
        memory."""
        ring, longest = Ring.of(work, count, chunk), min(chunk, count)
        rng = np.random.default_rng(seed)
        shape = (ring.period, *(work.item[1:] if work.by_rows else work.item))
        pairs = 2 if np.dtype(work.dtype).kind == "c" else 1
        inputs = []
        for _ in range(work.inputs):
            numbers = rng.standard_normal((*shape[:-1], pairs * shape[-1]), dtype=np.float32).view(work.dtype)
            inputs.append(_repeated(numbers, ring.period + ring.units))
        return cls(work, ring, longest, inputs)

    def doing(self, work: Workload) -> Items:
        """The same items, for another implementation of the same work."""
        other = copy.copy(self)
        other.work = work
        return other

    def blocks(self, start: int, stop: int) -> list[Host]:
        """The inputs of items start..stop, as new arrays."""
        blocks = [np.empty((stop - start, *self.work.item), self.work.dtype) for _ in self.inputs]
        for host, block in zip(self.inputs, blocks, strict=True):
            self._stream(host, 1, stop).read(start, stop, block)
        return blocks

    def judge(self, start: int, results: Host) -> Comparison:
        """Compares all elements of the results from item `start` on."""
        number = np.arange(start, start + len(results))
        if not self.work.by_rows:
            which = self.ring.place(number)
            return compare(results, self.exact[which], self.plain[which], self.work.terms)
        places = (self.ring.place(number)[:, None] + np.arange(self.ring.units)) % self.ring.period
        exact, plain = self.exact[places], self.plain[places]
        reach = self.work.reach or 0
        if reach:
            # results at the edges of an item differ from the ring's
            for edge, strip in ((np.s_[:reach], np.s_[: 2 * reach]), (np.s_[-reach:], np.s_[-2 * reach :])):
                rows = [host[places[:, strip]] for host in self.inputs]
                exact[:, edge], plain[:, edge] = self.work.reference(rows)[:, edge], self.work.plain(rows)[:, edge]
        return compare(results, exact, plain, self.work.terms)

    def taken(self, start: int, results: Host) -> Host:
        """Return a copy of one row of each result from item `start` on, for `judge_taken`: (items, columns)."""
        rows: Host = _by_rows(results)[np.arange(len(results)), self.checked(start, len(results))]
        return rows

    def judge_taken(self, start: int, own: Host) -> Comparison:
        """Compares these rows of the results from item `start` on."""
        row, place = self.checked(start, len(own)), self.ring.place(np.arange(start, start + len(own)))
        if self.work.by_rows:
            place = (place + row) % self.ring.period
            return compare(own, self.exact[place], self.plain[place], self.work.terms)
        return compare(own, _by_rows(self.exact)[place, row], _by_rows(self.plain)[place, row], self.work.terms)

    def checked(self, start: int, count: int) -> Host:
        """The row that is compared, of each of `count` results from item `start` on."""
        inside = self.work.reach or 0 if self.work.by_rows else 0
        rows = int(np.prod(self.work.item[:-1], dtype=np.int64))
        return inside + np.arange(start, start + count) * 7 % (rows - 2 * inside)

    def _stream(self, array: Host, turns: int, count: int) -> FromRing:
        ring = Ring(self.ring.units, turns * self.ring.period)
        return FromRing(array, ring, pipeline.Item.of(self.work.item, self.work.dtype), count)

    def resident(self, device: Device, count: int, *, pinned: bool = True) -> list[FromRing]:
        """Return one stream per input, from at most about RESIDENT_BYTES of pinned or ordinary memory that is read
        repeatedly."""
        period, units = self.ring.period, self.ring.units
        nbytes = period * self.work.inputs * self.work.nbytes // units
        turns = max(min(count * units // period, RESIDENT_BYTES // max(nbytes, 1)), 1)
        sources = []
        for host in self.inputs:
            shape = (turns * period + self.longest * units, *host.shape[1:])
            array = device.pinned(shape, host.dtype) if pinned else np.empty(shape, host.dtype)
            _repeat(host[:period], array)
            sources.append(self._stream(array, turns, count))
        return sources

    def made(self, count: int) -> list[pipeline.Filled]:
        """Return one stream per input, whose items the reader threads generate."""
        streams = [self._stream(host, 1, count) for host in self.inputs]
        return [pipeline.Filled(stream.read, count, self.work.item, self.work.dtype) for stream in streams]


def _repeat(some: Host, into: Host) -> None:
    for at in range(0, len(into), len(some)):
        into[at : at + len(some)] = some[: len(into) - at]


def _repeated(some: Host, count: int) -> Host:
    result = np.empty((count, *some.shape[1:]), some.dtype)
    _repeat(some, result)
    return result


def _by_rows(array: Host) -> Host:
    """`array` as (items, rows, columns)."""
    return array.reshape(len(array), -1, array.shape[-1] if array.ndim > 1 else 1)
