"""The modifiers of an instruction, for its builder: each is read by name; unread modifiers are unsupported."""

from __future__ import annotations

from typing import NoReturn

from cudakit.sim.ptx.ir import Instruction, refused

SCOPES = ("cta", "cluster", "gpu", "sys")
LOAD_CACHES = ("ca", "cg", "cs", "lu", "cv")
STORE_CACHES = ("wb", "cg", "cs", "wt")
EVICTION_L1 = ("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate")
EVICTION_L2 = ("L2::evict_normal", "L2::evict_first", "L2::evict_last")
PREFETCH_SIZES = ("L2::64B", "L2::128B", "L2::256B")


class Modifiers:
    """An instruction's modifiers. Builders take the modifiers they support; ``finish`` raises ``UnsupportedPtx`` for
    any others. At most one of a group of alternatives is allowed."""

    def __init__(self, instruction: Instruction) -> None:
        self.instruction = instruction
        self.rest = list(instruction.modifiers)

    def refuse(self, reason: str = "") -> NoReturn:
        raise refused(self.instruction, reason)

    def kind(self, *allowed: str) -> str:
        """The last modifier: a type, one of ``allowed``."""
        if not self.rest or self.rest[-1] not in allowed:
            self.refuse(f"type .{self.rest[-1]}" if self.rest else "no type")
        return self.rest.pop()

    def flag(self, name: str) -> bool:
        return bool(self.one_of(name))

    def one_of(self, *names: str) -> str:
        """The modifier among ``names``, or ""."""
        for place, modifier in enumerate(self.rest):
            if modifier in names:
                del self.rest[place]
                return modifier
        return ""

    def finish(self) -> None:
        """Raise ``UnsupportedPtx`` if the builder has not read all modifiers."""
        if self.rest:
            self.refuse("modifier ." + ", .".join(self.rest))

    # ---- modifiers of several instructions ----

    def order(self, *orders: str) -> str:
        """The memory order of an access: "", "weak", "volatile", or one of ``orders``, which need a scope."""
        found = self.one_of("weak", "volatile", *orders)
        scope = self.one_of(*SCOPES)
        if bool(scope) != (found in orders):
            self.refuse(f"scope .{scope} without a memory order" if scope else f".{found} without a scope")
        return found

    def hints(self, *caches: str) -> tuple[bool, bool, bool]:
        """Take the modifiers that only affect caches. Returns whether there is a cache operator, a hint for the caches
        of global memory, and a cache policy among the operands."""
        operator = bool(self.one_of(*caches))
        evictions = () if operator else (self.one_of(*EVICTION_L1), self.one_of(*EVICTION_L2))
        policy = self.flag("L2::cache_hint")
        prefetches = self.instruction.opcode == "ld" and bool(self.one_of(*PREFETCH_SIZES))
        return operator, any(evictions) or policy or prefetches, policy
