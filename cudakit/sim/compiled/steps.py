"""Runs of lane-wise instructions: a loop over the vectors of the warp for each run.

Values that are the same in all lanes are computed once.
"""

from __future__ import annotations

from cudakit.sim.compiled.arithmetic import WRITERS, Unsupported
from cudakit.sim.compiled.context import conditions
from cudakit.sim.compiled.ir import Value
from cudakit.sim.compiled.kernel_code import KernelCode
from cudakit.sim.compiled.layout import CHUNKS, LANES, WIDTH
from cudakit.sim.compiled.operands import RegisterOperands
from cudakit.sim.lockstep.program import BasicBlock, follows, reads_of, writes_of
from cudakit.sim.ptx.ir import Instruction, Negated, Operand, Register
from cudakit.sim.values.lanewise import width


class StepWriter:
    """Writes runs of lane-wise instructions of a basic block."""

    # the registers that all lanes share
    uniform: RegisterOperands

    def __init__(self, kernel: KernelCode, index: int, block: BasicBlock) -> None:
        self.kernel, self.code, self.index, self.block = kernel, kernel.code, index, block
        self.divergent = index in kernel.uniformity.divergent_blocks
        # lane-wise instructions that are not written yet
        self.pending: list[Instruction] = []
        program = kernel.program
        slots = {slot for after in follows(block) if after < len(program.live) for slot in program.live[after]}
        self.live_out = {name for name in program.function.registers if program.slots[name] in slots}
        self.position = 0
        # the registers of kernel.unset that this block has written in all its lanes
        self.set_here: set[str] = set()

    def bail_if(self, condition: Value) -> None:
        """Leave the launch to the interpreter if a condition holds."""
        on = self.code.new_label()
        self.code.branch(condition, "bail", on, rare=True)
        self.code.label(on)

    def _lanewise(self, instruction: Instruction) -> None:
        if any(self.kernel.varies(register.name) for register in writes_of(instruction)):
            self.pending.append(instruction)
        else:
            self.uniform.take_guard(instruction)
            WRITERS[instruction.opcode](self.uniform, instruction)
            self.uniform.guard = None

    def _expect_unread(self, instruction: Instruction) -> None:
        """Write the pending instructions now if they read a uniform register that this one writes."""
        written = {register.name for register in writes_of(instruction)}
        if any(isinstance(o, Register) and o.name in written for one in self.pending for o in reads_of(one)):
            self._flush()

    def _flush(self) -> None:
        """Write the pending instructions as a loop over vectors."""
        if not self.pending:
            return
        kernel, code = self.kernel, self.code
        pending, self.pending = self.pending, []
        needed = set(self.live_out)
        for later in self.block.instructions[self.position :]:
            needed.update(o.name for o in reads_of(later) if isinstance(o, Register))
        # uniform values are computed before the loop
        for instruction in pending:
            for operand in reads_of(instruction):
                if isinstance(operand, Register) and not kernel.varies(operand.name):
                    self.uniform.read(operand, operand.type)
        written = {register.name for instruction in pending for register in writes_of(instruction)}
        masks = {name: code.variable("i32", 0) for name in sorted(written & needed) if kernel.bits(name) == 1}
        with code.for_(code.const("i64", CHUNKS)) as chunk:
            kernel.chunk = chunk
            operands = RegisterOperands(kernel, chunk, self.uniform)
            for instruction in pending:
                operands.take_guard(instruction)
                self._vector(operands, instruction)
            operands.guard = None
            here = None
            if self.divergent:
                here = conditions(code, kernel.mask >> (chunk.to("i32") * WIDTH), WIDTH)
            for name in sorted(operands.written & needed):
                bits = kernel.bits(name)
                kind = kernel.program.function.registers[name]
                value = operands.read(Register(name, kind), kind)
                place = kernel.register(name)
                if bits == 1:
                    # whole masks are stored after the loop: a load of 4 bytes just stored one by one is slow
                    masks[name].value = masks[name].value | (value.bits("i8").to("i32") << (chunk.to("i32") * WIDTH))
                elif here is not None:
                    place.at(chunk * (WIDTH * bits // 8)).mix(here, value, 16)
                else:
                    place.at(chunk * (WIDTH * bits // 8)).store(value, 16)
            kernel.chunk = None
        for name, mask in masks.items():
            self._set_predicate(Register(name, "pred"), mask.value)

    def _keep_uniform(self) -> None:
        kernel = self.kernel
        registers = kernel.program.function.registers
        for name in sorted(self.uniform.written & self.live_out):
            value = self.uniform.read(Register(name, registers[name]), registers[name])
            kernel.register(name).store(value.to("i8") if kernel.bits(name) == 1 else value)

    def _is_uniform(self, operand: Operand | None) -> bool:
        return not isinstance(operand, Register) or not self.kernel.varies(operand.name)

    def _set_uniform(self, register: Operand | None, value: Value, mask: Value | None = None) -> None:
        """Set a register of this block to a value that all active lanes, or those of ``mask``, share. The register may
        vary elsewhere."""
        if not isinstance(register, Register):
            return
        kernel = self.kernel
        partly = mask is not None and mask is not kernel.mask
        if not kernel.varies(register.name):
            if partly:
                raise Unsupported("a guarded load to a uniform register")
            self.uniform.write(register, value)
            return
        if kernel.bits(register.name) == 1:
            raise Unsupported("a load to a predicate")
        wide = value.splat(LANES)
        place = kernel.register(register.name)
        if self.divergent or partly:
            place.mix(conditions(self.code, kernel.mask if mask is None else mask, LANES), wide, 16)
        else:
            place.store(wide, 16)

    def _set_uniform_later(self, register: Operand | None, value: Value) -> None:
        if isinstance(register, Register) and self.kernel.varies(register.name):
            self._flush()
        self._set_uniform(register, value)

    def _set_predicate(self, register: Register, bits: Value) -> None:
        """Set a predicate that varies, from the bits of the active lanes."""
        kernel = self.kernel
        if not kernel.varies(register.name):
            raise Unsupported("a uniform predicate of a warp operation")
        place = kernel.register(register.name)
        if self.divergent:
            bits = (place.load("i32") & ~kernel.mask) | (bits & kernel.mask)
        place.store(bits)

    def _voters(self, operand: Operand | None) -> Value:
        """The active lanes whose predicate is true, as bits."""
        kernel, code = self.kernel, self.code
        negated = isinstance(operand, Negated)
        source = operand.register if isinstance(operand, Negated) else operand
        if isinstance(source, Register) and kernel.varies(source.name):
            bits = kernel.register(source.name).load("i32")
        else:
            bits = self.uniform.read(source, "pred").select(code.const("i32", -1), code.const("i32", 0))
        return (~bits if negated else bits) & kernel.mask

    def _spread(self, operand: Operand | None, kind: str) -> Value:
        """Memory that holds an operand's value in each lane."""
        kernel = self.kernel
        if isinstance(operand, Register) and kernel.varies(operand.name):
            if kernel.bits(operand.name) == width(kind) >= 32:
                return kernel.register(operand.name)
            return self._cut(operand, kind)
        value = self.uniform.read(operand, kind)
        if width(kind) < 32:
            value = value.to("i32")
        memory = self.code.array(value.kind, LANES)
        memory.store(value.splat(LANES), 32)
        return memory

    def _cut(self, register: Register, kind: str) -> Value:
        """Memory that holds the lowest bits of a register in each lane; at least 32 bits of each."""
        code = self.code
        bits = max(width(kind), 32)
        memory = code.array(f"i{bits}", LANES)
        with code.for_(code.const("i64", CHUNKS)) as chunk:
            value = self.kernel.load(register.name, chunk).to(f"i{bits}")
            memory.at(chunk * (WIDTH * bits // 8)).store(value, 16)
        return memory

    def _vector(self, operands: RegisterOperands, instruction: Instruction) -> None:
        """Write one instruction for one vector of lanes."""
        WRITERS[instruction.opcode](operands, instruction)
