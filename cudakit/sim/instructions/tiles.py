"""The layouts of matrix fragments in the registers of a warp.

A layout maps each register, lane and element of the register to an element of the matrix. The layouts of mma.sync are
those of the PTX ISA ("Matrix Fragments for mma..."), which all follow one rule: lane ``4 * g + t`` holds row ``g``
(for B: column ``g``), a register's elements are neighbours along k, and the four lanes of a group hold neighbouring
registers. PTX does not specify the layouts of wmma; they are built here from the same parts and match an H200.

Matrices have one more axis, the warps: (rows, columns, warps).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from cudakit.sim.lockstep.lanes import Array, LaneSet

# bits of an element of a matrix; elements of 8 bits or fewer are stored in bytes
ELEMENT_BITS = {"f64": 64, "f32": 32, "s32": 32, "tf32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8}
ELEMENT_BITS |= {"s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1}


class FragmentLayout:
    """A matrix of ``shape`` in the registers of a warp.

    ``rows`` and ``columns`` are (registers, 32, elements of a register): each element's row and column in the matrix. A
    matrix element may have several copies; all copies are written, the first is read.
    """

    def __init__(self, kind: str, shape: tuple[int, int], rows: Array, columns: Array) -> None:
        self.kind = kind
        self.bits = ELEMENT_BITS[kind]
        self.shape = shape
        self.rows = rows
        self.columns = columns
        self.registers, _, self.elements = rows.shape
        self.word = np.dtype(np.uint64 if self.bits == 64 else np.uint32)
        self.element = np.dtype(f"u{max(self.bits // 8, 1)}")
        # for writing, the matrix element of each register element; for reading, the reverse
        self.places = (rows * shape[1] + columns).reshape(-1)
        self.sources = np.full(shape[0] * shape[1], -1, np.int64)
        self.sources[self.places[::-1]] = np.arange(self.places.size)[::-1]
        if (self.sources < 0).any():
            raise ValueError(f"this layout of {kind} does not cover a matrix of {shape}")

    def transposed(self) -> FragmentLayout:
        return FragmentLayout(self.kind, (self.shape[1], self.shape[0]), self.columns, self.rows)

    def read(self, lanes: LaneSet, registers: tuple[Array, ...]) -> Array:
        """The matrix of each warp, as patterns (rows, columns, warps) of the element's dtype; zeros for inactive
        lanes."""
        words = np.empty((self.registers, lanes.warp_count, 32), self.word)
        for number, value in enumerate(registers):
            words[number] = value if value.ndim == 0 else lanes.pad(value)
        if self.bits == 1:
            elements = np.unpackbits(words.view(np.uint8), axis=2, bitorder="little")
        elif self.bits == 4:
            both = words.view(np.uint8)
            elements = np.stack((both & 15, both >> 4), axis=3).reshape(self.registers, lanes.warp_count, -1)
        else:
            elements = words.view(self.element)
        table = elements.transpose(0, 2, 1).reshape(-1, lanes.warp_count)
        matrix: Array = table.take(self.sources, axis=0).reshape(*self.shape, lanes.warp_count)
        return matrix

    def write(self, lanes: LaneSet, matrix: Array) -> tuple[Array, ...]:
        """The inverse of ``read``, for elements of at least 8 bits."""
        warps = lanes.warp_count
        flat = matrix.reshape(-1, warps).take(self.places, axis=0)
        table = flat.reshape(self.registers, -1, warps).transpose(0, 2, 1)
        words = np.ascontiguousarray(table, self.element).view(self.word)
        return tuple(lanes.unpad(words[number]) for number in range(self.registers))


def _grid(registers: int, elements: int) -> tuple[Any, Any, Any, Any]:
    """Register, row group, lane within the group and element number of every element of a fragment."""
    register, lane, element = np.meshgrid(
        np.arange(registers), np.arange(32), np.arange(elements), indexing="ij", sparse=False
    )
    return register, lane >> 2, lane & 3, element


@cache
def left(kind: str, m: int, k: int, registers: int = 0) -> FragmentLayout:
    """A: m rows (8, 16 or 32) of k elements. ``registers`` beyond the needed ones hold copies."""
    bits = max(ELEMENT_BITS[kind], 32)
    elements = bits // ELEMENT_BITS[kind]
    count = m * k // (32 * elements)
    register, group, lane, element = _grid(max(registers, count), elements)
    register = register % count
    halves = min(m // 8, 2)
    block, inner = register // (count * 16 // m if m > 16 else count), register % (count * 16 // m if m > 16 else count)
    rows = group + 8 * (inner % halves) + 16 * block
    columns = lane * elements + element + 4 * elements * (inner // halves)
    return FragmentLayout(kind, (m, k), rows, columns)


@cache
def right(kind: str, k: int, n: int, registers: int = 0) -> FragmentLayout:
    """B: k rows of n columns (8 or 16)."""
    bits = max(ELEMENT_BITS[kind], 32)
    elements = bits // ELEMENT_BITS[kind]
    count = k * n // (32 * elements)
    register, group, lane, element = _grid(max(registers, count), elements)
    register = register % count
    steps = count * 8 // n
    rows = lane * elements + element + 4 * elements * (register % steps)
    columns = group + 8 * (register // steps) + 0 * element
    return FragmentLayout(kind, (k, n), rows, columns)


@cache
def sums(kind: str, m: int, n: int) -> FragmentLayout:
    """C and D: m rows (8, 16 or 32) of n columns (8 or 16)."""
    bits = max(ELEMENT_BITS[kind], 32)
    elements = bits // ELEMENT_BITS[kind]
    register, group, lane, element = _grid(m * n // (32 * elements), elements)
    number = register * elements + element
    halves = min(m // 8, 2)
    rows = group + 8 * ((number >> 1) % halves)
    across = (number >> 1) // halves
    blocks = n // 8
    columns = 2 * lane + (number & 1) + 8 * (across % blocks)
    rows = rows + 16 * (across // blocks)
    return FragmentLayout(kind, (m, n), rows, columns)


@cache
def quads(role: str, kind: str, column_major: bool) -> FragmentLayout:
    """The matrices of mma.m8n8k4 with f16. Each pair of quads (lanes 4q to 4q+3 and 4q+16 to 4q+19) holds its own
    product; the four are stacked vertically (A, C, D) or horizontally (B)."""
    elements = 32 // ELEMENT_BITS[kind]
    register, lane, element = np.meshgrid(
        np.arange((4 if role in "ab" else 8) // elements), np.arange(32), np.arange(elements), indexing="ij"
    )
    number = register * elements + element
    quad, high, low = (lane & 15) >> 2, 4 * (lane >> 4), lane & 3
    if role == "a":
        rows, columns = (number + high, low) if column_major else (low + high, number)
        return FragmentLayout(kind, (32, 4), rows + 8 * quad, columns + 0 * quad)
    if role == "b":
        rows, columns = (number, low + high) if column_major else (low, number + high)
        return FragmentLayout(kind, (4, 32), rows + 0 * quad, columns + 8 * quad)
    if kind == "f16":
        rows, columns = low + high, number
    else:
        rows = (lane & 1) + (number & 2) + high
        columns = (number & 4) + (lane & 2) + (number & 1)
    return FragmentLayout(kind, (32, 8), rows + 8 * quad, columns + 0 * quad)
