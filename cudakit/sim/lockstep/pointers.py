"""Calls by function pointers: the function that each lane calls."""

from __future__ import annotations

import numpy as np

from cudakit.sim.lockstep.fragment import Fragment
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import BasicBlock, Program
from cudakit.sim.lockstep.report import plain_name


def called(f: Fragment, block: BasicBlock) -> list[tuple[Fragment, Program]]:
    """The functions that the lanes of a fragment call at the end of a block, in the order of their addresses, each with
    the lanes that call it. One function: the fragment itself. Stops the kernel if a pointer is not one that can be
    called there."""
    pointers, callees = f.regs[block.slot], block.pointers.callees
    if pointers.ndim == 0 or (pointers == pointers[0]).all():
        address = int(pointers if pointers.ndim == 0 else pointers[0])
        if address not in callees:
            _fail(f, block, address, np.arange(f.lanes.count))
        return [(f, callees[address])]
    addresses = np.unique(pointers).tolist()
    for address in addresses:
        if address not in callees:
            _fail(f, block, address, np.flatnonzero(pointers == address))
    found = []
    for address in addresses:
        choice, lanes = f.lanes.subset(pointers == address)
        found.append((f.part(choice, lanes, f.block), callees[address]))
    return found


def divergent_warps(f: Fragment, values: Array) -> int:
    """The number of warps whose lanes have different values."""
    first = f.lanes.spread(values.take(f.lanes.warp_starts))
    return len(np.unique(f.lanes.warp_rank[values != first]))


def _fail(f: Fragment, block: BasicBlock, address: int, lanes: Array) -> None:
    function = block.pointers.functions.get(address)
    if function is not None:
        why = f"{plain_name(function.name)}, which is {block.pointers.mismatch(function)}"
    elif address == 0:
        why = "a null function pointer"
    else:
        why = f"{address:#x}, which is not the address of a function of this module"
    f.fail(block.instructions[-1], "invalid function pointer", f"call of {why}", int(lanes[0]), lanes, address=address)
