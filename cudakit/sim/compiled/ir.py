"""Writes LLVM IR as text: values with operators, variables, and structured control flow.

A vector type is written as LLVM writes it, ``<32 x i32>``. Comparisons and divisions are unsigned unless their name
starts with ``s``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

_VECTOR = re.compile(r"<(\d+) x (\w+)>")
_SIZES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "half": 2, "float": 4, "double": 8, "ptr": 8}


def element(kind: str) -> str:
    """The type of a vector's elements, or the type itself."""
    found = _VECTOR.fullmatch(kind)
    return found[2] if found else kind


def lanes(kind: str) -> int:
    """The number of a vector's elements; 0 for other types."""
    found = _VECTOR.fullmatch(kind)
    return int(found[1]) if found else 0


def like(kind: str, one: str) -> str:
    """The type with as many elements as ``kind``, of type ``one``."""
    count = lanes(kind)
    return f"<{count} x {one}>" if count else one


def size_of(kind: str) -> int:
    """Bytes of an element."""
    return _SIZES[element(kind)]


def literal(kind: str, value: Any) -> str:
    """A constant of a type: a number in all elements, or a list of numbers."""
    one = element(kind)
    if isinstance(value, (list, tuple)):
        return "<" + ", ".join(f"{one} {literal(one, v)}" for v in value) + ">"
    if one in ("float", "double"):
        text = f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    elif one == "i1":
        text = "true" if value else "false"
    elif one == "ptr":
        text = "null"
    else:
        text = str(int(value))
    count = lanes(kind)
    return "<" + ", ".join(f"{one} {text}" for _ in range(count)) + ">" if count else text


