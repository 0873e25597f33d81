"""The operands of a wgmma in memory and in registers, as matrices of patterns.

Matrices are (units, rows, columns). A unit is a warpgroup with its 64 rows of A and D, or, if some warps of a warpgroup
are missing, a single warp with 16.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cudakit.sim.lockstep.descriptors import CHUNK, chunks
from cudakit.sim.lockstep.fragment import Batch, Store
from cudakit.sim.lockstep.lanes import Array, LaneSet

WARPS = 4
ROWS = 16
# an element type of 16 bytes: a chunk that numpy copies at once
_CHUNK = np.dtype(np.complex128)


class Units(NamedTuple):
    """Warps in units: the first warp of each unit as a position among the warps, its block, and its rows of A."""

    firsts: Array
    blocks: Array
    rows: int
    # of the 64 rows of A, the first one of each unit
    row: Array


def units_of(batch: Batch, warps: Array) -> Units:
    """Warps of a batch, ascending, in units."""
    per_block = batch.geometry.warps_per_block
    local = warps % per_block
    if len(warps) % WARPS == 0:
        groups = warps.reshape(-1, WARPS)
        if (local[::WARPS] % WARPS == 0).all() and (groups[:, 3] - groups[:, 0] == 3).all():
            firsts = np.arange(0, len(warps), WARPS)
            return Units(firsts, groups[:, 0] // per_block, WARPS * ROWS, np.zeros(len(groups), np.int64))
    return Units(np.arange(len(warps)), warps // per_block, ROWS, local % WARPS * ROWS)


def shared_of(batch: Batch) -> Store:
    """The shared memory of a batch, which has some."""
    if batch.shared is None:
        raise RuntimeError("a matrix product without shared memory")
    return batch.shared


def places(store: Store, bits: Array, blocks: Array, rows: int, size: int, k_major: bool) -> Array:
    """The chunks of an operand for each unit, as numbers of chunks in the batch's shared memory: (units, rows, 2), or
    (units, k, chunks) if the operand is MN-major. ``bits`` are the units' descriptors."""
    base = (blocks * (store.stride // CHUNK))[:, None, None]
    first = int(bits[0])
    if (bits == bits[0]).all():
        found: Array = chunks(first, rows, size, k_major) // CHUNK + base
        return found
    each = [chunks(int(one), rows, size, k_major) for one in bits]
    found = np.stack(each) // CHUNK + base
    return found


def read(store: Store, where: Array, size: int, k_major: bool) -> Array:
    """The patterns of an operand at these places: (units, rows, k). Elements have ``size`` bytes."""
    elements = store.view(_CHUNK).take(where).view(f"u{size}")
    return elements if k_major else elements.transpose(0, 2, 1)


def distinct(bits: Array) -> list[int]:
    """The different descriptors among those of some warps."""
    return [int(bits[0])] if (bits == bits[0]).all() else np.unique(bits).tolist()


def rows_of(where: Array, units: Units, size: int, k_major: bool) -> Array:
    """The places of each unit's own rows, among those of all 64 rows of A."""
    if units.rows == WARPS * ROWS:
        return where
    number = np.arange(len(where))[:, None]
    if k_major:
        own = where[number, units.row[:, None] + np.arange(ROWS)]
    else:
        per_chunk = CHUNK // size
        own = where[
            number[:, None],
            np.arange(where.shape[1])[:, None],
            (units.row // per_chunk)[:, None, None] + np.arange(ROWS // per_chunk),
        ]
    found: Array = own
    return found


# ---- registers of D ----
# register v of a lane has column 8 * (v // 4) + 2 * (lane % 4) + v % 2 of row lane // 4 + 8 * (v // 2 % 2); a register
# of two float16 has two neighbouring columns


def gather(lanes: LaneSet, registers: tuple[Array, ...]) -> Array:
    """The registers of lanes as (registers, warps, 32) words; absent lanes are zero."""
    words = np.empty((len(registers), lanes.warp_count, 32), np.uint32)
    flat = words.reshape(len(registers), -1)
    for number, value in enumerate(registers):
        flat[number] = value if value.ndim == 0 or lanes.complete else lanes.pad(value).reshape(-1)
    return words


def to_matrix(words: Array, half: bool) -> Array:
    """Registers (registers, warps, 32) as the rows of D of each warp: (warps, 16, n). ``half``: elements of float16."""
    count, warps, _ = words.shape
    pairs = 1 if half else 2
    # (n / 8, halves, [columns], warps, 8 rows, 4 lanes of a row)
    table = words.reshape(count // (2 * pairs), 2, pairs, warps, 8, 4)
    matrix = np.ascontiguousarray(table.transpose(3, 1, 4, 0, 5, 2))
    patterns: Array = matrix.view(np.uint16) if half else matrix
    return patterns.reshape(warps, ROWS, -1)


def to_registers(matrix: Array, half: bool) -> Array:
    """The inverse of ``to_matrix``."""
    warps = len(matrix)
    words = np.ascontiguousarray(matrix).view(np.uint32)
    pairs = 1 if half else 2
    table = words.reshape(warps, 2, 8, -1, 4, pairs)
    found: Array = np.ascontiguousarray(table.transpose(3, 1, 5, 0, 2, 4)).reshape(-1, warps, 32)
    return found
