"""Variables in the Debug Adapter Protocol: the scopes of a frame, and values that can be expanded.

Each shown variable has a C++ expression, so that it can be set, watched and copied.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from cudakit.debugger import texts, types
from cudakit.debugger.dap_messages import Body, RequestError
from cudakit.debugger.expressions import Value, bytes_of, dereferenced, evaluate, numbers_of
from cudakit.debugger.setting import assign
from cudakit.debugger.state import View
from cudakit.debugger.syntax import ExpressionError, parse
from cudakit.debugger.types import ArrayType, Member, Pointer, Struct

# the most characters of a value, and the most elements that are listed for a client that does not ask for a range
_MOST_TEXT = 400
_MOST_LISTED = 1000
_SIMPLE = re.compile(r"(?:[\w:]|\.|->|\[\d+\]|[%$])+")


@dataclass(frozen=True)
class Part:
    """A named value among the variables that are shown: its expression, and the value or why it is unavailable."""

    name: str
    expression: str
    value: Value | None = None
    error: str = ""


@dataclass(frozen=True)
class Container:
    """Something that can be expanded: `parts` returns a range of its parts, `count` is their number if they are the
    elements of an array."""

    view: View
    parts: Callable[[int, int], Iterator[Part]]
    count: int = 0


class Variables:
    """The containers that the client may expand, by reference. They exist while the kernel is stopped."""

    def __init__(self) -> None:
        self._containers: dict[int, Container] = {}
        # references are not used again, so that those of an earlier stop are refused
        self._last = 0

    def clear(self) -> None:
        self._containers.clear()

    def _add(self, container: Container) -> int:
        self._last += 1
        self._containers[self._last] = container
        return self._last

    # ---- scopes ----

    def scopes(self, view: View) -> list[Body]:
        """The scopes of a thread's frame."""
        found: list[Body] = []

        def scope(name: str, parts: Callable[[], Iterator[Part]], hint: str = "", expensive: bool = False) -> None:
            listed = list(parts()) if not expensive else None
            if listed is not None and not listed:
                return
            reference = self._add(Container(view, lambda start, end: _range(listed or list(parts()), start, end)))
            body: Body = {"name": name, "variablesReference": reference, "expensive": expensive}
            found.append(body | ({"presentationHint": hint} if hint else {}))

        scope("Locals", lambda: _variables(view, parameters=False), "locals")
        scope("Arguments", lambda: _variables(view, parameters=True), "arguments")
        scope("Shared memory", lambda: _shared(view))
        scope("Globals", lambda: _globals(view), "globals")
        scope("Built-in", lambda: _built_in(view))
        scope("Registers", lambda: _registers(view), "registers", expensive=True)
        return found

    # ---- variables ----

    def listed(self, reference: int, start: int, count: int, form: str) -> list[Body]:
        """The variables of a container: of its elements from `start` on, `count` of them, or all if it is 0."""
        container = self._container(reference)
        end = start + count if count else start + _MOST_LISTED if container.count else sys.maxsize
        listed = [self.described(part, container.view, form) for part in container.parts(start, end)]
        if not count and container.count > end:
            rest = f"{container.count - end} more elements: print an element, or a range such as *&x[{end}]@100"
            listed.append({"name": "...", "value": rest, "variablesReference": 0})
        return listed

    def described(self, part: Part, view: View, form: str) -> Body:
        """A part as the protocol's Variable."""
        if part.value is None:
            return {"name": part.name, "value": part.error, "variablesReference": 0, "evaluateName": part.expression}
        body = self.shown(part.value, part.expression, view, form)
        return {"name": part.name, "value": body.pop("text"), "evaluateName": part.expression, **body}

    def shown(self, value: Value, expression: str, view: View, form: str) -> Body:
        """The text and the type of a value, and a reference if it can be expanded."""
        text = _text(value, view, form)
        body: Body = {"text": text, "type": value.type.name, "variablesReference": 0}
        try:
            value = _referred(value, view)
            address = _address(value, view)
            count = _count(value)
        except ExpressionError:
            return body
        if address:
            body["memoryReference"] = f"{address:#x}"
        if count or _expands(value, address):
            made = Container(view, lambda start, end: _parts(value, expression, view, start, end), count)
            body["variablesReference"] = self._add(made)
        return body | ({"indexedVariables": count} if count else {})

    def expression(self, reference: int, name: str) -> tuple[View, str]:
        """The frame and the expression of a variable in a container."""
        container = self._container(reference)
        index = re.fullmatch(r"\[(\d+)\]", name)
        start = int(index[1]) if index is not None and container.count else 0
        for part in container.parts(start, start + 1 if container.count else sys.maxsize):
            if part.name == name:
                return container.view, part.expression
        raise RequestError(f"there is no variable {name!r} in this list")

    def _container(self, reference: int) -> Container:
        found = self._containers.get(reference)
        if found is None:
            raise RequestError("this variable is from an earlier stop", "notStopped")
        return found


