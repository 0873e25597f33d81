"""The compiler of one PTX function to blocks of Python.

Each instruction has a builder, which writes its lines with the emitter (emitter.py). The lines of a basic block become
one Python function, created on the first run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from cudakit.sim.instructions import (
    async_copies,
    async_stores,
    atomics,
    bulk_copies,
    clusters,
    hints,
    loads,
    matrix,
    mbarriers,
    stack,
    tensor,
    tensor_copies,
    tensormaps,
    warp,
    warpgroup,
)
from cudakit.sim.instructions.calls import PARAMETERS, SYSTEM_CALLS
from cudakit.sim.instructions.emitter import Builder, Emitter, Places
from cudakit.sim.instructions.params import addressed, keep_param
from cudakit.sim.instructions.undefined import ShuffleReads, hook_of
from cudakit.sim.instructions.warp import end_with_barrier, sync_of
from cudakit.sim.instructions.warpgroup_registers import track_registers
from cudakit.sim.lockstep.branches import find_asides
from cudakit.sim.lockstep.guarded import GuardedInstruction
from cudakit.sim.lockstep.program import (
    BRANCH,
    CALL,
    EXIT,
    FALL,
    INDIRECT,
    JUMP,
    REGISTERS,
    RETURN,
    SWITCH,
    BasicBlock,
    PointerCall,
    Program,
    RegisterCall,
    liveness,
    reads_of,
    writes_of,
)
from cudakit.sim.lockstep.sites import Sites
from cudakit.sim.ptx.gates import check_gates, version_of
from cudakit.sim.ptx.ir import (
    Address,
    Immediate,
    Instruction,
    Label,
    NotSimulated,
    Operand,
    PtxError,
    PtxFunction,
    PtxModule,
    Register,
    Symbol,
    UnsupportedPtx,
    refused,
)
from cudakit.sim.ptx.opcodes import Flow, name_of, row_of
from cudakit.sim.ptx.operand_checks import check_operands, name_space

BUILDERS: dict[str, Builder] = {**loads.BUILDERS, **hints.BUILDERS, **atomics.BUILDERS, **warp.BUILDERS}
BUILDERS |= {**stack.BUILDERS, **clusters.BUILDERS, **async_copies.BUILDERS, **matrix.BUILDERS, **tensor.BUILDERS}
BUILDERS |= {**mbarriers.BUILDERS, **bulk_copies.BUILDERS, **async_stores.BUILDERS, **warpgroup.BUILDERS}
BUILDERS |= {**tensor_copies.BUILDERS, **tensormaps.BUILDERS}
# the functions of CUDA's device runtime that launch kernels
_DEVICE_LAUNCHES = ("cudaLaunchDevice", "cudaGetParameterBuffer", "__cudaCDP")
# the builder of mov is for all others, which may take addresses
_VECTOR_MOVES = ("mov.v2", "mov.v4")


class Compiler:
    """Compiles one function of a module. ``sites`` numbers its sites and blocks, ``places`` has the addresses of
    variables and functions, and ``explain`` adds source lines to an error."""

    def __init__(
        self,
        function: PtxFunction,
        module: PtxModule,
        sites: Sites,
        places: Places,
        explain: Callable[[PtxError], PtxError],
    ) -> None:
        self.function = function
        self.explain = explain
        self.target, self.version = module.target, version_of(module.version)
        self.emitter = Emitter(function, module, sites, places)

    def compile(self) -> Program:
        """The program of the function. If the function needs what is not simulated, the program has no blocks, and its
        ``refusal`` is the first such instruction. Raises PtxError if the function is not valid PTX."""
        emitter, function = self.emitter, self.function
        if "blocksareclusters" in function.directives:
            why = f"PTX line {function.line}: .blocksareclusters (__block_size__ with a cluster) is not supported"
            self._refuse(self._explained(NotSimulated(f"{why}: use __cluster_dims__", function.line)))
        program = emitter.program
        labels: dict[int, list[str]] = {}
        # labels that only debug information uses do not begin a block
        jumps = {o.name for i in function.instructions for o in i.operands if isinstance(o, Label)}
        jumps.update(name for names in function.branch_targets.values() for name in names)
        for label, place in function.labels.items():
            if label in jumps:
                labels.setdefault(place, []).append(label)
        for instruction in function.instructions:
            try:
                self._check(instruction)
            except PtxError as error:
                self._refuse(self._explained(error, instruction))
        targets: dict[str, int] = {}
        blocks = program.blocks
        current = self._block()
        if emitter.taken:
            current.lines.extend(self._keep_parameters())
            current = self._block()
        for place, instruction in enumerate(function.instructions):
            try:
                syncs = sync_of(emitter, instruction)
                # lanes that have synchronised stay together until the end of the block
                meets = syncs is not None and syncs is not current.sync
                row = row_of(instruction)
                ends = row.ends
                pointed = ends is Flow.CALL and isinstance(instruction.operands[1], Register)
                if place in labels or meets or pointed or ends in (Flow.BARRIER, Flow.CLUSTER):
                    current = self._next(current)
                    for label in labels.get(place, ()):
                        targets[label] = len(blocks) - 1
                if row.refusal is not None:
                    continue
                if instruction.guard is not None and instruction.opcode == "wgmma":
                    current = self._skipped(current, instruction)
                    continue
                if ends is not None:
                    current = self._end(current, instruction, ends)
                    continue
                if syncs is not None:
                    current.sync = syncs
                    if instruction.opcode == "shfl":
                        current.absent = ShuffleReads(self.emitter.slots, instruction).absent
                current.instructions.append(instruction)
                emitter.place = (current.number, len(current.instructions))
                if lines := self._lines(instruction):
                    current.marks.append((len(current.lines), instruction))
                    current.lines.extend(lines)
            except PtxError as error:
                self._refuse(self._explained(error, instruction))
        if program.refusal is not None:
            blocks.clear()
            return program
        if current.instructions or len(function.instructions) in labels:
            current = self._next(current)
            for label in labels.get(len(function.instructions), ()):
                targets[label] = len(blocks) - 1
        current.kind = RETURN
        for index, block in enumerate(blocks):
            emitter.sites.sizes[block.number] = len(block.instructions)
            if block.fall < 0:
                block.fall = index + 1
            if block.kind == SWITCH:
                block.targets = tuple(targets[name] for name in block.labels)
            elif block.labels:
                block.target = targets[block.labels[0]]
        track_registers(emitter)
        program.live = liveness(program, emitter.slots)
        find_asides(program)
        program.hook = partial(hook_of, program.slots)
        if not emitter.module.debug:
            registers = {emitter.slots[name] for name in function.registers}
            program.unset = tuple(slot for slot in program.live[0] if slot in registers)
        return program

    def _keep_parameters(self) -> list[str]:
        """Lines that store the parameters whose address is taken to local memory."""
        emitter = self.emitter
        lines = []
        for name, offset in emitter.taken.items():
            taker = next(i for i in self.function.instructions if name in addressed(i))
            keep = keep_param(emitter.site(taker, "local store"), offset, emitter.call_params[name].size)
            lines.append(f"{emitter.bind(keep)}(f, r[{emitter.slots[name]}])")
        emitter.program.kept = tuple(emitter.slots[name] for name in emitter.taken)
        return lines

    def _block(self) -> BasicBlock:
        block = BasicBlock(self.emitter.sites.block())
        self.emitter.program.blocks.append(block)
        return block

    def _next(self, current: BasicBlock) -> BasicBlock:
        """A new block after the current one; the current one if it is empty."""
        if not current.instructions and current.kind == FALL and current.sync is None:
            return current
        return self._block()

    def _check(self, instruction: Instruction) -> None:
        """Raise for unsupported instructions, and for operands that do not fit."""
        row = row_of(instruction)
        if row.memory is not None:
            name_space(instruction, self.emitter.space_of)
        check_gates(instruction, self.target, self.version)
        if row.refusal is not None:
            raise refused(instruction, row.refusal.reason, NotSimulated if row.refusal.valid else UnsupportedPtx)
        least, most = row.bounds
        if not row.counts(len(instruction.operands)):
            due = f"{least}" if least == most else f"{least} to {most}"
            raise PtxError(f"{instruction.name} takes {due} operands, not {len(instruction.operands)}")
        if row.forms is not None and not re.fullmatch(row.forms, ".".join(instruction.modifiers)):
            raise refused(instruction, "unknown form")
        check_operands(instruction, self.emitter.space_of)

    def _lines(self, instruction: Instruction) -> list[str]:
        name = name_of(instruction)
        builder = BUILDERS.get(name) or BUILDERS.get(instruction.opcode)
        if name in _VECTOR_MOVES:
            builder = None
        lines = self.emitter.lanewise(instruction) if builder is None else builder(self.emitter, instruction)
        if instruction.guard is None or not lines:
            return lines
        return self._guarded(instruction, lines)

    def _refuse(self, error: PtxError) -> None:
        """Keep the first error about valid PTX that is not simulated, for the launch; raise any other error."""
        if not isinstance(error, NotSimulated):
            raise error from None
        self.emitter.program.refusal = self.emitter.program.refusal or error

    def _explained(self, error: PtxError, instruction: Instruction | None = None) -> PtxError:
        """The error with the instruction's PTX line, kernel and source added."""
        said, line = str(error), error.line
        if instruction is not None:
            line = instruction.line
            if not error.line:
                said = f"PTX line {line}: {said}: {instruction.text.strip()}"
        explained = type(error)(said, line)
        explained.function = self.function.title
        explained.location = instruction.location if instruction is not None else None
        return self.explain(explained)

    def _guarded(self, instruction: Instruction, lines: list[str]) -> list[str]:
        emitter = self.emitter
        guard = instruction.guard
        if guard is None:
            return lines
        name = f"guarded_{emitter.names}"
        emitter.names += 1
        source = f"def {name}(f, r):\n" + "\n".join("    " + line for line in lines)
        reads = sorted({emitter.slots[o.name] for o in reads_of(instruction) if o.name in emitter.slots})  # type: ignore[union-attr]
        writes = sorted({emitter.slot(o) for o in writes_of(instruction)} | self._param_writes(instruction))
        # compiled on first use, in the namespace of the block that calls it
        namespace = emitter.program.namespace
        lazy = GuardedInstruction(source, name, namespace, emitter.slot(guard[0]), guard[1], reads, writes)
        return [f"{emitter.bind(lazy)}(f, r)"]

    def _param_writes(self, instruction: Instruction) -> set[int]:
        """Slots of call parameters that an instruction writes partly."""
        if instruction.opcode != "st" or not any(m.startswith("param") for m in instruction.modifiers):
            return set()
        operand, slots = instruction.operands[0], self.emitter.slots
        base = operand.base if isinstance(operand, Address) else operand
        return {slots[base.name]} if isinstance(base, Symbol) and base.name in slots else set()

    def _end(self, current: BasicBlock, instruction: Instruction, ends: Flow) -> BasicBlock:
        emitter = self.emitter
        if instruction.guard is not None and ends is not Flow.JUMP:
            self._jump_over(current, instruction)
            current = self._block()
        current.instructions.append(instruction)
        if ends is Flow.JUMP:
            target = instruction.operands[0]
            if not isinstance(target, Label):
                raise refused(instruction, "the target is not a label")
            current.labels = (target.name,)
            current.kind = JUMP
            if instruction.guard is not None:
                register, negated = instruction.guard
                current.kind, current.slot, current.negated = BRANCH, emitter.slot(register), negated
        elif ends is Flow.SWITCH:
            index, table = instruction.operands[0], instruction.operands[1]
            if not isinstance(index, Register) or not isinstance(table, Label):
                raise refused(instruction)
            current.kind, current.slot = SWITCH, emitter.slot(index)
            current.labels = tuple(self.function.branch_targets[table.name])
        elif ends is Flow.EXIT or (ends is Flow.RETURN and self.function.entry):
            current.kind = EXIT
        elif ends is Flow.RETURN:
            current.kind = RETURN
        elif ends is Flow.CALL:
            self._call(current, instruction)
        elif ends is Flow.REGISTERS:
            count = instruction.operands[0]
            current.kind, current.sync = REGISTERS, sync_of(emitter, instruction)
            current.registers = RegisterCall(instruction, count.bits if isinstance(count, Immediate) else 0)
        elif ends is Flow.WAIT:
            mbarriers.end_with_wait(emitter, current, instruction)
        else:
            end_with_barrier(emitter, current, instruction)
        return self._block()

    def _skipped(self, current: BasicBlock, instruction: Instruction) -> BasicBlock:
        """An instruction in a block of its own, over which lanes jump if its guard does not hold: whole warps execute
        it, and it may write registers that are not among its operands."""
        self._jump_over(current, instruction)
        current = self._block()
        current.sync = sync_of(self.emitter, instruction)
        builder = BUILDERS[name_of(instruction)]
        current.instructions.append(instruction)
        current.marks.append((0, instruction))
        current.lines.extend(builder(self.emitter, instruction))
        return self._block()

    def _jump_over(self, current: BasicBlock, instruction: Instruction) -> None:
        """End a block with a branch over the next one, taken if the guard of an instruction does not hold."""
        guard = instruction.guard
        if guard is None:
            return
        current.kind, current.slot, current.negated = BRANCH, self.emitter.slot(guard[0]), not guard[1]
        current.instructions.append(instruction)
        current.target = len(self.emitter.program.blocks) + 1

    def _call(self, current: BasicBlock, instruction: Instruction) -> None:
        emitter = self.emitter
        returns, callee, params = instruction.operands[:3]
        returns = returns if isinstance(returns, tuple) else ()
        params = params if isinstance(params, tuple) else ()
        arguments = [emitter.slots[p.name] for p in params if isinstance(p, (Symbol, Register))]
        results = [emitter.slots[p.name] for p in returns if isinstance(p, (Symbol, Register))]
        if isinstance(callee, Register):
            current.kind, current.slot = INDIRECT, emitter.slot(callee)
            current.arguments, current.results = tuple(arguments), tuple(results)
            sizes = tuple(tuple(emitter.call_params[p.name].size for p in side) for side in (returns, params))  # type: ignore[union-attr]
            current.pointers = PointerCall(sizes, self._listed(instruction.operands[3]))
            return
        if not isinstance(callee, Symbol):
            raise refused(instruction)
        target = emitter.module.functions.get(callee.name)
        system = SYSTEM_CALLS.get(callee.name)
        if system is not None and target is not None and not target.body:
            if target.sizes != PARAMETERS[callee.name]:
                raise PtxError(f"{callee.name} is declared with parameters that it does not have")
            emitter.program.symbols.add(callee.name)
            current.marks.append((len(current.lines), instruction))
            values = ", ".join(f"r[{slot}]" for slot in arguments)
            call = f"{emitter.bind(system(emitter, instruction))}(f, ({values},))"
            current.lines.append(f"r[{results[0]}] = {call}" if results else call)
            return
        if target is None or not target.body:
            why = f"call of {callee.name!r}, which this module declares but does not define"
            if callee.name.startswith(_DEVICE_LAUNCHES):
                why = (
                    f"call of {callee.name!r}: device-side launches are not simulated: launch the kernel from the host"
                )
            raise NotSimulated(why)
        current.kind = CALL
        current.arguments, current.results = tuple(arguments), tuple(results)
        emitter.program.callees.add(callee.name)
        current.callee_name = callee.name

    def _listed(self, last: Operand | None) -> frozenset[str] | None:
        """The functions that an indirect call lists as its targets; None if it has a prototype."""
        name = last.name if isinstance(last, Symbol) else ""
        if name in self.function.prototypes:
            return None
        functions, targets = self.emitter.module.functions, self.function.call_targets.get(name)
        names = targets or [symbol for _, symbol, _, _ in self.emitter.module.variables[name].relocations]
        return frozenset(functions[name].name for name in names)
