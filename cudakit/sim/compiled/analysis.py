"""Which registers of a kernel have one value per warp, and in which blocks the lanes of a warp may be parted."""

from __future__ import annotations

from cudakit.sim.lockstep.program import BRANCH, EXIT, RETURN, BasicBlock, Program, follows, reads_of, writes_of
from cudakit.sim.ptx.ir import Address, Instruction, Register, Special
from cudakit.sim.ptx.opcodes import row_of

_VARYING = ("%tid", "%laneid", "%lanemask", "%warpid")
# the same in all threads of a block, at any time
_OF_THE_BLOCK = ("%ctaid", "%ntid", "%nctaid")


def _fixed(program: Program) -> set[str]:
    """The registers that have one value whenever they are written: each of their definitions is the same computation
    from constants, parameters, the block's indices and sizes, and such registers."""
    makers: dict[str, list[Instruction]] = {}
    for block in program.blocks:
        for instruction in block.instructions:
            for register in writes_of(instruction):
                makers.setdefault(register.name, []).append(instruction)
    found: set[str] = set()

    def pure(instruction: Instruction) -> bool:
        row = row_of(instruction)
        parameter = instruction.opcode == "ld" and "param" in instruction.modifiers
        if instruction.guard is not None or row.ends is not None or row.mask is not None or row.whole_warp:
            return False
        if (row.memory is not None and not parameter) or row.carries or instruction.opcode == "activemask":
            return False
        for operand in instruction.operands[row.writes :]:
            if isinstance(operand, Special) and not operand.name.startswith(_OF_THE_BLOCK):
                return False
        return all(not isinstance(o, Register) or o.name in found for o in reads_of(instruction))

    changed = True
    while changed:
        changed = False
        for name, made in makers.items():
            first = made[0]
            alike = all(
                (one.opcode, one.modifiers, one.operands) == (first.opcode, first.modifiers, first.operands)
                for one in made[1:]
            )
            if name not in found and alike and pure(first):
                found.add(name)
                changed = True
    return found


class Uniformity:
    """The registers whose value is the same in all live lanes of a warp that have reached the same place."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.varying: set[str] = set()
        fixed = _fixed(program)
        blocks = program.blocks
        n = len(blocks)
        # lanes may wait at the kernel's end for others: they do nothing more
        self.ends = {i for i, b in enumerate(blocks) if b.kind in (EXIT, RETURN) and len(b.instructions) <= 1}
        self.edges = [[t for t in follows(b) if t < n and t not in self.ends] for b in blocks]
        live_somewhere = {slot for live in program.live for slot in live}
        self.local = {name for name, slot in program.slots.items() if slot not in live_somewhere}
        # all ends are one block more, at which sides of a branch do not meet: nothing follows
        whole = [[n if t >= n or t in self.ends else t for t in follows(b)] for b in blocks]
        self.after = [-1 if found == n else found for found in _postdominators([*whole, []])]
        divergent_blocks: set[int] = set()
        changed = True
        while changed:
            changed = False
            for index, block in enumerate(blocks):
                for instruction in block.instructions:
                    varying = self._varies(instruction)
                    for target in writes_of(instruction):
                        if target.name in self.varying or target.name in fixed:
                            continue
                        if varying or (index in divergent_blocks and target.name not in self.local):
                            self.varying.add(target.name)
                            changed = True
                if block.kind == BRANCH and index not in divergent_blocks and self._splits(block):
                    region = self._region(index)
                    if not region <= divergent_blocks:
                        divergent_blocks |= region
                        changed = True
        self.divergent_blocks = divergent_blocks

    def _splits(self, block: BasicBlock) -> bool:
        guard = block.instructions[-1].guard
        return guard is not None and guard[0].name in self.varying

    def _varies(self, instruction: Instruction) -> bool:
        for operand in instruction.operands:
            base = operand.base if isinstance(operand, Address) else operand
            if isinstance(base, Special) and base.name.startswith(_VARYING):
                return True
        if any(isinstance(o, Register) and o.name in self.varying for o in reads_of(instruction)):
            return True
        # of loads, those that may be from local memory
        spaces = {"param", "shared", "global", "const"}
        generic = instruction.opcode == "ld" and spaces.isdisjoint(instruction.modifiers)
        return generic or instruction.opcode in ("atom", "shfl", "match", "vote")

    def _region(self, index: int) -> set[int]:
        """The blocks that lanes of one side of a branch can reach before they meet the others."""
        stop = self.after[index]
        found: set[int] = set()
        todo = list(self.edges[index])
        if len(todo) < 2:
            return set()
        while todo:
            block = todo.pop()
            if block == stop or block in found:
                continue
            found.add(block)
            todo += self.edges[block]
        return found


def repeats(program: Program, index: int) -> bool:
    """Whether a block is in a loop: a thread may execute it several times."""
    blocks, found = program.blocks, set()
    todo = list(follows(blocks[index]))
    while todo:
        block = todo.pop()
        if block == index:
            return True
        if block < len(blocks) and block not in found:
            found.add(block)
            todo += follows(blocks[block])
    return False


def _postdominators(edges: list[list[int]]) -> list[int]:
    """The immediate postdominator of each block; -1 if the sides meet at the end only."""
    n = len(edges)
    everything = set(range(n))
    dominated = [set(everything) for _ in range(n)]
    for index in range(n):
        if not edges[index]:
            dominated[index] = {index}
    changed = True
    while changed:
        changed = False
        for index in range(n - 1, -1, -1):
            if not edges[index]:
                continue
            new = set.intersection(*(dominated[e] for e in edges[index])) | {index}
            if new != dominated[index]:
                dominated[index] = new
                changed = True
    out = []
    for index in range(n):
        candidates = dominated[index] - {index}
        # the nearest one is postdominated by all others
        nearest = [c for c in candidates if candidates <= dominated[c]]
        out.append(nearest[0] if nearest else -1)
    return out
