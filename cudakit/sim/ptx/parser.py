"""Read PTX text into the records of ``ir``, which this module exports too."""

from __future__ import annotations

import re

from cudakit.sim.ptx.body import Body
from cudakit.sim.ptx.declarations import SPACES, Declarations, type_bytes
from cudakit.sim.ptx.gates import oldest_version, version_of
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
    PtxModule,
    Register,
    Special,
    Symbol,
    UnsupportedPtx,
    Variable,
    Vector,
)
from cudakit.sim.ptx.tokens import Tokens

__all__ = [
    "CARRY",
    "Address",
    "Immediate",
    "Instruction",
    "Label",
    "Location",
    "Negated",
    "Operand",
    "Pair",
    "Prototype",
    "PtxError",
    "PtxFunction",
    "PtxModule",
    "Register",
    "Special",
    "Symbol",
    "UnsupportedPtx",
    "Variable",
    "Vector",
    "parse",
    "source_files",
]

_LINKAGE = frozenset((".visible", ".weak", ".extern", ".common"))
_THREE = range(1, 4)
# directives allowed between a function's parameters and its body, and the numbers that they take
_OF_KERNELS = dict.fromkeys(("maxntid", "reqntid", "reqnctapercluster"), _THREE)
_OF_KERNELS |= dict.fromkeys(("minnctapersm", "maxnreg", "maxclusterrank"), range(1, 2))
_OF_KERNELS |= dict.fromkeys(("explicitcluster", "blocksareclusters"), range(1))
_OF_FUNCTIONS = {"noreturn": range(1), "abi_preserve": range(1, 2), "abi_preserve_control": range(1, 2)}
_POSITIVE = ("maxntid", "reqntid", "minnctapersm", "maxnreg")
_OPTIONS = ("debug", "texmode_unified", "texmode_independent", "map_f64_to_f32")
_TARGET = re.compile(r"(?:sm|compute)_(\d+)([af]?)")
# chips older than the first of these are not simulated, nor are instructions that need later ones
_CHIPS = (70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)
# the last minor version of each major version
_VERSIONS = {1: 5, 2: 3, 3: 2, 4: 3, 5: 1, 6: 5, 7: 8, 8: 8, 9: 5}
_FILE = re.compile(r'^[ \t]*\.file[ \t]+(\d+)[ \t]+"([^"\n]*)"', re.MULTILINE)
_ESCAPE = re.compile(rb"\\(\\|[0-7]{3})")
_STRING = re.compile(r"^[ \t]*([\w$]+):|^[ \t]*\.b8[ \t]+([\d, \t]+)", re.MULTILINE)


def parse(text: str) -> PtxModule:
    """Parse PTX text. Raises ``PtxError``, with the line and its text."""
    parser = _PtxParser(text)
    try:
        return parser.module()
    except PtxError as error:
        if parser.body is not None:
            error.function, error.location = parser.body.function.title, parser.body.location
        raise


def source_files(text: str) -> dict[int, str]:
    """The source files of PTX text, listed after its functions; works for text that cannot be parsed too."""
    return {int(number): _file_name(name) for number, name in _FILE.findall(text)}


def _file_name(text: str) -> str:
    """A file's name in PTX, whose bytes that are not ASCII are escapes such as \\303; backslashes are doubled."""
    data = _ESCAPE.sub(lambda match: b"\\" if match[1] == b"\\" else bytes([int(match[1], 8) & 255]), text.encode())
    return data.decode("utf-8", "replace")


