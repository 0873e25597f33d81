"""What write-ups get wrong and no other test holds, and docs/traps.md, which names the tests of all of them."""

from __future__ import annotations

import importlib.util
import json
import re

import numpy as np
import pytest
from paths import ROOT

import cudakit
from cudakit.commands import streamed
from cudakit.measure.ceilings import fp32_peak
from cudakit.measure.rows import Row, Subject

TRAPS = (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")


def test_every_trap_names_tests_that_are_there() -> None:
    sections = re.split(r"^### ", TRAPS, flags=re.MULTILINE)[1:]
    assert len(sections) > 30
    for section in sections:
        title, _, text = section.partition("\n")
        if title == '"Online softmax reads once instead of twice"':  # its bytes are counted in the section before
            continue
        files = [ROOT / "docs" / name for name in re.findall(r"\]\((\.\./tests/\w+/test_\w+\.py)\)", text)]
        names = re.findall(r"`(test_\w+)`", text)
        assert files, f"{title}: no test"
        assert names, f"{title}: no test"
        sources = [file.read_text(encoding="utf-8") for file in files]
        for name in names:
            assert any(f"def {name}(" in source for source in sources), f"{title}: there is no {name}"


def test_a_check_that_saw_nothing_is_no_pass() -> None:
    """The loop over a size that overflowed runs zero times, finds no error and prints PASS."""
    work = streamed.Workload("sums", print, 1, (4,), lambda x: x[0].astype(np.float64), lambda x: x[0])
    items = streamed.Items.make(work, 6, 2)
    (source,) = items.made(6)
    blocks = np.empty((6, 4), np.float32)
    source.read(0, 6, blocks)
    for seen, right in ((6, True), (5, False), (0, False)):
        row = Row(Subject("sums", "checked", 1, (6, 4), "float32"))
        judge = streamed.Judge(items, row, full=True)
        if seen:
            judge(0, seen, blocks[:seen])
        judge.finish(6)
        assert row.ok is right
        assert right or f"{seen} of 6 items came out" in str(row.verdict.why)


def test_the_peak_is_taken_at_the_highest_clock(sim: cudakit.Device) -> None:
    """'Above peak thanks to tensor cores' is a peak at the base clock: of ours no float32 product is above."""
    assert fp32_peak(sim) == pytest.approx(132 * 128 * 2 * 1.98e9 / 1e12)
    report = json.loads((ROOT / "profiles" / "h200" / "gemm.json").read_text(encoding="utf-8"))
    measured = [row["tflops"] for row in report["rows"] if row["tflops"]]
    assert 0.5 < max(measured) / report["ceilings"]["fp32_tflops"] < 1


def test_a_filter_centred_on_the_middle_is_found(sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "examples" / "hybrid_filter.py"
    spec = importlib.util.spec_from_file_location("hybrid_filter", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    right = (ROOT / "kernels" / "hybrid" / "filter.cu").read_text(encoding="utf-8")
    centred = right.replace("i < (n + 1) / 2 ? i : i - n", "i - n / 2")
    assert centred != right
    compile_ = cudakit.Device.compile
    for source, ok in ((right, True), (centred, False)):
        monkeypatch.setattr(
            cudakit.Device, "compile", lambda self, _, source=source: compile_(self, source=source, name="filter.cu")
        )
        (row,) = [
            row for row in example.measure(sim, sim.default_stream, 32).rows if row.subject.variant == "all stages"
        ]
        assert row.ok is ok
        assert ok or "frequency 0 is not where it should be" in str(row.verdict.why)
