"""C++ types of a kernel's variables, and the text of their values.

A value's bytes are a numpy array of uint8 with one row per thread; `numbers` returns them as one number per thread, and
`show` as text of one thread's bytes, in the way of gdb.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# structures of CUDA's headers that hold one number; the header stores its bits in an integer member
_HALVES: dict[str, Any] = {"__half": np.float16, "__nv_bfloat16": ml_dtypes.bfloat16}
_SMALL: dict[str, Any] = {"__nv_fp8_e4m3": ml_dtypes.float8_e4m3fn, "__nv_fp8_e5m2": ml_dtypes.float8_e5m2}
_PAIRS: dict[str, Any] = {"__half2": np.float16, "__nv_bfloat162": ml_dtypes.bfloat16}
#: The marks of bytes without defined content: never written, or computed from such memory. Other bytes have 0.
UNWRITTEN, UNDEFINED = 1, 2
# the most elements of an array in text, as in gdb
MOST_SHOWN = 200
_ESCAPES = {0: "\\000", 7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 13: "\\r", 27: "\\033", 39: "\\'", 92: "\\\\"}


@dataclass(eq=False)
class CType:
    """A type of `size` bytes."""

    name: str
    size: int

    @property
    def plain(self) -> CType:
        """The type without typedefs and qualifiers."""
        return self


@dataclass(eq=False)
class Base(CType):
    """A number, a character or a bool: `kind` is "float", "signed", "unsigned", "bool", "char" or "unsigned char"."""

    kind: str


@dataclass(eq=False)
class Alias(CType):
    """A typedef or a qualified type."""

    target: CType

    @property
    def plain(self) -> CType:
        return self.target.plain


@dataclass(eq=False)
class Pointer(CType):
    """A pointer, or a C++ reference. `target` is set once the pointed type is known, which may contain the pointer."""

    reference: bool = False
    target: CType = field(default_factory=lambda: CType("void", 0))


@dataclass(eq=False)
class ArrayType(CType):
    """An array of `count` elements; 0 if its bound is unknown (dynamic shared memory)."""

    element: CType
    count: int


@dataclass(eq=False)
class Member:
    """A member of a structure, `offset` bytes from its start; a bit field if `bits` is not 0."""

    name: str
    type: CType
    offset: int
    bits: int = 0
    bit_offset: int = 0


@dataclass(eq=False)
class Struct(CType):
    """A structure, class or union. The name of a base class's member is ""."""

    members: list[Member] = field(default_factory=list)

    def find(self, name: str) -> Member | None:
        """A member, also of a base class or of an anonymous structure, with its offset from the start."""
        for member in self.members:
            if member.name == name:
                return member
        for member in self.members:
            inner = member.type.plain
            if member.name == "" and isinstance(inner, Struct) and (found := inner.find(name)) is not None:
                return Member(name, found.type, member.offset + found.offset, found.bits, found.bit_offset)
        return None


@dataclass(eq=False)
class Enum(CType):
    """An enumeration; `names` are its enumerators by value."""

    names: dict[int, str] = field(default_factory=dict)
    signed: bool = True


VOID = CType("void", 0)


def base(name: str, kind: str, size: int) -> Base:
    return Base(name, size, kind)


INT = base("int", "signed", 4)
BOOL = base("bool", "bool", 1)
DOUBLE = base("double", "float", 8)
FLOAT = base("float", "float", 4)
UINT = base("unsigned int", "unsigned", 4)
LONG = base("long", "signed", 8)
ULONG = base("unsigned long", "unsigned", 8)
CHAR = base("char", "char", 1)
BYTE = base("unsigned char", "unsigned char", 1)
# by their names in CUDA C++; DWARF has those that a program uses, these are for casts and for shared variables
NAMED: dict[str, CType] = {
    t.name: t
    for t in (
        INT,
        BOOL,
        DOUBLE,
        FLOAT,
        UINT,
        LONG,
        ULONG,
        CHAR,
        BYTE,
        VOID,
        base("unsigned", "unsigned", 4),
        base("signed char", "char", 1),
        base("short", "signed", 2),
        base("unsigned short", "unsigned", 2),
        base("long long", "signed", 8),
        base("unsigned long long", "unsigned", 8),
        base("int8_t", "signed", 1),
        base("uint8_t", "unsigned", 1),
        base("int16_t", "signed", 2),
        base("uint16_t", "unsigned", 2),
        base("int32_t", "signed", 4),
        base("uint32_t", "unsigned", 4),
        base("int64_t", "signed", 8),
        base("uint64_t", "unsigned", 8),
        base("size_t", "unsigned", 8),
    )
}
for _name, _dtype in {**_HALVES, **_SMALL}.items():
    NAMED[_name] = Struct(_name, np.dtype(_dtype).itemsize)
for _name in _PAIRS:
    NAMED[_name] = Struct(_name, 4)
