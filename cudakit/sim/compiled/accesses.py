"""Loads and stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cudakit.sim.compiled.arithmetic import Unsupported
from cudakit.sim.compiled.context import I32, conditions
from cudakit.sim.compiled.ir import Value, Variable
from cudakit.sim.compiled.kernel_code import Counted, Group
from cudakit.sim.compiled.layout import CACHE_BYTES, CHUNKS, EQUAL, FINE, IN_A_ROW, LANES, WIDTH
from cudakit.sim.compiled.operands import RegisterOperands
from cudakit.sim.compiled.steps import StepWriter
from cudakit.sim.lockstep.memory import SHARED_START
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.ptx.ir import Address, Instruction, Operand, Register, Symbol, Vector
from cudakit.sim.ptx.modifiers import EVICTION_L1, LOAD_CACHES, PREFETCH_SIZES, STORE_CACHES
from cudakit.sim.values.lanewise import width

_CACHE_HINTS = frozenset((*LOAD_CACHES, *STORE_CACHES, *EVICTION_L1, *PREFETCH_SIZES, "nc", "weak"))
_SPACES = frozenset(("global", "shared", "shared::cta", "const", "local"))


def space_of(instruction: Instruction) -> str:
    """The state space of a load or store: "shared", "local", "param", or "global", which includes generic and
    constant."""
    for modifier in instruction.modifiers:
        if modifier in ("shared", "shared::cta"):
            return "shared"
        if modifier.startswith("param"):
            return "param"
        if modifier == "local":
            return "local"
        if modifier == "shared::cluster":
            raise Unsupported(instruction.name)
    return "global"


def parts_of(operand: Operand | None) -> tuple[Operand | None, int]:
    """The base and the offset of an address."""
    return (operand.base, operand.offset) if isinstance(operand, Address) else (operand, 0)


class AccessWriter(StepWriter):
    """Writes the loads and stores of a basic block."""

    def _check_form(self, instruction: Instruction) -> tuple[int, int]:
        """Elements and bytes of an element of a load or store."""
        *mods, kind = instruction.modifiers
        count = 1
        for modifier in mods:
            if modifier in ("v2", "v4"):
                count = int(modifier[1])
            elif modifier not in _CACHE_HINTS and modifier not in _SPACES:
                raise Unsupported(instruction.name)
        if width(kind) not in (8, 16, 32, 64) or len(instruction.operands) != 2:
            raise Unsupported(instruction.name)
        return count, width(kind) // 8

    def _load(self, instruction: Instruction) -> None:
        kernel, code = self.kernel, self.code
        target, source = instruction.operands[0], instruction.operands[1]
        targets: list[Operand | None] = list(target.elements) if isinstance(target, Vector) else [target]
        if any(t is not None and not isinstance(t, Register) for t in targets):
            raise Unsupported(instruction.name)
        space = space_of(instruction)
        if space == "param":
            base, offset = parts_of(source)
            kind = instruction.modifiers[-1]
            if (
                not isinstance(base, Symbol)
                or base.name not in kernel.param_offsets
                or instruction.guard is not None
                or width(kind) < 8
            ):
                raise Unsupported(instruction.name)
            start = kernel.param_offsets[base.name] + offset
            for number, one in enumerate(targets):
                value = kernel.params.at(start + number * width(kind) // 8).load(f"i{width(kind)}", 1)
                self._set_uniform_later(one, self._extended(one, value, kind))
            return
        count, size = self._check_form(instruction)
        if count != len(targets):
            raise Unsupported(instruction.name)
        if space == "shared":
            return self._load_shared(instruction, targets, size)
        self._flush()
        access = kernel.access(instruction)
        base, offset = parts_of(source)
        kind = instruction.modifiers[-1]
        if space == "local":
            site = kernel.site_pointer(kernel.place(Counted("local", access.size, [access.site])))
            bases = self._spread(base, "u64")
            shape = [code.const("i32", number) for number in (count, size)]
            with self._guarded(instruction) as mask:
                scratch = self._targets(targets, size)
                local = (bases, code.const("i64", offset), mask, kernel.vectors, *shape, code.thread, site)
                self._call("local_load", *local)
                self._extend(scratch, kind, mask)
            return
        place, cache = self._global_site(access.site, access.size)
        if self._is_uniform(base):
            address = self.uniform.read(base, "u64") + offset
            whole = code.const("i64", access.size)
            with self._guarded_results(instruction, targets) as (mask, results):
                host = code.call("global_one", "i64", code.context, cache, address, mask, whole, code.thread, place)
                self.bail_if(host.eq(0))
                memory = code.pointer(host)
                for number, (one, result) in enumerate(zip(targets, results, strict=True)):
                    value = memory.at(number * size).load(f"i{8 * size}", 1)
                    self._set_result(one, result, self._extended(one, value, kind), mask)
            return
        with self._guarded(instruction) as mask:
            scratch = self._targets(targets, size)
            bases = kernel.register(base.name)  # type: ignore[union-attr]
            shape = [code.const("i32", number) for number in (len(targets), size)]
            arguments = (cache, bases, code.const("i64", offset), mask, kernel.vectors, *shape, code.thread, place)
            self._call("global_load", *arguments)
            self._extend(scratch, kind, mask)

    def _call(self, name: str, *arguments: Value) -> None:
        """Call a function of the runtime that can fail."""
        self.bail_if(self.code.call(name, "i32", self.code.context, *arguments).ne(FINE))

    def _global_site(self, site: Site, size: int) -> tuple[Value, Value]:
        """The places of an access to global memory in the table of sites and in that of allocations."""
        kernel = self.kernel
        cache = kernel.caches.at(CACHE_BYTES * len(kernel.found))
        kernel.found.append(site)
        return kernel.site_pointer(kernel.place(Counted("global", size, [site]))), cache

    @contextmanager
    def _guarded(self, instruction: Instruction) -> Iterator[Value]:
        """The mask of the lanes that execute an instruction; the code is skipped if there are none."""
        kernel, code = self.kernel, self.code
        if instruction.guard is None:
            yield kernel.mask
            return
        register, negated = instruction.guard
        if kernel.varies(register.name):
            bits = kernel.register(register.name).load("i32")
        else:
            bits = self.uniform.read(register, "pred").select(code.const("i32", -1), code.const("i32", 0))
        mask = kernel.mask & (~bits if negated else bits)
        with code.if_(mask.ne(0)):
            yield mask

    @contextmanager
    def _guarded_results(
        self, instruction: Instruction, targets: list[Operand | None]
    ) -> Iterator[tuple[Value, list[Variable | None]]]:
        """As ``_guarded``, for results that all lanes share: also yields a variable for each target that does not vary,
        if there is a guard. The target keeps its value if no lane executes the instruction."""
        kept: list[Variable | None] = [None] * len(targets)
        for number, one in enumerate(targets):
            if instruction.guard is not None and isinstance(one, Register) and not self.kernel.varies(one.name):
                old = self.uniform.read(one, one.type)
                kept[number] = variable = self.code.variable(old.kind, 0)
                variable.value = old
        with self._guarded(instruction) as mask:
            yield mask, kept
        for one, held in zip(targets, kept, strict=True):
            if held is not None:
                self.uniform.write(one, held.value)

    def _set_result(self, register: Operand | None, kept: Variable | None, value: Value, mask: Value) -> None:
        """Set a target of ``_guarded_results``."""
        if kept is None:
            self._set_uniform(register, value, mask)
        else:
            kept.value = value

    def _extended(self, register: Operand | None, value: Value, kind: str) -> Value:
        """A loaded value of a type as one of the width of its register."""
        if not isinstance(register, Register):
            return value
        bits = self.kernel.bits(register.name)
        if bits < width(kind):
            raise Unsupported("a register that is narrower than what is loaded")
        return value.to(f"i{bits}", kind[0] == "s")

    def _targets(self, registers: list[Operand | None], size: int) -> list[tuple[Register, Value]]:
        """Set the array of pointers to the memory for loaded elements: registers of the elements' width, or other
        memory, which is returned with its register."""
        kernel = self.kernel
        found = []
        for number, one in enumerate(registers):
            if isinstance(one, Register) and not kernel.varies(one.name):
                raise Unsupported("a uniform register for what differs")
            if isinstance(one, Register) and size >= 4 and kernel.bits(one.name) == 8 * size:
                memory = kernel.register(one.name)
            else:
                memory = self.code.array("i64" if size == 8 else "i32", LANES)
                if isinstance(one, Register):
                    found.append((one, memory))
            kernel.vectors.at(8 * number).store(memory)
        return found

    def _extend(self, scratch: list[tuple[Register, Value]], kind: str, mask: Value) -> None:
        """Move loaded elements to registers of other widths."""
        if not scratch:
            return
        code = self.code
        with code.for_(code.const("i64", CHUNKS)) as chunk:
            here = conditions(code, mask >> (chunk.to("i32") * WIDTH), WIDTH)
            for register, memory in scratch:
                value = memory.at(chunk * (4 * WIDTH)).load(f"<{WIDTH} x i32>", 4).to(f"i{width(kind)}")
                value = self._extended(register, value, kind)
                place = self.kernel.register(register.name).at(chunk * (WIDTH * self.kernel.bits(register.name) // 8))
                place.mix(here, value, 16)

    def _load_shared(self, instruction: Instruction, targets: list[Operand | None], size: int) -> None:
        kernel, code = self.kernel, self.code
        base, offset = parts_of(instruction.operands[1])
        group = kernel.grouped[id(instruction)]
        if not group.begun:
            group.begun = True
            self._flush()
            if instruction.guard is None:
                group.lie = self._begin(group, base, kernel.mask)
            else:
                lie = code.variable("i32", EQUAL)
                lie.value = EQUAL
                group.scratch = code.array("i32", LANES)
                # if no lane loads: the first byte of shared memory
                group.scratch.store(code.const(I32, group.rest - offset), 32)
                with self._guarded(instruction) as mask:
                    lie.value = self._begin(group, base, mask)
                group.lie = lie.value
        if not self._is_uniform(base):
            self.pending.append(instruction)
            return
        start = (self.uniform.read(base, "u32") - SHARED_START + offset).to("i64")
        kind = instruction.modifiers[-1]
        if instruction.guard is None:
            for number, one in enumerate(targets):
                value = kernel.shared.at(start).at(number * size).load(f"i{8 * size}", 1)
                self._set_uniform_later(one, self._extended(one, value, kind))
            return
        self._flush()
        with self._guarded_results(instruction, targets) as (mask, results):
            for one, result in zip(targets, results, strict=True):
                value = kernel.shared.at(start).load(f"i{8 * size}", 1)
                self._set_result(one, result, self._extended(one, value, kind), mask)
                start = start + size

    def _begin(self, group: Group, base: Operand | None, mask: Value) -> Value:
        """Check and count the loads of a group by the lanes of a mask; returns how their offsets lie."""
        kernel, code = self.kernel, self.code
        granule = kernel.shared_granule
        starts = [at - group.rest for at in group.offsets]
        words = sorted({at + granule * cell for at in starts for cell in range(group.size // granule)})
        offsets = Value(code, "ptr", kernel.module.numbers(words))
        bases = self._spread(base, "u32")
        if not hasattr(group, "scratch"):
            group.scratch = code.array("i32", LANES)
        numbers = [len(words), min(starts), max(starts) + group.size, group.size - 1, group.kind]
        lie = code.call(
            "shared_group",
            "i32",
            code.context,
            code.state,
            bases,
            code.const("i32", SHARED_START - group.rest),
            group.scratch,
            mask,
            offsets,
            *(code.const("i32", number) for number in numbers),
            code.thread,
            kernel.site_pointer(group.place),
        )
        self.bail_if(lie.is_("slt", 0))
        return lie

    def _shared_vector(self, operands: RegisterOperands, instruction: Instruction) -> None:
        """The elements of one vector of lanes of a load whose group has been checked."""
        kernel, code = self.kernel, self.code
        group = kernel.grouped[id(instruction)]
        _, offset = parts_of(instruction.operands[1])
        target = instruction.operands[0]
        targets = target.elements if isinstance(target, Vector) else (target,)
        size = width(instruction.modifiers[-1]) // 8
        assert operands.chunk is not None
        starts = group.scratch.at(operands.chunk * (4 * WIDTH)).load(f"<{WIDTH} x i32>", 16)
        first = starts[0].to("i64", True)
        kind = f"<{WIDTH} x i{8 * size}>"
        for number, one in enumerate(targets):
            if one is None:
                continue
            at = offset - group.rest + number * size
            equal, row, anyhow, done = (code.new_label() for _ in range(4))
            # a row is of words: smaller elements at such places are not next to each other
            cases = [f"i32 {EQUAL}, label %{equal}"] + [f"i32 {IN_A_ROW}, label %{row}"] * (size == 4)
            code.line(f"switch {group.lie}, label %{anyhow} [{' '.join(cases)}]")
            code.label(equal)
            a = kernel.shared.at(first).at(at).load(f"i{8 * size}").splat(WIDTH)
            found = [f"[{a.name}, %{equal}]"]
            code.jump(done)
            if size == 4:
                code.label(row)
                b = kernel.shared.at(first).at(at).load(kind, 4)
                found.append(f"[{b.name}, %{row}]")
                code.jump(done)
            code.label(anyhow)
            wide = starts.to("i64", True)
            places = code.let(f"<{WIDTH} x ptr>", f"getelementptr i8, {kernel.shared.at(at)}, {wide}")
            c = code.gather(kind, places)
            found.append(f"[{c.name}, %{anyhow}]")
            code.jump(done)
            code.label(done)
            value = code.let(kind, f"phi {kind} {', '.join(found)}")
            operands.write(one, self._extended(one, value, instruction.modifiers[-1]))

    def _vector(self, operands: RegisterOperands, instruction: Instruction) -> None:
        if instruction.opcode == "ld":
            self._shared_vector(operands, instruction)
        else:
            super()._vector(operands, instruction)

    def _store(self, instruction: Instruction) -> None:
        kernel, code = self.kernel, self.code
        count, size = self._check_form(instruction)
        space = space_of(instruction)
        if space == "param":
            raise Unsupported(instruction.name)
        access = kernel.access(instruction)
        source = instruction.operands[1]
        sources = list(source.elements) if isinstance(source, Vector) else [source]
        if count != len(sources):
            raise Unsupported(instruction.name)
        self._flush()
        values = [self._spread(one, f"b{8 * size}") for one in sources]
        for number, value in enumerate(values):
            kernel.vectors.at(8 * number).store(value)
        base, offset = parts_of(instruction.operands[0])
        shape = [code.const("i32", number) for number in (len(sources), size)]
        if space == "shared":
            place = kernel.site_pointer(kernel.place(Counted("shared", access.counted, [access.site])))
            bases = self._spread(base, "u32")
            kind = code.const("i32", access.counted * 2 + access.paired)
            start = code.const("i32", SHARED_START - offset)
            with self._guarded(instruction) as mask:
                arguments = (code.state, bases, start, mask, kernel.vectors, *shape, kind, code.thread, place)
                self._call("shared_store", *arguments)
            return
        if space == "local":
            place = kernel.site_pointer(kernel.place(Counted("local", access.size, [access.site])))
            bases = self._spread(base, "u64")
            with self._guarded(instruction) as mask:
                local = (bases, code.const("i64", offset), mask, kernel.vectors, *shape, code.thread, place)
                self._call("local_store", *local)
            return
        place, cache = self._global_site(access.site, access.size)
        bases = self._spread(base, "u64")
        with self._guarded(instruction) as mask:
            arguments = (cache, bases, code.const("i64", offset), mask, kernel.vectors, *shape, code.thread, place)
            self._call("global_store", *arguments)
