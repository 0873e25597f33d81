"""Builders for mma.sync and wmma.mma: matrix products by the lanes of a warp together.

What is computed is in tensorcore.py, which lane holds what in tiles.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from cudakit.sim import tensorcore
from cudakit.sim.fragment import Fragment, Site
from cudakit.sim.ir import Instruction, Operand, PtxError, Vector
from cudakit.sim.lanes import Array
from cudakit.sim.lowering import Compiler
from cudakit.sim.tiles import Tile, left, quads, right, sums

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
    """The type under which a table has the shapes of a type."""
    return _FAMILIES.get(kind, kind)


def shape_of(modifiers: list[str]) -> tuple[int, int, int] | None:
    """Take the shape (m, n, k) out of the modifiers."""
    for modifier in modifiers:
        match = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", modifier)
        if match:
            modifiers.remove(modifier)
            return int(match.group(1)), int(match.group(2)), int(match.group(3))
    return None


def elements(operand: Operand | None) -> tuple[Operand | None, ...]:
    """The registers of a fragment; one alone may stand without braces."""
    return operand.elements if isinstance(operand, Vector) else (operand,)


def register_kind(kind: str) -> str:
    """The PTX type of the registers that hold elements of a type."""
    return kind if kind in ("f32", "f64") else "b32"


def wmma_tile(role: str, kind: str, shape: tuple[int, int, int]) -> Tile:
    """The fragment of wmma for a matrix "a", "b", "c" or "d"."""
    m, n, k = shape
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


def build_mma(c: Compiler, instruction: Instruction) -> list[str]:
    modifiers = list(instruction.modifiers)
    if any("::" in m or m in ("sp", "block_scale") for m in modifiers):
        raise c.refuse(instruction, "sparse and block-scaled products are not there yet")
    for word in ("sync", "aligned"):
        if word not in modifiers:
            raise c.refuse(instruction, f"no .{word}")
        modifiers.remove(word)
    shape = shape_of(modifiers)
    combine = _bit_operation(modifiers)
    saturate = _take(modifiers, "satfinite")
    if len(modifiers) != 6 or any(layout not in ("row", "col") for layout in modifiers[:2]):
        raise c.refuse(instruction)
    types = _Types(modifiers[3], modifiers[4], modifiers[5], modifiers[2])
    if shape is None or shape not in MMA_SHAPES.get(family(types.a), ()):
        raise c.refuse(instruction, f"the shapes with .{types.a} are {named(MMA_SHAPES.get(family(types.a), ()))}")
    m, n, k = shape
    layouts = tuple(modifiers[:2])
    multiply = _arithmetic(c, instruction, types, saturate, combine)
    if shape == (8, 8, 4) and types.a == "f16":
        tiles = tuple(
            quads(role, kind, layout == "col") for role, kind, layout in zip("ab", types[:2], layouts, strict=True)
        )
        tiles += tuple(quads(role, kind, False) for role, kind in (("c", types.c), ("d", types.d)))
        multiply = _by_quads(multiply)
    else:
        if layouts != ("row", "col"):
            raise c.refuse(instruction, "A is .row and B is .col in this shape")
        tiles = (left(types.a, m, k), right(types.b, k, n), sums(types.c, m, n), sums(types.d, m, n))
    return _product(c, instruction, tiles, types, multiply)


def build_wmma_mma(c: Compiler, instruction: Instruction) -> list[str]:
    modifiers = [m for m in instruction.modifiers if m not in ("mma", "sync", "aligned")]
    shape = shape_of(modifiers)
    combine = _bit_operation(modifiers)
    saturate = _take(modifiers, "satfinite")
    kinds = modifiers[2:]
    if len(kinds) == 2:
        # only f16 leaves the types of A and B out
        kinds = [kinds[0], "f16", "f16", kinds[1]]
    if len(kinds) != 4 or any(layout not in ("row", "col") for layout in modifiers[:2]):
        raise c.refuse(instruction)
    types = _Types(kinds[1], kinds[2], kinds[3], kinds[0])
    if shape is None or shape not in WMMA_SHAPES.get(family(types.a), ()) or types.a != types.b:
        raise c.refuse(instruction, f"the shapes with .{types.a} are {named(WMMA_SHAPES.get(family(types.a), ()))}")
    tiles = tuple(wmma_tile(role, kind, shape) for role, kind in zip("abcd", types, strict=True))
    return _product(c, instruction, tiles, types, _arithmetic(c, instruction, types, saturate, combine))


def named(shapes: tuple[tuple[int, int, int], ...]) -> str:
    """Shapes as PTX writes them."""
    return ", ".join(f".m{m}n{n}k{k}" for m, n, k in shapes) or "none"


def _take(modifiers: list[str], name: str) -> bool:
    if name in modifiers:
        modifiers.remove(name)
        return True
    return False


def _bit_operation(modifiers: list[str]) -> str:
    if not _take(modifiers, "popc"):
        return ""
    return next((name for name in ("and", "xor") if _take(modifiers, name)), "")


def _arithmetic(c: Compiler, instruction: Instruction, types: _Types, saturate: bool, combine: str) -> _Multiply:
    """A function of A, B, C and the architecture for these types."""
    kinds = family(types.a)
    known = kinds == family(types.b) and (types.a == types.b or types.a in _SIGN or types.a in _FP8)
    if not known or (kinds == "b1") != bool(combine):
        raise c.refuse(instruction, "these types do not go together")
    if types.a in _SIGN:
        if (types.c, types.d) != ("s32", "s32") or (saturate and kinds == "b1"):
            raise c.refuse(instruction, "integers are summed as .s32")
        signs = (_SIGN[types.a], _SIGN[types.b])
        return lambda a, b, c, arch: tensorcore.multiply_integers(a, b, c, signs, saturate, combine)
    if types.a == "f64":
        if (types.c, types.d) != ("f64", "f64") or saturate:
            raise c.refuse(instruction, "float64 is summed as .f64")
        return lambda a, b, c, arch: tensorcore.multiply64(a, b, c)
    allowed = ("f16", "f32") if types.a in ("f16", *_FP8) else ("f32",)
    if types.c not in allowed or types.d not in allowed or saturate:
        raise c.refuse(instruction, f"sums of .{types.a} are .{' or .'.join(allowed)}")
    return lambda a, b, c, arch: tensorcore.multiply(tuple(types), a, b, c, arch)


def _by_quads(multiply: _Multiply) -> _Multiply:
    """The four products of m8n8k4, which lie one above the other, as products beside each other."""

    def four(a: Array, b: Array, c: Array, arch: str) -> Array:
        warps = a.shape[2]
        apart = a.reshape(4, 8, 4, warps).transpose(1, 2, 0, 3).reshape(8, 4, -1)
        beside = b.reshape(4, 4, 8, warps).transpose(0, 2, 1, 3).reshape(4, 8, -1)
        added = c.reshape(4, 8, 8, warps).transpose(1, 2, 0, 3).reshape(8, 8, -1)
        result = multiply(apart, beside, added, arch)
        return result.reshape(8, 8, 4, warps).transpose(2, 0, 1, 3).reshape(32, 8, warps)

    return four


class _Product:
    """One matrix product: reads the fragments of A, B and C, gives the registers of D."""

    def __init__(self, site: Site, tiles: tuple[Tile, ...], multiply: _Multiply) -> None:
        self.site = site
        self.a, self.b, self.c, self.d = tiles
        self.multiply = multiply

    def __call__(
        self, f: Fragment, a: tuple[Array, ...], b: tuple[Array, ...], c: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        lanes, run = f.lanes, f.batch.run
        if run.counting:
            tally = run.tally(self.site)
            tally.requests += lanes.warp_count
            tally.lanes += lanes.count
        result = self.multiply(self.a.read(lanes, a), self.b.read(lanes, b), self.c.read(lanes, c), run.properties.arch)
        return self.d.write(lanes, result)


def _product(
    c: Compiler, instruction: Instruction, tiles: tuple[Tile, ...], types: _Types, multiply: _Multiply
) -> list[str]:
    if len(instruction.operands) != 4:
        raise PtxError(f"{instruction.name} takes 4 operands, not {len(instruction.operands)}")
    d, a, b, added = (elements(o) for o in instruction.operands)
    for registers, tile in zip((a, b, added, d), tiles, strict=True):
        if len(registers) != tile.registers:
            raise PtxError(f"a fragment of {len(registers)} registers where {tile.registers} are due")
    values = [
        f"({', '.join(c.source(r, register_kind(kind)) for r in registers)},)"
        for registers, kind in zip((a, b, added), types[:3], strict=True)
    ]
    product = _Product(c.site(instruction, "matrix product"), tiles, multiply)
    return c.store_all(d, [register_kind(types.d)] * len(d), f"{c.bind(product)}(f, {', '.join(values)})")


BUILDERS = {"mma": build_mma}
