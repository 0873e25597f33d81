"""Instructions with a guard, run on the lanes for which the guard is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Choice, choose
from cudakit.sim.lockstep.registers import Registers


class GuardedInstruction:
    """Runs an instruction with a guard on the lanes for which the guard is true, and merges their results."""

    def __init__(
        self,
        source: str,
        name: str,
        namespace: dict[str, Any],
        slot: int,
        negated: bool,
        reads: list[int],
        writes: list[int],
    ) -> None:
        self.source, self.name, self.namespace = source, name, namespace
        self.slot, self.negated = slot, negated
        self.reads, self.writes = sorted({*reads, *writes}), writes
        self.touched = {*self.reads, slot}
        self.run: Callable[[Fragment, Registers], None] | None = None

    def __call__(self, f: Fragment, r: Registers) -> None:
        run = self.run
        if run is None:
            exec(compile(self.source, f"<ptx {self.name}>", "exec"), self.namespace)
            run = self.run = self.namespace[self.name]
        held = r[self.slot]
        if self.negated:
            held = ~held
        if held.ndim == 0:
            if held:
                run(f, r)
            return
        yes = int(np.count_nonzero(held))
        if yes == len(held):
            run(f, r)
        elif yes:
            found = f.lanes.split(held)
            part = f.borrow(found.yes, found.set_yes, self.reads)
            if f.careful:
                part.careful = True
                part.storing = None if f.storing is None else choose(f.storing, found.yes)
            run(part, part.regs)
            if part.loaded is not None:
                f.loaded = np.zeros((f.lanes.count, part.loaded.shape[1]), np.uint16)
                f.loaded[found.yes] = part.loaded
            for slot in self.writes:
                r[slot] = put_back(r[slot], found.yes, part.regs[slot], len(held))


def put_back(old: Any, choice: Choice, new: Any, count: int) -> Any:
    """Return a register of ``count`` lanes with the values of some lanes replaced."""
    if old.dtype.kind == "V" or old.ndim == 2:
        rows = np.frombuffer(old.tobytes(), np.uint8) if old.ndim == 0 else old
        out = np.empty((count, rows.shape[-1]), np.uint8)
        out[:] = rows
        out[choice] = np.frombuffer(new.tobytes(), np.uint8) if new.ndim == 0 else new
        return out
    out = np.empty(count, old.dtype)
    out[:] = old
    out[choice] = new
    return out