def valued(text: str, view: View) -> Value:
    """The value of an expression in a frame. Raises ExpressionError if it has no value."""
    return evaluate(parse(text, lambda name: view.type(name) is not None), view)


def set_value(view: View, expression: str, text: str) -> Value:
    """Store an expression's value in a variable; returns the variable's new value. Raises ExpressionError."""
    assign(valued(expression, view), numbers_of(valued(text, view), view), view)
    return valued(expression, view)


# ---- the parts of scopes ----


def _variables(view: View, *, parameters: bool) -> Iterator[Part]:
    for variable in view.locals(parameters=parameters):
        try:
            yield Part(variable.name, variable.name, view.value(variable))
        except ExpressionError:
            yield Part(variable.name, variable.name, error=texts.variable_text(view, variable))


def _named(view: View, name: str, expression: str = "") -> Part:
    expression = expression or name
    try:
        return Part(name, expression, valued(expression, view))
    except ExpressionError as error:
        return Part(name, expression, error=f"<{error}>")


def _shared(view: View) -> Iterator[Part]:
    for name in {**view.code.shared.get(view.program.name, {}), **view.code.shared.get("", {})}:
        part = _named(view, name)
        if part.value is not None:  # the kernel does not use the others
            yield part


def _globals(view: View) -> Iterator[Part]:
    shared = {name for scope in view.code.shared.values() for name in scope}
    for variable in view.code.info.variables.values():
        if variable.name not in shared:
            part = _named(view, variable.name)
            if part.value is not None:
                yield part


def _built_in(view: View) -> Iterator[Part]:
    for name in ("threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize"):
        yield _named(view, name)
    yield _named(view, "laneid", "%laneid")


def _registers(view: View) -> Iterator[Part]:
    for name, _, _ in view.registers():
        yield _named(view, name)


def _range(parts: list[Part], start: int, end: int) -> Iterator[Part]:
    yield from parts[start:end]


# ---- the parts of values ----


def _referred(value: Value, view: View) -> Value:
    """The value that a reference refers to; other values themselves."""
    plain = value.type.plain
    return dereferenced(value, view) if isinstance(plain, Pointer) and plain.reference else value


def _text(value: Value, view: View, form: str) -> str:
    try:
        text = texts.value_text(view, value, form)
    except ExpressionError as error:
        return f"<{error}>"
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _address(value: Value, view: View) -> int:
    """The address of the memory that a value shows or points to; 0 if it has no address."""
    if isinstance(value.type.plain, Pointer):
        return int(numbers_of(value, view)[0])
    structured = isinstance(value.type.plain, (ArrayType, Struct))
    return int(value.addresses[0]) if value.addresses is not None and structured else 0


def _count(value: Value) -> int:
    found = types.elements(value.type)
    return 0 if found is None else found[1]


def _expands(value: Value, address: int) -> bool:
    plain = value.type.plain
    if isinstance(plain, Pointer):
        return address != 0 and plain.target.plain.size > 0
    return isinstance(plain, Struct) and types.dtype_of(plain) is None and bool(plain.members)


def _parts(value: Value, expression: str, view: View, start: int, end: int) -> Iterator[Part]:
    """The members of a structure, the elements from `start` to `end` of an array, or the target of a pointer."""
    inner = expression if _SIMPLE.fullmatch(expression) else f"({expression})"
    plain = value.type.plain
    if isinstance(plain, Pointer):
        target = dereferenced(value, view)
        if isinstance(target.type.plain, Struct) and _expands(target, 0):
            yield from _members(target, target.type.plain, f"{inner}->", view)
        else:
            yield Part(f"*{expression}", f"*{inner}", target)
        return
    elements = types.elements(value.type)
    if elements is not None:
        kind, count = elements
        for index in range(start, min(end, count)):
            member = Member("", kind, index * kind.size)
            yield Part(f"[{index}]", f"{inner}[{index}]", _member(value, member, view))
    elif isinstance(plain, Struct):
        yield from _members(value, plain, f"{inner}.", view)


def _members(value: Value, kind: Struct, prefix: str, view: View) -> Iterator[Part]:
    for member in kind.members:
        found = _member(value, member, view)
        if member.name:
            yield Part(member.name, f"{prefix}{member.name}", found)
        elif isinstance(member.type.plain, Struct):  # a base class: its members are found by their names
            yield from _members(found, member.type.plain, prefix, view)


def _member(value: Value, member: Member, view: View) -> Value:
    if value.addresses is not None:
        return Value(member.type, None, value.addresses + np.uint64(member.offset), member=member)
    return Value(member.type, types.member_bytes(member, bytes_of(value, view)[0])[None, :])
