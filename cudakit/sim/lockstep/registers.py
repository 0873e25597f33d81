"""Register allocation for a block of generated Python: the storage of each register, and its release.

A register that is only live within a block is a variable of the block's function; any other stays in the fragment's
list. Both are released after their last use, so that the next instruction's result reuses memory that is still in the
cache. (Otherwise every register of a kernel would keep its own array, in total many times the cache's size.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# the registers of a function by slot: arrays with one value per lane, or scalars with one value for all lanes
Registers = list[Any]

_REGISTER = re.compile(r"\br\[(\d+)\]")
_WRITTEN = re.compile(r"^r\[(\d+)\] = ")
_WHOLE = re.compile(r"\br\b(?!\[)")
_GUARDED = re.compile(r"^(k\d+)\(f, r\)$")
_TUPLE = re.compile(r"\bt\b")


def place_registers(
    lines: Sequence[str], namespace: Mapping[str, Any], live_out: Iterable[int], held: Iterable[int]
) -> list[str]:
    """Return a block's lines with its local registers in variables (``v<slot>``) and a release after each last use.

    ``live_out`` are the slots that are live after the block, ``held`` those that the scheduler reads at its end. If a
    line uses the whole register list and is not a guarded instruction, whose slots are known, the lines are returned
    unchanged.
    """
    kept = {*live_out, *held}
    fixed: set[int] = set()  # used by a guarded instruction, which reads them from the list
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
    """Whether the line still reads ``t``, the tuple of an instruction's results."""
    return number < len(lines) and not lines[number].startswith("t = ") and bool(_TUPLE.search(lines[number]))
