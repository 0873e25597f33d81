"""Common mistakes that no other test covers, and docs/traps.md, which names the tests of all of them."""

from __future__ import annotations

import json
import re

import numpy as np
import programs
import pytest
from paths import ROOT

import cudakit
from cudakit import ops
from cudakit.commands import streamed
from cudakit.compare import compare
from cudakit.families.softmax import FAMILY as SOFTMAX
from cudakit.measure.ceilings import fp32_peak
from cudakit.measure.rows import Row, Subject
from cudakit.measure.timing import Spread
from cudakit.pipeline.report import Link, PipelineReport

TRAPS = (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")


def test_every_trap_names_tests_that_are_there() -> None:
    sections = re.split(r"^### ", TRAPS, flags=re.MULTILINE)[1:]
    assert len(sections) > 30
    for section in sections:
        title, _, text = section.partition("\n")
        if title == '"Online softmax reads once instead of twice"':  # the section before it counts the bytes
            continue
        files = [ROOT / "docs" / name for name in re.findall(r"\]\((\.\./tests/\w+/test_\w+\.py)\)", text)]
        names = re.findall(r"`(test_\w+)`", text)
        assert files, f"{title}: no test"
        assert names, f"{title}: no test"
        sources = [file.read_text(encoding="utf-8") for file in files]
        for name in names:
            assert any(f"def {name}(" in source for source in sources), f"{title}: there is no {name}"


def test_a_check_that_saw_nothing_is_no_pass() -> None:
    """An unchecked loop over a size that overflowed runs zero times, finds no error and prints PASS."""
    work = streamed.Workload("sums", print, 1, (4,), lambda x: x[0].astype(np.float64), lambda x: x[0])
    items = streamed.Items.make(work, 6, 2)
    (source,) = items.made(6)
    blocks = np.empty((6, 4), np.float32)
    source.read(0, 6, blocks)
    for seen, right in ((6, True), (5, False), (0, False)):
        row = Row(Subject("sums", "checked", 1, (6, 4), "float32"))
        judge = streamed.Judge(items, row, full=True)
        if seen:
            judge.write(0, seen, blocks[:seen])
        judge.settle(6)
        assert row.ok is right
        assert right or f"{seen} of 6 items were returned" in str(row.verdict.why)


def test_the_worst_of_all_chunks_is_kept_and_the_hosts_time_is_carried_to_all_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = streamed.Workload("sums", print, 1, (4,), lambda x: x[0].astype(np.float64), lambda x: x[0])
    items = streamed.Items.make(work, 6, 2)
    (source,) = items.made(6)
    blocks = np.empty((6, 4), np.float32)
    source.read(0, 6, blocks)
    row = Row(Subject("sums", "checked", 1, (6, 4), "float32"))
    judge = streamed.Judge(items, row, full=True)
    for start, off in ((0, 0.0), (2, 0.5), (4, 0.0)):
        judge.write(start, start + 2, blocks[start : start + 2] + np.float32(off))
    assert row.verdict.max_abs_error == pytest.approx(0.5, rel=1e-5)
    assert row.verdict.max_rel_error == pytest.approx(0.5 / np.abs(blocks[2:4]).min(), rel=1e-4)
    monkeypatch.setattr(streamed, "wall_clock", lambda *_, **__: Spread(2.0, 1.0, 3.0, 5))
    cpu = streamed.cpu_row(items, (60, 4))
    assert cpu.times.device is not None
    assert cpu.times.device.median == pytest.approx(2.0 * 60 / items.longest)


def test_the_peak_is_taken_at_the_highest_clock(sim: cudakit.Device) -> None:
    """A result "above peak thanks to tensor cores" uses a peak at the base clock; no float32 product here exceeds the
    peak."""
    assert fp32_peak(sim) == pytest.approx(132 * 128 * 2 * 1.98e9 / 1e12)
    report = json.loads((ROOT / "profiles" / "h200" / "gemm.json").read_text(encoding="utf-8"))
    measured = [row["tflops"] for row in report["rows"] if row["tflops"]]
    assert 0.5 < max(measured) / report["ceilings"]["fp32_tflops"] < 1


def test_a_filter_centred_on_the_middle_is_found(sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    example = programs.example("hybrid_filter")
    right = (ROOT / "kernels" / "hybrid" / "filter.cu").read_text(encoding="utf-8")
    centred = right.replace("i < (n + 1) / 2 ? i : i - n", "i - n / 2")
    assert centred != right
    compile_ = cudakit.Device.compile
    for source, ok in ((right, True), (centred, False)):
        monkeypatch.setattr(
            cudakit.Device, "compile", lambda self, _, source=source: compile_(self, source=source, name="filter.cu")
        )
        with sim.stream() as stream:
            rows = example.measure(sim, stream, 32, versions=["cufft", "cufft_real"]).rows
        for name in ("cufft", "cufft_real"):
            (row,) = [row for row in rows if (row.subject.variant, row.subject.mode) == (name, "")]
            assert row.ok is ok
            assert ok or "frequency 0 is misplaced" in str(row.verdict.why)


def test_the_filter_keeps_what_is_equal_to_the_threshold(sim: cudakit.Device) -> None:
    """Values below 0.3 become 0, in the text and in `ops.threshold`; a value of 0.3 stays, and so does NaN."""
    example = programs.example("hybrid_filter")
    host = np.array([[0.0, 0.29, 0.3, 0.31], [-1.0, -0.3, np.nan, np.inf]], np.float32)
    expected = np.where(host < np.float32(example.CUT), 0, host)
    stages = example.cufft(sim, sim.default_stream, sim.array(host[None])).stages
    step, spectra = stages["threshold"]
    step()
    np.testing.assert_array_equal(spectra[0].numpy().real, expected)
    np.testing.assert_array_equal(ops.threshold(sim.array(host), example.CUT).numpy(), expected)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(example.by_numpy(*host.shape, np.float64)["threshold"](host).real, expected)


def test_an_amplitude_of_zero_has_a_phase(sim: cudakit.Device) -> None:
    """A position without light has amplitudes of 0; the constraint must not divide by them."""
    example = programs.example("ptychography")
    patches, probe, measured = example.make(2, 8)
    patches[1] = 0
    exact = example.update(patches.astype(np.complex128), probe.astype(np.complex128), measured.astype(np.float64))
    plain = example.update(patches, probe, measured).astype(np.complex64)
    assert np.isfinite(exact).all()
    work = example.Step(sim, sim.default_stream, patches, probe, measured)
    for way in (work.separate, work.fused):
        work.updated.fill(complex(np.nan, np.nan))
        way()
        verdict = compare(work.updated.numpy(), exact, plain)
        assert verdict.ok, verdict.why


@pytest.mark.parametrize(("cols", "block"), [(14_079, 512), (14_080, 512), (14_081, 1024), (40_000, 1024)])
def test_vectors_take_1024_threads_for_more_than_14080_columns(sim: cudakit.Device, cols: int, block: int) -> None:
    """The rule of the article series for its fourth step: N > 14,080."""
    x = sim.empty((2, cols))
    (launch,) = SOFTMAX["vec4"].launches(SOFTMAX.problem_of((x,), x))
    assert (launch.grid, launch.block) == (2, block)


def test_the_bound_is_the_slowest_stage_and_not_the_number_of_streams() -> None:
    """Four streams share one link and one compute engine: a run takes at least as long as its slowest stage."""
    seconds = {"read": 0.5, "link": 2.0, "compute": 5.0, "write": 1.0}
    report = PipelineReport(["gpu:0"], 4, 10, 100, 0, 0, seconds=8.0, bounds=seconds)
    assert report.bound is None, "without a measured link there is no bound"
    report.link = Link(1e9, 1e9, 1e9)
    assert (report.bound, report.bound_by, report.share) == (5.0, "compute", 5.0 / 8.0)
    assert (report.as_dict()["bound"], report.as_dict()["share"]) == (5.0, 0.625)
    # Two arrays in and one out, at equal speed: the input has twice the bytes.
    assert Link(10e9, 10e9, 10e9).seconds(20 * 10**9, 10 * 10**9) == 2.0
    assert Link(10e9, 5e9, 4e9).seconds(4 * 10**9, 9 * 10**9) == 1.0 + 1.0


STORE_ONES = """
#include "hopper.cuh"
__global__ void ones(const __grid_constant__ CUtensorMap y) {
    __shared__ alignas(128) float tile[4 * 32];
    for (int i = threadIdx.x; i < 4 * 32; i += blockDim.x) tile[i] = 1.0f;
    fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
        tensor_store(&y, 0, 0, tile);
        bulk_commit();
        bulk_wait<0>();
    }
}
"""


def test_a_tensor_store_writes_whole_chunks_at_the_end_of_a_row(sim: cudakit.Device) -> None:
    padded = sim.zeros((4, 36))
    stored = cudakit.TensorMap(padded[:, :30], box=(4, 32))  # 120 bytes per row: the last chunk ends at 128
    sim.compile(source=STORE_ONES)["ones"].launch(sim.default_stream, grid=1, block=32, args=(stored,))
    assert (padded.numpy() == [1] * 32 + [0] * 4).all()
