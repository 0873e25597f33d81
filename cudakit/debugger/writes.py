"""The history of writes to an array on the simulated device: which thread, copy or fill wrote each element, and why.

with cudakit.trace_writes(out, (12, 7), reads=True) as history:
    kernel.launch(stream, grid=64, block=256, args=(x, out))
print(history)
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cudakit.debugger.arrays import (
    MOST_ELEMENTS,
    ArrayLayout,
    ArrayTable,
    flat_indices,
    index_text,
    simulated_contexts,
)
from cudakit.debugger.write_records import Index3, Place, Read, Write
from cudakit.driver import driver as drivers
from cudakit.driver.context import Context
from cudakit.errors import Closed, CudakitError
from cudakit.memory import pinned
from cudakit.memory.array import DeviceArray
from cudakit.sim.lockstep.report import plain_name

# atomics that keep one of several values
_CHOOSING = re.compile(r"\.(min|max|cas)\b")
#: The most writes of one element each that a history keeps; then the oldest are dropped.
MOST_WRITES = 4_000_000
#: The most writes that the text of a history has.
MOST_SHOWN = 50


class WriteHistory:
    """The writes to an array, or to some of its elements, in order. Made by `trace_writes`; a context manager.

    Attributes:
        name: The array's name in the text, "array" if unknown.
        notes: Notes on writes that the history does not contain.
    """

    def __init__(self, context: Context, layout: ArrayLayout, log: Any, table: ArrayTable | None, name: str) -> None:
        self.name, self.notes = name, list[str]()
        # the line that launched the kernel and its number, if this process only repeats a launch
        self.launched: str | None = None
        self.launch: int | None = None
        self._context, self._layout, self._log, self._table = context, layout, log, table
        self._open = True

    def __enter__(self) -> WriteHistory:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.end(wait=kind is None)

    def end(self, *, wait: bool = True) -> WriteHistory:
        """End the history. A second call does nothing.

        Args:
            wait: Wait for the device first, so that the writes of queued work are recorded.

        Raises:
            DeviceFault: If a kernel failed; the history has its writes up to the fault.
        """
        if self._open:
            self._open = False
            try:
                if wait and not self._context.closed and not self._context.lost:
                    self._context.synchronize()
            finally:
                self._context.driver.simEndTrace(self._log)
                if self._table is not None:
                    self._context.driver.simEndOnLaunch(self._table.launch)
        return self

    @property
    def writes(self) -> list[Write]:
        """The writes of the work that has run, in order. Work that is queued runs when something waits for it, such as
        `end()`."""
        log = self._log
        return [self._write(log.dropped + place, *row) for place, row in enumerate(log.rows(), 1)]

    def last(self, index: Any = None) -> Write | None:
        """Return the last write to an element, or of all elements if `index` is None; None if there is none."""
        log = self._log
        log.written()
        number = log.dropped + len(self)
        chosen = None if index is None else log.elements.number(*flat_indices(self._layout.shape, index))
        for event in reversed(log.events):
            last = len(event.distinct) - 1
            position = last if chosen is None else int(np.searchsorted(event.distinct, chosen))
            if position <= last and (chosen is None or event.distinct[position] == chosen):
                return self._write(number - last + position, event, int(event.distinct[position]), position)
            number -= len(event.distinct)
        return None

    def __len__(self) -> int:
        return sum(len(event.distinct) for event in self._log.events)

    def __repr__(self) -> str:
        return f"WriteHistory({self.name}, {len(self)} write{'s' * (len(self) != 1)})"

    def __str__(self) -> str:
        writes = self.writes
        total = self._log.dropped + len(writes)
        counted = f"{total} write{'s' * (total != 1)}" if total else "no writes"
        lines = [f"{counted} to {self._title()}"]
        first = max(0, len(writes) - MOST_SHOWN)
        if first:
            lines.append(f"  the last {MOST_SHOWN} follow; .writes has {len(writes)}")
        lines += [line for write in writes[first:] for line in write.lines(self.name)]
        return "\n".join(lines + [f"note: {note}" for note in self.all_notes()])

    def all_notes(self) -> list[str]:
        """Notes on writes that the history does not contain, and on the free of its memory."""
        notes = list(self.notes)
        if self._log.dropped:
            notes.append(
                f"the first {self._log.dropped} writes were dropped, because a history keeps {MOST_WRITES}: trace fewer"
                " elements"
            )
        if self._log.freed_at is not None:
            notes.append(f"the memory was freed {self._log.freed_at}, which ended the history")
        return notes

    def as_dict(self) -> dict[str, Any]:
        """The history in plain types, for JSON: `array`, `writes` and `notes`."""
        layout = self._layout
        array = {"name": self.name, "shape": list(layout.shape), "dtype": layout.dtype.name}
        return {"array": array, "writes": [_plain(asdict(one)) for one in self.writes], "notes": self.all_notes()}

    def covers(self, layout: ArrayLayout) -> bool:
        """Whether the history is that of an array with this layout."""
        return self._layout == layout

    def learn(self, launched: Any) -> None:
        """Learn the names of the arrays that a launch receives, of which the history was not notified."""
        if self._table is not None:
            self._table.launch(launched)

    def add_earlier(self, earlier: Any) -> None:
        """Add the copies and fills that ran before the history began."""
        for launched in earlier.add_to(self._log):
            self.notes.append(
                f"kernel {plain_name(launched.kernel)}, launched {launched.place}, ran before the history began with a "
                "pointer to this memory: its writes are not recorded"
            )

    # ---- from the recording ----

    def _title(self) -> str:
        log = self._log
        one = log.elements.count == 1 and log.elements.flat is not None
        index = index_text(log.elements.index(0)) if one else ""
        few = f"{log.elements.count} elements of " if not one and log.elements.count != self._layout.size else ""
        return f"{few}{self.name}{index} ({self._layout.dtype.name}, shape {self._layout.shape})"

    def _value(self, row: Any) -> Any:
        return None if row is None else np.ascontiguousarray(row).view(self._layout.dtype)[0]

    def _write(self, number: int, event: Any, element: int, position: int) -> Write:
        log, launched, work = self._log, event.launched, event.work
        threads, lanes = log.writers(event, element)
        unset = event.undefined is not None and bool(event.undefined[position])
        before = None if event.old is None or unset else self._value(event.old[position])
        after = None if event.new is None else self._value(event.new[position])
        sources = event.sources.get(element)
        reads = () if sources is None else tuple(self._read(one, event, threads[0]) for one in sources.found)
        notes = [] if sources is None else list(dict.fromkeys(sources.notes))
        if sources is not None and sources.more:
            notes.append(f"computed from earlier values too, of which the last {len(reads)} are listed")
        if log.trace is None and event.kind == "atomic" and lanes > 1 and _CHOOSING.search(event.instruction):
            notes.append(f"{lanes} threads executed it: reads=True finds the one whose value remains")
        if (
            work is not None
            and work.source is not None
            and self._layout.dtype.itemsize
            and work.kind.endswith("device")
        ):
            reads = self._copied(work.source, event.rows, element, after)
        origin = work.place if work is not None else launched.place if launched is not None else None
        return Write(
            number=number,
            kind=event.kind,
            index=log.elements.index(element),
            before=before,
            after=after,
            kernel=event.name,
            launch=self.launch if self.launch is not None and event.launch else event.launch,
            launched=self.launched or ("" if origin is None else f"{origin.file}:{origin.line}"),
            device="" if launched is None else launched.device,
            call="" if work is None else work.call,
            block=threads[0][0] if threads else None,
            thread=threads[0][1] if threads else None,
            others=tuple(threads[1:]),
            lanes=lanes,
            places=_places(event.places) if work is None or origin is None else (_python(origin),),
            instruction=event.instruction,
            reads=reads,
            notes=tuple(notes),
            uninitialised=unset,
        )

    def _copied(self, source: Any, rows: Any, element: int, value: Any) -> tuple[Read, ...]:
        """The element that a copy from device memory read."""
        address, width, _, pitch = rows
        row, column = divmod(int(self._log.elements.at(element)) - address, pitch)
        if source[1] != width or column < 0:
            return ()
        there = source[0] + row * source[3] + column
        return (Read("global", "", value, address=there),)

    def _read(self, source: Any, event: Any, writer: tuple[Index3, Index3]) -> Read:
        launched, table = event.launched, self._table
        name, value = source.name, source.value
        if source.space == "global" and table is not None:
            name = table.name(source.address, source.size, launched)
            dtype = table.dtype(source.address, launched)
            if dtype is not None and source.bits is not None and dtype.itemsize == source.size:
                value = np.array(source.bits, f"<u{source.size}").view(dtype)[()]
            elif dtype is not None and value is not None and source.kind[:1] not in ("f", "s", "u"):
                value = _moved(source, dtype)
        elif source.kind[:1] not in ("f", "s", "u") and value is not None:
            value = _moved(source, self._layout.dtype)
        if source.parameter is not None and launched is not None:
            at = f" (byte {source.offset})" if source.offset else ""
            name = f"parameter {_name(launched.labels[source.parameter])}{at}"
        stored = None
        if source.stored is not None:
            there = (source.stored.block, source.stored.thread)
            reads = tuple(self._read(one, event, there) for one in source.stored.sources.found)
            stored = Write(
                number=0,
                kind=source.stored.access,
                block=source.stored.block,
                thread=source.stored.thread,
                places=_places(source.stored.places),
                reads=reads,
            )
        same = source.space == "literal" or (source.block, source.thread) == writer
        return Read(
            space=source.space,
            name=name or (source.space if source.address is None and source.space != "literal" else ""),
            value=value,
            address=source.address,
            places=_places(source.places),
            instruction=source.instruction,
            block=None if same else source.block,
            thread=None if same else source.thread,
            stored=stored,
        )


def _moved(source: Any, dtype: np.dtype[Any]) -> Any:
    """A value that was only moved on the way to an element of a dtype, of which it may contain several."""
    if source.size not in (1, 2, 4, 8) or source.size % dtype.itemsize or dtype.kind == "V":
        return source.value
    several = np.array([source.bits], f"<u{source.size}").view(dtype)
    return several[0] if len(several) == 1 else tuple(several)


def _name(label: str) -> str:
    """The label's name with its number."""
    return label.removeprefix("parameter ")


