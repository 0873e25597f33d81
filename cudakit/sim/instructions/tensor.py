"""Builders for mma.sync and wmma.mma: matrix products of a warp.

The arithmetic is in tensorcore.py, the layouts of fragments in tiles.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cudakit.sim.instructions import tensorcore
from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.instructions.tiles import ELEMENT_BITS, FragmentLayout, left, quads, right, sums
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.ptx.ir import Instruction, Operand, PtxError, Vector
from cudakit.sim.ptx.modifiers import Modifiers

_Multiply = Callable[[Array, Array, Array, str], Array]

_FP8 = ("e4m3", "e5m2")
_SIGN = {"s8": 128, "u8": 0, "s4": 8, "u4": 0, "b1": 0}
# shapes of mma.sync by the type of A: PTX ISA, "Matrix Shape"
MMA_SHAPES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "f16": ((8, 8, 4), (16, 8, 8), (16, 8, 16)),
    "bf16": ((16, 8, 8), (16, 8, 16)),
    "tf32": ((16, 8, 4), (16, 8, 8)),
    "e4m3": ((16, 8, 16), (16, 8, 32)),
    "f64": ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)),
    "s8": ((8, 8, 16), (16, 8, 16), (16, 8, 32)),
    "s4": ((8, 8, 32), (16, 8, 32), (16, 8, 64)),
    "b1": ((8, 8, 128), (16, 8, 128), (16, 8, 256)),
}
_K16 = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
WMMA_SHAPES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "f16": _K16,
    "bf16": _K16,
    "s8": _K16,
    "tf32": ((16, 16, 8),),
    "f64": ((8, 8, 4),),
    "s4": ((8, 8, 32),),
    "b1": ((8, 8, 128),),
}
_FAMILIES = {"u8": "s8", "u4": "s4", "e5m2": "e4m3"}


def family(kind: str) -> str:
    """The key of a type in the tables of shapes."""
    return _FAMILIES.get(kind, kind)


def shape_of(modifiers: list[str]) -> tuple[int, int, int] | None:
    """Take the shape (m, n, k) from the modifiers."""
    for modifier in modifiers:
        match = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", modifier)
        if match:
            modifiers.remove(modifier)
            return int(match.group(1)), int(match.group(2)), int(match.group(3))
    return None


def elements(operand: Operand | None) -> tuple[Operand | None, ...]:
    """The registers of a fragment; a single one may be without braces."""
    return operand.elements if isinstance(operand, Vector) else (operand,)


def register_kind(kind: str) -> str:
    """The PTX type of the registers that hold elements of a type."""
    return kind if kind in ("f32", "f64") else "b32"


def meet(f: Fragment, site: Site) -> None:
    """Check that all lanes of each warp are active, as matrix instructions require: an exited lane has no registers."""
    lanes = f.lanes
    if lanes.complete or "warp" not in f.batch.run.checks:
        return
    short = np.flatnonzero(lanes.present != 0xFFFFFFFF)
    present = int(lanes.present[short[0]])
    absent = [str(lane) for lane in range(32) if not present >> lane & 1]
    f.fail(
        site.instruction,
        "lanes missing from a warp operation",
        f"{site.instruction.name} needs all 32 lanes of a warp, but some have exited or never existed: "
        f"{', '.join(absent)}",
        int(lanes.warp_starts[short[0]]),
        np.flatnonzero(np.isin(lanes.warp_rank, short)),
    )


def wmma_tile(role: str, kind: str, shape: tuple[int, int, int]) -> FragmentLayout:
    """The layout of a wmma fragment for matrix "a", "b", "c" or "d"."""
    m, n, k = shape
    if n > m:
        # the hardware multiplies the transposed matrices
        swapped = {"a": "b", "b": "a"}.get(role, role)
        return wmma_tile(swapped, kind, (n, m, k)).transposed()
    copies = 8 if kind == "f16" else 0
    if role == "a":
        return left(kind, m, k, copies)
    if role == "b":
        return right(kind, k, n, copies)
    return sums(kind, m, n)


class _Types(NamedTuple):
    a: str
    b: str
    c: str
    d: str


def build_mma(c: Emitter, instruction: Instruction) -> list[str]:
    read = _ProductModifiers(instruction, MMA_SHAPES)
    m, n, k = read.shape
    types = read.types
    multiply = read.arithmetic(wmma=False)
    if read.shape == (8, 8, 4) and types.a == "f16":
        if (types.c, types.d) == ("f32", "f16"):
            read.refuse("if C is .f32, D must be .f32")
        columns = [layout == "col" for layout in read.layouts]
        tiles = tuple(quads(role, kind, column) for role, kind, column in zip("ab", types[:2], columns, strict=True))
        tiles += tuple(quads(role, kind, False) for role, kind in (("c", types.c), ("d", types.d)))
        multiply = _by_quads(multiply)
    else:
        if read.layouts != ("row", "col"):
            read.refuse("with this shape, A must be .row and B .col")
        if types.c != types.d:
            read.refuse("with this shape, C and D must have the same type")
        tiles = (left(types.a, m, k), right(types.b, k, n), sums(types.c, m, n), sums(types.d, m, n))
    return _product(c, instruction, tiles, types, multiply)


def build_wmma_mma(c: Emitter, instruction: Instruction) -> list[str]:
    read = _ProductModifiers(instruction, WMMA_SHAPES)
    types = read.types
    if types.a != types.b:
        read.refuse("in wmma, A and B must have the same type")
    if ELEMENT_BITS[types.a] < 8 and read.layouts != ("row", "col"):
        read.refuse("with elements of less than 8 bits, A must be .row and B .col")
    tiles = tuple(wmma_tile(role, kind, read.shape) for role, kind in zip("abcd", types, strict=True))
    return _product(c, instruction, tiles, types, read.arithmetic(wmma=True))


class _ProductModifiers:
    """The modifiers of mma.sync or wmma.mma: shape, layouts, types, and rounding or saturation of sums."""

    def __init__(self, instruction: Instruction, shapes: dict[str, tuple[tuple[int, int, int], ...]]) -> None:
        modifiers = Modifiers(instruction)
        self.refuse = modifiers.refuse
        modifiers.flag("mma")
        if not (modifiers.flag("sync") and modifiers.flag("aligned")):
            modifiers.refuse("matrix products need .sync.aligned")
        shape = shape_of(modifiers.rest)
        self.layouts = (modifiers.one_of("row", "col"), modifiers.one_of("row", "col"))
        self.combine = modifiers.one_of("and", "xor")
        if modifiers.flag("popc") != bool(self.combine):
            modifiers.refuse("bits are combined by .and.popc or .xor.popc")
        self.saturate = modifiers.flag("satfinite")
        rounded = modifiers.flag("rn")
        kinds = [modifiers.one_of(*ELEMENT_BITS) for _ in range(4)]
        modifiers.finish()
        if instruction.opcode == "wmma" and kinds[1] and not kinds[2]:
            # the types of A and B are omitted only for f16
            kinds = [kinds[0], "f16", "f16", kinds[1]]
        if not all(kinds) or not all(self.layouts):
            modifiers.refuse("it needs two layouts and the types of D, A, B and C")
        self.types = _Types(kinds[1], kinds[2], kinds[3], kinds[0])
        there = shapes.get(family(self.types.a), ())
        if shape is None or shape not in there:
            modifiers.refuse(f"the shapes for .{self.types.a} are {named(there)}")
        self.shape = shape
        if rounded and self.types.a != "f64":
            modifiers.refuse(".rn is only for .f64")

    def arithmetic(self, wmma: bool) -> _Multiply:
        """The function of A, B, C and the architecture for these types."""
        types, saturate, combine = self.types, self.saturate, self.combine
        kinds = family(types.a)
        known = kinds == family(types.b) and (types.a == types.b or types.a in _SIGN or types.a in _FP8)
        if not known or (kinds == "b1") != bool(combine):
            self.refuse("unsupported combination of types")
        if types.a in _SIGN:
            if (types.c, types.d) != ("s32", "s32") or (saturate and kinds == "b1"):
                self.refuse("sums of integers are .s32")
            signs = (_SIGN[types.a], _SIGN[types.b])
            return lambda a, b, c, arch: tensorcore.multiply_integers(a, b, c, signs, saturate, combine)
        if types.a == "f64":
            if (types.c, types.d) != ("f64", "f64") or saturate:
                self.refuse("sums of .f64 are .f64")
            return lambda a, b, c, arch: tensorcore.multiply64(a, b, c)
        allowed = ("f16", "f32") if types.a in ("f16", *_FP8) else ("f32",)
        if types.c not in allowed or types.d not in allowed or saturate:
            self.refuse(f"sums of .{types.a} are .{' or .'.join(allowed)}")
        return lambda a, b, c, arch: tensorcore.multiply(types, a, b, c, arch, wmma)


def named(shapes: tuple[tuple[int, int, int], ...]) -> str:
    """Shapes in PTX syntax."""
    return ", ".join(f".m{m}n{n}k{k}" for m, n, k in shapes) or "none"


def _by_quads(multiply: _Multiply) -> _Multiply:
    """A function that computes the four products of m8n8k4, which are stacked in the matrices, as separate products."""

    def four(a: Array, b: Array, c: Array, arch: str) -> Array:
        warps = a.shape[2]
        apart = a.reshape(4, 8, 4, warps).transpose(1, 2, 0, 3).reshape(8, 4, -1)
        beside = b.reshape(4, 4, 8, warps).transpose(0, 2, 1, 3).reshape(4, 8, -1)
        added = c.reshape(4, 8, 8, warps).transpose(1, 2, 0, 3).reshape(8, 8, -1)
        result = multiply(apart, beside, added, arch)
        above: Array = result.reshape(8, 8, 4, warps).transpose(2, 0, 1, 3).reshape(32, 8, warps)
        return above

    return four


class _MatrixProduct:
    """One matrix product: takes the fragments of A, B and C, returns the registers of D."""

    def __init__(self, site: Site, tiles: tuple[FragmentLayout, ...], multiply: _Multiply) -> None:
        self.site = site
        self.a, self.b, self.c, self.d = tiles
        self.multiply = multiply

    def __call__(
        self, f: Fragment, a: tuple[Array, ...], b: tuple[Array, ...], c: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        lanes, run = f.lanes, f.batch.run
        meet(f, self.site)
        if run.counting:
            tally = run.tally(self.site)
            tally.requests += lanes.warp_count
            tally.lanes += lanes.count
        result = self.multiply(
            self.a.read(lanes, a), self.b.read(lanes, b), self.c.read(lanes, c), run.services.chip.arch
        )
        return self.d.write(lanes, result)


def _product(
    c: Emitter, instruction: Instruction, tiles: tuple[FragmentLayout, ...], types: _Types, multiply: _Multiply
) -> list[str]:
    d, a, b, added = (elements(o) for o in instruction.operands)
    for registers, tile in zip((a, b, added, d), tiles, strict=True):
        if len(registers) != tile.registers:
            raise PtxError(f"expected a fragment of {tile.registers} registers, got {len(registers)}")
    values = [
        f"({', '.join(c.source(r, register_kind(kind)) for r in registers)},)"
        for registers, kind in zip((a, b, added), types[:3], strict=True)
    ]
    product = _MatrixProduct(c.site(instruction, "matrix product"), tiles, multiply)
    return c.store_all(d, [register_kind(types.d)] * len(d), f"{c.bind(product)}(f, {', '.join(values)})")


BUILDERS = {"mma": build_mma, "wmma.mma": build_wmma_mma}
