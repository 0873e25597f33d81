"""Tensor maps: their fields, their 128 bytes on the simulated device, and the places of a box in memory.

The layout of a GPU's tensor map is not published. The simulated device has its own: a magic number, a version, the
fields and a checksum. `tensor_map_rules` has the rules that the fields must obey.
"""

from __future__ import annotations

import functools
import math
import struct
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from cudakit.sim.lockstep.lanes import Array

SIZE = 128  # bytes of a tensor map
_MAGIC, _VERSION = b"ckTM", 1
# magic, version, type, rank, bits of dimensions of 2^32; address; interleave, swizzle, promotion, fill; dimensions,
# strides, box, element strides; then their checksum
_FIELDS = struct.Struct("<4s4BQ4B5I4Q5I5I")
# Checks of host code take every aligned word of a parameter for an address: only the map's address must look like one,
# so the bits of the fields after it are stored inverted.
_PLAIN_BYTES = 16
_INVERTED = bytes(range(255, -1, -1))
_CHECKSUM = struct.Struct("<I")
_MOST = 5  # dimensions
# dimensions, strides, box and element strides: how many there are at most, and what those beyond the rank are
_ROWS = ((_MOST, 1), (_MOST - 1, 0), (_MOST, 1), (_MOST, 1))


class ElementType(NamedTuple):
    """The type of a tensor's elements: PTX's name, bytes, and whether they are floats."""

    name: str
    size: int
    floating: bool = False


# by CUtensorMapDataType; the packed types of later architectures (13 to 15) are not simulated
ELEMENT_TYPES = {
    0: ElementType("u8", 1),
    1: ElementType("u16", 2),
    2: ElementType("u32", 4),
    3: ElementType("s32", 4),
    4: ElementType("u64", 8),
    5: ElementType("s64", 8),
    6: ElementType("f16", 2, True),
    7: ElementType("f32", 4, True),
    8: ElementType("f64", 8, True),
    9: ElementType("bf16", 2, True),
    10: ElementType("f32.ftz", 4, True),
    11: ElementType("tf32", 4, True),
    12: ElementType("tf32.ftz", 4, True),
}
TENSOR_FLOAT = (11, 12)
# bytes, by CUtensorMapInterleave and CUtensorMapSwizzle
SLICES = {0: 0, 1: 16, 2: 32}
SPANS = {0: 0, 1: 32, 2: 64, 3: 128}
# every 16 bits of an element outside the tensor, by CUtensorMapFloatOOBfill
FILLS = {0: 0, 1: 0x7FF7}


class InvalidTensorMap(Exception):
    """128 bytes that are not a tensor map; the text is the reason."""


class BoxPlaces(NamedTuple):
    """The units of a box, dimension 0 fastest. ``global_offsets`` are bytes from the map's address, ``shared_offsets``
    bytes from the tile's begin before the swizzle; ``inside`` selects the units in the tensor, None if all are. Arrays
    are shared with other calls: do not change them. ``unit``: bytes per unit, at most 16; every offset is a multiple.
    """

    global_offsets: Array
    shared_offsets: Array
    inside: Array | None
    unit: int


