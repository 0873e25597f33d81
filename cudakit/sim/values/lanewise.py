"""Shared by all lane-wise instructions: their form (types of operands and the function that runs them), the reading of
modifiers, and the registry that the instruction families fill.

Values are numpy arrays of bit patterns, or numpy scalars if all lanes agree; an instruction may mix both, and they
broadcast. A pred is bool; 8- and 16-bit types are stored as uint16, 32-bit types as uint32, 64-bit types as uint64.
Results never share memory with an operand. The caller silences numpy's overflow and invalid-value warnings with
``np.errstate(all="ignore")``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudakit.sim.ptx.ir import CARRY, Immediate, Instruction, Operand, Pair, PtxError, Register, UnsupportedPtx, Vector
from cudakit.sim.ptx.modifiers import Modifiers
from cudakit.sim.ptx.opcodes import carry_of

Array = NDArray[Any]
Run = Callable[..., "Array | tuple[Array, ...]"]

U16, U32, U64 = np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.uint64)
S16, S32, S64 = np.dtype(np.int16), np.dtype(np.int32), np.dtype(np.int64)
F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
BOOL = np.dtype(np.bool_)

UNSIGNED: dict[int, np.dtype[Any]] = {8: U16, 16: U16, 32: U32, 64: U64}
SIGNED: dict[int, np.dtype[Any]] = {16: S16, 32: S32, 64: S64}

_PACKED = {"f16x2": 32, "bf16x2": 32, "u16x2": 32, "s16x2": 32, "bf16": 16, "tf32": 32, "e4m3x2": 16, "e5m2x2": 16}
AFTER_TYPE = ("relu", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")


@lru_cache(maxsize=256)
def width(kind: str) -> int:
    """Bits of a PTX type; 1 for pred, 0 if registers of the type are unsupported."""
    if kind == "pred":
        return 1
    if kind in _PACKED:
        return _PACKED[kind]
    match = re.fullmatch(r"[bsuf](8|16|32|64)", kind)
    return int(match.group(1)) if match else 0


@lru_cache(maxsize=256)
def storage(kind: str) -> np.dtype[Any]:
    """The dtype that stores registers of a PTX type."""
    bits = width(kind)
    if bits == 0:
        raise UnsupportedPtx(f"registers of type .{kind} are not supported")
    return BOOL if bits == 1 else UNSIGNED[bits]


def constant(operand: Immediate, kind: str) -> Array:
    """A literal as a numpy scalar of the storage dtype of the PTX type at its position."""
    dtype = storage(kind)
    value, bits = operand.bits, width(kind)
    if kind == "pred":
        return np.bool_(value != 0)  # type: ignore[return-value]
    if operand.type in ("f32", "f64") and f"f{bits}" != operand.type:
        number = struct.unpack("<d" if operand.type == "f64" else "<f", value.to_bytes(bits_of(operand) // 8, "little"))
        scalar: Any = np.float64(number[0]).astype(f"f{max(bits // 8, 2)}").view(dtype)
        return scalar  # type: ignore[no-any-return]
    if operand.type not in ("f32", "f64") and kind in ("f32", "f64"):
        raise PtxError(f"expected a .{kind}, got the integer literal {value}")
    return dtype.type(value & ((1 << bits) - 1))  # type: ignore[no-any-return]


def bits_of(operand: Immediate) -> int:
    return 32 if operand.type == "f32" else 64


@dataclass(slots=True, frozen=True)
class Form:
    """A compiled instruction: ``run`` takes the sources and returns the destination, or a tuple if there are several.
    ``destinations`` and ``sources`` are PTX types; ``run`` takes and returns their ``storage``."""

    run: Run
    destinations: tuple[str, ...]
    sources: tuple[str, ...]


class Spec(Modifiers):
    """A lane-wise instruction for its builder: the modifiers not yet read, destinations and sources."""

    def __init__(self, instruction: Instruction) -> None:
        super().__init__(instruction)
        if self.rest and self.rest[-1] in AFTER_TYPE:  # max.s32.relu, prmt.b32.f4e
            self.rest.insert(0, self.rest.pop())
        self.destinations, self.sources = flatten(instruction)

    def rounding(self) -> str:
        return self.one_of("rn", "rz", "rm", "rp") or "rn"

    def required_rounding(self) -> str:
        mode = self.one_of("rn", "rz", "rm", "rp")
        if not mode:
            raise PtxError(f"{self.instruction.name} needs a rounding: .rn, .rz, .rm or .rp")
        return mode


Builder = Callable[[Spec], Form]
BUILDERS: dict[str, Builder] = {}


def builds(*opcodes: str) -> Callable[[Builder], Builder]:
    """Register the builder of opcodes; raises ValueError if one already has a builder."""

    def keep(function: Builder) -> Builder:
        for opcode in opcodes:
            if opcode in BUILDERS:
                raise ValueError(f"{opcode} already has a builder")
            BUILDERS[opcode] = function
        return function

    return keep


def flatten(instruction: Instruction) -> tuple[tuple[Register | None, ...], tuple[Operand | None, ...]]:
    """Destinations and sources of a lane-wise instruction, with vectors and pairs split. A destination is None if PTX
    has ``_``. ``CARRY`` is the last destination of an instruction that writes the carry flag, and the last source of
    one that reads it."""
    if not instruction.operands:
        return (), ()
    first = instruction.operands[0]
    destinations: list[Register | None] = []
    parts = first.elements if isinstance(first, Vector) else (first,)
    if isinstance(first, Pair):
        parts = (first.first, first.second)
    for part in parts:
        if part is not None and not isinstance(part, Register):
            raise PtxError(
                f"PTX line {instruction.line}: the destination is not a register: {instruction.text}", instruction.line
            )
        destinations.append(part)
    sources: list[Operand | None] = []
    for operand in instruction.operands[1:]:
        sources.extend(operand.elements if isinstance(operand, Vector) else (operand,))
    reads_carry, writes_carry = carry_of(instruction)
    if writes_carry:
        destinations.append(CARRY)
    if reads_carry:
        sources.append(CARRY)
    return tuple(destinations), tuple(sources)


_BLOCK = 8192


def blocked(function: Callable[..., Array], result: np.dtype[Any]) -> Callable[..., Array]:
    """The same function of lanes, applied to long arrays block by block, so that intermediate values stay in cache."""

    def run(*operands: Array) -> Array:
        for operand in operands:
            if operand.size > _BLOCK:
                break
        else:
            return function(*operands)
        size = max(operand.size for operand in operands)
        if any(operand.ndim > 1 for operand in operands):
            return function(*operands)
        whole: Array = np.empty(size, dtype=result)
        for start in range(0, size, _BLOCK):
            part = slice(start, start + _BLOCK)
            whole[part] = function(*[operand[part] if operand.size > 1 else operand for operand in operands])
        return whole

    return run


def select(condition: Array, yes: Array, no: Array) -> Array:
    """``np.where`` for bit patterns; with many lanes it avoids numpy's branch per lane."""
    if condition.size < 2048:
        return np.where(condition, yes, no)
    mask: Array = np.negative(condition.astype(yes.dtype))
    mask &= yes ^ no
    mask ^= no
    return mask


def halves(packed: Array) -> tuple[Array, Array]:
    """The low and high 16 bits of 32-bit values, as uint16."""
    return packed.astype(U16), (packed >> np.uint32(16)).astype(U16)


def join(low: Array, high: Array) -> Array:
    """32-bit values from two uint16 halves."""
    joined: Array = low.astype(U32) | (high.astype(U32) << np.uint32(16))
    return joined


def packed(run: Callable[..., Array]) -> Callable[..., Array]:
    """A function of 16-bit patterns, applied to both halves of 32-bit ones."""

    def both(*operands: Array) -> Array:
        pairs = [halves(operand) for operand in operands]
        return join(run(*(pair[0] for pair in pairs)), run(*(pair[1] for pair in pairs)))

    return both


def some(condition: Array) -> bool:
    """Whether a condition holds in any lane. numpy's ``any`` takes four times as long if the lanes are few."""
    return bool(condition if condition.ndim == 0 else np.count_nonzero(condition))
