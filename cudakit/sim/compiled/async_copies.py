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
        elements = size.bits // 4
        for number in range(elements):
            kernel.vectors.at(8 * number).store(code.array("i32", LANES))
        target, to = parts_of(instruction.operands[0])
        source, at = parts_of(instruction.operands[1])
        bases, given = self._spread(target, "u32"), self._spread(source, "u64")
        place, cache = self._global_site(loading, size.bits)
        shared = kernel.site_pointer(kernel.place(Counted("shared", size.bits, [storing])))
        shape = [code.const("i32", number) for number in (elements, 4)]
        with self._guarded(instruction) as mask:
            reading = mask
            if len(instruction.operands) == 4:
                # the other lanes copy zeros
                for number in range(elements):
                    kernel.vectors.at(8 * number).load("ptr").store(code.const(I32, 0), 32)
                reading = self._reading(instruction.operands[3], size.bits, mask, instruction)
            with code.if_(reading.ne(0)):
                self._call(
                    "global_load",
                    cache,
                    given,
                    code.const("i64", at),
                    reading,
                    kernel.vectors,
                    *shape,
                    code.thread,
                    place,
                )
            start, kind = code.const("i32", SHARED_START - to), code.const("i32", 2 * size.bits)
            stored = (code.state, bases, start, mask, kernel.vectors, *shape, kind, code.thread, shared)
            self._call("shared_copy", *stored)

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
