"""Operations between the lanes of a warp: shuffles, votes, matches, reductions, and bar.warp.sync."""

from __future__ import annotations

from cudakit.sim.compiled.arithmetic import Unsupported
from cudakit.sim.compiled.async_copies import CopyWriter
from cudakit.sim.compiled.context import I32, bump, conditions, get, put
from cudakit.sim.compiled.ir import Value
from cudakit.sim.compiled.kernel_code import Counted
from cudakit.sim.compiled.layout import DEFERRED, EXITED, FINE, LANES, SYNCED
from cudakit.sim.compiled.warps import REDUCTIONS
from cudakit.sim.ptx.ir import Instruction, Operand, Pair, Register
from cudakit.sim.ptx.opcodes import row_of

WARP_OPERATIONS = ("shfl", "vote", "match", "redux", "activemask", "bar")
_SHUFFLES = {"up": 0, "down": 1, "bfly": 2, "idx": 3}


def _member_mask(instruction: Instruction) -> Operand | None:
    place = row_of(instruction).mask
    if instruction.opcode not in WARP_OPERATIONS or place is None:
        raise Unsupported(instruction.name)
    return instruction.operands[place]


def _verdict(mode: str, every: Value, none: Value) -> Value:
    """The result of a vote: ``every`` and ``none`` of the members have voted for it."""
    return {"all": every, "any": ~none, "uni": every | none}[mode]


class WarpWriter(CopyWriter):
    """Writes the warp operations of a basic block."""

    def _gather(self) -> None:
        """Wait for the lanes of the member masks of the warp operations in this block."""
        kernel, code = self.kernel, self.code
        operand = _member_mask(self.block.instructions[0])
        if self._is_uniform(operand):
            members = self.uniform.read(operand, "u32")
            self.bail_if((kernel.mask & ~members).ne(0))
        else:
            members = code.call("members", "i32", self._spread(operand, "u32"), kernel.mask)
            self.bail_if(members.eq(0))
        live = code.state.load(I32, 32).ne(EXITED).bits("i32")
        missing = (members & live & ~kernel.mask).ne(0)
        on = code.new_label()
        wait = code.new_label()
        code.branch(missing, wait, on, rare=True)
        code.label(wait)
        if kernel.ordered:
            # other lanes would execute atomics before these
            code.jump("bail")
            code.label(code.new_label())
        self._move_to(self.index | DEFERRED)
        code.jump("schedule")
        code.label(on)

    def _move_to(self, place: int) -> None:
        """Set the place of the active lanes."""
        self.code.state.mix(conditions(self.code, self.kernel.mask, LANES), self.code.const(I32, place), 32)

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
        self._flush()
        if opcode == "activemask":
            return self._set_uniform(instruction.operands[0], kernel.mask)
        if "sync" not in instruction.modifiers[:2]:
            raise Unsupported(instruction.name)
        self._count(instruction)
        {"shfl": self._shuffle, "vote": self._vote, "match": self._match, "redux": self._reduction}[opcode](instruction)

    def _count(self, instruction: Instruction) -> None:
        """Count an instruction that has a site and does not access memory."""
        kernel = self.kernel
        sites = kernel.sites.get(id(instruction), [])
        if sites:
            table = kernel.site_pointer(kernel.place(Counted("other", 0, sites[-1:])))
            bump(self.code, table, "requests", 1)
            bump(self.code, table, "lanes", kernel.lanes)

    def _warp_barrier(self) -> None:
        """Accesses before it by lanes of the warp are ordered, if all its live lanes are here."""
        kernel, code = self.kernel, self.code
        with code.if_(kernel.alone):
            now = get(code, "now")
            code.state.at(SYNCED).store(now)
            put(code, "now", now + 1)

    def _result(self, operand: Operand | None, instruction: Instruction) -> Value:
        """The memory of a register of 32 bits that receives a value per lane."""
        kernel = self.kernel
        if not isinstance(operand, Register) or not kernel.varies(operand.name) or kernel.bits(operand.name) != 32:
            raise Unsupported(instruction.name)
        return kernel.register(operand.name)

    def _shuffle(self, instruction: Instruction) -> None:
        kernel, code = self.kernel, self.code
        if instruction.modifiers[-1] != "b32":
            raise Unsupported(instruction.name)
        target = instruction.operands[0]
        value, found = (target.first, target.second) if isinstance(target, Pair) else (target, None)
        out = self._result(value, instruction)
        sources = [self._spread(operand, "b32") for operand in instruction.operands[1:4]]
        members = instruction.operands[4]
        masks = code.const("ptr", None) if self._is_uniform(members) else self._spread(members, "b32")
        bits = code.array("i32", 1)
        mode = code.const("i32", _SHUFFLES[instruction.modifiers[1]])
        status = code.call("shuffle", "i32", code.context, mode, *sources, masks, out, kernel.mask, bits)
        self.bail_if(status.ne(FINE))
        if isinstance(found, Register):
            self._set_predicate(found, bits.load("i32"))

    def _vote(self, instruction: Instruction) -> None:
        kernel, code = self.kernel, self.code
        target, source, members = instruction.operands
        if not isinstance(target, Register):
            raise Unsupported(instruction.name)
        bits, mode = self._voters(source), instruction.modifiers[1]
        if self._is_uniform(members):
            if mode == "ballot":
                return self._set_uniform(target, bits)
            every, none = bits.eq(kernel.mask), bits.eq(0)
            result = _verdict(mode, every, none)
            if kernel.varies(target.name):
                return self._set_predicate(target, result.select(code.const("i32", -1), code.const("i32", 0)))
            return self.uniform.write(target, result)
        masks = self._spread(members, "b32").load(I32, 4)
        found = bits.splat(LANES) & masks
        if mode == "ballot":
            self._result(target, instruction).mix(conditions(code, kernel.mask, LANES), found, 4)
            return
        every, none = found.eq(kernel.mask.splat(LANES) & masks), found.eq(0)
        self._set_predicate(target, _verdict(mode, every, none).bits("i32"))

    def _match(self, instruction: Instruction) -> None:
        kernel, code = self.kernel, self.code
        target, source, members = instruction.operands
        first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
        kind = instruction.modifiers[-1]
        if kind not in ("b32", "b64"):
            raise Unsupported(instruction.name)
        values, masks = self._spread(source, kind), self._spread(members, "b32")
        form = [code.const("i1", kind == "b64"), code.const("i1", "all" in instruction.modifiers)]
        # into other memory: the values may be in the same register
        out = code.array("i32", LANES)
        agreed = code.call("match", "i32", values, masks, out, kernel.mask, *form)
        if first is not None:
            place = self._result(first, instruction)
            place.mix(conditions(code, kernel.mask, LANES), out.load(I32, 4), 4)
        if isinstance(second, Register):
            self._set_predicate(second, agreed)

    def _reduction(self, instruction: Instruction) -> None:
        kernel, code = self.kernel, self.code
        target, source, members = instruction.operands
        _, operation, *more, kind = instruction.modifiers
        if kind not in ("u32", "s32", "b32") or more:
            raise Unsupported(instruction.name)
        name = f"{kind[0]}{operation}" if operation in ("min", "max") else operation
        out = self._result(target, instruction)
        operands = [self._spread(source, "b32"), self._spread(members, "b32"), out, kernel.mask]
        code.call("reduction", "void", code.const("i32", REDUCTIONS.index(name)), *operands)
