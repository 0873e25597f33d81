"""The intermediate form of a PTX module: plain records, written by the parser and read by the machine.

An operand is one of the classes in ``Operand``. Registers are bit patterns: a register's type is only its width (and
whether it is a predicate); the instruction that reads the bits determines their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union


class PtxError(Exception):
    """PTX text that cannot be read; the message contains the line number and its text.

    ``function`` is the kernel or function that contains the text ("the kernel add"), ``location`` the source it was
    compiled from; None if unknown.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line
        self.function: str | None = None
        self.location: Location | None = None


class UnsupportedPtx(PtxError):
    """A PTX instruction or modifier that the simulated device does not execute."""


class NotSimulated(UnsupportedPtx):
    """Valid PTX that the simulated device does not execute: its module loads, and the launch of a kernel that needs it
    fails."""


@dataclass(slots=True, frozen=True)
class Location:
    """A place in a source file, from ``.loc``; ``file`` is an index into ``PtxModule.files``."""

    file: int
    line: int
    column: int
    function: str | None = None
    inlined_at: Location | None = None


@dataclass(slots=True, frozen=True)
class Register:
    """A register such as ``%f1``; ``type`` is without its dot: "pred", "b16", "b32", "f32", "b64", "f64" ..."""

    name: str
    type: str


CARRY = Register("%cc.cf", "pred")
"""The carry flag of add.cc, addc and similar instructions: a predicate register of the function like any other."""


@dataclass(slots=True, frozen=True)
class Immediate:
    """A literal. Integers: ``bits`` is the Python int value, ``type`` "s64" or "u64". Floats: ``bits`` is the raw bit
    pattern, ``type`` "f32" (``0fXXXXXXXX``) or "f64" (``0dX...``, ``1.0``). In a predicate position 0 and 1 are ints.
    """

    bits: int
    type: str


@dataclass(slots=True, frozen=True)
class Symbol:
    """The address of a variable or function, by its name."""

    name: str


@dataclass(slots=True, frozen=True)
class Special:
    """A special register, with its percent sign and component: ``%tid.x``, ``%laneid``, ``%clock64``."""

    name: str


@dataclass(slots=True, frozen=True)
class Address:
    """``[base + offset]``; ``base`` is None for an absolute address. Offset in bytes."""

    base: Register | Symbol | Immediate | Special | None
    offset: int


@dataclass(slots=True, frozen=True)
class Vector:
    """``{a, b, c, d}``; an element is None for ``_``."""

    elements: tuple[Operand | None, ...]


@dataclass(slots=True, frozen=True)
class Label:
    """A branch target: its unique name in ``PtxFunction.labels`` (or ``branch_targets``)."""

    name: str


@dataclass(slots=True, frozen=True)
class Pair:
    """``a|b`` destinations (shfl, setp, vote...); either may be None for ``_``."""

    first: Register | None
    second: Register | None


@dataclass(slots=True, frozen=True)
class Negated:
    """An inverted predicate operand: ``!%p1``."""

    register: Register


Operand = Union[
    Register,
    Immediate,
    Symbol,
    Special,
    Address,
    Vector,
    Label,
    Pair,
    Negated,
    "tuple[Operand | None, ...]",
]


