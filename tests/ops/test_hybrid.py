"""The fused hybrid filter of examples/hybrid: any sizes, batches and functors, against numpy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import programs
import pytest
from paths import ROOT

import cudakit
from cudakit.compare import compare
from cudakit.errors import Refused
from cudakit.measure.timing import Spread

EXAMPLE = programs.example("hybrid_filter")
# batch, rows, columns: powers of two, odd, prime, one row, one column, more rows than columns, more passes
SHAPES = [(1, 64, 64), (3, 60, 45), (1, 15, 25), (2, 7, 2), (1, 1, 48), (2, 48, 1), (1, 13, 11), (1, 270, 54)]


def images_of(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).random(shape, dtype=np.float32)


def check(found: np.ndarray[Any, Any], host: np.ndarray[Any, Any]) -> bool:
    exact, plain = (
        EXAMPLE.results(EXAMPLE.by_numpy(*host.shape[1:], dtype, "fused"), host)["rows_back"]
        for dtype in (np.float64, np.float32)
    )
    return compare(found, exact, plain, max(host.shape[1:])).ok


def filtered(sim: cudakit.Device, host: np.ndarray[Any, Any], **options: Any) -> np.ndarray[Any, Any]:
    out = sim.full(host.shape, np.nan, np.float32)
    EXAMPLE.Fused(sim, sim.default_stream, *host.shape, **options).run(sim.array(host), out)
    found: np.ndarray[Any, Any] = out.numpy()
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_three_launches_equal_numpy(sim: cudakit.Device, shape: tuple[int, ...]) -> None:
    host = images_of(*shape)
    assert check(filtered(sim, host), host)


def test_a_batch_larger_than_the_memory_of_spectra_runs_in_parts(sim: cudakit.Device) -> None:
    host = images_of(5, 24, 30)
    work, out = EXAMPLE.Fused(sim, sim.default_stream, 2, 24, 30), sim.full(host.shape, np.nan, np.float32)
    work.run(sim.array(host), out)
    assert check(out.numpy(), host)


@pytest.mark.parametrize(("value", "expected"), [(0.5, 0.5), (np.float32(0.3), 0.3), (0.29, 0)])
@pytest.mark.parametrize("shape", [(2, 20, 24), (2, 15, 9)])
def test_an_image_of_one_value(sim: cudakit.Device, value: float, expected: float, shape: tuple[int, ...]) -> None:
    """It passes the low-pass unchanged. A value equal to the threshold stays; less becomes 0."""
    found = filtered(sim, np.full(shape, value, np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=0)


MISTAKES = {
    "frequency 0 of the columns in the middle": ("row < 0.5f * P::N ? row : row - P::N", "row - 0.5f * P::N"),
    "negative frequencies from (n - 1) / 2": ("row < 0.5f * P::N ?", "row < 0.5f * (P::N - 1) ?"),
    "pairs of pixels left as complex numbers": (
        "return float2{before(x.x), before(x.y)};",
        "return float2{x.x, 0.0f};",
    ),
    "the inverse transform is a forward one": ("= swapped(filter(v, u) * z)", "= filter(v, u) * z"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found(sim: cudakit.Device, name: str) -> None:
    right, wrong = MISTAKES[name]
    fused = (ROOT / "kernels" / "hybrid" / "fused.cu").read_text(encoding="utf-8").replace("../fft/", "fft/")
    assert right in fused
    host = images_of(2, 45, 24)
    assert check(filtered(sim, host, source=fused), host)
    assert not check(filtered(sim, host, source=fused.replace(right, wrong)), host)


OWN = """
#include "hybrid/fused.cu"

struct All {
    __device__ float operator()(float x) const { return x; }
};

// e^(-2 pi i (v down + u right)): moves the image
struct Moved {
    float down, right;
    __device__ float2 operator()(float v, float u) const {
        float2 z;
        sincospif(-2.0f * (v * down + u * right), &z.y, &z.x);
        return z;
    }
};
"""


def test_a_filter_of_your_own(sim: cudakit.Device) -> None:
    """A complex gain that moves the image, and all pixels kept."""
    host = images_of(2, 30, 24)
    own = {"before": ("All", b"\0"), "gain": ("Moved", np.array([3, -5], np.float32)), "source": OWN}
    np.testing.assert_allclose(filtered(sim, host, **own), np.roll(host, (3, -5), (1, 2)), rtol=0, atol=1e-5)


def test_an_unsupported_size_is_refused(sim: cudakit.Device) -> None:
    for rows, cols in ((34, 16), (16, 34)):
        with pytest.raises(Refused, match=re.escape(f"does not support images of {rows}x{cols}: ") + ".*17"):
            EXAMPLE.Fused(sim, sim.default_stream, 1, rows, cols)


class Timer:
    """Calls each launch and returns 1 ms for a version's first row, 2 ms for the second, and so on."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.calls = 0

    def time(self, launches: Any) -> Spread:
        for launch in launches:
            launch()
        self.calls += 1
        return Spread(float(self.calls), 0.0, 0.0, 1)

    def back_to_back(self, launch: Any) -> float:
        launch()
        return 1.0


def test_each_row_is_compared_with_cufft(sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EXAMPLE, "GpuTimer", Timer)
    with sim.stream() as stream:
        batch = EXAMPLE.Batch(sim, stream, images_of(1, 12, 20))
        for name in ("cufft", "fused"):
            batch.add(name)
        batch.time()
    rows = {(row.subject.variant, row.subject.mode): row for row in batch.rows}
    for (name, mode), row in rows.items():
        assert row.ok is True, row
        ceiling = rows.get(("cufft_graph" if name.endswith("_graph") else "cufft", mode))
        of_ceiling = None if ceiling is None else ceiling.times.device.median / row.times.device.median
        assert row.rates.of_ceiling == of_ceiling
        assert (row.times.back_to_back is None) == bool(mode)
        assert (row.times.end_to_end is None) == bool(mode or name.endswith("_graph"))
    assert len(rows) == 7 + 5
