"""Read the body of a PTX function: scopes, registers, labels and instructions."""

from __future__ import annotations

import re
from typing import NamedTuple

from cudakit.sim.ptx.declarations import SPACES, Declarations, type_bytes
from cudakit.sim.ptx.ir import (
    CARRY,
    Address,
    Immediate,
    Instruction,
    Label,
    Location,
    Negated,
    Operand,
    Pair,
    Prototype,
    PtxFunction,
    Register,
    Special,
    Symbol,
    UnsupportedPtx,
    Vector,
)
from cudakit.sim.ptx.opcodes import carry_of

_SPECIAL = re.compile(
    r"%(?:(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)(?:\.[xyz])?"
    r"|laneid|warpid|nwarpid|smid|nsmid|gridid|cluster_ctarank|cluster_nctarank|is_explicit_cluster"
    r"|lanemask_(?:eq|le|lt|ge|gt)|clock|clock_hi|clock64|pm\d(?:_64)?|envreg\d+|globaltimer(?:_lo|_hi)?"
    r"|reserved_smem_offset_\w+|total_smem_size|aggr_smem_size|dynamic_smem_size|current_graph_exec)"
)

_COMPONENTS = ("x", "y", "z", "w")


def _wide(name: str) -> Vector:
    """A register of 128 bits, as its low and high half."""
    return Vector((Register(f"{name}.lo", "b64"), Register(f"{name}.hi", "b64")))


class _Scope(NamedTuple):
    """A ``{ }`` scope of a function: its number (0 is the body), its declared names, and its register families (prefix
    to type and count)."""

    number: int
    names: dict[str, Register | Vector | Symbol]
    families: dict[str, tuple[str, int]]


