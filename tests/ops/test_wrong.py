"""Kernels and pipelines that must be rejected: each has a mistake that some check does not detect."""

from __future__ import annotations

import importlib
import re
import runpy
from dataclasses import dataclass

import numpy as np
import pytest
from paths import TESTS

import cudakit
from cudakit import ops, pipeline
from cudakit.families.softmax import FAMILY
from cudakit.families.softmax_problem import RowProblem
from cudakit.family import Launch, Variant
from cudakit.sim import DEFAULT_CHECKS
from cudakit.testing import Case, Layout, run_case

WRONG = TESTS / "wrong"
blur = importlib.import_module("cudakit.families.blur")  # the package exports the function of that name


@dataclass(frozen=True)
class Fixed:
    """Fill an array with standard normal numbers; put one value into the first row."""

    first: float | None = None

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        values = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
        if self.first is not None:
            values[0, 0] = self.first
        return values


def variant(name: str, block: int = 96) -> Variant[RowProblem]:
    return Variant(
        name, lambda problem: Launch(problem.rows, block), str(WRONG / f"{name}.cu"), "wrong on purpose", "wrong"
    )


def case(first: float | None = None) -> Case:
    shape, strides = (5, 333), (333, 1)
    return Case((Layout(shape, strides),), Fixed(first), Layout(shape, strides))


@pytest.mark.parametrize(
    ("name", "first", "why"),
    [
        ("nan_writer", None, r"element \(0, 0\) is nan"),
        ("writes_nothing", None, r"element \(0, 0\) is nan"),
        ("missing_barrier", None, r"element \(\d, \d+\) is"),
        ("power_of_two_tree", None, r"element \(\d, \d+\) is"),
        ("unguarded_online", -np.inf, r"element \(0, 0\) is nan"),
        ("largest_magnitude", -1000.0, r"element \(0, 1\) is nan"),
    ],
)
def test_rejected_by_the_comparison(device: cudakit.Device, name: str, first: float | None, why: str) -> None:
    if device.kind == "sim":
        # races have their own test below; here the comparison must find the wrong results
        device = cudakit.Device("sim", checks=DEFAULT_CHECKS - {"race"})
    verdict = run_case(device, FAMILY, variant(name), case(first))
    assert not verdict.ok
    assert re.search(why, verdict.why), verdict.why


def test_a_write_beside_the_output_is_found(device: cudakit.Device) -> None:
    if device.kind == "gpu":
        assert "wrote outside its output" in run_case(device, FAMILY, variant("off_by_one"), case()).why
        return
    lost = cudakit.Device("sim", checks=DEFAULT_CHECKS - {"race"})  # its rows overlap, which would be a race
    with pytest.raises(cudakit.DeviceFault, match="0 bytes past the end of the array of 6660 bytes") as caught:
        run_case(lost, FAMILY, variant("off_by_one"), case())
    assert "y[c * y_col] = expf" in caught.value.report.text
    assert caught.value.report.parameter == "parameter 1 (`y`)"


def test_missing_barrier_is_named_by_line(sim: cudakit.Device) -> None:
    with pytest.raises(cudakit.DeviceFault, match="data race") as caught:
        run_case(sim, FAMILY, variant("missing_barrier"), case())
    lines = (WRONG / "missing_barrier.cu").read_text().splitlines()
    for access in ("total = sum;", "static_cast<volatile float*>(&total)"):
        number = next(n for n, text in enumerate(lines, 1) if access in text)
        assert f"missing_barrier.cu:{number}\n" in str(caught.value)


def test_the_harness_accepts_a_right_kernel_on_the_same_cases(device: cudakit.Device) -> None:
    for first in (None, -np.inf, -1000.0):
        assert run_case(device, FAMILY, FAMILY["tree_reduce"], case(first)).ok


@pytest.mark.parametrize(
    ("name", "line"), [("off_by_one", "y[c * y_col] ="), ("reads_past_the_end", "maximum = fmaxf")]
)
def test_one_element_past_an_allocation_is_named_by_line(sim: cudakit.Device, name: str, line: str) -> None:
    path = WRONG / f"{name}.cu"
    x = sim.array(np.ones((3, 100), np.float32))
    y = sim.empty((3, 100), np.float32)
    kernel = sim.compile(str(path))["wrong"]
    kernel.launch(sim.default_stream, grid=3, block=32, args=(x, y, 100, 1, 100, 1, 3, 100))
    with pytest.raises(cudakit.DeviceFault) as caught:
        sim.synchronize()
    text = str(caught.value)
    number = next(n for n, t in enumerate(path.read_text().splitlines(), 1) if line in t)
    assert f"off_by_one.cu:{number}" in text or f"reads_past_the_end.cu:{number}" in text, text
    assert line in text
    assert "1200 bytes" in text
    assert "wrong" in text


# Pipelines ------------------------------------------------------------------------------------------------------------

IMAGES = np.random.default_rng(0).standard_normal((12, 9, 16)).astype(np.float32)


def wrong_pipeline(name: str, device: cudakit.Device) -> np.ndarray:
    path = WRONG / "pipelines" / f"{name}.py"
    space = runpy.run_path(str(path))
    return space["run"](device, IMAGES, 3)


@pytest.mark.filterwarnings("ignore::cudakit.UnseenFault")  # the mistake occurs more than once and is reported once
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("refilled_buffer", r"source changed in flight.*pinned memory"),
        ("shared_buffer", r"race"),
        ("shared_plan", r"race"),
    ],
)
def test_a_pipeline_that_breaks_the_order_of_streams_is_reported(sim: cudakit.Device, name: str, why: str) -> None:
    with pytest.raises(cudakit.CudakitError, match=re.compile(why, re.DOTALL)) as caught:
        wrong_pipeline(name, sim)
    assert f"{name}.py:" in str(caught.value), "the line of the pipeline is named"


@pytest.mark.parametrize("name", ["wrong_label", "read_in_flight"])
def test_a_pipeline_that_takes_a_result_too_early_has_wrong_results(sim: cudakit.Device, name: str) -> None:
    results = wrong_pipeline(name, sim)
    assert not blur.FAMILY.judge(results, [IMAGES]).ok


def test_the_same_images_come_out_right_of_a_pipeline(sim: cudakit.Device) -> None:
    results = np.empty_like(IMAGES)

    def work(chunk: pipeline.Chunk, x: cudakit.DeviceArray, out: cudakit.DeviceArray) -> None:
        ops.blur(x, out=out, stream=chunk.stream)

    pipeline.run(work, IMAGES, results, devices=sim, chunk=3, streams=2)
    assert blur.FAMILY.judge(results, [IMAGES]).ok


def test_a_case_says_where_its_output_is() -> None:
    place = Layout((3, 4), (4, 1))
    assert "output=in place" in repr(Case((place,), Fixed(), None))
    assert "output=over input 1" in repr(Case((place, place), Fixed(), None, over=1))
    assert f"output={place}" in repr(Case((place,), Fixed(), place))
