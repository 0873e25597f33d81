"""`strided`: the declaration that a kernel takes the strides of an array, so that a raw launch passes its address."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cudakit.memory.array import DeviceArray


class StridedArgument:
    """An array for a kernel that has its strides among its parameters. array: the array that is passed."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    def __repr__(self) -> str:
        array = self.array
        return f"strided({array.summary if isinstance(array, DeviceArray) else repr(array)})"


def strided(array: Any) -> StridedArgument:
    """`array` as a kernel argument that may have any strides: the kernel takes them as parameters of its own.

        copy_rows.launch(stream, grid, block, args=(cudakit.strided(x.T), y, *x.T.strides_elements))

    A pointer parameter is passed the address of the first element only, so a launch refuses an array whose elements are
    not in C order without gaps (`x[::2]`, `x.T`, a broadcast or reversed view), unless it is declared so. array: any
    array that a launch takes; all other checks of the launch apply. Taken by launch, prepare, updates of graphs and
    captured functions.
    """
    return array if isinstance(array, StridedArgument) else StridedArgument(array)


def declared(arguments: Iterable[Any]) -> tuple[Any, ...]:
    """The arguments of a kernel that takes the strides of its arrays: those that are not contiguous are declared."""
    return tuple(
        strided(value) if isinstance(value, DeviceArray) and not value.is_contiguous else value for value in arguments
    )


def unwrapped(argument: Any) -> Any:
    """The array of a declared argument; any other argument itself."""
    return argument.array if type(argument) is StridedArgument else argument
