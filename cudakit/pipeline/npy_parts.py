"""The division of an array into `.npy` objects of equal numbers of items, and the index that describes it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cudakit.pipeline.file_sinks import npy_header_bytes
from cudakit.pipeline.files import HostArray, as_bytes
from cudakit.pipeline.refusals import ContentsRefused
from cudakit.pipeline.sources import Item

INDEX = "index.json"
_FORMAT = "npy parts 1"


def is_key(name: str) -> bool:
    """Whether an object of this name is a part."""
    return re.fullmatch(r"part-\d{9,}\.npy", name) is not None


@dataclass(frozen=True)
class NpyParts:
    """Parts `part-000000000.npy`, `part-000000001.npy` and so on, each with `unit` items; the last may have fewer.

    count: number of all items; None if it is not known yet.
    """

    item: Item
    count_: int | None
    unit: int

    @property
    def count(self) -> int:
        """Number of all items; 0 if it is not known yet."""
        return self.count_ or 0

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The contents of the index."""
        return self.counted(self.count)

    def counted(self, count: int) -> dict[str, Any]:
        """Return the contents of the index for another number of items."""
        shape = [count, *self.item.shape]
        return {
            "format": _FORMAT, "shape": shape, "dtype": str(self.item.dtype), "items": self.unit, "offset": self.offset,
        }  # fmt: skip

    @cached_property
    def offset(self) -> int:
        """Bytes before the items of a part."""
        return len(npy_header_bytes(self.unit, self.item))

    def key(self, number: int) -> str:
        """Return the key of a part."""
        return f"part-{number:09}.npy"

    def sizes(self, start: int, stop: int) -> Iterator[tuple[str, int | None]]:
        """Yield the keys of the parts that have the items start..stop, each with its bytes."""
        for number in range(start // self.unit, -(-stop // self.unit)):
            end = (number + 1) * self.unit
            items = (min(end, stop) if self.count_ is None else min(end, self.count_)) - number * self.unit
            yield self.key(number), self.offset + items * self.item.nbytes

    def encode(self, start: int, items: HostArray) -> dict[str, Any]:
        """Return the bytes of each part by its key. start: the number of the first item, a multiple of `unit`."""
        if start % self.unit:
            raise ValueError(f"results must start at a multiple of {self.unit:,} items, got item {start:,}")
        parts = (items[at : at + self.unit] for at in range(0, len(items), self.unit))
        return {
            self.key(start // self.unit + number): npy_header_bytes(len(part), self.item) + as_bytes(part)
            for number, part in enumerate(parts)
        }

    @classmethod
    def parsed(cls, text: bytes, where: object) -> NpyParts:
        """Return the division that an index describes. Raises ContentsRefused if it is not one."""
        try:
            index = json.loads(text)
            if index["format"] != _FORMAT:
                raise ValueError(f"its format is {index['format']!r}, not {_FORMAT!r}")
            count, *extents = map(int, index["shape"])
            parts = cls(Item.of(tuple(extents), index["dtype"]), count, int(index["items"]))
            if count < 0 or parts.unit < 1 or parts.offset != index["offset"]:
                raise ValueError("its numbers do not fit each other")
        except (ValueError, KeyError, TypeError) as error:
            raise ContentsRefused(
                f"{where} is not the index of .npy parts that ToFSSpec wrote, or is damaged: {error}"
            ) from error
        return parts
