"""Read the body of a PTX function: scopes, registers, labels and instructions."""

from __future__ import annotations

import re
from typing import NamedTuple

from cudakit.sim.ptx.declarations import OPERAND_TYPES, SPACES, Declarations, type_bytes
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
    PtxError,
    PtxFunction,
    Register,
    Special,
    Symbol,
    UnsupportedPtx,
    Vector,
)
from cudakit.sim.ptx.opcodes import carry_of
from cudakit.sim.ptx.passing import RegisterParameters, linked

_SPECIAL = re.compile(
    r"%(?:(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)(?:\.[xyz])?"
    r"|laneid|warpid|nwarpid|smid|nsmid|gridid|cluster_ctarank|cluster_nctarank|is_explicit_cluster"
    r"|lanemask_(?:eq|le|lt|ge|gt)|clock|clock_hi|clock64|pm\d(?:_64)?|envreg(?:[12]?\d|3[01])|globaltimer(?:_lo|_hi)?"
    r"|reserved_smem_offset_\w+|total_smem_size|aggr_smem_size|dynamic_smem_size|current_graph_exec)"
)

_COMPONENTS = ("x", "y", "z", "w")
# nested scopes of a function
_DEEPEST = 1600
# operands of an instruction, and elements of a vector: wgmma has 128
_MOST = 256


def _wide(name: str) -> Vector:
    """A register of 128 bits, as its low and high half."""
    return Vector((Register(f"{name}.lo", "b64"), Register(f"{name}.hi", "b64")))


def _registers(name: str, kind: str, lanes: int) -> Register | Vector:
    """A register, or the registers of a vector or of 128 bits."""
    if lanes > 1:
        return Vector(tuple(Register(f"{name}.{_COMPONENTS[i]}", kind) for i in range(lanes)))
    return _wide(name) if kind == "b128" else Register(name, kind)


