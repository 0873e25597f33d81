"""The columns of a Parquet file that results are written to. pyarrow is imported when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cudakit.pipeline.files import HostArray
from cudakit.pipeline.parquet import KINDS
from cudakit.pipeline.sources import Item


@dataclass(frozen=True)
class Columns:
    """The columns for items: one of whole items, or one per entry of an item's first axis.

    names: none to choose them by the item. whole: whether one column has whole items.
    """

    names: tuple[str, ...]
    whole: bool

    @classmethod
    def of(cls, given: str | Sequence[str] | None) -> Columns:
        """Return the columns of an argument. Raises ValueError if there is no name, or two are equal."""
        names = (given,) if isinstance(given, str) else tuple(given or ())
        if (given is not None and not names) or len(set(names)) < len(names):
            raise ValueError(f"columns must have at least 1 name, and all must differ, got {list(names)}")
        return cls(names, isinstance(given, str))

    @property
    def selection(self) -> str | list[str]:
        """The columns, as an argument of `FromParquet`."""
        return self.names[0] if self.whole else list(self.names)

    def fitting(self, item: Item) -> Columns:
        """Return the columns for an item, with their names. Raises ValueError if it does not fit them."""
        shape, columns = item.shape, self
        if not self.names:
            many = len(shape) == 1 and shape[0] != 1
            names = [f"data{number}" for number in range(shape[0])] if many else ["data"]
            columns = replace(self, names=tuple(names), whole=len(shape) != 1)
        count = len(columns.names)
        fits = columns.whole or shape[:1] == (count,) or (not shape and count == 1)
        if not fits or item.dtype.kind not in KINDS or 0 in shape:
            one = " To write whole items to one column, pass its name as a string" if count == 1 else ""
            raise ValueError(
                f"the items of {count} Parquet columns must be integers or real numbers of shape ({count}, ...)"
                f"{' or ()' if count == 1 else ''} without empty axes, got {item}.{one}"
            )
        return columns

    def _entry(self, item: Item) -> tuple[int, ...]:
        """The shape of what one column has of an item."""
        return item.shape if self.whole else item.shape[1:]

    def schema(self, item: Item) -> Any:
        """Return the pyarrow schema: numbers, or lists of a fixed size for each axis of an entry."""
        import pyarrow

        kind = pyarrow.from_numpy_dtype(item.dtype)
        for extent in reversed(self._entry(item)):
            kind = pyarrow.list_(kind, extent)
        return pyarrow.schema([(name, kind) for name in self.names])

    def table(self, items: HostArray, item: Item) -> Any:
        """Return items as a pyarrow table."""
        import pyarrow

        parts = items.reshape(len(items), len(self.names), *self._entry(item))
        arrays = []
        for place in range(len(self.names)):
            values: Any = pyarrow.array(np.ascontiguousarray(parts[:, place]).reshape(-1))
            for extent in reversed(self._entry(item)):
                values = pyarrow.FixedSizeListArray.from_arrays(values, extent)
            arrays.append(values)
        return pyarrow.Table.from_arrays(arrays, schema=self.schema(item))
