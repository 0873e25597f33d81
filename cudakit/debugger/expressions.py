"""The values of C++ expressions over a kernel's variables, for many threads at a time.

`evaluate` computes a tree of syntax.py in an `Environment`, which looks up variables and reads memory for a number of
threads. A `Value` holds one row of bytes per thread, and its addresses if it is in memory. Arithmetic follows C++:
integers are promoted and wrap, halves are computed in float.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cudakit.debugger import types
from cudakit.debugger.syntax import ExpressionError, Node
from cudakit.debugger.types import Array, ArrayType, CType, Member, Pointer, Struct


@dataclass
class Value:
    """A value per thread: `rows` are its bytes, (threads, size) of uint8, or None until they are read. `addresses` are
    the generic addresses of a value in memory, (threads,) of uint64; `register` names the register that holds it."""

    type: CType
    rows: Array | None = None
    addresses: Array | None = None
    register: str = ""
    member: Member | None = None


class Environment(Protocol):
    """The variables and the memory of some threads."""

    count: int

    def find(self, name: str) -> Value | None:
        """A variable; None if there is none of this name."""

    def register(self, name: str) -> Value | None:
        """A PTX register, with or without its percent sign."""

    def recalled(self, text: str) -> Value:
        """A value that was shown before, as $3. Raises ExpressionError if there is none."""

    def type(self, name: str) -> CType | None:
        """A named type."""

    def load(self, addresses: Array, size: int) -> Array:
        """The bytes at generic addresses, (threads, size). Raises ExpressionError for memory that is not accessible."""

    def subset(self, mask: Array) -> Environment:
        """The same for the threads for which the mask is true."""

    def missing(self, name: str) -> str:
        """Why there is no variable of this name."""


# ---- evaluation ----


def evaluate(node: Node, env: Environment) -> Value:
    """The value of an expression per thread. Raises ExpressionError if it cannot be computed."""
    with np.errstate(all="ignore"):
        return _EVALUATORS[node.kind](node, env)


def numbers_of(value: Value, env: Environment) -> Array:
    """A value as one number per thread. Raises ExpressionError if it is a structure or an array."""
    value = decayed(value, env)
    found = types.numbers(value.type, bytes_of(value, env))
    if found is None:
        raise ExpressionError(f"a number is needed, not a value of type {value.type.name}")
    return found


def truth(value: Value, env: Environment) -> Array:
    """Whether a value is not zero, per thread."""
    found: Array = numbers_of(value, env) != 0
    return found


def bytes_of(value: Value, env: Environment) -> Array:
    """A value's bytes, (threads, size)."""
    if value.rows is None:
        if value.addresses is None:
            raise ExpressionError("the value is not available")
        rows = env.load(value.addresses, value.type.size)
        if value.member is not None and value.member.bits:
            whole = Member("", value.type, 0, value.member.bits, value.member.bit_offset)
            rows = types.member_rows(whole, rows)
        value.rows = rows
    return value.rows


def decayed(value: Value, env: Environment) -> Value:
    """An array as a pointer to its first element; a reference as what it refers to."""
    plain = value.type.plain
    if isinstance(plain, Pointer) and plain.reference:
        return decayed(dereferenced(value, env), env)
    if isinstance(plain, ArrayType):
        if value.addresses is None:
            raise ExpressionError("an array that is not in memory cannot be used as a pointer")
        return of_numbers(types.pointer_to(plain.element), value.addresses)
    return value


def dereferenced(value: Value, env: Environment) -> Value:
    """The value to which a pointer or a reference points."""
    plain = value.type.plain
    if not isinstance(plain, Pointer):
        raise ExpressionError(f"a pointer is needed, not a value of type {value.type.name}")
    if plain.target.plain.size == 0 and not isinstance(plain.target.plain, ArrayType):
        raise ExpressionError(f"a {value.type.name} cannot be dereferenced: cast it, as in *(float*)p")
    found = types.numbers(plain, bytes_of(value, env))
    return Value(plain.target, None, found)


def of_numbers(kind: CType, found: Array) -> Value:
    """A value from one number per thread, already in the type's dtype."""
    dtype = types.dtype_of(kind)
    data = np.ascontiguousarray(found).astype(dtype, copy=False) if dtype is not None else found
    return Value(kind, data.view(np.uint8).reshape(len(found), -1))


_RESULTS: dict[str, CType] = {
    "int32": types.INT,
    "uint32": types.UINT,
    "int64": types.LONG,
    "uint64": types.ULONG,
    "float32": types.FLOAT,
    "float64": types.DOUBLE,
    "bool": types.BOOL,
    "int8": types.CHAR,
}


def constant(number: Any, env: Environment) -> Value:
    """A number as a value of all threads."""
    if isinstance(number, np.bool_):
        return of_numbers(types.BOOL, np.full(env.count, number, np.uint8))
    return of_numbers(_RESULTS[np.dtype(type(number)).name], np.full(env.count, number))


def _evaluate_number(node: Node, env: Environment) -> Value:
    return constant(node.value, env)


