"""Work of pipelines that copies its items, and fails on request."""

from __future__ import annotations

from collections.abc import Callable
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