@dataclass(frozen=True)
class TensorMap:
    """The fields of a tensor map, with the numbers of cuTensorMapEncodeTiled. ``strides`` are those of dimensions 1 and
    up, in bytes. A map may break the rules, since tensormap.replace changes one field at a time. ``beyond``: the ends
    of ``rows``, which are beyond the rank, if tensormap.replace has changed them: a higher rank makes them count."""

    data_type: int
    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    promotion: int = 0
    fill: int = 0
    beyond: tuple[tuple[int, ...], ...] = field(default=(), kw_only=True)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def element(self) -> ElementType:
        return ELEMENT_TYPES[self.data_type]

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements of a box along each dimension: those that the element strides reach. An interleaved box is one
        slice: its size along the last dimension but one is not used."""
        counts = [-(-box // step) for box, step in zip(self.box, self._steps, strict=True)]
        if self.interleave:
            counts[-2] = 1
        return tuple(counts)

    @property
    def inner_bytes(self) -> int:
        """Bytes between two elements along dimension 0: in an interleaved layout, a whole slice of channels is one."""
        return SLICES[self.interleave] or self.element.size

    @property
    def _steps(self) -> tuple[int, ...]:
        # the hardware has no stride along dimension 0 between elements, only between slices
        return self.element_strides if self.interleave else (1, *self.element_strides[1:])

    @property
    def box_bytes(self) -> int:
        """Bytes that a copy of a box counts on its mbarrier, whether or not they are in the tensor."""
        return math.prod(self.counts) * self.inner_bytes

    @property
    def row_pitch(self) -> int:
        """Bytes between rows of a tile in shared memory: a row narrower than the swizzle's span occupies the span,
        except in an interleaved layout."""
        row = self.counts[0] * self.inner_bytes
        return row if self.interleave else max(row, SPANS[self.swizzle])

    @property
    def tile_bytes(self) -> int:
        """Bytes from the begin of a tile in shared memory to its end."""
        rows = math.prod(self.counts[1:])
        return (rows - 1) * self.row_pitch + self.counts[0] * self.inner_bytes

    def __str__(self) -> str:
        def by(numbers: tuple[int, ...]) -> str:
            return "x".join(map(str, numbers))

        name = ELEMENT_TYPES[self.data_type].name if self.data_type in ELEMENT_TYPES else f"type {self.data_type}"
        words = [f"{name} {by(self.dims)}", *([f"strides {by(self.strides)}"] if self.strides else [])]
        words.append(f"box {by(self.box)}")
        words += [f"element strides {by(self.element_strides)}"] if any(s != 1 for s in self.element_strides) else []
        words += [f"interleave {SLICES.get(self.interleave, self.interleave)}B"] if self.interleave else []
        words += [f"swizzle {SPANS.get(self.swizzle, self.swizzle)}B"] if self.swizzle else []
        words += ["NaN fill"] if self.fill else []
        return f"{', '.join(words)} at {self.address:#x}"

    # ---- all dimensions ----

    def rows(self) -> list[list[int]]:
        """Dimensions, strides, box and element strides, also beyond the rank. Raises ValueError for too high a rank."""
        if self.rank > _MOST:
            raise ValueError(f"a tensor map has at most {_MOST} dimensions, got {self.rank}")
        rows = (self.dims, self.strides, self.box, self.element_strides)
        ends = self.beyond or tuple(
            (value,) * (most - len(row)) for row, (most, value) in zip(rows, _ROWS, strict=True)
        )
        return [[*row, *end] for row, end in zip(rows, ends, strict=True)]

    def with_rows(self, rows: list[list[int]], rank: int) -> TensorMap:
        """A map of a rank with other ``rows``."""
        counts = (rank, rank - 1, rank, rank)
        dims, strides, box, steps = (tuple(row[:count]) for row, count in zip(rows, counts, strict=True))
        beyond = tuple(tuple(row[count:]) for row, count in zip(rows, counts, strict=True))
        if all(value == usual for end, (_, usual) in zip(beyond, _ROWS, strict=True) for value in end):
            beyond = ()
        return replace(self, dims=dims, strides=strides, box=box, element_strides=steps, beyond=beyond)

    # ---- bytes ----

    def encode(self) -> bytes:
        """The map's 128 bytes. Raises ValueError for a field that has no place in them."""
        rows = self.rows()
        high = sum(1 << place for place, size in enumerate(rows[0]) if size == 1 << 32)
        modes = (self.interleave, self.swizzle, self.promotion, self.fill)
        rows[0] = [0 if size == 1 << 32 else size for size in rows[0]]
        padded = [number for row in rows for number in row]
        try:
            fields = _FIELDS.pack(_MAGIC, _VERSION, self.data_type, self.rank, high, self.address, *modes, *padded)
        except struct.error as error:
            raise ValueError(f"{self} does not fit in a tensor map: {error}") from None
        fields = fields[:_PLAIN_BYTES] + fields[_PLAIN_BYTES:].translate(_INVERTED)
        return (fields + _CHECKSUM.pack(zlib.crc32(fields))).ljust(SIZE, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> TensorMap:
        """The map in 128 bytes. Raises InvalidTensorMap, which says why the bytes are not one."""
        if len(data) != SIZE:
            raise InvalidTensorMap(f"a tensor map has {SIZE} bytes, got {len(data)}")
        return _decoded(bytes(data))


@functools.lru_cache(maxsize=256)
def _decoded(data: bytes) -> TensorMap:
    magic, version, *numbers = _FIELDS.unpack(
        data[:_PLAIN_BYTES] + data[_PLAIN_BYTES : _FIELDS.size].translate(_INVERTED)
    )
    if magic != _MAGIC:
        what = "all are zero" if not any(data) else f"they begin with {data[:8].hex(' ')}"
        raise InvalidTensorMap(f"the {SIZE} bytes are not a tensor map ({what}): pass one that the driver encoded")
    (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
    if version != _VERSION or checksum != zlib.crc32(data[: _FIELDS.size]) or any(data[_FIELDS.size + 4 :]):
        raise InvalidTensorMap(
            f"the {SIZE} bytes were a tensor map, but were changed by something else than tensormap.replace"
        )
    data_type, rank, high, address, interleave, swizzle, promotion, fill, *values = numbers
    rest = iter(values)
    rows = [[next(rest) for _ in range(most)] for most, _ in _ROWS]
    rows[0] = [1 << 32 if high >> place & 1 else size for place, size in enumerate(rows[0])]
    bare = TensorMap(data_type, address, (), (), (), (), interleave, swizzle, promotion, fill)
    return bare.with_rows(rows, rank)


# ---- places ----


class _Pattern(NamedTuple):
    """The places of a box whose first element is at coordinates 0, and its units' distances along each dimension (bytes
    along dimension 0, elements along the others), shaped for broadcasting."""

    global_offsets: Array
    shared_offsets: Array
    along: tuple[Array, ...]


@functools.lru_cache(maxsize=256)
def _pattern(
    counts: tuple[int, ...], steps: tuple[int, ...], strides: tuple[int, ...], inner: int, pitch: int, unit: int
) -> _Pattern:
    """The pattern of a box of ``counts`` elements of ``inner`` bytes, in units of ``unit`` bytes.
    ``steps``: the elements between two of the box; ``pitch``: bytes between rows in shared memory."""
    first = np.arange(0, counts[0] * inner, unit, dtype=np.int64)
    rank = len(counts)
    along = [(first + first // inner * inner * (steps[0] - 1)).reshape((1,) * (rank - 1) + (-1,))]
    within = along[0]
    for dimension in range(1, rank):
        shape = [1] * rank
        shape[rank - 1 - dimension] = -1
        elements = (np.arange(counts[dimension], dtype=np.int64) * steps[dimension]).reshape(shape)
        along.append(elements)
        within = within + elements * strides[dimension - 1]
    rows = np.arange(math.prod(counts[1:]), dtype=np.int64)
    shared = rows[:, None] * pitch + first
    made = _Pattern(within.reshape(-1), shared.reshape(-1), tuple(along))
    for array in (made.global_offsets, made.shared_offsets, *along):
        array.flags.writeable = False
    return made


def box_places(tensor: TensorMap, coordinates: tuple[int, ...]) -> BoxPlaces:
    """The places of the box that begins at ``coordinates``, one per dimension, which may be outside the tensor."""
    inner, counts, steps = tensor.inner_bytes, tensor.counts, tensor._steps
    begin, end, row = coordinates[0] * inner, tensor.dims[0] * inner, counts[0] * inner
    within = all(
        at >= 0 and at + (count - 1) * step < extent
        for at, count, step, extent in zip(coordinates, counts, steps, tensor.dims, strict=True)
    )
    # the largest unit that no edge of the tensor cuts and that divides all offsets
    unit = math.gcd(16, begin, row, 16 if within else end)
    pattern = _pattern(counts, steps, tensor.strides, inner, tensor.row_pitch, unit)
    origin = begin + sum(at * stride for at, stride in zip(coordinates[1:], tensor.strides, strict=True))
    inside = None if within else _inside(tensor, pattern, begin, end, coordinates)
    return BoxPlaces(pattern.global_offsets + origin, pattern.shared_offsets, inside, unit)


def _inside(tensor: TensorMap, pattern: _Pattern, begin: int, end: int, coordinates: tuple[int, ...]) -> Array:
    first, *others = pattern.along
    found: Any = (first >= -begin) & (first < end - begin)
    for at, size, elements in zip(coordinates[1:], tensor.dims[1:], others, strict=True):
        found = found & ((elements >= -at) & (elements < size - at))
    inside: Array = found.reshape(-1)
    return inside


def swizzled(offsets: Array, base: int, swizzle: int) -> Array:
    """Offsets in a tile at the address ``base`` of shared memory after the swizzle, which exchanges the 16-byte chunks
    of an address: bits 4 and up change with bits 7 and up, one bit for 32B, two for 64B and three for 128B."""
    span = SPANS[swizzle]
    if not span:
        return offsets
    addresses = offsets + base
    changed: Array = (addresses ^ ((addresses >> 7) & (span // 16 - 1)) << 4) - base
    return changed


# ---- values ----


def fill_of(tensor: TensorMap) -> int:
    """The 16 bits that repeat in elements outside the tensor."""
    return FILLS[tensor.fill]


def loaded(tensor: TensorMap, values: Array) -> Array:
    """The bytes that a load stores for bytes of the tensor (uint8, whole elements): tf32 is rounded to nearest even,
    all other types are copied."""
    if tensor.data_type not in TENSOR_FLOAT:
        return values
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    made: Array = np.where(nan, np.uint32(0x7FFFE000), rounded).astype(np.uint32).view(values.dtype)
    return made.reshape(values.shape)
