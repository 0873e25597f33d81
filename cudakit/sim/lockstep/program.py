"""A compiled PTX function: basic blocks of straight-line Python over numpy, and the data that the scheduler needs.

In the Python of a block, ``r`` is the fragment's registers (a list by slot) and ``f`` the fragment. A block's kind is
the instruction that ends it, which the scheduler (control.py) executes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from cudakit.sim.lockstep.probes import InstructionHook, Probe
from cudakit.sim.lockstep.registers import Registers, place_registers
from cudakit.sim.ptx.ir import (
    CARRY,
    Address,
    Instruction,
    Negated,
    NotSimulated,
    Operand,
    Pair,
    PtxFunction,
    Register,
    Symbol,
    Vector,
)
from cudakit.sim.ptx.opcodes import Flow, carry_of, row_of

# the kinds of blocks, by how they end
FALL, JUMP, BRANCH, EXIT, RETURN, CALL, BARRIER, SWITCH, CLUSTER, INDIRECT, WAIT, REGISTERS = range(12)

# registers with this name prefix refer to the shared memory that the system reserves
RESERVED_SHARED = "%reserved_smem"


class BarrierCall:
    """The operands of a barrier instruction: the barrier's number and thread count as functions of the fragment,
    whether it waits, the reduction and the slot of its result, and whether all lanes of a warp must execute it
    (``aligned``)."""

    __slots__ = ("aligned", "count", "instruction", "number", "reduce", "slot", "value", "waits")

    def __init__(self, instruction: Instruction, number: Any, count: Any, waits: bool, aligned: bool) -> None:
        self.instruction = instruction
        self.number = number
        self.count = count
        self.waits = waits
        self.aligned = aligned
        self.reduce = ""
        self.value: Any = None
        self.slot = -1


class ClusterCall:
    """A barrier.cluster instruction: whether it waits (otherwise it arrives), and whether all lanes of a warp must
    execute it (``aligned``)."""

    __slots__ = ("aligned", "instruction", "waits")

    def __init__(self, instruction: Instruction, waits: bool, aligned: bool) -> None:
        self.instruction = instruction
        self.waits = waits
        self.aligned = aligned


class WaitCall:
    """An instruction at which lanes wait for something other than a barrier of the block: ``start`` returns the wait
    (asynchrony.py) of a fragment; ``slot`` receives whether it succeeded, per lane."""

    __slots__ = ("slot", "start")

    def __init__(self, slot: int, start: Callable[[Any], Any]) -> None:
        self.slot = slot
        self.start = start


class RegisterCall(NamedTuple):
    """A setmaxnreg, and its number of registers per thread."""

    instruction: Instruction
    amount: int


class PointerCall:
    """A call by a function pointer. ``sizes`` are the bytes of its results and of its parameters; ``listed`` the names
    of the functions that it may call, or None if that is any of the same sizes. ``functions`` are the module's
    functions by address, and ``callees`` the programs of those that it may call."""

    __slots__ = ("callees", "functions", "listed", "sizes")

    def __init__(self, sizes: tuple[tuple[int, ...], ...], listed: frozenset[str] | None) -> None:
        self.sizes = sizes
        self.listed = listed
        self.functions: Mapping[int, PtxFunction] = {}
        self.callees: dict[int, Program] = {}

    def link(self, functions: Mapping[int, PtxFunction], programs: Mapping[str, Program]) -> None:
        """Find the programs, once all functions of the module are compiled."""
        self.functions = functions
        self.callees = {a: programs[f.name] for a, f in functions.items() if not self.mismatch(f)}

    def mismatch(self, function: PtxFunction) -> str:
        """The reason why the call cannot be of a function; "" if it can."""
        if function.entry:
            return "a kernel"
        if function.sizes != self.sizes:
            return f"a function with {_sizes(function.sizes)}, called as one with {_sizes(self.sizes)}"
        listed = self.listed is None or function.name in self.listed
        return "" if listed else "not in the list of the call's targets"


def _sizes(sizes: tuple[tuple[int, ...], ...]) -> str:
    """The sizes in words: parameters of 8 and 4 bytes and a result of 4 bytes."""
    results, params = sizes
    described = f"parameters of {' and '.join(map(str, params))} bytes" if params else "no parameters"
    return described + (f" and a result of {results[0]} bytes" if len(results) == 1 else f" and {len(results)} results")


# returns the hook of an instruction, if it has one
ChooseHook = Callable[[Instruction], "InstructionHook | None"]
# the hooks of an instruction, its first line, and the line after its last
_Part = tuple[list[InstructionHook], int, int]


def _hooks_of(instruction: Instruction, choose: list[ChooseHook]) -> list[InstructionHook]:
    return [hook for hook_of in choose if (hook := hook_of(instruction)) is not None]


class Aside(NamedTuple):
    """The slots that a block run in place reads, and those that it writes and that are live after it."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]