class Value:
    """A value of a function, with the operators of its type."""

    __slots__ = ("code", "kind", "name")

    def __init__(self, code: Code, kind: str, name: str) -> None:
        self.code, self.kind, self.name = code, kind, name

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def _with(self, other: Any) -> Value:
        return other if isinstance(other, Value) else Value(self.code, self.kind, literal(self.kind, other))

    def _op(self, integer: str, floating: str, other: Any) -> Value:
        op = floating if element(self.kind) in ("float", "double") else integer
        return self.code.let(self.kind, f"{op} {self}, {self._with(other).name}")

    def __add__(self, other: Any) -> Value:
        return self._op("add", "fadd", other)

    def __sub__(self, other: Any) -> Value:
        return self._op("sub", "fsub", other)

    def __mul__(self, other: Any) -> Value:
        return self._op("mul", "fmul", other)

    def __truediv__(self, other: Any) -> Value:
        return self._op("udiv", "fdiv", other)

    def __mod__(self, other: Any) -> Value:
        return self._op("urem", "frem", other)

    def __and__(self, other: Any) -> Value:
        return self._op("and", "and", other)

    def __or__(self, other: Any) -> Value:
        return self._op("or", "or", other)

    def __xor__(self, other: Any) -> Value:
        return self._op("xor", "xor", other)

    def __lshift__(self, other: Any) -> Value:
        return self._op("shl", "shl", other)

    def __rshift__(self, other: Any) -> Value:
        return self._op("lshr", "lshr", other)

    def __neg__(self) -> Value:
        """The negative of an integer."""
        return self._with(0) - self

    def __invert__(self) -> Value:
        return self ^ (1 if element(self.kind) == "i1" else -1)

    def sra(self, other: Any) -> Value:
        return self._op("ashr", "ashr", other)

    def sdiv(self, other: Any) -> Value:
        return self._op("sdiv", "sdiv", other)

    def srem(self, other: Any) -> Value:
        return self._op("srem", "srem", other)

    def is_(self, condition: str, other: Any) -> Value:
        """Compare: ``condition`` is LLVM's, such as "ult" or "oeq"."""
        op = "fcmp" if element(self.kind) in ("float", "double") else "icmp"
        return self.code.let(like(self.kind, "i1"), f"{op} {condition} {self}, {self._with(other).name}")

    def eq(self, other: Any) -> Value:
        return self.is_("eq", other)

    def ne(self, other: Any) -> Value:
        return self.is_("ne", other)

    def lt(self, other: Any) -> Value:
        return self.is_("ult", other)

    def le(self, other: Any) -> Value:
        return self.is_("ule", other)

    def gt(self, other: Any) -> Value:
        return self.is_("ugt", other)

    def ge(self, other: Any) -> Value:
        return self.is_("uge", other)

    def to(self, kind: str, signed: bool = False) -> Value:
        """Convert an integer to another width."""
        kind = kind if lanes(kind) else like(self.kind, kind)
        have, want = element(self.kind), element(kind)
        if have == want:
            return self
        op = "trunc" if int(want[1:]) < int(have[1:]) else ("sext" if signed else "zext")
        return self.code.let(kind, f"{op} {self} to {kind}")

    def convert(self, op: str, kind: str) -> Value:
        """Convert by a named operation: "fpext", "sitofp" and so on."""
        kind = kind if lanes(kind) else like(self.kind, kind)
        return self.code.let(kind, f"{op} {self} to {kind}")

    def bits(self, kind: str) -> Value:
        """The same bits as another type."""
        return self if kind == self.kind else self.code.let(kind, f"bitcast {self} to {kind}")

    def select(self, yes: Any, no: Any) -> Value:
        """``yes`` if this condition holds, otherwise ``no``; at least one is a Value."""
        model = yes if isinstance(yes, Value) else no
        yes, no = model._with(yes), model._with(no)
        return self.code.let(yes.kind, f"select {self}, {yes}, {no}")

    def splat(self, count: int) -> Value:
        """A vector with this value in all elements."""
        kind = f"<{count} x {self.kind}>"
        one = self.code.let(kind, f"insertelement {kind} poison, {self}, i32 0")
        zero = literal(f"<{count} x i32>", 0)
        return self.code.let(kind, f"shufflevector {one}, {kind} poison, <{count} x i32> {zero}")

    def __getitem__(self, index: Any) -> Value:
        place = index if isinstance(index, Value) else Value(self.code, "i32", str(index))
        return self.code.let(element(self.kind), f"extractelement {self}, {place}")

    def shuffle(self, order: list[int]) -> Value:
        """The elements in another order."""
        kind = f"<{len(order)} x {element(self.kind)}>"
        mask = f"<{len(order)} x i32> " + literal(f"<{len(order)} x i32>", order)
        return self.code.let(kind, f"shufflevector {self}, {self.kind} poison, {mask}")

    def reduce(self, op: str) -> Value:
        """All elements combined: "umin", "umax", "or", "add"."""
        return self.code.call(f"llvm.vector.reduce.{op}.{mangled(self.kind)}", element(self.kind), self)

    # ---- pointers ----

    def at(self, offset: Any) -> Value:
        """The pointer ``offset`` bytes further."""
        if not isinstance(offset, Value):
            if offset == 0:
                return self
            offset = Value(self.code, "i64", str(offset))
        return self.code.let("ptr", f"getelementptr i8, {self}, {offset}")

    def load(self, kind: str, align: int = 0) -> Value:
        return self.code.let(kind, f"load {kind}, {self}, align {align or size_of(kind)}")

    def mix(self, where: Value, value: Any, align: int = 0) -> None:
        """Store the elements of a vector for which ``where`` is true."""
        kind = value.kind if isinstance(value, Value) else f"<{lanes(where.kind)} x i32>"
        # volatile, so that LLVM does not make a masked store of it, which takes ten times as long on some processors
        old = self.code.let(kind, f"load volatile {kind}, {self}, align {align or size_of(kind)}")
        self.store(where.select(value, old), align)

    def store(self, value: Value, align: int = 0) -> None:
        self.code.line(f"store {value}, {self}, align {align or size_of(value.kind)}")


def mangled(kind: str) -> str:
    """A type in the name of an intrinsic."""
    count, one = lanes(kind), element(kind)
    one = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}.get(one, one)
    return f"v{count}{one}" if count else one


class Variable:
    """A value that changes: LLVM keeps it in a register."""

    def __init__(self, place: Value, kind: str) -> None:
        self._place, self._kind = place, kind

    @property
    def value(self) -> Value:
        return self._place.load(self._kind)

    @value.setter
    def value(self, value: Any) -> None:
        if not isinstance(value, Value):
            value = Value(self._place.code, self._kind, literal(self._kind, value))
        self._place.store(value)


