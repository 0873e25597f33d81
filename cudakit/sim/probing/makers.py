"""Which lanes of an instruction make a value that a trap reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import Program
from cudakit.sim.probing.library_results import is_exponential, is_pole, selected_infinity, selected_nan
from cudakit.sim.probing.operands import (
    FORMATS,
    PACKED,
    SMALL,
    all_of,
    any_of,
    expression,
    number,
    special,
    values_of,
)
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.values.arithmetic import operand_types

# fmt: off
_MAKERS = frozenset((
    "add", "sub", "mul", "mad", "fma", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "cvt",
))
# fmt: on
NAN, INFINITE, OVERFLOW, DENORMAL, DIVISION = (
    "NaN made",
    "infinity made",
    "overflow",
    "denormal result",
    "division by zero",
)

# the text of the operation in some lanes (positions), by their number among them
Texts = Callable[[Any], Callable[[int], str]]
# the lanes, the kind of the report, its text, and whether the value stays wrong if it becomes finite
Made = tuple[Array, str, Texts, bool]


class Maker:
    """Finds the lanes in which an instruction made a value. ``made`` is called with the result's bits and the operands'
    bits, as ``operand_types`` lists them."""

    def made(self, bits: Any, operands: list[Any]) -> Iterator[Made]:
        raise NotImplementedError


def maker_of(kinds: frozenset[str], program: Program, instruction: Instruction) -> Maker | None:
    """The maker of a lane-wise instruction; None if it makes no value that these kinds report."""
    opcode = instruction.opcode
    if opcode in ("selp", "mov"):
        return _selected(kinds, program, instruction)
    if is_pole(instruction):
        kind = DIVISION if "division" in kinds else INFINITE if "inf" in kinds else None
        return None if kind is None else _Pole(kind)
    if is_exponential(program, instruction):
        kind = OVERFLOW if "overflow" in kinds else INFINITE if "inf" in kinds else None
        return None if kind is None else _Exponential(kind)
    results, sources = operand_types(instruction)
    target = results[0]
    if opcode in ("div", "rem") and target[0] in "us":
        return _IntegerDivision(instruction, target) if "division" in kinds else None
    if opcode not in _MAKERS:
        return None
    if target in SMALL:
        return _Saturation(instruction, target) if "overflow" in kinds else None
    if PACKED.get(target, target) not in FORMATS:
        return None
    if opcode == "cvt" and not all(PACKED.get(k, k) in FORMATS for k in sources):
        # from integers
        return _FromInteger(instruction, target, sources[0]) if "overflow" in kinds or "inf" in kinds else None
    return _Arithmetic(kinds, instruction, target, sources)


class _Arithmetic(Maker):
    def __init__(self, kinds: frozenset[str], instruction: Instruction, target: str, sources: tuple[str, ...]) -> None:
        self.kinds, self.instruction, self.target, self.sources = kinds, instruction, target, sources
        self.format = FORMATS[PACKED.get(target, target)]
        self.least = [FORMATS[PACKED.get(kind, kind)].least for kind in sources]
        self.flushes = "ftz" in instruction.modifiers
        self.saturates = "satfinite" in instruction.modifiers
        self.divides = instruction.opcode in ("div", "rcp", "rsqrt")

    def made(self, bits: Any, operands: list[Any]) -> Iterator[Made]:
        abnormal = special(self.target, bits)
        if not abnormal.any() and "denormal" not in self.kinds and not self.saturates:
            return
        results = values_of(self.target, bits)
        for half, result in enumerate(results):
            # cvt to a packed type has its high half first
            inputs = self._inputs(operands, half, len(results))
            for mask, kind, sticky in self._found(result, inputs):
                yield mask, kind, partial(self._texts, result, inputs), sticky

    def _inputs(self, operands: list[Any], half: int, halves: int) -> list[Array]:
        if self.instruction.opcode == "cvt" and halves == 2:
            return [values_of(self.sources[1 - half], operands[1 - half])[0]]
        found = [values_of(kind, bits) for kind, bits in zip(self.sources, operands, strict=True)]
        return [parts[half] if len(parts) > 1 else parts[0] for parts in found]

    def _found(self, y: Array, inputs: list[Array]) -> Iterator[tuple[Array, str, bool]]:
        kinds, opcode = self.kinds, self.instruction.opcode
        nan = any_of(np.isnan(x) for x in inputs)
        finite = all_of(np.isfinite(x) for x in inputs)
        infinite = np.isinf(y) & finite
        divided: Any = np.False_
        if self.divides:
            divisor = inputs[-1]
            zero = np.abs(divisor) < self.format.least if self.flushes else divisor == 0
            divided = zero & finite & ~np.isfinite(y)
            if "division" in kinds:
                yield np.asarray(divided), DIVISION, False
        if "overflow" in kinds:
            over = infinite & ~divided & np.asarray(opcode != "lg2")
            if self.saturates:
                over = over | (finite & (np.abs(inputs[0]) > self.format.most) & (np.abs(y) == self.format.most))
            yield np.asarray(over), OVERFLOW, self.saturates
        if "inf" in kinds:
            yield infinite, INFINITE, False
        if "nan" in kinds:
            yield np.isnan(y) & ~nan, NAN, False
        if "denormal" in kinds and (opcode != "cvt" or self.target != self.sources[0]):
            yield self._denormal(y, inputs, finite), DENORMAL, True

    def _denormal(self, y: Array, inputs: list[Array], finite: Array) -> Array:
        least, opcode = self.format.least, self.instruction.opcode
        normal = finite & all_of((x == 0) | (np.abs(x) >= y) for x, y in zip(inputs, self.least, strict=False))
        exact: Any = y
        if opcode in ("mul", "fma", "mad"):
            exact = inputs[0] * inputs[1] + (inputs[2] if len(inputs) > 2 else 0)
        elif opcode in ("add", "sub"):
            exact = inputs[0] + inputs[1] if opcode == "add" else inputs[0] - inputs[1]
        elif opcode == "div":
            exact = inputs[0] / inputs[1]
        elif opcode == "cvt":
            exact = inputs[0]
        elif opcode == "ex2" and self.flushes:
            exact = np.where(inputs[0] >= -149, np.exp2(inputs[0]), 0)
        small = (y != 0) & (np.abs(y) < least)
        return np.asarray(normal & (small | ((y == 0) & (exact != 0) & (np.abs(exact) < least))))

    def _texts(self, result: Array, inputs: list[Array], lanes: Array) -> Callable[[int], str]:
        kinds = [PACKED.get(kind, kind) for kind in self.sources]
        return texts(self.instruction, self.target, result, list(zip(inputs, kinds, strict=False)), lanes)


class _Saturation(Maker):
    """Conversions to 8-bit formats, of which results that are too large become the largest number."""

    def __init__(self, instruction: Instruction, target: str) -> None:
        self.instruction, self.target = instruction, target
        self.sources = operand_types(instruction)[1]

    def made(self, bits: Any, operands: list[Any]) -> Iterator[Made]:
        most = SMALL[self.target]
        for kind, given in zip(self.sources, operands, strict=True):
            if PACKED.get(kind, kind) not in FORMATS:
                continue
            for value in values_of(kind, given):
                # rounded to nearest, a little more than the largest number still becomes it
                over = np.isfinite(value) & (np.abs(value) > most * (1 + 2.0**-5))
                if over.any():
                    result = np.copysign(most, value)
                    inputs = [(value, PACKED.get(kind, kind))]
                    yield over, OVERFLOW, partial(texts, self.instruction, self.target, result, inputs), True


class _FromInteger(Maker):
    """Conversions from integers to half, which overflow."""

    def __init__(self, instruction: Instruction, target: str, source: str) -> None:
        self.instruction, self.target, self.source = instruction, target, source

    def made(self, bits: Any, operands: list[Any]) -> Iterator[Made]:
        if not special(self.target, bits).any():
            return
        result = values_of(self.target, bits)[0]
        value = integers(self.source, operands[0]).astype(np.float64)
        inputs = [(value, self.source)]
        yield np.isinf(result), OVERFLOW, partial(texts, self.instruction, self.target, result, inputs), False


class _IntegerDivision(Maker):
    def __init__(self, instruction: Instruction, kind: str) -> None:
        self.instruction, self.kind = instruction, kind

    def made(self, bits: Any, operands: list[Any]) -> Iterator[Made]:
        zero = np.asarray(operands[1] == 0)
        if zero.any():
            inputs = [(integers(self.kind, o).astype(np.float64), self.kind) for o in operands]
            result = integers(self.kind, bits).astype(np.float64)
            yield zero, DIVISION, partial(texts, self.instruction, self.kind, result, inputs), True


class _Selected(Maker):
    """A literal that the math library selects as the result of a function. ``chosen``: the predicates for which an
    operand is that literal."""

    def __init__(self, kind: str, chosen: list[bool], text: str) -> None:
        self.kind, self.chosen, self.text = kind, chosen, text

    def made(self, bits: Any, operands: list[Any]) -> Iterator[Made]:
        mask = np.True_ if len(operands) < 3 else any_of([operands[2] == one for one in self.chosen])
        if mask.any():
            yield np.asarray(mask), self.kind, lambda lanes: lambda n: self.text, False


class _Pole(Maker):
    """The infinity of pow(0, -1)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def made(self, bits: Any, operands: list[Any]) -> Iterator[Made]:
        mask = np.asarray(operands[0] & np.uint32(0x7FFFFFFF) == 0)
        if mask.any():
            yield mask, self.kind, lambda lanes: lambda n: "pow(0.0, a negative number) = inf", False


