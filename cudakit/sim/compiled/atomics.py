"""atom and red.

Updates that commute may happen in any order if nothing reads their results. The results of others depend on the order
of the lanes. The interpreter executes an instruction for many blocks at once, in the order of their lanes; machine code
runs warp by warp. The orders are the same for an instruction that is in no loop, if all blocks execute it after the
same number of barriers, and if no other atomic accesses the same memory: launch.py looks for that afterwards.
"""

from __future__ import annotations

from cudakit.sim.compiled.accesses import AccessWriter, parts_of
from cudakit.sim.compiled.analysis import repeats
from cudakit.sim.compiled.ir import Value
from cudakit.sim.compiled.kernel_code import Counted, Updates
from cudakit.sim.compiled.lanewise import Unsupported
from cudakit.sim.compiled.layout import ATOMIC_BYTES, LANES
from cudakit.sim.compiled.rounding import NAN32, NAN64, QUIET64
from cudakit.sim.lockstep.memory import SHARED_START
from cudakit.sim.ptx.ir import Instruction, Register
from cudakit.sim.values.lanewise import width

ATOMICS = ("atom", "red")
_BITS = ("b32", "b64")
_INTEGERS = ("u32", "s32", "u64", "s64")
_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64"),
    "min": _INTEGERS,
    "max": _INTEGERS,
    "and": _BITS,
    "or": _BITS,
    "xor": _BITS,
    "exch": _BITS,
    "cas": _BITS,
    "inc": ("u32",),
    "dec": ("u32",),
}
# scopes that include all blocks of the grid
_WIDE = frozenset(("gpu", "sys"))


class AtomicForm:
    """The form of an atomic. Raises Unsupported for those that are not compiled. ``unused``: nothing reads its
    result. ``commutes``: see Updates."""

    def __init__(self, instruction: Instruction, *, unused: bool) -> None:
        *modifiers, self.kind = instruction.modifiers
        left = set(modifiers)
        self.shared = bool(left & {"shared", "shared::cta"})
        operations = left & _TYPES.keys()
        # within a block's memory any scope will do
        left -= {"global", "shared", "shared::cta", "relaxed"} | operations | _WIDE
        if self.shared:
            left -= {"cta", "cluster"}
        self.operation = next(iter(operations), "")
        if left or len(operations) != 1 or self.kind not in _TYPES[self.operation]:
            raise Unsupported(instruction.name)
        self.unused = unused
        self.commutes: tuple[str, str] | None = None
        if unused and self.kind[0] != "f" and self.operation not in ("exch", "cas", "inc", "dec"):
            signed = self.operation in ("min", "max")
            self.commutes = self.operation, self.kind if signed else str(width(self.kind))


class AtomicWriter(AccessWriter):
    """Writes the atomics of a basic block."""

    def _atomic(self, instruction: Instruction) -> None:
        kernel, code = self.kernel, self.code
        form = AtomicForm(instruction, unused=kernel.unread(instruction))
        if form.commutes is None and repeats(kernel.program, self.index):
            raise Unsupported(f"{instruction.name} in a loop, whose results depend on the order of the lanes")
        operands = list(instruction.operands)
        target = operands.pop(0) if instruction.opcode == "atom" else None
        out = None
        if not form.unused:
            if not isinstance(target, Register) or kernel.bits(target.name) != width(form.kind):
                raise Unsupported(instruction.name)
            out = kernel.register(target.name)
        self._flush()
        access = kernel.access(instruction)
        base, offset = parts_of(operands[0])
        size = width(form.kind) // 8
        values = [self._spread(operand, form.kind) for operand in operands[1:]]
        hosts = code.array("i64", LANES)
        table = kernel.atomics.at(ATOMIC_BYTES * len(kernel.updates))
        kernel.updates.append(Updates("shared" if form.shared else "global", form.commutes))
        shape = code.const("i32", size)
        if form.shared:
            site = kernel.site_pointer(kernel.place(Counted("shared", access.counted, [access.site])))
            bases = self._spread(base, "u32")
            kind = code.const("i32", access.counted * 2 + access.paired)
            start, reads = code.const("i32", SHARED_START - offset), code.const("i1", form.operation != "exch")
            with self._guarded(instruction) as mask:
                checked = (code.state, bases, start, mask, shape, kind, reads, hosts, table, code.thread, site)
                self._call("shared_atomic", *checked)
                self._update(form, mask, hosts, values, out)
            return
        site, cache = self._global_site(access.site, access.size)
        bases = self._spread(base, "u64")
        one, ordered = code.const("i32", 1), code.const("i1", form.commutes is None)
        with self._guarded(instruction) as mask:
            arguments = (cache, bases, code.const("i64", offset), mask, one, shape, hosts, table, ordered)
            self._call("global_atomic", *arguments, code.thread, site)
            self._update(form, mask, hosts, values, out)

    def _update(self, form: AtomicForm, mask: Value, hosts: Value, values: list[Value], out: Value | None) -> None:
        """Update memory in the order of the lanes."""
        code, bits = self.code, width(form.kind)
        with code.each_bit(mask) as lane:
            place = code.pointer(hosts.at(lane.to("i64") * 8).load("i64"))
            at = lane.to("i64") * (bits // 8)
            given = [value.at(at).load(f"i{bits}") for value in values]
            old = place.load(f"i{bits}", 1)
            place.store(_updated(form, old, given), 1)
            if out is not None:
                out.at(at).store(old)


def _updated(form: AtomicForm, old: Value, given: list[Value]) -> Value:
    """The new value of an element."""
    operation, value = form.operation, given[-1]
    if operation == "add":
        if form.kind == "f32":
            return _float_sum(old, value, flushes=not form.shared)
        return _double_sum(old, value, near=form.shared) if form.kind == "f64" else old + value
    if operation in ("min", "max"):
        condition = ("s" if form.kind[0] == "s" else "u") + ("lt" if operation == "min" else "gt")
        return old.is_(condition, value).select(old, value)
    if operation in ("and", "or", "xor"):
        return old & value if operation == "and" else old | value if operation == "or" else old ^ value
    if operation == "exch":
        return value
    if operation == "cas":
        return old.eq(given[0]).select(value, old)
    if operation == "inc":
        return old.ge(value).select(0, old + 1)
    return (old.eq(0) | old.gt(value)).select(value, old - 1)


def _float_sum(old: Value, value: Value, *, flushes: bool) -> Value:
    """A sum of f32, with subnormals as zeros if it ``flushes``; a NaN is the canonical one."""

    def flushed(bits: Value) -> Value:
        return (bits & 0x7F800000).eq(0).select(bits & (1 << 31), bits) if flushes else bits

    total = flushed(old).bits("float") + flushed(value).bits("float")
    return total.is_("uno", total).select(NAN32, flushed(total.bits("i32")))


def _double_sum(old: Value, value: Value, *, near: bool) -> Value:
    """A sum of f64. If both are NaN, shared memory keeps its own; global memory takes the operand unchanged."""
    one, other = old.bits("double"), value.bits("double")
    total = one + other
    result = total.is_("uno", total).select(NAN64, total.bits("i64"))
    nan = one.is_("uno", one), other.is_("uno", other)
    if near:
        return nan[0].select(old | QUIET64, nan[1].select(value | QUIET64, result))
    return nan[1].select(value, nan[0].select(old, result))
