"""Undefined values (lockstep/undefined.py) in shared and local memory: a load returns their codes.

Storing such a value is not a mistake: items past the end of an array often pass through shared memory unused.
"""

from __future__ import annotations

import numpy as np

from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.fragment import Batch, Fragment, Store
from cudakit.sim.lockstep.lanes import Array, choose
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.pieces import Piece, positions
from cudakit.sim.lockstep.undefined import (
    LOADED,
    UndefinedLoad,
    UnwrittenMemory,
    ValueOrigin,
    code_of,
    fail_loaded,
    fail_use,
    origin_of,
)
from cudakit.sim.ptx.ir import Instruction


class _Codes:
    """The codes of the bytes of a batch's shared or local memory. An element is undefined if all its bytes are."""

    def __init__(self, store: Store) -> None:
        self.codes = np.zeros(len(store.bytes), np.uint16)

    def write(self, access: MemoryAccess, piece: Piece, codes: Array | None) -> None:
        """Note a store; ``codes`` of its elements: (lanes, count), or None if all are defined."""
        index = positions(piece.index, piece.lanes.count) * access.size
        if codes is None or codes.shape[1] != access.count:
            values = np.zeros((len(index), access.size), np.uint16)
        else:
            part = codes if piece.choice is None else choose(codes, piece.choice)
            values = np.repeat(part, access.width, axis=1)
        self.codes[index[:, None] + np.arange(access.size)] = values

    def read(self, access: MemoryAccess, piece: Piece) -> Array | None:
        """The codes of the elements that a load returns, (lanes of the piece, count); None if all are defined."""
        index = positions(piece.index, piece.lanes.count) * access.size
        found = self.codes[index[:, None] + np.arange(access.size)]
        if not found.any():
            return None
        elements = found.reshape(len(index), access.count, -1)
        values: Array = np.where(elements.all(axis=2), elements.max(axis=2), np.uint16(0))
        return values if values.any() else None


class BatchValues:
    """The undefined values in the shared and local memory of one batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.stores: dict[Store, _Codes] = {}

    def store(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        """Note the undefined values among those that a store writes to shared or local memory."""
        values = self.stores.get(piece.home)
        if values is None:
            if f.storing is None:
                return
            values = self.stores[piece.home] = _Codes(piece.home)
        values.write(access, piece, f.storing)

    def load(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        """Note the undefined values among those that a load reads from shared or local memory."""
        values = self.stores.get(piece.home)
        if values is not None and (codes := values.read(access, piece)) is not None:
            note_load(f, access, piece, codes)

    def fail_stored(self, f: Fragment, access: MemoryAccess, piece: Piece) -> None:
        """Report a store to global memory, at a generic address, whose elements are all undefined."""
        if f.storing is None:
            return
        here = slice(None) if piece.choice is None else piece.choice
        codes = np.zeros(f.lanes.count, np.uint16)
        codes[here] = f.storing.min(axis=1)[here]
        if codes.any():
            fail_use(f, access.site.instruction, codes, "is stored")

    def expect_defined(self, f: Fragment, position: int, offset: int, size: int, use: Instruction) -> None:
        """Report undefined values, loaded from memory, that printf reads from a lane's local memory."""
        local = self.batch.local
        values = None if local is None else self.stores.get(local)
        if local is None or values is None:
            return
        start = int(f.lanes.lanes[position]) * local.stride + offset
        found = values.codes[start : start + size]
        if (found & LOADED).any():
            codes = np.zeros(f.lanes.count, np.uint16)
            codes[position] = found.max()
            fail_use(f, use, codes, "is printed")


def note_load(f: Fragment, access: MemoryAccess, piece: Piece, codes: Array) -> None:
    """Hand the codes of loaded elements, (lanes of the piece, count), to the hooks of the fragment's block. Other
    accesses than loads of registers use the values."""
    if not access.followed:
        used = (codes & LOADED).astype(np.bool_).any(axis=1)
        if used.any():
            found = np.where(used, codes.max(axis=1), 0)
            whole = np.zeros(f.lanes.count, np.uint16)
            # a product of warpgroups reads the elements of all its lanes on behalf of one
            here = slice(None) if piece.choice is None else piece.choice
            whole[here] = found if len(found) == len(whole[here]) else found.max()
            fail_use(f, access.site.instruction, whole, f"is read by {access.site.instruction.opcode}")
        return
    if not f.careful:
        raise UndefinedLoad(access.site.instruction)
    if f.loaded is None:
        f.loaded = np.zeros((f.lanes.count, access.count), np.uint16)
    here = slice(None) if piece.choice is None else piece.choice
    f.loaded[here] = np.maximum(f.loaded[here], codes)


def unwritten_load(f: Fragment, access: MemoryAccess, piece: Piece, missing: Array, granules: int) -> None:
    """Note that an access reads memory that was never written: ``missing`` is a mask of its granules, for each lane or
    for all. A load of registers passes the undefined values on, other accesses are reported."""
    wrong = access.matter(missing, granules)
    if not wrong.any():
        return
    count = piece.lanes.count
    elements = np.broadcast_to(
        wrong[..., None] if granules == 1 else wrong, (count, wrong.shape[-1] if granules > 1 else 1)
    )
    lanes = elements.any(axis=1)
    if access.followed and not f.careful:
        raise UndefinedLoad(access.site.instruction)
    places = positions(piece.index, count) * access.size
    home = piece.home
    if isinstance(home, Allocation):
        memory = UnwrittenMemory(home, "global", places[lanes] + home.base)
    else:
        space = "shared" if home is f.batch.shared else "local"
        memory = UnwrittenMemory(home, space, places[lanes] % home.stride)
    code = code_of(f, ValueOrigin(access.site.instruction, access=access))
    origin = origin_of(f, int(code))
    origin.note(f.batch, piece.lanes.lanes[lanes], memory)
    if not access.followed:
        chosen = np.arange(f.lanes.count)
        if piece.choice is None and count != len(chosen):
            # an asynchronous access, whose units count as lanes
            fail_loaded(f, origin, chosen[:1])
        fail_loaded(f, origin, (chosen if piece.choice is None else chosen[piece.choice])[lanes])
    note_load(f, access, piece, np.where(elements, code, np.uint16(0)))