class Module:
    """The text of a module: its functions and constants. ``halves``: the processor converts f16."""

    def __init__(self, *, halves: bool = False) -> None:
        self.halves = halves
        self.parts: list[str] = []
        self.declared: dict[str, str] = {}
        self.defined: set[str] = set()
        self._constants: dict[tuple[int, ...], str] = {}

    def numbers(self, values: list[int]) -> str:
        """The name of a constant array of i32."""
        key = tuple(values)
        if key not in self._constants:
            name = self._constants[key] = f"@numbers{len(self._constants)}"
            self.parts.append(f"{name} = private constant [{len(key)} x i32] [{', '.join(f'i32 {v}' for v in key)}]")
        return self._constants[key]

    def function(self, name: str, result: str, **arguments: str) -> AbstractContextManager[Code]:
        """Define a function."""
        return self._define("", name, result, arguments)

    def private_function(self, name: str, result: str, **arguments: str) -> AbstractContextManager[Code]:
        """Define a function that is known in this module only."""
        return self._define("internal ", name, result, arguments)

    @contextmanager
    def _define(self, linkage: str, name: str, result: str, arguments: dict[str, str]) -> Iterator[Code]:
        code = Code(self, result, arguments)
        self.defined.add(name)
        yield code
        if code.lines[-1].endswith(":"):
            code.line("unreachable")
        given = ", ".join(f"{kind} %{n}" for n, kind in arguments.items())
        head = f"define {linkage}{result} @{name}({given}) {{"
        self.parts.append("\n".join([head, "entry:", *code.entry, *code.lines, "}"]))

    def lines(self) -> int:
        """The length of the text."""
        return sum(part.count("\n") + 1 for part in self.parts)

    def text(self) -> str:
        declared = [text for name, text in self.declared.items() if name not in self.defined]
        return "\n".join([*declared, *self.parts, '!0 = !{!"branch_weights", i32 1, i32 1000}'])


