"""Litmus tests as text: one program per thread, separated by "|", instructions by ";".

    st.weak x 1; st.release.gpu y 1 | ld.acquire.gpu r0 y; if r0=1: ld.weak r1 x

Locations are x, y, z, s; all are 0 at the start. Registers are r0, r1...; each belongs to one thread. A register that
no instruction has set holds `UNSET`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

UNSET = 7  # values are smaller
_MEMORY = ("ld", "st", "atom", "red")
_SEMANTICS = ("weak", "volatile", "relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("cta", "cluster", "gpu", "sys")


@dataclass(frozen=True)
class Instruction:
    """One instruction. opcode: ld, st, atom, red, fence, or the name of a barrier instruction. semantics: of a fence,
    acq_rel or sc. value: of a write, an integer or a register. guard: (register, value), or None. text: as written."""

    text: str
    opcode: str
    semantics: str = ""
    scope: str = ""
    operation: str = ""
    location: str = ""
    register: str = ""
    value: int | str = 0
    barrier: int = 0
    guard: tuple[str, int] | None = None

    @property
    def reads(self) -> bool:
        return self.opcode in ("ld", "atom", "red")

    @property
    def writes(self) -> bool:
        return self.opcode in ("st", "atom", "red")

    @property
    def strong(self) -> bool:
        return bool(self.scope)

    @property
    def acquires(self) -> bool:
        # the read of a reduction is not part of an acquire pattern
        return self.semantics in ("acquire", "acq_rel", "sc") and self.opcode != "red"

    @property
    def releases(self) -> bool:
        return self.semantics in ("release", "acq_rel", "sc")


def _instruction(text: str) -> Instruction:
    guard = None
    body = text
    if match := re.fullmatch(r"if (r\d)=(\d): (.*)", text):
        guard, body = (match[1], int(match[2])), match[3]
    name, *operands = body.split()
    parts = name.split(".")
    if name.startswith("membar"):
        # membar is fence.sc
        scope = {"cta": "cta", "gl": "gpu", "sys": "sys"}[parts[1]]
        return Instruction(text, "fence", "sc", scope, operation="membar", guard=guard)
    if parts[0] == "fence":
        return Instruction(text, "fence", parts[1], parts[2], guard=guard)
    if parts[0] not in _MEMORY:
        return Instruction(text, name, barrier=int(operands[0]) if operands else 0, guard=guard)
    semantics = parts[1]
    if semantics not in _SEMANTICS:
        raise ValueError(f"{text!r}: {semantics!r} is not one of {', '.join(_SEMANTICS)}")
    scope = "sys" if semantics == "volatile" else "" if semantics == "weak" else parts[2]
    if scope and scope not in _SCOPES:
        raise ValueError(f"{text!r}: {scope!r} is not one of {', '.join(_SCOPES)}")
    register = operands.pop(0) if parts[0] in ("ld", "atom") else ""
    location = operands.pop(0)
    value: int | str = 0
    if operands:
        value = operands[0] if operands[0].startswith("r") else int(operands[0])
    operation = parts[3] if parts[0] in ("atom", "red") else ""
    return Instruction(text, parts[0], semantics, scope, operation, location, register, value, guard=guard)


@dataclass(frozen=True)
class Place:
    """A thread's place in its group of threads: the block, the warp of the block, and the lane of the warp."""

    block: int
    warp: int = 0
    lane: int = 0


PLACEMENTS: dict[str, tuple[Place, ...]] = {
    "lanes": tuple(Place(0, 0, k) for k in range(4)),
    "warps": tuple(Place(0, k) for k in range(4)),
    "blocks": tuple(Place(k) for k in range(4)),
    # the same places, but the blocks are a cluster
    "cluster": tuple(Place(k) for k in range(4)),
    # two threads in each of two blocks
    "pairs": tuple(Place(k // 2, k % 2) for k in range(4)),
    # the first thread in a block of its own
    "apart": (Place(0), Place(1), Place(1, 1), Place(1, 2)),
    # the last of three threads in a block of its own
    "last apart": (Place(0), Place(0, 1), Place(1)),
}


@dataclass(frozen=True)
class Variant:
    """One litmus test. shape: its common name, such as MP. final: locations whose last value is part of an outcome.
    shared: the locations in shared memory of the first block; other locations are in global memory."""

    shape: str
    text: str
    placement: str = "blocks"
    final: str = ""
    shared: str = ""

    @property
    def name(self) -> str:
        where = f" [{self.placement}{', shared ' + self.shared if self.shared else ''}]"
        return f"{self.shape}{where} {self.text}"

    @property
    def threads(self) -> tuple[tuple[Instruction, ...], ...]:
        return tuple(
            tuple(_instruction(one.strip()) for one in thread.split(";") if one.strip())
            for thread in self.text.split("|")
        )

    @property
    def places(self) -> tuple[Place, ...]:
        return PLACEMENTS[self.placement][: len(self.threads)]

    @property
    def cluster(self) -> bool:
        return self.placement == "cluster"

    @property
    def locations(self) -> tuple[str, ...]:
        return tuple(sorted({one.location for thread in self.threads for one in thread if one.location}))

    @property
    def registers(self) -> tuple[str, ...]:
        return tuple(sorted({one.register for thread in self.threads for one in thread if one.register}))

    def outcome(self, values: tuple[int, ...]) -> str:
        """Values as text: the registers in order, then the final values, "-" for a register that was not set."""
        shown = ["-" if value == UNSET else str(value) for value in values]
        return " ".join(
            f"{name}={value}" for name, value in zip((*self.registers, *self.final.split()), shown, strict=True)
        )
