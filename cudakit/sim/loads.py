"""Builders for instructions that move data or addresses: ld, st, mov, cvta, isspacep, prefetch, fences, cp.async."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.access import CONST, ELEMENTS, GENERIC, GLOBAL, LOCAL, PARAM, SHARED, Access, PendingCopies
from cudakit.sim.fragment import Fragment
from cudakit.sim.ir import Address, Instruction, Operand, PtxError, Register, Symbol, Vector
from cudakit.sim.lanes import Array, choose
from cudakit.sim.lanewise import storage, width
from cudakit.sim.lowering import Compiler
from cudakit.sim.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, MemoryFault

_SPACES = {"global": GLOBAL, "shared": SHARED, "shared::cta": SHARED, "local": LOCAL, "const": CONST}
_SPACES |= {"param": PARAM, "param::entry": PARAM, "param::func": PARAM}
# what changes neither the value nor, in a machine that keeps memory in step, the order
_HINTS = frozenset(
    ("nc", "volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "sc", "cta", "cluster", "gpu", "sys", "mmio")
)
_HINTS |= {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified"}
_HINT_STEMS = ("L1::", "L2::", "level::")
_WINDOWS = {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "local": LOCAL_WINDOW}
_WINDOWS |= {"param": PARAM_WINDOW, "param::entry": PARAM_WINDOW, "global": 0, "const": 0}


def is_hint(modifier: str) -> bool:
    return modifier in _HINTS or modifier.startswith(_HINT_STEMS)


def space_of(c: Compiler, instruction: Instruction, modifiers: list[str]) -> str:
    """Take the state space out of the modifiers; generic where there is none."""
    for modifier in modifiers:
        if modifier in _SPACES:
            modifiers.remove(modifier)
            return _SPACES[modifier]
    if any(m.startswith("shared::") for m in modifiers):
        raise c.refuse(instruction, "distributed shared memory is not there yet")
    return GENERIC


def _shape(c: Compiler, instruction: Instruction) -> tuple[str, str, int]:
    """State space, element type and vector length of a load or store."""
    modifiers = list(instruction.modifiers)
    kind = modifiers.pop()
    space = space_of(c, instruction, modifiers)
    count = 1
    for modifier in list(modifiers):
        if modifier in ("v2", "v4", "v8"):
            count = int(modifier[1:])
            modifiers.remove(modifier)
    rest = [m for m in modifiers if not is_hint(m)]
    if rest or width(kind) not in (8, 16, 32, 64):
        raise c.refuse(instruction, f"modifier .{rest[0]}" if rest else f"type .{kind}")
    return space, kind, count


def _elements(operand: Operand | None, count: int) -> tuple[Operand | None, ...]:
    if isinstance(operand, Vector):
        return operand.elements
    return (operand,)


def build_ld(c: Compiler, instruction: Instruction) -> list[str]:
    space, kind, count = _shape(c, instruction)
    target, source = instruction.operands[0], instruction.operands[1]
    registers = _elements(target, count)
    base = source.base if isinstance(source, Address) else source
    offset = source.offset if isinstance(source, Address) else 0
    size = width(kind) // 8
    if space == PARAM and isinstance(base, Symbol):
        if base.name in c.call_params:
            value = f"{c.bind(_get_param(offset, size, count))}(r[{c.slots[base.name]}])"
        else:
            value = f"{c.bind(_entry_param(c.param_offsets[base.name] + offset, size, count))}(f)"
    else:
        address, offset = c.address(source, instruction)
        access = Access(c.site(instruction, f"{space} load"), space, offset, size, count)
        value = f"{c.bind(access.load if count == 1 else access.load_vector)}(f, {address})"
    if count == 1:
        return _widen(c, registers[0], kind, value)
    lines = [f"t = {value}"]
    for number, register in enumerate(registers):
        lines.extend(_widen(c, register, kind, f"t[{number}]"))
    return lines


def _widen(c: Compiler, register: Operand | None, kind: str, value: str) -> list[str]:
    """Write memory bits to a register that may be wider: sign-extended where the type is signed."""
    if register is None:
        return []
    if not isinstance(register, Register):
        raise PtxError(f"{register!r} is not a register")
    want, bits = storage(register.type), width(kind)
    if want.itemsize * 8 > bits and kind.startswith("s"):
        narrow, wide = c.bind(np.dtype(f"i{bits // 8}")), c.bind(np.dtype(f"i{want.itemsize}"))
        value = f"{value}.view({narrow}).astype({wide}).view({c.bind(want)})"
    elif want.itemsize * 8 != bits:
        value = f"{value}.astype({c.bind(want)})"
    return [f"r[{c.slot(register)}] = {value}"]


def build_st(c: Compiler, instruction: Instruction) -> list[str]:
    space, kind, count = _shape(c, instruction)
    target, source = instruction.operands[0], instruction.operands[1]
    size = width(kind) // 8
    values = [_narrow(c, element, kind) for element in _elements(source, count)]
    base = target.base if isinstance(target, Address) else target
    if space == PARAM:
        if not isinstance(base, Symbol) or base.name not in c.call_params:
            raise c.refuse(instruction, "only call parameters can be stored to")
        offset = target.offset if isinstance(target, Address) else 0
        slot = c.slots[base.name]
        return [f"r[{slot}] = {c.bind(_put_param(offset, size))}(r[{slot}], f.lanes.count, ({', '.join(values)},))"]
    address, offset = c.address(target, instruction)
    access = Access(c.site(instruction, f"{space} store"), space, offset, size, count)
    if count == 1:
        return [f"{c.bind(access.store)}(f, {address}, {values[0]})"]
    return [f"{c.bind(access.store_vector)}(f, {address}, ({', '.join(values)},))"]


def _narrow(c: Compiler, operand: Operand | None, kind: str) -> str:
    """An expression for an operand's bits in memory's own width."""
    value = c.source(operand, kind)
    return f"{value}.astype({c.bind(ELEMENTS[1])})" if width(kind) == 8 else value


# ---- parameters ----


def _entry_param(offset: int, size: int, count: int) -> Callable[[Fragment], Any]:
    dtype = ELEMENTS[size]

    def get(f: Fragment) -> Any:
        store = f.batch.run.param_store
        found = np.frombuffer(store, dtype, count, offset)
        return found[0] if count == 1 else tuple(found)

    return get


def _get_param(offset: int, size: int, count: int) -> Callable[[Any], Any]:
    """Read a call's parameter, held as bytes: a void scalar where all lanes agree, else (lanes, bytes) of uint8."""
    dtype = ELEMENTS[size]

    def get(value: Any) -> Any:
        if value.ndim == 0:
            found = np.frombuffer(value.tobytes(), dtype, count, offset)
            return found[0] if count == 1 else tuple(found)
        columns = [
            np.ascontiguousarray(value[:, offset + k * size :][:, :size]).view(dtype)[:, 0] for k in range(count)
        ]
        return columns[0] if count == 1 else tuple(columns)

    return get


