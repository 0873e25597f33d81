"""Split PTX text into tokens; read literals and constant expressions."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right

from cudakit.sim.ptx.ir import Immediate, PtxError

_TOKEN = re.compile(
    r"""
    (?P<skip>(?:\s+|//[^\n]*|/\*.*?\*/)+)
    | "(?:[^"\\\n]|\\.)*"
    | 0[fF][0-9a-fA-F]{8}\b | 0[dD][0-9a-fA-F]{16}\b
    | 0[xX][0-9a-fA-F]+U? | 0[bB][01]+U?
    | \d+\.\d*(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ | \d+U?
    | [A-Za-z_$%][\w$]*(?:(?:\.|::)[\w$]+)*
    | \.[A-Za-z_][\w$]*(?:::[\w$]+)*
    | <<|>>|[{}\[\]()<>,;:@!|+\-*/%=&^~]
    """,
    re.VERBOSE | re.DOTALL,
)

_FLOAT = re.compile(r"\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+")
_PRECEDENCE = {"|": 1, "^": 2, "&": 3, "<<": 4, ">>": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}


class Tokens:
    """A cursor over the tokens of a PTX text. ``peek`` is "" at the end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.values: list[str] = []
        self.starts: list[int] = []
        self.position = 0
        self._lines = [0] + [match.end() for match in re.finditer("\n", text)]
        values, starts, match, at = self.values, self.starts, _TOKEN.match, 0
        while at < len(text):
            found = match(text, at)
            if found is None:
                raise self.error(f"cannot read {text[at : at + 20].split()[0]!r}", at)
            if found.lastgroup is None:
                values.append(found.group())
                starts.append(at)
            at = found.end()
        values.append("")
        starts.append(len(text))

    def line(self, start: int | None = None) -> int:
        """The line (from 1) of a text offset; by default, of the next token."""
        return bisect_right(self._lines, self.starts[self.position] if start is None else start)

    def error(self, message: str, start: int | None = None) -> PtxError:
        line = self.line(start)
        begin = self._lines[line - 1]
        text = self.text[begin:].split("\n", 1)[0].strip()
        return PtxError(f"PTX line {line}: {message}: {text[:200]}", line)

    @property
    def peek(self) -> str:
        return self.values[self.position]

    def next(self) -> str:
        value = self.values[self.position]
        if not value:
            raise self.error("unexpected end of text")
        self.position += 1
        return value

    def accept(self, value: str) -> bool:
        if self.values[self.position] == value:
            self.position += 1
            return True
        return False

    def expect(self, value: str) -> None:
        if self.values[self.position] != value:
            raise self.error(f"expected {value!r}, found {self.peek!r}")
        self.position += 1

    def name(self) -> str:
        """An identifier or register name."""
        value = self.peek
        if not (value[:1].isalpha() or value[:1] in ("_", "$", "%")) or value == "%":
            raise self.error(f"expected a name, found {value!r}")
        self.position += 1
        return value

    def integer(self) -> int:
        literal = self.literal()
        if literal.type in ("f32", "f64"):
            raise self.error("expected an integer")
        return literal.bits

    @property
    def at_literal(self) -> bool:
        value = self.peek
        return value[:1].isdigit() or value in ("-", "+", "~", "(") or value == "WARP_SZ"

    def literal(self) -> Immediate:
        """A literal or a constant expression of integers."""
        first = self._expression(0)
        if first.type in ("f32", "f64"):
            return first
        value = first.bits
        if value >= 1 << 64 or value < -(1 << 63):
            raise self.error(f"the integer {value} does not fit 64 bits")
        return Immediate(value, "u64" if value >= 1 << 63 else first.type)

    def _expression(self, precedence: int) -> Immediate:
        left = self._unary()
        while left.type not in ("f32", "f64"):
            operator = self.peek
            rank = _PRECEDENCE.get(operator, 0)
            if rank <= precedence:
                break
            self.position += 1
            right = self._expression(rank)
            if right.type in ("f32", "f64"):
                raise self.error("constant expressions take integers")
            kind = "u64" if "u64" in (left.type, right.type) else "s64"
            left = Immediate(self._binary(operator, left.bits, right.bits), kind)
        return left

    def _binary(self, operator: str, a: int, b: int) -> int:
        if operator in ("/", "%") and b == 0:
            raise self.error("a constant expression divides by zero")
        if operator == "/":
            return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        if operator == "%":
            return abs(a) % abs(b) * (1 if a >= 0 else -1)
        if operator in ("<<", ">>") and not 0 <= b < 64:
            raise self.error(f"a constant expression shifts by {b}")
        if operator == "<<":
            return (a << b) & 0xFFFFFFFFFFFFFFFF
        results = {"|": a | b, "^": a ^ b, "&": a & b, "+": a + b, "-": a - b, "*": a * b}
        return a >> b if operator == ">>" else results[operator]

    def _unary(self) -> Immediate:
        token = self.next()
        if token == "(":
            inner = self._expression(0)
            self.expect(")")
            return inner
        if token in ("+", "-", "~"):
            inner = self._unary()
            if inner.type in ("f32", "f64"):
                sign = 1 << (31 if inner.type == "f32" else 63)
                return Immediate(inner.bits ^ (sign if token == "-" else 0), inner.type)
            return Immediate({"+": inner.bits, "-": -inner.bits, "~": ~inner.bits}[token], inner.type)
        if token == "WARP_SZ":
            return Immediate(32, "s64")
        if token[:1].isdigit():
            return number(token)
        self.position -= 1
        raise self.error(f"expected a literal, found {token!r}")


def number(token: str) -> Immediate:
    """An unsigned numeric token as an ``Immediate``."""
    prefix = token[:2].lower()
    if prefix == "0f":
        return Immediate(int(token[2:], 16), "f32")
    if prefix == "0d":
        return Immediate(int(token[2:], 16), "f64")
    if _FLOAT.fullmatch(token):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(token)))[0], "f64")
    digits, kind = (token[:-1], "u64") if token[-1] == "U" else (token, "s64")
    if prefix in ("0x", "0b"):
        return Immediate(int(digits, 0), kind)
    if digits[0] == "0" and len(digits) > 1:
        return Immediate(int(digits, 8), kind)
    return Immediate(int(digits), kind)
