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
        chunk: Items per chunk of the run, if requested; or the length of a generator's first block. None if the run
            chooses it.
        stored: Items that the sources store together; 1 if they do not.
    """

    item: Item
    count: int | None
    origin: RunOrigin
    resume: bool = False
    overwrite: bool = False
    chunk: int | None = None
    stored: int = 1

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

    A run on a cluster (`run(..., on=client)`) opens the sink in the client's process only, which holds the output's
    lock and its record. A worker gets a `portion`: a sink of its own for one share of the items, which it writes to a
    temporary place. The client's process then moves these results into place (`adopt`) and records them, or removes
    them (`discard`).

    Attributes:
        ordered: Whether ranges must be written in order and one at a time.
        forgets: The reason why a run into it cannot be resumed; "" if it can.
        unit: Each range that is written starts at a multiple of this, and ends at one or at the last item: the items of
            a stored chunk. It may be known only after `open`.
        private: The reason why workers of a cluster cannot write to it; "" if they can.
        promise: For a store in which `adopt` cannot move results into place: the weaker promise, in words.
    """

    ordered = False
    forgets = ""
    unit = 1
    private = "its class has no portion(), which a worker would write to"
    promise = ""
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

    def portion(self, attempt: str) -> Sink:
        """Return a sink for another process that writes some of this open sink's items to a temporary place. It can be
        pickled. Its `write` gets the numbers that the items have in the whole run; its `open` and `close` are called
        there, and its `finish` after the last item, when the data must be on disk.

        Args:
            attempt: The name of the temporary place, unique in the run: letters, digits and hyphens.
        """
        raise NotImplementedError

    def adopt(self, attempt: str, start: int, stop: int) -> None:
        """Move the items that a finished portion wrote into place, then record them as finished. Called in one thread.

        Args:
            attempt: The portion's name.
            start, stop: The first item, and the item after the last.
        """
        raise NotImplementedError

    def discard(self, attempt: str) -> None:
        """Remove the temporary place of a portion that was not adopted, finished or not, if it exists.

        Args:
            attempt: The portion's name.
        """

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
