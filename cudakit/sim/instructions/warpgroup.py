"""Builders for wgmma: asynchronous products of a warpgroup, their fences, groups and waits.

The arithmetic is in warpgroup_products.py; products in flight are in lockstep/warpgroups.py, operands in
lockstep/warpgroup_operands.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.instructions.tensor import elements, meet, register_kind, shape_of
from cudakit.sim.instructions.tiles import left
from cudakit.sim.instructions.warpgroup_products import multiply, multiply_bits, multiply_integers
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.registers import Registers
from cudakit.sim.lockstep.warpgroup_checks import check_extent, state_of
from cudakit.sim.lockstep.warpgroup_product import Product, ProductForm
from cudakit.sim.ptx.ir import Immediate, Instruction, PtxError, Register, Vector
from cudakit.sim.ptx.modifiers import Modifiers

_KINDS = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "b1")
# types of D, k, and bytes of an element in shared memory, by the type of A: PTX ISA, "Matrix Shape"
_FORMS: dict[str, tuple[tuple[str, ...], int, int]] = {
    "f16": (("f16", "f32"), 16, 2),
    "bf16": (("f32",), 16, 2),
    "tf32": (("f32",), 8, 4),
    "e4m3": (("f16", "f32"), 32, 1),
    "s8": (("s32",), 32, 1),
    "b1": (("s32",), 256, 1),
}
_FAMILIES = {"u8": "s8", "e5m2": "e4m3"}
_WIDE = tuple(range(8, 257, 8))
# of integers and bits
_FEWER = (8, 16, 24, *range(32, 257, 16))


class _Form:
    """A wgmma.mma_async instruction: shape, types, and its other operands."""

    def __init__(self, instruction: Instruction) -> None:
        modifiers = Modifiers(instruction)
        self.refuse = modifiers.refuse
        modifiers.flag("mma_async")
        if not (modifiers.flag("sync") and modifiers.flag("aligned")):
            self.refuse("it needs .sync.aligned")
        shape = shape_of(modifiers.rest)
        self.saturate = modifiers.flag("satfinite")
        bits = modifiers.rest[-2:] == ["and", "popc"]
        del modifiers.rest[len(modifiers.rest) - 2 * bits :]
        kinds = [modifiers.one_of("f32", "s32", *_KINDS) for _ in range(3)]
        modifiers.finish()
        self.d, self.a, self.b = kinds
        family = _FAMILIES.get(self.a, self.a)
        sums, k, self.size = _FORMS.get(family, ((), 0, 0))
        mixed = self.a != self.b and (family in ("f16", "bf16") or _FAMILIES.get(self.b, self.b) != family)
        if self.d not in sums or mixed:
            self.refuse("unsupported combination of types")
        integers = family in ("s8", "b1")
        ns = _FEWER if integers else _WIDE
        if shape is None or (shape[0], shape[2]) != (64, k) or shape[1] not in ns:
            self.refuse(f"the shapes for .{self.a} are .m64nNk{k} with N of {', '.join(map(str, ns))}")
        if (family == "b1") != bits:
            self.refuse("bits are combined by .and.popc")
        if self.saturate and family != "s8":
            self.refuse(".satfinite is only for .s8 and .u8")
        self.n = shape[1]
        self.shape = f"m64n{self.n}k{k}"
        self.half = self.d == "f16"
        self.registers = isinstance(instruction.operands[1], Vector)
        self._read_immediates(instruction, family)

    def _read_immediates(self, instruction: Instruction, family: str) -> None:
        transposes = family in ("f16", "bf16")
        due = 4 + 2 * (family not in ("s8", "b1")) + transposes * (2 - self.registers)
        if len(instruction.operands) != due:
            source = "registers" if self.registers else "shared memory"
            raise PtxError(f"with .{self.a} and A in {source} it takes {due} operands, got {len(instruction.operands)}")
        values = [o.bits if isinstance(o, Immediate) else 0 for o in instruction.operands[4:]]
        signs, majors = values[:2], values[2:]
        self.negated = (signs[:1] == [-1], signs[1:] == [-1])
        if self.registers:
            majors = [0, *majors]
        self.k_major = (majors[:1] != [1], majors[1:] != [1])

    def multiply(self) -> Callable[[Array, Array, Array | None], Array]:
        """The function of A, B and C."""
        if self.a == "b1":
            return multiply_bits
        if self.d == "s32":
            kinds = self.a, self.b
            return lambda a, b, c: multiply_integers(kinds, a, b, c, self.saturate)
        return lambda a, b, c: multiply((self.a, self.b, self.d), a, b, c, self.negated)

    def fragments(self) -> Callable[[LaneSet, tuple[Array, ...]], Array] | None:
        """The function that reads A from registers, as (16, k, warps) elements as in memory; None: A is in memory."""
        if not self.registers:
            return None
        if self.a == "b1":
            # as bytes, which have the same order
            return left("s8", 16, 32).read
        return left(self.a, 16, _FORMS[_FAMILIES.get(self.a, self.a)][1]).read


def build_mma_async(c: Emitter, instruction: Instruction) -> list[str]:
    read = _Form(instruction)
    d, a, b, scale = instruction.operands[:4]
    sums, fragment = elements(d), elements(a) if read.registers else ()
    due = read.n // (4 if read.half else 2)
    if len(sums) != due or (read.registers and len(fragment) != 4):
        got = f"{len(sums)} and {len(fragment)}" if read.registers else f"{len(sums)}"
        raise PtxError(f"expected {due} registers of D{' and 4 of A' * read.registers}, got {got}")
    site = c.site(instruction, "matrix product")
    form = ProductForm(site, read.shape, read.n, read.size, read.half, read.k_major, read.fragments(), read.multiply())
    form.d, form.a = (tuple(c.slot(r) for r in registers if isinstance(r, Register)) for registers in (sums, fragment))
    kind = register_kind("f32" if read.d == "f32" else "b32")
    values = (
        f"({''.join(c.source(r, 'b32') + ', ' for r in fragment)})",
        "None" if read.registers else c.source(a, "b64"),
        c.source(b, "b64"),
        c.source(scale, "pred"),
        f"({', '.join(c.source(r, kind) for r in sums)},)",
    )
    return c.store_all(sums, [kind] * len(sums), f"{c.bind(Issue(form, c.module.debug))}(f, {', '.join(values)})")


class Issue:
    """Issues a product; returns the accumulators, which keep their values until it is complete. ``serialised``: it is
    complete at once, as ptxas makes it in code that moves accumulators to memory (-G)."""

    def __init__(self, form: ProductForm, serialised: bool) -> None:
        self.form = form
        self.serialised = serialised

    def __call__(
        self, f: Fragment, a: tuple[Array, ...], a_bits: Array | None, b_bits: Array, scale: Array, c: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        form, lanes, batch = self.form, f.lanes, f.batch
        meet(f, form.site)
        if batch.run.counting:
            tally = batch.run.tally(form.site)
            tally.requests += lanes.warp_count
            tally.lanes += lanes.count
        state = state_of(batch)
        none = np.zeros((), np.uint64)
        bits = _per_warp(lanes, none if a_bits is None else a_bits), _per_warp(lanes, b_bits)
        product = Product(state.number(), form, lanes, a, bits, _per_warp(lanes, scale), c)
        if a_bits is not None:
            check_extent(f, product, "A", bits[0], 64)
        check_extent(f, product, "B", bits[1], form.n)
        state.issue(f, product, None if self.serialised else (a_bits, b_bits, scale))
        if self.serialised:
            state.commit(lanes)
            state.wait(f, 0)
            return tuple(f.regs[slot] for slot in form.d)
        return c


def _per_warp(lanes: LaneSet, value: Array) -> Array:
    """The value of each warp's first lane."""
    if value.ndim == 0:
        return np.full(lanes.warp_count, value)
    return value.take(lanes.warp_starts)


