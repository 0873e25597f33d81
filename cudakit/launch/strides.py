"""`strided`: declares that a kernel takes the strides of an array, so that a launch may pass its address alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cudakit.memory.array import DeviceArray
from cudakit.memory.tensor_map import TensorMap


class StridedArgument:
    """An array for a kernel that takes its strides as parameters. array: the array that is passed."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    def __repr__(self) -> str:
        array = self.array
        return f"strided({array.summary if isinstance(array, DeviceArray) else repr(array)})"


def strided(array: Any) -> StridedArgument:
    """Declare that a kernel takes the strides of an array as parameters, so that the array may have any strides.

    A pointer parameter receives only the address of the first element, so a launch rejects an array that is not
    C-contiguous (`x[::2]`, `x.T`, a broadcast or reversed view) unless it is declared so. launch, prepare, updates of
    graphs and captured functions take declared arrays; all other checks still apply.

    Args:
        array: Any array that a launch takes.

    Returns:
        The kernel argument.

    Example:

        copy_rows.launch(stream, grid, block, args=(cudakit.strided(x.T), y, *x.T.strides_elements))
    """
    return array if isinstance(array, StridedArgument) else StridedArgument(array)


def declared(arguments: Iterable[Any]) -> tuple[Any, ...]:
    """Return the arguments with each device array that is not contiguous declared strided."""
    return tuple(
        strided(value) if isinstance(value, DeviceArray) and not value.is_contiguous else value for value in arguments
    )


def unwrapped(argument: Any) -> Any:
    """Return the array of a declared argument or of a tensor map; any other argument unchanged."""
    return argument.array if type(argument) in (StridedArgument, TensorMap) else argument
