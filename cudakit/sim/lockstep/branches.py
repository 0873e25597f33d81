"""Short branches run in place: `if (t < half) sum += other[t]` without parting the lanes and uniting them again.

A block that can only be passed over, and after which all go on at one place, is run on the lanes that enter it while
the others wait: the order in which things happen is the same, but only the registers that the block touches are taken
apart and put together.
"""

from __future__ import annotations

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.guarded import put_back
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import BRANCH, EXIT, FALL, JUMP, Aside, BasicBlock, Program, reads_of, writes_of
from cudakit.sim.lockstep.queue import FragmentQueue
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.ptx.opcodes import STORE, Flow, row_of

# what ptxas puts under predicates rather than jump over: about as many machine instructions, fewer with a store
_SHORT, _SHORT_STORE = 17, 11
_WIDE = frozenset(("b64", "s64", "u64"))


def find_asides(program: Program) -> None:
    """Note at each forward branch whether the block that it jumps over can be run in place. Needs ``live``."""
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
            continue  # parameters of calls are written in part
        block.aside = Aside(
            tuple(sorted(touched.intersection(program.live[block.fall]))),
            tuple(sorted(changed.intersection(program.live[block.target]))),
        )


def becomes_predicates(program: Program, block: BasicBlock) -> bool:
    """Whether ptxas, as a rule, makes the branch that ends a block into predicates of what it would jump over: a few
    instructions, or a way out of the kernel. How many are few is fitted to what ptxas 13.0 makes of cudakit's kernels
    for sm_90: CUDA's guides say that there is a threshold, and not which."""
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
    """Whether nothing but the kernel's end is there."""
    return index < len(blocks) and blocks[index].kind == EXIT and len(blocks[index].instructions) == 1


def _cost(instruction: Instruction) -> int:
    """Machine instructions that an instruction of PTX takes, about."""
    row = row_of(instruction)
    return row.cost if row.cost64 is None or _WIDE.isdisjoint(instruction.modifiers) else row.cost64


def run_aside(queue: FragmentQueue, f: Fragment, block: BasicBlock, held: Array) -> bool:
    """Run the block that a branch jumps over on the lanes that do not jump; False if they must part instead, because
    other lanes are on their way there."""
    aside = block.aside
    if aside is None:
        return False
    if (queue.pending or queue.deferred) and queue.yields(f.epoch, (*f.path()[:-1], block.fall)):
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
        inner.body(part, part.regs)
        for slot in aside.writes:
            f.regs[slot] = put_back(f.regs[slot], choice, part.regs[slot], f.lanes.count)
    return True
