"""Sites: the instructions of a module that are counted or can fail, numbered as its functions are compiled."""

from __future__ import annotations

from cudakit.sim.ptx.ir import Instruction


class Site:
    """An instruction that is counted or can fail, with its number in the module and its kind ("shared store").
    ``confirmed``: a plain load whose value has no effect unless a compare-and-swap finds it in memory."""

    __slots__ = ("confirmed", "instruction", "kind", "number")

    def __init__(self, number: int, instruction: Instruction, kind: str) -> None:
        self.number = number
        self.instruction = instruction
        self.kind = kind
        self.confirmed = False


class Sites:
    """The sites of a module's functions in the order of their numbers. ``sizes`` are the numbers of instructions of its
    basic blocks."""

    def __init__(self) -> None:
        self.all: list[Site] = []
        self.sizes: list[int] = []

    def site(self, instruction: Instruction, kind: str) -> Site:
        """Return a new site."""
        site = Site(len(self.all), instruction, kind)
        self.all.append(site)
        return site

    def block(self) -> int:
        """Return the number of a new basic block."""
        self.sizes.append(0)
        return len(self.sizes) - 1
