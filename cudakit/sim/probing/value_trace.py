"""The definitions of registers and the accesses of memory in a running kernel, in order, for a search backwards.

Only those are kept from which a stored value can be computed: not the computation of addresses and conditions. With the
records, the definition that a lane's register had at a moment is known exactly, also in loops and calls.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.instructions.undefined import ShuffleReads
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.pieces import Piece
from cudakit.sim.lockstep.probes import InstructionHook
from cudakit.sim.lockstep.program import Program, reads_of, writes_of
from cudakit.sim.lockstep.registers import Registers
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.transfers import Transfer
from cudakit.sim.probing.operands import PARAMETERS
from cudakit.sim.ptx.ir import Address, Instruction, Negated, Operand, Register, Symbol, Vector
from cudakit.sim.ptx.opcodes import row_of, spaces_of

# the most bytes that the records keep alive, about; then the older half is dropped
MOST_BYTES = 256 << 20
_RECORD_BYTES = 200
_time = attrgetter("time")


class Defined(NamedTuple):
    """The execution of an instruction that writes registers, by ``lanes`` for which ``held`` is true (None: all), in a
    function called by ``depth - 1`` others. ``extra``: the lane that each lane of a shuffle reads, or whether each
    lane's selp chooses the first operand."""

    time: int
    depth: int
    lanes: LaneSet
    held: Array | None
    extra: Any = None

    def has(self, lane: int) -> bool:
        """Whether a lane has executed it."""
        position = position_of(self.lanes, lane)
        return position >= 0 and (self.held is None or bool(self.held[position]))


class Accessed(NamedTuple):
    """The execution of an access to memory: its pieces, and the values that each of them loaded (None: a store or a
    copy)."""

    time: int
    depth: int
    pieces: tuple[Piece, ...]
    access: MemoryAccess | TransferAccess
    values: tuple[Array, ...] | None

    def has(self, lane: int) -> bool:
        """Whether a lane has executed it."""
        return any(position_of(piece.lanes, lane) >= 0 for piece in self.pieces)

    def at(self, lane: int) -> tuple[Any, int, Any]:
        """The memory, the byte in its store, and the loaded value of a lane."""
        for number, piece in enumerate(self.pieces):
            position = position_of(piece.lanes, lane)
            if position >= 0:
                value = None
                if self.values is not None:
                    rows = self.values[number]
                    value = rows if isinstance(piece.index, int) else rows[position]
                return piece.home, _element(piece.index, position) * self.access.size, value
        raise LookupError(f"lane {lane} has not executed the access")


