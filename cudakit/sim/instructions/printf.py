"""The text of a kernel's printf, as CUDA's programming guide describes it: the conversions of C without %n, and at most
32 arguments."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from typing import Any

_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+)?)?(hh|h|ll|l|j|z|t|L)?([diouxXeEfFgGaAcsp%])")
_MOST_ARGUMENTS = 32
_WIDE = ("l", "ll", "j", "z", "t")


class _Arguments:
    """The arguments after the format, from an address on, each aligned to its size; ``read`` returns bytes."""

    def __init__(self, address: int, read: Callable[[int, int], bytes]) -> None:
        self.read = read
        self.address = address
        self.count = 0

    def next(self, code: str) -> Any:
        """The next argument; ``code`` is its type for ``struct``."""
        size = struct.calcsize(code)
        start = -(-self.address // size) * size
        self.address = start + size
        self.count += 1
        return struct.unpack(f"<{code}", self.read(start, size))[0]


def formatted(
    text: str, address: int, read: Callable[[int, int], bytes], string: Callable[[int], str]
) -> tuple[str, int]:
    """The text that printf prints, and the number of arguments that it used. ``text`` is the format, ``address`` that
    of the arguments, ``read`` returns bytes at an address, and ``string`` the string at an address. Unknown
    conversions, and those after 32 arguments, are printed as they are."""
    arguments = _Arguments(address, read)

    def one(match: re.Match[str]) -> str:
        flags, wide, digits, length, kind = match.groups()
        if kind == "%":
            return "%"
        if arguments.count + 1 + (wide == "*") + (digits == "*") > _MOST_ARGUMENTS:
            return match.group()
        width = arguments.next("i") if wide == "*" else int(wide or 0)
        if width < 0:
            flags, width = f"{flags}-", -width
        precision: int | None = arguments.next("i") if digits == "*" else int(digits or 0)
        if "." not in match.group() or precision is None or precision < 0:
            precision = None
        if kind in "eEfFgGaA":
            number = arguments.next("d")
            if not math.isfinite(number):
                flags = flags.replace("0", "")
            if kind in "aA":
                return _padded(*_hexadecimal(number, precision, flags, kind), flags, width)
            points = "" if precision is None else f".{precision}"
            return str(f"%{flags}{width or ''}{points}{kind}" % number)
        if kind == "s":
            return _padded("", string(arguments.next("Q"))[:precision], flags.replace("0", ""), width)
        if kind == "p":
            pointer = arguments.next("Q")
            return _padded("", f"0x{pointer:x}" if pointer else "(nil)", flags.replace("0", ""), width)
        if kind == "c":
            return _padded("", chr(arguments.next("i") & 255), flags.replace("0", ""), width)
        value = arguments.next("Q" if length in _WIDE else "I")
        bits = {"hh": 8, "h": 16}.get(length, 64 if length in _WIDE else 32)
        value &= (1 << bits) - 1
        if kind in "di" and value >> (bits - 1):
            value -= 1 << bits
        if precision is not None:
            flags = flags.replace("0", "")
        return _padded(*_integer(value, precision, flags, kind), flags, width)

    return _CONVERSION.sub(one, text), arguments.count


def _padded(head: str, body: str, flags: str, width: int) -> str:
    """A sign or prefix and the digits, filled to a width."""
    if "-" in flags:
        return (head + body).ljust(width)
    if "0" in flags:
        return head + body.rjust(width - len(head), "0")
    return (head + body).rjust(width)


def _sign(negative: bool, flags: str) -> str:
    return "-" if negative else "+" if "+" in flags else " " if " " in flags else ""


def _integer(value: int, precision: int | None, flags: str, kind: str) -> tuple[str, str]:
    """The sign or prefix of an integer, and its digits."""
    digits = format(abs(value), {"i": "d", "u": "d"}.get(kind, kind))
    if precision is not None:
        digits = digits.rjust(precision, "0") if value or precision else ""
    if kind in "di":
        return _sign(value < 0, flags), digits
    if "#" in flags and kind == "o" and digits[:1] != "0":
        digits = f"0{digits}"
    return f"0{kind}" if "#" in flags and kind in "xX" and value else "", digits


def _hexadecimal(value: float, precision: int | None, flags: str, kind: str) -> tuple[str, str]:
    """The sign and prefix of a number in the format of %a, and its digits: ``precision`` after the point, or as many as
    it needs."""
    mantissa, mark, exponent = value.hex().partition("p")
    sign = _sign(mantissa[:1] == "-", flags)
    if not mark:
        number = mantissa.lstrip("-")  # inf, nan
        return sign, number.upper() if kind == "A" else number
    lead, fraction = re.fullmatch(r"-?0x(\d)\.(\w+)", mantissa).groups()  # type: ignore[union-attr]
    if precision is None:
        fraction = fraction.rstrip("0")
    elif precision < len(fraction):
        # round to nearest, ties to even
        whole, rest = divmod(int(lead + fraction, 16), 1 << 4 * (len(fraction) - precision))
        half = 1 << 4 * (len(fraction) - precision) - 1
        whole += rest > half or (rest == half and whole & 1)
        lead = f"{whole >> 4 * precision:x}"
        fraction = f"{whole & ((1 << 4 * precision) - 1):0{precision}x}" if precision else ""
    else:
        fraction = fraction.ljust(precision, "0")
    point = "." if fraction or "#" in flags else ""
    number = f"{lead}{point}{fraction}p{exponent}"
    return (f"{sign}0X", number.upper()) if kind == "A" else (f"{sign}0x", number)
