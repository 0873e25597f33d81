"""Checks of a family's arrays: their dtypes and shapes, and outputs that overlap themselves or an input.

Each check raises ValueError. `what`, the name of the operation, starts the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cudakit.memory import array as memory
from cudakit.memory import layout

Named = Sequence[tuple[str, Any]]  # arrays and their names in messages

# Messages of expect_output. output: the array; extents: its shape, such as 8x9; name: the input's name.
_TWICE = (
    "{what} needs an output whose elements do not overlap, but shape {output.shape} with strides "
    "{output.strides} (bytes) may store two elements at one address: pass another output"
)
_PARTLY = (
    "{what}: {name} and the output overlap or are interleaved without being the same array: pass {name} itself as the "
    "output to work in place, or a separate output"
)
_SHARED = "the output of {what} overlaps {name}, which other blocks still read: pass a separate output"


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
    """Raise ValueError for an output that may store two elements at one address, or that overlaps an input.

    An input that is broadcast to the output's shape and is in the output's memory is an error too: its elements would
    be overwritten before they are read for other elements.

    Args:
        what: The name of the operation, for messages.
        output: The output.
        inputs: Arrays, with their names, that may be the output itself, each element at its own address.
        separate: Arrays, with their names, that must not share memory with the output.
        twice: The message for an output that may store two elements at one address.
        partly: The message for an input that overlaps a part of the output.
        shared: The message for an array of `separate` that shares memory with the output.

    Raises:
        ValueError: If the output is not usable.
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
    """Raise ValueError if the output does not have the input's shape."""
    if tuple(x.shape) != tuple(output.shape):
        raise ValueError(f"{what} needs an output of the input's shape {tuple(x.shape)}, got {tuple(output.shape)}")


def expect_float32(what: str, arrays: Named) -> None:
    """Raise ValueError for arrays that are not float32."""
    for name, array in arrays:
        if array.dtype != np.float32:
            raise ValueError(f"{what} takes float32, {name} is {array.dtype}")


def expect_float32_in_and_out(what: str, x: Any, output: Any) -> None:
    """Raise ValueError if the input or the output is not float32."""
    if x.dtype != np.float32 or output.dtype != np.float32:
        raise ValueError(f"{what} takes float32 in and out, got {x.dtype} in and {output.dtype} out")


def expect_one_shape(what: str, arrays: Named) -> None:
    """Raise ValueError if an array does not have the first array's shape."""
    (first, one), *others = arrays
    for name, array in others:
        if tuple(array.shape) != tuple(one.shape):
            raise ValueError(
                f"{what} takes arrays of one shape, {first} is {tuple(one.shape)}, {name} is {tuple(array.shape)}"
            )


def same_places(one: Any, other: Any) -> bool:
    """Return whether two arrays have one shape and each element at the same address."""
    if tuple(one.shape) != tuple(other.shape) or one.itemsize != other.itemsize or one.pointer != other.pointer:
        return False
    steps = zip(one.shape, one.strides, other.strides, strict=True)
    return all(extent == 1 or a == b for extent, a, b in steps)
