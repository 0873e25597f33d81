"""atom and red: lanes update memory one after another, in lane order.

Where no two lanes mean the same element, one vector operation does it. Where they do, lanes go by rounds (the first
lane of each element, then the second, ...); elements that very many lanes want are done by a running total.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.access import SHARED, Access
from cudakit.sim.arithmetic import compile_lanewise
from cudakit.sim.fragment import Fragment
from cudakit.sim.ir import Instruction, Register
from cudakit.sim.lanes import Array, choose
from cudakit.sim.lanewise import width
from cudakit.sim.loads import is_hint, space_of
from cudakit.sim.lowering import Compiler

# old values, operand, compare value -> new values
Update = Callable[[Array, Array, Any], Array]

_ROUNDS = 24
_RUNNING: dict[str, Any] = {"add": np.add, "min": np.minimum, "max": np.maximum}
_RUNNING |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def build_atomic(c: Compiler, instruction: Instruction) -> list[str]:
    modifiers = list(instruction.modifiers)
    kind = modifiers.pop()
    space = space_of(c, instruction, modifiers)
    modifiers = [m for m in modifiers if not is_hint(m)]
    if "noftz" in modifiers:
        modifiers.remove("noftz")
    bits = width(kind)
    if len(modifiers) != 1 or bits not in (16, 32, 64):
        raise c.refuse(instruction)
    operation = modifiers[0]
    operands = list(instruction.operands)
    target = operands.pop(0) if instruction.opcode == "atom" else None
    address, offset = c.address(operands[0], instruction)
    site = c.site(instruction, "atomic" if instruction.opcode == "atom" else "reduction")
    access = Access(site, space, offset, bits // 8, 1)
    atomic = Atomic(c, instruction, access, operation, kind, space, target is not None)
    values = [c.source(operand, kind) for operand in operands[1:3]]
    if operation != "cas":
        values = values[:1]
    call = f"{c.bind(atomic.run)}(f, {address}, {', '.join(values)})"
    return [call] if target is None else c.store(target, kind, call)


class Atomic:
    """One atomic instruction."""

    def __init__(
        self, c: Compiler, instruction: Instruction, access: Access, operation: str, kind: str, space: str, wanted: bool
    ) -> None:
        self.access = access
        self.operation = operation
        self.wanted = wanted
        self.running: Any = None
        self.dtype: np.dtype[Any] = access.dtype
        # f32 sums in global memory flush subnormal numbers, those in shared memory do not
        self.flushes = kind == "f32" and space != SHARED
        if operation in ("exch", "cas", "inc", "dec"):
            self.update: Update = {"exch": _exchange, "cas": _compare_and_swap, "inc": _increase, "dec": _decrease}[
                operation
            ]
        elif operation in _RUNNING:
            self.update = self._arithmetic(c, instruction, operation, kind, space)
            if kind[0] in "usb" and kind not in ("bf16", "bf16x2"):
                self.running = _RUNNING[operation]
                if kind[0] == "s":
                    self.dtype = np.dtype(f"i{access.width}")
            elif operation == "add" and kind in ("f32", "f64"):
                self.running = np.add
                self.dtype = np.dtype(f"f{access.width}")
        else:
            raise c.refuse(instruction)

    def _arithmetic(self, c: Compiler, instruction: Instruction, operation: str, kind: str, space: str) -> Update:
        modifiers: tuple[str, ...] = (kind,)
        if kind == "f32" and space != SHARED:
            modifiers = ("ftz", kind)
        elif kind in ("bf16", "bf16x2"):
            modifiers = ("rn", kind)
        if kind[0] == "b" and not kind.startswith("bf") and operation not in ("and", "or", "xor"):
            raise c.refuse(instruction)
        register = Register("%v", "b64" if width(kind) == 64 else "b32" if width(kind) == 32 else "b16")
        stand_in = Instruction(operation, modifiers, (register, register, register), None, None, instruction.line, "")
        run = compile_lanewise(stand_in)
        if run is None:
            raise c.refuse(instruction)
        compute = run

        def update(old: Array, value: Array, compare: Any) -> Array:
            result = compute([old, value])
            return result  # type: ignore[return-value]

        return update

    def run(self, f: Fragment, address: Array, value: Array, second: Any = None) -> Array:
        """Do it for all lanes of a fragment, lowest lane first; gives what each lane found."""
        lanes = f.lanes
        pieces = self.access.locate(f, lanes, address)
        out: Array | None = None
        if self.wanted and (len(pieces) > 1 or pieces[0].choice is not None):
            out = np.empty(lanes.count, self.access.dtype)
        # PTX names the compare value first
        compare = None
        if second is not None:
            compare, value = value, second
        for view, index, choice, part in pieces:
            mine = value if choice is None else choose(value, choice)
            theirs = compare if choice is None or compare is None else choose(compare, choice)
            if isinstance(index, slice):
                index = np.arange(index.start, index.stop)
            elif isinstance(index, int):
                index = np.full(part.count, index)
            old = self.apply(f, view, index, mine, theirs)
            if out is None:
                out = old
            else:
                out[choice] = old
        if out is None:
            raise RuntimeError("an atomic without pieces")
        return out

    def apply(self, f: Fragment, view: Array, index: Array, value: Array, compare: Any) -> Array:
        count = len(index)
        order = np.argsort(index, kind="stable") if count > 1 else np.zeros(1, np.intp)
        places = index[order]
        first = np.ones(count, np.bool_)
        np.not_equal(places[1:], places[:-1], out=first[1:])
        if first.all():
            old = view[index]
            new = self.update(old, value, compare)
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
                found[part], new = self.queue(old, values[part], None if compares is None else compares[part])
                self._write(f, view, place, old, new)
        rank = np.arange(count) - np.repeat(starts, sizes)
        quiet = np.repeat(~crowded, sizes)
        for turn in range(int(sizes[~crowded].max(initial=0))):
            now = np.flatnonzero(quiet & (rank == turn))
            where = places[now]
            old = view[where]
            new = self.update(old, values[now], None if compares is None else compares[now])
            self._write(f, view, where, old, new)
            found[now] = old
        out = np.empty_like(found)
        out[order] = found
        return out

    def _write(self, f: Fragment, view: Array, where: Any, old: Array, new: Array) -> None:
        # a lock that stays taken is no progress
        if np.not_equal(old, new).any():
            f.batch.progress += 1
            view[where] = new

    def queue(self, old: Any, values: Array, compares: Any) -> tuple[Array, Any]:
        """Many lanes at one element: what each finds, and what is there in the end."""
        count = len(values)
        if self.running is not None:
            chain = np.concatenate(([old], values)).view(self.dtype)
            totals = self.running.accumulate(chain, dtype=self.dtype)
            if not self._delicate(chain, totals):
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
            old = self.update(np.asarray(old)[()], values[position], None)
        return found, old

    def _delicate(self, chain: Array, totals: Array) -> bool:
        """Whether a float sum meets NaN, whose bits, or subnormals, whose flushing, a running total would get wrong."""
        if totals.dtype.kind != "f":
            return False
        if np.isnan(totals[-1]):
            return True
        tiny = np.finfo(totals.dtype).tiny
        both = np.abs(np.concatenate((chain, totals)))
        return self.flushes and bool(((both < tiny) & (both > 0)).any())


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
