"""The rules of member masks: shfl.sync, vote.sync, match.sync, redux.sync, elect.sync and bar.warp.sync.

PTX leaves the result undefined unless each executing lane is in its own mask, and all lanes of the mask that have not
exited execute the instruction with the same mask. Lanes of one warp may use different masks if these do not overlap,
as the tiles of cooperative groups do. A mask may name lanes that have exited.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.ptx.ir import Instruction

MISSING = "lanes missing from a warp operation"
WRONG_MASK = "wrong member mask"
FULL = 0xFFFFFFFF


def check_masks(f: Fragment, instruction: Instruction, mask: Any) -> None:
    """Report a lane that is not in its own mask, or two lanes whose masks overlap and differ. ``mask`` is one uint32
    for all lanes, or one per lane."""
    lanes, taking = f.lanes, None
    if instruction.guard is not None:
        register, negated = instruction.guard
        held = f.regs[f.program.slots[register.name]]
        taking = np.broadcast_to(held != negated, (lanes.count,))
        if not taking.any():
            return
    if mask.ndim == 0:
        if taking is None and int(mask) == FULL:
            return
        mask = np.broadcast_to(mask, (lanes.count,))
    # an unrolled sequence of shuffles has the same masks in each
    checked = lanes.cache.get("masks")
    if taking is None and checked is not None and (checked is mask or np.array_equal(checked, mask)):
        return
    _check(f, instruction, mask, taking)
    if taking is None:
        lanes.cache["masks"] = mask


def fail_missing(f: Fragment, instruction: Instruction, missing: Array) -> NoReturn:
    """Report the lanes of a member mask that can never execute the instruction. ``missing`` has them as bits, one
    uint32 per warp of the fragment."""
    warps = np.flatnonzero(missing)
    position = int(f.lanes.warp_starts[warps[0]])
    absent = [lane for lane in range(32) if int(missing[warps[0]]) >> lane & 1]
    f.fail(
        instruction,
        MISSING,
        f"the member mask of {instruction.name} includes lanes that are blocked elsewhere and never execute it: "
        f"{', '.join(map(str, absent))} of this warp",
        position,
        int(np.isin(f.lanes.warp_rank, warps).sum()),
    )


def _check(f: Fragment, instruction: Instruction, mask: Array, taking: Array | None) -> None:
    lanes = f.lanes
    outside = mask >> lanes.laneid.astype(np.uint32) & 1 == 0
    if taking is not None:
        outside &= taking
    if outside.any():
        wrong = np.flatnonzero(outside)
        lane, own = int(lanes.laneid[wrong[0]]), int(mask[wrong[0]])
        f.fail(
            instruction,
            WRONG_MASK,
            f"lane {lane} executes {instruction.name} with the member mask {own:#010x}, which does not include it",
            int(wrong[0]),
            wrong,
            notes=["the result is undefined: each lane's mask must include the lane itself"],
        )
    if taking is None and bool((mask == lanes.spread(mask.take(lanes.warp_starts))).all()):
        return
    apart = lanes.spread(lanes.present) & mask & ~_same(lanes, mask, taking)
    if taking is not None:
        apart[~taking] = 0
    wrong = np.flatnonzero(apart)
    if not len(wrong):
        return
    position = int(wrong[0])
    other = int(apart[position]) & -int(apart[position])
    there = lanes.warp == lanes.warp[position]
    named = np.flatnonzero(there & (lanes.laneid == other.bit_length() - 1))[0]
    if taking is not None and not taking[named]:
        detail = f"lane {other.bit_length() - 1}, which does not execute it"
    else:
        detail = f"lane {other.bit_length() - 1}, whose mask is {int(mask[named]):#010x}"
    f.fail(
        instruction,
        WRONG_MASK,
        f"lane {int(lanes.laneid[position])} executes {instruction.name} with the member mask "
        f"{int(mask[position]):#010x}, which includes {detail}",
        position,
        wrong,
        notes=["the result is undefined: all lanes of a mask must pass the same mask"],
    )


def _same(lanes: LaneSet, mask: Array, taking: Array | None) -> Array:
    """For each lane, the lanes of its warp with the same mask, as bits."""
    table = lanes.pad(mask)
    equal = table[:, :, None] == table[:, None, :]
    here = np.zeros(lanes.warp_count * 32, np.bool_)
    here[lanes.slots] = True if taking is None else taking
    equal &= here.reshape(-1, 1, 32)
    found: Array = lanes.unpad(np.packbits(equal, axis=2, bitorder="little").view(np.uint32)[:, :, 0])
    return found
