"""Builders for moves of data and addresses: ld, st, mov, cvta, isspacep."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.instructions.params import entry_param, get_param, put_param
from cudakit.sim.lockstep import clusters
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from cudakit.sim.lockstep.owners import to_generic, to_local
from cudakit.sim.lockstep.pieces import CLUSTER, CONST, ELEMENTS, GENERIC, GLOBAL, LOCAL, PARAM, SHARED
from cudakit.sim.ptx.ir import Address, Instruction, Operand, PtxError, Register, Symbol, Vector, refused
from cudakit.sim.ptx.modifiers import LOAD_CACHES, STORE_CACHES, Modifiers
from cudakit.sim.values.lanewise import storage, width

_SPACES = {"global": GLOBAL, "shared": SHARED, "shared::cta": SHARED, "shared::cluster": CLUSTER, "local": LOCAL}
_SPACES |= {"const": CONST, "param": PARAM, "param::entry": PARAM, "param::func": PARAM}
_TYPES = (*(f"{letter}{bits}" for letter in "bus" for bits in (8, 16, 32, 64)), "f32", "f64", "b128")
_MOVED = ("pred", "b16", "b32", "b64", "b128", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
_WINDOWS = {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "shared::cluster": SHARED_WINDOW}
_WINDOWS |= {"local": LOCAL_WINDOW, "param": PARAM_WINDOW, "param::entry": PARAM_WINDOW, "global": 0, "const": 0}


def space_of(modifiers: Modifiers) -> str:
    """Take the state space from the modifiers; generic if there is none."""
    return _SPACES.get(modifiers.one_of(*_SPACES), GENERIC)


def noun(space: str) -> str:
    """The name of a state space in reports and counters."""
    return SHARED if space == CLUSTER else space


class _Shape(NamedTuple):
    """State space, element type and length of a load or store."""

    space: str
    kind: str
    length: int


def _shape(instruction: Instruction, caches: tuple[str, ...], orders: tuple[str, ...]) -> _Shape:
    modifiers = Modifiers(instruction)
    kind = modifiers.kind(*_TYPES)
    space = space_of(modifiers)
    if modifiers.flag("mmio") and ("relaxed" not in modifiers.rest or "sys" not in modifiers.rest):
        modifiers.refuse(".mmio without .relaxed.sys")
    order = modifiers.order(*orders)
    count = int(modifiers.one_of("v2", "v4", "v8")[1:] or 1)
    if modifiers.flag("nc") and (instruction.opcode != "ld" or space != GLOBAL):
        modifiers.refuse(".nc without .global")
    cached, hinted, policy = modifiers.hints(*caches)
    modifiers.flag("unified")
    modifiers.finish()
    if order not in ("", "weak") and (cached or space == CONST):
        modifiers.refuse(f".{order} with a cache operator or constant memory")
    if hinted and space not in (GLOBAL, GENERIC):
        modifiers.refuse("cache hints need global memory")
    if policy != (len(instruction.operands) == 3):
        modifiers.refuse(".L2::cache_hint and a cache policy need each other")
    if kind == "b128":
        kind, count = "b64", 2 * count
    if count * width(kind) > 256:
        modifiers.refuse(f"{count * width(kind)} bits at once")
    return _Shape(space, kind, count)


def elements(instruction: Instruction, operand: Operand | None, count: int) -> list[Operand | None]:
    """The operands of a vector; a register of 128 bits becomes two of 64."""
    parts: list[Operand | None] = []
    for element in operand.elements if isinstance(operand, Vector) else (operand,):
        parts += element.elements if isinstance(element, Vector) else (element,)
    if len(parts) != count:
        raise refused(instruction, f"expected {count} registers, got {len(parts)}")
    return parts


def build_ld(c: Emitter, instruction: Instruction) -> list[str]:
    if instruction.opcode == "ldu":
        space, kind, count = _shape(instruction, (), ())
        if space not in (GLOBAL, GENERIC):
            raise refused(instruction, f"ldu of .{space}")
    else:
        space, kind, count = _shape(instruction, LOAD_CACHES, ("relaxed", "acquire"))
    target, source = instruction.operands[0], instruction.operands[1]
    registers = elements(instruction, target, count)
    base = source.base if isinstance(source, Address) else source
    offset = source.offset if isinstance(source, Address) else 0
    size = width(kind) // 8
    if space == PARAM and isinstance(base, Symbol) and base.name in c.taken:
        space = LOCAL
    if space == PARAM and isinstance(base, Symbol):
        if base.name in c.call_params:
            value = f"{c.bind(get_param(offset, size, count))}(r[{c.slots[base.name]}])"
        else:
            value = f"{c.bind(entry_param(c.param_offsets[base.name] + offset, size, count))}(f)"
    else:
        address, offset = c.address(source, instruction)
        access = MemoryAccess(c.site(instruction, f"{noun(space)} load"), space, offset, size, count)
        access.counted = c.merged_width(instruction, access.size)
        access.site.confirmed = c.is_confirmed(instruction)
        if count > 1:
            access.unused = tuple(number for number, register in enumerate(registers) if not c.is_read(register))
        access.copied = tuple(number for number, register in enumerate(registers) if not c.is_used(register))
        value = f"{c.bind(access.load if count == 1 else access.load_vector)}(f, {address})"
    if count == 1:
        return _widen(c, registers[0], kind, value)
    lines = [f"t = {value}"]
    for number, register in enumerate(registers):
        lines.extend(_widen(c, register, kind, f"t[{number}]"))
    return lines


def _widen(c: Emitter, register: Operand | None, kind: str, value: str) -> list[str]:
    """Lines that write memory bits to a register that may be wider: sign-extended if the type is signed."""
    if register is None:
        # the value is unused, but the access must happen
        return [value]
    if not isinstance(register, Register):
        raise PtxError(f"{register!r} is not a register")
    want, bits = storage(register.type), width(kind)
    if want.itemsize * 8 < bits or register.type == "pred":
        raise PtxError(f"register {register.name} of type .{register.type} cannot hold a .{kind}")
    if want.itemsize * 8 > bits and kind.startswith("s"):
        narrow, wide = c.bind(np.dtype(f"i{bits // 8}")), c.bind(np.dtype(f"i{want.itemsize}"))
        value = f"{value}.view({narrow}).astype({wide}).view({c.bind(want)})"
    elif want.itemsize * 8 != bits:
        value = f"{value}.astype({c.bind(want)})"
    return [f"r[{c.slot(register)}] = {value}"]


def build_st(c: Emitter, instruction: Instruction) -> list[str]:
    space, kind, count = _shape(instruction, STORE_CACHES, ("relaxed", "release"))
    if space == CONST:
        raise refused(instruction, "constant memory is read-only in kernels")
    target, source = instruction.operands[0], instruction.operands[1]
    size = width(kind) // 8
    values = [_narrow(c, element, kind) for element in elements(instruction, source, count)]
    base = target.base if isinstance(target, Address) else target
    if space == PARAM:
        if not isinstance(base, Symbol) or base.name not in c.call_params:
            raise refused(instruction, "only call parameters can be written")
        offset = target.offset if isinstance(target, Address) else 0
        slot = c.slots[base.name]
        return [f"r[{slot}] = {c.bind(put_param(offset, size))}(r[{slot}], f.lanes.count, ({', '.join(values)},))"]
    address, offset = c.address(target, instruction)
    access = MemoryAccess(c.site(instruction, f"{noun(space)} store"), space, offset, size, count)
    access.counted = c.merged_width(instruction, access.size)
    if count == 1:
        return [f"{c.bind(access.store)}(f, {address}, {values[0]})"]
    return [f"{c.bind(access.store_vector)}(f, {address}, ({', '.join(values)},))"]


def _narrow(c: Emitter, operand: Operand | None, kind: str) -> str:
    """An expression for an operand's bits, in the width of memory."""
    if isinstance(operand, Register) and (register_bits := width(operand.type)) < width(kind):
        raise PtxError(f"cannot store .{kind} from register {operand.name}, which has {register_bits} bits")
    value = c.source(operand, kind)
    return f"{value}.astype({c.bind(ELEMENTS[1])})" if width(kind) == 8 else value


