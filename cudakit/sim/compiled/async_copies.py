"""cp.async: copies from global to shared memory, and waiting for them."""

from __future__ import annotations

from cudakit.sim.compiled.accesses import parts_of
from cudakit.sim.compiled.arithmetic import Unsupported
from cudakit.sim.compiled.atomics import AtomicWriter
from cudakit.sim.compiled.context import I32
from cudakit.sim.compiled.ir import Value
from cudakit.sim.compiled.kernel_code import Counted
from cudakit.sim.compiled.layout import COMMITTED, LANES
from cudakit.sim.lockstep.memory import SHARED_START
from cudakit.sim.ptx.ir import Immediate, Instruction, Operand, Register
from cudakit.sim.ptx.modifiers import PREFETCH_SIZES

_FORM = frozenset(("async", "ca", "cg", "shared", "shared::cta", "global", *PREFETCH_SIZES))


class CopyWriter(AtomicWriter):
    """Writes the asynchronous copies of a basic block."""

    def _copy(self, instruction: Instruction) -> None:
        self._flush()
        if "commit_group" in instruction.modifiers:
            return self._commit(instruction)
        if "wait_group" in instruction.modifiers or "wait_all" in instruction.modifiers:
            return self._wait(instruction)
        kernel, code = self.kernel, self.code
        sites = kernel.sites.get(id(instruction), [])
        size = instruction.operands[2] if len(instruction.operands) in (3, 4) else None
        if not set(instruction.modifiers) <= _FORM or not isinstance(size, Immediate) or len(sites) != 2:
            raise Unsupported(instruction.name)
        loading, storing = sites
        kernel.copies = True
        target, to = parts_of(instruction.operands[0])
        source, at = parts_of(instruction.operands[1])
        bases, given = self._spread(target, "u32"), self._spread(source, "u64")
        place, cache = self._global_site(loading, size.bits)
        shared = kernel.site_pointer(kernel.place(Counted("shared", size.bits, [storing])))
        hosts, zeros = code.array("i64", LANES), code.array("i32", 4)
        shape = [code.const("i32", number) for number in (size.bits // 4, 4)]
        with self._guarded(instruction) as mask:
            reading = mask
            if len(instruction.operands) == 4:
                # the other lanes copy zeros
                zeros.store(code.const("<4 x i32>", 0), 16)
                hosts.store(zeros.convert("ptrtoint", "i64").splat(LANES), 32)
                reading = self._reading(instruction.operands[3], size.bits, mask, instruction)
            with code.if_(reading.ne(0)):
                loaded = (cache, given, code.const("i64", at), reading, *shape, hosts, code.thread, place)
                self._call("copy_source", *loaded)
            start, kind = code.const("i32", SHARED_START - to), code.const("i32", 2 * size.bits)
            whole = code.const("i32", size.bits)
            self._call("shared_copy", code.state, bases, start, mask, hosts, whole, kind, code.thread, shared)

    def _reading(self, limit: Operand | None, size: int, mask: Value, instruction: Instruction) -> Value:
        """The lanes of a mask that copy whole elements: the others copy only zeros. ``limit``: the bytes that each lane
        reads, or whether it ignores its source."""
        if isinstance(limit, Register) and limit.type == "pred":
            return mask & ~self._voters(limit)
        if not isinstance(limit, (Register, Immediate)):
            raise Unsupported(instruction.name)
        bytes_ = self._spread(limit, "u32").load(I32, 4)
        whole, none = bytes_.ge(size).bits("i32"), bytes_.eq(0).bits("i32")
        self.bail_if((mask & ~(whole | none)).ne(0))
        return mask & whole

    def _commit(self, instruction: Instruction) -> None:
        if instruction.guard is not None:
            raise Unsupported(instruction.name)
        # groups are numbered per warp
        self.bail_if(~self.kernel.alone)
        place = self.code.state.at(COMMITTED)
        place.store(place.load("i64") + 1)

    def _wait(self, instruction: Instruction) -> None:
        kernel, code = self.kernel, self.code
        if instruction.guard is not None:
            raise Unsupported(instruction.name)
        self.bail_if(~kernel.alone)
        limit = code.const("i64", (1 << 63) - 1)
        if "wait_group" in instruction.modifiers:
            (pending,) = instruction.operands
            if not isinstance(pending, Immediate):
                raise Unsupported(instruction.name)
            limit = code.state.at(COMMITTED).load("i64") - pending.bits
        self._call("land", code.state, kernel.mask, limit, code.thread)
