"""Float operands and results of instructions as float64, and their text in reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import Program, writes_of
from cudakit.sim.ptx.ir import Immediate, Instruction, Operand, Register, Vector
from cudakit.sim.values.lanewise import constant, storage, width
from cudakit.sim.values.rounding import bfloat_to_f32, half_to_f32


class FloatFormat(NamedTuple):
    """A format: its C name, the exponent of its unit roundoff (float: -24), its largest and its smallest normal number,
    and the mask of its exponent."""

    name: str
    unit: int
    most: float
    least: float
    exponent: int


FORMATS = {
    "f16": FloatFormat("half", -11, 65504.0, 2.0**-14, 0x7C00),
    "bf16": FloatFormat("bfloat16", -8, 3.3895313892515355e38, 2.0**-126, 0x7F80),
    "f32": FloatFormat("float", -24, 3.4028234663852886e38, 2.0**-126, 0x7F800000),
    "tf32": FloatFormat("tf32", -11, 3.4028234663852886e38, 2.0**-126, 0x7F800000),
    "f64": FloatFormat("double", -53, 1.7976931348623157e308, 2.0**-1022, 0x7FF0000000000000),
}
PACKED = {"f16x2": "f16", "bf16x2": "bf16"}
# the spaces of the parameters of kernels and functions
PARAMETERS = frozenset(("param", "param::func", "param::entry"))
# the largest numbers of the formats to which only cvt converts
SMALL = {"e4m3x2": 448.0, "e5m2x2": 57344.0}
_SYMBOLS = {"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "rem": "{0} % {1}"}
_SYMBOLS |= {"fma": "{0} * {1} + {2}", "mad": "{0} * {1} + {2}", "rcp": "1.0 / {0}", "rsqrt": "1.0 / sqrt({0})"}
_SYMBOLS |= {"ex2": "exp2({0})", "lg2": "log2({0})", "shl": "{0} << {1}", "neg": "-{0}"}

# by program: the literals in its registers
_LITERALS: WeakKeyDictionary[Program, dict[str, Immediate]] = WeakKeyDictionary()

# by program: the instructions that write its registers
_WRITERS: WeakKeyDictionary[Program, dict[str, list[Instruction]]] = WeakKeyDictionary()

Read = Callable[[Any], Array]


def elements_of(operand: Operand | None) -> list[Operand | None]:
    """The elements of a vector, or the operand itself."""
    return list(operand.elements) if isinstance(operand, Vector) else [operand]


def size_of(instruction: Instruction) -> int:
    """The bytes of an element of a load, store or atomic."""
    return (
        max((width(m) for m in instruction.modifiers if m[0] in "busf" and m not in ("bulk", "sys")), default=32) // 8
    )


def float_size(kind: str) -> int:
    """The bytes of a float of a type; of one half of a packed type."""
    return {"f16": 2, "bf16": 2, "f64": 8}.get(PACKED.get(kind, kind), 4)


def values_of(kind: str, bits: Any) -> tuple[Array, ...]:
    """Patterns of a float type as float64; those of a packed type as its low and its high halves."""
    if kind in PACKED:
        low, high = np.asarray(bits).astype(np.uint16), (bits >> np.uint32(16)).astype(np.uint16)
        return (*values_of(PACKED[kind], low), *values_of(PACKED[kind], high))
    if kind == "f16":
        return (half_to_f32(np.asarray(bits)).astype(np.float64),)
    if kind == "bf16":
        return (bfloat_to_f32(np.asarray(bits)).astype(np.float64),)
    if kind == "f64":
        return (np.asarray(bits).view(np.float64),)
    return (np.asarray(bits).view(np.float32).astype(np.float64),)


def special(kind: str, bits: Any) -> Array:
    """Whether each pattern is infinite or NaN; for a packed type, one of its halves."""
    if kind in PACKED:
        mask = FORMATS[PACKED[kind]].exponent
        low, high = np.uint32(mask), np.uint32(mask << 16)
        return np.asarray((bits & low == low) | (bits & high == high))
    mask = np.asarray(bits).dtype.type(FORMATS[kind].exponent)
    return np.asarray(bits & mask == mask)


def reader(program: Program, operand: Operand | None, kind: str) -> Read | None:
    """A function from the registers to the bits of an operand in the storage of a type; None if it is not a register
    or a literal."""
    if isinstance(operand, Immediate):
        bits = constant(operand, kind)
        return lambda r: bits
    if isinstance(operand, Register):
        slot, want = program.slots[operand.name], storage(kind)
        return lambda r: r[slot] if r[slot].dtype == want else r[slot].astype(want)
    return None


def writers(program: Program) -> dict[str, list[Instruction]]:
    """The instructions that write each register of a program."""
    known = _WRITERS.get(program)
    if known is None:
        known = _WRITERS[program] = {}
        for instruction in program.function.instructions:
            for register in writes_of(instruction):
                known.setdefault(register.name, []).append(instruction)
    return known


def literals(program: Program) -> dict[str, Immediate]:
    """The registers that hold a literal: only one instruction writes them, a move."""
    known = _LITERALS.get(program)
    if known is None:
        known = {}
        for name, found in writers(program).items():
            only = found[0]
            source = only.operands[1] if only.opcode == "mov" and len(only.operands) > 1 else None
            if len(found) == 1 and only.guard is None and isinstance(source, Immediate):
                known[name] = source
        _LITERALS[program] = known
    return known


def literal_of(program: Program, operand: Operand | None) -> Immediate | None:
    """The literal that an operand is, or that its register holds."""
    if isinstance(operand, Register):
        return literals(program).get(operand.name)
    return operand if isinstance(operand, Immediate) else None


def number(value: float, kind: str = "f64") -> str:
    """A number as text, with the digits that its format needs."""
    if np.isnan(value) or np.isinf(value):
        return str(float(value))
    if kind == "f32":
        return str(np.float32(value))
    if kind in ("f16", "bf16"):
        return f"{value:.5g}"
    return f"{value:.0f}" if kind[0] in "us" else str(float(value))


def expression(instruction: Instruction, values: list[str], target: str) -> str:
    """An operation with its operands in C's words: ``0.0 / 0.0``. ``target``: the type of its result."""
    opcode = instruction.opcode
    if opcode == "cvt":
        name = "fp8" if target in SMALL else FORMATS[PACKED.get(target, target)].name
        return f"({name}) {values[0]}"
    if opcode in _SYMBOLS and len(values) >= _SYMBOLS[opcode].count("{"):
        return _SYMBOLS[opcode].format(*(f"({v})" if v.startswith("-") and n else v for n, v in enumerate(values)))
    return f"{opcode}({', '.join(values)})"


def any_of(masks: Iterable[Any]) -> Array:
    """The mask of the lanes for which one of some masks holds; each is an array or one value for all lanes."""
    found: Array = reduce(np.logical_or, masks)
    return found


def all_of(masks: Iterable[Any]) -> Array:
    """The mask of the lanes for which all of some masks hold."""
    found: Array = reduce(np.logical_and, masks)
    return found
