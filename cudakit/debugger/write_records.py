"""The records of a history of writes: a write to an element, and the values from which it was computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cudakit.debugger.arrays import index_text

Index3 = tuple[int, int, int]


@dataclass(frozen=True)
class Place:
    """A line of source, its text, and the function that contains it ("" if unknown)."""

    file: str
    line: int
    text: str = ""
    function: str = ""


@dataclass(frozen=True)
class Read:
    """A value from which a stored value was computed.

    Attributes:
        space: "global", "shared", "local", "constant", "parameter", "special register" or "literal".
        name: "x[3, 4]" if a parameter of the kernel points to that array; the name of a parameter or register.
        value: The value that was read, a tuple if it contains several elements of its array; None if unknown.
        address: In global memory; in shared and local memory the offset in the block's or the thread's bytes.
        places: The line that read it, then the lines into which it was inlined.
        instruction: The PTX instruction.
        block, thread: The thread that read it, if it is not the thread that wrote: a shuffle passed the value on, or
            several threads updated the element atomically; else None.
        stored: For shared memory, the store of the value: a Write without index and values; None if unknown.
    """

    space: str
    name: str
    value: Any
    address: int | None = None
    places: tuple[Place, ...] = ()
    instruction: str = ""
    block: Index3 | None = None
    thread: Index3 | None = None
    stored: Write | None = None

    def __str__(self) -> str:
        return "\n".join(self.lines("  "))

    def lines(self, indent: str) -> list[str]:
        """The printed form."""
        what = self.name or (self.space if self.address is None else f"{self.space} memory at {self.address:#x}")
        several = self.value if isinstance(self.value, tuple) else ()
        text = f"({', '.join(str(one) for one in several)})" if several else str(self.value)
        value = "" if self.value is None else f" = {text}"
        at = f", at {self.places[0].file}:{self.places[0].line}" if self.places else ""
        by = "" if self.thread is None else f", by block {self.block}, thread {self.thread}"
        lines = [f"{indent}{what}{value}{at}{by}"]
        if self.stored is not None:
            by = f"{self.stored.who()}{_at(self.stored.places)}"
            if self.stored.kind in ("atomic", "reduction"):
                return [*lines, f"{indent}    last updated by an atomic of {by}, whose values are not followed"]
            lines.append(f"{indent}    stored by {by}, which read")
            nested = [line for read in self.stored.reads for line in read.lines(indent + "      ")]
            lines += nested or [f"{indent}      values that are not followed"]
        return lines


@dataclass(frozen=True)
class Write:
    """One write to one element.

    Attributes:
        number: From 1, in the order of the history.
        kind: "kernel store", "atomic", "bulk copy (TMA)", "bulk reduction (TMA)", "copy from host", "copy from pinned
            memory", "copy from device", "fill" or "host function".
        index: The element's index.
        before: The value before; None if the memory was not initialised, or the value was not recorded.
        after: The value after; None if it was not recorded.
        kernel: The kernel's name, "" if the host wrote.
        launch: The number of the launch, from 1, since the history began; 0 if the host wrote.
        launched: The line of Python that launched the kernel, or queued the copy or fill: `FILE:LINE`.
        device: The device that ran it, "" if there is only one.
        call: The driver's function for a copy or fill, "" for a kernel.
        block, thread: The thread that wrote; of several in one instruction the last one, whose value remains. For an
            atomic minimum, maximum or compare-and-swap it is the thread whose value remains only with `reads=True`.
        others: The blocks and threads of the others, at most 8; `lanes` is the number of all.
        places: The line that wrote it (for the host, of Python), then the lines into which it was inlined.
        instruction: The PTX instruction.
        reads: With `reads=True`: the values from which the stored value was computed, in order.
        notes: Notes on values that `reads` do not list.
    """

    number: int
    kind: str
    index: tuple[int, ...] = ()
    before: Any = None
    after: Any = None
    kernel: str = ""
    launch: int = 0
    launched: str = ""
    device: str = ""
    call: str = ""
    block: Index3 | None = None
    thread: Index3 | None = None
    others: tuple[tuple[Index3, Index3], ...] = ()
    lanes: int = 0
    places: tuple[Place, ...] = ()
    instruction: str = ""
    reads: tuple[Read, ...] = ()
    notes: tuple[str, ...] = ()
    uninitialised: bool = field(default=False, compare=False)

    def who(self) -> str:
        """The thread or the call in words."""
        if self.thread is None:
            return f"host call {self.call}"
        on = f" on {self.device}" if self.device else ""
        kernel = f"kernel {self.kernel}{on}, " if self.kernel else ""
        return f"{kernel}block {self.block}, thread {self.thread}"

    def __str__(self) -> str:
        return "\n".join(self.lines("element"))

    def lines(self, array: str) -> list[str]:
        """The printed form; array: the name of the array."""
        old = "uninitialised" if self.uninitialised else "?" if self.before is None else f"{self.before!s}"
        new = "?" if self.after is None else f"{self.after!s}"
        lines = [f"write {self.number}, {self.kind}: {array}{index_text(self.index)} = {new} (was {old})"]
        if self.thread is None:
            lines += [f"  {self.who()}"]
        else:
            lines += [f"  {self.who()}", f"  launch {self.launch}, at {self.launched}"]
        for number, place in enumerate(self.places):
            within = f" in {place.function}" if place.function else ""
            lines.append(f"  {'inlined from' if number else 'at'} {place.file}:{place.line}{within}")
            lines += [f"      {place.text}"] if place.text else []
        if not self.places and self.instruction:
            lines.append(f"  at PTX instruction {self.instruction}")
        if self.lanes > 1:
            verb = (
                "executed the atomic too" if self.kind == "atomic" else "stored to it in the same instruction, and lost"
            )
            named = ", ".join(f"{thread} of block {block}" for block, thread in self.others)
            rest = self.lanes - 1 - len(self.others)
            lines.append(f"  {self.lanes - 1} more threads {verb}: {named}{f' and {rest} more' if rest else ''}")
        if self.reads:
            lines.append("  computed from")
            lines += [line for read in self.reads for line in read.lines("    ")]
        return lines + [f"  {note}" for note in self.notes]


def _at(places: tuple[Place, ...]) -> str:
    return f" at {places[0].file}:{places[0].line}" if places else ""