def _put_param(offset: int, size: int) -> Callable[[Any, int, tuple[Any, ...]], Any]:
    def put(old: Any, lanes: int, values: tuple[Any, ...]) -> Any:
        if old.ndim == 0 and all(v.ndim == 0 for v in values):
            data = bytearray(old.tobytes())
            for k, value in enumerate(values):
                data[offset + k * size : offset + (k + 1) * size] = value.tobytes()
            return np.frombuffer(bytes(data), old.dtype)[0]
        if old.ndim == 0:
            out = np.tile(np.frombuffer(old.tobytes(), np.uint8), (lanes, 1))
        else:
            out = old.copy()
        for k, value in enumerate(values):
            column = np.broadcast_to(value, (lanes,))
            out[:, offset + k * size : offset + (k + 1) * size] = np.ascontiguousarray(column)[:, None].view(np.uint8)
        return out

    return put


# ---- addresses ----


def build_mov(c: Compiler, instruction: Instruction) -> list[str]:
    target, source = instruction.operands
    kind = instruction.modifiers[-1]
    if isinstance(target, Vector) or isinstance(source, Vector):
        return c.lanewise(instruction)
    if isinstance(source, Address):
        base, offset = c.address(source, instruction)
        value = f"({base} + {c.bind(np.uint64(offset % (1 << 64)))})"
        if storage(kind) != np.uint64:
            value = f"{value}.astype({c.bind(storage(kind))})"
        return c.store(target, kind, value)
    # registers are never written in place, so a copy may share its array
    return c.store(target, kind, c.source(source, kind))


