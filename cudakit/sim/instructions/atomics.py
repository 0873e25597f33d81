"""atom and red: lanes update memory one after another, in lane order.

If no two lanes update the same element, one vector operation updates all. Otherwise lanes are processed in rounds
(the first lane of each element, then the second, ...). Elements with very many lanes use a running total.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.instructions.loads import elements, space_of
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, choose
from cudakit.sim.lockstep.pieces import CLUSTER, GENERIC, GLOBAL, SHARED
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.traffic import count_contention
from cudakit.sim.ptx.ir import Instruction, Operand, Register, refused
from cudakit.sim.ptx.modifiers import SCOPES, Modifiers
from cudakit.sim.values.arithmetic import compile_lanewise
from cudakit.sim.values.lanewise import width

# old values, operand, compare value -> new values
Update = Callable[[Array, Array, Any], Array]

_HALVES = ("f16", "f16x2", "bf16", "bf16x2")
_SWAPS = ("exch", "cas")
# the types supported by each operation
_TYPES: dict[str, tuple[str, ...]] = {"and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64")}
_TYPES |= {"exch": ("b32", "b64", "b128"), "cas": ("b16", "b32", "b64", "b128"), "inc": ("u32",), "dec": ("u32",)}
_TYPES |= dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", *_HALVES))
_TYPES |= {"add": ("u32", "s32", "u64", "f32", "f64", *_HALVES)}
_KINDS = tuple({kind for kinds in _TYPES.values() for kind in kinds})
_ROUNDS = 24
_RUNNING: dict[str, Any] = {"add": np.add, "min": np.minimum, "max": np.maximum}
_RUNNING |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def build_atomic(c: Emitter, instruction: Instruction) -> list[str]:
    modifiers = Modifiers(instruction)
    kind = modifiers.kind(*_KINDS)
    space = space_of(modifiers)
    modifiers.one_of("relaxed", "release", *(("acquire", "acq_rel") if instruction.opcode == "atom" else ()))
    modifiers.one_of(*SCOPES)
    operation = modifiers.one_of(*_TYPES)
    vector = int(modifiers.one_of("v2", "v4", "v8")[1:] or 1)
    noftz = modifiers.flag("noftz")
    policy = modifiers.flag("L2::cache_hint")
    modifiers.finish()
    if kind not in _TYPES.get(operation, ()) or noftz != (kind in _HALVES):
        modifiers.refuse(f"{operation or 'no operation'} of .{kind}")
    if space not in (GLOBAL, SHARED, CLUSTER, GENERIC) or (instruction.opcode == "red" and operation in _SWAPS):
        modifiers.refuse("unknown form")
    if vector > 1 and (width(kind) * vector > 128 or kind not in (*_HALVES, "f32")):
        modifiers.refuse(f"vectors of {vector} .{kind}")
    if space not in (GLOBAL, GENERIC) and (vector > 1 or policy):
        modifiers.refuse("vectors and cache policies need global memory")
    if kind in _HALVES and operation != "add" and vector == 1:
        modifiers.refuse(f"{operation} of .{kind} exists only for vectors")
    operands = list(instruction.operands)
    target = operands.pop(0) if instruction.opcode == "atom" else None
    if len(operands) != 2 + (operation == "cas") + policy:
        modifiers.refuse(f"{len(instruction.operands)} operands")
    site = c.site(instruction, "atomic" if instruction.opcode == "atom" else "reduction")
    address, offset = c.address(operands[0], instruction)
    values = operands[1 : 2 + (operation == "cas")]
    if kind == "b128":
        return _build_wide(c, instruction, site, space, offset, address, target, values)
    if vector > 1:
        return _build_vector(c, instruction, site, space, offset, address, target, values[0], operation, vector)
    access = MemoryAccess(site, space, offset, width(kind) // 8, 1)
    atomic = Atomic(instruction, access, operation, kind, space, target is not None)
    call = f"{c.bind(atomic.run)}(f, {address}, {', '.join(c.source(value, kind) for value in values)})"
    return [call] if target is None else c.store(target, kind, call)


def _build_vector(
    c: Emitter,
    instruction: Instruction,
    site: Site,
    space: str,
    offset: int,
    address: str,
    target: Operand | None,
    value: Operand | None,
    operation: str,
    count: int,
) -> list[str]:
    """A vector of atomics: each element is updated separately, and the vector must be aligned."""
    kind = instruction.modifiers[-1]
    size = width(kind) // 8
    whole = MemoryAccess(site, space, offset, size, count)
    calls = []
    for number, element in enumerate(elements(instruction, value, count)):
        access = MemoryAccess(site, space, offset + number * size, size, 1)
        atomic = Atomic(instruction, access, operation, kind, space, target is not None)
        calls.append(f"{c.bind(atomic.run)}(f, {address}, {c.source(element, kind)})")

    def check(f: Fragment, at: Array) -> None:
        crooked = np.flatnonzero((at + at.dtype.type(offset % (1 << 32))) & at.dtype.type(whole.size - 1))
        if len(crooked):
            whole.locate(f, f.lanes, at)

    lines = [f"{c.bind(check)}(f, {address})"]
    if target is None:
        return [*lines, *calls]
    return [*lines, *c.store_all(elements(instruction, target, count), (kind,) * count, f"({', '.join(calls)},)")]


def _build_wide(
    c: Emitter,
    instruction: Instruction,
    site: Site,
    space: str,
    offset: int,
    address: str,
    target: Operand | None,
    values: list[Operand | None],
) -> list[str]:
    """exch and cas of 128 bits, lane by lane."""
    access = MemoryAccess(site, space, offset, 8, 2)
    parts = [c.source(part, "b64") for value in values for part in elements(instruction, value, 2)]

    def run(f: Fragment, at: Array, *columns: Array) -> tuple[Array, Array]:
        lanes = f.lanes
        given = np.stack([np.broadcast_to(column, lanes.count) for column in columns], axis=1)
        found = np.empty((lanes.count, 2), np.uint64)
        pieces = access.locate(f, lanes, at)
        if f.batch.guard is not None:
            f.batch.guard.update(f, access, pieces, reads=len(columns) > 2)
        for view, index, choice, part, _ in pieces:
            if isinstance(index, slice):
                index = np.arange(index.start, index.stop)
            places = np.broadcast_to(index, part.count)
            members = np.arange(lanes.count) if choice is None else np.arange(lanes.count)[choice]
            for place, lane in zip(places.tolist(), members.tolist(), strict=True):
                found[lane] = view[place]
                # PTX has the compare value first
                if given.shape[1] == 2 or (given[lane, :2] == found[lane]).all():
                    new = given[lane, -2:]
                    f.batch.progress += bool((new != found[lane]).any())
                    view[place] = new
        return np.ascontiguousarray(found[:, 0]), np.ascontiguousarray(found[:, 1])

    call = f"{c.bind(run)}(f, {address}, {', '.join(parts)})"
    return c.store_all(elements(instruction, target, 2), ("b64", "b64"), call)


class Atomic:
    """One atomic instruction."""

    def __init__(
        self, instruction: Instruction, access: MemoryAccess, operation: str, kind: str, space: str, wanted: bool
    ) -> None:
        self.access = access
        self.operation = operation
        self.wanted = wanted
        self.running: Any = None
        self.dtype: np.dtype[Any] = access.dtype
        # f32 sums in global memory flush subnormal numbers, those in shared memory do not
        self.flushes = kind == "f32"
        # updates of global memory, and of a block's memory
        self.far: Update
        self.near: Update
        if operation in ("exch", "cas", "inc", "dec"):
            update = {"exch": _exchange, "cas": _compare_and_swap, "inc": _increase, "dec": _decrease}[operation]
            self.far = self.near = update
        elif operation in _RUNNING:
            self.far = self._arithmetic(instruction, operation, kind, False)
            self.near = self._arithmetic(instruction, operation, kind, True)
            if kind[0] in "usb" and kind not in ("bf16", "bf16x2"):
                self.running = _RUNNING[operation]
                if kind[0] == "s":
                    self.dtype = np.dtype(f"i{access.width}")
            elif operation == "add" and kind in ("f32", "f64"):
                self.running = np.add
                self.dtype = np.dtype(f"f{access.width}")
        else:
            raise refused(instruction)

    def _arithmetic(self, instruction: Instruction, operation: str, kind: str, near: bool) -> Update:
        modifiers: tuple[str, ...] = (kind,)
        if self.flushes and not near and operation == "add":
            modifiers = ("ftz", kind)
        elif kind in ("bf16", "bf16x2") and operation == "add":
            modifiers = ("rn", kind)
        if kind[0] == "b" and not kind.startswith("bf") and operation not in ("and", "or", "xor"):
            raise refused(instruction)
        register = Register("%v", "b64" if width(kind) == 64 else "b32" if width(kind) == 32 else "b16")
        stand_in = Instruction(operation, modifiers, (register, register, register), None, None, instruction.line, "")
        run = compile_lanewise(stand_in)
        if run is None:
            raise refused(instruction)
        compute = run

        def update(old: Array, value: Array, compare: Any) -> Array:
            result = compute(old, value)
            return result  # type: ignore[return-value]

        def swapped(old: Array, value: Array, compare: Any) -> Array:
            result = compute(value, old)
            return result  # type: ignore[return-value]

        if kind == "f64":
            # if both values are NaN, shared memory keeps its own; global memory takes the operand unchanged
            return swapped if near else _keep_nan(update)
        return update

    def run(self, f: Fragment, address: Array, value: Array, second: Any = None) -> Array:
        """Execute the atomic for all lanes of a fragment, lowest lane first; returns the old value for each lane."""
        lanes = f.lanes
        pieces = self.access.locate(f, lanes, address)
        if f.batch.guard is not None:
            f.batch.guard.update(f, self.access, pieces, reads=self.operation != "exch")
        if f.batch.run.counting:
            count_contention(f.batch.run.tally(self.access.site), lanes, address)
        out: Array | None = None
        if self.wanted and (len(pieces) > 1 or pieces[0].choice is not None):
            out = np.empty(lanes.count, self.access.dtype)
        # PTX has the compare value first
        compare = None
        if second is not None:
            compare, value = value, second
        for view, index, choice, part, home in pieces:
            near = home is f.batch.shared or home is f.batch.local
            mine = value if choice is None else choose(value, choice)
            theirs = compare if choice is None or compare is None else choose(compare, choice)
            if isinstance(index, slice):
                index = np.arange(index.start, index.stop)
            elif isinstance(index, int):
                index = np.full(part.count, index)
            old = self.apply(f, view, index, mine, theirs, near)
            if out is None:
                out = old
            else:
                out[choice] = old
        if out is None:
            raise RuntimeError("an atomic without pieces")
        return out

    def apply(self, f: Fragment, view: Array, index: Array, value: Array, compare: Any, near: bool) -> Array:
        count = len(index)
        update = self.near if near else self.far
        order = np.argsort(index, kind="stable") if count > 1 else np.zeros(1, np.intp)
        places = index[order]
        first = np.ones(count, np.bool_)
        np.not_equal(places[1:], places[:-1], out=first[1:])
        if first.all():
            old = view[index]
            new = update(old, value, compare)
            self._write(f, view, index, old, new)
            return old
        starts = np.flatnonzero(first)
        sizes = np.diff(np.append(starts, count))
        values = np.broadcast_to(value, (count,))[order]
        compares = None if compare is None else np.broadcast_to(compare, (count,))[order]
        found = np.empty(count, view.dtype)
        crowded = sizes > _ROUNDS
        if crowded.any():
            for start, size in zip(starts[crowded], sizes[crowded], strict=True):
                part = slice(int(start), int(start + size))
                place = int(places[start])
                old = view[place]
                found[part], new = self.queue(old, values[part], None if compares is None else compares[part], near)
                self._write(f, view, place, old, new)
        rank = np.arange(count) - np.repeat(starts, sizes)
        quiet = np.repeat(~crowded, sizes)
        for turn in range(int(sizes[~crowded].max(initial=0))):
            now = np.flatnonzero(quiet & (rank == turn))
            where = places[now]
            old = view[where]
            new = update(old, values[now], None if compares is None else compares[now])
            self._write(f, view, where, old, new)
            found[now] = old
        out = np.empty_like(found)
        out[order] = found
        return out

    def _write(self, f: Fragment, view: Array, where: Any, old: Array, new: Array) -> None:
        # an unchanged value, such as a lock that stays taken, does not count as progress
        if np.not_equal(old, new).any():
            f.batch.progress += 1
            view[where] = new

    def queue(self, old: Any, values: Array, compares: Any, near: bool) -> tuple[Array, Any]:
        """Update one element by many lanes; returns the old value for each lane, and the final value."""
        count = len(values)
        if self.running is not None:
            chain = np.concatenate(([old], values)).view(self.dtype)
            totals = self.running.accumulate(chain, dtype=self.dtype)
            if not self._delicate(chain, totals, near):
                bits = totals.view(self.access.dtype)
                return bits[:-1], bits[-1]
        found = np.empty(count, values.dtype)
        if self.operation == "exch":
            found[0], found[1:] = old, values[:-1]
            return found, values[-1]
        if self.operation == "cas":
            position = 0
            while position < count:
                hits = compares[position:] == old
                hit = int(np.argmax(hits))
                if not hits[hit]:
                    break
                found[position : position + hit + 1] = old
                old = values[position + hit]
                position += hit + 1
            found[position:] = old
            return found, old
        for position in range(count):
            found[position] = old
            old = (self.near if near else self.far)(np.asarray(old)[()], values[position], None)
        return found, old

    def _delicate(self, chain: Array, totals: Array, near: bool) -> bool:
        """Whether a float sum has NaNs or subnormals: a running total would get their bits or their flushing wrong."""
        if totals.dtype.kind != "f":
            return False
        if np.isnan(totals[-1]):
            return True
        tiny = np.finfo(totals.dtype).tiny
        both = np.abs(np.concatenate((chain, totals)))
        return self.flushes and not near and bool(((both < tiny) & (both > 0)).any())


def _keep_nan(update: Update) -> Update:
    """A float64 sum that returns a NaN operand unchanged."""

    def kept(old: Array, value: Array, compare: Any) -> Array:
        result = update(old, value, compare)
        for operand in (old, value):
            wrong = np.isnan(operand.view(np.float64))
            if wrong.any():
                result = np.where(wrong, operand, result)
        return result

    return kept


def _exchange(old: Array, value: Array, compare: Any) -> Array:
    return np.broadcast_to(value, old.shape)


def _compare_and_swap(old: Array, value: Array, compare: Any) -> Array:
    return np.where(old == compare, value, old)


def _increase(old: Array, value: Array, compare: Any) -> Array:
    bumped: Array = np.where(old >= value, old.dtype.type(0), old + old.dtype.type(1))
    return bumped


def _decrease(old: Array, value: Array, compare: Any) -> Array:
    return np.where((old == 0) | (old > value), value, old - old.dtype.type(1))


BUILDERS = {"atom": build_atomic, "red": build_atomic}