def _evaluate_name(node: Node, env: Environment) -> Value:
    found = env.find(node.text)
    if found is None:
        raise ExpressionError(env.missing(node.text))
    plain = found.type.plain
    return dereferenced(found, env) if isinstance(plain, Pointer) and plain.reference else found


def _evaluate_register(node: Node, env: Environment) -> Value:
    found = env.register(node.text)
    if found is None:
        raise ExpressionError(f"no register {node.text} in this function; `info registers` lists them")
    return found


def _evaluate_member(node: Node, env: Environment) -> Value:
    owner = evaluate(node.parts[0], env)
    plain = owner.type.plain
    if isinstance(plain, Pointer):
        raise ExpressionError(f"it is a pointer: use ->{node.text}")
    if not isinstance(plain, Struct):
        raise ExpressionError(f"a value of type {owner.type.name} has no members")
    member = plain.find(node.text)
    if member is None:
        known = ", ".join(one.name for one in plain.members if one.name) or "none"
        raise ExpressionError(f"{plain.name} has no member {node.text!r}; its members: {known}")
    if owner.addresses is not None and owner.rows is None:
        found = Value(member.type, None, owner.addresses + np.uint64(member.offset), member=member)
    else:
        rows = bytes_of(owner, env)
        addresses = None if owner.addresses is None else owner.addresses + np.uint64(member.offset)
        found = Value(member.type, types.member_rows(member, rows), addresses)
    inner = member.type.plain
    return dereferenced(found, env) if isinstance(inner, Pointer) and inner.reference else found


def _evaluate_index(node: Node, env: Environment) -> Value:
    array, index = (evaluate(part, env) for part in node.parts)
    if isinstance(index.type.plain, (Pointer, ArrayType)):
        array, index = index, array
    pointer = decayed(array, env)
    if not isinstance(pointer.type.plain, Pointer):
        raise ExpressionError(f"a value of type {array.type.name} has no elements")
    return dereferenced(_moved(pointer, index, env, 1), env)


def _moved(pointer: Value, by: Value, env: Environment, sign: int) -> Value:
    """A pointer plus or minus a number of elements."""
    plain = pointer.type.plain
    if not isinstance(plain, Pointer):
        raise ExpressionError(f"a pointer is needed, not a value of type {pointer.type.name}")
    steps = numbers_of(by, env)
    if steps.dtype.kind not in "iub":
        raise ExpressionError("an index must be an integer")
    addresses = types.numbers(plain, bytes_of(pointer, env))
    size = max(plain.target.size, 1)
    moved = (np.asarray(addresses).astype(np.int64) + sign * size * steps.astype(np.int64)).view(np.uint64)
    return of_numbers(pointer.type, moved)


def _evaluate_unary(node: Node, env: Environment) -> Value:
    operand = evaluate(node.parts[0], env)
    if node.text == "*":
        return dereferenced(decayed(operand, env), env)
    if node.text == "&":
        if operand.addresses is None:
            where = f"it is in the register {operand.register}" if operand.register else "it is not in memory"
            raise ExpressionError(f"the value has no address: {where}")
        return of_numbers(types.pointer_to(operand.type), operand.addresses)
    if node.text == "!":
        return of_numbers(types.BOOL, (~truth(operand, env)).view(np.uint8))
    number = _promoted(numbers_of(operand, env))
    if node.text == "~" and number.dtype.kind not in "iu":
        raise ExpressionError("~ needs an integer")
    found = -number if node.text == "-" else ~number if node.text == "~" else number
    return of_numbers(_RESULTS[found.dtype.name], found)


def _promoted(number: Array) -> Array:
    """C++'s integer promotion; halves become float."""
    kind, size = number.dtype.kind, number.dtype.itemsize
    if kind in "b" or (kind in "iu" and size < 4):
        return number.astype(np.int32)
    if kind not in "iu" and size < 4:
        return number.astype(np.float32)
    return number


def _common(a: Array, b: Array) -> tuple[Array, Array]:
    """Both operands in C++'s common type."""
    a, b = _promoted(a), _promoted(b)
    floats = [one.dtype for one in (a, b) if one.dtype.kind not in "iu"]
    if floats:
        common = max(floats, key=lambda one: one.itemsize)
    else:
        size = max(a.dtype.itemsize, b.dtype.itemsize)
        unsigned = any(one.dtype.kind == "u" and one.dtype.itemsize == size for one in (a, b))
        common = np.dtype(f"{'u' if unsigned else 'i'}{size}")
    return a.astype(common), b.astype(common)


