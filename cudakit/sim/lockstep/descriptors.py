"""Matrix descriptors of wgmma: the places of an operand's elements in shared memory.

A descriptor has the address of the first element, two offsets in bytes (``leading`` and ``stride``), and the swizzle.
All are multiples of 16 bytes. A K-major operand has consecutive elements along k, an MN-major one along m or n. The
instruction reads 16 bytes at a time: T = 16 / size elements. Its k is two such chunks.

With ``span`` bytes of a swizzled row, the parts of an operand are at these distances in bytes from each other:

========  =========  ===============  =====================  ========================  =========
major     swizzle    neighbours       along m or n                                     along k
========  =========  ===============  =====================  ========================  =========
K         none       k: a chunk       8 rows: 16             groups of 8: stride       leading
K         a span     k: a chunk       8 rows: the span       groups of 8: stride       16
MN        none       8 of m or n      groups of 8: stride                              8 of k: 16, then leading
MN        a span     8 of m or n      chunks of a span: 16   spans: leading            8 of k: the span, then stride
========  =========  ===============  =====================  ========================  =========

The swizzle acts on addresses: bits 4 to 6 of an address are combined by exclusive or with bits 7 to 9, as many of them
as number the chunks of a span. The pattern repeats every 8 spans. The base offset of a descriptor is the number of the
128-byte line at which the pattern starts, modulo 8; it is 0 if the pattern is aligned.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cudakit.sim.lockstep.lanes import Array
from cudakit.sim.lockstep.memory import SHARED_START

CHUNK = 16
# bytes of the swizzled row by the descriptor's mode: none, 128, 64, 32
_SPANS = (16, 128, 64, 32)
_FIELD = 0x3FFF
# bits that no field of a descriptor has
_RESERVED = 0x3FF1C000C000C000


class Descriptor(NamedTuple):
    """The fields of a descriptor, in bytes. ``span`` is 16 if the operand is not swizzled."""

    start: int
    leading: int
    stride: int
    base: int
    span: int

    @property
    def pattern(self) -> int:
        """The bytes after which the swizzle repeats."""
        return 8 * self.span

    def __str__(self) -> str:
        swizzle = f"{self.span}-byte swizzle" if self.span > CHUNK else "no swizzle"
        base = f", base offset {self.base}" if self.base else ""
        return f"address {self.start:#x}, leading {self.leading}, stride {self.stride}, {swizzle}{base}"


def parse(bits: int) -> Descriptor:
    """The fields of a descriptor's 64 bits."""
    start, leading, stride = ((bits >> place & _FIELD) * CHUNK for place in (0, 16, 32))
    return Descriptor(start, leading, stride, bits >> 49 & 7, _SPANS[bits >> 62])


def mistake(bits: int) -> str:
    """The reason why a descriptor is not valid, whatever memory it describes; "" if it is."""
    if bits & _RESERVED:
        return f"bits {bits & _RESERVED:#x} are set, which no field has: shift addresses and offsets right by 4"
    found = parse(bits)
    if found.span == CHUNK:
        return "a base offset without a swizzle" if found.base else ""
    lines = found.span // CHUNK - 1
    line = found.start >> 7
    if (line - found.base) & lines:
        due = line & lines
        return (
            f"with a {found.span}-byte swizzle, a matrix starts at a multiple of {found.pattern} bytes (plus an offset "
            f"within its first {min(found.span, 128)} bytes along k); {found.start:#x} is in line {due} of a pattern, "
            f"and the base offset is {found.base}"
        )
    return ""


@lru_cache(maxsize=4096)
def chunks(bits: int, rows: int, size: int, k_major: bool) -> Array:
    """The chunks of an operand in the order in which they are read, as offsets in the block's shared memory (int64).

    ``rows`` are those of A, or the columns of B; ``size`` is the bytes of an element. A K-major operand is
    (rows, 2): both chunks along k; an MN-major one (k, rows / T): all chunks of a k.
    """
    found = parse(bits)
    swizzled = found.span > CHUNK
    if k_major:
        row = np.arange(rows)[:, None]
        pitch, step = (found.span, CHUNK) if swizzled else (CHUNK, found.leading)
        offsets = row % 8 * pitch + row // 8 * found.stride + np.arange(2) * step
    else:
        depth = 2 * CHUNK // size
        k, chunk = np.arange(depth)[:, None], np.arange(rows * size // CHUNK)
        if swizzled:
            wide = found.span // CHUNK
            offsets = chunk % wide * CHUNK + chunk // wide * found.leading + k % 8 * found.span + k // 8 * found.stride
        else:
            offsets = chunk * found.stride + k % 8 * CHUNK + k // 8 * found.leading
    address = found.start + offsets
    if swizzled:
        address ^= (((address >> 7) - found.base) & (found.span // CHUNK - 1)) << 4
    made: Array = address - SHARED_START
    made.flags.writeable = False
    return made


@lru_cache(maxsize=4096)
def extent(bits: int, rows: int, size: int, k_major: bool) -> tuple[int, int]:
    """The first byte of an operand in the block's shared memory, and the byte after its last one."""
    found = chunks(bits, rows, size, k_major)
    return int(found.min()), int(found.max()) + CHUNK
