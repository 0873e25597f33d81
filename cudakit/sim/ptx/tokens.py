"""Split PTX text into tokens; read literals and constant expressions."""

from __future__ import annotations

import math
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
    | (?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ | \d+U?
    | [A-Za-z_$%][\w$]*(?:(?:\.|::)[\w$]+)*
    | \.[A-Za-z_][\w$]*(?:::[\w$]+)*
    | <<|>>|<=|>=|==|!=|&&|\|\||[{}\[\]()<>,;:@!?|+\-*/%=&^~]
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)

_FLOAT = re.compile(r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+")
_LEVELS = (
    ("?",),
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_PRECEDENCE = {operator: level for level, operators in enumerate(_LEVELS, 1) for operator in operators}
_FLOATS = ("f32", "f64")
_CASTS = (".s64", ".u64")
_WORD = (1 << 64) - 1
# the signs of a constant expression, by their names among its pending operators
_SIGNS = {"+": "plus", "-": "minus", "~": "not", "!": "no"}
# open parentheses and signs, and nested conditions, of a constant expression
_DEEPEST = 9900
_CONDITIONS = 50


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
                raise self.error(f"cannot read {text[at]!r}", at)
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

    @property
    def after(self) -> str:
        """The token after the next one."""
        return self.values[min(self.position + 1, len(self.values) - 1)]

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
        if literal.type in _FLOATS:
            raise self.error("expected an integer")
        return literal.bits

    def count(self) -> int:
        """An unsigned integer of at most 32 bits, as directives and array bounds take it: no expression."""
        value = self.peek
        if self.accept("WARP_SZ"):
            return 32
        if not value[:1].isdigit() or (found := self.number(self.next())).type in _FLOATS:
            raise self.error(f"expected an integer, found {value!r}")
        if found.bits >= 1 << 32:
            self.position -= 1
            raise self.error(f"the integer {value} does not fit 32 bits")
        return found.bits

    def text_literal(self) -> str:
        """A string in quotes, without them."""
        value = self.peek
        if value[:1] != '"':
            raise self.error(f"expected a string in quotes, found {value!r}")
        self.position += 1
        return value[1:-1]

    def separated(self, closing: str) -> bool:
        """After an item of a list: take the comma and return True, or take the closing token and return False."""
        if self.accept(","):
            return True
        self.expect(closing)
        return False

    @property
    def at_literal(self) -> bool:
        value = self.peek
        head = value[:1]
        return head.isdigit() or value in ("-", "+", "~", "(", "WARP_SZ") or (head == "." and value[1].isdigit())

    def literal(self) -> Immediate:
        """A literal or a constant expression. Integers have 64 bits and wrap."""
        return self._expression(0)

    def _expression(self, depth: int) -> Immediate:
        """Values and pending operators are in lists, so that parentheses may be nested deeply."""
        values: list[Immediate] = []
        pending: list[str] = []
        parentheses = 0
        while True:
            token = self.next()
            if token == "(" and self.peek in _CASTS:
                pending.append(self.next())
                self.expect(")")
            elif token == "(" or token in _SIGNS:
                pending.append("(" if token == "(" else _SIGNS[token])
                parentheses += token == "("
                if len(pending) > _DEEPEST:
                    raise self.error(f"a constant expression is nested more than {_DEEPEST} deep")
            else:
                values.append(self._value(token))
                while parentheses and self.peek == ")":
                    self._reduce(values, pending, 0)
                    pending.pop()
                    parentheses -= 1
                    self.position += 1
                rank = _PRECEDENCE.get(self.peek, 0)
                self._reduce(values, pending, rank)
                if not rank:
                    break
                pending.append(self.next())
                if pending[-1] == "?":
                    if depth > _CONDITIONS:
                        raise self.error(f"a constant expression has more than {_CONDITIONS} nested conditions")
                    values.append(self._expression(depth + 1))
                    self.expect(":")
        if parentheses:
            self.expect(")")
        return values[0]

    def _value(self, token: str) -> Immediate:
        if token == "WARP_SZ":
            return Immediate(32, "s64")
        if token[0].isdigit() or (token[0] == "." and token[1].isdigit()):
            return self.number(token)
        self.position -= 1
        raise self.error(f"expected a literal, found {token!r}")

    def _reduce(self, values: list[Immediate], pending: list[str], rank: int) -> None:
        """Apply the pending operators that bind at least as tightly as an operator of this rank, up to a
        parenthesis."""
        while pending and pending[-1] != "(":
            operator = pending[-1]
            binary = _PRECEDENCE.get(operator, 0)
            if binary and (binary < rank or (operator == "?" and rank == 1)):
                return
            pending.pop()
            if operator == "?":
                no, yes, condition = values.pop(), values.pop(), values.pop()
                values.append(yes if condition.bits else no)
            elif binary:
                right, left = values.pop(), values.pop()
                values.append(self._binary(operator, left, right))
            else:
                values.append(self._signed(operator, values.pop()))

    def _binary(self, operator: str, left: Immediate, right: Immediate) -> Immediate:
        if left.type in _FLOATS or right.type in _FLOATS:
            return self._binary_float(operator, left, right)
        a, b = left.bits, right.bits
        unsigned = "u64" in (left.type, right.type)
        if operator in ("==", "!=", "<", "<=", ">", ">=", "&&", "||"):
            return Immediate(int(_compared(operator, a, b)), "s64")
        if operator in ("/", "%"):
            if b == 0:
                raise self.error("a constant expression divides by zero")
            if unsigned:
                a, b = a & _WORD, b & _WORD
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return _wrapped(quotient if operator == "/" else a - b * quotient, unsigned)
        if operator in ("<<", ">>"):
            # a shift by 64 or more, as by a negative number, is one by 63 and then by 1
            distance = min(b & _WORD, 64)
            return _wrapped(a << distance if operator == "<<" else a >> distance, left.type == "u64")
        results = {"|": a | b, "^": a ^ b, "&": a & b, "+": a + b, "-": a - b, "*": a * b}
        return _wrapped(results[operator], unsigned)

    def _binary_float(self, operator: str, left: Immediate, right: Immediate) -> Immediate:
        if left.type not in _FLOATS or right.type not in _FLOATS or operator not in ("+", "-", "*", "/"):
            raise self.error(f"a constant expression has no {operator!r} of a float and another value")
        a, b = float_value(left), float_value(right)
        if operator == "/" and b == 0:
            raise self.error("a constant expression divides by zero")
        results = {"+": a + b, "-": a - b, "*": a * b}
        return _double(a / b if operator == "/" else results[operator])

    def _signed(self, sign: str, value: Immediate) -> Immediate:
        """A value after a sign or a cast."""
        if value.type in _FLOATS:
            if sign not in ("plus", "minus"):
                raise self.error("only + and - take floats")
            bit = 1 << (31 if value.type == "f32" else 63)
            return Immediate(value.bits ^ (bit if sign == "minus" else 0), value.type)
        if sign in _CASTS:
            return _wrapped(value.bits, sign == ".u64")
        bits = {"plus": value.bits, "minus": -value.bits, "not": ~value.bits, "no": int(not value.bits)}[sign]
        # -9223372036854775808 is signed
        return _wrapped(bits, value.type == "u64" and not (sign == "minus" and value.bits == 1 << 63))

    def number(self, token: str) -> Immediate:
        """An unsigned numeric token, the last one taken, as an ``Immediate``."""
        prefix = token[:2].lower()
        if prefix == "0f" or prefix == "0d":
            return Immediate(int(token[2:], 16), "f32" if prefix == "0f" else "f64")
        if _FLOAT.fullmatch(token):
            value = float(token)
            digits = re.split("[eE]", token)[0]
            if math.isinf(value) or (value == 0 and digits.strip("0.")):
                self.position -= 1
                raise self.error(f"{token[:40]} does not fit a float of 64 bits")
            return _double(value)
        digits, unsigned = (token[:-1], True) if token[-1] == "U" else (token, False)
        base = {"0x": 16, "0b": 2}.get(prefix, 8 if digits[0] == "0" and len(digits) > 1 else 10)
        bits = -1
        if len(digits) < 80 and (base != 8 or not {"8", "9"} & {*digits}):
            bits = int(digits.lower().removeprefix(prefix) if base in (2, 16) else digits, base)
        if not 0 <= bits <= _WORD:
            self.position -= 1
            why = "is not octal" if bits < 0 and len(digits) < 80 else "does not fit 64 bits"
            raise self.error(f"the integer {token[:40]} {why}")
        return Immediate(bits, "u64" if unsigned or bits >= 1 << 63 else "s64")


def _compared(operator: str, a: int, b: int) -> bool:
    results = {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}
    return results[operator] if operator in results else bool(a and b) if operator == "&&" else bool(a or b)


def _wrapped(value: int, unsigned: bool) -> Immediate:
    """An integer of 64 bits."""
    value &= _WORD
    if unsigned:
        return Immediate(value, "u64")
    return Immediate(value - (1 << 64) if value >> 63 else value, "s64")


def float_value(literal: Immediate) -> float:
    """The value of a literal of type f32 or f64."""
    size, code = (4, "<f") if literal.type == "f32" else (8, "<d")
    value: float = struct.unpack(code, literal.bits.to_bytes(size, "little"))[0]
    return value


def _double(value: float) -> Immediate:
    return Immediate(struct.unpack("<Q", struct.pack("<d", value))[0], "f64")