def build_cvta(c: Compiler, instruction: Instruction) -> list[str]:
    modifiers = list(instruction.modifiers)
    kind = modifiers.pop()
    backwards = "to" in modifiers
    spaces = [m for m in modifiers if m != "to"]
    if kind != "u64" or len(spaces) != 1 or spaces[0] not in _WINDOWS:
        raise c.refuse(instruction)
    window = _WINDOWS[spaces[0]]
    source = instruction.operands[1]
    if isinstance(source, Address):
        base, offset = c.address(source, instruction)
        value = f"({base} + {c.bind(np.uint64(offset % (1 << 64)))})"
    else:
        value = c.source(source, kind)
    if window:
        value = f"{value} {'-' if backwards else '+'} {c.bind(np.uint64(window))}"
    return c.store(instruction.operands[0], kind, value)


def build_isspacep(c: Compiler, instruction: Instruction) -> list[str]:
    space = instruction.modifiers[-1]
    value = c.source(instruction.operands[1], "u64")
    if space == "global":
        low, high = 0, SHARED_WINDOW
    elif _WINDOWS.get(space):
        low = _WINDOWS[space]
        high = low << 1
    elif space == "shared::cluster":
        low, high = SHARED_WINDOW, SHARED_WINDOW << 1
    elif space == "const":
        low, high = 0, 0
    else:
        raise c.refuse(instruction)
    inside = c.bind(_in_range(np.uint64(low), np.uint64(high)))
    return c.store(instruction.operands[0], "pred", f"{inside}({value})")


def _in_range(low: np.uint64, high: np.uint64) -> Callable[[Array], Array]:
    return lambda value: (value >= low) & (value < high)


def build_nothing(c: Compiler, instruction: Instruction) -> list[str]:
    """Fences, prefetches and hints: memory is always in step here."""
    return []


def build_trap(c: Compiler, instruction: Instruction) -> list[str]:
    def trap(f: Fragment) -> None:
        f.fail(instruction, "trap", "the kernel stopped itself (__trap())", lanes=f.lanes.count)

    return [f"{c.bind(trap)}(f)"]


# ---- cp.async ----