NAMED |= {"half": NAMED["__half"], "half2": NAMED["__half2"]}


def pointed(target: str, mark: str) -> str:
    """The name of a pointer's or a reference's type."""
    return f"{target}{mark}" if target.endswith(("*", "&")) else f"{target} {mark}"


def pointer_to(target: CType) -> Pointer:
    """The type of a pointer to a type."""
    return Pointer(pointed(target.name, "*"), 8, False, target)


def array_of(element: CType, count: int) -> ArrayType:
    """The type of an array; `count` is 0 if its bound is unknown."""
    base_name, bracket, bounds = element.name.partition(" [")
    return ArrayType(f"{base_name} [{count or ''}]{bracket.strip()}{bounds}", count * element.size, element, count)


def dtype_of(kind: CType) -> np.dtype[Any] | None:
    """The dtype of a number's bytes; None if the type is not a number (a structure, an array)."""
    plain = kind.plain
    if isinstance(plain, Base):
        if plain.kind == "bool":
            return np.dtype(np.uint8)
        code = {"float": "f", "signed": "i", "char": "i"}.get(plain.kind, "u")
        return np.dtype(f"{code}{plain.size}") if plain.size in (1, 2, 4, 8) else None
    if isinstance(plain, Pointer):
        return np.dtype(np.uint64)
    if isinstance(plain, Enum):
        return np.dtype(f"{'i' if plain.signed else 'u'}{plain.size}")
    if isinstance(plain, Struct):
        found = {**_HALVES, **_SMALL}.get(plain.name)
        return None if found is None else np.dtype(found)
    return None


def numbers(kind: CType, rows: Array) -> Array | None:
    """One number per row of bytes, in the type's dtype; None if the type is not a number."""
    dtype = dtype_of(kind)
    if dtype is None:
        return None
    found: Array = np.ascontiguousarray(rows[:, : dtype.itemsize]).view(dtype)[:, 0]
    if isinstance(kind.plain, Base) and kind.plain.kind == "bool":
        found = found != 0
    return found


def elements(kind: CType) -> tuple[CType, int] | None:
    """The element type and the number of elements of an array or a pair of halves; None for other types."""
    plain = kind.plain
    if isinstance(plain, ArrayType):
        return plain.element, plain.count
    if isinstance(plain, Struct) and plain.name in _PAIRS:
        return NAMED["__half" if _PAIRS[plain.name] is np.float16 else "__nv_bfloat16"], 2
    return None


# ---- text ----


def number_text(value: Any, kind: CType | None = None, form: str = "") -> str:
    """A number as text: `form` is one of gdb's letters x, d, u, o, t, c, f, or "" for the form of its type."""
    plain = None if kind is None else kind.plain
    if form in ("x", "o", "t", "d", "u", "c") and not isinstance(value, (bool, np.bool_)):
        if isinstance(value, np.inexact) or (isinstance(value, np.generic) and value.dtype.kind == "V"):
            if form != "x" and not np.isfinite(value):
                return float_text(value)
            whole = int(np.asarray(value).view(f"u{value.dtype.itemsize}")) if form == "x" else int(value)
        else:
            whole = int(value)
        bits = 8 * (np.asarray(value).dtype.itemsize if isinstance(value, np.generic) else 8)
        if form == "x":
            return f"{whole & ((1 << bits) - 1):#x}"
        if form == "o":
            return f"0{whole & ((1 << bits) - 1):o}"
        if form == "t":
            return f"{whole & ((1 << bits) - 1):b}"
        if form == "u":
            return str(whole & ((1 << bits) - 1))
        return _character(whole) if form == "c" else str(whole)
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(plain, Enum):
        return _enumerator(plain, int(value))
    if isinstance(plain, Pointer):
        return f"{int(value):#x}"
    if isinstance(plain, Base) and plain.kind in ("char", "unsigned char"):
        return _character(int(value))
    if isinstance(value, (float, np.inexact)) or (isinstance(value, np.generic) and value.dtype.kind not in "iu"):
        return float_text(value)
    return str(int(value))


def float_text(value: Any) -> str:
    """A floating-point number with the digits that its type needs, as C++ would read it back."""
    number = float(value)
    if number != number:
        return "nan" if not np.signbit(number) else "-nan"
    if number in (float("inf"), float("-inf")):
        return "inf" if number > 0 else "-inf"
    if isinstance(value, (np.float32, np.float16)):
        text = np.format_float_positional(value, trim="-") if 1e-5 <= abs(number) < 1e16 or not number else str(value)
    elif isinstance(value, (float, np.float64)):
        text = repr(number)
    else:
        text = str(value)
    return re.sub(r"\.0$", "", text)


def _character(code: int) -> str:
    shown = code & 0xFF
    if shown in _ESCAPES:
        return f"{code} '{_ESCAPES[shown]}'"
    return f"{code} '{chr(shown)}'" if 32 <= shown < 127 else f"{code} '\\{shown:03o}'"