@dataclass(slots=True)
class Instruction:
    """One instruction. ``ld.global.nc.v4.f32`` has opcode "ld" and modifiers ("global", "nc", "v4", "f32").

    Operands are in PTX order; the sink ``_`` is None. Vector registers (``.reg .v4 .f32 %v``) are split: ``%v`` is a
    ``Vector`` of registers, ``%v.x`` a ``Register``. Registers of 128 bits are split into two of 64. A bracket with a
    comma (``[map, {x, y}]``, tensors and textures) is a plain tuple of operands. ``call`` always has three or four
    operands: (tuple of returns, Symbol or Register of the callee, tuple of parameters[, Symbol of the prototype, target
    list or call table]). Returns and parameters are ``Symbol`` (a ``.param`` variable), ``Register`` or ``Immediate``.
    Targets of ``bra`` and the list of ``brx`` are ``Label``. ``guard`` is (register, negated) or None.
    ``line`` is the line of the PTX text, from 1.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand | None, ...]
    guard: tuple[Register, bool] | None = None
    location: Location | None = None
    line: int = 0
    text: str = ""

    @property
    def name(self) -> str:
        """Opcode and modifiers in PTX syntax."""
        return ".".join((self.opcode, *self.modifiers))


def refused(instruction: Instruction, reason: str = "", error: type[UnsupportedPtx] = UnsupportedPtx) -> UnsupportedPtx:
    """The error for an unsupported instruction."""
    because = f" ({reason})" if reason else ""
    return error(
        f"PTX line {instruction.line}: the simulated device does not execute {instruction.name!r}{because}: "
        f"{instruction.text.strip()}",
        instruction.line,
    )


@dataclass(slots=True)
class Variable:
    """A variable or parameter. ``size`` is in bytes (0 for ``extern`` arrays with no bound). ``relocations`` are
    (offset in bytes, symbol, addend, generic): the address of ``symbol`` plus ``addend`` is stored at this offset, as a
    generic address if ``generic``, else as an offset within the symbol's own space; ``initial`` has zeros there. It may
    be shorter than the variable, whose other bytes are zero.
    """

    name: str
    space: str
    align: int
    type: str
    size: int
    initial: bytes | None = None
    relocations: tuple[tuple[int, str, int, bool], ...] = ()
    extern: bool = False
    line: int = 0


@dataclass(slots=True)
class Prototype:
    """A ``.callprototype``: the shape of an indirect call."""

    returns: tuple[Variable, ...]
    params: tuple[Variable, ...]
    noreturn: bool = False


@dataclass(slots=True)
class PtxFunction:
    """A kernel (``entry``) or device function; ``body`` is False if it is only declared (vprintf, __assertfail).

    ``registers`` maps the names of used registers to their types. ``labels`` maps a label to an index into
    ``instructions`` (which may equal their count). ``branch_targets`` maps the name of a ``.branchtargets`` list to its
    labels, ``call_targets`` that of a ``.calltargets`` list to its functions, ``prototypes`` that of a
    ``.callprototype``. ``directives``: maxntid, reqntid, minnctapersm, maxnreg, noreturn... ``variables`` are
    declared inside the function (local, shared, param, const); their names are unique across its scopes (``name#3``).
    """

    name: str
    entry: bool
    params: tuple[Variable, ...] = ()
    returns: tuple[Variable, ...] = ()
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    branch_targets: dict[str, list[str]] = field(default_factory=dict)
    call_targets: dict[str, list[str]] = field(default_factory=dict)
    prototypes: dict[str, Prototype] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    line: int = 0
    body: bool = True

    @property
    def title(self) -> str:
        """The function's name in error messages."""
        return f"the {'kernel' if self.entry else 'function'} {self.name}"

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The bytes of each result and of each parameter."""
        return tuple(v.size for v in self.returns), tuple(v.size for v in self.params)

    @property
    def shape(self) -> tuple[object, ...]:
        """The properties in which all declarations of a function agree."""
        sides = (self.returns, self.params)
        return (self.entry, *([(v.space, v.type, v.size, v.align) for v in side] for side in sides))


@dataclass(slots=True)
class PtxModule:
    """A parsed PTX module. ``debug``: compiled for a debugger (-G), with all variables in local memory. ``sections``:
    the texts of its sections of debug information (DWARF as lists of numbers and labels), by name."""

    version: str
    target: str
    address_size: int
    files: dict[int, str] = field(default_factory=dict)
    functions: dict[str, PtxFunction] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    debug: bool = False
    sections: dict[str, str] = field(default_factory=dict)
