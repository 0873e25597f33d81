"""The state of a stopped kernel: the call frames of its threads, and the variables and memory that they see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cudakit.debugger import types
from cudakit.debugger.code import Code
from cudakit.debugger.dwarf import Constant, DebugVariable, InMemory, InRegister
from cudakit.debugger.expressions import Value, of_numbers
from cudakit.debugger.syntax import ExpressionError
from cudakit.debugger.types import Array, CType, Enum, Member, Struct
from cudakit.sim.instructions.special import special
from cudakit.sim.lockstep.clusters import home_of, own_base
from cudakit.sim.lockstep.fragment import Batch, Fragment, Frame
from cudakit.sim.lockstep.memory import LOCAL_WINDOW, PARAM_WINDOW, SHARED_START, SHARED_WINDOW, MemoryFault
from cudakit.sim.lockstep.owners import named_offsets, to_generic
from cudakit.sim.lockstep.program import BARRIER, reads_of, writes_of
from cudakit.sim.lockstep.report import Index3
from cudakit.sim.ptx.ir import Instruction, NotSimulated

_DIM3 = Struct("dim3", 12, [Member(axis, types.UINT, 4 * place) for place, axis in enumerate("xyz")])
_DIM3_REGISTERS = {"threadIdx": "tid", "blockIdx": "ctaid", "blockDim": "ntid", "gridDim": "nctaid"}
# C++ types for the PTX types of registers, which no variable names
_BY_KIND: dict[str, CType] = {"pred": types.BOOL, "f16": types.NAMED["__half"], "f32": types.FLOAT, "f64": types.DOUBLE}


def _type_of_register(kind: str, size: int) -> CType:
    """The C++ type that shows a register of a PTX type, held in `size` bytes."""
    return _BY_KIND.get(kind) or types.base(kind, "signed" if kind[0] == "s" else "unsigned", size)


@dataclass(frozen=True)
class Place:
    """Threads of one fragment, and the instruction that each of them executes next: `waits` is the barrier at which
    they wait, in words, or ""."""

    f: Fragment
    instruction: Instruction
    waits: str = ""

    def holds(self, lane: int) -> int | None:
        """The position of a lane of the batch in the fragment; None if it is not in it."""
        found = int(np.searchsorted(self.f.lanes.lanes, lane))
        return found if found < self.f.lanes.count and int(self.f.lanes.lanes[found]) == lane else None


def places(batch: Batch, running: Place) -> list[Place]:
    """All live threads of a batch; `running` are those that have stopped."""
    found = [running]
    scheduler = batch.scheduler
    if scheduler is None:
        return found
    at = {id(f): (instruction, what) for f, instruction, what in scheduler.barrier_waits()}
    others = scheduler.fragments()
    last = scheduler.running
    if last is not None and all(f is not last for f in others):
        # a report about other threads stops the one that ran last too
        others.append(last)
    for f in others:
        left = ~np.isin(f.lanes.lanes, running.f.lanes.lanes)
        if not left.any():
            continue
        rest = f
        if not left.all():  # a report about a part of a fragment
            split = f.lanes.split(left)
            rest = f.part(split.yes, split.set_yes, f.block)
        block, before = f.program.blocks[f.block], f.program.blocks[f.block - 1]
        if id(f) in at:
            found.append(Place(rest, *at[id(f)]))
        elif f is last and before.kind == BARRIER and before.fall == f.block:
            found.append(Place(rest, before.end))
        elif block.instructions:
            waits = "other lanes of its warp" if any(f in fs for fs in scheduler.queue.deferred.values()) else ""
            found.append(Place(rest, block.instructions[0], waits))
    return found


@dataclass(frozen=True)
class CallFrame:
    """An active call: its `depth` in the fragment's frames, and the instruction that is executed next in it; in a
    caller, the call."""

    f: Fragment
    depth: int
    instruction: Instruction

    @property
    def frame(self) -> Frame:
        return self.f.frames[self.depth]

    @property
    def regs(self) -> Any:
        return self.f.regs if self.depth == len(self.f.frames) - 1 else self.frame.regs


def frames(place: Place) -> Iterator[CallFrame]:
    """The active calls of a fragment, the innermost first."""
    f = place.f
    instruction = place.instruction
    for depth in range(len(f.frames) - 1, -1, -1):
        yield CallFrame(f, depth, instruction)
        if depth:
            caller = f.frames[depth - 1].program
            instruction = caller.blocks[f.frames[depth].resume - 1].end


class View:
    """The variables and memory of some threads of a frame: the environment of expressions. `positions` are those of the
    threads in the frame's fragment."""

    def __init__(self, code: Code, frame: CallFrame, positions: Array) -> None:
        self.code = code
        self.frame = frame
        self.positions = positions
        self.count = len(positions)
        self.f = frame.f
        self.batch = frame.f.batch
        self.program = frame.frame.program
        self.number = code.number(self.program, frame.instruction)
        # the values that print has shown
        self.history: list[Value] = []

    def subset(self, mask: Array) -> View:
        """The same frame of the threads for which the mask is true."""
        view = View(self.code, self.frame, self.positions[mask])
        view.history = self.history
        return view

    def recalled(self, text: str) -> Value:
        """The value that print has shown as $3, or last ($). Raises ExpressionError if there is none."""
        number = int(text[1:] or len(self.history))
        if not 0 < number <= len(self.history):
            raise ExpressionError(f"no value {text} has been printed")
        value = self.history[number - 1]
        if self.count == 1 or value.rows is None:
            return value
        return Value(value.type, np.repeat(value.rows[:1], self.count, axis=0))

    # ---- names ----

    def find(self, name: str) -> Value | None:
        """A local variable, a parameter, a shared or global variable, a member of `this`, or a built-in variable."""
        for variable in self.code.variables(self.program, self.number):
            if variable.name == name:
                return self.value(variable)
        for scope in (self.program.name, ""):
            shared = self.code.shared.get(scope, {}).get(name)
            if shared is not None:
                return self.value(shared)
        if name in _DIM3_REGISTERS:
            columns = [self.special(f"%{_DIM3_REGISTERS[name]}.{axis}") for axis in "xyz"]
            return Value(_DIM3, np.stack(columns, axis=1).astype(np.uint32).view(np.uint8).reshape(self.count, 12))
        if name == "warpSize":
            return of_numbers(types.INT, np.full(self.count, 32, np.int32))
        known = [variable.name for variable in self.code.info.variables.values()]
        wanted = name if name in known else next((one for one in known if one.endswith(f"::{name}")), None)
        for variable in self.code.info.variables.values():
            if variable.name == wanted:
                return self.value(variable)
        return self._module_variable(name) or self._member_of_this(name) or self._enumerator(name)

    def _enumerator(self, name: str) -> Value | None:
        for kind in self.code.info.types.values():
            for number, known in kind.names.items() if isinstance(kind, Enum) else ():
                if f"::{known}".endswith(f"::{name}"):
                    return of_numbers(kind, np.full(self.count, number))
        return None

    def _module_variable(self, name: str) -> Value | None:
        """A global of code without variables in its debug information: its bytes."""
        if name not in self.code.globals:
            return None
        address, size = self.code.globals[name]
        return Value(types.array_of(types.BYTE, size), None, np.full(self.count, address, np.uint64))

    def _member_of_this(self, name: str) -> Value | None:
        for variable in self.code.variables(self.program, self.number):
            if variable.name == "this":
                pointer = self.value(variable)
                target = getattr(variable.type.plain, "target", types.VOID)
                member = target.plain.find(name) if isinstance(target.plain, Struct) else None
                if member is not None and pointer.rows is not None:
                    addresses = np.ascontiguousarray(pointer.rows).view(np.uint64)[:, 0] + np.uint64(member.offset)
                    return Value(member.type, None, addresses, member=member)
        return None

    def missing(self, name: str) -> str:
        """Why there is no variable of this name."""
        if not self.code.debug:
            return (
                f"no variable {name!r}: this kernel's code is optimised and has lines and registers only; compile it "
                "with -G (cudakit debug does so unless --lines is given), or use `info registers`"
            )
        known = [v.name for v in self.code.variables(self.program, self.number)]
        inside = f"; in scope: {', '.join(dict.fromkeys(known))}" if known else ""
        return f"no variable {name!r} at this line{inside}"

    def type(self, name: str) -> CType | None:
        """A type by its C++ name."""
        return self.code.info.types.get(name)

    def held_in(self, variable: DebugVariable) -> Constant | InRegister | InMemory | None:
        """The place of a variable at this instruction; None if it is in none. NVRTC also names registers of values that
        it has removed."""
        place = variable.at(self.number)
        return None if isinstance(place, InRegister) and place.name not in self.program.slots else place

    def value(self, variable: DebugVariable) -> Value:
        """A variable's value. Raises ExpressionError if it is not available at this instruction."""
        place = self.held_in(variable)
        if place is None:
            raise ExpressionError(
                f"{variable.name} has no value here: it is not in use yet or any more (optimised out)"
            )
        if isinstance(place, Constant):
            data = (place.value & ((1 << 8 * variable.type.size) - 1)).to_bytes(max(variable.type.size, 1), "little")
            return Value(variable.type, np.tile(np.frombuffer(data, np.uint8), (self.count, 1)))
        if isinstance(place, InRegister):
            return self._in_register(place.name, variable.type)
        addresses = self.address(place)
        if addresses is None:
            raise ExpressionError(f"{variable.name} is in {place.symbol}, which this kernel does not have")
        size = variable.type.size or self._dynamic_bytes(variable.type)
        kind = variable.type if variable.type.size else self._sized(variable.type, size)
        return Value(kind, None, addresses)

    def _dynamic_bytes(self, kind: CType) -> int:
        return self.batch.run.config.dynamic_shared

    @staticmethod
    def _sized(kind: CType, size: int) -> CType:
        """Dynamic shared memory with the size of this launch."""
        plain = kind.plain
        if isinstance(plain, types.ArrayType) and plain.element.size and size >= plain.element.size:
            return types.array_of(plain.element, size // plain.element.size)
        return kind

    def address(self, place: InMemory) -> Array | None:
        """The generic address of a variable of the PTX, per thread; None if the kernel does not have it."""
        offset = np.uint64(place.offset)
        local = self.program.local_offsets
        name = next((n for n in local if n.split("#")[0] == place.symbol), None)
        if name is not None:
            address = np.uint64(self.frame.frame.local_base + local[name]) + offset
            generic = np.broadcast_to(to_generic(self.f, address), (self.f.lanes.count,))
            return generic.take(self.positions)
        shared = self.batch.run.config.shared_symbols.get(place.symbol)
        if shared is not None:
            own = np.broadcast_to(np.asarray(own_base(self.f)), (self.f.lanes.count,)).take(self.positions)
            return own + np.uint64(SHARED_WINDOW + shared) + offset
        if place.symbol in self.code.globals:
            return np.full(self.count, self.code.globals[place.symbol][0], np.uint64) + offset
        return None

    # ---- registers ----

    @cached_property
    def kept(self) -> set[int]:
        """The slots of the registers that have a value here: those that are live in the basic block, or used in it."""
        program, instruction = self.program, self.frame.instruction
        block = next(
            b for b in range(len(program.blocks)) if any(i is instruction for i in program.blocks[b].instructions)
        )
        used = {o.name for i in program.blocks[block].instructions for o in (*reads_of(i), *writes_of(i))}  # type: ignore[union-attr]
        return set(program.live[block]) | {program.slots[name] for name in used if name in program.slots}

    def register(self, name: str) -> Value | None:
        """A PTX register, as %r1 or $r1, or a special one, as $tid.x."""
        name = f"%{name[1:]}"
        if name in self.program.slots:
            return self._in_register(name, None)
        try:
            found = self.special(name)
        except NotSimulated:
            return None
        return of_numbers(types.ULONG if found.dtype.itemsize == 8 else types.UINT, found)

    def special(self, name: str) -> Array:
        """A special register such as %tid.x, per thread. Raises NotSimulated for an unknown one."""
        getter, _ = special(name, (0, 0))
        found: Array = np.broadcast_to(np.asarray(getter(self.f)), (self.f.lanes.count,)).take(self.positions)
        return found

    def raw_register(self, slot: int) -> Array:
        """A register's value per thread, in its storage."""
        held = np.asarray(self.frame.regs[slot])
        if held.dtype.kind == "V" or held.ndim == 2:
            rows = np.frombuffer(held.tobytes(), np.uint8)[None, :] if held.ndim == 0 else held
            found: Array = np.broadcast_to(rows, (self.f.lanes.count, rows.shape[1]))[self.positions]
            return found
        found = np.broadcast_to(held, (self.f.lanes.count,)).take(self.positions)
        return found

    def _in_register(self, name: str, kind: CType | None) -> Value:
        slot = self.program.slots.get(name)
        if slot is None:
            raise ExpressionError(f"the register {name} is not used in this function")
        if kind is None and slot not in self.kept:
            raise ExpressionError(f"the register {name} has no value here: the function does not need it any more")
        held = self.raw_register(slot)
        if kind is None:
            kind = _type_of_register(self.program.function.registers[name], held.dtype.itemsize)
        rows = _rows(held.astype(np.uint8) if held.dtype == np.bool_ else held)
        if rows.shape[1] < kind.size:
            rows = np.pad(rows, ((0, 0), (0, kind.size - rows.shape[1])))
        return Value(kind, rows[:, : max(kind.size, 1)], register=name)

    # ---- memory ----

    def load(self, addresses: Array, size: int) -> Array:
        """The bytes at generic addresses, (threads, size). Raises ExpressionError for memory that is not accessible."""
        out = np.zeros((len(addresses), size), np.uint8)
        done = np.zeros(len(addresses), np.bool_)
        spans = (
            (PARAM_WINDOW, 1 << 63, self._load_param),
            (LOCAL_WINDOW, PARAM_WINDOW, self._load_local),
            (SHARED_WINDOW, LOCAL_WINDOW, self._load_shared),
        )
        for low, high, load in spans:
            chosen = np.flatnonzero((addresses >= np.uint64(low)) & (addresses < np.uint64(high)))
            if len(chosen):
                out[chosen] = load(addresses[chosen] - np.uint64(low), size, chosen)
                done[chosen] = True
        space = self.batch.run.space
        while not done.all():
            first = int(addresses[int(np.argmin(done))])
            try:
                allocation = space.covering(first, size)
            except MemoryFault as fault:
                raise ExpressionError(f"cannot read {fault.where}") from None
            same = ~done & (addresses >= np.uint64(allocation.address))
            same &= addresses <= np.uint64(allocation.end - size)
            offsets = (addresses[same] - np.uint64(allocation.address)).astype(np.int64)
            out[same] = allocation.data[offsets[:, None] + np.arange(size)]
            done |= same
        return out

    def _load_local(self, offsets: Array, size: int, chosen: Array) -> Array:
        store = self.batch.local
        lanes = self.f.lanes.lanes[self.positions[chosen]]
        named = named_offsets(self.f, self.positions[chosen], offsets.astype(np.int64))
        return self._rows_of(store, lanes, named, size, "the thread's local")

    def _load_shared(self, offsets: Array, size: int, chosen: Array) -> Array:
        own = self.f.lanes.block[self.positions[chosen]]
        blocks, offsets = home_of(self.batch, own, offsets.astype(np.int64))
        clusters = self.batch.run.cluster_size
        if (blocks // clusters != own // clusters).any():
            raise ExpressionError("cannot read shared memory outside the cluster")
        return self._rows_of(self.batch.shared, blocks, offsets - SHARED_START, size, "shared")

    def _load_param(self, offsets: Array, size: int, chosen: Array) -> Array:
        store = self.batch.run.param_store
        starts = offsets.astype(np.int64)
        if (starts + size > len(store)).any():
            raise ExpressionError("cannot read past the kernel's parameters")
        found: Array = store[starts[:, None] + np.arange(size)]
        return found

    @staticmethod
    def _rows_of(store: Any, rows: Array, offsets: Array, size: int, space: str) -> Array:
        stride = 0 if store is None else store.stride
        if (offsets < 0).any() or (offsets + size > stride).any():
            raise ExpressionError(f"cannot read {size} bytes at offset {int(offsets[0])}: outside {space} memory")
        found: Array = store.bytes.reshape(-1, stride)[rows[:, None], offsets[:, None] + np.arange(size)]
        return found

    # ---- what there is ----

    def thread(self, position: int) -> tuple[Index3, Index3]:
        """The block and thread index of one of the threads."""
        return self.f.lane_place(int(self.positions[position]))

    def locals(self, *, parameters: bool) -> list[DebugVariable]:
        """The variables in scope, without those that an inner one hides: the function's parameters, or the others."""
        found: dict[str, DebugVariable] = {}
        for variable in self.code.variables(self.program, self.number):
            found.setdefault(variable.name, variable)
        return [variable for variable in found.values() if variable.parameter == parameters]

    def registers(self) -> Iterator[tuple[str, str, Array]]:
        """The registers that have a value here: name, PTX type, and value per thread."""
        for name, kind in self.program.function.registers.items():
            if self.program.slots[name] not in self.kept:
                continue
            value = self._in_register(name, None)
            found = types.numbers(value.type, value.rows) if value.rows is not None else None
            if found is not None:
                yield name, kind, found


def _rows(held: Array) -> Array:
    return np.ascontiguousarray(held).view(np.uint8).reshape(len(held), -1)
