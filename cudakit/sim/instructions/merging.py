"""Accesses of one thread to neighbouring words of shared memory, which ptxas merges.

If a thread reads [r], [r+4], [r+8] and [r+12], nothing in between can write there, and r is known to be 16-byte
aligned, ptxas makes one LDS.128 of them. The same holds for pairs and for stores. Merging reduces the number of
requests and changes the bank conflicts, so only the counters need it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cudakit.sim.lockstep.program import writes_of
from cudakit.sim.ptx.ir import Address, Immediate, Instruction, Operand, PtxFunction, Register, Symbol
from cudakit.sim.ptx.opcodes import row_of

_SHARED = frozenset(("shared", "shared::cta"))
_PLAIN = _SHARED | {"b32", "f32", "s32", "u32", "v2"}
_ELSEWHERE = frozenset(("global", "local", "const", "param", "param::func", "param::entry"))
_MOST = 4  # log2 of the 16 bytes of the widest access

_Group = dict[int, Instruction]  # accesses from one base, by offset


def merged_accesses(function: PtxFunction) -> dict[int, int]:
    """Map the id of each merged load or store instruction to the bytes of the merged access if it is the first part, to
    0 if it is another part."""
    alignments = _Alignments(function)
    found: dict[int, int] = {}
    starts = set(function.labels.values())
    # by opcode and base register: accesses that may still be merged
    open_: dict[tuple[str, str], _Group] = {}

    def close(opcodes: Sequence[str], base: str | None = None) -> None:
        for key in [key for key in open_ if key[0] in opcodes and base in (None, key[1])]:
            _merge(open_.pop(key), alignments.of(key[1]), found)

    for place, instruction in enumerate(function.instructions):
        opcode = instruction.opcode
        if place in starts or row_of(instruction).stops_merging:
            close(("ld", "st"))
        elif opcode in ("ld", "st") and _ELSEWHERE.isdisjoint(instruction.modifiers):
            close(("st",) if opcode == "ld" else ("ld",))
        address = _address(instruction)
        if address is not None and (_in_shared(instruction) or alignments.is_mapped(address.base)):
            name = address.base.name if isinstance(address.base, (Register, Symbol)) else ""
            open_.setdefault((opcode, name), {}).setdefault(address.offset, instruction)
        for register in writes_of(instruction):
            close(("ld", "st"), register.name)
    close(("ld", "st"))
    return found


def _address(instruction: Instruction) -> Address | None:
    """The address of a plain access of words that may be in shared memory; None for all other instructions."""
    opcode = instruction.opcode
    if opcode not in ("ld", "st") or instruction.guard is not None or not _PLAIN.issuperset(instruction.modifiers):
        return None
    place = instruction.operands[opcode == "ld"]
    return place if isinstance(place, Address) and isinstance(place.base, (Register, Symbol)) else None


def _in_shared(instruction: Instruction) -> bool:
    return not _SHARED.isdisjoint(instruction.modifiers)


def _merge(group: _Group, alignment: int, found: dict[int, int]) -> None:
    """Record which of these accesses are adjacent and aligned to 16 or 8 bytes."""
    for size in (16, 8):
        if size > 1 << alignment:
            continue
        for start in [offset for offset in group if offset % size == 0]:
            for number, offset in enumerate(_parts(group, start, size)):
                found[id(group.pop(offset))] = 0 if number else size


def _parts(group: _Group, start: int, size: int) -> Sequence[int]:
    """The offsets of the accesses that form ``size`` bytes from ``start``; empty if an access is missing or a single
    one suffices."""
    parts, at = [], start
    while at < start + size:
        access = group.get(at)
        if access is None:
            return ()
        parts.append(at)
        at += 8 if "v2" in access.modifiers else 4
    return parts if at == start + size and len(parts) > 1 else ()


class _Alignments:
    """The number of low bits of a register that are zero for any arguments of the kernel, at most ``_MOST``."""

    def __init__(self, function: PtxFunction) -> None:
        self._makers: dict[str, list[Instruction]] = {}
        for instruction in function.instructions:
            for register in writes_of(instruction):
                self._makers.setdefault(register.name, []).append(instruction)
        self._known: dict[str, int] = {}
        self._asked: list[str] = []

    def is_mapped(self, base: object) -> bool:
        """Whether a register holds an address in another block of the cluster."""
        makers = self._makers.get(base.name, ()) if isinstance(base, Register) else ()
        return bool(makers) and all(maker.opcode == "mapa" for maker in makers)

    def of(self, name: str) -> int:
        """The number of low zero bits that every instruction which writes a register produces; also for a variable used
        as a register."""
        if name not in self._makers:
            return _MOST
        if name not in self._known:
            self._gather(name)
            # start with the largest number and reduce it until nothing changes: registers of loops depend on themselves
            changed = True
            while changed:
                changed = False
                for register in reversed(self._asked):  # inputs before the registers computed from them
                    least = min((self._made(maker) for maker in self._makers.get(register, ())), default=0)
                    if least < self._known[register]:
                        self._known[register] = least
                        changed = True
            self._asked.clear()
        return self._known[name]

    def _gather(self, name: str) -> None:
        pending = [name]
        while pending:
            register = pending.pop()
            if register in self._known:
                continue
            self._known[register] = _MOST
            self._asked.append(register)
            for maker in self._makers.get(register, ()):
                pending += [operand.name for operand in maker.operands[1:] if isinstance(operand, Register)]

    def _made(self, instruction: Instruction) -> int:
        """The zero bits of an instruction's result."""
        opcode, sources = instruction.opcode, instruction.operands[1:]
        bits = [self._bits(source) for source in sources]
        if instruction.guard is not None or "hi" in instruction.modifiers:
            return 0
        if opcode in ("mov", "cvta", "cvt", "add", "sub", "or", "xor"):
            return min(bits)
        if opcode == "and":
            return max(bits)
        if opcode == "mul":
            return min(sum(bits), _MOST)
        if opcode == "mad":
            return min(bits[0] + bits[1], bits[2])
        if opcode == "selp":
            return min(bits[:2])
        if opcode == "shl" and isinstance(sources[1], Immediate):
            return min(bits[0] + sources[1].bits, _MOST)
        return bits[0] if opcode in ("shl", "mapa") else 0

    def _bits(self, operand: Operand | None) -> int:
        if isinstance(operand, Register):
            return self._known.get(operand.name, 0)
        if isinstance(operand, Immediate) and not operand.type.startswith("f"):
            return min((operand.bits & -operand.bits).bit_length() - 1, _MOST) if operand.bits else _MOST
        # ptxas aligns shared variables itself
        return _MOST if isinstance(operand, Symbol) else 0
