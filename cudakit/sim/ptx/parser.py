"""Read PTX text into the records of ``ir``, which this module exports too."""

from __future__ import annotations

import re

from cudakit.sim.ptx.body import Body
from cudakit.sim.ptx.declarations import SPACES, Declarations
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
# directives allowed between a function's parameters and its body
_DIRECTIVES = frozenset(("maxntid", "reqntid", "minnctapersm", "maxnctapersm", "maxnreg", "noreturn", "pragma"))
_DIRECTIVES |= {"attribute", "explicitcluster", "reqnctapercluster", "maxclusterrank", "abi_preserve"}
_DIRECTIVES |= {"abi_preserve_control", "retain_instruction"}
_DIRECTIVES_REFUSED = {"blocksareclusters": " (__block_size__ with a cluster): use __cluster_dims__"}
_FILE = re.compile(r'^[ \t]*\.file[ \t]+(\d+)[ \t]+"([^"\n]*)"', re.MULTILINE)
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
    return {int(number): name.replace("\\\\", "\\") for number, name in _FILE.findall(text)}


class _PtxParser:
    def __init__(self, text: str) -> None:
        self.tokens = Tokens(text.rstrip("\0\n "))
        self.declarations = Declarations(self.tokens)
        self.strings = _debug_strings(self.tokens.text)
        self.result = PtxModule("", "", 64)
        self.aliases: dict[str, str] = {}
        self.body: Body | None = None

    # ---- the module ----

    def module(self) -> PtxModule:
        tokens, result = self.tokens, self.result
        while tokens.peek:
            word = tokens.next()
            if word == ".version":
                result.version = tokens.next()
            elif word == ".target":
                result.target = tokens.name()
                while tokens.accept(","):
                    result.debug |= tokens.name() == "debug"
            elif word == ".address_size":
                if tokens.peek != "64":
                    raise UnsupportedPtx(str(tokens.error("only addresses of 64 bits are supported")), tokens.line())
                result.address_size = tokens.integer()
            elif word == ".file":
                number = tokens.integer()
                result.files[number] = tokens.next()[1:-1].replace("\\\\", "\\")
                while tokens.accept(","):
                    tokens.integer()
            elif word == ".section":
                self.skip_section()
            elif word in (".pragma", ".alias"):
                self.module_statement(word)
            elif word in _LINKAGE or word in SPACES or word in (".entry", ".func"):
                tokens.position -= 1
                self.declaration()
            elif word != ";":
                tokens.position -= 1
                raise tokens.error(f"unknown directive {word!r}")
        if not result.version:
            raise PtxError("PTX line 1: no .version directive: this is not a PTX module", 1)
        for name, target in self.aliases.items():
            if target in result.functions:
                result.functions[name] = result.functions[target]
        for name, start in self.declarations.used_symbols.items():
            if name not in result.functions and name not in result.variables:
                raise tokens.error(f"{name!r} is not declared", start)
        return result

    def module_statement(self, word: str) -> None:
        tokens = self.tokens
        if word == ".alias":
            name = tokens.name()
            tokens.expect(",")
            self.aliases[name] = tokens.name()
        else:
            tokens.next()
        tokens.expect(";")

    def skip_section(self) -> None:
        tokens = self.tokens
        tokens.next()
        tokens.expect("{")
        while tokens.next() != "}":
            pass

    def declaration(self) -> None:
        tokens = self.tokens
        linkage = ""
        while tokens.peek in _LINKAGE:
            linkage = tokens.next()
        if tokens.peek in (".entry", ".func"):
            self.function()
            return
        for variable in self.declarations.variable_list(tokens.next()[1:], linkage == ".extern"):
            known = self.result.variables.get(variable.name)
            if known is None or known.extern or not variable.extern:
                self.result.variables[variable.name] = variable

    # ---- functions ----

    def function(self) -> None:
        tokens = self.tokens
        entry = tokens.next() == ".entry"
        line = tokens.line()
        returns = self.declarations.parameters() if tokens.peek == "(" else ()
        name = tokens.name()
        params = self.declarations.parameters() if tokens.peek == "(" else ()
        function = PtxFunction(name, entry, params, returns, line=line)
        while tokens.peek[:1] == ".":
            directive = tokens.next()[1:]
            if directive not in _DIRECTIVES:
                tokens.position -= 1
                why = _DIRECTIVES_REFUSED.get(directive, "")
                error = UnsupportedPtx(
                    str(tokens.error(f"the directive .{directive} is not supported{why}")), tokens.line()
                )
                error.function = function.title
                raise error
            values: list[int] = []
            if directive in ("pragma", "attribute"):
                while tokens.peek[:1] in ('"', "(", ")", ",") or tokens.peek[:1].isalnum():
                    tokens.next()
                tokens.accept(";")
            elif tokens.at_literal:
                values.append(tokens.integer())
                while tokens.accept(","):
                    values.append(tokens.integer())
            function.directives[directive] = tuple(values)
        if tokens.accept(";"):
            function.body = False
            self.result.functions.setdefault(name, function)
            return
        tokens.expect("{")
        self.result.functions[name] = function
        self.body = Body(self.declarations, self.strings, function)
        self.body.read()
        self.body = None


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
