"""examples/ptychography.py at several sizes: every repetition of the patches is checked."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import programs
import pytest

import cudakit
from cudakit.errors import Refused


@pytest.fixture(scope="module")
def example() -> Any:
    return programs.example("ptychography")


def arguments(sizes: list[int], elements: int) -> argparse.Namespace:
    return argparse.Namespace(sweep=True, sizes=sizes, elements=elements)


def test_the_sweep_has_equal_batches_and_one_patch_of_each_size(
    example: Any, sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "DISTINCT", 64)  # the batches repeat their patches
    report = example.measure(sim, sim.default_stream, arguments([4, 8, 16], 256))
    shapes = [(16, 4, 4), (1, 4, 4), (4, 8, 8), (1, 8, 8), (1, 16, 16)]
    names = ["separate", "fused", "transforms"]
    assert [(row.subject.shape, row.subject.variant) for row in report.rows] == [(s, n) for s in shapes for n in names]
    assert all(row.ok for row in report.rows)
    with pytest.raises(Refused, match="pass at least 1024"):
        example.measure(sim, sim.default_stream, arguments([32], 512))


@pytest.mark.parametrize("wrong", [None, (0, 1, 2), (3, 0, 0), (6, 3, 3)])
def test_a_wrong_patch_of_any_repetition_is_found(example: Any, wrong: tuple[int, ...] | None) -> None:
    case = example.Case(7, 4, distinct=3)
    results = np.resize(case.exact.astype(np.complex64), case.shape)
    if wrong:
        results[wrong] += 1
    row = case.row("fused", 1, "")
    case.judge(row, results, case.check)
    assert row.ok is (wrong is None)
