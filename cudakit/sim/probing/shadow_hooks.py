"""Hooks that carry the float64 shadows through arithmetic and moves, and count the errors of each line."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.instructions.undefined import ShuffleReads
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.probes import InstructionHook
from cudakit.sim.lockstep.program import Program, writes_of
from cudakit.sim.probing.formulas import formula_of, is_conversion, operand_values
from cudakit.sim.probing.losses import LEAST, OVERFLOWED, LineAccuracy, Worst, bits_of_loss, relative_error, threshold
from cudakit.sim.probing.operands import FORMATS, PACKED, expression, float_size, number, reader, values_of
from cudakit.sim.probing.registers import Hook
from cudakit.sim.probing.shadow_access import AtomicHook, LoadHook, ParamHook, StoreHook, parameter
from cudakit.sim.probing.shadow_memory import Shadow
from cudakit.sim.probing.shadow_values import Parts, Shadows, merged
from cudakit.sim.ptx.ir import Instruction, Register, Vector
from cudakit.sim.values.arithmetic import flatten, operand_types
from cudakit.sim.values.lanewise import BUILDERS, storage

_BITS = frozenset(("and", "or", "xor", "lop3", "add", "sub"))
_MANTISSA = np.uint32(0x007FFFFF)
# an operation that loses less than this factor has not made an error that another line began
_OWN = 4.0


def hook_of(shadows: Shadows, program: Program, instruction: Instruction) -> InstructionHook | None:
    """The hook of an instruction that is followed; None for the others."""
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode in ("ld", "ldu", "st"):
        if parameter(program, instruction) is not None:
            return ParamHook(shadows, program, instruction)
        kind = LoadHook if opcode != "st" else StoreHook
        return kind(shadows, program, instruction)
    if opcode in ("atom", "red") and "add" in modifiers and "async" not in modifiers:
        return AtomicHook(shadows, program, instruction) if any(m in FORMATS for m in modifiers) else None
    if opcode == "shfl":
        return _ShuffleHook(shadows, program, instruction)
    if opcode not in BUILDERS or not writes_of(instruction):
        return None
    if opcode in ("mov", "selp"):
        return _MoveHook(shadows, program, instruction)
    kinds = operand_types(instruction)[0]
    if opcode in ("min", "max") and PACKED.get(kinds[0], kinds[0]) in FORMATS:
        return _ArithmeticHook(shadows, program, instruction)
    if formula_of(program, instruction) is not None:
        return _ArithmeticHook(shadows, program, instruction)
    if opcode in _BITS and kinds[0] in ("b32", "s32", "u32") and len(kinds) == 1:
        return _BitsHook(shadows, program, instruction)
    return None


class _ShadowHook(Hook):
    def __init__(self, shadows: Shadows, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.shadows = shadows

    def parts(self, f: Fragment, operand: Any, r: Any) -> Parts:
        """The shadows in an operand."""
        if not isinstance(operand, Register) or operand.type == "pred":
            return {}
        slot = f.program.slots[operand.name]
        return self.shadows.parts(f, slot, r[slot].dtype.itemsize)

    def put(self, f: Fragment, register: Any, parts: Parts) -> None:
        """Set the shadows in a result."""
        if isinstance(register, Register) and register.type != "pred":
            width = storage(register.type).itemsize
            self.shadows.put(f, f.program.slots[register.name], width, parts, self.held)


class _MoveHook(_ShadowHook):
    """mov, also with vectors, which pack and unpack a register, and selp."""

    def __init__(self, shadows: Shadows, program: Program, instruction: Instruction) -> None:
        super().__init__(shadows, program, instruction)
        target, source = instruction.operands[:2]
        self.targets = list(target.elements) if isinstance(target, Vector) else [target]
        self.sources = list(source.elements) if isinstance(source, Vector) else [source]
        self.choice: Any = None
        if instruction.opcode == "selp":
            self.sources = list(instruction.operands[1:3])
            self.choice = reader(program, instruction.operands[3], "pred")
        self.found: list[Parts] = []

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        given = [self.parts(f, operand, r) for operand in self.sources]
        if self.choice is not None:
            self.found = [_chosen(np.broadcast_to(self.choice(r), (f.lanes.count,)), *given)]
        elif len(self.sources) == len(self.targets):
            self.found = given
        elif len(self.targets) == 1:
            register = self.targets[0]
            step = storage(register.type).itemsize // len(self.sources) if isinstance(register, Register) else 0
            packed = enumerate(given)
            self.found = [{(at + n * step, w): s for n, parts in packed for (at, w), s in parts.items()}]
        else:
            first = self.sources[0]
            step = storage(first.type).itemsize // len(self.targets) if isinstance(first, Register) else 1
            self.found = [
                {(at - n * step, w): s for (at, w), s in given[0].items() if n * step <= at < (n + 1) * step}
                for n in range(len(self.targets))
            ]

    def after(self, f: Fragment) -> None:
        for register, parts in zip(self.targets, self.found, strict=False):
            self.put(f, register, parts)
        self.found = []


def _chosen(condition: Array, yes: Parts, no: Parts) -> Parts:
    """The shadows of a selection between two registers."""
    found: Parts = {}
    for part in yes.keys() | no.keys():
        a, b = yes.get(part), no.get(part)
        values = np.where(condition, np.nan if a is None else a.values, np.nan if b is None else b.values)
        codes = np.where(condition, np.int32(0) if a is None else a.codes, np.int32(0) if b is None else b.codes)
        found[part] = Shadow(values, codes, max(s.unit for s in (a, b) if s is not None))
    return found


class _ShuffleHook(_ShadowHook):
    def __init__(self, shadows: Shadows, program: Program, instruction: Instruction) -> None:
        super().__init__(shadows, program, instruction)
        self.reads = ShuffleReads(program.slots, instruction)
        self.found: Parts = {}

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        self.found = {}
        given = self.parts(f, self.instruction.operands[1], r)
        if given:
            places, _ = self.reads(f, r)
            for part, shadow in given.items():
                values = f.lanes.shuffled(shadow.values, places, np.nan)
                codes = f.lanes.shuffled(shadow.codes, places)
                self.found[part] = Shadow(values, codes, shadow.unit)

    def after(self, f: Fragment) -> None:
        register = writes_of(self.instruction)[0]
        self.put(f, register, self.found)
        self.found = {}


class _BitsHook(_ShadowHook):
    """Integer operations on the bits of a float that only change its sign and exponent scale its shadow: functions of
    the math library take numbers apart so."""

    def __init__(self, shadows: Shadows, program: Program, instruction: Instruction) -> None:
        super().__init__(shadows, program, instruction)
        self.target = writes_of(instruction)[0]
        self.sources = [o for o in instruction.operands[1:] if isinstance(o, Register)]
        self.found: list[tuple[Any, Shadow]] = []

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        self.found = []
        for operand in self.sources:
            shadow = self.parts(f, operand, r).get((0, 4))
            if shadow is not None:
                self.found.append((r[f.program.slots[operand.name]], shadow))

    def after(self, f: Fragment) -> None:
        parts: Parts = {}
        bits = f.regs[f.program.slots[self.target.name]]
        for old, shadow in self.found:
            (new,), (given,) = values_of("f32", bits), values_of("f32", old)
            ratio = new / given
            same = (bits & _MANTISSA == old & _MANTISSA) & np.isfinite(ratio) & (ratio != 0)
            if same.any():
                parts[0, 4] = Shadow(np.where(same, shadow.values * ratio, np.nan), shadow.codes, shadow.unit)
                break
        self.put(f, self.target, parts)
        self.found = []


class _Operation(NamedTuple):
    """The result of an operation and its shadow, and the operands, their exact values and their shadows."""

    actual: Array
    shadow: Array
    values: list[Array]
    exact: list[Array]
    given: list[Shadow | None]


def _vanishes(actual: Array, shadow: Array, values: list[Array], least: float) -> Array:
    """The lanes in which an infinite operand does no harm: a quotient is 0 instead of a number below the least normal
    one of its format."""
    infinite: Array = reduce(np.logical_or, [np.isinf(v) for v in values])
    return infinite & (np.abs(actual) < least) & (np.abs(shadow) < least)


def _counted(done: _Operation, errors: Array) -> Array:
    """The errors that count for a line: not those of infinities and subnormal numbers, of which the results of the
    kernel may be correct."""
    counted = np.minimum(errors, relative_error(done.actual, done.shadow))
    return np.where(np.isinf(done.actual), 0.0, counted)


def _operand_error(done: _Operation, unit: int) -> Array:
    """The largest relative error of an operand in each lane, at least the unit roundoff."""
    errors = [relative_error(v, e, LEAST) for v, e in zip(done.values, done.exact, strict=True)]
    largest: Array = reduce(np.maximum, errors, np.full(done.actual.shape, 2.0**unit))
    return largest


class _ArithmeticHook(_ShadowHook):
    """An instruction between floats: computes the shadow of its result, and the error."""

    def __init__(self, shadows: Shadows, program: Program, instruction: Instruction) -> None:
        super().__init__(shadows, program, instruction)
        results, sources = flatten(instruction)
        kinds, self.kinds = operand_types(instruction)
        self.register, self.kind = results[0], kinds[0]
        self.format = FORMATS[PACKED.get(self.kind, self.kind)]
        self.width = float_size(self.kind)
        self.sources = sources
        self.reads = [reader(program, o, k) for o, k in zip(sources, self.kinds, strict=True)]
        self.slots = [program.slots[o.name] if isinstance(o, Register) else None for o in sources]
        self.formula = formula_of(program, instruction)
        self.converts = is_conversion(instruction)
        self.packs = instruction.opcode == "cvt" and self.kind in PACKED
        self.sums = instruction.opcode in ("add", "sub", "fma", "mad")
        self.old: list[Any] = []
        self.given: list[Shadow | None] = []

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        self.old = [None if read is None else read(r) for read in self.reads]
        halves = 2 if self.kind in PACKED and not self.packs else 1
        self.given = [self._shadow(f, n, half) for half in range(halves) for n in range(len(self.slots))]

    def _shadow(self, f: Fragment, source: int, half: int) -> Shadow | None:
        slot, kind = self.slots[source], self.kinds[source]
        width = float_size(kind)
        return None if slot is None else self.shadows.get(f, slot, (half * 2 if width == 2 else 0, width))

    def after(self, f: Fragment) -> None:
        parts: Parts = {}
        results = values_of(self.kind, f.regs[f.program.slots[self.register.name]]) if self.register else ()
        inputs = [operand_values(kind, bits) for kind, bits in zip(self.kinds, self.old, strict=True)]
        count = len(inputs)
        for half, result in enumerate(results):
            if self.packs:  # cvt has the high half first
                values, given = [inputs[1 - half][0]], [self.given[1 - half]]
            else:
                values = [v[half] if len(v) > 1 else v[0] for v in inputs]
                given = self.given[half * count : (half + 1) * count]
            if (self.width == 8 and not any(given)) or (self.converts and np.all(result == values[0])):
                continue
            parts[half * 2 if self.width == 2 else 0, self.width] = self._result(f, result, values, given)
        self.put(f, self.register, parts)
        self.old, self.given = [], []

    def _result(self, f: Fragment, result: Array, values: list[Array], given: list[Shadow | None]) -> Shadow:
        shape = (f.lanes.count,)
        exact = [
            v if s is None else np.where(np.isnan(s.values), v, s.values) for v, s in zip(values, given, strict=True)
        ]
        if self.formula is not None:
            shadow = np.broadcast_to(self.formula(*exact), shape)
        else:
            # min and max choose as the kernel does
            shadow = np.broadcast_to(result, shape)
            for value, ideal in zip(values, exact, strict=True):
                shadow = np.where(result == value, ideal, shadow)
        actual = np.broadcast_to(result, shape)
        unit = max([self.format.unit, *(s.unit for s in given if s is not None)])
        if self.width == 8:
            unit = max(s.unit for s in given if s is not None)
        # an infinity keeps its finite shadow, so that the errors of later results count
        usable = np.isfinite(shadow) & ~np.isnan(actual)
        shadow = np.where(usable, shadow, np.nan)
        if any(np.isinf(v).any() for v in values):
            shadow = np.where(_vanishes(actual, shadow, values, self.format.least), actual, shadow)
        errors = relative_error(actual, np.where(usable, shadow, actual), LEAST)
        if self.held is not None:
            errors = np.where(self.held, errors, 0.0)
        codes = self._codes(f, _Operation(actual, shadow, values, exact, given), errors, unit)
        return Shadow(shadow, codes, unit)

    def _codes(self, f: Fragment, done: _Operation, errors: Array, unit: int) -> Array:
        """Count the operation for its line; returns the codes of the results."""
        code = self.shadows.code(f, self.instruction)
        line = self.shadows.line(code)
        low, high = threshold(unit, stagnation=True), threshold(unit)
        worst = float(errors.max())
        counted = errors if worst < low else _counted(done, errors)
        line.count(counted if self.held is None else counted[self.held])
        absorbs: Array | None = None
        if self.sums:
            absorbs = self._absorbed(line, done.actual, done.values)
        if worst < low:
            line.error = max(line.error, worst) if not line.operation else line.error
            return np.zeros(len(errors), np.int32)
        inherited = [s.codes for s in done.given if s is not None and s.codes.any()]
        codes = reduce(merged, inherited, np.zeros(len(errors), np.int32))
        codes = np.where((errors >= high) | ((codes < 0) & (errors >= low)), codes, np.int32(0))
        operand_error = _operand_error(done, unit)
        lost = errors / operand_error
        # a sum that has dropped an addend is not to blame for what other lines lose later
        other = (codes < 0) & (codes != -code) & (lost >= _OWN)
        fresh = (errors >= high) & ((codes == 0) | other | (lost >= 2.0 ** bits_of_loss(unit)))
        own = np.where(np.isinf(done.actual), np.int32(code + OVERFLOWED), np.int32(code))
        codes = np.where(fresh, own, codes)
        if absorbs is not None:
            codes = np.where(absorbs & (errors >= low) & (codes == 0), np.int32(-code), codes)
        line.blame(counted[np.abs(codes) == code], unit)
        line.bits_at_once = max(line.bits_at_once, float(np.log2((counted / operand_error).max(initial=1.0))))
        worst = float(counted.max())
        if worst >= low and (worst > line.error or not line.operation):
            line.show(self._worst(f, done, counted, unit))
        self._note_uncounted(f, line, done, np.where(fresh & (counted < low), errors, 0.0), unit)
        return codes

    def _note_uncounted(self, f: Fragment, line: LineAccuracy, done: _Operation, errors: Array, unit: int) -> None:
        """Keep the first overflow and the first underflow of a line; the errors of other lanes are 0."""
        infinite = np.isinf(done.actual)
        overflows, underflows = np.where(infinite, errors, 0.0), np.where(infinite, 0.0, errors)
        if line.overflow is None and overflows.any():
            line.overflow = self._worst(f, done, overflows, unit)
        if line.underflow is None and underflows.any():
            line.underflow = self._worst(f, done, underflows, unit)

    def _absorbed(self, line: LineAccuracy, actual: Array, values: list[Array]) -> Array:
        """The lanes in which an addend is not 0 and does not change the sum."""
        *factors, accumulator = values
        addend = factors[0] * factors[1] if len(factors) == 2 else factors[0]
        if len(factors) == 1:
            small = np.abs(addend) < np.abs(accumulator)
            addend, accumulator = np.where(small, addend, accumulator), np.where(small, accumulator, addend)
        adds = np.isfinite(actual) & (addend != 0)
        if self.held is not None:
            adds = adds & self.held
        found = np.asarray((np.abs(actual) == np.abs(accumulator)) & adds)
        line.addends += int(np.count_nonzero(adds))
        line.absorbed += int(np.count_nonzero(found))
        return found

    def _worst(self, f: Fragment, done: _Operation, errors: Array, unit: int) -> Worst:
        """The operation of the lane with the largest error, for reports."""
        place = int(np.argmax(errors))
        kind = PACKED.get(self.kind, self.kind)
        kinds = [PACKED.get(given, given) for given in self.kinds]
        texts = [
            number(float(np.broadcast_to(v, done.actual.shape)[place]), given)
            for v, given in zip(done.values, kinds, strict=False)
        ]
        operation = expression(self.instruction, texts, self.kind)
        result, exact = number(float(done.actual[place]), kind), f"{float(done.shadow[place]):.9g}"
        return Worst(float(errors[place]), unit, *f.lane_place(place), operation, result, exact)
