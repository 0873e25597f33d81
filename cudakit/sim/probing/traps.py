"""Traps: stop at the instruction that made a NaN, an infinity, an overflow, a denormal, or that divided by zero.

The value counts once it is used: stored to global memory, an operand of an atomic, an address, or, if it is NaN, the
operand of a comparison that decides a branch (see made.py). It is followed through registers, shared and local memory,
shuffles and matrix products. It is dropped if an operation with it has a correct result: a finite one, such as 1 / inf.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.probes import InstructionHook
from cudakit.sim.lockstep.program import Program, writes_of
from cudakit.sim.lockstep.report import KernelReport
from cudakit.sim.probing.atomic_traps import AtomicHook
from cudakit.sim.probing.made import Trace
from cudakit.sim.probing.makers import Maker, maker_of
from cudakit.sim.probing.operands import FORMATS, PACKED, all_of, any_of, literal_of, reader, special, values_of
from cudakit.sim.probing.registers import CallHook, Hook, key_of
from cudakit.sim.probing.warp_traps import AccessHook, MatrixAccessHook, ProductHook, ShuffleHook
from cudakit.sim.ptx.ir import Instruction, Register
from cudakit.sim.ptx.opcodes import row_of
from cudakit.sim.values.arithmetic import flatten, operand_types
from cudakit.sim.values.lanewise import BUILDERS

KINDS = ("nan", "inf", "overflow", "denormal", "division")
_INFINITY = 0x7F800000


class ValueTraps:
    """The probe of traps; ``kinds`` are some of ``KINDS``."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.trace = Trace(kinds)

    def begin(self, function: Any, run: Any) -> bool:
        self.trace.begin(run)
        return True

    def keeps(self, program: Program) -> Iterable[int]:
        return ()

    def hook(self, program: Program, instruction: Instruction) -> InstructionHook | None:
        opcode, row, trace = instruction.opcode, row_of(instruction), self.trace
        if opcode in ("call", "ret"):
            return CallHook(program, instruction, lambda f: [trace.states.of(f).registers])
        if opcode in ("bra", "brx"):
            return _BranchHook(trace, program, instruction) if instruction.guard or opcode == "brx" else None
        if opcode in ("ldmatrix", "stmatrix") or (opcode == "wmma" and row.memory is not None):
            return MatrixAccessHook(trace, program, instruction)
        if opcode in ("atom", "red") and "async" not in instruction.modifiers:
            return AtomicHook(trace, program, instruction)
        if row.memory is not None:
            return AccessHook(trace, program, instruction)
        if opcode == "shfl":
            return ShuffleHook(trace, program, instruction)
        if opcode == "mma" or (opcode == "wmma" and "mma" in instruction.modifiers):
            return ProductHook(trace, program, instruction)
        if opcode in BUILDERS:
            return LaneHook(trace, program, instruction)
        return _ClearHook(trace, program, instruction) if writes_of(instruction) else None

    def fault(self, f: Any, position: int, instruction: Instruction | None, report: KernelReport) -> None: ...

    def end(self, run: Any) -> None:
        self.trace.end(run)


