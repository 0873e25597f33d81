"""Ptychography's iteration (examples/reconstruction.py): it converges, and wrong updates do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import programs
import pytest
from paths import ROOT

import cudakit

SIDE, SIZE, STEP, ITERATIONS = 5, 12, 3, 40
BOUND = 0.02  # of the error after ITERATIONS; it is 0.58 at the start

KERNELS = {name: (ROOT / f"kernels/ptychography/{name}.cu").read_text() for name in ("overlapping", "fused")}
# Wrong updates: the file, the text, the text instead.
WRONG = {
    "the probe is not conjugated": ("overlapping", "sum.x += p.x * real + p.y * imaginary;\n"
        "        sum.y += p.x * imaginary - p.y * real;",
        "sum.x += p.x * real - p.y * imaginary;\n        sum.y += p.x * imaginary + p.y * real;"),
    "the last patch overwrites the others": ("overlapping", "sum.x += p.x * real + p.y * imaginary;\n"
        "        sum.y += p.x * imaginary - p.y * real;",
        "sum.x = p.x * real + p.y * imaginary;\n        sum.y = p.x * imaginary - p.y * real;"),
    "the sum is not divided by the weight": ("overlapping", "weight += p.x * p.x + p.y * p.y;", "weight = 1.0f;"),
    "patches of another position": ("overlapping", "right = x - corners[2 * j + 1]", "right = x - corners[2 * j]"),
    "the phase is lost": ("fused", "make_float2(f * z.x, f * z.y)", "make_float2(m, 0.0f)"),
    "the amplitude is kept": ("fused", "const float f = m / r;", "const float f = scale;"),
}  # fmt: skip


@pytest.fixture(scope="module")
def example() -> Any:
    return programs.example("reconstruction")


@pytest.fixture(scope="module")
def scan(example: Any) -> Any:
    return example.make(SIDE, SIZE, STEP)


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """A function that replaces a text of a kernel's file for the rest of the test."""
    compile_ = cudakit.Device.compile

    def change(file: str, old: str, new: str) -> None:
        assert KERNELS[file].count(old) == 1
        sources = KERNELS | {file: KERNELS[file].replace(old, new)}

        def compiled(self: cudakit.Device, path: str) -> Any:
            name = path.removeprefix("ptychography/").removesuffix(".cu")
            return compile_(self, source=sources[name], name=f"{name}.cu")

        monkeypatch.setattr(cudakit.Device, "compile", compiled)

    return change


def last_error(example: Any, scan: Any, device: cudakit.Device, *, momentum: bool = True) -> float:
    work = example.Reconstruction(device, device.default_stream, scan, momentum)
    for _ in range(ITERATIONS):
        work.iterate()
    error: float = scan.error(work.object.numpy())
    return error


def comparisons(example: Any, scan: Any, device: cudakit.Device) -> list[Any]:
    """The comparisons of the first and the third iteration with numpy's."""
    work = example.Reconstruction(device, device.default_stream, scan)
    first = work.check()
    work.iterate()
    return [*first, *work.check()]


def test_each_iteration_is_numpys(example: Any, scan: Any, sim: cudakit.Device) -> None:
    assert [verdict.why for verdict in comparisons(example, scan, sim)] == [""] * 4


def test_a_wrong_extrapolation_is_found(example: Any, scan: Any, sim: cudakit.Device, changed: Any) -> None:
    changed("overlapping", "next.y + momentum * (next.y - before.y)", "next.y")
    assert [verdict.ok for verdict in comparisons(example, scan, sim)] == [True, True, True, False]


def test_the_object_is_found(example: Any, scan: Any, sim: cudakit.Device) -> None:
    assert scan.error(np.ones_like(scan.truth)) > 0.5
    assert last_error(example, scan, sim) < BOUND


def test_momentum_helps_and_is_not_needed(example: Any, scan: Any, sim: cudakit.Device) -> None:
    plain = example.Reconstruction(sim, sim.default_stream, scan, momentum=False).errors(ITERATIONS)
    assert all(after < before for before, after in itertools.pairwise(plain))
    assert last_error(example, scan, sim) < plain[-1] / 2 < 0.05


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_update_misses_the_bound(
    example: Any, scan: Any, sim: cudakit.Device, changed: Any, wrong: str
) -> None:
    changed(*WRONG[wrong])
    with np.errstate(all="ignore"):
        assert not last_error(example, scan, sim) < 5 * BOUND
        assert not all(verdict.ok for verdict in comparisons(example, scan, sim))


def test_the_error_does_not_depend_on_the_global_phase(scan: Any) -> None:
    for angle in (0.0, 1.0, 3.0):
        assert scan.error(scan.truth * np.complex64(np.exp(1j * angle))) < 1e-6
    assert scan.error(scan.truth.conj()) > 0.1
    other = scan.truth * 1.01
    assert scan.error(other) == pytest.approx(0.01, rel=1e-4)
    assert scan.error(other * np.complex64(1j)) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.gpu
def test_each_run_gives_the_same_bits(example: Any, scan: Any, gpu: cudakit.Device) -> None:
    """No two threads add to one element, so the order of the sums does not depend on the order of the blocks."""
    work = example.Reconstruction(gpu, gpu.default_stream, scan)
    found = []
    for _ in range(2):
        work.restart()
        for _ in range(3):
            work.iterate()
        found.append(work.object.numpy())
    np.testing.assert_array_equal(found[0], found[1])


def test_each_tile_lists_the_patches_that_overlap_it(example: Any) -> None:
    corners = np.random.default_rng(1).integers(0, 90, (40, 2)).astype(np.int32)
    size, shape = 11, (101, 101)
    first, listed = example.tiles(corners, size, shape)
    width, height = example.TILE
    places = [(y, x) for y in range(0, shape[0], height) for x in range(0, shape[1], width)]
    assert len(first) == len(places) + 1
    for number, (y, x) in enumerate(places):
        covered = [
            j for j, (row, col) in enumerate(corners)
            if y - size < row < y + height and x - size < col < x + width
        ]  # fmt: skip
        assert listed[first[number] : first[number + 1]].tolist() == covered
