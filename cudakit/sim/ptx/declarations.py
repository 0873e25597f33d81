"""Declarations of PTX: variables with their initialisers, and parameters."""

from __future__ import annotations

import re
import struct

from cudakit.sim.ptx.ir import Immediate, UnsupportedPtx, Variable
from cudakit.sim.ptx.opcodes import TEXTURES
from cudakit.sim.ptx.tokens import Tokens

SPACES = frozenset((".reg", ".local", ".shared", ".param", ".const", ".global", ".tex"))


class Declarations:
    """Reads declarations from a module's tokens and records which symbols are used (name to text offset)."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.used_symbols: dict[str, int] = {}

    def variable_list(self, space: str, extern: bool = False) -> list[Variable]:
        """The variables of a declaration, from after the state space to the semicolon."""
        variables = [self.variable(space, extern)]
        while self.tokens.accept(","):
            variables.append(self.variable(space, extern, like=variables[0]))
        self.tokens.expect(";")
        return variables

    def variable(self, space: str, extern: bool = False, like: Variable | None = None) -> Variable:
        """One variable, with its own type or, later in a list, the type of ``like``."""
        tokens = self.tokens
        line = tokens.line()
        align, lanes, kind, pointer = 0, 1, "", False
        if like is not None:
            kind, align = like.type, like.align
        while tokens.peek[:1] == ".":
            word = tokens.next()
            if word == ".align":
                value = tokens.integer()
                # after .ptr the alignment is that of the pointed-to memory
                align = align if pointer else value
            elif word == ".ptr":
                pointer = True
            elif word == ".attribute":
                while tokens.next() != ")":
                    pass
            elif word in (".v2", ".v4", ".v8"):
                lanes = int(word[2:])
            elif word not in SPACES:
                kind = word[1:]
        element = type_bytes(kind)
        if element is None:
            why = f": {TEXTURES}" if kind in ("texref", "samplerref", "surfref") else ""
            raise UnsupportedPtx(str(tokens.error(f"variables of type .{kind} are not supported{why}")), line)
        name = tokens.name() if tokens.peek not in (")", ",") else ""
        count, unbounded = lanes, False
        while tokens.accept("["):
            if tokens.accept("]"):
                unbounded = True
                continue
            count *= tokens.integer()
            tokens.expect("]")
        initial: bytes | None = None
        relocations: list[tuple[int, str, int, bool]] = []
        if tokens.accept("="):
            data = bytearray()
            self.initialiser(data, kind, element, relocations)
            if unbounded:
                count = max(count, len(data) // element)
                unbounded = False
            if len(data) > count * element:
                raise tokens.error(f"the initialiser of {name} has more than its {count} elements")
            initial = bytes(data.ljust(count * element, b"\0"))
        size = 0 if unbounded else count * element
        return Variable(name, space, align or element * lanes, kind, size, initial, tuple(relocations), extern, line)

    def initialiser(
        self, data: bytearray, kind: str, element: int, relocations: list[tuple[int, str, int, bool]]
    ) -> None:
        tokens = self.tokens
        if tokens.accept("{"):
            while not tokens.accept("}"):
                self.initialiser(data, kind, element, relocations)
                tokens.accept(",")
            return
        if not tokens.at_literal:
            generic = tokens.peek == "generic"
            if generic:
                tokens.next()
                tokens.expect("(")
            start = tokens.starts[tokens.position]
            symbol = tokens.name()
            if generic:
                tokens.expect(")")
            addend = tokens.integer() if tokens.peek in ("+", "-") else 0
            self.used_symbols.setdefault(symbol, start)
            relocations.append((len(data), symbol, addend, generic))
            data += bytes(element)
            return
        literal = tokens.literal()
        if tokens.peek == "(":
            raise UnsupportedPtx(str(tokens.error("byte masks in initialisers are not supported")), tokens.line())
        if kind in ("f32", "f64"):
            data += _float_bytes(literal, kind)
        elif literal.type in ("f32", "f64"):
            raise tokens.error(f"a float initialises a variable of type .{kind}")
        else:
            data += (literal.bits & ((1 << 8 * element) - 1)).to_bytes(element, "little")

    def parameters(self) -> tuple[Variable, ...]:
        """A parameter list: ``( .param ..., .reg ... )``, or a single ``_``."""
        tokens = self.tokens
        tokens.expect("(")
        variables: list[Variable] = []
        while not tokens.accept(")"):
            if tokens.accept("_"):
                continue
            space = tokens.next()
            if space not in (".param", ".reg"):
                raise tokens.error(f"expected a parameter, found {space!r}")
            variables.append(self.variable(space[1:]))
            tokens.accept(",")
        return tuple(variables)


def type_bytes(kind: str) -> int | None:
    """Bytes of a type; None if variables of the type are unsupported."""
    packed = {"f16x2": 4, "bf16x2": 4, "bf16": 2, "tf32": 4, "pred": 1}
    if kind in packed:
        return packed[kind]
    match = re.fullmatch(r"[bsuf](8|16|32|64|128)", kind)
    return int(match.group(1)) // 8 if match else None


def _float_bytes(literal: Immediate, kind: str) -> bytes:
    if literal.type in ("f32", "f64"):
        value = struct.unpack(
            "<f" if literal.type == "f32" else "<d", literal.bits.to_bytes(4 if literal.type == "f32" else 8, "little")
        )[0]
        if literal.type == kind:
            return literal.bits.to_bytes(4 if kind == "f32" else 8, "little")
    else:
        value = float(literal.bits)
    return struct.pack("<f" if kind == "f32" else "<d", value)