class Body:
    """Reads one function's body."""

    def __init__(self, declarations: Declarations, strings: dict[tuple[str, int], str], function: PtxFunction) -> None:
        self.declarations = declarations
        self.tokens = declarations.tokens
        self.strings = strings
        self.function = function
        self.scopes = [_Scope(0, {}, {})]
        self.scope_count = 1
        self.location: Location | None = None
        self.locations: dict[tuple[object, ...], Location] = {}
        # (instruction, enclosing scopes, text offset); their labels are resolved when all are known
        self.pending: list[tuple[Instruction, tuple[int, ...], int]] = []
        self.lists: list[tuple[str, tuple[int, ...], list[str], int]] = []
        names = self.scopes[0].names
        for variable in (*function.params, *function.returns):
            if variable.space == "reg":
                names[variable.name] = Register(variable.name, variable.type)
            else:
                names[variable.name] = Symbol(variable.name)

    def read(self) -> None:
        tokens, function = self.tokens, self.function
        while True:
            word = tokens.peek
            if word == "{":
                tokens.next()
                self.scopes.append(_Scope(self.scope_count, {}, {}))
                self.scope_count += 1
            elif word == "}":
                tokens.next()
                self.scopes.pop()
                if not self.scopes:
                    break
            elif word == ";":
                tokens.next()
            elif word[:1] == ".":
                self.directive(tokens.next())
            elif not word:
                raise tokens.error(f"the text ends within {function.name}")
            elif word == "@" or tokens.values[tokens.position + 1] != ":":
                self.instruction()
            else:
                self.label()
        for owner, numbers, names, start in self.lists:
            function.branch_targets[owner] = [self.resolve_label(name, numbers, start) for name in names]
        for instruction, numbers, start in self.pending:
            instruction.operands = tuple(
                Label(self.resolve_label(operand.name, numbers, start)) if isinstance(operand, Label) else operand
                for operand in instruction.operands
            )

    # ---- names ----

    def unique(self, name: str) -> str:
        number = self.scopes[-1].number
        return name if number == 0 else f"{name}#{number}"

    def numbers(self) -> tuple[int, ...]:
        return tuple(scope.number for scope in reversed(self.scopes))

    def resolve_label(self, name: str, numbers: tuple[int, ...], start: int) -> str:
        for number in numbers:
            unique = name if number == 0 else f"{name}#{number}"
            if unique in self.function.labels or any(unique == owner for owner, *_ in self.lists):
                return unique
        raise self.tokens.error(f"no label {name!r}", start)

    def lookup(self, name: str) -> Register | Vector | Symbol | Special | None:
        for scope in reversed(self.scopes):
            known = scope.names.get(name)
            if known is not None:
                return known
            if scope.families:
                prefix = name.rstrip("0123456789")
                family = scope.families.get(prefix)
                digits = name[len(prefix) :]
                if family is not None and digits and int(digits) < family[1]:
                    unique = name if scope.number == 0 else f"{name}#{scope.number}"
                    made = _wide(unique) if family[0] == "b128" else Register(unique, family[0])
                    scope.names[name] = made
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

    # ---- statements ----

    def label(self) -> None:
        tokens, function = self.tokens, self.function
        start = tokens.starts[tokens.position]
        name = tokens.name()
        tokens.expect(":")
        unique = self.unique(name)
        if tokens.peek == ".branchtargets":
            tokens.next()
            targets = [tokens.name()]
            while tokens.accept(","):
                targets.append(tokens.name())
            tokens.expect(";")
            self.lists.append((unique, self.numbers(), targets, start))
        elif tokens.peek == ".callprototype":
            tokens.next()
            returns = self.declarations.parameters() if tokens.peek == "(" else ()
            tokens.name()
            params = self.declarations.parameters() if tokens.peek == "(" else ()
            noreturn = tokens.accept(".noreturn")
            while tokens.next() != ";":
                pass
            function.prototypes[unique] = Prototype(returns, params, noreturn)
            self.scopes[-1].names[name] = Symbol(unique)
        elif tokens.peek == ".calltargets":
            while tokens.next() != ";":
                pass
            self.scopes[-1].names[name] = Symbol(unique)
        else:
            if unique in function.labels:
                raise tokens.error(f"label {name!r} is defined twice", start)
            function.labels[unique] = len(function.instructions)

    def directive(self, word: str) -> None:
        tokens = self.tokens
        if word == ".loc":
            self.loc()
        elif word == ".reg":
            self.registers()
        elif word in SPACES:
            for variable in self.declarations.variable_list(word[1:]):
                name = variable.name
                variable.name = self.unique(name)
                self.scopes[-1].names[name] = Symbol(variable.name)
                self.function.variables.append(variable)
        elif word == ".extern":
            self.directive(tokens.next())
        elif word == ".pragma":
            tokens.next()
            tokens.expect(";")
        else:
            tokens.position -= 1
            raise tokens.error(f"unknown directive {word!r}")

    def registers(self) -> None:
        """``.reg .b32 %r<9>, %a;`` and ``.reg .v4 .f32 %v;``."""
        tokens, scope = self.tokens, self.scopes[-1]
        lanes, kind = 1, ""
        while tokens.peek[:1] == ".":
            word = tokens.next()[1:]
            if word in ("v2", "v4", "v8"):
                lanes = int(word[1:])
            else:
                kind = word
        if (kind != "pred" and (type_bytes(kind) or 16) > 8 and kind != "b128") or (lanes > 1 and kind == "b128"):
            raise UnsupportedPtx(str(tokens.error(f"registers of type .{kind} are not supported")), tokens.line())
        while True:
            name = tokens.name()
            if tokens.accept("<"):
                count = tokens.integer()
                tokens.expect(">")
                scope.families[name] = (kind, count)
            elif lanes > 1:
                scope.names[name] = Vector(
                    tuple(Register(self.unique(f"{name}.{_COMPONENTS[i]}"), kind) for i in range(lanes))
                )
            elif kind == "b128":
                scope.names[name] = _wide(self.unique(name))
            else:
                scope.names[name] = Register(self.unique(name), kind)
            if not tokens.accept(","):
                break
        tokens.expect(";")

    def loc(self) -> None:
        tokens = self.tokens
        file, line, column = tokens.integer(), tokens.integer(), tokens.integer()
        function: str | None = None
        inlined: Location | None = None
        while tokens.accept(","):
            word = tokens.name()
            if word == "function_name":
                label = tokens.name()
                offset = tokens.integer() if tokens.peek == "+" else 0
                function = self.strings.get((label, offset))
            elif word == "inlined_at":
                place = (tokens.integer(), tokens.integer(), tokens.integer())
                # the call's place is described by the latest .loc with the same numbers
                inlined = self.locations.get(place) or Location(*place)
            else:
                raise tokens.error(f"unknown attribute {word!r} of .loc")
        key = (file, line, column, function, inlined)
        location = self.locations.get(key)
        if location is None:
            location = self.locations[key] = Location(file, line, column, function, inlined)
        if inlined is not None or (file, line, column) not in self.locations:
            self.locations[(file, line, column)] = location
        self.location = location if line else self.location

    def instruction(self) -> None:
        tokens = self.tokens
        first = tokens.position
        guard: tuple[Register, bool] | None = None
        if tokens.accept("@"):
            negated = tokens.accept("!")
            guard = (self.register(), negated)
        opcode, *modifiers = tokens.name().split(".")
        operands: list[Operand | None] = []
        if opcode == "call":
            operands = self.call()
        elif tokens.peek != ";":
            operands.append(self.operand())
            while tokens.accept(","):
                operands.append(self.operand())
            if opcode in ("bra", "brx"):
                target = operands[-1]
                if not isinstance(target, Symbol):
                    raise tokens.error(f"{opcode} needs a label", tokens.starts[first])
                self.declarations.used_symbols.pop(target.name, None)
                operands[-1] = Label(target.name)
        end = tokens.starts[tokens.position]
        tokens.expect(";")
        start = tokens.starts[first]
        instruction = Instruction(
            opcode,
            tuple(modifiers),
            tuple(operands),
            guard,
            self.location,
            tokens.line(start),
            " ".join(tokens.text[start : end + 1].split()),
        )
        self.function.instructions.append(instruction)
        if any(carry_of(instruction)):
            self.function.registers[CARRY.name] = CARRY.type
        if opcode in ("bra", "brx"):
            self.pending.append((instruction, self.numbers(), start))

    def call(self) -> list[Operand | None]:
        tokens = self.tokens
        returns: tuple[Operand | None, ...] = ()
        if tokens.peek == "(":
            returns = self.arguments()
            tokens.expect(",")
        callee = self.named()
        params: tuple[Operand | None, ...] = ()
        operands: list[Operand | None] = [returns, callee, params]
        if tokens.accept(","):
            if tokens.peek == "(":
                operands[2] = self.arguments()
                if tokens.accept(","):
                    operands.append(self.named())
            else:
                operands.append(self.named())
        return operands

    def arguments(self) -> tuple[Operand | None, ...]:
        tokens = self.tokens
        tokens.expect("(")
        found: list[Operand | None] = []
        while not tokens.accept(")"):
            found.append(self.operand())
            tokens.accept(",")
        return tuple(found)

    # ---- operands ----

    def operand(self) -> Operand | None:
        tokens = self.tokens
        word = tokens.peek
        head = word[:1]
        if head == "%" and len(word) > 1:
            found = self.named()
            if tokens.peek == "|":
                return self.pair(found)
            if tokens.peek in ("+", "-") and isinstance(found, Symbol):
                return self.offset(found)
            return found
        if head == "[":
            tokens.next()
            inside: list[Operand | None] = [self.address()]
            while tokens.accept(","):
                inside.append(self.operand())
            tokens.expect("]")
            tokens.accept(".unified")
            return inside[0] if len(inside) == 1 else tuple(inside)
        if head == "{":
            tokens.next()
            elements: list[Operand | None] = []
            while not tokens.accept("}"):
                elements.append(self.operand())
                tokens.accept(",")
            return Vector(tuple(elements))
        if head == "!":
            tokens.next()
            return Negated(self.register())
        if word == "_":
            tokens.next()
            return self.pair(None) if tokens.peek == "|" else None
        if tokens.at_literal:
            return tokens.literal()
        found = self.named()
        if tokens.peek == "|":
            return self.pair(found)
        return self.offset(found) if tokens.peek in ("+", "-") else found

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
        return Address(base, self.tokens.integer())

    def address(self) -> Operand:
        """The first item within brackets, as an address."""
        found = self.operand()
        if isinstance(found, Address):
            return found
        if isinstance(found, (Register, Symbol, Special)):
            return Address(found, self.tokens.integer() if self.tokens.peek in ("+", "-") else 0)
        if isinstance(found, Immediate) and found.type not in ("f32", "f64"):
            return Address(None, found.bits)
        raise self.tokens.error("not an address")