class BasicBlock:
    """A basic block: instructions between two places where lanes can diverge or reconverge."""

    __slots__ = (
        "absent",
        "arguments",
        "aside",
        "barrier",
        "body",
        "callee",
        "callee_name",
        "cluster_barrier",
        "fall",
        "instructions",
        "kind",
        "labels",
        "lines",
        "marks",
        "negated",
        "number",
        "pointers",
        "registers",
        "results",
        "slot",
        "spins",
        "sync",
        "target",
        "targets",
        "wait",
    )
    # the barrier, call, wait or setmaxnreg that ends the block, set only for the kinds BARRIER, CLUSTER, INDIRECT, WAIT
    # and REGISTERS
    barrier: BarrierCall
    cluster_barrier: ClusterCall
    pointers: PointerCall
    wait: WaitCall
    registers: RegisterCall

    def __init__(self, number: int) -> None:
        self.number = number
        self.lines: list[str] = []
        self.instructions: list[Instruction] = []
        # for each instruction with lines, the number of its first line
        self.marks: list[tuple[int, Instruction]] = []
        self.kind = FALL
        # a function of the fragment and its registers
        self.body: Callable[[Any, Registers], None] | None = None
        self.fall = self.target = self.slot = -1
        self.negated = False
        # the targets of a SWITCH, by its index
        self.targets: tuple[int, ...] = ()
        # the labels that a JUMP, BRANCH or SWITCH goes to; ``target`` or ``targets`` are set once all blocks are known
        self.labels: tuple[str, ...] = ()
        # the function that a CALL runs; its program is linked once all functions of the module are compiled
        self.callee_name = ""
        self.callee: Program | None = None
        self.arguments: tuple[int, ...] = ()
        self.results: tuple[int, ...] = ()
        # returns the member mask if the block starts with an instruction at which lanes of a warp wait for each other
        self.sync: Callable[[Any, Registers], Any] | None = None
        # returns whether a lane reads an absent lane, if the block starts with a shuffle
        self.absent: Callable[[Any, Registers], bool] | None = None
        # the slots needed to run the block that this one's branch jumps over in place; None: that is not possible
        self.aside: Aside | None = None
        # whether the loop that this block's backward jump closes may wait for other lanes
        self.spins = False

    @property
    def end(self) -> Instruction:
        """The last instruction, which ends the block unless its kind is FALL."""
        return self.instructions[-1]


