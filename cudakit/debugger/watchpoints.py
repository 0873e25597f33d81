"""Watchpoints: stop when a value changes.

A watched value is in memory (global, or the shared memory of one block), or a variable of one thread's frame. It is
compared before each instruction; the instruction that has changed it is the one that ran last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.debugger import unwritten
from cudakit.debugger.code import Code
from cudakit.debugger.expressions import Value, bytes_of, evaluate
from cudakit.debugger.state import Place, View, frames
from cudakit.debugger.syntax import ExpressionError, Node
from cudakit.debugger.types import Array, CType, Member, member_bytes, show
from cudakit.sim.lockstep.clusters import home_of
from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_START, SHARED_WINDOW, MemoryFault
from cudakit.sim.ptx.ir import Address, Instruction, Register
from cudakit.sim.values.lanewise import width


@dataclass(frozen=True)
class Content:
    """The bytes of a value, and their marks (b"" if all are defined). Memory that was never written has
    bytes too, which a store may repeat."""

    data: bytes
    unset: bytes


def content(value: Value, view: View) -> Content:
    """The content of the first thread's value."""
    unset = unwritten.of(value, view)
    return Content(bytes(bytes_of(value, view)[0]), b"" if unset is None else _marks(unset[0]))


def _marks(unset: Array) -> bytes:
    return unset.tobytes() if unset.any() else b""


class Watchpoint:
    """A watched value: `text` is the expression, `type` its type, `old` its content at the last look."""

    def __init__(self, number: int, text: str, kind: CType, old: Content) -> None:
        self.number = number
        self.text = text
        self.type = kind
        self.old = old
        self.hits = 0
        self.enabled = True

    @property
    def outlives(self) -> bool:
        """Whether the value still exists after the launch."""
        return False

    def current(self, f: Fragment, instruction: Instruction) -> Content | None:
        """The value's content now; None if it cannot be read from here. Raises Gone once it does not exist any more."""
        raise NotImplementedError

    def writers(self, f: Fragment, instruction: Instruction) -> Array:
        """The positions of the threads whose instruction has written the value; empty if that is not known."""
        raise NotImplementedError

    def shown(self) -> str:
        """The text of the value."""
        data, unset = (np.frombuffer(part, np.uint8) for part in (self.old.data, self.old.unset))
        return show(self.type, data, unset=unset if len(unset) else None)

    def change(self, new: Content) -> Changed:
        """Note that the value has changed."""
        before, self.old = self.shown(), new
        return Changed(self, before, self.shown())

    def __str__(self) -> str:
        return f"watchpoint {self.number}: {self.text}"


class Gone(Exception):
    """The watched value does not exist any more: its frame or its block has ended."""


class MemoryWatch(Watchpoint):
    """Watches bytes of global memory, or of the shared memory of block `block` of a batch."""

    def __init__(
        self,
        number: int,
        text: str,
        value: Value,
        old: Content,
        address: int,
        home: tuple[Batch, int] | None,
        space: Any,
    ) -> None:
        super().__init__(number, text, value.type, old)
        self.address, self.home, self.space = address, home, space
        self.member = value.member

    @property
    def outlives(self) -> bool:
        return self.home is None

    def current(self, f: Fragment, instruction: Instruction) -> Content | None:
        data, unset = self._bytes(f)
        if self.member is not None and self.member.bits:
            whole = Member("", self.type, 0, self.member.bits, self.member.bit_offset)
            data = bytes(member_bytes(whole, np.frombuffer(data, np.uint8)))
        return Content(data, _marks(unset))

    def _bytes(self, f: Fragment) -> tuple[bytes, Array]:
        """The bytes in memory, and their marks."""
        size = len(self.old.data)
        if self.home is not None:
            batch, block = self.home
            if batch is not f.batch or batch.shared is None:
                raise Gone
            offset = self.address - SHARED_START
            start = block * batch.shared.stride + offset
            unset = unwritten.in_shared(batch, np.array([block]), np.array([offset]), size)[0]
            return bytes(batch.shared.bytes[start : start + size]), unset
        try:
            allocation = self.space.covering(self.address, size)
        except MemoryFault:
            raise Gone from None
        start = self.address - allocation.address
        return bytes(allocation.data[start : start + size]), unwritten.in_global(f.batch, self.address, size)

    def writers(self, f: Fragment, instruction: Instruction) -> Array:
        operand = next((o for o in instruction.operands if isinstance(o, Address)), None)
        if operand is None or not isinstance(operand.base, Register):
            if operand is not None and f.lanes.count == 1:
                return np.zeros(1, np.int64)
            return np.zeros(0, np.int64)
        held = np.asarray(f.regs[f.program.slots[operand.base.name]])
        starts = np.broadcast_to(held, (f.lanes.count,)).astype(np.int64) + operand.offset
        if self.home is not None:
            batch, block = self.home
            blocks, offsets = home_of(batch, f.lanes.block, starts & (SHARED_WINDOW - 1))
            starts = np.where(blocks == block, offsets, -1 << 30)
        end = self.address + len(self.old.data)
        return np.flatnonzero((starts < end) & (starts + _bytes_accessed(instruction) > self.address))


