"""One kernel as machine code: a function that runs one warp until it has exited, waits at a barrier or must give up.

The registers of a warp are in memory. A basic block is written as a sequence of steps: a loop over the vectors of the
warp for each run of lane-wise instructions, and calls of the runtime (runtime.py) for what concerns all lanes.
"""

from __future__ import annotations

from cudakit.sim.compiled.accesses import parts_of, space_of
from cudakit.sim.compiled.atomics import ATOMICS, AtomicForm
from cudakit.sim.compiled.basic_block import BlockWriter
from cudakit.sim.compiled.context import I32, address, get
from cudakit.sim.compiled.kernel_code import Counted, Group, KernelCode
from cudakit.sim.compiled.layout import BAIL, DEFERRED, EXITED, FINE, LANES, WAITING
from cudakit.sim.lockstep.program import BasicBlock, writes_of
from cudakit.sim.ptx.ir import Register, Symbol


class KernelWriter(KernelCode):
    """Writes the function ``warp`` of a kernel into a module."""

    def write(self) -> None:
        """Write the kernel; raises Unsupported."""
        blocks = self.program.blocks
        self.grouped = {}
        updates = [i for block in blocks for i in block.instructions if i.opcode in ATOMICS]
        self.ordered = any(AtomicForm(i, unused=self.unread(i)).commutes is None for i in updates)
        for block in blocks:
            self._group(block)
        with self.module.function(
            "warp", "i32", context="ptr", registers="ptr", state="ptr", ids="ptr", thread="i32"
        ) as code:
            self.code, self.chunk = code, None
            self.params, self.shared = address(code, "params"), address(code, "shared")
            self.site_table, self.caches = address(code, "sites"), address(code, "caches")
            self.atomics = address(code, "atomics")
            self.counts, self.limit = address(code, "counts"), get(code, "step_limit")
            self.vectors = code.array("ptr", 8)
            self._schedule(len(blocks))
            for index, block in enumerate(blocks):
                code.label(f"b{index}")
                BlockWriter(self, index, block).write()

    def _schedule(self, blocks: int) -> None:
        """Choose the lanes that run next: those with the lowest place."""
        code = self.code
        code.jump("schedule")
        code.label("schedule")
        places = code.state.load(I32, 32)
        low = places.reduce("umin")
        with code.if_(low.ge(DEFERRED), rare=True):
            # lanes that wait for others of their warp: none of these will come
            stuck = places.ge(DEFERRED) & places.lt(WAITING)
            code.return_(stuck.bits("i32").ne(0).select(code.const("i32", BAIL), code.const("i32", FINE)))
        active = (places & ~DEFERRED).eq(low.splat(LANES))
        self.mask = active.bits("i32")
        rest = active.select(EXITED, places)
        waits = (rest.ge(DEFERRED) & rest.lt(WAITING)).bits("i32").ne(0)
        # the lowest place of other lanes: those that run on yield to them
        self.next = waits.select(0, rest.reduce("umin"))
        self.alone = self.next.ge(WAITING)
        # no other lane has anything left to do
        working = rest
        for end in sorted(self.uniformity.ends):
            working = working.eq(end).select(EXITED, working)
        self.together = working.ge(WAITING).bits("i32").eq(-1)
        self.lanes = code.ones(self.mask).to("i64")
        targets = " ".join(f"i32 {n}, label %b{n}" for n in range(blocks))
        code.line(f"switch i32 {low.name}, label %bail [{targets}]")
        code.label("bail")
        code.line(f"ret i32 {BAIL}")

    def _group(self, block: BasicBlock) -> None:
        """Assign the loads of shared memory to groups: equal base and size, offsets that differ by multiples of the
        size, and no store in between."""
        versions: dict[str, int] = {}
        stores = 0
        groups: dict[tuple[object, ...], Group] = {}
        for instruction in block.instructions:
            if instruction.opcode in ("ld", "st") and space_of(instruction) == "shared":
                access = self.access(instruction)
                if instruction.opcode == "ld":
                    base, offset = parts_of(instruction.operands[1])
                    name = base.name if isinstance(base, (Register, Symbol)) else None
                    rest = offset % access.size
                    # a load with a guard is a group of its own
                    alone = None if instruction.guard is None else id(instruction)
                    version = versions.get(name or "", 0)
                    key = (name, version, stores, access.size, access.counted, access.paired, rest, alone)
                    if key not in groups:
                        place = self.place(Counted("shared", access.counted))
                        groups[key] = Group(place, access.size, access.counted * 2 + access.paired, rest)
                    groups[key].offsets.append(offset)
                    self.counted[groups[key].place].sites.append(access.site)
                    self.grouped[id(instruction)] = groups[key]
                else:
                    stores += 1
            elif instruction.opcode in ATOMICS or instruction.opcode == "cp":
                stores += 1
            for register in writes_of(instruction):
                versions[register.name] = versions.get(register.name, 0) + 1
