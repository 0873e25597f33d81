"""What families refuse: dtypes and shapes that they do not take, outputs that overlap themselves or an input.

Each check raises ValueError. `what` names the operation at the beginning of the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cudakit.memory import array as memory
from cudakit.memory import layout

Named = Sequence[tuple[str, Any]]  # arrays and their names in messages

# The texts of expect_output. output: the array; extents: its shape as in 8x9; name: the input's.
_TWICE = (
    "{what} writes to an output whose elements are apart, and one of shape {output.shape} with strides "
    "{output.strides} (bytes) may name one place twice: give another output"
)
_PARTLY = (
    "{what}: {name} and the output overlap or lie interleaved without being the same array: give {name} itself as the "
    "output to work in place, or a separate output"
)
_SHARED = "the output of {what} overlaps {name}, which other blocks still read: give an output of its own"


def expect_output(
    what: str,
    output: Any,
    inputs: Named = (),
    separate: Named = (),
    *,
    twice: str = _TWICE,
    partly: str = _PARTLY,
    shared: str = _SHARED,
) -> None:
    """Refuse an output that may name one place twice, or that overlaps an input.

    inputs: may be the output itself, each element at the place of its own. One that is repeated (broadcast) to the
    output's shape and lies in the output is refused too: its places would be written while they are still to be read
    for others. separate: may share no memory with the output. twice, partly, shared: the texts for an output that names
    a place twice, one that an input overlaps in part, one that shares memory with an array that must be separate.
    """
    if layout.overlaps_itself(output.shape, output.strides, output.itemsize):
        extents = "x".join(map(str, output.shape))
        raise ValueError(twice.format(what=what, output=output, extents=extents))
    for name, array in inputs:
        if memory.touch(array, output) and not same_places(array, output):
            raise ValueError(partly.format(what=what, name=name))
    for name, array in separate:
        if array.size and output.size and memory.touch(array, output):
            raise ValueError(shared.format(what=what, name=name))


def expect_shape_of(what: str, x: Any, output: Any) -> None:
    """Refuse an output of another shape than the input's."""
    if tuple(x.shape) != tuple(output.shape):
        raise ValueError(f"{what} writes an output of the input's shape {tuple(x.shape)}, got {tuple(output.shape)}")


def expect_float32(what: str, arrays: Named) -> None:
    """Refuse other dtypes."""
    for name, array in arrays:
        if array.dtype != np.float32:
            raise ValueError(f"{what} takes float32, {name} is {array.dtype}")


def expect_float32_in_and_out(what: str, x: Any, output: Any) -> None:
    """Refuse other dtypes of an input and the output."""
    if x.dtype != np.float32 or output.dtype != np.float32:
        raise ValueError(f"{what} takes float32 in and out, got {x.dtype} in and {output.dtype} out")


def expect_one_shape(what: str, arrays: Named) -> None:
    """Refuse arrays of another shape than the first one's."""
    (first, one), *others = arrays
    for name, array in others:
        if tuple(array.shape) != tuple(one.shape):
            raise ValueError(
                f"{what} takes arrays of one shape, {first} is {tuple(one.shape)}, {name} is {tuple(array.shape)}"
            )


def same_places(one: Any, other: Any) -> bool:
    """Whether two arrays have one shape and each element at the same place."""
    if tuple(one.shape) != tuple(other.shape) or one.itemsize != other.itemsize or one.pointer != other.pointer:
        return False
    steps = zip(one.shape, one.strides, other.strides, strict=True)
    return all(extent == 1 or a == b for extent, a, b in steps)
