"""The host's cost of a user's call: the call that each row times, its measurement, and its display."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json

import numpy as np
import pytest

from cudakit import nvtx, ops
from cudakit.errors import LaunchError
from cudakit.measure.bench import Bench, Selection
from cudakit.measure.calls import BURSTS, CALLS, LEAD, take_calls
from cudakit.measure.case import BenchCase
from cudakit.measure.peers.peer import call_of_work
from cudakit.measure.rows import BenchReport
from cudakit.measure.timing import Burst, Spread, host_costs
from cudakit.memory import array as memory
from cudakit.show import marks, outputs, tables

FAMILIES = ops.families()


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_the_call_of_a_row_runs_that_variant_and_is_right(sim, name):
    """Each mode is tested; the NVTX range of the launch names the variant that ran."""
    family, ran = FAMILIES[name], 0
    with sim.stream() as stream:
        for mode in family.modes:
            case = BenchCase(sim, family, family.shapes["sim"][0], family.usual_dtypes[0], mode, stream, seed=1)
            for variant in family.variants:
                if variant.refusal(case.problem, sim.arch) is not None:
                    continue
                row = case.row(variant.name, case.family.rung(variant), variant.idea)
                call = family.call_of(variant, case.inputs, case.output, stream, **case.options)
                with nvtx.trace() as trace:
                    case.check(call, row)
                assert row.ok, (variant.name, mode, row.verdict.why)
                assert f"{name}.{variant.name}" in {span.name for span in trace.spans}
                ran += 1
    assert ran


def test_what_no_call_runs_has_none(sim):
    """A variant outside the ladder, and plain float32 softmax, which another family runs."""
    add, modes = FAMILIES["vector_add"], FAMILIES["softmax_modes"]
    x, y = sim.zeros((4, 8)), sim.zeros((4, 8))
    own = dataclasses.replace(add.variants[0], name="own")
    assert add.call_of(own, (x, x), y) is None
    assert modes.call_of(add.variants[0], (x, x), y) is None
    assert modes.call_of(modes.variants[0], (x,), y) is None
    assert modes.call_of(modes.variants[0], (x,), y, log=True) is not None


def test_sums_are_timed_by_the_functions_that_users_call(sim):
    x, y = sim.zeros((4, 8)), sim.zeros((4, 8))
    for name, function in (("vector_add", ops.add), ("matrix_add", ops.matrix_add)):
        family = FAMILIES[name]
        assert {family.call_of(variant, (x, x), y).func for variant in family} == {function}


def test_a_burst_counts_neither_its_lead_nor_its_context(monkeypatch):
    now = [0]
    monkeypatch.setattr("cudakit.measure.timing.time.perf_counter_ns", lambda: now[0])

    def call():
        now[0] += 2000

    @contextlib.contextmanager
    def within():
        now[0] += 10**9
        yield
        now[0] += 10**9

    assert Burst(call, count=7, lead=3, within=within).microseconds() == 2
    assert now[0] == 2 * 10**9 + 10 * 2000
    costs = host_costs({"a": Burst(call, 4), "b": call}, lambda: None, burst=2, bursts=3)
    assert (costs["a"].median, costs["b"].n) == (2, 3)


class Peer:
    """A peer whose call behaves as its name says."""

    idea, rung, arrays = "made up", None, "cupy"

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def on(self, stream):
        return contextlib.nullcontext()

    def call(self, arrays, stream):
        if self.name == "none":
            return None
        if self.name == "fails":
            raise OSError("its library is broken")
        return lambda: self.calls.append(self.name)


@pytest.mark.parametrize("name", FAMILIES)
def test_torchs_calls_do_the_familys_work(name):
    """Each mode is tested on CPU tensors, with two calls because a bench repeats calls."""
    torch = pytest.importorskip("torch")
    from cudakit.measure.peers import with_torch
    from cudakit.measure.peers.torch_attention import store

    family = FAMILIES[name]
    dtype = next(kind for kind in ("float32", "complex64", "float16") if kind in family.usual_dtypes)
    for options in family.modes.values():
        taken = family.read_shape(family.shapes["sim"][0])
        host = family.inputs_for(taken, memory.as_dtype(dtype), np.random.default_rng(1), **options)
        shape, result = family.outputs_like(host, **options)[0]
        if "bfloat16" in (host[0].dtype.name, result.name):  # numpy and torch cannot exchange bfloat16
            continue
        for peer in with_torch.peers(family, 0, options):
            if peer.refusal(taken, dtype) is not None:
                continue
            out = torch.from_numpy(np.full(shape, 7, result))
            call = call_of_work(peer.work, (*(torch.from_numpy(x.copy()) for x in host), out), options)
            for _ in range(2):
                returned = call()
                if name == "attention":
                    store(out, returned, torch.from_numpy(host[3]) if options.get("padded") else None)
                found = out
                verdict = family.judge(found.numpy(), host, **options)
                assert verdict.ok, (peer.name, options, verdict.why)
                out.fill_(7)


@pytest.fixture
def case(sim):
    with sim.stream() as stream:
        yield BenchCase(sim, FAMILIES["vector_add"], (256,), "float32", "", stream, seed=1)


def rows_for(case, things):
    rows = [(thing, case.row(thing.name, getattr(thing, "rung", 1), thing.idea)) for thing in things]
    for _, row in rows:
        row.verdict.ok = True
    return rows


def test_calls_take_turns_and_slow_ones_have_short_bursts(case, monkeypatch):
    calls = []
    monkeypatch.setattr(type(case.family), "call_of", lambda *_, **__: lambda: calls.append("ours"))
    ours = rows_for(case, case.family.variants[:1])
    quick, slow = theirs = rows_for(case, [Peer("quick", calls), Peer("slow", calls)])
    quick[1].timed(Spread.of([0.001]))
    slow[1].timed(Spread.of([400.0]))
    take_calls(case, ours, theirs)
    bursts = [(calls[i], i) for i in range(len(calls)) if i == 0 or calls[i] != calls[i - 1]]
    assert [name for name, _ in bursts] == ["ours", "quick", "slow"] * (BURSTS + 2)
    assert calls.count("ours") == calls.count("quick") == 1 + (BURSTS + 1) * (LEAD + CALLS)
    assert calls.count("slow") == 1 + (BURSTS + 1) * 2
    assert [row.as_dict()["call_us"]["arrays"] for _, row in (*ours, *theirs)] == ["cudakit", "cupy", "cupy"]
    assert all(row.times.call.n == BURSTS and row.times.call.median > 0 for _, row in (*ours, *theirs))


def test_a_peer_without_a_call_shows_a_dash(case, monkeypatch):
    monkeypatch.setattr("cudakit.measure.calls.CALLS", 2)
    ours = rows_for(case, case.family.variants[:1])
    theirs = rows_for(case, [Peer(name, []) for name in ("none", "fails", "peer:torch")])
    wrong = rows_for(case, [Peer("wrong", [])])
    wrong[0][1].fail("wrong result")
    take_calls(case, ours, [*theirs, *wrong])
    rows = [row for _, row in (*ours, *theirs, *wrong)]
    report = BenchReport({"name": "a GPU", "kind": "gpu", "arch": "sm_90a"}, rows=rows).as_dict()
    assert [row["call_us"] is None for row in report["rows"]] == [False, True, True, False, True]
    assert [row.ok for row in rows] == [True, True, True, True, False], "a peer whose call fails stays correct"
    headings, lines = tables.cells(report, report["rows"])
    texts = [line[headings.index("call, us")] for line in lines]
    assert texts[1] == texts[2] == texts[4] == "-"
    assert float(texts[3].replace(",", "")) > 0


def test_a_call_of_ours_that_fails_is_a_false_row(case, monkeypatch):
    def refuse():
        raise LaunchError("grid must be at least 1")

    monkeypatch.setattr(type(case.family), "call_of", lambda *_, **__: refuse)
    ((_, row),) = ours = rows_for(case, case.family.variants[:1])
    take_calls(case, ours, [])
    assert (row.ok, row.times.call) == (False, None)
    assert "grid must be at least 1" in row.verdict.why


def test_the_simulated_device_has_no_cost_of_a_call(sim):
    report = Bench(sim).run(FAMILIES["softmax"], [(4, 32)], Selection(["registers"])).as_dict()
    assert [row["call_us"] for row in report["rows"]] == [None, None]
    assert "call, us" not in tables.markdown(report)
    assert not Bench(sim, timer=lambda device, stream: None).times_calls, "with any clock"


def gpu_report(**calls):
    """Return a softmax report in the committed format, on a GPU. calls: the microseconds of each variant's call; if
    None, rows lack that key."""
    rows = []
    for number, (name, cost) in enumerate(calls.items()):
        row = {
            "family": "softmax", "variant": name.replace("peer_", "peer:"), "shape": [8, 16], "dtype": "float32",
            "rung": None if name.startswith("peer_") else number + 1, "mode": "", "ok": True, "skipped": None,
            "max_abs_error": 0.0, "time_ms": {"median": 0.5, "p10": 0.5, "p90": 0.5, "n": 3}, "end_to_end_ms": None,
            "gbps": 100.0 + number, "tflops": None, "of_ceiling": 0.5, "ceiling": "copy", "counters": None,
        }  # fmt: skip
        if cost is not None:
            row["call_us"] = {"median": cost, "p10": cost, "p90": cost, "n": 5, "arrays": "torch"}
        rows.append(row)
    return {
        "device": {"name": "a GPU", "kind": "gpu", "arch": "sm_90a"}, "date": "2026-01-02", "ceilings": {}, "rows": rows
    }  # fmt: skip


def table_of(text):
    """Return the first table of a Markdown text, as one dict per row."""
    cut = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [dict(zip(cut[0], line, strict=True)) for line in cut[2:]]


@pytest.mark.parametrize("write", [tables.markdown, tables.summary])
def test_the_tables_show_the_call_beside_the_peers(write):
    measured, old = gpu_report(registers=6.25, peer_torch=5.5), gpu_report(registers=None, peer_torch=None)
    first, *rest = table_of(write(measured))
    assert first["call, us"] == "6.25"
    assert "5.5" in (first.get("torch's call"), *(line["call, us"] for line in rest))
    assert all("call, us" not in line for line in table_of(write(old))), "columns without figures are left out"
    assert "torch's call" not in tables.summary(gpu_report(registers=6.25)), "a peer that did not run has no column"


def test_the_marks_of_calls_show_ours_beside_torchs():
    report = {**gpu_report(**{"cudakit arrays": 6.25, "torch tensors": 7.0, "peer_torch": 5.5}), "burst": 300}
    report["torch"] = "2.9"
    for row, above in zip(report["rows"], (0.75, 1.5, 0.0), strict=True):
        row |= {"above_torch_us": above, "loop_us": None, "of_torch": None, "why": None}
    rows = report["rows"]
    loops = [{**row, "mode": "loop", "call_us": None, "loop_us": {"median": 32.0}, "of_torch": 0.64} for row in rows]
    unmeasured = [{**row, "family": "add", "call_us": None, "above_torch_us": None} for row in rows[:1]]
    report["rows"] = [*rows, *loops, *unmeasured]
    text, problems = marks.fill_marks("<!-- calls calls.json -->\n<!-- end -->\n", lambda name: report)
    assert not problems
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert "| softmax 8x16 float32 | 6.25 (+0.75) | 7.00 (+1.50) | 5.50 | yes |" in lines
    assert "| softmax 8x16 float32 loop | 32.00 (0.64 x) | 32.00 (0.64 x) | 32.00 | yes |" in lines
    assert "| add 8x16 float32 | - | - | - | yes |" in lines
    assert "torch 2.9" in text


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAMILIES)
def test_every_row_of_a_gpu_has_the_cost_of_its_call(gpu, name):
    family = FAMILIES[name]
    for mode in family.modes:
        report = Bench(gpu).run(family, [family.shapes["sim"][0]], Selection(modes=[mode]))
        text = json.loads(outputs.json_text(outputs.finite(report.as_dict())))
        rows = [row for row in text["rows"] if row["ok"] is not None and not row["variant"].startswith("cpu")]
        ours = [row for row in rows if not row["variant"].startswith("peer:") and row["variant"] != family.ceiling]
        assert ours
        assert all(row["ok"] for row in rows), [row["why"] for row in rows]
        assert all(row["call_us"]["median"] > 0 for row in rows)
        torch = importlib.util.find_spec("torch") is not None and __import__("torch").cuda.is_available()
        assert {row["call_us"]["arrays"] for row in ours} == {"torch" if torch else "cudakit"}
        assert np.isfinite([row["call_us"]["p90"] for row in rows]).all()