def _bytes_accessed(instruction: Instruction) -> int:
    """The bytes that a load, store or atomic accesses per thread; 32, the most, if its operands do not show it."""
    count = next((int(m[1:]) for m in instruction.modifiers if m in ("v2", "v4", "v8")), 1)
    try:
        return count * width(instruction.modifiers[-1]) // 8
    except (KeyError, ValueError, IndexError):
        return 32


class VariableWatch(Watchpoint):
    """Watches a variable of one thread, in the frame at `depth` of the thread's calls. `seen` is the instruction at
    which the thread was last."""

    def __init__(self, number: int, text: str, node: Node, code: Code, view: View, old: Value) -> None:
        super().__init__(number, text, old.type, content(old, view))
        self.node, self.code, self.batch = node, code, view.batch
        self.depth, self.program = view.frame.depth, view.program
        self.lane = int(view.f.lanes.lanes[view.positions[0]])
        self.seen: tuple[Fragment, Instruction] | None = None

    def current(self, f: Fragment, instruction: Instruction) -> Content | None:
        if f.batch is not self.batch:
            raise Gone
        place = Place(f, instruction)
        position = place.holds(self.lane)
        if position is None:
            return None
        if len(f.frames) <= self.depth or f.frames[self.depth].program is not self.program:
            raise Gone
        frame = next(one for one in frames(place) if one.depth == self.depth)
        view = View(self.code, frame, np.array([position]))
        try:
            return content(evaluate(self.node, view), view)
        except ExpressionError:
            return None

    def writers(self, f: Fragment, instruction: Instruction) -> Array:
        return np.flatnonzero(f.lanes.lanes == self.lane)


@dataclass
class Changed:
    """A watched value has changed: the texts before and after."""

    watch: Watchpoint
    old: str
    new: str


def watch(number: int, text: str, node: Node, code: Code, view: View) -> Watchpoint:
    """A watchpoint for an expression in the frame of one thread. Raises ExpressionError if it has no value there, or is
    not something that can be written to."""
    value = evaluate(node, view)
    if value.addresses is not None:
        address = int(value.addresses[0])
        old = content(value, view)
        if SHARED_WINDOW <= address < LOCAL_WINDOW:
            home, offset = home_of(view.batch, int(view.f.lanes.block[view.positions[0]]), address - SHARED_WINDOW)
            return MemoryWatch(number, text, value, old, offset, (view.batch, home), None)
        if address < LOCAL_WINDOW:
            return MemoryWatch(number, text, value, old, address, None, view.batch.run.space)
        if address >= PARAM_WINDOW:
            raise ExpressionError(f"{text} is a kernel parameter in constant memory and cannot change")
    elif not value.register:
        raise ExpressionError(f"{text} is a computed value; watch a variable or an element of memory")
    return VariableWatch(number, text, node, code, view, value)
