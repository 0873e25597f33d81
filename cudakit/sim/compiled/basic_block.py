"""Basic blocks: their instructions, warp operations, and how they end."""

from __future__ import annotations

from cudakit.sim.compiled.accesses import AccessWriter
from cudakit.sim.compiled.arithmetic import WRITERS, Unsupported
from cudakit.sim.compiled.context import I32, bump, conditions, get, put
from cudakit.sim.compiled.kernel_code import Counted
from cudakit.sim.compiled.layout import DEFERRED, EXITED, FINE, JUMPS, LANES, SYNCED, WAITING
from cudakit.sim.compiled.operands import RegisterOperands
from cudakit.sim.lockstep.control import TIRED
from cudakit.sim.lockstep.program import BARRIER, BRANCH, EXIT, FALL, JUMP, RETURN, reads_of, writes_of
from cudakit.sim.ptx.ir import Immediate, Instruction, Operand, Pair, Register

_SHUFFLES = {"up": 0, "down": 1, "bfly": 2, "idx": 3}


def _member_mask(instruction: Instruction) -> Operand | None:
    place = {"shfl": 4, "vote": 2, "bar": 0}.get(instruction.opcode)
    if place is None or place >= len(instruction.operands):
        raise Unsupported(instruction.name)
    return instruction.operands[place]


class BlockWriter(AccessWriter):
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
        if opcode in ("shfl", "vote", "activemask", "bar"):
            return self._warp(instruction)
        if opcode == "pragma":
            return
        if opcode not in WRITERS:
            raise Unsupported(instruction.name)
        self._lanewise(instruction)

    def _gather(self) -> None:
        """Wait for the lanes of the member mask of the warp operations in this block."""
        kernel, code = self.kernel, self.code
        first = self.block.instructions[0]
        operand = _member_mask(first)
        if not self._is_uniform(operand):
            raise Unsupported("member masks that differ between lanes")
        members = self.uniform.read(operand, "u32")
        self.bail_if((kernel.mask & ~members).ne(0))
        live = code.state.load(I32, 32).ne(EXITED).bits("i32")
        missing = (members & live & ~kernel.mask).ne(0)
        on = code.new_label()
        wait = code.new_label()
        code.branch(missing, wait, on, rare=True)
        code.label(wait)
        self._move_to(self.index | DEFERRED)
        code.jump("schedule")
        code.label(on)

    def _warp(self, instruction: Instruction) -> None:
        kernel = self.kernel
        if instruction.guard is not None:
            raise Unsupported(instruction.name)
        opcode = instruction.opcode
        if opcode == "bar":
            if instruction.modifiers[:2] != ("warp", "sync"):
                raise Unsupported(instruction.name)
            self._flush()
            self._warp_barrier()
            return
        if opcode == "activemask":
            self._flush()
            return self._set_uniform(instruction.operands[0], kernel.mask)
        self._flush()
        self._count(instruction)
        if opcode == "shfl":
            return self._shuffle(instruction)
        self._vote(instruction)

    def _count(self, instruction: Instruction) -> None:
        """Count an instruction that has a site and does not access memory."""
        kernel = self.kernel
        site = kernel.sites.get(id(instruction))
        if site is not None:
            table = kernel.site_pointer(kernel.place(Counted("other", 0, [site])))
            bump(self.code, table, "requests", 1)
            bump(self.code, table, "lanes", kernel.lanes)

    def _warp_barrier(self) -> None:
        """Accesses before it by lanes of the warp are ordered, if all its live lanes are here."""
        kernel, code = self.kernel, self.code
        with code.if_(kernel.alone):
            now = get(code, "now")
            code.state.at(SYNCED).store(now)
            put(code, "now", now + 1)

    def _shuffle(self, instruction: Instruction) -> None:
        kernel, code = self.kernel, self.code
        if instruction.modifiers[0] != "sync" or instruction.modifiers[-1] != "b32":
            raise Unsupported(instruction.name)
        target = instruction.operands[0]
        value, found = (target.first, target.second) if isinstance(target, Pair) else (target, None)
        if not isinstance(value, Register) or not kernel.varies(value.name):
            raise Unsupported(instruction.name)
        sources = [self._spread(operand, "b32") for operand in instruction.operands[1:4]]
        bits = code.array("i32", 1)
        mode = code.const("i32", _SHUFFLES[instruction.modifiers[1]])
        status = code.call("shuffle", "i32", mode, *sources, kernel.register(value.name), kernel.mask, bits)
        self.bail_if(status.ne(FINE))
        if isinstance(found, Register):
            self._set_predicate(found, bits.load("i32"))

    def _vote(self, instruction: Instruction) -> None:
        kernel, code = self.kernel, self.code
        mods = instruction.modifiers
        if mods[0] != "sync":
            raise Unsupported(instruction.name)
        source = instruction.operands[1]
        if isinstance(source, Register) and kernel.varies(source.name):
            bits = kernel.register(source.name).load("i32") & kernel.mask
        else:
            raise Unsupported("a vote on a uniform predicate")
        target = instruction.operands[0]
        if not isinstance(target, Register):
            raise Unsupported(instruction.name)
        if mods[1] == "ballot":
            return self._set_uniform(target, bits)
        every, none = bits.eq(kernel.mask), bits.eq(0)
        result = {"all": every, "any": ~none, "uni": every | none}[mods[1]]
        if kernel.varies(target.name):
            return self._set_predicate(target, result.select(code.const("i32", -1), code.const("i32", 0)))
        self.uniform.write(target, result)

    def _move_to(self, place: int) -> None:
        """Set the place of the active lanes."""
        self.code.state.mix(conditions(self.code, self.kernel.mask, LANES), self.code.const(I32, place), 32)

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
        number = ending.operands[0] if len(ending.operands) == 1 else None
        plain = set(ending.modifiers) <= {"sync", "aligned", "cta"} and "sync" in ending.modifiers
        if not plain or not isinstance(number, Immediate) or number.bits:
            raise Unsupported(ending.name)
        self.bail_if(~kernel.alone)
        self._count(ending)
        self._move_to(self.block.fall | WAITING)
        code.line("ret i32 1")
