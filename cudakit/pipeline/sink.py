"""The interface of a sink, which takes a pipeline's results, and the checks that every sink makes."""

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
    """The results that a sink is opened for. item: one of them. count: how many there will be; None if unknown. resume:
    keep what an earlier run finished. overwrite: discard it. origin: the sources."""

    item: Item
    count: int | None
    origin: RunOrigin
    resume: bool = False
    overwrite: bool = False

    def label(self, number: int) -> str:
        """The name of an item."""
        return self.origin.label(number)

    def job(self) -> dict[str, Any]:
        """What must be the same for a run that goes on with this one's results, as JSON. It reads the first items."""
        return {"item": str(self.item), "count": self.count, "sources": self.origin.identity}


class Sink:
    """Takes results, a range of items at a time, each range once, from any thread."""

    #: Ranges come in order and one at a time.
    ordered = False
    #: Why a run into it cannot be resumed; "" where it can.
    forgets = ""
    #: Where the finished results of a stopped run lie, in words.
    where = ""

    def open(self, spec: SinkSpec) -> list[Range]:
        """Get ready. Returns the ranges that are finished already, merged."""
        return []

    def item(self) -> Item | None:
        """What it says a result is; None where it takes any."""
        return None

    def write(self, start: int, stop: int, items: HostArray) -> None:
        """Keep items start..stop, contiguous. They are finished when this returns."""
        raise NotImplementedError

    def pinned(self, context: Context, start: int, stop: int) -> HostArray | None:
        """Where those items are to lie, if that is pinned memory which the device can copy to by itself."""
        return None

    def finish(self, count: int) -> None:
        """All `count` items are written."""

    def close(self) -> None:
        """Let go of what is open; what is finished stays. Idempotent."""


def expect_same_item(mine: Item, asked: Item, what: str) -> None:
    if mine != asked:
        raise ValueError(f"{what} holds items of {mine}, and the results are {asked}")


def expect_room(stop: int, there: int, where: str) -> None:
    if stop > there:
        raise ValueError(f"item {stop - 1:,} is past the end of {where}, which holds {there:,} items")


def expect_full(count: int, there: int, where: str) -> None:
    if count != there:
        raise ValueError(f"{count:,} items came, and {where} holds {there:,}: the rest is as it was")