def build_cp(c: Compiler, instruction: Instruction) -> list[str]:
    modifiers = instruction.modifiers
    if modifiers[:1] != ("async",) or any(m in modifiers for m in ("bulk", "mbarrier")):
        raise c.refuse(instruction, "bulk copies and mbarriers are not there yet")
    if "commit_group" in modifiers:
        return [f"{c.bind(_commit)}(f)"]
    if "wait_all" in modifiers:
        return [f"{c.bind(_wait(None))}(f)"]
    if "wait_group" in modifiers:
        count = instruction.operands[0]
        return [f"{c.bind(_wait_for)}(f, {c.source(count, 'u64')})"]
    rest = [m for m in modifiers[1:] if not is_hint(m) and m not in ("shared", "shared::cta", "global")]
    if rest:
        raise c.refuse(instruction, f"modifier .{rest[0]}")
    target, source, size = instruction.operands[:3]
    total = getattr(size, "bits", 0)
    if total not in (4, 8, 16):
        raise c.refuse(instruction, "the copy size must be 4, 8 or 16 bytes")
    to, to_offset = c.address(target, instruction)
    at, at_offset = c.address(source, instruction)
    site = c.site(instruction, "global load")
    reading = Access(site, GLOBAL, at_offset, 4, total // 4)
    writing = Access(c.site(instruction, "shared store"), SHARED, to_offset, 4, total // 4)
    limit = "None"
    if len(instruction.operands) > 3:
        extra = instruction.operands[3]
        predicate = isinstance(extra, Register) and extra.type == "pred"
        limit = c.source(extra, "pred" if predicate else "u32")
        if predicate:
            limit = f"{c.bind(_ignored(total))}({limit})"
    return [f"{c.bind(_copy(reading, writing))}(f, {to}, {at}, {limit})"]


def _ignored(total: int) -> Callable[[Array], Array]:
    return lambda ignore: np.where(ignore, np.uint32(0), np.uint32(total))


def _copies(f: Fragment) -> PendingCopies:
    if f.batch.copies is None:
        f.batch.copies = PendingCopies(f.batch)
    found: PendingCopies = f.batch.copies
    return found


def _commit(f: Fragment) -> None:
    _copies(f).commit(f.lanes)


def _wait(pending: int | None) -> Callable[[Fragment], None]:
    def wait(f: Fragment) -> None:
        _copies(f).wait(f.lanes, pending)

    return wait


def _wait_for(f: Fragment, pending: Any) -> None:
    _copies(f).wait(f.lanes, int(pending))


def _copy(reading: Access, writing: Access) -> Callable[[Fragment, Array, Array, Any], None]:
    def copy(f: Fragment, to: Array, at: Array, limit: Any) -> None:
        lanes, count = f.lanes, reading.count
        if limit is None:
            data = np.array(np.broadcast_to(reading.load(f, at), (lanes.count, count) if count > 1 else lanes.count))
        else:
            data = _read_part(f, reading, at, np.broadcast_to(limit, lanes.count))
        f.batch.progress += 1
        for view, index, choice, part in writing.locate(f, lanes, to):
            positions = index
            if isinstance(index, slice):
                positions = np.arange(index.start, index.stop)
            elif isinstance(index, int):
                positions = np.full(part.count, index)
            _copies(f).issue(part, view, positions, data if choice is None else data[choice])

    return copy


def _read_part(f: Fragment, reading: Access, at: Array, limit: Array) -> Array:
    """Load lanes of which only the first ``limit`` bytes count; the rest is zero and never touched."""
    lanes, count = f.lanes, reading.count
    data = np.zeros((lanes.count, count) if count > 1 else lanes.count, np.uint32)
    full = limit >= reading.size
    if full.any():
        choice, part = lanes.subset(full)
        borrowed = f.borrow(choice, part, ())
        data[choice] = reading.load(borrowed, choose(at, choice))
    space = f.batch.run.space
    raw = data.view(np.uint8).reshape(lanes.count, -1)
    addresses = np.broadcast_to(at, lanes.count)
    for position in np.flatnonzero(~full & (limit > 0)):
        size = int(limit[position])
        try:
            raw[position, :size] = space.bytes(int(addresses[position]) + reading.offset, size)
        except MemoryFault as fault:
            f.fail_access(reading.site, fault, GLOBAL, int(position), 1)
    return data


BUILDERS = {"ld": build_ld, "ldu": build_ld, "st": build_st, "mov": build_mov, "cvta": build_cvta}
BUILDERS |= {"isspacep": build_isspacep, "cp": build_cp, "trap": build_trap, "brkpt": build_trap}
BUILDERS |= dict.fromkeys(
    ("membar", "fence", "prefetch", "prefetchu", "nanosleep", "discard", "applypriority", "pmevent"), build_nothing
)
BUILDERS |= {"griddepcontrol": build_nothing, "setmaxnreg": build_nothing}
