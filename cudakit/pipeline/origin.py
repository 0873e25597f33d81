"""The sources of a run as its sinks see them: the items' names, and what recognises the sources later."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from cudakit.pipeline.refusals import ContentsRefused
from cudakit.pipeline.sources import Blocks, Source


class RunOrigin:
    """count: of items; None if unknown. It holds the sources and not the run: a sink may keep it longer."""

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
        """The name of an item: its source's, or its number."""
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
        """Raises ContentsRefused if the source of an item (None: of any) was changed after its result was written, in
        nanoseconds."""
        if number is None:
            times = [identity.get("modified") for identity in self.identity]
        else:
            times = [source.modified(number) for source in self._indexed]
        if any(time is not None and time > written for time in times):
            raise ContentsRefused(
                f"the source of {result} was changed after that result was written, so resume=True does not accept it: "
                "pass overwrite=True to make the results anew"
            )
