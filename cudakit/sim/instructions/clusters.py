"""Builders for clusters: addresses in other blocks' shared memory, and barrier.cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.sim.instructions.emitter import Emitter
from cudakit.sim.lockstep.clusters import RANK_MASK, RANK_SHIFT
from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.program import CLUSTER, BasicBlock, ClusterCall
from cudakit.sim.ptx.ir import Address, Instruction, Symbol
from cudakit.sim.ptx.modifiers import Modifiers


def _address(c: Emitter, instruction: Instruction, kind: str) -> str:
    """An expression for operand 2: a register, or a variable with or without an offset."""
    source = instruction.operands[1]
    if not isinstance(source, (Symbol, Address)):
        return c.source(source, kind)
    base, offset = c.address(source, instruction)
    value = f"({base} + {c.bind(np.uint64(offset % (1 << 64)))})"
    return value + (f".astype({c.bind(np.uint32)})" if kind == "u32" else "")


def build_mapa(c: Emitter, instruction: Instruction) -> list[str]:
    """mapa: the same offset in the shared memory of another block of the cluster."""
    modifiers = Modifiers(instruction)
    kind = modifiers.kind("u32", "u64")
    modifiers.flag("shared::cluster")
    modifiers.finish()
    value = _address(c, instruction, kind)
    rank = c.source(instruction.operands[2], "u32")
    keep = ~(RANK_MASK << RANK_SHIFT) & (0xFFFFFFFF if kind == "u32" else 0xFFFFFFFFFFFFFFFF)
    dtype = np.uint32 if kind == "u32" else np.uint64

    def mapa(address: Array, block: Array) -> Array:
        # an invalid rank stays invalid, so that the access reports it
        high: Array = np.minimum(block, np.uint32(RANK_MASK)).astype(dtype)
        high = np.left_shift(high, dtype(RANK_SHIFT))
        mapped: Array = (address & dtype(keep)) | high
        return mapped

    return c.store(instruction.operands[0], kind, f"{c.bind(mapa)}({value}, {rank})")


def build_getctarank(c: Emitter, instruction: Instruction) -> list[str]:
    """getctarank: the rank of the block whose shared memory contains an address."""
    modifiers = Modifiers(instruction)
    kind = modifiers.kind("u32", "u64")
    modifiers.flag("shared::cluster")
    modifiers.finish()
    value = _address(c, instruction, kind)

    def rank(address: Array) -> Array:
        found: Array = ((address >> address.dtype.type(RANK_SHIFT)) & address.dtype.type(RANK_MASK)).astype(np.uint32)
        return found

    return c.store(instruction.operands[0], "u32", f"{c.bind(rank)}({value})")


def end_with_cluster_barrier(
    c: Emitter, block: BasicBlock, instruction: Instruction, count: Callable[[Any], None]
) -> None:
    """End a basic block with barrier.cluster.arrive or .wait; ``count`` counts the fragments that execute it."""
    modifiers = Modifiers(instruction)
    modifiers.flag("cluster")
    what = modifiers.one_of("arrive", "wait")
    modifiers.one_of("acquire") if what == "wait" else modifiers.one_of("release", "relaxed")
    aligned = modifiers.flag("aligned")
    modifiers.finish()
    if not what:
        modifiers.refuse("barrier.cluster takes .arrive or .wait and no operands")
    block.kind = CLUSTER
    block.cluster_barrier = ClusterCall(instruction, what == "wait", aligned)
    if what == "arrive":
        block.lines.append(f"{c.bind(count)}(f)")


BUILDERS = {"mapa": build_mapa, "getctarank": build_getctarank}
