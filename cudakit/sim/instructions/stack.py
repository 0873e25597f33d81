"""Builders for memory of variable size on the stack: alloca, stacksave, stackrestore."""

from __future__ import annotations

from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.stack import frame_end, grow, shrink
from cudakit.sim.ptx.ir import Immediate, Instruction, PtxError
from cudakit.sim.values.lanewise import storage

_ALIGNMENT, _MOST_ALIGNED = 8, 1 << 23


def build_alloca(c: Emitter, instruction: Instruction) -> list[str]:
    (kind,), align = instruction.modifiers, _ALIGNMENT
    if len(instruction.operands) == 3:
        given = instruction.operands[2]
        align = given.bits if isinstance(given, Immediate) else 0
        if align < 1 or align & (align - 1) or align > _MOST_ALIGNED:
            raise PtxError(f"the alignment {align} is not a power of two up to {_MOST_ALIGNED}")

    def alloca(f: Fragment, size: Array) -> Array:
        found: Array = grow(f, size, align, instruction).astype(storage(kind))
        return found

    call = f"{c.bind(alloca)}(f, {c.source(instruction.operands[1], kind)})"
    return c.store(instruction.operands[0], kind, call)


def build_stacksave(c: Emitter, instruction: Instruction) -> list[str]:
    (kind,) = instruction.modifiers

    def stacksave(f: Fragment) -> Array:
        found: Array = frame_end(f).astype(storage(kind))
        return found

    return c.store(instruction.operands[0], kind, f"{c.bind(stacksave)}(f)")


def build_stackrestore(c: Emitter, instruction: Instruction) -> list[str]:
    (kind,) = instruction.modifiers

    def stackrestore(f: Fragment, end: Array) -> None:
        shrink(f, end, instruction)

    return [f"{c.bind(stackrestore)}(f, {c.source(instruction.operands[0], kind)})"]


BUILDERS = {"alloca": build_alloca, "stacksave": build_stacksave, "stackrestore": build_stackrestore}
