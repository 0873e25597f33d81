"""Basic blocks: their instructions, and how they end."""

from __future__ import annotations

from cudakit.sim.compiled.arithmetic import WRITERS, Unsupported
from cudakit.sim.compiled.atomics import ATOMICS
from cudakit.sim.compiled.context import I32, conditions, get, put
from cudakit.sim.compiled.layout import ANYONE, COUNT, EVERY, EXITED, JUMPS, LANES, PER_LANE, WAITING
from cudakit.sim.compiled.operands import RegisterOperands
from cudakit.sim.compiled.warp_operations import WARP_OPERATIONS, WarpWriter
from cudakit.sim.lockstep.control import TIRED
from cudakit.sim.lockstep.program import BARRIER, BRANCH, EXIT, FALL, JUMP, RETURN, reads_of, writes_of
from cudakit.sim.ptx.ir import Immediate, Instruction, Register


class BlockWriter(WarpWriter):
    """Writes one basic block."""

    def write(self) -> None:
        kernel, code, block = self.kernel, self.code, self.block
        self.uniform = RegisterOperands(kernel)
        if not self.divergent:
            # the others could have other values of uniform registers
            self.bail_if(~kernel.together)
        ending = (
            block.instructions[-1]
            if block.kind in (JUMP, BRANCH, EXIT, RETURN, BARRIER) and block.instructions
            else None
        )
        if block.sync is not None:
            self._gather()
        if block.instructions:
            counts = kernel.counts.at(24 * self.index)
            counts.store(counts.load("i64") + 1)
            counts.at(8).store(counts.at(8).load("i64") + kernel.lanes)
        for self.position, instruction in enumerate(block.instructions):
            self._expect_set(instruction)
            if instruction is ending:
                break
            self._instruction(instruction)
        else:
            self.position = len(block.instructions)
        self._flush()
        self._keep_uniform()
        for name in sorted(self.set_here):
            place = code.registers.at(kernel.unset[name])
            place.store(place.load("i32") | kernel.mask)
        self._end(ending)

    def _expect_set(self, instruction: Instruction) -> None:
        """Give up if an instruction reads a register that a lane has not written."""
        kernel, code = self.kernel, self.code
        if not kernel.unset:
            return
        for operand in reads_of(instruction):
            if isinstance(operand, Register) and operand.name in kernel.unset and operand.name not in self.set_here:
                known = code.registers.at(kernel.unset[operand.name]).load("i32")
                self.bail_if((kernel.mask & ~known).ne(0))
        if instruction.guard is None:
            self.set_here.update(register.name for register in writes_of(instruction) if register.name in kernel.unset)

    def _instruction(self, instruction: Instruction) -> None:
        opcode = instruction.opcode
        self._expect_unread(instruction)
        if opcode in ("ld", "ldu"):
            return self._load(instruction)
        if opcode == "st":
            return self._store(instruction)
        if opcode in ATOMICS:
            return self._atomic(instruction)
        if opcode == "cp":
            return self._copy(instruction)
        if opcode in WARP_OPERATIONS:
            return self._warp(instruction)
        if opcode == "pragma":
            return
        if opcode not in WRITERS:
            raise Unsupported(instruction.name)
        self._lanewise(instruction)

    def _count_jump(self, target: int) -> None:
        """Count a jump backwards, of which there is a limit."""
        if target > self.index:
            return
        kernel, code = self.kernel, self.code
        place = code.state.at(JUMPS)
        jumps = place.load("i64") + 1
        place.store(jumps)
        self.bail_if(jumps.gt(kernel.limit))
        with code.if_(jumps.ge(TIRED), rare=True):
            put(code, "tired", 1)
        with code.if_(~kernel.alone):
            put(code, "parted", 1)

    def _go(self, target: int) -> None:
        """Go on at a block, unless lanes with a lower or the same place must run first."""
        kernel, code = self.kernel, self.code
        self._count_jump(target)
        yields = code.new_label()
        code.branch(kernel.next.le(target), yields, f"b{target}", rare=True)
        code.label(yields)
        self._move_to(target)
        code.jump("schedule")

    def _end(self, ending: Instruction | None) -> None:
        kernel, code, block = self.kernel, self.code, self.block
        if block.kind == FALL:
            self._go(block.fall)
        elif block.kind == JUMP:
            self._go(block.target)
        elif block.kind == BRANCH and ending is not None and ending.guard is not None:
            self._branch(ending.guard[0])
        elif block.kind in (EXIT, RETURN):
            put(code, "exited", get(code, "exited") + kernel.lanes)
            self._move_to(EXITED)
            code.jump("schedule")
        elif block.kind == BARRIER and ending is not None:
            self._barrier(ending)
        else:
            raise Unsupported("this end of a block")

    def _branch(self, register: Register) -> None:
        kernel, code, block = self.kernel, self.code, self.block
        taken, fall = (block.fall, block.target) if block.negated else (block.target, block.fall)
        yes, no = code.new_label(), code.new_label()
        if not kernel.varies(register.name):
            code.branch(self.uniform.read(register, "pred"), yes, no)
        else:
            bits = kernel.register(register.name).load("i32") & kernel.mask
            some, parts = code.new_label(), code.new_label()
            code.branch(bits.eq(0), no, some)
            code.label(some)
            code.branch(bits.eq(kernel.mask), yes, parts)
            code.label(parts)
            divergent = kernel.counts.at(24 * self.index + 16)
            divergent.store(divergent.load("i64") + 1)
            side = conditions(code, bits, LANES).select(code.const(I32, taken), fall)
            code.state.mix(conditions(code, kernel.mask, LANES), side, 32)
            for target in (taken, fall):
                self._count_jump(target)
            code.jump("schedule")
        code.label(yes)
        self._go(taken)
        code.label(no)
        self._go(fall)

    def _barrier(self, ending: Instruction) -> None:
        kernel, code = self.kernel, self.code
        reduce = self.block.barrier.reduce
        operands = ending.operands[1:-1] if reduce else ending.operands
        number = operands[0] if len(operands) == 1 else None
        allowed = {"sync", "aligned", "cta"} | ({"red", reduce, "pred", "u32"} if reduce else set())
        waits = self.block.barrier.waits and set(ending.modifiers) <= allowed
        if not waits or not isinstance(number, Immediate) or number.bits:
            raise Unsupported(ending.name)
        self.bail_if(~kernel.alone)
        self._count(ending)
        if reduce:
            self._vote_at_barrier(ending, reduce)
        self._move_to(self.block.fall | WAITING)
        code.line("ret i32 1")

    def _vote_at_barrier(self, ending: Instruction, reduce: str) -> None:
        """Add the lanes to the votes of the barrier, whose result run_block sets once all threads have arrived."""
        kernel, code = self.kernel, self.code
        target, predicate = ending.operands[0], ending.operands[-1]
        if not isinstance(target, Register) or kernel.bits(target.name) != (32 if reduce == "popc" else 1):
            raise Unsupported(ending.name)
        put(code, "votes", get(code, "votes") + code.ones(self._voters(predicate)).to("i64"))
        put(code, "voters", get(code, "voters") + kernel.lanes)
        put(code, "reduced", kernel.places[target.name])
        form = {"popc": COUNT, "and": EVERY, "or": ANYONE}[reduce]
        put(code, "reduction", form + PER_LANE * kernel.varies(target.name))
