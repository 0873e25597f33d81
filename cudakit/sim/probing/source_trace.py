"""The sources of stored values, while a kernel runs: of a store by one lane, or of an atomic by several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.pieces import Piece
from cudakit.sim.lockstep.probes import InstructionHook
from cudakit.sim.lockstep.program import Program
from cudakit.sim.lockstep.transfers import Transfer
from cudakit.sim.probing.atomics import OperandsHook, chooses, given_to, remaining
from cudakit.sim.probing.copied import bytes_of, origin_in_shared
from cudakit.sim.probing.operands import elements_of
from cudakit.sim.probing.source_records import Sources
from cudakit.sim.probing.sources import MOST_SOURCES, Walk, type_of
from cudakit.sim.probing.value_trace import ValueTrace
from cudakit.sim.ptx.ir import Address, Instruction


class SourceTrace(ValueTrace):
    """Finds the sources of stored values while a kernel runs."""

    def __init__(self) -> None:
        super().__init__()
        self._atomics: dict[int, OperandsHook] = {}

    def begin(self, function: Any, run: Any) -> bool:
        self._atomics = {}
        return super().begin(function, run)

    def hook(self, program: Program, instruction: Instruction) -> InstructionHook | None:
        own = super().hook(program, instruction)
        if not chooses(instruction):
            return own
        found = self._atomics[id(instruction)] = OperandsHook(program, instruction, own)
        return found

    def updated(self, f: Fragment, access: MemoryAccess, piece: Piece, chosen: Array) -> tuple[Sources, int | None]:
        """The sources of the value that an atomic is about to write to one element, by the lanes at the positions
        ``chosen`` of a piece; and the last lane from whose operand it is computed (None: none of them, or unknown)."""
        instruction = access.site.instruction
        hook = self._atomics.get(id(instruction))
        kept = remaining(None if hook is None else hook.given, access, piece, chosen)
        result = Sources()
        if kept is None:
            if len(chosen) > 1:
                result.notes.append(f"{len(chosen)} threads executed it, and the one whose value remains is not known")
        elif not len(kept):
            result.notes.append("the old value remains: no thread's operand replaced it")
        # the elements of a vector are updated by one access each
        address = instruction.operands[1 if instruction.opcode == "atom" else 0]
        first = (access.offset - (address.offset if isinstance(address, Address) else 0)) // access.width
        part = range(first, first + access.count)
        lanes = piece.lanes.lanes[chosen if kept is None else kept].tolist()
        known: set[Any] = set()
        for number, lane in enumerate(reversed(lanes)):
            room = MOST_SOURCES - len(result.found)
            if room <= 0:
                result.notes.append(f"the values of {len(lanes) - number} more threads are not listed")
                break
            one = self.sources(f, instruction, lane, part)
            # parameters and literals have the same value in all threads
            new = [s for s in one.found if s.space not in ("parameter", "literal") or s.common not in known]
            known |= {s.common for s in one.found}
            result.found = new[-room:] + result.found
            result.more |= one.more or len(new) > room
            result.notes += [note for note in one.notes if note not in result.notes]
        return result, lanes[-1] if lanes and kept is not None else None

    def sources(self, f: Fragment, instruction: Instruction, lane: int, part: Sequence[int]) -> Sources:
        """The sources of what a lane is about to store; ``part``: the numbers of the stored elements of a vector."""
        if instruction.opcode not in ("st", "atom", "red"):
            return Sources(notes=[f"the values that {instruction.name} writes are not followed"])
        walk = Walk(self, f)
        values = elements_of(instruction.operands[1] if instruction.opcode == "st" else given_to(instruction)[-1])
        for value in [values[number] for number in part if number < len(values)]:
            walk.need(lane, len(f.frames), f.program, value, self.time, type_of(instruction))
        return walk.run()

    def transferred(self, transfer: Transfer, unit: int, begin: int, size: int) -> Sources:
        """The source of ``size`` bytes, from byte ``begin`` of a unit that an asynchronous copy from shared memory is
        about to write."""
        source, data = transfer.source, transfer.values()
        if source is None or data is None or source.home is not transfer.f.batch.shared:
            return Sources(notes=[f"the values that {transfer.site.instruction.name} copies are not followed"])
        walk = Walk(self, transfer.f)
        bits = int.from_bytes(bytes_of(data, unit)[begin : begin + size], "little")
        walk.copied_from(transfer, origin_in_shared(transfer, source, unit, begin), bits, size)
        return walk.run()