class Program:
    """A compiled function. ``template`` are the initial registers, ``live[b]`` the slots live at block ``b``."""

    def __init__(self, function: PtxFunction) -> None:
        self.function = function
        self.name = function.name
        self.blocks: list[BasicBlock] = []
        self.template: Registers = []
        self.live: list[tuple[int, ...]] = []
        self.namespace: dict[str, Any] = {}
        self.slots: dict[str, int] = {}
        self.slot_kinds: list[str] = []
        self.params: tuple[int, ...] = ()
        self.returns: tuple[int, ...] = ()
        self.local_offsets: dict[str, int] = {}
        self.local_bytes = 0
        # whether alloca makes its frame larger (stack.py)
        self.grows = False
        # slots of the parameters that block 0 copies to local memory
        self.kept: tuple[int, ...] = ()
        self.callees: set[str] = set()
        self.symbols: set[str] = set()
        # the global and constant variables that its instructions name
        self.variables: set[str] = set()
        self.spins = False
        # registers that may be read before they are written
        self.unset: tuple[int, ...] = ()
        # the registers that products of warpgroups use (warpgroups.py)
        self.tracked: Any = None
        # returns the hook of an instruction for undefined values
        self.hook: ChooseHook = lambda instruction: None
        self._known_hooks: dict[int, InstructionHook | None] = {}
        self._careful: dict[tuple[int, int, int | None], Callable[[Any, Registers], None]] = {}
        # the choice of hooks for a launch with probes, the blocks' functions with them, and the liveness without probes
        self._hooks: list[ChooseHook] = []
        self._undefined_hooks: list[ChooseHook] = []
        self._probed: dict[int, Callable[[Any, Registers], None]] = {}
        # functions with hooks, by their text
        self._compiled: dict[str, Callable[[Any, Registers], None]] = {}
        self._own_live: list[tuple[int, ...]] | None = None
        self.ready = False
        # its loops by their heads (loop_forms.py)
        self.loops: dict[int, Any] = {}
        # the reason why the function cannot run; it has no blocks then
        self.refusal: NotSimulated | None = None

    def prepare(self) -> None:
        """Compile the blocks' lines into Python functions, once: when a kernel that needs them first runs."""
        if self.ready:
            return
        source = []
        for index, block in enumerate(self.blocks):
            if block.lines:
                live_out = {slot for after in follows(block) if after < len(self.live) for slot in self.live[after]}
                lines = place_registers(block.lines, self.namespace, live_out, self._read_at_end(block))
                source.append(f"def block_{index}(f, r):")
                source.extend("    " + line for line in lines)
        exec(compile("\n".join(source), f"<ptx {self.name}>", "exec"), self.namespace)
        for index, block in enumerate(self.blocks):
            block.body = self.namespace.get(f"block_{index}")
        self.ready = True

    def careful(self, index: int, first: int, end: int | None) -> Callable[[Any, Registers], None]:
        """The function of some of a block's instructions, from number ``first`` of its ``marks`` up to ``end``, that
        also calls the hook of each instruction, before the instruction."""
        found = self._careful.get((index, first, end))
        if found is None:
            parts = self._parts(self.blocks[index], [self.hook])[first:end]
            found = self._hooked(f"careful_{index}_{first}_{end}", index, parts, whole=first == 0)
            self._careful[index, first, end] = found
        return found

    def follow(self, probes: tuple[Probe, ...], undefined: bool = False) -> None:
        """Run the next launches with the hooks of these probes, or with none, and with those for ``undefined`` values.
        The registers that a probe keeps are then live everywhere."""
        if self._own_live is None:
            self._own_live = self.live
        if probes:
            kept: set[int] = set()
            for probe in probes:
                chosen = probe.keeps(self)
                kept.update(range(len(self.template)) if chosen is None else chosen)
            self.live = [tuple(kept.union(slots)) for slots in self._own_live]
        else:
            self.live, self._own_live = self._own_live, None
        self._hooks = [partial(probe.hook, self) for probe in probes]
        self._undefined_hooks = [self._hook_for_undefined] if undefined else []
        self._probed.clear()

    def probed(self, index: int) -> Callable[[Any, Registers], None]:
        """The function of a block with the probes' hooks, and those for undefined values."""
        found = self._probed.get(index)
        if found is None:
            block = self.blocks[index]
            parts = self._parts(block, self._hooks + self._undefined_hooks)
            if block.kind != FALL and block.instructions and not (block.marks and block.marks[-1][1] is block.end):
                # the scheduler executes the instruction that ends the block
                parts.append((_hooks_of(block.end, self._hooks), len(block.lines), len(block.lines)))
            found = self._probed[index] = self._hooked(f"probed_{index}", index, parts, whole=True)
        return found

    def _hook_for_undefined(self, instruction: Instruction) -> InstructionHook | None:
        """``hook``, made once per instruction."""
        if id(instruction) not in self._known_hooks:
            self._known_hooks[id(instruction)] = self.hook(instruction)
        return self._known_hooks[id(instruction)]

    @staticmethod
    def _parts(block: BasicBlock, choose: list[ChooseHook]) -> list[_Part]:
        """The instructions of a block that have lines."""
        starts = [*(line for line, _ in block.marks), len(block.lines)]
        return [(_hooks_of(one, choose), line, end) for (line, one), end in zip(block.marks, starts[1:], strict=True)]

    def _hooked(self, name: str, index: int, parts: list[_Part], *, whole: bool) -> Callable[[Any, Registers], None]:
        """The function of some instructions of a block with their hooks; ``whole``: it begins with the block."""
        block = self.blocks[index]
        start = block.marks[0][0] if block.marks else len(block.lines)
        source = [f"def {name}(f, r):", "    pass"]
        source += ["    " + line for line in (block.lines[:start] if whole else ())]
        for number, (hooks, first_line, end_line) in enumerate(parts):
            names = [f"{name}_{number}_{place}" for place in range(len(hooks))]
            self.namespace.update(zip(names, hooks, strict=True))
            source += [f"    {hook}(f, r)" for hook in names]
            source += ["    " + line for line in block.lines[first_line:end_line]]
            ending = [hook for hook, one in zip(names, hooks, strict=True) if one.ends and end_line > first_line]
            source += [f"    {hook}.after(f)" for hook in reversed(ending)]
        text = "\n".join(source)
        found = self._compiled.get(text)
        if found is None:  # otherwise it calls the hooks that its names stand for now
            exec(compile(text, f"<ptx {self.name}>", "exec"), self.namespace)
            found = self._compiled[text] = self.namespace[name]
        return found

    def _read_at_end(self, block: BasicBlock) -> set[int]:
        """The slots that the end of a block reads or writes."""
        held = {block.slot, *block.arguments, *block.results}
        if block.kind == RETURN:
            held.update(self.returns)
        if block.kind != FALL and block.instructions:
            ending = block.instructions[-1]
            names = [operand.name for operand in (*reads_of(ending), *writes_of(ending))]  # type: ignore[union-attr]
            held.update(self.slots[name] for name in names if name in self.slots)
        return held


