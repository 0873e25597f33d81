"""The words of the debugger's commands: what a command is, and the parts of its arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from cudakit.debugger.syntax import ExpressionError
from cudakit.sim.lockstep.report import Index3

_INDEX = re.compile(r"\(?\s*(\d+)\s*(?:,\s*(\d+)\s*)?(?:,\s*(\d+)\s*)?\)?")
_FORMAT = re.compile(r"/(\d*)([a-zA-Z]*)\s*")


class Command(NamedTuple):
    """A command: its names, the first of which is shown, its arguments and purpose for `help`, and its function, which
    returns whether the kernel continues."""

    names: tuple[str, ...]
    arguments: str
    purpose: str
    run: Callable[[str], bool]


def condition_of(text: str) -> tuple[str, str]:
    """The location and the condition of "k.cu:12 if i == 3"."""
    if re.search(r"(^|\s)if\s*$", text):
        raise ExpressionError("a condition is needed after if: break k.cu:12 if i == 3")
    match = re.fullmatch(r"(.*?)(?:^|\s+)if\b\s*(.+)", text)
    return (match[1].strip(), match[2].strip()) if match is not None else (text.strip(), "")


def count_of(text: str, default: int = 1) -> int:
    if not text:
        return default
    if not text.strip().isdigit():
        raise ExpressionError(f"a number is needed, not {text!r}")
    return int(text)


def numbers_in(text: str) -> list[int]:
    return [count_of(word) for word in text.split()]


def form_of(text: str) -> tuple[str, str]:
    """The format letter of "/x expression", and the expression."""
    match = _FORMAT.match(text)
    if match is None:
        return "", text
    letters = match[2].lower()
    if letters and letters[0] not in "xduotcfsg":
        raise ExpressionError(f"no format {letters!r}: x, d, u, o, t (binary), c and f are formats")
    return ("" if letters[:1] in ("f", "s", "g") else letters[:1]), text[match.end() :]


def examined(text: str) -> tuple[int, str, str]:
    """The count and the letters of "/8fw address", and the address."""
    match = _FORMAT.match(text)
    if match is None:
        return 1, "", text
    return int(match[1] or 1), match[2].lower(), text[match.end() :]


def index(where: Index3) -> str:
    """A block or thread index in cuda-gdb's form."""
    return f"({where[0]},{where[1]},{where[2]})"


def parse_index(text: str, what: str) -> Index3:
    """The index of a block or a thread: "(1,0,0)", "1,0" or "1". Raises ExpressionError for anything else."""
    match = _INDEX.fullmatch(text.strip())
    if match is None:
        raise ExpressionError(f"a {what} index is needed, such as (1,0,0), not {text!r}")
    x, y, z = (int(part or 0) for part in match.groups())
    return x, y, z