class ValueTrace:
    """A probe and the recipient of a watch's accesses: keeps the records of one batch at a time."""

    def __init__(self) -> None:
        self.time = 0
        self.records: dict[int, list[Any]] = {}
        # whether the oldest records were dropped
        self.dropped = False
        # the stores to local and to shared memory, and the copies to shared memory
        self.stores: dict[int, tuple[Program, Instruction]] = {}
        self.calls: list[tuple[Program, Instruction]] = []
        self.programs: Sequence[Program] = ()
        # by function and register or parameter: the instructions that write it
        self.writers: dict[tuple[str, str], list[Instruction]] = {}
        self.parameters: dict[str, int] = {}
        self._needed: set[int] = set()
        self._batch: Batch | None = None
        self._bytes = 0

    # ---- the probe ----

    def begin(self, function: Any, run: Any) -> bool:
        self.programs = tuple(function.reachable)
        self.parameters = {p.name: number for number, p in enumerate(function.program.function.params)}
        self.writers = {}
        self.calls = []
        for program in self.programs:
            for instruction in _instructions(program):
                for name in _written(instruction):
                    self.writers.setdefault((program.name, name), []).append(instruction)
                if instruction.opcode == "call":
                    self.calls.append((program, instruction))
        self._needed = {id(i) for program in self.programs for i in self._values(program)}
        self._clear(None)
        return True

    def hook(self, program: Program, instruction: Instruction) -> InstructionHook | None:
        loads = instruction.opcode in ("ld", "ldu") and PARAMETERS.isdisjoint(spaces_of(instruction))
        if loads or id(instruction) not in self._needed:
            return None  # loads are recorded with their addresses
        return _Hook(self, program, instruction)

    def keeps(self, program: Program) -> Iterable[int]:
        return ()  # hooks read registers only at the instructions that read them, too

    def fault(self, f: Any, position: int, instruction: Instruction | None, report: Any) -> None:
        pass

    def end(self, run: Any) -> None:
        self._clear(None)

    def _values(self, program: Program) -> Iterator[Instruction]:
        """The instructions from whose results a stored or passed value is computed."""
        names: set[str] = set()
        todo: list[str] = []
        for instruction in _instructions(program):
            if instruction.opcode in ("st", "atom", "red", "call"):
                todo += [name for operand in _stored(instruction) for name in names_of(operand)]
                if instruction.opcode == "call" or not PARAMETERS.isdisjoint(spaces_of(instruction)):
                    yield instruction
        while todo:
            name = todo.pop()
            if name in names:
                continue
            names.add(name)
            for instruction in self.writers.get((program.name, name), ()):
                yield instruction
                if row_of(instruction).memory is None or instruction.opcode in ("atom", "red"):
                    todo += [name for operand in operands_of(instruction) for name in names_of(operand)]
                elif not PARAMETERS.isdisjoint(spaces_of(instruction)):
                    todo += names_of(instruction.operands[1])

    # ---- records ----

    def define(self, f: Fragment, instruction: Instruction, held: Array | None, extra: Any) -> None:
        """Record an instruction that is about to write registers."""
        self._expect(f)
        size = _RECORD_BYTES + (0 if extra is None else extra.nbytes)
        self._add(instruction, Defined(self.time, len(f.frames), f.lanes, held, extra), size)

    def read(self, f: Fragment, access: MemoryAccess, pieces: Sequence[Piece]) -> None:
        """Record a load, if a stored value may depend on it."""
        instruction = access.site.instruction
        if id(instruction) not in self._needed and instruction.opcode != "cp":
            return
        self._expect(f)
        values = tuple(piece.view[piece.index].copy() for piece in pieces)
        made = Accessed(self.time, len(f.frames), tuple(pieces), access, values)
        self._add(instruction, made, sum(value.nbytes for value in values) + _size(pieces))

    def note(self, f: Fragment, access: MemoryAccess, pieces: Sequence[Piece]) -> None:
        """Record a store to local or shared memory, or an atomic that loads."""
        self._expect(f)
        instruction = access.site.instruction
        if instruction.opcode == "atom" and id(instruction) in self._needed:
            self.read(f, access, pieces)
        own = tuple(piece for piece in pieces if piece.home is f.batch.local or piece.home is f.batch.shared)
        if own:
            self._add_store(f, access, own)

    def copy_shared(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        """Record a cp.async."""
        self._expect(f)
        self._add_store(f, access, (piece,))

    def land(self, transfer: Transfer) -> None:
        """Record a copy that writes shared memory."""
        target, f = transfer.destination, transfer.f
        if target is not None and target.home is f.batch.shared:
            self._expect(f)
            lanes = LaneSet(f.batch.geometry, np.full(len(target.index), transfer.lane), len(target.index))
            units = target.access
            access = TransferAccess(transfer.site, units.size, units.width, units.count, transfer)
            self._add_store(f, access, (target.piece(lanes),))

    def _add_store(self, f: Fragment, access: Any, pieces: tuple[Piece, ...]) -> None:
        instruction = access.site.instruction
        self.stores[id(instruction)] = f.program, instruction
        self._add(instruction, Accessed(self.time, len(f.frames), pieces, access, None), _size(pieces))

    def _add(self, instruction: Instruction, record: Any, size: int) -> None:
        self.time += 1
        self.records.setdefault(id(instruction), []).append(record)
        self._bytes += size
        if self._bytes > MOST_BYTES:
            # records are of similar sizes: half of them has half of the bytes
            first = min(records[0].time for records in self.records.values() if records)
            cut = (first + self.time) // 2
            for records in self.records.values():
                del records[: bisect_left(records, cut, key=_time)]
            self._bytes //= 2
            self.dropped = True

    def _expect(self, f: Fragment) -> None:
        if f.batch is not self._batch:
            self._clear(f.batch)

    def _clear(self, batch: Batch | None) -> None:
        self._batch, self.records, self.stores = batch, {}, {}
        self._bytes, self.dropped = 0, False

    # ---- looking up ----

    def last(self, instruction: Instruction, lane: int, depth: int, before: int) -> Any:
        """The last record of an instruction by a lane at a depth of calls before a time; None if there is none."""
        records = self.records.get(id(instruction), ())
        for number in range(bisect_left(records, before, key=_time) - 1, -1, -1):
            record = records[number]
            if record.depth == depth and record.has(lane):
                return record
        return None

    def store_to(
        self, home: Any, low: int, high: int, before: int
    ) -> tuple[Program, Instruction, Accessed, int] | None:
        """The last store before a time to one of the bytes from ``low`` to ``high`` of the batch's local or shared
        memory: its function, instruction, record and lane."""
        found: tuple[Program, Instruction, Accessed, int] | None = None
        for key, (program, instruction) in self.stores.items():
            records = self.records.get(key, ())
            for number in range(bisect_left(records, before, key=_time) - 1, -1, -1):
                record = records[number]
                if found is not None and record.time < found[2].time:
                    break
                lane = _storing(record, home, low, high)
                if lane >= 0:
                    found = program, instruction, record, lane
                    break
        return found


@dataclass(frozen=True)
class TransferAccess:
    """The access of an asynchronous copy to shared memory; ``width``: bytes of an element."""

    site: Site
    size: int
    width: int
    count: int
    transfer: Transfer


class _Hook:
    """Records the executions of one instruction."""

    ends = False

    def __init__(self, trace: ValueTrace, program: Program, instruction: Instruction) -> None:
        self.trace, self.instruction, self.program = trace, instruction, program
        guard = instruction.guard
        self.guard = None if guard is None else (program.slots[guard[0].name], guard[1])
        self.shuffle = ShuffleReads(program.slots, instruction) if instruction.opcode == "shfl" else None
        chooses = instruction.operands[3] if instruction.opcode == "selp" else None
        self.chooses = chooses if isinstance(chooses, (Register, Negated)) else None

    def __call__(self, f: Fragment, r: Registers) -> None:
        held: Array | None = None
        if self.guard is not None:
            held = np.broadcast_to(r[self.guard[0]] != self.guard[1], (f.lanes.count,))
            if not held.any():
                return
        extra: Any = None
        if self.shuffle is not None:
            lanes = f.lanes
            extra = lanes.lanes - lanes.laneid + self.shuffle(f, r)[0] % 32
        elif self.chooses is not None:
            register = self.chooses.register if isinstance(self.chooses, Negated) else self.chooses
            chosen = r[self.program.slots[register.name]]
            extra = np.broadcast_to(~chosen if isinstance(self.chooses, Negated) else chosen, (f.lanes.count,))
        self.trace.define(f, self.instruction, held, extra)

    def after(self, f: Fragment) -> None:
        pass


def position_of(lanes: LaneSet, lane: int) -> int:
    """The position of a lane of the batch in a set; -1 if it is not in it."""
    if lanes.index is None:
        return lane if lane < lanes.count else -1
    position = int(np.searchsorted(lanes.index, lane))
    return position if position < lanes.count and lanes.index[position] == lane else -1


def _element(index: Any, position: int) -> int:
    if isinstance(index, slice):
        return int(index.start) + position
    return index if isinstance(index, int) else int(index[position])


def updated_before(record: Accessed, lane: int) -> bool:
    """Whether an earlier lane of the same atomic updated what a lane updates, so that it returned another value."""
    for piece in record.pieces:
        position = position_of(piece.lanes, lane)
        if position >= 0:
            index = piece.index
            shared = isinstance(index, np.ndarray) and bool((index[:position] == index[position]).any())
            return shared or (isinstance(index, int) and position > 0)
    return False


def reads(record: Accessed, place: int) -> bool:
    """Whether a load from shared memory read a byte."""
    return _storing(record, None, place, place + 1) >= 0


def _storing(record: Accessed, home: Any, low: int, high: int) -> int:
    """The last lane that accesses a byte in this range of a memory (None: any); -1 if there is none."""
    size = record.access.size
    for piece in record.pieces:
        if home is not None and piece.home is not home:
            continue
        index = piece.index
        if isinstance(index, slice):
            index = np.arange(index.start, index.stop)
        places = np.broadcast_to(np.asarray(index) * size, (piece.lanes.count,))
        hits = np.flatnonzero((places < high) & (places + size > low))
        if len(hits):
            return int(piece.lanes.lanes[hits[-1]])
    return -1


def _size(pieces: Sequence[Piece]) -> int:
    return _RECORD_BYTES + sum(p.index.nbytes for p in pieces if isinstance(p.index, np.ndarray))


def _instructions(program: Program) -> Iterator[Instruction]:
    for block in program.blocks:
        yield from block.instructions


def _written(instruction: Instruction) -> list[str]:
    """The registers and call parameters that an instruction writes."""
    if instruction.opcode == "call":
        returned = instruction.operands[0]
        return [o.name for o in (returned if isinstance(returned, tuple) else ()) if isinstance(o, (Symbol, Register))]
    if instruction.opcode == "st" and not PARAMETERS.isdisjoint(spaces_of(instruction)):
        return names_of(instruction.operands[0])
    return [register.name for register in writes_of(instruction)]


def _stored(instruction: Instruction) -> tuple[Operand | None, ...]:
    """The operands whose values an instruction stores or passes to a function."""
    if instruction.opcode == "call":
        params = instruction.operands[2]
        return params if isinstance(params, tuple) else ()
    return instruction.operands[2 if instruction.opcode == "atom" else 1 :]


def operands_of(instruction: Instruction) -> list[Operand]:
    """The operands that the result of an instruction is computed from, without its guard."""
    if instruction.opcode in ("atom", "red"):
        return [operand for operand in _stored(instruction) if operand is not None]
    if instruction.opcode == "shfl":
        return [o for o in instruction.operands[1:2] if o is not None]
    row = row_of(instruction)
    own = [o for o in instruction.operands[0 if row.updates else row.writes :] if o is not None]
    carry = [o for o in reads_of(instruction) if isinstance(o, Register) and o.name == "%cc.cf"]
    return own + carry


def names_of(operand: Operand | None) -> list[str]:
    """The registers and symbols in an operand."""
    if isinstance(operand, (Register, Symbol)):
        return [operand.name]
    if isinstance(operand, Negated):
        return [operand.register.name]
    if isinstance(operand, Address):
        return names_of(operand.base)
    elements = operand.elements if isinstance(operand, Vector) else operand if isinstance(operand, tuple) else ()
    return [name for element in elements for name in names_of(element)]