def _evaluate_binary(node: Node, env: Environment) -> Value:
    if node.text in ("&&", "||"):
        return _evaluate_logic(node, env)
    left, right = (decayed(evaluate(part, env), env) for part in node.parts)
    pointers = [isinstance(one.type.plain, Pointer) for one in (left, right)]
    if node.text in ("+", "-") and any(pointers):
        return _pointer_sum(node.text, left, right, pointers, env)
    a, b = _common(numbers_of(left, env), numbers_of(right, env))
    if node.text in _COMPARISONS:
        return of_numbers(types.BOOL, _COMPARISONS[node.text](a, b).view(np.uint8))
    if node.text in ("%", "&", "|", "^", "<<", ">>") and a.dtype.kind not in "iu":
        raise ExpressionError(f"{node.text} needs integers")
    if node.text in ("/", "%") and a.dtype.kind in "iu" and not b.all():
        raise ExpressionError("division by zero")
    if node.text in ("<<", ">>"):
        a = _promoted(numbers_of(left, env))
        b = b.astype(a.dtype)
    found = _ARITHMETIC[node.text](a, b)
    return of_numbers(_RESULTS[found.dtype.name], found)


def _pointer_sum(sign: str, left: Value, right: Value, pointers: list[bool], env: Environment) -> Value:
    if all(pointers):
        plain = left.type.plain
        if sign == "+" or not isinstance(plain, Pointer):
            raise ExpressionError("two pointers cannot be added")
        bytes_apart = numbers_of(left, env).astype(np.int64) - numbers_of(right, env).astype(np.int64)
        return of_numbers(types.LONG, bytes_apart // max(plain.target.size, 1))
    pointer, by = (left, right) if pointers[0] else (right, left)
    return _moved(pointer, by, env, -1 if sign == "-" else 1)


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        found: Array = a / b
        return found
    # C++ truncates
    quotient: Array = a // b
    if a.dtype.kind == "i":
        quotient = quotient + ((a % b != 0) & ((a < 0) != (b < 0)))
    return quotient.astype(a.dtype)


_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}
_ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "%": lambda a, b: (a - _divide(a, b) * b).astype(a.dtype),
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}


def _evaluate_logic(node: Node, env: Environment) -> Value:
    """&& and ||: the right side is evaluated only for the threads that need it."""
    result = truth(evaluate(node.parts[0], env), env)
    need = result if node.text == "&&" else ~result
    if need.any():
        inner = env if need.all() else env.subset(need)
        result = result.copy()
        result[need] = truth(evaluate(node.parts[1], inner), inner)
    return of_numbers(types.BOOL, result.view(np.uint8))


def _evaluate_choice(node: Node, env: Environment) -> Value:
    chosen = truth(evaluate(node.parts[0], env), env)
    if chosen.all() or not chosen.any():
        return evaluate(node.parts[1 if chosen.all() else 2], env)
    parts = []
    for mask, part in ((chosen, node.parts[1]), (~chosen, node.parts[2])):
        inner = env.subset(mask)
        parts.append(numbers_of(evaluate(part, inner), inner))
    yes, no = _common(*parts)
    found = np.empty(env.count, yes.dtype)
    found[chosen], found[~chosen] = yes, no
    return of_numbers(_RESULTS[found.dtype.name], found)


def _named_type(name: str, env: Environment) -> CType:
    stars = len(name) - len(name.rstrip("*"))
    found = env.type(name.rstrip("*&"))
    if found is None:
        raise ExpressionError(f"no type {name.rstrip('*&')!r}")
    for _ in range(stars):
        found = types.pointer_to(found)
    return found


def _evaluate_cast(node: Node, env: Environment) -> Value:
    kind = _named_type(node.text, env)
    value = decayed(evaluate(node.parts[0], env), env)
    dtype = types.dtype_of(kind)
    if dtype is None:
        raise ExpressionError(f"a value cannot be cast to {kind.name}")
    number = numbers_of(value, env)
    if isinstance(kind.plain, types.Base) and kind.plain.kind == "bool":
        return of_numbers(kind, (number != 0).view(np.uint8))
    return of_numbers(kind, number.astype(dtype))


def _evaluate_sizeof(node: Node, env: Environment) -> Value:
    kind = _named_type(node.text, env) if node.text else evaluate(node.parts[0], env).type
    return constant(np.uint64(kind.size), env)


def _evaluate_span(node: Node, env: Environment) -> Value:
    first, many = (evaluate(part, env) for part in node.parts)
    counts = numbers_of(many, env)
    if first.addresses is None:
        raise ExpressionError("the value before @ must be in memory: *p@8")
    count = int(counts[0]) if len(counts) else 0
    if counts.dtype.kind not in "iu" or count < 1 or (counts != count).any():
        raise ExpressionError("the number after @ must be a positive integer, the same in all threads")
    return Value(types.array_of(first.type, count), None, first.addresses)


_EVALUATORS: dict[str, Callable[[Node, Environment], Value]] = {
    "number": _evaluate_number,
    "name": _evaluate_name,
    "register": _evaluate_register,
    "history": lambda node, env: env.recalled(node.text),
    "member": _evaluate_member,
    "index": _evaluate_index,
    "unary": _evaluate_unary,
    "binary": _evaluate_binary,
    "choice": _evaluate_choice,
    "cast": _evaluate_cast,
    "sizeof": _evaluate_sizeof,
    "span": _evaluate_span,
}
