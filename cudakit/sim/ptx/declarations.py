"""Declarations of PTX: variables with their initialisers, and parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from cudakit.sim.ptx.ir import Immediate, PtxFunction, UnsupportedPtx, Variable
from cudakit.sim.ptx.tokens import Tokens, float_value

SPACES = frozenset((".reg", ".local", ".shared", ".param", ".const", ".global"))
_POINTED = (".global", ".const", ".shared", ".local", ".param")
# types of operands, which variables and registers cannot have
OPERAND_TYPES = ("bf16", "bf16x2", "tf32", "u16x2", "s16x2")
# bytes of the widest vector
_WIDEST = 16
# types of textures, samplers and surfaces, which are references without a value
HANDLES = ("texref", "samplerref", "surfref")
_HANDLE_BYTES = 8
LARGEST = {
    "reg": 16,
    # per thread
    "local": 512 << 10,
    # per block, of static variables
    "shared": 48 << 10,
    # of all parameters of a kernel, since sm_70
    "param": 32764,
    "const": 64 << 10,
    "global": 1 << 37,
}
"""The bytes that the variables of a state space may have together."""


class Declarations:
    """Reads declarations from a module's tokens and records which symbols are used (name to text offset)."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.used_symbols: dict[str, int] = {}
        # the state spaces of the module's variables, and its functions as "func", so far
        self.spaces: dict[str, str] = {}
        self.functions: dict[str, PtxFunction] = {}
        self.variables: dict[str, Variable] = {}

    def functions_in(self, table: str) -> list[str]:
        """The functions whose addresses a variable holds; none if it holds anything else."""
        found = self.variables.get(table)
        names = [symbol for _, symbol, _, _ in found.relocations] if found is not None else []
        return names if all(name in self.functions for name in names) else []

    def variable_list(self, space: str, extern: bool = False) -> list[Variable]:
        """The variables of a declaration, from after the state space to the semicolon."""
        variables = [self.variable(space, extern)]
        while self.tokens.accept(","):
            variables.append(self.variable(space, extern, like=variables[0]))
        self.tokens.expect(";")
        return variables

    def variable(self, space: str, extern: bool = False, like: Variable | None = None) -> Variable:
        """One variable, with its own type or, later in a list, the type of ``like``. Raises PtxError if its size or
        alignment is beyond the limits of its state space."""
        tokens = self.tokens
        line, start = tokens.line(), tokens.starts[tokens.position]
        align, lanes, kind = (like.align, 1, like.type) if like is not None else self._type(space)
        handle = kind in HANDLES and space in ("global", "param")
        element = _HANDLE_BYTES if handle else type_bytes(kind)
        if kind in OPERAND_TYPES or (space == "param" and kind == "f16x2"):
            raise tokens.error(f"no variable of .{space} has the type .{kind}, which only instructions have", start)
        if element is None:
            raise UnsupportedPtx(str(tokens.error(f"variables of type .{kind} are not supported")), line)
        if lanes * element > _WIDEST or (kind == "pred" and space != "reg"):
            raise tokens.error(f"a variable of .{space} cannot have {lanes} elements of type .{kind}", start)
        name = tokens.name()
        self.check_name(name)
        bounds, unbounded = self._bounds()
        initial: bytes | None = None
        relocations: list[tuple[int, str, int, bool]] = []
        if handle and tokens.accept("="):
            self._skip_settings()
        if tokens.peek == "=":
            if space not in ("global", "const"):
                raise tokens.error(f"a variable of .{space} has no initial value")
            tokens.next()
            data, rows = self.initialiser(kind, element, [*bounds, lanes] if lanes > 1 else bounds, relocations)
            if unbounded:
                bounds[0], unbounded = rows, False
            initial = bytes(data)
        count = lanes
        for bound in bounds:
            count *= bound
        size = 0 if unbounded else count * element
        if not size and not (extern or space == "param"):
            raise tokens.error(f"{name!r} has no size: only .extern variables may be without", start)
        if size > LARGEST[space] and not (extern and space == "shared"):
            raise tokens.error(f"{name!r} has {size:,} bytes; .{space} has at most {LARGEST[space]:,}", start)
        return Variable(name, space, align or element * lanes, kind, size, initial, tuple(relocations), extern, line)

    def _skip_settings(self) -> None:
        """The settings of a sampler or texture, in braces."""
        self.tokens.expect("{")
        while not self.tokens.accept("}"):
            self.tokens.next()

    def check_name(self, name: str) -> None:
        """Raise for a name that cannot be declared; the name is the token before the next one."""
        tokens = self.tokens
        if name in ("_", "$", "%") or "." in name or ":" in name:
            tokens.position -= 1
            raise tokens.error(f"{name!r} cannot be declared: names have letters, digits, _, $ and %")

    def check_size(self, space: str, variables: Iterable[Variable]) -> None:
        """Raise if variables of one state space need more than its limit together."""
        total = sum(variable.size for variable in variables if variable.space == space)
        if total > LARGEST[space]:
            raise self.tokens.error(f"variables of .{space} have {total:,} bytes, at most {LARGEST[space]:,} fit")

    def _type(self, space: str) -> tuple[int, int, str]:
        """The alignment (0: that of the type), the number of elements of a vector, and the type."""
        tokens = self.tokens
        align, lanes = 0, 1
        while tokens.peek in (".align", ".attribute", ".v2", ".v4"):
            word = tokens.next()
            if word == ".align":
                align = self.alignment()
            elif word == ".attribute":
                self._attribute()
            else:
                lanes = int(word[2:])
                break
        kind = tokens.peek
        if kind[:1] != ".":
            raise tokens.error(f"expected a type, found {kind!r}")
        tokens.next()
        if space == "param" and lanes > 1:
            raise tokens.error("parameters are not vectors: use an array")
        if space == "param" and tokens.accept(".ptr"):
            # the alignment after .ptr is that of the pointed-to memory
            if tokens.peek in _POINTED:
                tokens.next()
            if tokens.accept(".align"):
                self.alignment()
        return align, lanes, kind[1:]

    def alignment(self) -> int:
        tokens = self.tokens
        align = tokens.count()
        if align & (align - 1) or not align:
            tokens.position -= 1
            raise tokens.error(f"an alignment is a power of two, got {align}")
        return align

    def _attribute(self) -> None:
        tokens = self.tokens
        tokens.expect("(")
        word = tokens.next()
        if word not in (".managed", ".unified"):
            tokens.position -= 1
            raise tokens.error(f"unknown attribute {word!r}")
        if word == ".unified":
            tokens.expect("(")
            tokens.count()
            tokens.expect(",")
            tokens.count()
            tokens.expect(")")
        tokens.expect(")")

    def _bounds(self) -> tuple[list[int], bool]:
        """The bounds of an array; the first is 0 if it is omitted, and then the second result is True."""
        tokens = self.tokens
        bounds: list[int] = []
        unbounded = False
        while tokens.accept("["):
            if not bounds and tokens.accept("]"):
                bounds.append(0)
                unbounded = True
                continue
            bounds.append(tokens.count())
            if not bounds[-1] and len(bounds) > 1:
                tokens.position -= 1
                raise tokens.error("only the first bound of an array may be 0")
            tokens.expect("]")
        return bounds, unbounded

    def initialiser(
        self, kind: str, element: int, bounds: list[int], relocations: list[tuple[int, str, int, bool]]
    ) -> tuple[bytearray, int]:
        """The bytes of an initial value, up to its last element, and the number of rows that it has. ``bounds`` are
        those of the array; empty for a single value."""
        tokens = self.tokens
        data = bytearray()
        if not bounds:
            self._element(data, 0, kind, element, relocations)
            return data, 1
        # bytes of an item at each depth of braces
        sizes = [element]
        for bound in reversed(bounds[1:]):
            sizes.insert(0, sizes[0] * bound)
        found, starts, rows = [0], [0], 0
        tokens.expect("{")
        closed = tokens.accept("}")
        while not closed:
            depth = len(found) - 1
            at = starts[-1] + found[-1] * sizes[depth]
            if bounds[depth] and found[-1] >= bounds[depth]:
                raise tokens.error(f"the initialiser has more than its {bounds[depth]} elements")
            if depth + 1 < len(bounds):
                tokens.expect("{")
                found.append(0)
                starts.append(at)
                if not tokens.accept("}"):
                    continue
                found.pop()
                starts.pop()
            else:
                self._element(data, at, kind, element, relocations)
            found[-1] += 1
            while found and not tokens.separated("}"):
                rows = found.pop()
                starts.pop()
                if found:
                    found[-1] += 1
            closed = not found
        return data, rows

    def _element(
        self, data: bytearray, at: int, kind: str, element: int, relocations: list[tuple[int, str, int, bool]]
    ) -> None:
        """Append one initial value at an offset: a constant, or the address of a symbol."""
        tokens = self.tokens
        if at + element > LARGEST["global"]:
            raise tokens.error("the initialiser is too large")
        data.extend(bytes(at - len(data)))
        word = tokens.peek
        if (word[:1].isalpha() or word[:1] in ("_", "$", "%")) and word != "WARP_SZ":
            relocations.append((at, *self._address(kind)))
            data += bytes(element)
            return
        literal = tokens.literal()
        if tokens.peek == "(":
            raise UnsupportedPtx(str(tokens.error("byte masks in initialisers are not supported")), tokens.line())
        if literal.type in ("f32", "f64"):
            if kind[0] not in "fb":
                raise tokens.error(f"a float initialises a variable of type .{kind}")
            data += _float_bytes(literal, element)
        elif kind[0] == "f":
            raise tokens.error(f"the integer {literal.bits} initialises a variable of type .{kind}: write a float")
        else:
            data += (literal.bits & ((1 << 8 * element) - 1)).to_bytes(element, "little")

    def _address(self, kind: str) -> tuple[str, int, bool]:
        """A symbol, an offset, and whether the address is generic: ``generic(name)+4``."""
        tokens = self.tokens
        generic = tokens.accept("generic")
        if generic:
            tokens.expect("(")
        start = tokens.starts[tokens.position]
        symbol = tokens.name()
        space = self.spaces.get(symbol)
        if space not in ("global", "const", "func"):
            why = f"a variable of .{space}" if space else "not declared before"
            raise tokens.error(f"{symbol!r} is {why}: an initial value holds the address of a global variable", start)
        if kind in ("u8", "u16", "u32"):
            raise UnsupportedPtx(str(tokens.error("parts of addresses in initialisers are not supported", start)))
        if kind != "u64":
            raise tokens.error(f"an address initialises a variable of type .u64, not .{kind}", start)
        if generic:
            tokens.expect(")")
        addend = tokens.integer() if tokens.accept("+") else 0
        if space == "func" and (generic or addend):
            raise tokens.error(f"{symbol!r} is a function, whose address has no offset and no state space", start)
        self.used_symbols.setdefault(symbol, start)
        return symbol, addend, generic

    def parameters(self, entry: bool = False) -> tuple[Variable, ...]:
        """A parameter list, ``( .param ..., .reg ... )``; entry: of a kernel. Raises PtxError for parameters that it
        cannot have."""
        tokens = self.tokens
        tokens.expect("(")
        variables: dict[str, Variable] = {}
        more = not tokens.accept(")")
        while more:
            start = tokens.starts[tokens.position]
            space = tokens.next()
            if space not in ((".param",) if entry else (".param", ".reg")):
                raise tokens.error(f"expected a parameter, found {space!r}", start)
            variable = self.variable(space[1:])
            if variable.name in variables:
                raise tokens.error(f"the parameter {variable.name!r} is declared twice", start)
            if not variable.size:
                raise tokens.error(f"the parameter {variable.name!r} has no size", start)
            variables[variable.name] = variable
            more = tokens.separated(")")
        return tuple(variables.values())

    def prototype(self) -> tuple[Variable, ...]:
        """The parameters of a ``.callprototype``; their names may be ``_``."""
        tokens = self.tokens
        tokens.expect("(")
        variables: list[Variable] = []
        more = not tokens.accept(")")
        while more:
            space = tokens.next()
            if space not in (".param", ".reg"):
                raise tokens.error(f"expected a parameter, found {space!r}")
            line = tokens.line()
            align, _, kind = self._type(space[1:])
            size = element = type_bytes(kind)
            if size is None or element is None:
                raise tokens.error(f"a parameter cannot have the type .{kind}")
            tokens.name()
            bounds, _ = self._bounds()
            for bound in bounds:
                size *= bound
            variables.append(Variable("_", space[1:], align or element, kind, size, line=line))
            more = tokens.separated(")")
        return tuple(variables)


def type_bytes(kind: str) -> int | None:
    """Bytes of a type; None if variables of the type are unsupported."""
    packed = {"f16x2": 4, "bf16x2": 4, "bf16": 2, "tf32": 4, "pred": 1}
    if kind in packed:
        return packed[kind]
    match = re.fullmatch(r"[bsu](8|16|32|64)|f(16|32|64)|b128", kind)
    return int(kind[1:]) // 8 if match else None


def _float_bytes(literal: Immediate, size: int) -> bytes:
    """A float of ``size`` bytes, rounded to nearest."""
    if literal.type == {4: "f32", 8: "f64"}.get(size):
        return literal.bits.to_bytes(size, "little")
    value = float_value(literal)
    with np.errstate(over="ignore"):
        rounded = np.float64(value).astype({1: np.float16, 2: np.float16, 4: np.float32}.get(size, np.float64))
    return bytes(rounded.tobytes()[:size])