def reads_of(instruction: Instruction) -> list[Operand]:
    """The registers and variables that an instruction reads, including its guard and the carry flag."""
    found: list[Operand] = []
    row = row_of(instruction)
    _gather(instruction.operands[0 if row.updates else row.writes :], found)
    if carry_of(instruction)[0]:
        found.append(CARRY)
    if instruction.guard is not None:
        found.append(instruction.guard[0])
    return found


def writes_of(instruction: Instruction) -> list[Register]:
    """The registers that an instruction writes, including the carry flag."""
    found: list[Operand] = []
    _gather(instruction.operands[: row_of(instruction).writes], found)
    if carry_of(instruction)[1]:
        found.append(CARRY)
    return [o for o in found if isinstance(o, Register)]


def _gather(operands: Iterable[Operand | None], found: list[Operand]) -> None:
    for operand in operands:
        if isinstance(operand, Address):
            _gather((operand.base,), found)
        elif isinstance(operand, Vector):
            _gather(operand.elements, found)
        elif isinstance(operand, Pair):
            _gather((operand.first, operand.second), found)
        elif isinstance(operand, tuple):
            _gather(operand, found)
        elif isinstance(operand, Negated):
            found.append(operand.register)
        elif isinstance(operand, (Register, Symbol)):
            found.append(operand)


