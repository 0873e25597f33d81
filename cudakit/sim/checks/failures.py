"""Stops a kernel at an access that fails a check."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np

from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import Piece
from cudakit.sim.lockstep.report import Other
from cudakit.sim.lockstep.sites import Site


class WrongLanes(NamedTuple):
    """Faulty lanes of a piece of an access: ``lanes`` are their positions in the piece, ``first`` is the position of
    the lane to report."""

    f: Fragment
    access: MemoryAccess
    piece: Piece
    first: int
    lanes: Array

    @classmethod
    def where(cls, f: Fragment, access: MemoryAccess, piece: Piece, wrong: Array) -> WrongLanes:
        """The lanes of a piece for which the mask ``wrong`` is true."""
        return cls(f, access, piece, int(np.argmax(wrong)), np.flatnonzero(wrong))


class Conflict(NamedTuple):
    """The other access of a race: its site, the number of its block in the grid and its thread, if known."""

    site: Site
    block: int | None
    thread: int | None = None


def fail(wrong: WrongLanes, kind: str, detail: str, conflict: Conflict | None = None, **facts: Any) -> NoReturn:
    """Stop the kernel with a report of an access by some lanes, and of the access that it conflicts with, if any.
    ``facts`` are further fields of the report: ``address``, ``allocation``, ``notes``."""
    f, access, piece, position, lanes = wrong
    if piece.choice is None and piece.lanes.count != f.lanes.count:
        # an asynchronous access, whose units count as lanes
        position, lanes = int(np.searchsorted(f.lanes.lanes, piece.lanes.lanes[position])), np.zeros(1, np.int64)
        position = min(position, f.lanes.count - 1)
    elif piece.choice is not None:
        chosen = np.arange(f.lanes.count)[piece.choice]
        position, lanes = int(chosen[position]), chosen[lanes]
    others: tuple[Other, ...] = ()
    if conflict is not None:
        site, block, thread = conflict
        index = None if thread is None else f.batch.thread_index(thread)
        where = None if block is None else f.batch.grid_index(block)
        others = (Other(site.kind, where, index, f.batch.run.place(site.instruction)),)
    f.fail(
        access.site.instruction,
        kind,
        detail,
        position,
        lanes,
        size=access.size,
        space=_space(f, piece),
        access=access.site.kind,
        others=others,
        **facts,
    )


def _space(f: Fragment, piece: Piece) -> str:
    """The state space that a piece is in."""
    if isinstance(piece.home, Allocation):
        return "global"
    return "shared" if piece.home is f.batch.shared else "local"