# ---- addresses ----


def build_mov(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    kind = modifiers.kind(*_MOVED)
    modifiers.finish()
    target, source = instruction.operands
    if kind == "b128":
        pairs = zip(elements(instruction, target, 2), elements(instruction, source, 2), strict=True)
        return [line for to, part in pairs if to is not None for line in c.store(to, "b64", c.source(part, "b64"))]
    if isinstance(target, Vector) or isinstance(source, Vector):
        return c.lanewise(instruction)
    if isinstance(source, Address):
        base, offset = c.address(source, instruction)
        value = f"({base} + {c.bind(np.uint64(offset % (1 << 64)))})"
        if storage(kind) != np.uint64:
            value = f"{value}.astype({c.bind(storage(kind))})"
        return c.store(target, kind, value)
    # register arrays are never modified in place, so a copy may share the array
    return c.store(target, kind, c.source(source, kind))


def build_cvta(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    kind = modifiers.kind("u64")
    backwards = modifiers.flag("to")
    space = modifiers.one_of(*_WINDOWS)
    modifiers.finish()
    if not space:
        modifiers.refuse("no state space")
    window = _WINDOWS[space]
    source = instruction.operands[1]
    if isinstance(source, Address):
        base, offset = c.address(source, instruction)
        value = f"({base} + {c.bind(np.uint64(offset % (1 << 64)))})"
    else:
        value = c.source(source, kind)
    if space == "local":
        value = f"{c.bind(to_local if backwards else to_generic)}(f, {value})"
    elif window:
        value = f"{value} {'-' if backwards else '+'} {c.bind(np.uint64(window))}"
    return c.store(instruction.operands[0], kind, value)


def build_isspacep(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    space = modifiers.one_of(*_WINDOWS)
    modifiers.finish()
    value = c.source(instruction.operands[1], "u64")
    if not space:
        modifiers.refuse("no state space")
    if space in ("global", "const"):
        inside = c.bind(_is_constant if space == "const" else _is_global)
    elif space in ("shared", "shared::cta"):
        inside = c.bind(clusters.in_own_shared)
    else:
        low = _WINDOWS[space]
        inside = c.bind(_in_range(np.uint64(low), np.uint64(low << 1)))
    return c.store(instruction.operands[0], "pred", f"{inside}(f, {value})")


def _in_range(low: np.uint64, high: np.uint64) -> Callable[[Fragment, Array], Array]:
    return lambda f, value: (value >= low) & (value < high)


def _is_constant(f: Fragment, value: Array) -> Array:
    """Whether addresses are in constant variables, which are ordinary allocations."""
    inside = np.zeros(value.shape, np.bool_)
    for allocation in f.batch.run.space.allocations():
        if allocation.kind == "constant":
            inside = inside | ((value >= np.uint64(allocation.address)) & (value < np.uint64(allocation.end)))
    return inside[()]


def _is_global(f: Fragment, value: Array) -> Array:
    inside: Array = (value < np.uint64(SHARED_WINDOW)) & ~_is_constant(f, value)
    return inside


def build_trap(c: Emitter, instruction: Instruction) -> list[str]:
    """trap and brkpt stop the kernel: no debugger is attached that a breakpoint could call."""
    breakpoint_ = "the kernel stopped at a breakpoint (__brkpt()), and no debugger is attached: remove it"
    detail = breakpoint_ if instruction.opcode == "brkpt" else "the kernel stopped itself (__trap())"

    def trap(f: Fragment) -> None:
        f.fail(instruction, "trap", detail, lanes=f.lanes.count)

    return [f"{c.bind(trap)}(f)"]


BUILDERS = {"ld": build_ld, "ldu": build_ld, "st": build_st, "mov": build_mov, "cvta": build_cvta}
BUILDERS |= {"isspacep": build_isspacep, "trap": build_trap, "brkpt": build_trap}
