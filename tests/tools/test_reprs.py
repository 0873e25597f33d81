"""Reprs of objects other than arrays: one line in a terminal, tables and annotated source in a notebook."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import cudakit
from cudakit import reports
from cudakit.evaluation import TuningReport
from cudakit.families.vector_add import FAMILY
from cudakit.launch.counted import LaunchCounters
from cudakit.measure.rows import BenchReport
from cudakit.show import inline
from cudakit.tuning.run import Settings

SOURCE = """\
// every seventh <element>
__global__ void stride(float* x, int n) {
    int i = threadIdx.x * 7;
    if (i < n) x[i] += 1;
}
"""


def parsed(html: str) -> str:
    """Return the text of an HTML fragment, which must be well formed."""
    return "".join(ElementTree.fromstring(f"<div>{html}</div>").itertext())


@pytest.fixture(scope="module")
def bench() -> BenchReport:
    with cudakit.Device("sim", fresh=True) as device:
        return cudakit.bench(FAMILY, device, shapes=[(1000,)])


def counted(sim: cudakit.Device) -> LaunchCounters:
    kernel = sim.compile(source=SOURCE, name="<cell 1>")["stride"]
    x = sim.zeros(100)
    with sim.counters() as counters:
        kernel.launch(sim.default_stream, 1, 64, args=(x, 100))
    return counters


def test_objects_have_reprs_of_one_short_line(sim: cudakit.Device) -> None:
    module = sim.compile(source=SOURCE, name="short.cu")
    with sim.stream() as stream:
        for thing in (sim, stream, module, module["stride"], module.compiled, sim.event(), sim.context):
            assert re.fullmatch(r"\w+\(.{1,100}\)", repr(thing)), repr(thing)
    sim.close()
    assert repr(sim) == "Device('sim:sm_90a', closed)"


def test_a_bench_report_is_a_line_and_a_table(bench: BenchReport) -> None:
    assert repr(bench) == f"Report(vector_add on Simulated H200 (sm_90a): {len(bench.rows)} correct)"
    text = parsed(bench._repr_html_())
    assert "vector_add" in text
    for row in bench.rows:
        assert row.subject.variant in text
    assert "no clock" in text or "counts" in text.lower()


def test_a_row_is_one_line(bench: BenchReport) -> None:
    row = bench.rows[-1]
    assert repr(row) == f"Row(vector_add/{row.subject.variant} 1000 float32: correct)"
    row.fail("element 3 is 0, expected 1")
    try:
        assert repr(row).endswith(": wrong: element 3 is 0, expected 1)")
    finally:
        row.verdict.ok, row.verdict.why = True, None


def test_a_tuning_report_without_searches_has_a_repr() -> None:
    report = TuningReport({"name": "a device"}, Settings())
    assert repr(report) == "TuningReport(a device: 0 searches, 0 with a best)"
    parsed(report._repr_html_())


def test_counters_are_a_line_and_the_annotated_source(sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = counted(sim)
    assert re.fullmatch(r"stride: Counters\(launches=1, blocks=1, threads=64, .*\)", repr(counters))
    assert "<pre>" in counters._repr_html_()
    monkeypatch.setattr(LaunchCounters, "render", lambda shown: inline.counters(shown, shown.sources))
    text = parsed(counters._repr_html_())
    for line in SOURCE.splitlines():
        assert line in text
    assert "uncoalesced load" in text
    assert "<element>" not in counters._repr_html_()
    assert repr(LaunchCounters()) == "LaunchCounters(no kernel has run)"


def test_a_long_file_is_cut_to_the_lines_that_were_counted(sim: cudakit.Device) -> None:
    source = "\n" * 300 + SOURCE + "\n" * 300
    kernel = sim.compile(source=source, name="long.cu")["stride"]
    x = sim.zeros(100)
    with sim.counters() as counters:
        kernel.launch(sim.default_stream, 1, 64, args=(x, 100))
    shown = inline.counters(counters, counters.sources)
    assert "int i = threadIdx.x * 7;" in parsed(shown)
    assert shown.count("<tr>") < 30


def test_a_finding_and_its_report_are_one_line(sim: cudakit.Device) -> None:
    kernel = sim.compile(source=SOURCE.replace("i < n", "i <= n"), name="<b>.cu")["stride"]
    kernel.launch(sim.default_stream, 1, 64, args=(sim.array(np.zeros(98, np.float32)), 98))
    with pytest.raises(cudakit.DeviceFault) as caught:
        sim.synchronize()
    assert re.fullmatch(r"KernelReport\(out-of-bounds access: .*, <b>\.cu:4\)", repr(caught.value.report))
    finding = reports.of_error(caught.value)[0]
    assert re.fullmatch(r"Report\(out-of-bounds access: .* at <b>\.cu:4\)", repr(finding))
    assert "<b>.cu:4" in parsed(finding._repr_html_())
