"""The values from which a stored value was computed: a search backwards through the records of ``ValueTrace``.

It starts at the operands of a store and goes back through registers, calls, local variables and shuffles, for one lane,
to loads, parameters and special registers. It does not follow addresses and conditions, except that a selp is followed
to the operand that it chose.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from cudakit.sim.checks.watches import lane_place
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.program import Program
from cudakit.sim.lockstep.transfers import Transfer
from cudakit.sim.probing.copied import bytes_of, origin_in_global, unit_at
from cudakit.sim.probing.operands import elements_of
from cudakit.sim.probing.source_records import Source, Sources, Stored
from cudakit.sim.probing.value_trace import (
    Accessed,
    Defined,
    TransferAccess,
    ValueTrace,
    operands_of,
    reads,
    updated_before,
)
from cudakit.sim.ptx.ir import Address, Immediate, Instruction, Negated, Operand, Register, Special, Symbol, Vector
from cudakit.sim.values.lanewise import width

# sources of one value; the search goes back in time, so that those are the last ones
MOST_SOURCES = 32
_MOST_STEPS = 20000
# the stores to shared memory that are followed one after another, and the sources of each
_MOST_LEVELS, _MOST_NESTED = 2, 8
_TYPES = {f"{letter}{bits}" for letter in "busf" for bits in (8, 16, 32, 64)} | {"bf16"}
_MOVES = {"ld", "ldu", "st", "mov", "selp", "shfl"}
_MATRIX = {"mma", "wmma", "wgmma", "ldmatrix", "movmatrix"}
_MATRIX_NOTE = "a matrix product also uses values of the warp's other lanes, which are not listed"


class Walk:
    """One search for the sources of one value. The latest definition is expanded first, so that the limits cut off the
    earliest sources."""

    def __init__(self, trace: ValueTrace, f: Fragment, level: int = 0) -> None:
        # level: how many stores to shared memory have been followed
        self.trace, self.f, self.level = trace, f, level
        self.result = Sources()
        self._heap: list[tuple[int, int, Any]] = []
        self._seen: set[Any] = set()
        self._timed: list[tuple[int, Source]] = []
        self._literals: list[Source] = []
        self._lost = False

    def run(self) -> Sources:
        steps = 0
        while self._heap:
            if len(self._timed) >= (_MOST_NESTED if self.level else MOST_SOURCES) or steps >= _MOST_STEPS:
                self.result.more = True
                break
            steps += 1
            self._expand(*heapq.heappop(self._heap)[2])
        self.result.more |= self._lost and self.trace.dropped
        self.result.found = [source for _, source in sorted(self._timed, key=lambda one: one[0])]
        if not self.result.found and not self.result.more:
            self.result.found = self._literals
        return self.result

    def need(self, lane: int, depth: int, program: Program, operand: Operand | None, before: int, kind: str) -> None:
        """Search for the value that an operand had for a lane before a time. ``kind``: the type that its user takes."""
        if isinstance(operand, Negated):
            operand = operand.register
        if isinstance(operand, Vector):
            for element in operand.elements:
                self.need(lane, depth, program, element, before, kind)
        elif isinstance(operand, Register):
            found: Any = None
            writer: Instruction | None = None
            for instruction in self.trace.writers.get((program.name, operand.name), ()):
                record = self.trace.last(instruction, lane, depth, before)
                if record is not None and (found is None or record.time > found.time):
                    found, writer = record, instruction
            if writer is not None:
                self._push(found, (lane, depth, program, writer, found, operand.name, kind))
            else:
                self._lost = True
        elif isinstance(operand, Special):
            self._add(before, lane, None, ("special", lane, operand.name), space="special register", name=operand.name,
                      bits=self._special(lane, operand.name), size=4, kind="u32")  # fmt: skip
        elif isinstance(operand, Immediate):
            size = 8 if operand.type in ("f64", "s64", "u64") and not kind.endswith("32") else 4
            self._literals.append(
                Source("literal", operand.bits % (1 << 8 * size), size, kind if kind[1:] == str(8 * size) else "")
            )

    def need_parameter(
        self, lane: int, depth: int, program: Program, name: str, low: int, high: int, before: int, kind: str
    ) -> None:
        """Search for the bytes from ``low`` to ``high`` of a call's parameter."""
        for instruction in self.trace.writers.get((program.name, name), ()):
            record = self.trace.last(instruction, lane, depth, before)
            if record is None:
                continue
            if instruction.opcode == "call":
                self._push(record, (lane, depth, program, instruction, record, (name, low, high, before), kind))
                continue
            target = instruction.operands[0]
            start, size = target.offset if isinstance(target, Address) else 0, _width(instruction)
            for number, element in enumerate(elements_of(instruction.operands[1])):
                at = start + number * size
                if at < high and low < at + size:
                    self.need(lane, depth, program, element, record.time, _kind(instruction, kind))

    def _push(self, record: Any, step: tuple[Any, ...]) -> None:
        key = (record.time, step[0], step[5])
        if key not in self._seen:
            self._seen.add(key)
            heapq.heappush(self._heap, (-record.time, len(self._seen), step))

    def _expand(
        self, lane: int, depth: int, program: Program, instruction: Instruction, record: Any, name: Any, kind: str
    ) -> None:
        operands, opcode = instruction.operands, instruction.opcode
        if isinstance(record, Accessed):
            self._load(lane, depth, program, instruction, record, name, kind)
        elif opcode in ("ld", "ldu"):
            self._parameter(lane, depth, program, instruction, record, name, kind)
        elif opcode == "call":
            self._returned(lane, depth, instruction, record, name, kind)
        elif opcode == "shfl":
            there = int(record.extra[_position(record, lane)])
            self.need(there, depth, program, operands[1], record.time, kind)
        elif opcode == "selp":
            chosen = operands[1]
            if record.extra is not None and not record.extra[_position(record, lane)]:
                chosen = operands[2]
            # if both are literals, the value is that of the condition
            chosen = operands[3] if isinstance(chosen, Immediate) and _literal(operands[1:3]) else chosen
            self.need(lane, depth, program, chosen, record.time, _kind(instruction, kind))
        else:
            if opcode in _MATRIX and _MATRIX_NOTE not in self.result.notes:
                self.result.notes.append(_MATRIX_NOTE)
            given = operands_of(instruction)
            for operand in given:
                self.need(lane, depth, program, operand, record.time, _kind(instruction, kind))
            if not given:
                self._add(record.time, lane, instruction, record.time, space=f"result of {instruction.name}")

    # ---- calls ----

    def _parameter(
        self, lane: int, depth: int, program: Program, instruction: Instruction, record: Defined, name: str, kind: str
    ) -> None:
        """A load of a parameter of the kernel, of a function, or of a call's result."""
        source = instruction.operands[1]
        base = source.base if isinstance(source, Address) else source
        symbol = base.name if isinstance(base, Symbol) else ""
        size = _width(instruction)
        start = source.offset if isinstance(source, Address) else 0
        start += _number(instruction.operands[0], name) * size
        kind = _kind(instruction, kind)
        own = [parameter.name for parameter in program.function.params]
        if program.function.entry and symbol in self.trace.parameters:
            number = self.trace.parameters[symbol]
            data = self.f.batch.run.config.params[_offset(program, number) + start :][:size]
            self._add(record.time, lane, instruction, ("parameter", number, start), space="parameter", parameter=number,
                      offset=start, bits=int.from_bytes(data, "little"), size=size, kind=kind)  # fmt: skip
        elif symbol in own:
            calls = [
                (found, caller, call)
                for caller, call in self.trace.calls
                if (found := self.trace.last(call, lane, depth - 1, record.time)) is not None
            ]
            if calls:
                found, caller, call = max(calls, key=lambda one: one[0].time)
                given = call.operands[2]
                argument = given[own.index(symbol)] if isinstance(given, tuple) else None
                self._argument(lane, depth - 1, caller, argument, (start, start + size, found.time), kind)
        elif symbol:
            self.need_parameter(lane, depth, program, symbol, start, start + size, record.time, kind)

    def _argument(
        self, lane: int, depth: int, program: Program, operand: Any, part: tuple[int, int, int], kind: str
    ) -> None:
        if isinstance(operand, Symbol):
            self.need_parameter(lane, depth, program, operand.name, *part, kind)
        else:
            self.need(lane, depth, program, operand, part[2], kind)

    def _returned(self, lane: int, depth: int, call: Instruction, record: Defined, part: Any, kind: str) -> None:
        """A result of a call: what the function that it called stored last as its return value."""
        name, low, high, before = part if isinstance(part, tuple) else (part, 0, 8, self.trace.time)
        results = call.operands[0]
        names = [o.name for o in results if isinstance(o, (Symbol, Register))] if isinstance(results, tuple) else []
        latest: tuple[int, Program] | None = None
        for program in self.trace.programs:
            if len(program.function.returns) != len(names) or program.function.entry:
                continue
            returned = program.function.returns[names.index(name)].name
            for store in self.trace.writers.get((program.name, returned), ()):
                found = self.trace.last(store, lane, depth + 1, before)
                if found is not None and found.time > record.time and (latest is None or found.time > latest[0]):
                    latest = found.time, program
        if latest is None:
            callee = call.operands[1]
            made = f"result of {callee.name}" if isinstance(callee, Symbol) else "result of a call"
            self._add(record.time, lane, call, ("call", record.time), space=made)
            return
        program = latest[1]
        returned = program.function.returns[names.index(name)].name
        self.need_parameter(lane, depth + 1, program, returned, low, high, before, kind)

    # ---- loads ----

    def _load(
        self, lane: int, depth: int, program: Program, instruction: Instruction, record: Accessed, name: str, kind: str
    ) -> None:
        home, place, value = record.at(lane)
        access, batch = record.access, self.f.batch
        kind = _kind(instruction, kind)
        key = (id(instruction), record.time, lane)
        if instruction.opcode in _MATRIX:
            self._add(record.time, lane, instruction, key, space="shared", address=self._shared(place), size=16)
            return
        number = _number(instruction.operands[0], name)
        place, size = place + number * access.width, access.width
        bits = None if value is None else int(value if access.count == 1 else value[number])
        if instruction.opcode == "atom":
            self.result.notes += ["an atomic returned the old value of memory"]
            if updated_before(record, lane):
                bits = None  # the recorded value is that before all lanes
        if batch.local is not None and home is batch.local:
            store = self.trace.store_to(home, place, place + size, record.time)
            if store is not None and store[1].opcode == "st":
                self._follow(store, place, size, kind)
                return
        facts: dict[str, Any] = {"bits": bits, "size": size, "kind": kind}
        if isinstance(home, Allocation):
            facts.update(space="constant" if home.kind == "constant" else "global", address=home.base + place)
        elif home is batch.shared:
            facts.update(space="shared", address=self._shared(place), stored=self._stored(place, size, record, kind))
        elif batch.local is not None and home is batch.local:
            facts.update(space="local", address=place % batch.local.stride)
        else:
            facts.update(space="parameter", offset=place)
        self._add(record.time, lane, instruction, (*key, number), **facts)

    def _follow(self, store: tuple[Program, Instruction, Accessed, int], place: int, size: int, kind: str) -> None:
        """Go on with the operands that a store wrote to some bytes."""
        program, instruction, record, lane = store
        start, each = record.at(lane)[1], record.access.width
        for number, element in enumerate(elements_of(instruction.operands[1])):
            at = start + number * each
            if at < place + size and place < at + each:
                self.need(lane, record.depth, program, element, record.time, _kind(instruction, kind))

    def _stored(self, place: int, size: int, load: Accessed, kind: str) -> Stored | None:
        """The store to shared memory that a load read, with its own sources."""
        found = (
            None
            if self.level == _MOST_LEVELS
            else self.trace.store_to(self.f.batch.shared, place, place + size, load.time)
        )
        if found is None:
            return None
        _, instruction, record, lane = found
        walk = Walk(self.trace, self.f, self.level + 1)
        if instruction.opcode == "st":
            walk._follow(found, place, size, kind)
        elif isinstance(record.access, TransferAccess):
            walk._transferred(record.access.transfer, place, size, kind)
        elif (read := self.trace.last(instruction, lane, record.depth, record.time)) is not None and read.values:
            walk._copied(lane, instruction, read, place - record.at(lane)[1], size, kind)
        block, thread = lane_place(self.f, lane)
        places = self.f.batch.run.place(instruction)
        return Stored(record.access.site.kind, block, thread, places, walk.run())

    def _copied(self, lane: int, instruction: Instruction, read: Accessed, offset: int, size: int, kind: str) -> None:
        """The part of a cp.async's source that was copied to some bytes."""
        home, place, value = read.at(lane)
        if isinstance(home, Allocation) and size == read.access.width and offset % size == 0:
            row = np.atleast_1d(value)
            self._add(read.time, lane, instruction, read.time, space="global", address=home.base + place + offset,
                      bits=int(row[offset // size]), size=size, kind=kind)  # fmt: skip

    def _transferred(self, transfer: Transfer, place: int, size: int, kind: str) -> None:
        """The source in global memory of an asynchronous copy to some bytes of shared memory."""
        source, target, data = transfer.source, transfer.destination, transfer.values()
        found = None if target is None else unit_at(target, place)
        if source is None or target is None or data is None or found is None:
            return
        if not isinstance(source.home, Allocation):
            return
        bits = int.from_bytes(bytes_of(data, found[0])[found[1] : found[1] + size], "little")
        address = origin_in_global(transfer, source, target, *found)
        if address is None:
            return
        self._add(0, transfer.lane, transfer.site.instruction, place, space="global", address=address, bits=bits,
                  size=size, kind=kind)  # fmt: skip

    def copied_from(self, transfer: Transfer, place: int, bits: int, size: int) -> None:
        """The byte of shared memory that an asynchronous copy read when it started."""
        instruction, lane = transfer.site.instruction, transfer.lane
        for record in reversed(self.trace.records.get(id(instruction), ())):
            if record.values is not None and record.has(lane) and reads(record, place):
                stored = self._stored(place, size, record, "")
                self._add(record.time, lane, instruction, place, space="shared", address=self._shared(place), bits=bits,
                          size=size, stored=stored)  # fmt: skip
                return

    # ---- results ----

    def _shared(self, place: int) -> int:
        """The offset in the block's shared memory of a byte of the batch's."""
        return place % self.f.batch.shared.stride if self.f.batch.shared is not None else place

    def _special(self, lane: int, name: str) -> int | None:
        """The value of a special register, if it is an index or a size."""
        base, _, axis = name.partition(".")
        block, thread = lane_place(self.f, lane)
        config = self.f.batch.run.config
        found = {"%tid": thread, "%ctaid": block, "%ntid": config.block, "%nctaid": config.grid}.get(base)
        return None if found is None or axis not in ("x", "y", "z") else int(found["xyz".index(axis)])

    def _add(self, time: int, lane: int, instruction: Instruction | None, key: Any, **facts: Any) -> None:
        if ("source", key) in self._seen:
            return
        self._seen.add(("source", key))
        block, thread = lane_place(self.f, lane)
        if instruction is not None:
            facts.update(instruction=instruction.text.strip(), places=self.f.batch.run.place(instruction))
        self._timed.append((time, Source(block=block, thread=thread, **facts)))


def _position(record: Defined, lane: int) -> int:
    return int(np.searchsorted(record.lanes.lanes, lane))


def _literal(operands: Sequence[Operand | None]) -> bool:
    return all(isinstance(operand, Immediate) for operand in operands)


def _number(operand: Operand | None, name: str) -> int:
    """The number of a register in a vector."""
    names = [element.name if isinstance(element, Register) else "" for element in elements_of(operand)]
    return names.index(name) if name in names else 0


def _offset(program: Program, number: int) -> int:
    """The offset of a kernel's parameter."""
    offset = 0
    for parameter in program.function.params[: number + 1]:
        offset = -(-offset // max(parameter.align, 1)) * max(parameter.align, 1)
        start, offset = offset, offset + parameter.size
    return start


def type_of(instruction: Instruction) -> str:
    """The type of an instruction's operands; "" if the operands have no type."""
    found = instruction.modifiers[-1] if instruction.modifiers else ""
    if found[:1] == "u" and instruction.opcode in _MOVES:
        found = "b" + found[1:]  # compilers move values of all types as unsigned integers
    return found if found in _TYPES else ""


def _width(instruction: Instruction) -> int:
    """The bytes of one element of a load or store."""
    return width(instruction.modifiers[-1]) // 8


def _kind(instruction: Instruction, user: str) -> str:
    """The type of an instruction's operands. Bits have the type that the user of the result takes, if its size fits."""
    own = type_of(instruction)
    return user if own[:1] == "b" and own != "bf16" and own[1:] == user[1:] else own or user