def build_fence(c: Emitter, instruction: Instruction) -> list[str]:
    site = c.site(instruction, "fence")

    def fence(f: Fragment) -> None:
        meet(f, site)
        state = state_of(f.batch)
        if state.checks is not None:
            state.checks.fence(f, instruction)

    return [f"{c.bind(fence)}(f)"]


def build_commit(c: Emitter, instruction: Instruction) -> list[str]:
    site = c.site(instruction, "commit")

    def commit(f: Fragment) -> None:
        meet(f, site)
        state_of(f.batch).commit(f.lanes)

    return [f"{c.bind(commit)}(f)"]


class Wait:
    """A wgmma.wait_group. ``touched`` are the slots of registers that it may write."""

    def __init__(self, instruction: Instruction, pending: int) -> None:
        self.instruction = instruction
        self.pending = pending
        self.touched: frozenset[int] = frozenset()

    def __call__(self, f: Fragment, r: Registers) -> None:
        state = state_of(f.batch)
        if state.checks is not None:
            state.checks.wait(f, self.instruction)
        state.wait(f, self.pending)


def build_wait(c: Emitter, instruction: Instruction) -> list[str]:
    operand = instruction.operands[0]
    pending = operand.bits if isinstance(operand, Immediate) else 0
    return [f"{c.bind(Wait(instruction, pending))}(f, r)"]


BUILDERS = {"wgmma.mma_async": build_mma_async, "wgmma.fence": build_fence}
BUILDERS |= {"wgmma.commit_group": build_commit, "wgmma.wait_group": build_wait}
