"""Watchpoints: stop when a value changes.

A watched value is in memory (global, or the shared memory of one block), or a variable of one thread's frame. It is
compared before each instruction; the instruction that has changed it is the one that ran last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.debugger.code import Code
from cudakit.debugger.expressions import Value, bytes_of, evaluate
from cudakit.debugger.state import CallFrame, View
from cudakit.debugger.syntax import ExpressionError, Node
from cudakit.debugger.types import Array, CType
from cudakit.sim.lockstep.clusters import RANK_MASK, RANK_SHIFT
from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_START, SHARED_WINDOW, MemoryFault
from cudakit.sim.ptx.ir import Address, Instruction, Register
from cudakit.sim.values.lanewise import width


class Watchpoint:
    """A watched value: `text` is the expression, `type` its type, `old` its bytes."""

    def __init__(self, number: int, text: str, kind: CType, old: bytes) -> None:
        self.number = number
        self.text = text
        self.type = kind
        self.old = old
        self.hits = 0
        self.enabled = True
        self.condition = ""

    def current(self, f: Fragment, instruction: Instruction) -> bytes | None:
        """The value's bytes now; None if it cannot be read from here. Raises Gone once it does not exist any more."""
        raise NotImplementedError

    def writers(self, f: Fragment, instruction: Instruction) -> Array:
        """The positions of the threads whose instruction has written the value; empty if that is not known."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"watchpoint {self.number}: {self.text}"


class Gone(Exception):
    """The watched value does not exist any more: its frame or its block has ended."""


class MemoryWatch(Watchpoint):
    """Watches bytes of global memory, or of the shared memory of block `block` of a batch."""

    def __init__(
        self, number: int, text: str, kind: CType, old: bytes, address: int, home: tuple[Batch, int] | None, space: Any
    ) -> None:
        super().__init__(number, text, kind, old)
        self.address, self.home, self.space = address, home, space

    def current(self, f: Fragment, instruction: Instruction) -> bytes | None:
        size = len(self.old)
        if self.home is not None:
            batch, block = self.home
            if batch is not f.batch or batch.shared is None:
                raise Gone
            start = block * batch.shared.stride + self.address - SHARED_START
            return bytes(batch.shared.bytes[start : start + size])
        try:
            allocation = self.space.covering(self.address, size)
        except MemoryFault:
            raise Gone from None
        start = self.address - allocation.address
        return bytes(allocation.data[start : start + size])

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
            ranks = starts & (SHARED_WINDOW - 1)
            mine = f.lanes.block == block
            if batch.run.cluster_size > 1:
                size = batch.run.cluster_size
                mine = f.lanes.block - f.lanes.block % size + (ranks >> RANK_SHIFT & RANK_MASK) == block
            starts = np.where(mine, ranks & ((1 << RANK_SHIFT) - 1), -1 << 30)
        end = self.address + len(self.old)
        return np.flatnonzero((starts < end) & (starts + _bytes_accessed(instruction) > self.address))


def _bytes_accessed(instruction: Instruction) -> int:
    """The bytes that a load, store or atomic accesses per thread; 32, the most, if its operands do not show it."""
    count = next((int(m[1:]) for m in instruction.modifiers if m in ("v2", "v4", "v8")), 1)
    try:
        return count * width(instruction.modifiers[-1]) // 8
    except (KeyError, ValueError, IndexError):
        return 32


class VariableWatch(Watchpoint):
    """Watches a variable of one thread, in the frame at `depth` of the thread's calls."""

    def __init__(self, number: int, text: str, node: Node, code: Code, view: View, old: Value) -> None:
        super().__init__(number, text, old.type, bytes(bytes_of(old, view)[0]))
        self.node, self.code, self.batch = node, code, view.batch
        self.depth, self.program = view.frame.depth, view.program
        self.lane = int(view.f.lanes.lanes[view.positions[0]])

    def current(self, f: Fragment, instruction: Instruction) -> bytes | None:
        if f.batch is not self.batch:
            raise Gone
        position = int(np.searchsorted(f.lanes.lanes, self.lane))
        if position >= f.lanes.count or int(f.lanes.lanes[position]) != self.lane:
            return None
        if len(f.frames) <= self.depth or f.frames[self.depth].program is not self.program:
            raise Gone
        if len(f.frames) != self.depth + 1:
            return None  # a callee may change it by a pointer: seen once it has returned
        view = View(self.code, CallFrame(f, self.depth, instruction), np.array([position]))
        try:
            return bytes(bytes_of(evaluate(self.node, view), view)[0])
        except ExpressionError:
            return None

    def writers(self, f: Fragment, instruction: Instruction) -> Array:
        return np.flatnonzero(f.lanes.lanes == self.lane)


@dataclass
class Changed:
    """A watched value has changed: the bytes before and after, and the instruction that ran last, if it is known."""

    watch: Watchpoint
    old: bytes
    new: bytes


def watch(number: int, text: str, node: Node, code: Code, view: View) -> Watchpoint:
    """A watchpoint for an expression in the frame of one thread. Raises ExpressionError if it has no value there, or is
    not something that can be written to."""
    value = evaluate(node, view)
    if value.addresses is not None:
        address = int(value.addresses[0])
        old = bytes(bytes_of(value, view)[0])
        if SHARED_WINDOW <= address < LOCAL_WINDOW:
            offset = address - SHARED_WINDOW
            block = int(view.f.lanes.block[view.positions[0]])
            size = view.batch.run.cluster_size
            if size > 1:
                block = block - block % size + (offset >> RANK_SHIFT & RANK_MASK)
                offset &= (1 << RANK_SHIFT) - 1
            return MemoryWatch(number, text, value.type, old, offset, (view.batch, block), None)
        if address < LOCAL_WINDOW:
            return MemoryWatch(number, text, value.type, old, address, None, view.batch.run.space)
        if address >= PARAM_WINDOW:
            raise ExpressionError(f"{text} is a kernel parameter in constant memory and cannot change")
    elif not value.register:
        raise ExpressionError(f"{text} is a computed value; watch a variable or an element of memory")
    return VariableWatch(number, text, node, code, view, value)
