"""Short branches run in place: `if (t < half) sum += other[t]` without splitting and reuniting the fragment.

If a branch only jumps over one block and all lanes continue at the same place, the block is run on the lanes that enter
it while the others wait. The order of execution is the same, but only the registers that the block uses are split and
merged.
"""

from __future__ import annotations

import numpy as np

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.guarded import put_back
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import BRANCH, EXIT, FALL, JUMP, Aside, BasicBlock, Program, reads_of, writes_of
from cudakit.sim.lockstep.queue import FragmentQueue
from cudakit.sim.lockstep.undefined import run_block
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.ptx.opcodes import STORE, Flow, row_of

# about how many machine instructions ptxas predicates instead of jumping over them; fewer if they include a store
_SHORT, _SHORT_STORE = 17, 11
_WIDE = frozenset(("b64", "s64", "u64"))


def find_asides(program: Program) -> None:
    """Set ``aside`` of each forward branch whose skipped block can be run in place. Requires ``program.live``."""
    blocks = program.blocks
    for index, block in enumerate(blocks):
        if block.kind != BRANCH or block.fall != index + 1 or block.target <= block.fall:
            continue
        inner = blocks[block.fall]
        after = {FALL: inner.fall, JUMP: inner.target}.get(inner.kind)
        if after != block.target or inner.sync is not None or after >= len(blocks):
            continue
        read = {operand.name for i in inner.instructions for operand in reads_of(i)}  # type: ignore[union-attr]
        written = {register.name for i in inner.instructions for register in writes_of(i)}
        touched = {program.slots[name] for name in read | written if name in program.slots}
        changed = {program.slots[name] for name in written if name in program.slots}
        if any(program.slot_kinds[slot] == "param" for slot in touched):
            continue  # parameters of calls are written piecewise
        block.aside = Aside(
            tuple(sorted(touched.intersection(program.live[block.fall]))),
            tuple(sorted(changed.intersection(program.live[block.target]))),
        )


def becomes_predicates(program: Program, block: BasicBlock) -> bool:
    """Whether ptxas usually replaces the branch at the end of a block by predicates: it does if the branch skips a few
    instructions or leaves the kernel. CUDA's guides do not state the threshold; this one is fitted to the code that
    ptxas 13.0 generates from cudakit's kernels for sm_90."""
    blocks = program.blocks
    if block.kind != BRANCH:
        return False
    if row_of(block.instructions[-1]).ends is not Flow.JUMP or _ends(blocks, block.target):
        return True
    if block.aside is None:
        return False
    inside = blocks[block.fall].instructions
    stores = any(row_of(instruction).mix == STORE for instruction in inside)
    return sum(map(_cost, inside)) <= (_SHORT_STORE if stores else _SHORT)


def _ends(blocks: list[BasicBlock], index: int) -> bool:
    """Whether the block only ends the kernel."""
    return index < len(blocks) and blocks[index].kind == EXIT and len(blocks[index].instructions) == 1


def _cost(instruction: Instruction) -> int:
    """About how many machine instructions a PTX instruction takes."""
    row = row_of(instruction)
    return row.cost if row.cost64 is None or _WIDE.isdisjoint(instruction.modifiers) else row.cost64


def run_aside(queue: FragmentQueue, f: Fragment, block: BasicBlock, held: Array) -> bool:
    """Run the block that a branch jumps over on the lanes that do not jump. Returns False if the fragment must be split
    instead, because other lanes may reach the block."""
    aside = block.aside
    if aside is None:
        return False
    if (queue.pending or queue.deferred) and queue.yields(
        f.epoch, (*f.path()[:-1], f.program.blocks[block.fall].number)
    ):
        return False
    found = f.lanes.split(held)
    choice, lanes = (found.yes, found.set_yes) if block.negated else (found.no, found.set_no)
    inner = f.program.blocks[block.fall]
    counts = f.batch.run.block_counts
    count = counts[inner.number]
    if count is None:
        count = counts[inner.number] = [0, 0, 0]
    count[0] += lanes.warp_count
    count[1] += lanes.count
    parted = counts[block.number]
    if parted is not None:
        parted[2] += found.parted
    if inner.body is not None:
        part = f.borrow(choice, lanes, aside.reads)
        run_block(part, block.fall, careful=False)
        for slot in aside.writes:
            f.regs[slot] = put_back(f.regs[slot], choice, part.regs[slot], f.lanes.count)
        for slot, codes in part.frames[-1].undefined.items():
            whole = f.frames[-1].undefined[slot] = np.zeros(f.lanes.count, np.uint16)
            whole[choice] = codes
    return True