def unread(program: Program) -> Callable[[Instruction], bool]:
    """Whether no instruction reads any result of an instruction, which may be an atomic that only updates memory."""
    read = {operand for block in program.blocks for i in block.instructions for operand in reads_of(i)}
    return lambda instruction: read.isdisjoint(writes_of(instruction))


def find_spins(programs: Mapping[str, Program]) -> None:
    """Mark the backward jumps of loops in which lanes may wait for stores of other lanes, be it in functions that the
    loops call."""
    unused = {name: unread(program) for name, program in programs.items()}
    waits = {name for name, p in programs.items() if any(_may_wait(block, (), unused[name]) for block in p.blocks)}
    known = -1
    while known < len(waits):
        known = len(waits)
        waits |= {name for name, program in programs.items() if not waits.isdisjoint(program.callees)}
    for name, program in programs.items():
        blocks = program.blocks
        for index, block in enumerate(blocks):
            first = min((t for t in (block.target, *block.targets) if t >= 0), default=index + 1)
            if any(_may_wait(inside, waits, unused[name]) for inside in blocks[first : index + 1]):
                block.spins = program.spins = True


def _may_wait(block: BasicBlock, waits: Container[str], unused: Callable[[Instruction], bool]) -> bool:
    """Whether a block has an instruction of a waiting loop, or calls one of the functions ``waits``. An atomic whose
    result is ``unused`` waits for nothing."""
    if any(row_of(i).spins and not (i.opcode == "atom" and unused(i)) for i in block.instructions):
        return True
    if block.kind == INDIRECT:
        return any(callee.name in waits for callee in block.pointers.callees.values())
    return block.kind == CALL and block.callee_name in waits


def liveness(program: Program, slots: dict[str, int]) -> list[tuple[int, ...]]:
    """The slots that are live at the start of each block: read there or later before they are written."""
    blocks = program.blocks
    uses, kills, follow = [], [], []
    for block in blocks:
        use = kill = 0
        for instruction in block.instructions:
            reads = 0
            for operand in reads_of(instruction):
                slot = slots.get(operand.name)  # type: ignore[union-attr]
                if slot is not None:
                    reads |= 1 << slot
            if row_of(instruction).ends is Flow.CALL:
                returned = instruction.operands[0]
                written = 0
                for result in returned if isinstance(returned, tuple) else ():
                    written |= 1 << slots[result.name]  # type: ignore[union-attr]
                reads &= ~written
            else:
                written = 0
                for register in writes_of(instruction):
                    written |= 1 << slots[register.name]
            if instruction.guard is not None:
                # lanes for which the guard is false keep the old value
                reads, written = reads | written, 0
            use |= reads & ~kill
            kill |= written
        if block is blocks[0]:
            for slot in program.kept:
                use |= 1 << slot
        if block.kind == RETURN:
            for slot in program.returns:
                use |= (1 << slot) & ~kill
        uses.append(use)
        kills.append(kill)
        follow.append(follows(block))
    live = list(uses)
    changed = True
    while changed:
        changed = False
        for index in range(len(blocks) - 1, -1, -1):
            out = 0
            for successor in follow[index]:
                if successor < len(live):
                    out |= live[successor]
            new = uses[index] | (out & ~kills[index])
            if new != live[index]:
                live[index] = new
                changed = True
    return [tuple(_bits(mask)) for mask in live]


def follows(block: BasicBlock) -> tuple[int, ...]:
    """The blocks that can run after one, in the same function."""
    if block.kind in (FALL, CALL, BARRIER, CLUSTER, INDIRECT, WAIT, REGISTERS):
        return (block.fall,)
    if block.kind == JUMP:
        return (block.target,)
    if block.kind == BRANCH:
        return (block.target, block.fall)
    return block.targets if block.kind == SWITCH else ()


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
