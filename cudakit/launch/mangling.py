"""C++ types and names from Itanium-mangled names, as far as kernels use them.

Supports builtin types, qualifiers, pointers, references, nested and local names, templates with type, integer and
expression arguments, and substitutions. `demangle` returns None for anything else and never guesses. The grammar is
recursive as a whole, so its parser is one class.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace
from typing import Union

from cudakit.launch.cxx import BUILTIN, BUILTIN_D, KNOWN_CLASSES, Type


@dataclass(frozen=True)
class Signature:
    """A demangled name: `name` ("ns::k<8, float>"), `base` ("ns::k"), and its parameter types."""

    name: str
    base: str
    types: tuple[Type, ...] | None  # None if the name has no types, as for a variable

    @property
    def text(self) -> str:
        """The full signature as C++ writes it: "ns::k<8, float>(const float*, int)"."""
        if self.types is None:
            return self.name
        return f"{self.name}({', '.join(kind.text for kind in self.types)})"


_BINARY = {
    "pl": "+", "mi": "-", "ml": "*", "dv": "/", "rm": "%", "an": "&", "or": "|", "eo": "^", "ls": "<<", "rs": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">=", "aa": "&&", "oo": "||",
}  # fmt: skip
_UNARY = {"ng": "-", "nt": "!", "co": "~", "ps": "+"}


Argument = Union["Type", str, "list[Argument]"]  # a template argument: a type, a value's text, or a pack


class _Unknown(Exception):
    """The mangled name contains a construct that this parser does not support."""


@dataclass(frozen=True)
class _Name:
    """A name being read: its text, its base without template arguments, and whether it ends in template arguments."""

    text: str
    base: str
    templated: bool = False


@dataclass
class _Demangler:
    """A recursive-descent parser of one mangled name. substitutions: the targets of S_, S0_, ..."""

    text: str
    at: int = 0
    substitutions: list[Type | _Name | None] = field(default_factory=list)  # None if it differs between pack elements
    template: list[Argument] = field(default_factory=list)
    element: int | None = None  # index of the pack element that T_ refers to while a pack is expanded

    # Characters -------------------------------------------------------------------------------------------------------

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def take(self, wanted: str) -> bool:
        if self.text.startswith(wanted, self.at):
            self.at += len(wanted)
            return True
        return False

    def need(self, wanted: str) -> None:
        if not self.take(wanted):
            raise _Unknown(f"{wanted!r} expected at {self.at} of {self.text}")

    def number(self) -> int:
        match = re.compile(r"\d+").match(self.text, self.at)
        if not match:
            raise _Unknown(f"a number expected at {self.at} of {self.text}")
        self.at = match.end()
        return int(match[0])

    def sequence(self, base: int = 36) -> int:
        """Read the index in S_ (0), S0_ (1), SA_ (11), T_ (0), T0_ (1): 0 without digits, else the number plus one. The
        numbers of S have base 36, those of T are decimal."""
        match = re.compile(r"([0-9A-Z]*)_").match(self.text, self.at)
        if not match:
            raise _Unknown(f"a sequence number expected at {self.at} of {self.text}")
        self.at = match.end()
        digits = match[1]
        if digits and base == 10 and not digits.isdecimal():
            raise _Unknown(f"{digits} is not decimal")
        return int(digits, base) + 1 if digits else 0

    # Names ------------------------------------------------------------------------------------------------------------

    def encoding(self) -> Signature:
        """Read <encoding>: a name, then a function's parameter types; a template's return type comes before them."""
        name = self.name(outermost=True)
        if self.at >= len(self.text) or self.peek() in ("E", "."):
            return Signature(name.text, name.base, None)
        if name.templated:
            self.type()  # the return type, void for a kernel
        types: list[Type] = []
        while self.at < len(self.text) and self.peek() not in ("E", "."):
            types += self.expansion() if self.take("Dp") else [self.type()]
        if len(types) == 1 and types[0].text == "void":
            types = []
        return Signature(name.text, name.base, tuple(types))

    def name(self, outermost: bool = False) -> _Name:
        if self.peek() == "N":
            return self.nested(outermost)
        if self.peek() == "Z":
            return self.local()
        if self.peek() == "S" and self.peek(2) != "St":
            name = self.as_name(self.substitution())
            return self.with_arguments(name, outermost) if self.peek() == "I" else name
        prefix = "std::" if self.take("St") else ""
        part = self.unqualified()
        name = _Name(prefix + part, prefix + part)
        if self.peek() == "I":
            self.substitutions.append(name)
            name = self.with_arguments(name, outermost)
        return name

    def nested(self, outermost: bool) -> _Name:
        self.need("N")
        while self.peek() in ("r", "V", "K", "R", "O"):  # a member function's qualifiers
            self.at += 1
        name: _Name | None = None
        pushed = False
        while not self.take("E"):
            if self.peek() == "I" and name is not None:
                name = self.with_arguments(name, outermost)
            elif self.peek() == "S" and self.peek(2) != "St":
                name = self.as_name(self.substitution())
                pushed = False
                continue
            elif self.peek() == "T":
                name = self.as_name(self.template_parameter())
            elif self.take("St"):
                name = _Name("std", "std")
                pushed = False
                continue
            else:
                part = self.unqualified()
                scope = f"{name.text}::" if name is not None else ""
                base = f"{name.base}::" if name is not None else ""
                name = _Name(scope + part, base + part)
            self.substitutions.append(name)
            pushed = True
        if name is None:
            raise _Unknown("an empty nested name")
        if pushed:
            self.substitutions.pop()  # the full name can be substituted only if it is a type, which type() adds
        return name

    def local(self) -> _Name:
        self.need("Z")
        inner = _Demangler(self.text, self.at, self.substitutions, self.template)
        outer = inner.encoding()
        self.at = inner.at
        self.need("E")
        if self.take("s"):
            entity = _Name("string literal", "string literal")
        else:
            entity = self.name()
        if self.take("__"):
            self.number()
            self.need("_")
        elif self.take("_"):
            self.number()
        text = f"{outer.text}::{entity.text}"
        return _Name(text, text, entity.templated)

    def unqualified(self) -> str:
        self.take("L")  # internal linkage
        if self.take("Ut"):
            return self.unnamed("unnamed")
        if self.take("Ul"):
            while not self.take("E"):
                self.type()
            return self.unnamed("lambda")
        length = self.number()
        part = self.text[self.at : self.at + length]
        if len(part) != length:
            raise _Unknown("a name that extends past the end of the text")
        self.at += length
        if part.startswith("_GLOBAL__N"):
            part = "(anonymous namespace)"
        while self.take("B"):
            part += f"[abi:{self.unqualified()}]"
        return part

    def unnamed(self, what: str) -> str:
        match = re.compile(r"\d*_").match(self.text, self.at)
        if not match:
            raise _Unknown("an unnamed type without its number")
        self.at = match.end()
        return f"{{{what}#{match[0][:-1] or 0}}}"

    def with_arguments(self, name: _Name, outermost: bool) -> _Name:
        arguments = self.arguments()
        if outermost:
            self.template = arguments
        return _Name(f"{name.text}<{', '.join(_texts(arguments))}>", name.base, True)

    def as_name(self, referred: Type | _Name) -> _Name:
        if isinstance(referred, Type):
            return _Name(referred.text, referred.text)
        return referred

    # Template arguments -----------------------------------------------------------------------------------------------

    def arguments(self) -> list[Argument]:
        self.need("I")
        arguments: list[Argument] = []
        while not self.take("E"):
            arguments.append(self.argument())
        return arguments

    def argument(self) -> Argument:
        if self.take("X"):
            value = self.expression()
            self.need("E")
            return value
        if self.take("J"):
            pack: list[Argument] = []
            while not self.take("E"):
                pack.append(self.argument())
            return pack
        if self.take("Dp"):
            return list(self.expansion())
        if self.peek() == "L":
            return self.literal()
        return self.type()

    def expansion(self) -> list[Type]:
        """Read the types of `Dp <pattern>`: the pattern once per element of the packs in it."""
        if self.element is not None:
            raise _Unknown("a pack within a pack")
        start, known = self.at, len(self.substitutions)
        lengths = {len(argument) for argument in self.template if isinstance(argument, list)}
        if len(lengths) != 1:
            raise _Unknown("packs of different lengths")
        types: list[Type] = []
        for self.element in range(lengths.pop()):
            self.at = start
            del self.substitutions[known:]
            types.append(self.type())
        self.element = None
        if not types:
            raise _Unknown("an empty pack")
        self.substitutions[known:] = [None] * (len(self.substitutions) - known)
        return types

    def literal(self) -> str:
        self.need("L")
        if self.take("_Z"):
            inner = _Demangler(self.text, self.at, self.substitutions, self.template)
            signature = inner.encoding()
            self.at = inner.at
            self.need("E")
            return f"&{signature.name}"
        kind = self.type()
        end = self.text.find("E", self.at)
        if end < 0:
            raise _Unknown("an unterminated literal")
        digits = self.text[self.at : end]
        self.at = end + 1
        value = f"-{digits[1:]}" if digits.startswith("n") else digits
        if kind.text == "bool":
            return "true" if value == "1" else "false"
        if kind.text == "int":
            return value
        if kind.text == "unsigned int":
            return f"{value}u"
        return f"({kind.text}){value}"

    def expression(self) -> str:
        if self.peek() == "L":
            return self.literal()
        if self.peek() == "T":
            return self.template_parameter().text
        code = self.peek(2)
        self.at += 2
        if code == "ad":
            return f"&{self.expression().lstrip('&')}"
        if code in _BINARY:
            left, right = self.expression(), self.expression()
            return f"({left} {_BINARY[code]} {right})"
        if code in _UNARY:
            return f"{_UNARY[code]}({self.expression()})"
        if code == "qu":
            condition, yes, no = self.expression(), self.expression(), self.expression()
            return f"({condition} ? {yes} : {no})"
        if code == "st":
            return f"sizeof({self.type().text})"
        if code == "cv":
            kind = self.type()
            return f"({kind.text}){self.expression()}"
        raise _Unknown(f"expression {code!r}")

    # Types ------------------------------------------------------------------------------------------------------------

    def type(self) -> Type:
        here = self.peek()
        if here in BUILTIN:
            self.at += 1
            return BUILTIN[here]
        if here == "D":
            for code, kind in BUILTIN_D.items():
                if self.take(code):
                    return kind
            raise _Unknown(f"type {self.peek(2)!r}")
        if here == "u":
            self.at += 1
            return self.add(Type(self.unqualified(), "struct"))
        if here in ("r", "V", "K"):
            return self.add(self.qualified())
        if here == "P":
            self.at += 1
            return self.add(self.pointer(self.type()))
        if here in ("R", "O"):
            self.at += 1
            referred = self.type()
            mark = "&" if here == "R" else "&&"
            # A reference parameter is passed as an address, like a pointer.
            return self.add(replace(self.pointer(referred), text=f"{referred.text}{mark}"))
        if here == "F":
            return self.add(self.function())
        if here == "A":
            self.at += 1
            extent = ""
            if self.peek() != "_":
                extent = str(self.number()) if self.peek().isdigit() else self.expression()
            self.need("_")
            element = self.type()
            return self.add(replace(element, text=f"{element.text}[{extent}]"))
        if here == "T":
            kind = self.add(self.template_parameter())
            if self.peek() == "I":
                return self.add(self.class_type(self.with_arguments(self.as_name(kind), False)))
            return kind
        if here == "S" and self.peek(2) != "St":
            earlier = self.substitution()
            if self.peek() == "I":
                return self.add(self.class_type(self.with_arguments(self.as_name(earlier), False)))
            return self.class_type(earlier) if isinstance(earlier, _Name) else earlier
        return self.add(self.class_type(self.name()))

    def add(self, kind: Type) -> Type:
        self.substitutions.append(kind)
        return kind

    def qualified(self) -> Type:
        constant = volatile = False
        while self.peek() in ("r", "V", "K"):
            constant |= self.peek() == "K"
            volatile |= self.peek() == "V"
            self.at += 1
        kind = self.type()
        words = ("const " if constant else "") + ("volatile " if volatile else "")
        text = f"{kind.text} {words.strip()}" if kind.kind == "pointer" else words + kind.text
        return replace(kind, text=text.strip(), const=kind.const or constant)

    @staticmethod
    def pointer(target: Type) -> Type:
        text = target.text.replace("(", "(*", 1) if target.kind == "function" else f"{target.text}*"
        return Type(text, "pointer", 8, False, const=False, target=target)

    def function(self) -> Type:
        self.need("F")
        self.take("Y")
        returned = self.type()
        types: list[Type] = []
        while not self.take("E"):
            types.append(self.type())
        listed = ", ".join(kind.text for kind in types if kind.text != "void")
        return Type(f"{returned.text} ()({listed})", "function")

    def class_type(self, name: _Name) -> Type:
        known = KNOWN_CLASSES.get(name.text)
        # The mangling does not show whether a class name is an enum; the PTX parameter does (see `parameters`).
        return known if known is not None else Type(name.text, "struct")

    def template_parameter(self) -> Type:
        self.need("T")
        index = self.sequence(base=10)
        if index >= len(self.template):
            raise _Unknown(f"template parameter {index}")
        argument = self.template[index]
        if isinstance(argument, list):
            if self.element is None:
                raise _Unknown("a pack outside its expansion")
            argument = argument[self.element]
        if isinstance(argument, list):
            raise _Unknown("a pack within a pack")
        return argument if isinstance(argument, Type) else Type(argument, "struct")

    def substitution(self) -> Type | _Name:
        self.need("S")
        for code, text in (("a", "std::allocator"), ("b", "std::basic_string"), ("s", "std::string")):
            if self.take(code):
                return _Name(text, text)
        index = self.sequence()
        if index >= len(self.substitutions):
            raise _Unknown(f"substitution {index}")
        referred = self.substitutions[index]
        if referred is None:
            raise _Unknown("a reference into a pack")
        return referred


def _texts(arguments: list[Argument]) -> list[str]:
    texts: list[str] = []
    for argument in arguments:
        if isinstance(argument, list):
            texts += _texts(argument)
        else:
            texts.append(argument if isinstance(argument, str) else argument.text)
    return texts


@functools.lru_cache(maxsize=4096)
def demangle(mangled: str) -> Signature | None:
    """Return the C++ name and parameter types of a mangled name; None if it is not mangled or not supported."""
    if not mangled.startswith("_Z"):
        return None
    parser = _Demangler(mangled, 2)
    try:
        signature = parser.encoding()
    except (_Unknown, RecursionError):
        return None
    return signature if parser.at == len(mangled) or parser.peek() == "." else None
