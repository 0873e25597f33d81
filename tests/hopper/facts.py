"""Experiments on a device whose results are printed: what documentation leaves open about Hopper's instructions."""

from __future__ import annotations

from collections.abc import Iterator

import cudakit

from . import facts_copies, facts_mbarrier, facts_wgmma
from .runner import Runner, short

_PARTS = (*facts_mbarrier.PARTS, *facts_copies.PARTS, *facts_wgmma.PARTS)


def lines(runner: Runner) -> Iterator[str]:
    """Run all experiments and yield their results as text; a fault ends only its own."""

    def work(start: int) -> Iterator[tuple[int, list[str]]]:
        for number in range(start, len(_PARTS)):
            found: list[str] = []
            try:
                for line in _PARTS[number](runner):
                    found.append(line)
            except cudakit.CudakitError as error:
                yield number, [*found, f"    {short(error)}"]
                return
            yield number, found

    for _, found in runner.resumed(len(_PARTS), work, lambda text: [text]):
        yield from found
