"""The interface of sinks, which store a pipeline's results, and the checks they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cudakit.driver.context import Context
from cudakit.pipeline.files import HostArray
from cudakit.pipeline.origin import RunOrigin
from cudakit.pipeline.ranges import Range
from cudakit.pipeline.sources import Item


@dataclass(frozen=True)
class SinkSpec:
    """The results that a sink is opened for.

    Attributes:
        item: Shape and dtype of one result.
        count: Number of results; None if unknown.
        origin: The sources.
        resume: Keep the results that an earlier run finished.
        overwrite: Discard the results of an earlier run.
    """

    item: Item
    count: int | None
    origin: RunOrigin
    resume: bool = False
    overwrite: bool = False

    def label(self, number: int) -> str:
        """Return the name of an item.

        Args:
            number: The number of the item.
        """
        return self.origin.label(number)

    def job(self) -> dict[str, Any]:
        """Return the values that must be the same in a resumed run, as JSON. Reads the first items of the sources."""
        return {"item": str(self.item), "count": self.count, "sources": self.origin.identity}


class Sink:
    """Stores results; the base class of sinks. Each range of items is written once, from any thread.

    Attributes:
        ordered: Whether ranges must be written in order and one at a time.
        forgets: The reason why a run into it cannot be resumed; "" if it can.
    """

    ordered = False
    forgets = ""
    #: The place of a stopped run's finished results, in words.
    where = ""

    def open(self, spec: SinkSpec) -> list[Range]:
        """Prepare for results.

        Args:
            spec: The results to expect.

        Returns:
            The ranges that are already finished, merged.
        """
        return []

    def item(self) -> Item | None:
        """Return the shape and dtype that a result must have; None for any."""
        return None

    def write(self, start: int, stop: int, items: HostArray) -> None:
        """Store a range of items. They are finished when this returns.

        Args:
            start, stop: The first item, and the item after the last.
            items: The results, a contiguous array.
        """
        raise NotImplementedError

    def pinned(self, context: Context, start: int, stop: int) -> HostArray | None:
        """Return the place of a range of items if it is pinned memory, to which copies are direct; else None.

        Args:
            context: The device's context.
            start, stop: The first item, and the item after the last.
        """
        return None

    def finish(self, count: int) -> None:
        """Finish the output after all items are written.

        Args:
            count: Number of items.
        """

    def close(self) -> None:
        """Close open files; finished results stay. Idempotent."""


def expect_same_item(mine: Item, asked: Item, what: str) -> None:
    if mine != asked:
        raise ValueError(f"{what} has items of {mine}, but the results are {asked}")


def expect_room(stop: int, there: int, where: str) -> None:
    if stop > there:
        raise ValueError(f"item {stop - 1:,} is past the end of {where}, which has room for {there:,} items")


def expect_full(count: int, there: int, where: str) -> None:
    if count != there:
        raise ValueError(f"{where} has room for {there:,} items, got {count:,}: the rest is unchanged")
