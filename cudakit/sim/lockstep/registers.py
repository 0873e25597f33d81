"""Where a block of generated Python keeps its registers, and when it lets go of them.

A register that lives and dies within a block is a variable of the block's function; any other stays in the fragment's
list. Both are let go after their last use: the next instruction's result then takes the same memory, which is still
in the cache. (Without this every register of a kernel would keep an array of its own, many times the cache's size.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# the registers of a function by slot: arrays of one value per lane, or scalars that all lanes share
Registers = list[Any]

_REGISTER = re.compile(r"\br\[(\d+)\]")
_WRITTEN = re.compile(r"^r\[(\d+)\] = ")
_WHOLE = re.compile(r"\br\b(?!\[)")
_GUARDED = re.compile(r"^(k\d+)\(f, r\)$")
_TUPLE = re.compile(r"\bt\b")


def place_registers(
    lines: Sequence[str], namespace: Mapping[str, Any], live_out: Iterable[int], held: Iterable[int]
) -> list[str]:
    """The lines of a block with its own registers in variables (``v<slot>``) and a release after each last use.

    ``live_out`` are the slots that are needed after the block, ``held`` those that the scheduler reads at its end.
    Lines that take the whole list must be guarded instructions, which say what they touch; with any other the lines
    come back as they are.
    """
    kept = {*live_out, *held}
    fixed: set[int] = set()  # touched by a guarded instruction, which finds them in the list
    born: set[int] = set()
    seen: set[int] = set()
    last: dict[int, int] = {}
    for number, line in enumerate(lines):
        guarded = _GUARDED.match(line)
        if guarded is not None:
            touched = getattr(namespace.get(guarded[1]), "touched", None)
            if touched is None:
                return list(lines)
            slots = set(touched)
            fixed |= slots
        elif _WHOLE.search(line):
            return list(lines)
        else:
            written = _WRITTEN.match(line)
            slots = {int(slot) for slot in _REGISTER.findall(line[written.end() :] if written else line)}
            if written is not None:
                slot = int(written[1])
                if slot not in seen and slot not in slots:
                    born.add(slot)
                slots.add(slot)
        seen |= slots
        last.update(dict.fromkeys(slots, number))
    own = born - kept - fixed
    ends: dict[int, list[int]] = {}
    for slot, number in last.items():
        if slot not in kept:
            ends.setdefault(number, []).append(slot)
    out: list[str] = []
    for number, line in enumerate(lines):
        out.append(_REGISTER.sub(lambda m: f"v{m[1]}" if int(m[1]) in own else m[0], line))
        if _TUPLE.search(line) and not line.startswith("t = ") and not _uses_tuple(lines, number + 1):
            out.append("del t")
        for slot in ends.get(number, ()):
            out.append(f"del v{slot}" if slot in own else f"r[{slot}] = None")
    return out


def _uses_tuple(lines: Sequence[str], number: int) -> bool:
    """Whether the line still reads the tuple ``t`` that several results came in."""
    return number < len(lines) and not lines[number].startswith("t = ") and bool(_TUPLE.search(lines[number]))
