"""Benign races: races that cannot change a result. The check "benign" reports them; it is off by default.

- Threads that store the same value. Each store is aligned and of the same size, and memory already has the value that
  it stores. An atomic is not such a store.
- A plain load that races with strong writes only, and whose value has no effect unless a compare-and-swap finds it in
  memory (``Site.confirmed``). Without "benign" such a load is not recorded: a plain store that races with it also races
  with the compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cudakit.sim.checks.events import Events
from cudakit.sim.checks.shadow import STRONG, WordLayout
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.pieces import Piece, gather
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.ptx.opcodes import row_of
from cudakit.sim.values.lanewise import width

CONFIRMED = "the first read of an atomicCAS loop: its value has no effect unless the atomicCAS finds it in memory"
SAME = "all of these stores store the same value"
ADVICE = "use an atomic or volatile access; this is reported because checks= names 'benign'"


def races(
    events: Events,
    access: MemoryAccess,
    piece: Piece,
    layout: WordLayout,
    words: Array,
    wrong: Array,
    *,
    reads: bool,
    values: Array | None,
    wanted: bool,
) -> Array | None:
    """A mask of the benign ones among the races ``wrong`` of an access with earlier writes (``reads``: reads), which
    ``words`` describe; None if the access cannot have any. ``values``: those of a store. ``wanted``: "benign" is on."""
    if reads:
        # without "benign", reads that are confirmed are not in the table
        return (
            _at(events, layout.event(words), wrong, lambda site: site.confirmed) if wanted and access.strong else None
        )
    if access.site.confirmed:
        strong: Array = wrong & (words & STRONG != 0)
        return strong
    if values is None:
        return None
    same = gather(piece.view, piece.index, 1) == values
    if access.count > 1:
        same = same.all(axis=-1)
    equal = wrong & (same[..., None] if wrong.ndim > 1 else same)
    return _at(events, layout.event(words), equal, lambda site: _alike(site, access.site))


def reported(wrong: Array, harmless: Array | None, values: Array | None) -> tuple[Array, str | None]:
    """The races to report among ``wrong``: those that are not in ``harmless``; if all are, all, and the reason why they
    are benign. ``values``: those of a store."""
    if harmless is None:
        return wrong, None
    real = wrong & ~harmless
    if real.any():
        return real, None
    return wrong, SAME if values is not None else CONFIRMED


def _at(events: Events, numbers: Array, wrong: Array, holds: Callable[[Site], bool]) -> Array:
    """A mask of the races ``wrong`` with accesses, at the events ``numbers``, for whose sites a condition holds."""
    cells = np.nonzero(wrong)
    found = np.zeros(wrong.shape, np.bool_)
    if len(cells[0]):
        kinds, which = np.unique(numbers[cells], return_inverse=True)
        found[cells] = np.array([holds(events.site(number)) for number in kinds.tolist()])[which]
    return found


def overwritten(
    values: Array | None, lost: Array, winner: Array, warps: Array, wanted: bool
) -> tuple[Array, str | None]:
    """The races within one store: a mask of the lanes ``lost``, whose values the lanes ``winner`` overwrite, and the
    reason why they are benign, if they are. ``values``: per lane; None if all are equal. ``warps``: of each lane.
    ``wanted``: report lanes of different warps that store the same value, if no lanes store different ones."""
    differ = np.zeros(len(lost), np.bool_)
    if values is not None:
        differ = (values[winner] != values[lost]).reshape(len(lost), -1).any(axis=1)
    if wanted and not differ.any():
        apart: Array = warps[winner] != warps[lost]
        return apart, SAME
    return differ, None


def _alike(one: Site, other: Site) -> bool:
    """Whether two writes, the second one a store, are stores of elements of the same size."""
    if row_of(one.instruction).mix == "atomic":
        return False
    kinds = [site.instruction.modifiers[-1] for site in (one, other) if site.instruction.opcode == "st"]
    return len(kinds) < 2 or width(kinds[0]) == width(kinds[1])
