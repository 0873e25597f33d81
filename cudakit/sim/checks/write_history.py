"""All writes to the elements of an array: by which thread, copy or fill, in which order, and the values.

An event is one instruction of some lanes, or one copy or fill. It is recorded before memory changes; the new values are
read when the next event is recorded, or its launch or copy has ended. So the results of atomics and reductions need not
be computed, and they are exact, because every write to the elements is an event.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cudakit.sim.checks.global_memory import places_of
from cudakit.sim.checks.watches import HostWrite, Launched, Rows, Watch
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import Piece
from cudakit.sim.lockstep.report import Index3, SourcePlace, plain_name
from cudakit.sim.lockstep.transfers import Transfer

# the kinds of writes by kernels, by the kind of the instruction; all others are stores
_KINDS = {"atomic": "atomic", "reduction": "atomic", "bulk copy": "bulk copy (TMA)", "tensor copy": "bulk copy (TMA)"}
_KINDS |= {"bulk reduction": "bulk reduction (TMA)", "tensor reduction": "bulk reduction (TMA)"}
# other lanes that a write names, of those whose instruction wrote the same element
_NAMED_LANES = 8
# copies, fills and launches that are remembered for histories that begin later
_MOST_EARLIER = 4096


class Elements:
    """Some elements of an array of ``shape``, ``strides`` in bytes and ``dtype`` at ``address``: those with the flat
    indices ``chosen`` (C order), or all."""

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
        chosen: Sequence[int] | None = None,
    ) -> None:
        self.address, self.shape, self.strides, self.dtype = address, shape, strides, dtype
        size = dtype.itemsize
        self.count = math.prod(shape) if chosen is None else len(chosen)
        # addresses of the elements in ascending order, and their flat indices; None: adjacent, all of them
        self.places: Array | None = None
        self.flat: Array | None = None
        steps = [math.prod(shape[axis + 1 :]) * size for axis in range(len(shape))]
        if chosen is None and all(s == step or n == 1 for s, step, n in zip(strides, steps, shape, strict=True)):
            self.low, self.high = address, address + self.count * size
            return
        flat = np.arange(self.count) if chosen is None else np.array(chosen, np.int64)
        index = np.unravel_index(flat, shape) if shape else ()
        places = np.full(len(flat), address, np.int64)
        for position, stride in zip(index, strides, strict=True):
            places += position * stride
        # elements of one address, as in broadcasts, are one element
        self.places, first = np.unique(places, return_index=True)
        self.flat = flat[first]
        self.count = len(first)
        self.low = int(self.places[0]) if self.count else address
        self.high = int(self.places[-1]) + size if self.count else address

    def at(self, number: Any) -> Any:
        """The addresses of elements by their numbers, which ascend with the addresses."""
        size = self.dtype.itemsize
        return self.address + number * size if self.places is None else self.places[number]

    def index(self, number: int) -> tuple[int, ...]:
        """The index of an element."""
        flat = number if self.flat is None else int(self.flat[number])
        return tuple(int(i) for i in np.unravel_index(flat, self.shape)) if self.shape else ()

    def number(self, flat: int) -> int:
        """The number of the element with a flat index; -1 if it is not among them."""
        if self.flat is None or self.places is None:
            return flat
        found = np.flatnonzero(self.flat == flat)
        return int(found[0]) if len(found) else -1

    def hit(self, places: Array, size: int) -> tuple[Array, Array]:
        """The positions in ``places`` of accesses of ``size`` bytes that share bytes with elements, and the numbers of
        these elements; an access occurs once per element."""
        low, high = self._before(places - (self.dtype.itemsize - 1)), self._before(places + size)
        counts = high - low
        hits = np.flatnonzero(counts)
        if len(hits) == 0 or int(counts.max()) == 1:
            return hits, low[hits]
        counts = counts[hits]
        numbers = np.repeat(low[hits] - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        return np.repeat(hits, counts), numbers

    def hit_rows(self, rows: Rows) -> Array:
        """The numbers of the elements that share bytes with rows."""
        address, width, height, pitch = rows
        if not (address < self.high and self.low < address + pitch * (height - 1) + width):
            return np.zeros(0, np.int64)
        return np.unique(self.hit(address + np.arange(height, dtype=np.int64) * pitch, width)[1])

    def _before(self, address: Array) -> Array:
        """The number of elements that start before an address."""
        if self.places is not None:
            return np.searchsorted(self.places, address)
        size = self.dtype.itemsize
        found: Array = np.clip(-((self.address - address) // size), 0, self.count)
        return found


@dataclass(eq=False)
class WriteEvent:
    """One instruction of a kernel, or one copy or fill. ``elements`` are the numbers of the elements that it writes and
    ``lanes`` the lanes that write them (None for the host), of which the last one wins, or for an atomic the one in
    ``winners``. ``old`` and ``new`` are the bytes of the distinct elements, ``distinct``, before and after (None: not
    recorded). ``describe`` returns the place of a lane."""

    kind: str
    elements: Array
    lanes: Array | None
    distinct: Array
    old: Array | None
    undefined: Array | None
    new: Array | None = None
    kernel: str = ""
    instruction: str = ""
    places: tuple[SourcePlace, ...] = ()
    describe: Callable[[int], tuple[Index3, Index3]] | None = None
    launch: int = 0
    launched: Launched | None = None
    work: HostWrite | None = None
    # the rows that a copy or fill writes; by element: the sources of its value, and the lane whose operand an atomic
    # stored last
    rows: Rows | None = None
    sources: dict[int, Any] = field(default_factory=dict)
    winners: dict[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The C++ name of the kernel, "" if the host wrote."""
        return plain_name(self.kernel) if self.kernel else ""


