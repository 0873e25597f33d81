"""Read the body of a PTX function: scopes, registers, labels and instructions."""

from __future__ import annotations

from cudakit.sim.ptx.declarations import OPERAND_TYPES, SPACES, Declarations, type_bytes
from cudakit.sim.ptx.ir import (
    CARRY,
    Instruction,
    Label,
    Location,
    Operand,
    Prototype,
    PtxError,
    PtxFunction,
    Register,
    Symbol,
    UnsupportedPtx,
    Vector,
)
from cudakit.sim.ptx.opcodes import carry_of
from cudakit.sim.ptx.operands import MOST, Operands, Scope, registers_of
from cudakit.sim.ptx.order import in_order
from cudakit.sim.ptx.passing import RegisterParameters, call_shape, linked

# the types of registers with the address of a function
_POINTERS = ("b64", "u64", "s64", "b32", "u32", "s32")
# nested scopes of a function
_DEEPEST = 1600


class Body(Operands):
    """Reads one function's body."""

    def __init__(self, declarations: Declarations, strings: dict[tuple[str, int], str], function: PtxFunction) -> None:
        super().__init__(declarations, function)
        self.strings = strings
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
                self.scopes.append(Scope(self.scope_count, {}, {}))
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

    # ---- statements ----

    def resolve_label(self, name: str, numbers: tuple[int, ...], start: int) -> str:
        for number in numbers:
            unique = name if number == 0 else f"{name}#{number}"
            if unique in self.function.labels:
                return unique
        raise self.tokens.error(f"no label {name!r}", start)

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
            if len(returns) > 1 and any(result.space == "param" for result in returns):
                raise tokens.error("a function with several results returns them in registers", start)
            function.prototypes[unique] = Prototype(returns, params, noreturn)
            self.scopes[-1].names[name] = Symbol(unique)
        elif tokens.accept(".calltargets"):
            targets = function.call_targets[unique] = self.names()
            for target in targets:
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
                self.declare(name, registers_of(self.unique(name), kind, lanes))
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
        ordered, wrong = in_order(opcode, tuple(modifiers))
        if wrong:
            raise tokens.error(wrong, tokens.starts[first])
        operands: list[Operand | None] = []
        if opcode == "call":
            operands = self.call()
        elif tokens.peek != ";":
            operands.append(self.operand())
            while tokens.accept(","):
                operands.append(self.operand())
            if len(operands) > MOST:
                raise tokens.error(f"{opcode} has more than {MOST} operands", tokens.starts[first])
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
            ordered,
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
        try:
            if isinstance(callee, Symbol) and len(call.operands) == 3:
                target = self.declarations.functions.get(callee.name)
                if target is None or target.entry:
                    why = "a kernel" if target is not None else "not a function that is declared before"
                    raise PtxError(f"call of {callee.name!r}, which is {why}")
            else:
                target = self.pointed(call)
            instructions, variables = linked(call, target, self.variables)
        except PtxError as error:
            raise self.tokens.error(str(error), start) from None
        function.instructions.extend(instructions)
        function.variables.extend(variables)
        self.variables.update({variable.name: variable for variable in variables})

    def pointed(self, call: Instruction) -> PtxFunction:
        """A function with the parameters of an indirect call, from its prototype, or the first of its targets. Raises
        PtxError if the call has neither."""
        callee = call.operands[1]
        if not isinstance(callee, Register) or callee.type not in _POINTERS:
            raise PtxError("an indirect call takes the function's address in a register of 64 bits")
        last = call.operands[3] if len(call.operands) > 3 else None
        name = last.name if isinstance(last, Symbol) else ""
        prototype = self.function.prototypes.get(name)
        if prototype is not None:
            return call_shape(name, prototype)
        targets = self.function.call_targets.get(name) or self.declarations.functions_in(name)
        if not targets:
            raise PtxError("an indirect call needs a .callprototype, .calltargets or a table of functions before it")
        first, *others = [self.declarations.functions[target] for target in targets]
        for other in others:
            if other.sizes != first.sizes:
                raise PtxError(f"the targets {first.name!r} and {other.name!r} have different parameters")
        return first

    def arguments(self) -> tuple[Operand | None, ...]:
        tokens = self.tokens
        tokens.expect("(")
        found: list[Operand | None] = []
        more = not tokens.accept(")")
        while more:
            found.append(self.operand())
            more = tokens.separated(")")
        return tuple(found)
