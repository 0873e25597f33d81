"""Builders for instructions that affect only caches and timing: prefetches, cache policies, discard, fences, nanosleep.

Simulated memory is always consistent, so most of these do nothing; their modifiers are checked nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.lockstep.access import MemoryAccess, scope_of
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.pieces import GENERIC, GLOBAL
from cudakit.sim.ptx.ir import Immediate, Instruction
from cudakit.sim.ptx.modifiers import Modifiers
from cudakit.sim.values.lanewise import constant

# bytes of a cache line; discard and applypriority take only whole lines
_LINE = 128
# an arbitrary cache policy; nothing depends on its value
_POLICY = 0x12F0000000000000


def build_prefetch(c: Emitter, instruction: Instruction) -> list[str]:
    """Prefetches do nothing; they may have invalid addresses."""
    modifiers = Modifiers(instruction)
    space = modifiers.one_of("global", "local")
    level = modifiers.one_of("L1", "L2", *(() if space == "local" else ("L2::evict_last", "L2::evict_normal")))
    modifiers.finish()
    if not level or (instruction.opcode == "prefetchu" and (space or level != "L1")):
        modifiers.refuse("unsupported cache level")
    c.address(instruction.operands[0], instruction)
    return []


def build_discard(c: Emitter, instruction: Instruction) -> list[str]:
    """discard makes memory indeterminate: here it gets the bytes of new memory. applypriority affects only caches."""
    modifiers = Modifiers(instruction)
    space = GLOBAL if modifiers.flag("global") else GENERIC
    level = modifiers.one_of("L2" if instruction.opcode == "discard" else "L2::evict_normal")
    modifiers.finish()
    address, offset = c.address(instruction.operands[0], instruction)
    size = instruction.operands[1]
    if not level or not isinstance(size, Immediate) or size.bits != _LINE:
        modifiers.refuse(f"it needs a cache level and {_LINE} bytes")
    if instruction.opcode == "applypriority":
        return []
    access = MemoryAccess(c.site(instruction, f"{space} store"), space, offset, 8, _LINE // 8)

    def discard(f: Fragment, at: Array) -> None:
        access.store_rows(f, at, np.full((f.lanes.count, access.count), np.iinfo(np.uint64).max, np.uint64))

    return [f"{c.bind(discard)}(f, {address})"]


def build_createpolicy(c: Emitter, instruction: Instruction) -> list[str]:
    """createpolicy returns a constant: only caches read cache policies."""
    modifiers = Modifiers(instruction)
    kind = modifiers.kind("b64")
    form = modifiers.one_of("fractional", "range", "cvt")
    if form == "range":
        modifiers.flag("global")
    if form == "cvt":
        held = modifiers.flag("L2")
    else:
        held = bool(modifiers.one_of("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"))
        modifiers.one_of("L2::evict_first", "L2::evict_unchanged")
    modifiers.finish()
    if not form or not held:
        modifiers.refuse("it needs .fractional, .range or .cvt and a priority")
    _check_part(modifiers, form)
    return c.store(instruction.operands[0], kind, c.bind(np.uint64(_POLICY)))


def _check_part(modifiers: Modifiers, form: str) -> None:
    """Refuse literals that ptxas refuses: of a fraction, and of the bytes of a range."""
    literals = [o if isinstance(o, Immediate) else None for o in modifiers.instruction.operands]
    if form == "fractional" and len(literals) > 1 and literals[1] is not None:
        fraction = float(constant(literals[1], "f32").view(np.float32))
        if not 0 < fraction <= 1:
            modifiers.refuse(f"a fraction of {fraction}: it is above 0 and at most 1")
    if form == "range" and literals[2] is not None and literals[3] is not None:
        first, total = (literal.bits % (1 << 32) for literal in literals[2:] if literal is not None)
        if first > total:
            modifiers.refuse(f"{first} of {total} bytes: the first size is at most the second")


def build_fence(c: Emitter, instruction: Instruction) -> list[str]:
    """Fences do nothing, since simulated memory is always consistent. Only the race checks use them."""
    if "proxy" in instruction.modifiers:
        asynchronous = any(modifier.startswith("async") for modifier in instruction.modifiers)
        return [f"{c.bind(_proxy_fence(instruction))}(f)"] if asynchronous else []
    if "mbarrier_init" in instruction.modifiers:
        return [f"{c.bind(_init_fence)}(f)"]
    return [f"{c.bind(_fence(instruction))}(f)"]


def _proxy_fence(instruction: Instruction) -> Callable[[Fragment], None]:
    # without a state space it orders both
    in_global = "global" in instruction.modifiers
    in_shared = any("shared::" in modifier for modifier in instruction.modifiers)
    everywhere = not in_global and not in_shared

    def fence(f: Fragment) -> None:
        if f.batch.guard is not None:
            f.batch.guard.proxy_fence(f, in_shared=in_shared or everywhere, in_global=in_global or everywhere)

    return fence


def _init_fence(f: Fragment) -> None:
    if f.batch.guard is not None:
        f.batch.guard.mbarrier_fence(f)


def _fence(instruction: Instruction) -> Callable[[Fragment], None]:
    scope = scope_of(instruction)
    releases, acquires = "acquire" not in instruction.modifiers, "release" not in instruction.modifiers

    def fence(f: Fragment) -> None:
        if f.batch.guard is not None:
            f.batch.guard.fence(f, scope, releases=releases, acquires=acquires)

    return fence


def build_dependence(c: Emitter, instruction: Instruction) -> list[str]:
    """A launch starts after the end of its predecessor, so a wait only matters to the checks."""
    return [f"{c.bind(_predecessor_wait)}(f)"] if "wait" in instruction.modifiers else []


def _predecessor_wait(f: Fragment) -> None:
    if f.batch.guard is not None:
        f.batch.guard.predecessor_wait(f.lanes)


def build_hint(c: Emitter, instruction: Instruction) -> list[str]:
    """Instructions that affect only timing do nothing."""
    return []


BUILDERS = {"membar": build_fence, "fence": build_fence, "prefetch": build_prefetch, "prefetchu": build_prefetch}
BUILDERS |= {"discard": build_discard, "applypriority": build_discard, "createpolicy": build_createpolicy}
BUILDERS |= {"griddepcontrol": build_dependence, "nanosleep": build_hint, "pmevent": build_hint}
