"""Work of pipelines that copies its items, and fails on request; what their journals record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cudakit import pipeline


def same(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
    out.copy_from(x, chunk.stream)


def stops_at(index: int) -> Callable[..., None]:
    def work(chunk: pipeline.Chunk, x: Any, out: Any) -> None:
        if chunk.index == index:
            raise RuntimeError("off")
        same(chunk, x, out)

    return work


def recorded(journal: Path) -> int:
    """Return the number of finished items in a journal: its first line is the job, the others are ranges."""
    lines = journal.read_text().split("\n")[1:-1] if journal.exists() else []
    return sum(int(stop) - int(start) for start, stop in map(str.split, lines))
