"""The sources of a run for its sinks: the items' names, and the identity of the sources for resumed runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from cudakit.pipeline.refusals import ContentsRefused
from cudakit.pipeline.sources import Blocks, Source


class RunOrigin:
    """The sources of a run. count: number of items; None if unknown.

    It has no reference to the run, because a sink may keep it longer than the run exists.
    """

    def __init__(self, sources: Sequence[Source | Blocks], count: int | None) -> None:
        self._sources, self._count = sources, count

    @property
    def named(self) -> bool:
        """Whether the items have names of their own."""
        return any(source.named for source in self._indexed)

    @property
    def _indexed(self) -> list[Source]:
        return [source for source in self._sources if isinstance(source, Source)]

    def label(self, number: int) -> str:
        """Return the name of an item: its name in a source, or its number."""
        for source in self._indexed:
            names = source.labels(number, number + 1)
            if names:
                return names[0]
        return str(number).zfill(len(str(max((self._count or 10**9) - 1, 0))))

    @cached_property
    def identity(self) -> list[dict[str, Any]]:
        """Source.identity of each source."""
        return [source.identity() for source in self._sources]

    def expect_older(self, number: int | None, result: Path, written: int) -> None:
        """Raise ContentsRefused if the source of an item was changed after its result was written.

        number: the item; None for all. written: time of writing, in nanoseconds.
        """
        if number is None:
            times = [identity.get("modified") for identity in self.identity]
        else:
            times = [source.modified(number) for source in self._indexed]
        if any(time is not None and time > written for time in times):
            raise ContentsRefused(
                f"the source of {result} was changed after that result was written, so resume=True cannot keep it: "
                "pass overwrite=True to compute the results again"
            )