class WriteLog(Watch):
    """Records the writes to some elements of an array: ``events``, oldest first, of at most ``limit`` element writes
    in total. ``dropped`` counts older ones. ``notes`` say what is not recorded. ``trace`` finds the sources of stored
    values (sim/probing/source_trace.py)."""

    def __init__(self, elements: Elements, allocation: Allocation, limit: int, trace: Any = None) -> None:
        super().__init__(elements.low, elements.high - elements.low)
        self.elements, self.allocation, self.limit, self.trace = elements, allocation, limit, trace
        self.reads = trace is not None
        self.events: deque[WriteEvent] = deque()
        self.dropped = self.launches = self._kept = 0
        self.freed_at: str | None = None
        self.notes: list[str] = []
        self._open: WriteEvent | None = None
        self._transfer: Transfer | None = None
        self._this_launch: list[WriteEvent] = []
        # which elements have not been written since they were allocated; None: all have
        self._undefined = self._undefined_now()

    @property
    def live(self) -> bool:
        """Whether the memory is allocated."""
        return self.freed_at is None

    # ---- notifications ----

    def note(self, f: Fragment, access: MemoryAccess, pieces: Sequence[Piece]) -> None:
        for piece in self.touched(pieces):
            hits, numbers = self.elements.hit(places_of(access, piece), access.size)
            if len(hits):
                self._note(f, access, piece, hits, numbers)
        if self.trace is not None:
            self.trace.note(f, access, pieces)

    def _note(self, f: Fragment, access: MemoryAccess, piece: Piece, hits: Array, numbers: Array) -> None:
        lanes = piece.lanes.lanes[hits]
        instruction, kind = access.site.instruction, access.site.kind
        event = self._record(_KINDS.get(kind, "kernel store"), numbers, lanes)
        event.kernel, event.instruction = f.batch.run.config.kernel, instruction.text.strip()
        event.places = f.batch.run.place(instruction)
        event.describe = _describer(f)
        event.launch = self.launches + 1
        self._this_launch.append(event)
        if self.trace is None:
            return
        if event.kind == "atomic":
            for number in event.distinct.tolist():
                found, lane = self.trace.updated(f, access, piece, hits[numbers == number])
                event.sources[number] = found
                if lane is not None:
                    event.winners[number] = lane
            return
        starts = places_of(access, piece)[hits]
        winners = dict(zip(numbers.tolist(), range(len(numbers)), strict=True))
        size = self.elements.dtype.itemsize
        for number, winner in winners.items():
            begin = int(self.elements.at(number)) - int(starts[winner])
            if self._transfer is not None:
                event.sources[number] = self.trace.transferred(self._transfer, int(hits[winner]), begin, size)
                continue
            part = range(max(begin, 0) // access.width, -(-(begin + size) // access.width))
            event.sources[number] = self.trace.sources(f, instruction, int(lanes[winner]), part)

    def read(self, f: Fragment, access: MemoryAccess, pieces: Sequence[Piece]) -> None:
        self.trace.read(f, access, pieces)

    def copy_shared(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        self.trace.copy_shared(f, access, piece)

    def land(self, transfer: Transfer) -> None:
        self._transfer = transfer
        super().land(transfer)
        self._transfer = None
        if self.trace is not None:
            self.trace.land(transfer)

    def launched(self, launch: Launched) -> None:
        self.written()
        self.launches += 1
        for event in self._this_launch:
            event.launched = launch
        self._this_launch = []

    def write(self, work: HostWrite, rows: Rows) -> None:
        numbers = self.elements.hit_rows(rows)
        if len(numbers):
            event = self._record(work.kind, numbers, None)
            event.work, event.rows = work, rows

    def written(self) -> None:
        """Read the new values of the last event."""
        event, self._open = self._open, None
        if event is not None and self.live:
            event.new = self._bytes(event.distinct)

    def freed(self, allocation: Allocation, origin: str) -> None:
        if allocation is self.allocation:
            self.written()
            self.freed_at = origin

    # ---- records ----

    def _record(self, kind: str, numbers: Array, lanes: Array | None) -> WriteEvent:
        self.written()
        distinct = np.unique(numbers)
        undefined = None
        if self._undefined is not None:
            undefined = self._undefined[distinct]
            self._undefined[distinct] = False
        event = WriteEvent(kind, numbers, lanes, distinct, self._bytes(distinct), undefined)
        self._open = event
        self.events.append(event)
        self._kept += len(numbers)
        while self._kept > self.limit and len(self.events) > 1:
            gone = self.events.popleft()
            self._kept -= len(gone.elements)
            self.dropped += len(gone.distinct)
        return event

    def _bytes(self, numbers: Array) -> Array:
        """The bytes of elements, (elements, bytes each)."""
        starts = self.elements.at(numbers) - self.allocation.address
        found: Array = self.allocation.data[starts[:, None] + np.arange(self.elements.dtype.itemsize)]
        return found

    def _undefined_now(self) -> Array | None:
        table = self.allocation.undefined_at(0, self.allocation.size)
        if table is None or not self.elements.count:
            return None
        starts = self.elements.at(np.arange(self.elements.count)) - self.allocation.address
        found = table[starts] != 0
        return found if found.any() else None

    def earlier(self, work: HostWrite, rows: Rows, last: bool) -> None:
        """Add a copy or fill that ran before the recording began. ``last``: nothing has written since."""
        distinct = self.elements.hit_rows(rows)
        new = self._bytes(distinct) if last else None
        self.events.append(WriteEvent(work.kind, distinct, None, distinct, None, None, new, work=work, rows=rows))
        self._kept += len(distinct)

    def writers(self, event: WriteEvent, number: int) -> tuple[list[tuple[Index3, Index3]], int]:
        """The blocks and threads that wrote an element in an event, the one that wins first, then from the last to the
        first, and the number of all."""
        if event.lanes is None or event.describe is None:
            return [], 0
        lanes = event.lanes[event.elements == number][::-1].tolist()
        if number in event.winners:
            # the sort is stable
            lanes.sort(key=lambda lane: lane != event.winners[number])
        return [event.describe(lane) for lane in lanes[: _NAMED_LANES + 1]], len(lanes)

    def rows(self) -> Iterator[tuple[WriteEvent, int, int]]:
        """The element writes: the event, the element's number, and its position in the event's ``distinct``."""
        self.written()
        for event in list(self.events):
            for position, number in enumerate(event.distinct.tolist()):
                yield event, number, position


class EarlierWrites(Watch):
    """Remembers copies, fills and launches, for histories that begin after them: only which memory they wrote or may
    have written, not the values."""

    def __init__(self) -> None:
        super().__init__(0, 1 << 64)
        self._seen: deque[tuple[HostWrite, Rows] | Launched] = deque(maxlen=_MOST_EARLIER)

    def write(self, work: HostWrite, rows: Rows) -> None:
        self._seen.append((work, rows))

    def launched(self, launch: Launched) -> None:
        self._seen.append(launch)

    def add_to(self, log: WriteLog) -> list[Launched]:
        """Add the copies and fills to a history that has just begun. Returns the launches with a pointer to its memory,
        whose writes are not known."""
        home = log.allocation
        mine = [
            one
            for one in self._seen
            if not isinstance(one, Launched) or any(home.address <= value < home.end for _, value in one.pointers)
        ]
        kernels = [one for one in mine if isinstance(one, Launched)]
        last = mine.index(kernels[-1]) if kernels else -1
        writing = [
            (place, *one)
            for place, one in enumerate(mine)
            if not isinstance(one, Launched) and len(log.elements.hit_rows(one[1]))
        ]
        for place, work, rows in writing:
            log.earlier(work, rows, last=place > last and place == writing[-1][0])
        return kernels


def _describer(f: Fragment) -> Callable[[int], tuple[Index3, Index3]]:
    """A function that returns the place of a lane of the fragment's batch, which may have ended. It keeps only the
    batch's geometry alive."""
    geometry, indices = f.batch.geometry, f.batch.indices

    def describe(lane: int) -> tuple[Index3, Index3]:
        block, thread = divmod(lane, geometry.threads)
        x, y, z = indices[block].tolist()
        return (x, y, z), geometry.thread_index(thread)

    return describe
