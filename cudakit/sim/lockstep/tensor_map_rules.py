"""The rules that the fields of a tensor map must obey, as cuTensorMapEncodeTiled checks them on sm_90."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from cudakit.sim.lockstep.tensor_maps import ELEMENT_TYPES, SLICES, SPANS, ElementType, TensorMap

MOST_DIMENSIONS = 5
_MOST_EXTENT, _MOST_STRIDE, _MOST_BOX, _MOST_STEP = 1 << 32, 1 << 40, 256, 8
_ADDRESSES = 1 << 57
# bytes of a box: the shared memory of an SM, of which a block can have all but 1 KB
_MOST_BYTES = 228 << 10
_PROMOTIONS = range(4)
_INTERLEAVED_RANK = 3


class Mistake(NamedTuple):
    """A broken rule. ``argument``: the parameter of cuTensorMapEncodeTiled; ``dimension``: the index in it, None for
    the whole argument; ``text``: what was passed, and the rule."""

    argument: str
    dimension: int | None
    text: str

    def __str__(self) -> str:
        where = "" if self.dimension is None else f"[{self.dimension}]"
        return f"{self.argument}{where} {self.text}"


def mistakes(tensor: TensorMap) -> Iterator[Mistake]:
    """The rules that a map breaks. Rules that need a valid field are left out if the field is not valid."""
    kind = ELEMENT_TYPES.get(tensor.data_type)
    interleave, swizzle = SLICES.get(tensor.interleave), SPANS.get(tensor.swizzle)
    if kind is None:
        what = "is a packed type of later architectures" if tensor.data_type in (13, 14, 15) else "is not a type"
        yield Mistake("tensorDataType", None, f"{what}, got {tensor.data_type}: sm_90 has 0 to 12")
    if interleave is None:
        yield Mistake("interleave", None, f"must be NONE, 16B or 32B (0 to 2), got {tensor.interleave}")
    if swizzle is None:
        yield Mistake("swizzle", None, f"must be NONE, 32B, 64B or 128B (0 to 3) on sm_90, got {tensor.swizzle}")
    if tensor.promotion not in _PROMOTIONS:
        yield Mistake("l2Promotion", None, f"must be NONE, 64B, 128B or 256B (0 to 3), got {tensor.promotion}")
    if tensor.fill not in (0, 1):
        yield Mistake("oobFill", None, f"must be zeros or NaN (0 or 1), got {tensor.fill}")
    elif tensor.fill and kind is not None and not kind.floating:
        yield Mistake("oobFill", None, f"must be zeros for {kind.name}: NaN is for types of floating point only")
    if not 1 <= tensor.rank <= MOST_DIMENSIONS:
        yield Mistake("tensorRank", None, f"must be 1 to {MOST_DIMENSIONS}, got {tensor.rank}")
        return
    if interleave and tensor.rank < _INTERLEAVED_RANK:
        yield Mistake("tensorRank", None, f"must be 3 to 5 for an interleaved layout, got {tensor.rank}")
    yield from _places(tensor, 32 if interleave == 32 else 16)
    yield from _boxes(tensor)
    if kind is not None and all(size in range(1, _MOST_BOX + 1) for size in tensor.box):
        yield from _sizes(tensor, kind, 0 if interleave else swizzle or 0)


def _places(tensor: TensorMap, unit: int) -> Iterator[Mistake]:
    why = " with an interleave of 32B" if unit == 32 else ""
    if tensor.address % unit:
        yield Mistake("globalAddress", None, f"must be a multiple of {unit}{why}, got {tensor.address:#x}")
    if tensor.address >= _ADDRESSES:
        yield Mistake("globalAddress", None, f"must be below 2^57, got {tensor.address:#x}")
    for dimension, size in enumerate(tensor.dims):
        if not 1 <= size <= _MOST_EXTENT:
            yield Mistake("globalDim", dimension, f"must be 1 to 2^32 elements, got {size}")
    for dimension, stride in enumerate(tensor.strides):
        if stride % unit or not 0 <= stride < _MOST_STRIDE:
            rule = f"must be a multiple of {unit} bytes below 2^40{why}"
            yield Mistake("globalStrides", dimension, f"{rule}, got {stride}")


def _boxes(tensor: TensorMap) -> Iterator[Mistake]:
    for dimension, size in enumerate(tensor.box):
        if not 1 <= size <= _MOST_BOX:
            yield Mistake("boxDim", dimension, f"must be 1 to {_MOST_BOX} elements, got {size}")
    for dimension, step in enumerate(tensor.element_strides):
        if not 1 <= step <= _MOST_STEP:
            yield Mistake("elementStrides", dimension, f"must be 1 to {_MOST_STEP}, got {step}")


def _sizes(tensor: TensorMap, kind: ElementType, swizzle: int) -> Iterator[Mistake]:
    """The rules for the bytes of a box. ``swizzle``: the span that bounds a row, 0 if none does."""
    row = tensor.box[0] * kind.size
    what = f"is {tensor.box[0]} elements of {kind.size} bytes, {row} bytes"
    if row % 16:
        yield Mistake("boxDim", 0, f"{what}: they must be a multiple of 16")
    elif swizzle and row > swizzle:
        yield Mistake("boxDim", 0, f"{what}: a row must not exceed the span of a {swizzle}B swizzle")
    steps = tensor.element_strides
    if all(step in range(1, _MOST_STEP + 1) for step in steps):
        # The driver rounds down here, and divides by dimension 0's element stride too, which copies ignore.
        counts = [size // step for size, step in zip(tensor.box, steps, strict=True)]
        size = math.prod(counts) * kind.size
        if size > _MOST_BYTES:
            what = f"has {' x '.join(map(str, counts))} elements of {kind.size} bytes, {size} bytes"
            yield Mistake("boxDim", None, f"{what}: they must not exceed {_MOST_BYTES}, the shared memory of an SM")