class _Scope(NamedTuple):
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
        self.variables = {variable.name: variable for variable in (*function.params, *function.returns)}
        names = self.scopes[0].names
        for variable in (*function.params, *function.returns):
            if variable.name in names:
                raise self.tokens.error(f"{variable.name!r} is declared twice")
            if variable.space == "reg":
                names[variable.name] = Register(variable.name, variable.type)
            else:
                names[variable.name] = Symbol(variable.name)
        self.registers = RegisterParameters(function)
        function.instructions.extend(self.registers.loads(function.line))
        for register, _ in (*self.registers.taken, *self.registers.returned):
            function.registers[register.name] = register.type

    def read(self) -> None:
        tokens, function = self.tokens, self.function
        while True:
            word = tokens.peek
            if word == "{":
                if len(self.scopes) > _DEEPEST:
                    raise tokens.error(f"scopes are nested more than {_DEEPEST} deep")
                tokens.next()
                self.scopes.append(_Scope(self.scope_count, {}, {}))
                self.scope_count += 1
            elif word == "}":
                tokens.next()
                self.scopes.pop()
                if not self.scopes:
                    break
            elif word[:1] == ".":
                self.directive(tokens.next())
            elif not word:
                raise tokens.error(f"the text ends within {function.name}")
            elif word == "@" or tokens.after != ":":
                self.instruction()
            else:
                self.label()
        function.instructions.extend(self.registers.stores(Instruction("ret", (), (), line=tokens.line())))
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
            if unique in self.function.labels:
                return unique
        raise self.tokens.error(f"no label {name!r}", start)

    def lookup(self, name: str) -> Register | Vector | Symbol | Special | None:
        for scope in reversed(self.scopes):
            known = scope.names.get(name)
            if known is not None:
                return known
            if scope.families:
                member = scope.member(name)
                if member is not None:
                    unique = name if scope.number == 0 else f"{name}#{scope.number}"
                    made = scope.names[name] = _registers(unique, *member)
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

    def declare(self, name: str, found: Register | Vector | Symbol) -> None:
        """Declare a name in the current scope; it is the token before the next one."""
        scope = self.scopes[-1]
        self.declarations.check_name(name)
        if name in scope.names or (scope.families and scope.member(name) is not None):
            self.tokens.position -= 1
            raise self.tokens.error(f"{name!r} is declared twice")
        scope.names[name] = found

    def label(self) -> None:
        tokens, function = self.tokens, self.function
        start = tokens.starts[tokens.position]
        name = tokens.name()
        self.declarations.check_name(name)
        tokens.expect(":")
        unique = self.unique(name)
        if unique in function.labels or name in self.scopes[-1].names:
            raise tokens.error(f"label {name!r} is defined twice", start)
        if tokens.accept(".branchtargets"):
            self.lists.append((unique, self.numbers(), self.names(), start))
            self.scopes[-1].names[name] = Symbol(unique)
        elif tokens.accept(".callprototype"):
            returns = self.declarations.prototype() if tokens.peek == "(" else ()
            tokens.expect("_")
            params = self.declarations.prototype() if tokens.peek == "(" else ()
            noreturn = tokens.accept(".noreturn")
            while tokens.peek in (".abi_preserve", ".abi_preserve_control"):
                tokens.next()
                tokens.count()
            tokens.expect(";")
            function.prototypes[unique] = Prototype(returns, params, noreturn)
            self.scopes[-1].names[name] = Symbol(unique)
        elif tokens.accept(".calltargets"):
            for target in self.names():
                if self.declarations.spaces.get(target) != "func":
                    raise tokens.error(f"the target {target!r} is not a function that is declared before", start)
            self.scopes[-1].names[name] = Symbol(unique)
        else:
            function.labels[unique] = len(function.instructions)

    def names(self) -> list[str]:
        """A list of names, up to the semicolon."""
        found = [self.tokens.name()]
        while self.tokens.separated(";"):
            found.append(self.tokens.name())
        return found

    def directive(self, word: str) -> None:
        tokens = self.tokens
        if word == ".loc":
            self.loc()
        elif word == ".reg":
            self.register_list()
        elif word in SPACES:
            start = tokens.starts[tokens.position]
            for variable in self.declarations.variable_list(word[1:]):
                name = variable.name
                scope = self.scopes[-1]
                if name in scope.names or (scope.families and scope.member(name) is not None):
                    raise tokens.error(f"{name!r} is declared twice", start)
                variable.name = self.unique(name)
                self.variables[variable.name] = variable
                scope.names[name] = Symbol(variable.name)
                self.function.variables.append(variable)
        elif word == ".pragma":
            tokens.text_literal()
            tokens.expect(";")
        else:
            tokens.position -= 1
            raise tokens.error(f"unknown directive {word!r}")

    def register_list(self) -> None:
        """``.reg .b32 %r<9>, %a;`` and ``.reg .v4 .f32 %v;``."""
        tokens, scope = self.tokens, self.scopes[-1]
        if tokens.accept(".align"):
            self.declarations.alignment()
        lanes = int(tokens.next()[2:]) if tokens.peek in (".v2", ".v4") else 1
        if tokens.peek[:1] != ".":
            raise tokens.error(f"expected a type, found {tokens.peek!r}")
        kind = tokens.next()[1:]
        size = type_bytes(kind)
        if size is None or size > 16 or kind in OPERAND_TYPES:
            tokens.position -= 1
            raise UnsupportedPtx(str(tokens.error(f"registers of type .{kind} are not supported")), tokens.line())
        if lanes > 1 and (lanes * size > 16 or kind == "pred"):
            tokens.position -= 1
            raise tokens.error(f"no register has {lanes} elements of type .{kind}")
        more = True
        while more:
            name = tokens.name()
            if tokens.peek == "<":
                self.declarations.check_name(name)
                tokens.next()
                count = tokens.count()
                tokens.expect(">")
                members = (known[len(name) :] for known in scope.names if known.startswith(name))
                if name in scope.families or any(m.isdigit() and len(m) < 10 and int(m) < count for m in members):
                    raise tokens.error(f"{name!r} is declared twice")
                scope.families[name] = (kind, lanes, count)
            else:
                self.declare(name, _registers(self.unique(name), kind, lanes))
            more = tokens.separated(";")

    def loc(self) -> None:
        tokens = self.tokens
        file, line, column = tokens.count(), tokens.count(), tokens.count()
        function: str | None = None
        label = ""
        inlined: Location | None = None
        while tokens.accept(","):
            word = tokens.name()
            if word == "function_name":
                label = tokens.name()
                offset = tokens.integer() if tokens.accept("+") else 0
                function = self.strings.get((label, offset))
                if tokens.peek != ",":
                    raise tokens.error("function_name of .loc needs inlined_at")
            elif word == "inlined_at" and label:
                place = (tokens.count(), tokens.count(), tokens.count())
                # the call's place is described by the latest .loc with the same numbers
                inlined = self.locations.get(place)
                if inlined is None:
                    raise tokens.error(f"no .loc {place[0]} {place[1]} {place[2]} before, which inlined_at names")
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
            guard = (self.predicate(), negated)
        opcode, *modifiers = tokens.name().split(".")
        while tokens.peek[:1] == ".":
            modifiers += tokens.next()[1:].split(".")
        operands: list[Operand | None] = []
        if opcode == "call":
            operands = self.call()
        elif tokens.peek != ";":
            operands.append(self.operand())
            while tokens.accept(","):
                operands.append(self.operand())
            if len(operands) > _MOST:
                raise tokens.error(f"{opcode} has more than {_MOST} operands", tokens.starts[first])
            if opcode in ("bra", "brx"):
                target = operands[-1]
                if not isinstance(target, Symbol):
                    raise tokens.error(f"{opcode} needs a label", tokens.starts[first])
                self.declarations.used_symbols.pop(target.name, None)
                operands[-1] = Label(target.name)
                if opcode == "brx" and not any(target.name == owner for owner, *_ in self.lists):
                    raise tokens.error(f"no list of branch targets {target.name!r} before", tokens.starts[first])
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
        if opcode == "ret":
            self.function.instructions.extend(self.registers.stores(instruction))
        if opcode == "call":
            self.link(instruction, start)
        else:
            self.function.instructions.append(instruction)
        if any(carry_of(instruction)):
            self.function.registers[CARRY.name] = CARRY.type
        if opcode == "bra":
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

    def link(self, call: Instruction, start: int) -> None:
        """Add a call, with its registers moved to variables and back."""
        function, callee = self.function, call.operands[1]
        if not isinstance(callee, Symbol) or len(call.operands) > 3:
            # an indirect call
            function.instructions.append(call)
            return
        target = self.declarations.functions.get(callee.name)
        if target is None or target.entry:
            why = "a kernel" if target is not None else "not a function that is declared before"
            raise self.tokens.error(f"call of {callee.name!r}, which is {why}", start)
        try:
            instructions, variables = linked(call, target, self.variables)
        except PtxError as error:
            raise self.tokens.error(str(error), start) from None
        function.instructions.extend(instructions)
        function.variables.extend(variables)
        self.variables.update({variable.name: variable for variable in variables})

    def arguments(self) -> tuple[Operand | None, ...]:
        tokens = self.tokens
        tokens.expect("(")
        found: list[Operand | None] = []
        more = not tokens.accept(")")
        while more:
            found.append(self.operand())
            more = tokens.separated(")")
        return tuple(found)

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
        if len(elements) > _MOST:
            raise tokens.error(f"a vector has more than {_MOST} elements")
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