class Code:
    """A function that is being written."""

    def __init__(self, module: Module, result: str, arguments: dict[str, str]) -> None:
        self.module, self.result = module, result
        self.arguments = {name: Value(self, kind, f"%{name}") for name, kind in arguments.items()}
        # the variables' places; they come first
        self.entry: list[str] = []
        self.lines: list[str] = []
        self.numbered = 0
        self.line("br label %begin")
        self.label("begin")

    def __getattr__(self, name: str) -> Value:
        try:
            found: Value = self.__dict__["arguments"][name]
        except KeyError:
            raise AttributeError(name) from None
        return found

    # ---- straight code ----

    def fresh(self) -> str:
        self.numbered += 1
        return f"%v{self.numbered}"

    def line(self, text: str) -> None:
        self.lines.append("  " + text)

    def let(self, kind: str, text: str) -> Value:
        name = self.fresh()
        self.line(f"{name} = {text}")
        return Value(self, kind, name)

    def const(self, kind: str, value: Any) -> Value:
        return Value(self, kind, literal(kind, value))

    def call(self, name: str, result: str, *arguments: Value) -> Value:
        kinds = ", ".join(a.kind for a in arguments)
        self.module.declared.setdefault(name, f"declare {result} @{name}({kinds})")
        text = f"call {result} @{name}({', '.join(map(str, arguments))})"
        if result == "void":
            self.line(text)
            return Value(self, "void", "")
        return self.let(result, text)

    def call_pointer(self, pointer: Value, result: str, *arguments: Value) -> Value:
        return self.let(result, f"call {result} {pointer.name}({', '.join(map(str, arguments))})")

    def pointer(self, address: Value) -> Value:
        return self.let("ptr", f"inttoptr {address} to ptr")

    def variable(self, kind: str, value: Any) -> Variable:
        name = self.fresh()
        self.entry.append(f"  {name} = alloca {kind}, align {max(size_of(kind), 32 if lanes(kind) else 1)}")
        made = Variable(Value(self, "ptr", name), kind)
        made.value = value
        return made

    def array(self, kind: str, count: int) -> Value:
        """Memory for ``count`` elements, for the time of the call."""
        name = self.fresh()
        self.entry.append(f"  {name} = alloca [{count} x {kind}], align 64")
        return Value(self, "ptr", name)

    def gather(self, kind: str, places: Value) -> Value:
        """The elements of a vector, each from its own place in memory, which is aligned."""
        everywhere = self.const(like(kind, "i1"), 1)
        name = f"llvm.masked.gather.{mangled(kind)}.{mangled(places.kind)}"
        return self.call(name, kind, places, self.const("i32", size_of(kind)), everywhere, self.const(kind, 0))

    def scatter(self, value: Value, places: Value, chosen: Value | None = None) -> None:
        """Store the elements of a vector, or the ``chosen`` ones, each to its own place in memory, which is aligned. If
        several are for one place, it holds the last one."""
        chosen = chosen or self.const(like(value.kind, "i1"), 1)
        name = f"llvm.masked.scatter.{mangled(value.kind)}.{mangled(places.kind)}"
        self.call(name, "void", value, places, self.const("i32", size_of(value.kind)), chosen)

    def lane_numbers(self, kind: str, count: int, step: int = 1) -> Value:
        kind = f"<{count} x {kind}>"
        return Value(self, kind, literal(kind, [n * step for n in range(count)]))

    def first_bit(self, mask: Value) -> Value:
        return self.call(f"llvm.cttz.{mask.kind}", mask.kind, mask, self.const("i1", 1))

    def last_bit(self, mask: Value) -> Value:
        return self.const("i32", 31) - self.call("llvm.ctlz.i32", "i32", mask, self.const("i1", 1))

    def ones(self, mask: Value) -> Value:
        return self.call(f"llvm.ctpop.{mangled(mask.kind)}", mask.kind, mask)

    # ---- control flow ----

    def new_label(self) -> str:
        self.numbered += 1
        return f"l{self.numbered}"

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch(self, condition: Value, yes: str, no: str, *, rare: bool = False) -> None:
        self.line(f"br {condition}, label %{yes}, label %{no}{', !prof !0' if rare else ''}")

    def return_(self, value: Any = None) -> None:
        """Return from the function; the code after it is unreachable."""
        if self.result == "void":
            self.line("ret void")
        else:
            value = value if isinstance(value, Value) else self.const(self.result, value)
            self.line(f"ret {value}")
        self.label(self.new_label())

    @contextmanager
    def if_(self, condition: Value, *, rare: bool = False) -> Iterator[None]:
        yes, after = self.new_label(), self.new_label()
        self.branch(condition, yes, after, rare=rare)
        self.label(yes)
        yield
        self.jump(after)
        self.label(after)

    def either(self, condition: Value, yes: Callable[[], Any], no: Callable[[], Any]) -> None:
        """Run one of two pieces of code."""
        a, b, after = self.new_label(), self.new_label(), self.new_label()
        self.branch(condition, a, b)
        for label, code in ((a, yes), (b, no)):
            self.label(label)
            code()
            self.jump(after)
        self.label(after)

    @contextmanager
    def while_(self, condition: Callable[[], Value]) -> Iterator[None]:
        head, body, after = self.new_label(), self.new_label(), self.new_label()
        self.jump(head)
        self.label(head)
        self.branch(condition(), body, after)
        self.label(body)
        yield
        self.jump(head)
        self.label(after)

    @contextmanager
    def for_(self, end: Value, start: int = 0) -> Iterator[Value]:
        """A loop over the numbers below ``end``."""
        number = self.variable(end.kind, start)
        with self.while_(lambda: number.value.lt(end)):
            now = number.value
            yield now
            number.value = now + 1

    @contextmanager
    def each_bit(self, mask: Value) -> Iterator[Value]:
        """A loop over the set bits of an i32, lowest first."""
        left = self.variable("i32", 0)
        left.value = mask
        with self.while_(lambda: left.value.ne(0)):
            now = left.value
            yield self.first_bit(now)
            left.value = now & (now - 1)
