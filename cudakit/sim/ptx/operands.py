"""Read operands: names in their scopes, registers, vectors and addresses."""

from __future__ import annotations

import re
from typing import NamedTuple

from cudakit.sim.ptx.declarations import Declarations
from cudakit.sim.ptx.ir import (
    Address,
    Immediate,
    Negated,
    Operand,
    Pair,
    PtxFunction,
    Register,
    Special,
    Symbol,
    Vector,
)

_SPECIAL = re.compile(
    r"%(?:(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)(?:\.[xyz])?"
    r"|laneid|warpid|nwarpid|smid|nsmid|gridid|cluster_ctarank|cluster_nctarank|is_explicit_cluster"
    r"|lanemask_(?:eq|le|lt|ge|gt)|clock|clock_hi|clock64|pm\d(?:_64)?|envreg(?:[12]?\d|3[01])|globaltimer(?:_lo|_hi)?"
    r"|reserved_smem_offset_\w+|total_smem_size|aggr_smem_size|dynamic_smem_size|current_graph_exec)"
)

_COMPONENTS = ("x", "y", "z", "w")
# operands of an instruction, and elements of a vector: wgmma has 128
MOST = 256


def _wide(name: str) -> Vector:
    """A register of 128 bits, as its low and high half."""
    return Vector((Register(f"{name}.lo", "b64"), Register(f"{name}.hi", "b64")))


def registers_of(name: str, kind: str, lanes: int) -> Register | Vector:
    """A register, or the registers of a vector or of 128 bits."""
    if lanes > 1:
        return Vector(tuple(Register(f"{name}.{_COMPONENTS[i]}", kind) for i in range(lanes)))
    return _wide(name) if kind == "b128" else Register(name, kind)


class Scope(NamedTuple):
    """A ``{ }`` scope of a function: its number (0 is the body), its declared names, and its register families (prefix
    to type, length of vectors and count)."""

    number: int
    names: dict[str, Register | Vector | Symbol]
    families: dict[str, tuple[str, int, int]]

    def member(self, name: str) -> tuple[str, int] | None:
        """The type and vector length of a family's register."""
        prefix = name.rstrip("0123456789")
        family = self.families.get(prefix)
        # a name with more digits than any count, or with a leading zero, is not a member
        digits = name[len(prefix) :]
        if family is None or not digits or len(digits) > 10 or (digits[0] == "0" and len(digits) > 1):
            return None
        return family[:2] if int(digits) < family[2] else None


class Operands:
    """Reads the operands of one function from a module's tokens."""

    def __init__(self, declarations: Declarations, function: PtxFunction) -> None:
        self.declarations = declarations
        self.tokens = declarations.tokens
        self.function = function
        self.scopes = [Scope(0, {}, {})]

    # ---- names ----

    def unique(self, name: str) -> str:
        number = self.scopes[-1].number
        return name if number == 0 else f"{name}#{number}"

    def numbers(self) -> tuple[int, ...]:
        return tuple(scope.number for scope in reversed(self.scopes))

    def lookup(self, name: str) -> Register | Vector | Symbol | Special | None:
        for scope in reversed(self.scopes):
            known = scope.names.get(name)
            if known is not None:
                return known
            if scope.families:
                member = scope.member(name)
                if member is not None:
                    unique = name if scope.number == 0 else f"{name}#{scope.number}"
                    made = scope.names[name] = registers_of(unique, *member)
                    return made
        if name[0] == "%" and _SPECIAL.fullmatch(name):
            return Special(name)
        base, dot, component = name.rpartition(".")
        if dot and component in ("x", "y", "z", "w", "r", "g", "b", "a"):
            vector = self.lookup(base)
            index = "xyzwrgba".index(component) % 4
            if isinstance(vector, Vector) and index < len(vector.elements):
                element = vector.elements[index]
                return element if isinstance(element, Register) else None
        return None

    def named(self) -> Register | Vector | Symbol | Special:
        """The operand named by the next token."""
        tokens = self.tokens
        start = tokens.starts[tokens.position]
        name = tokens.name()
        known = self.lookup(name)
        if known is None:
            if name[0] == "%":
                raise tokens.error(f"register {name!r} is not declared", start)
            self.declarations.used_symbols.setdefault(name, start)
            return Symbol(name)
        if isinstance(known, Register):
            self.function.registers[known.name] = known.type
        elif isinstance(known, Vector):
            for element in known.elements:
                if isinstance(element, Register):
                    self.function.registers[element.name] = element.type
        return known

    def register(self) -> Register:
        tokens = self.tokens
        start = tokens.starts[tokens.position]
        found = self.named()
        if not isinstance(found, Register):
            raise tokens.error(f"expected a register, found {tokens.values[tokens.position - 1]!r}", start)
        return found

    # ---- operands ----

    def operand(self) -> Operand | None:
        tokens = self.tokens
        word = tokens.peek
        head = word[:1]
        if head == "%" and len(word) > 1:
            return self.value()
        if head == "[":
            tokens.next()
            address = self.address()
            if tokens.accept("]"):
                tokens.accept(".unified")
                return address
            # tensors and textures: [map, {x, y}]
            inside: list[Operand | None] = [address]
            while tokens.separated("]"):
                inside.append(self.vector() if tokens.peek == "{" else self.item())
            return tuple(inside)
        if head == "{":
            return self.vector()
        if head == "!":
            tokens.next()
            return Negated(self.predicate())
        return self.item()

    def item(self) -> Operand | None:
        """An operand without brackets or braces."""
        tokens = self.tokens
        if tokens.accept("_"):
            return self.pair(None) if tokens.peek == "|" else None
        return tokens.literal() if tokens.at_literal else self.value()

    def value(self) -> Operand:
        """A register or symbol, its sum with a constant, or a pair of registers."""
        tokens = self.tokens
        found = self.named()
        if tokens.peek == "|":
            return self.pair(found)
        return self.offset(found) if tokens.peek == "+" else found

    def vector(self) -> Vector:
        tokens = self.tokens
        tokens.expect("{")
        elements: list[Operand | None] = []
        more = True
        while more:
            item = self.item()
            # a register of 128 bits is a vector itself
            elements.append(item)
            more = tokens.separated("}")
        if len(elements) > MOST:
            raise tokens.error(f"a vector has more than {MOST} elements")
        return Vector(tuple(elements))

    def predicate(self) -> Register:
        register = self.register()
        if register.type != "pred":
            self.tokens.position -= 1
            raise self.tokens.error(f"{register.name!r} is not a predicate")
        return register

    def pair(self, first: Operand | None) -> Pair:
        tokens = self.tokens
        tokens.expect("|")
        second = None if tokens.accept("_") else self.register()
        if first is not None and not isinstance(first, Register):
            raise tokens.error("a pair a|b takes registers")
        return Pair(first, second)

    def offset(self, base: Register | Vector | Symbol | Special) -> Address:
        """An address within brackets: ``base+4``."""
        if isinstance(base, Vector):
            raise self.tokens.error("a vector has no address")
        self.tokens.expect("+")
        return Address(base, self.tokens.integer())

    def address(self) -> Operand:
        """The first item within brackets, as an address."""
        start = self.tokens.starts[self.tokens.position]
        found = self.item()
        if isinstance(found, Address):
            return found
        if isinstance(found, (Register, Symbol, Special)):
            return Address(found, 0)
        if isinstance(found, Immediate) and found.type not in ("f32", "f64"):
            return Address(None, found.bits)
        raise self.tokens.error("not an address", start)
