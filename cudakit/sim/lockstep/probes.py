"""Probes: objects that follow kernels instruction by instruction, such as a debugger.

A launch with probes runs in the interpreter. Each of its basic blocks becomes a Python function with the probes' hooks
around the instructions that they selected, and registers keep their values until their function returns, so that a
probe can also read values that the program does not need any more. A launch without probes pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from cudakit.sim.lockstep.registers import Registers
from cudakit.sim.lockstep.report import KernelReport
from cudakit.sim.ptx.ir import Instruction


class InstructionHook(Protocol):
    """Called before an instruction with the fragment and its registers, and with ``ends`` also ``after`` it. The
    instruction that ends a basic block (a branch, call or barrier) has no ``after``: the scheduler executes it."""

    ends: bool

    def __call__(self, f: Any, r: Registers) -> None: ...

    def after(self, f: Any) -> None: ...


class Probe(Protocol):
    """Follows launches. ``function`` is the LoadedFunction, ``program`` the Program of one of its functions, ``run``
    the KernelRun. The methods may raise KernelFault, which stops the kernel."""

    def begin(self, function: Any, run: Any) -> bool:
        """A launch is about to start; returns whether the probe follows it."""

    def hook(self, program: Any, instruction: Instruction) -> InstructionHook | None:
        """The hook of an instruction of a program; None if it is not followed. Called once per instruction and launch
        at most, when a block is first run."""

    def keeps(self, program: Any) -> Iterable[int] | None:
        """The slots of the registers of a program that keep their values until its function returns; None: all."""

    def fault(self, f: Any, position: int, instruction: Instruction | None, report: KernelReport) -> None:
        """The lane at a position of a fragment is about to stop the kernel with a report."""

    def end(self, run: Any) -> None:
        """The launch has ended or was stopped."""