def _places(places: Any) -> tuple[Place, ...]:
    return tuple(
        Place(p.file, p.line, (p.text or "").strip(), plain_name(p.function) if p.function else "") for p in places
    )


def _python(origin: Any) -> Place:
    """A line of Python."""
    return Place(origin.file, origin.line, linecache.getline(origin.file, origin.line).strip())


def _plain(value: Any) -> Any:
    """A value for JSON: numpy's scalars as Python's."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, (int, float, str, bool, type(None))) else str(value)


def trace_writes(array: Any, index: Any = None, *, reads: bool = False, name: str = "array") -> WriteHistory:
    """Record every write to an array on the simulated device, or to some of its elements.

    Use it in a `with` block, or call `end()` of the result. While it records, kernels run in the interpreter. A free of
    the memory ends the history.

    Args:
        array: A DeviceArray of the simulated device, or a view of one: `x[2:, ::-1]`; or a numpy array in memory that
            `Device.pinned` made, of which writes by the host itself are not recorded.
        index: An int, a slice or a tuple of them, which select at most 1024 elements; None for all elements.
        reads: Also record the values from which kernels computed the stored values, and their addresses.
        name: The name of the array in the text.

    Returns:
        The history, with the writes of the work that runs from now on.

    Raises:
        CudakitError: If the array is on a GPU.
        TypeError: If `array` is not such an array, or the index has a wrong type.
        IndexError: If the index is out of range, or selects more than 1024 elements.
        ValueError: If `reads` is set for an array of more than 1024 elements without an index, or the array is empty.
        Closed: If the array was closed.
    """
    if isinstance(array, np.ndarray):
        pinned_by = next((one for one in simulated_contexts() if pinned.is_pinned(one, array)), None)
        if pinned_by is not None:
            return begin(pinned_by, ArrayLayout.of(array), index, reads=reads, name=name)
    if not isinstance(array, DeviceArray):
        raise TypeError(
            f"trace_writes() needs a DeviceArray of the simulated device, got {type(array).__module__}."
            f"{type(array).__name__}: copy it with Device('sim').array(x), and launch the kernel there"
        )
    context = array.context
    if context.kind != "sim":
        raise CudakitError(
            f"the array is on {context.spec}, but writes can be traced only on the simulated device: "
            "copy it with Device('sim').array(x.numpy()), and launch the kernel there"
        )
    if array.closed:
        raise Closed(f"{array.summary} was closed and its memory freed; trace it before close()")
    return begin(context, ArrayLayout.of(array), index, reads=reads, name=name)


def begin(
    context: Context,
    layout: ArrayLayout,
    index: Any,
    *,
    reads: bool,
    name: str,
    others: Sequence[ArrayLayout] = (),
) -> WriteHistory:
    """Begin a history of the memory at a layout; arguments and errors as for `trace_writes`. others: arrays that the
    values of kernels may come from, if no DeviceArray describes them."""
    if not layout.size:
        raise ValueError(f"{name} has shape {layout.shape}, which has no elements to trace")
    if index is None and reads and layout.size > MOST_ELEMENTS:
        raise ValueError(
            f"{name} has {layout.size} elements, but the values that kernels read are recorded for at most "
            f"{MOST_ELEMENTS}: pass the index of those that matter"
        )
    chosen = None if index is None else flat_indices(layout.shape, index)
    if chosen is not None and not chosen:
        raise IndexError(f"the index {index!r} selects no elements of {name}, which has shape {layout.shape}")
    log = drivers.trace_writes(context.driver, layout, chosen, MOST_WRITES, reads=reads)
    table = None
    if reads:
        table = ArrayTable(context.driver)
        for one in (*others, layout):
            table.add(one)
        context.driver.simOnLaunch(table.launch)
    return WriteHistory(context, layout, log, table, name)
