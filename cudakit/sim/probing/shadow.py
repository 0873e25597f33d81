"""Runs a kernel next to a shadow of itself in float64: each float carries the value that it would have unrounded.

Branches, roundings to integers and selections follow the kernel's own values. A shadow restarts from the kernel's
value at instructions that are not followed, such as matrix products: ``Shadows.restarts``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.probes import InstructionHook
from cudakit.sim.lockstep.program import Program, writes_of
from cudakit.sim.lockstep.report import KernelReport
from cudakit.sim.probing.registers import CallHook, Hook
from cudakit.sim.probing.shadow_hooks import hook_of
from cudakit.sim.probing.shadow_values import Shadows
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.ptx.opcodes import name_of, row_of

_PRODUCTS = ("mma", "wmma", "wgmma")
_FOLLOWED = ("ld", "ldu", "st", "atom", "red")


class ShadowProbe:
    """The probe of a float64 shadow."""

    def __init__(self) -> None:
        self.shadows = Shadows()

    def begin(self, function: Any, run: Any) -> bool:
        self.shadows.memory.forget_freed()
        return True

    def keeps(self, program: Program) -> Iterable[int]:
        return ()

    def hook(self, program: Program, instruction: Instruction) -> InstructionHook | None:
        opcode = instruction.opcode
        if opcode in ("call", "ret"):
            return CallHook(program, instruction, lambda f: self.shadows.registers.of(f).tables)
        made = hook_of(self.shadows, program, instruction)
        if made is not None:
            return made
        written = writes_of(instruction)
        if opcode in _PRODUCTS or (row_of(instruction).memory is not None and opcode not in _FOLLOWED):
            self.shadows.restarts[name_of(instruction)] = None
        return _ClearHook(self.shadows, program, instruction) if written else None

    def fault(self, f: Any, position: int, instruction: Instruction | None, report: KernelReport) -> None: ...

    def end(self, run: Any) -> None:
        self.shadows.end(run)


class _ClearHook(Hook):
    """The results of an instruction that is not followed have no shadow."""

    def __init__(self, shadows: Shadows, program: Program, instruction: Instruction) -> None:
        super().__init__(program, instruction)
        self.shadows = shadows
        self.slots = [program.slots[o.name] for o in writes_of(instruction)]

    def after(self, f: Fragment) -> None:
        for slot in self.slots:
            value = f.regs[slot]
            if value.dtype.kind == "u":
                self.shadows.put(f, slot, value.dtype.itemsize, {}, self.held)