class _ClearHook(Hook):
    """The results of an instruction that is not followed have no codes."""

    def __init__(self, trace: Trace, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.trace = trace
        self.slots = [program.slots[o.name] for o in writes_of(instruction)]

    def after(self, f: Fragment) -> None:
        for slot in self.slots:
            self.trace.put(f, slot, None, self.held)


class _BranchHook(Hook):
    """Reports a branch that a comparison with a NaN decides."""

    ends = False

    def __init__(self, trace: Trace, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.trace = trace

    def __call__(self, f: Fragment, r: Any) -> None:
        if self.guard is None:
            return
        codes = self.trace.codes(f, self.guard[0])
        if codes is not None and codes.any():
            self.trace.events(f).fail(f, self.instruction, codes, "decides a branch")


class LaneHook(Hook):
    """An instruction whose results in a lane depend on the operands of that lane only."""

    def __init__(self, trace: Trace, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.trace = trace
        results, sources = flatten(instruction)
        kinds, source_kinds = operand_types(instruction)
        self.kind = kinds[0]
        self.results = [program.slots[o.name] for o in results if isinstance(o, Register)]
        self.is_float = PACKED.get(self.kind, self.kind) in FORMATS
        self.reads = [reader(program, o, k) for o, k in zip(sources, source_kinds, strict=True)]
        self.source_kinds = source_kinds
        self.slots = [program.slots[o.name] if isinstance(o, Register) else None for o in sources]
        self.floats = [PACKED.get(k, k) in FORMATS for k in source_kinds]
        self.maker: Maker | None = maker_of(trace.kinds, program, instruction)
        self.chooses = instruction.opcode in ("selp", "slct")
        self.integer_bounds = instruction.opcode in ("min", "max") and not self.is_float
        # comparisons that ask whether a value is NaN or infinite handle it
        literal = [literal_of(program, o) for o in sources]
        asks = instruction.opcode == "testp" or not {"nan", "num"}.isdisjoint(instruction.modifiers)
        asks |= any(one is not None and one.bits & 0x7FFFFFFF == _INFINITY for one in literal)
        asks |= len(self.slots) > 1 and self.slots[0] is not None and self.slots[0] == self.slots[1]
        self.compares = instruction.opcode in ("setp", "set", "testp")
        self.asks = self.compares and asks
        self.old: list[Any] = []
        self.codes: list[Array | None] = []

    def __call__(self, f: Fragment, r: Any) -> None:
        super().__call__(f, r)
        registers = self.trace.states.of(f).registers
        self.codes = []
        if registers.tables:
            self.codes = [None if s is None else registers.read(f, key_of(f, s)) for s in self.slots]
        coded = any(codes is not None for codes in self.codes)
        if not coded:
            self.codes = []
        self.old = [None if read is None else read(r) for read in self.reads] if coded or self.maker else []

    def after(self, f: Fragment) -> None:
        codes = self._inherited(f) if self.codes else None
        if self.maker is not None:
            bits = f.regs[self.results[0]]
            for made, kind, text, sticky in self.maker.made(bits, self.old):
                mask = np.broadcast_to(made, (f.lanes.count,))
                if self.held is not None:
                    mask = mask & self.held
                if codes is not None:
                    mask = mask & (codes == 0)
                if mask.any():
                    lanes = np.flatnonzero(mask)
                    code = self.trace.note(f, self.instruction, kind, mask, text(lanes), sticky)
                    new = np.where(mask, np.int32(code), np.int32(0))
                    codes = new if codes is None else np.where(mask, new, codes)
        for slot in self.results:
            self.trace.put(f, slot, codes, self.held)
        self.old = []

    def _inherited(self, f: Fragment) -> Array | None:
        """The codes of the result that it has from the operands."""
        count = f.lanes.count
        if self.chooses:
            yes, no = self.codes[0], self.codes[1]
            if yes is None and no is None:
                return None
            condition = self.old[2]
            if self.instruction.opcode == "slct":
                signed = condition.view(np.float32) if self.floats[2] else condition.view(np.int32)
                condition = signed >= 0
            zero = np.int32(0)
            picked = np.where(condition, zero if yes is None else yes, zero if no is None else no)
            return np.broadcast_to(picked, (count,))
        if self.asks:
            return None
        found: Array | None = None
        for codes, is_float, old, kind in zip(self.codes, self.floats, self.old, self.source_kinds, strict=True):
            if codes is None:
                continue
            if self.compares and is_float:
                nan = any_of(np.isnan(v) for v in values_of(kind, old))
                codes = np.where(nan, codes, np.int32(0))
            elif self.compares and self.instruction.modifiers[-1] != "pred":
                if kind != "pred":
                    continue
            elif self.is_float and is_float:
                bits = f.regs[self.results[0]]
                keeps = special(self.kind, bits) | self._stays(f, codes, bits, old)
                codes = np.where(keeps, codes, np.int32(0))
            elif self.integer_bounds:
                codes = np.where(f.regs[self.results[0]] == old, codes, np.int32(0))
            found = codes if found is None else np.where(found > 0, found, codes)
        return found

    def _stays(self, f: Fragment, codes: Array, bits: Any, old: Any) -> Array:
        """Whether a finite value stays wrong: a denormal that was not added to a larger number, and a saturated value
        that was only moved or scaled."""
        sticky = self.trace.events(f).sticky[codes]
        if not sticky.any() or self.instruction.opcode in ("mul", "div", "rcp", "sqrt", "rsqrt", "mov", "cvt"):
            return sticky
        if self.instruction.opcode in ("min", "max"):
            return np.asarray(sticky & (bits == old))
        tiny = all_of(np.abs(v) < 2.0**-100 for v in values_of(self.kind, bits))
        return np.asarray(sticky & tiny)