class _PtxParser:
    def __init__(self, text: str) -> None:
        self.tokens = Tokens(text.rstrip("\0\n "))
        self.declarations = Declarations(self.tokens)
        self.strings = _debug_strings(self.tokens.text)
        self.result = PtxModule("", "", 64)
        self.declarations.functions, self.declarations.variables = self.result.functions, self.result.variables
        # functions declared without .extern: name to text offset
        self.undefined: dict[str, int] = {}
        self.body: Body | None = None

    # ---- the module ----

    def module(self) -> PtxModule:
        tokens, result = self.tokens, self.result
        self.opening()
        while word := tokens.peek:
            if word in (".entry", ".func") or word in _LINKAGE or word in SPACES:
                self.declaration()
            elif word == ".file":
                self.file()
            elif word == ".section":
                self.section()
            elif word == ".pragma":
                tokens.next()
                tokens.text_literal()
                tokens.expect(";")
            elif word == ".alias":
                self.alias()
            else:
                raise tokens.error(f"unknown directive {word!r}")
        for name, start in self.undefined.items():
            if not result.functions[name].body:
                raise tokens.error(f"{name!r} is declared but not defined, and not .extern", start)
        self.declarations.check_size("const", result.variables.values())
        for name, start in self.declarations.used_symbols.items():
            if name not in result.functions and name not in result.variables:
                raise tokens.error(f"{name!r} is not declared", start)
        return result

    def opening(self) -> None:
        """The directives that begin a module: .version, .target and .address_size."""
        tokens, result = self.tokens, self.result
        if not tokens.accept(".version"):
            raise tokens.error("no .version directive at the start: this is not a PTX module")
        result.version = tokens.next()
        major, dot, minor = result.version.partition(".")
        known = dot and major.isdigit() and minor.isdigit() and len(result.version) < 8
        if not known or int(minor) > _VERSIONS.get(int(major), -1):
            tokens.position -= 1
            raise tokens.error(f"unknown .version {result.version[:20]}: the latest is 9.{_VERSIONS[9]}")
        if tokens.peek != ".target":
            raise tokens.error("no .target directive after .version")
        while tokens.peek == ".target":
            self.target()
        if tokens.peek == ".address_size" and (int(major), int(minor)) < (2, 3):
            raise tokens.error(f".address_size needs .version 2.3, not {result.version}")
        if tokens.accept(".address_size"):
            if tokens.count() != 64:
                tokens.position -= 1
                raise UnsupportedPtx(str(tokens.error("only addresses of 64 bits are supported")), tokens.line())
            result.address_size = 64

    def target(self) -> None:
        tokens, result = self.tokens, self.result
        tokens.expect(".target")
        more = True
        while more:
            word = tokens.name()
            found = _TARGET.fullmatch(word)
            if found is not None and len(word) < 16:
                number, suffix = int(found.group(1)), found.group(2)
                if number not in _CHIPS or (suffix and number < (90 if suffix == "a" else 100)):
                    tokens.position -= 1
                    raise tokens.error(f"unknown .target {word}")
                result.target = result.target or word
            elif word not in _OPTIONS:
                tokens.position -= 1
                raise tokens.error(f"unknown .target {word[:40]!r}")
            result.debug |= word == "debug"
            more = tokens.accept(",")

    def file(self) -> None:
        tokens, files = self.tokens, self.result.files
        tokens.expect(".file")
        number = tokens.count()
        if number in files:
            tokens.position -= 1
            raise tokens.error(f"the file {number} is declared twice")
        files[number] = _file_name(tokens.text_literal())
        for _ in range(2):
            # time of modification and size
            if tokens.accept(","):
                tokens.integer()

    def alias(self) -> None:
        tokens, functions = self.tokens, self.result.functions
        tokens.expect(".alias")
        name = tokens.name()
        if name not in functions:
            tokens.position -= 1
            raise tokens.error(f"the alias {name!r} has not been declared as a function")
        tokens.expect(",")
        target = tokens.name()
        if target not in functions or not functions[target].body:
            tokens.position -= 1
            raise tokens.error(f"the target {target!r} of the alias {name!r} has not been defined as a function")
        functions[name] = functions[target]
        tokens.expect(";")

    def section(self) -> None:
        """A section of debug information: labels, and lists of numbers and labels."""
        tokens = self.tokens
        tokens.next()
        name = tokens.next()
        tokens.expect("{")
        start = tokens.starts[tokens.position]
        while tokens.peek != "}":
            word = tokens.next()
            if word[:1] != ".":
                tokens.expect(":")
                continue
            if type_bytes(word[1:]) is None:
                tokens.position -= 1
                raise tokens.error(f"expected a type, found {word!r}")
            more = True
            while more:
                if tokens.at_literal:
                    tokens.integer()
                else:
                    # an address: a label or a section, with an offset
                    tokens.next()
                    if tokens.accept("+") or tokens.accept("-"):
                        tokens.next()
                more = tokens.accept(",")
        self.result.sections[name] = tokens.text[start : tokens.starts[tokens.position]]
        tokens.expect("}")

    def declaration(self) -> None:
        tokens, result = self.tokens, self.result
        linkage = tokens.next() if tokens.peek in _LINKAGE else ""
        start = tokens.starts[tokens.position]
        if tokens.peek in (".entry", ".func"):
            self.function(linkage)
            return
        word = tokens.next()
        if word not in (".global", ".const", ".shared"):
            raise tokens.error(f"{word!r} cannot be declared outside a function", start)
        for variable in self.declarations.variable_list(word[1:], linkage == ".extern"):
            name = variable.name
            known = result.variables.get(name)
            same = known is None or (known.space, known.type) == (variable.space, variable.type)
            if name in result.functions or not same:
                raise tokens.error(f"{name!r} is declared before as something else", start)
            if known is not None and not (known.extern or variable.extern):
                raise tokens.error(f"{name!r} is defined twice", start)
            if known is None or known.extern:
                result.variables[name] = variable
            self.declarations.spaces[name] = variable.space

    # ---- functions ----

    def function(self, linkage: str) -> None:
        tokens, declarations = self.tokens, self.declarations
        start = tokens.starts[tokens.position]
        entry = tokens.next() == ".entry"
        line = tokens.line()
        returns = declarations.parameters() if tokens.peek == "(" and not entry else ()
        name = tokens.name()
        declarations.check_name(name)
        params = declarations.parameters(entry) if tokens.peek == "(" else ()
        function = PtxFunction(name, entry, params, returns, line=line)
        if entry:
            declarations.check_size("param", params)
        self.directives(function)
        known = self.result.functions.get(name)
        if name in self.result.variables or (known is not None and known.body):
            raise tokens.error(f"{name!r} is defined twice", start)
        if known is not None and known.shape != function.shape:
            raise tokens.error(f"{name!r} is declared before with other parameters", start)
        declarations.spaces[name] = "func"
        if tokens.accept(";"):
            function.body = False
            if linkage != ".extern":
                self.undefined.setdefault(name, start)
            self.result.functions.setdefault(name, function)
            return
        tokens.expect("{")
        if linkage == ".extern":
            raise tokens.error(f"{name!r} is .extern: it cannot have a body", start)
        oldest = oldest_version(self.result.target)
        if version_of(self.result.version) < oldest:
            raise tokens.error(f"functions for {self.result.target} need .version {oldest[0]}.{oldest[1]}", start)
        self.result.functions[name] = function
        self.body = Body(declarations, self.strings, function)
        self.body.read()
        self.body = None

    def directives(self, function: PtxFunction) -> None:
        """The directives between a function's parameters and its body."""
        tokens = self.tokens
        allowed = _OF_KERNELS if function.entry else _OF_FUNCTIONS
        while tokens.peek[:1] == ".":
            directive = tokens.next()[1:]
            if directive == "pragma":
                tokens.text_literal()
                tokens.expect(";")
                continue
            if directive not in allowed:
                tokens.position -= 1
                error = UnsupportedPtx(str(tokens.error(f"the directive .{directive} is not supported")), tokens.line())
                error.function = function.title
                raise error
            values: list[int] = []
            more = 0 not in allowed[directive]
            while more:
                values.append(tokens.count())
                if not values[-1] and directive in _POSITIVE:
                    tokens.position -= 1
                    raise tokens.error(f".{directive} must be positive")
                more = len(values) + 1 in allowed[directive] and tokens.accept(",")
            if {directive, *function.directives} >= {"maxntid", "reqntid"}:
                raise tokens.error("a kernel has either .maxntid or .reqntid")
            function.directives[directive] = tuple(values)


def _debug_strings(text: str) -> dict[tuple[str, int], str]:
    """The strings of ``.section .debug_str`` by label and offset: the function names that ``.loc`` refers to."""
    section = re.search(r"\.section\s+\.debug_str\s*\{(.*?)\}", text, re.DOTALL)
    if section is None:
        return {}
    strings: dict[tuple[str, int], str] = {}
    label, data = "", bytearray()

    def keep() -> None:
        start = 0
        while label and start < len(data):
            end = data.find(0, start)
            end = len(data) if end < 0 else end
            strings[label, start] = data[start:end].decode("utf-8", "replace")
            start = end + 1

    for match in _STRING.finditer(section.group(1)):
        if match.group(1) is not None:
            keep()
            label, data = match.group(1), bytearray()
        else:
            data += bytes(int(value) & 255 for value in match.group(2).replace(",", " ").split())
    keep()
    return strings