class _Exponential(Maker):
    """The infinity of exp of a double."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def made(self, bits: Any, operands: list[Any]) -> Iterator[Made]:
        value = values_of("f64", operands[0])[0]
        mask = np.isfinite(value)
        if mask.any():
            yield mask, self.kind, partial(self._texts, value), False

    @staticmethod
    def _texts(value: Array, lanes: Array) -> Callable[[int], str]:
        kept = value if value.ndim == 0 else value[lanes]
        return lambda n: f"exp({number(float(kept if kept.ndim == 0 else kept[n]))}) = inf"


def _selected(kinds: frozenset[str], program: Program, instruction: Instruction) -> Maker | None:
    """The maker of a selp or mov of a literal as the math library has it."""
    nan = selected_nan(instruction)
    if any(nan):
        chosen = [value for value, is_nan in zip((True, False), nan, strict=False) if is_nan]
        return _Selected(NAN, chosen, "the result of the function is nan") if "nan" in kinds else None
    found = selected_infinity(program, instruction) if instruction.opcode == "selp" else None
    if found is None:
        return None
    first, text = found
    if text.startswith("pow"):
        kind = OVERFLOW if "overflow" in kinds else INFINITE if "inf" in kinds else None
        return None if kind is None else _Selected(kind, [first], text)
    return _Selected(INFINITE, [first], text) if "inf" in kinds else None


def integers(kind: str, bits: Any) -> Array:
    """Bits as numbers of an integer type."""
    given = np.asarray(bits)
    found: Array = given.view(f"i{given.dtype.itemsize}") if kind.startswith("s") else given
    return found


def texts(
    instruction: Instruction, target: str, result: Array, inputs: list[tuple[Array, str]], lanes: Array
) -> Callable[[int], str]:
    """The text of an operation in some lanes: a function of the number of the lane among them."""
    kept = [(value if value.ndim == 0 else value[lanes], kind) for value, kind in inputs]
    made = result if result.ndim == 0 else result[lanes]

    def text(place: int) -> str:
        values = [number(float(v if v.ndim == 0 else v[place]), k) for v, k in kept]
        outcome = number(float(made if made.ndim == 0 else made[place]), PACKED.get(target, target))
        return f"{expression(instruction, values, target)} = {outcome}"

    return text