def _enumerator(kind: Enum, value: int) -> str:
    if value in kind.names:
        return kind.names[value]
    rest, parts = value, []
    for bit, name in sorted(kind.names.items()):
        if bit > 0 and bit & (bit - 1) == 0 and rest & bit:
            parts.append(name)
            rest &= ~bit
    return f"({' | '.join(parts)})" if parts and not rest else str(value)


#: Returns the text that a pointer to char points to, or "" if there is none.
ReadText = Callable[[int], str]


def show(
    kind: CType,
    data: Array,
    form: str = "",
    text_at: ReadText | None = None,
    depth: int = 0,
    unset: Array | None = None,
) -> str:
    """One value, given its bytes, as gdb prints it: {x = 1, tags = {1, 2, 3}}. `unset` has the marks of the bytes: a
    number whose bytes all have one is not shown."""
    plain = kind.plain
    rows = data[None, :]
    number = numbers(kind, rows) if len(data) >= max(kind.size, 1) else None
    if number is not None:
        if unset is not None and unset[: kind.size].all():
            return "<uninitialised>" if (unset[: kind.size] == UNWRITTEN).all() else "<undefined>"
        text = number_text(number[0], kind, form)
        if isinstance(plain, Pointer) and not form:
            target = plain.target.plain
            if isinstance(target, Base) and target.kind == "char" and text_at is not None:
                text += f" {quoted}" if (quoted := text_at(int(number[0]))) else ""
            elif depth == 0:
                text = f"({kind.name}) {text}"
        return text
    parts = elements(kind)
    if parts is not None:
        return _show_elements(*parts, data, form, text_at, depth, unset)
    if isinstance(plain, Struct):
        fields = []
        for member in plain.members:
            value = member_bytes(member, data)
            label = f"{member.name} = " if member.name else f"<{member.type.name}> = "
            rest = None if unset is None else unset[member.offset : member.offset + member.type.size]
            fields.append(label + show(member.type, value, form, text_at, depth + 1, rest))
        return "{" + ", ".join(fields) + "}"
    return "{" + ", ".join(f"{byte:#04x}" for byte in data[:MOST_SHOWN]) + "}"


def member_bytes(member: Member, data: Array) -> Array:
    """The bytes of a member in those of its structure; a bit field's value is moved to bit 0."""
    value = data[member.offset : member.offset + member.type.size]
    if not member.bits:
        return value
    whole = int.from_bytes(value.tobytes(), "little") >> member.bit_offset & ((1 << member.bits) - 1)
    plain = member.type.plain
    signed = isinstance(plain, Base) and plain.kind in ("signed", "char")
    if (signed or (isinstance(plain, Enum) and plain.signed)) and whole >> (member.bits - 1):
        whole -= 1 << member.bits
    size = max(member.type.size, 1)
    return np.frombuffer((whole & ((1 << 8 * size) - 1)).to_bytes(size, "little"), np.uint8)


def member_rows(member: Member, rows: Array) -> Array:
    """The bytes of a member in those of its structure, per thread."""
    if member.bits:
        return np.stack([member_bytes(member, row) for row in rows])
    return rows[:, member.offset : member.offset + member.type.size]


def _show_elements(
    element: CType, count: int, data: Array, form: str, text_at: ReadText | None, depth: int, unset: Array | None
) -> str:
    plain, size = element.plain, max(element.size, 1)
    count = count or len(data) // size
    if isinstance(plain, Base) and plain.kind == "char" and not form and (unset is None or not unset.any()):
        return quoted(data[:count].tobytes())
    shown: list[str] = []
    repeats: list[int] = []
    for number in range(min(count, 16 * MOST_SHOWN)):
        rest = None if unset is None else unset[number * size : (number + 1) * size]
        text = show(element, data[number * size : (number + 1) * size], form, text_at, depth + 1, rest)
        if shown and shown[-1] == text:
            repeats[-1] += 1
            continue
        if len(shown) == MOST_SHOWN:
            return "{" + ", ".join(_repeated(shown, repeats)) + "...}"
        shown.append(text)
        repeats.append(1)
    more = "..." if count > 16 * MOST_SHOWN else ""
    return "{" + ", ".join(_repeated(shown, repeats)) + more + "}"


def _repeated(shown: list[str], repeats: list[int]) -> list[str]:
    out = []
    for text, times in zip(shown, repeats, strict=True):
        out += [f"{text} <repeats {times} times>"] if times > 9 else [text] * times
    return out


def quoted(data: bytes) -> str:
    """Characters up to the first zero, in quotes."""
    end = data.find(0)
    text = data if end < 0 else data[:end]
    escape = {34: '\\"', 92: "\\\\", 10: "\\n", 9: "\\t", 13: "\\r"}
    return '"' + "".join(escape.get(c) or (chr(c) if 32 <= c < 127 else f"\\{c:03o}") for c in text) + '"'
