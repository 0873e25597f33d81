"""Strided: an array's shape, strides and dtype, and the properties that follow from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cudakit.memory import layout
from cudakit.memory.layout import Shape


class Strided:
    """The layout of an array.

    Attributes:
        shape: Extents, in elements.
        strides: In bytes, as in numpy.
        dtype: numpy's.
        is_contiguous: Whether the elements are in C order without gaps; computed once, because each launch reads it.
    """

    __slots__ = ("dtype", "is_contiguous", "shape", "strides")

    def __init__(self, shape: Shape, strides: Shape, dtype: np.dtype[Any], *, contiguous: bool | None = None) -> None:
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.is_contiguous = layout.is_contiguous(shape, strides, dtype.itemsize) if contiguous is None else contiguous

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() needs an array with at least one dimension, got shape ()")
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without the gaps between them."""
        return self.size * self.dtype.itemsize

    @property
    def strides_elements(self) -> Shape:
        """The strides in elements, as kernels take them. Raises ValueError if they are not whole elements."""
        itemsize = self.dtype.itemsize
        if any(stride % itemsize for stride in self.strides):
            raise ValueError(
                f"strides {self.strides} are not multiples of the element size, {itemsize}; copy() the array first"
            )
        return tuple(stride // itemsize for stride in self.strides)
