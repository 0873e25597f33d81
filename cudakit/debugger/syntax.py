"""The syntax of C++ expressions: C's without assignments, calls and strings, and gdb's `x@n` (n elements from x on).

`parse` returns a tree of `Node`, which expressions.py evaluates.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


class ExpressionError(Exception):
    """An expression cannot be parsed or evaluated."""


@dataclass(frozen=True)
class Node:
    """A node: `kind` is "number", "name", "register", "history", "unary", "binary", "member", "index", "cast", "sizeof"
    (of a type or a value), "choice" (?:) or "span" (gdb's @)."""

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()
    value: Any = None


_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>0[xX][0-9a-fA-F]+[uUlL]*|0[bB][01]+[uUlL]*
      |(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?[fFlL]?|\d+[uUlL]*)
    |(?P<char>'(?:\\.|[^'\\])')
    |(?P<history>\$\d*(?![\w.]))
    |(?P<register>[%$][A-Za-z_]\w*(?:\.[xyz])?)
    |(?P<name>[A-Za-z_]\w*(?:::~?[A-Za-z_]\w*)*)
    |(?P<sign><<|>>|<=|>=|==|!=|&&|\|\||->|[-+*/%&|^~!<>?:.()\[\]@,])
    )""",
    re.VERBOSE,
)
_RANKS = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7, "<<": 8, ">>": 8,
    "+": 9, "-": 9, "*": 10, "/": 10, "%": 10,
}  # fmt: skip
_WORDS = (
    "unsigned",
    "signed",
    "long",
    "short",
    "int",
    "char",
    "float",
    "double",
    "bool",
    "const",
    "volatile",
    "struct",
)


class Parser:
    """Reads one expression. `is_type` says whether a name is a type, as casts depend on it."""

    def __init__(self, text: str, is_type: Callable[[str], bool]) -> None:
        self.text = text
        self.is_type = is_type
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise ExpressionError(f"cannot read {text[at:].strip()[:20]!r} in {text!r}")
            # a % after a value is the modulo operator, and its register's name a variable
            if match.lastgroup == "register" and match[0].strip()[0] == "%" and self._after_value():
                self.tokens.append(("sign", "%"))
                at = match.start("register") + 1
                continue
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        self.tokens.append(("", ""))
        self.place = 0

    def _after_value(self) -> bool:
        return bool(self.tokens) and (self.tokens[-1][0] != "sign" or self.tokens[-1][1] in (")", "]"))

    @property
    def peek(self) -> str:
        return self.tokens[self.place][1]

    def accept(self, text: str) -> bool:
        if self.tokens[self.place] == ("sign", text):
            self.place += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise ExpressionError(f"expected {text!r} {self._where()} in {self.text!r}")

    def _where(self) -> str:
        return f"before {self.peek!r}" if self.peek else "at the end"

    def whole(self) -> Node:
        node = self.choice()
        if self.peek:
            raise ExpressionError(f"cannot read {self.peek!r} in {self.text!r}")
        return node

    def choice(self) -> Node:
        node = self.binary(1)
        if self.accept("@"):
            node = Node("span", "@", (node, self.binary(1)))
        if self.accept("?"):
            yes = self.choice()
            self.expect(":")
            return Node("choice", "?:", (node, yes, self.choice()))
        return node

    def binary(self, rank: int) -> Node:
        left = self.unary()
        while (kind := self.tokens[self.place])[0] == "sign" and _RANKS.get(kind[1], 0) >= rank:
            self.place += 1
            left = Node("binary", kind[1], (left, self.binary(_RANKS[kind[1]] + 1)))
        return left

    def unary(self) -> Node:
        kind, text = self.tokens[self.place]
        if kind == "sign" and text in ("-", "+", "!", "~", "*", "&"):
            self.place += 1
            return Node("unary", text, (self.unary(),))
        if text == "sizeof":
            self.place += 1
            if self._type_follows():
                self.expect("(")
                name = self.type_name()
                self.expect(")")
                return Node("sizeof", name)
            return Node("sizeof", "", (self.unary(),))
        if self._type_follows():
            self.expect("(")
            name = self.type_name()
            self.expect(")")
            return Node("cast", name, (self.unary(),))
        return self.postfix()

    def _type_follows(self) -> bool:
        first, name = self.tokens[self.place], self.tokens[min(self.place + 1, len(self.tokens) - 1)]
        return first == ("sign", "(") and name[0] == "name" and (name[1] in _WORDS or self.is_type(name[1]))

    def type_name(self) -> str:
        words = []
        while self.tokens[self.place][0] == "name":
            words.append(self.peek)
            self.place += 1
        stars = ""
        while self.peek in ("*", "&"):
            stars += self.peek
            self.place += 1
        return " ".join(w for w in words if w not in ("const", "volatile", "struct")) + stars

    def postfix(self) -> Node:
        node = self.primary()
        while True:
            if self.accept("["):
                node = Node("index", "[]", (node, self.choice()))
                self.expect("]")
            elif self.peek in (".", "->") and self.tokens[self.place][0] == "sign":
                arrow = self.peek == "->"
                self.place += 1
                kind, name = self.tokens[self.place]
                if kind != "name":
                    raise ExpressionError(f"expected a member's name {self._where()} in {self.text!r}")
                self.place += 1
                node = Node("member", name, (Node("unary", "*", (node,)) if arrow else node,))
            elif self.peek == "(":
                raise ExpressionError(f"functions cannot be called in an expression: {self.text!r}")
            else:
                return node

    def primary(self) -> Node:
        kind, text = self.tokens[self.place]
        self.place += 1
        if kind == "number":
            return Node("number", text, (), _number(text))
        if kind == "char":
            code = ord(text[1:-1].encode("latin-1", "replace").decode("unicode_escape"))
            return Node("number", text, (), np.uint8(code & 0xFF).astype(np.int8))
        if kind == "name":
            if text in ("true", "false"):
                return Node("number", text, (), np.bool_(text == "true"))
            if text in ("nullptr", "NULL"):
                return Node("number", text, (), np.int64(0))
            return Node("name", text)
        if kind in ("register", "history"):
            return Node(kind, text)
        if (kind, text) == ("sign", "("):
            node = self.choice()
            self.expect(")")
            return node
        self.place -= 1
        raise ExpressionError(f"expected a value {self._where()} in {self.text!r}")


def parse(text: str, is_type: Callable[[str], bool] = lambda name: False) -> Node:
    """Parse an expression. Raises ExpressionError if it is not one."""
    if not text.strip():
        raise ExpressionError("an expression is needed, such as i or tile[threadIdx.x]")
    return Parser(text, is_type).whole()


def _number(text: str) -> Any:
    body = text.lower()
    if re.search(r"[.]|^\d+e", body) and not body.startswith("0x"):
        return np.float32(body[:-1]) if body.endswith("f") else np.float64(body.rstrip("l"))
    digits = body.rstrip("ul")
    suffix = body[len(digits) :]
    if re.fullmatch(r"0[0-7]+", digits):
        value = int(digits, 8)
    else:
        try:
            value = int(digits, 0)
        except ValueError:
            raise ExpressionError(f"the number {text} is not valid") from None
    choices: list[Any] = [np.int32, np.uint32, np.int64, np.uint64]
    if "u" in suffix:
        choices = [np.uint32, np.uint64]
    elif not digits.startswith(("0x", "0b")):
        choices = [np.int32, np.int64, np.uint64]
    if "l" in suffix:
        choices = [c for c in choices if np.dtype(c).itemsize == 8]
    for choice in choices:
        if value <= np.iinfo(choice).max:
            return choice(value)
    raise ExpressionError(f"the number {text} does not fit 64 bits")
