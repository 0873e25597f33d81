"""The benchmark harness: results that it must reject, its arithmetic, and its reports."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest

import cudakit
from cudakit import ops, pipeline
from cudakit.compare import Comparison, compare
from cudakit.family import Family, Launch, Variant, ceil_div
from cudakit.measure import case as bench_case
from cudakit.measure import ceilings
from cudakit.measure.bench import Bench, Selection, time_host_peer
from cudakit.measure.peers.installed import peers_of
from cudakit.measure.rows import BenchReport, Rates, Row, Subject, Verdict
from cudakit.measure.timing import BURST, RUNS, WARM_UPS, GpuTimer, Spread, host_costs, rotations, wall_clock
from cudakit.memory import array as memory
from cudakit.show import outputs


class FakeEvent:
    def __init__(self, at):
        self.at = at

    def synchronize(self):
        pass

    def elapsed_since(self, earlier):
        return self.at - earlier.at


class FakeStream:
    """A stream with a clock in milliseconds that launches advance, as on a GPU."""

    def __init__(self):
        self.now = 0.0

    def record(self, timing):
        assert timing
        return FakeEvent(self.now)

    def synchronize(self):
        pass


class FakeGpu:
    kind, name = "gpu", "a clock"

    def __init__(self):
        self.held = []

    def compile(self, source, name):
        return {"hold": self}

    def launch(self, stream, grid, block, args):
        self.held.append(args[0])
        stream.now += args[0] / 1e6


def timed(milliseconds, copies=1):
    stream, gpu, ran = FakeStream(), FakeGpu(), []

    def launch(number):
        def run():
            stream.now += milliseconds
            ran.append(number)

        return run

    return GpuTimer(gpu, stream).time([launch(number) for number in range(copies)]), gpu, ran


def test_a_long_launch_is_timed_alone():
    spread, gpu, ran = timed(400.0)
    assert spread.median == pytest.approx(400.0)
    assert spread.n == 3, "a slow kernel must not be run a hundred times"
    assert gpu.held == []
    assert len(ran) == 2 + spread.n


def test_short_launches_are_timed_in_batches_behind_a_held_stream():
    spread, gpu, ran = timed(0.01, copies=7)
    assert spread.median == pytest.approx(0.01), "the hold must stay outside the events"
    assert 3 <= spread.n <= 100
    assert len(gpu.held) == spread.n + 1
    assert all(nanoseconds > 0 for nanoseconds in gpu.held)
    assert ran[:8] == [0, 1, 2, 3, 4, 5, 6, 0], "launches rotate over the copies"


def test_a_batch_of_two_is_held_too():
    spread, gpu, ran = timed(0.6)
    assert spread.median == pytest.approx(0.6)
    assert len(gpu.held) == spread.n + 1
    assert len(ran) == 2 + 2 * (spread.n + 2), "one warm-up, one estimate, and batches of two"


def test_a_batch_stays_under_the_queue():
    _, _, ran = timed(1e-5)
    assert len(ran) <= BURST * 103


def test_launches_back_to_back_are_timed_together_after_the_warm_ups():
    stream, gpu, ran = FakeStream(), FakeGpu(), []

    def run():
        stream.now += 100.0 if len(ran) < WARM_UPS else 2.0
        ran.append(run)

    assert GpuTimer(gpu, stream).back_to_back(run) == pytest.approx(2.0)
    assert (len(ran), gpu.held) == (WARM_UPS + RUNS, []), "the stream is not held: gaps between launches count"


def test_the_simulated_device_is_not_timed(sim):
    with sim.stream() as stream, pytest.raises(ValueError, match="does not model time"):
        GpuTimer(sim, stream)


def test_no_launches_no_time():
    with pytest.raises(ValueError, match="at least one launch"):
        GpuTimer(FakeGpu(), FakeStream()).time([])
    with pytest.raises(ValueError, match="at least one"):
        Spread.of([])


def test_spread():
    spread = Spread.of([float(i) for i in range(101)])
    assert (spread.p10, spread.median, spread.p90, spread.n) == (10, 50, 90, 101)
    assert spread.scaled(2).as_dict() == {"median": 100, "p10": 20, "p90": 180, "n": 101}


@pytest.mark.parametrize(
    ("touched", "free", "expected"),
    [
        (50 << 20, None, 3),  # exactly three times a 50 MiB L2
        ((50 << 20) + 1, None, 3),
        (1 << 30, None, 1),
        (4, None, 256),  # limited
        (1 << 20, 10 << 20, 10),  # limited by free memory
        (1 << 20, 0, 1),  # at least one
        (0, None, 256),
    ],
)
def test_rotations_cover_three_times_the_l2(touched, free, expected):
    assert rotations(touched, 50 << 20, free_bytes=free) == expected


def test_host_costs_settle_after_each_burst_and_take_turns():
    order = []
    costs = host_costs(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, lambda: order.append("|"), burst=2, bursts=3
    )
    assert "".join(order) == "aa|bb|" * 4
    assert costs["a"].n == costs["b"].n == 3


def test_wall_clock_stops_at_its_budget():
    assert wall_clock(lambda: None, budget_s=60, most=5).n == 5
    assert wall_clock(lambda: None, budget_s=0).n == 1
    assert wall_clock(lambda: None, budget_s=0, least=5).n == 5
    assert wall_clock(lambda: None, budget_s=0, least=5, longest_s=0).n == 1, "a call that takes long is not repeated"


# ---- comparing ----


def reference(rows=4, cols=100):
    return np.random.default_rng(0).uniform(0.1, 1.0, (rows, cols))


def test_what_is_right_passes():
    exact = reference()
    plain = exact.astype(np.float32)
    verdict = compare(plain, exact, plain)
    assert verdict.ok
    assert 0 < verdict.max_abs_error < 1e-7
    assert verdict.why == ""


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 0.0, 0.5])
def test_one_wrong_element_is_found(wrong):
    exact = np.full((4, 100), 0.25)
    plain = exact.astype(np.float32)
    result = plain.copy()
    result[2, 77] = wrong
    verdict = compare(result, exact, plain)
    assert not verdict.ok
    assert verdict.worst_at == (2, 77)
    assert "(2, 77)" in verdict.why


def test_nan_and_infinity_belong_where_the_reference_has_them():
    exact = reference()
    exact[1] = math.nan
    exact[2, 3] = math.inf
    plain = exact.astype(np.float32)
    assert compare(plain, exact, plain).ok
    for place, value in (((1, 4), 0.5), ((2, 3), -math.inf), ((2, 3), math.nan), ((0, 0), math.nan)):
        result = plain.copy()
        result[place] = value
        verdict = compare(result, exact, plain)
        assert not verdict.ok
        assert verdict.worst_at == place


def test_a_bad_row_cannot_hide_behind_the_scale_of_another():
    exact = reference()
    exact[0] *= 1e6
    plain = exact.astype(np.float32)
    result = plain.copy()
    result[3] *= 1.001
    assert not compare(result, exact, plain).ok


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_long_rows_of_16_bit_numbers_are_judged_by_their_own_rounding(dtype):
    """Sums are accumulated in float32: a tolerance of 2^-8 times the square root of the length would pass wrong
    results."""
    exact = reference(2, 8192)
    plain = exact.astype(memory.as_dtype(dtype))
    assert compare(plain, exact, plain).ok
    result = plain.copy()
    result[1, 5000] *= 1.05
    assert not compare(result, exact, plain).ok


def test_results_of_many_pieces_are_compared_to_the_end(monkeypatch):
    monkeypatch.setattr("cudakit.compare._PIECE", 200)
    exact = reference(50)
    plain = exact.astype(np.float32)
    assert compare(plain, exact, plain).ok
    for wrong in (2, math.nan, math.inf):
        result = plain.copy()
        result[49, 99] = wrong
        verdict = compare(result, exact, plain)
        assert not verdict.ok
        assert verdict.worst_at == (49, 99)


def test_shapes_must_agree_and_empty_is_right():
    exact = reference()
    with pytest.raises(ValueError, match=r"\(4, 99\)"):
        compare(exact[:, 1:], exact, exact)
    assert compare(exact[:0], exact[:0], exact[:0]).ok


# ---- kernels that the harness must reject ----

WRONG = """
// each takes what vector add takes, and does one thing wrong
__global__ void writes_nan(const float* a, const float* b, float* c, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) c[i] = i == n / 2 ? 0.0f / (a[i] - a[i]) : a[i] + b[i];
}
__global__ void writes_nothing(const float* a, const float* b, float* c, long long n) {}
__global__ void forgets_the_last(const float* a, const float* b, float* c, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n - 1) c[i] = a[i] + b[i];
}
__global__ void one_too_many(const float* a, const float* b, float* c, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i <= n) c[i] = i < n ? a[i] + b[i] : 0.0f;
}
__global__ void one_too_early(const float* a, const float* b, float* c, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x - 1;
    if (i < n) c[i] = i < 0 ? 0.0f : a[i] + b[i];
}
__global__ void slightly_off(const float* a, const float* b, float* c, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) c[i] = (a[i] + b[i]) * 1.00001f;
}
__global__ void far_outside(const float* a, const float* b, float* c, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) c[i + 100000000] = a[i] + b[i];
}
"""


@pytest.fixture(autouse=True)
def short_large_copies(monkeypatch):
    """The large copy moves 4 GB, and no test here reads its bandwidth."""
    monkeypatch.setattr(ceilings, "LARGE_COPY", 1 << 16)


@pytest.fixture
def family(tmp_path):
    """Return vector add with a correct first variant; the named variants are wrong."""
    add = ops.families()["vector_add"]
    path = tmp_path / "wrong.cu"
    path.write_text(WRONG)

    def with_variants(*names):
        wrong = [
            Variant(name, lambda problem: Launch(ceil_div(problem.n, 256) + 1, 256), str(path), "wrong", name)
            for name in names
        ]
        return dataclasses.replace(add, variants=(add.variants[0], *wrong))

    return with_variants


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("writes_nan", "element (500,) is nan"),
        ("writes_nothing", "element (0,) is nan"),
        ("forgets_the_last", "element (999,) is nan"),
        ("slightly_off", "the float64 reference has"),
    ],
)
def test_wrong_kernels_are_false_rows(device, family, name, says):
    report = Bench(device, once=True).run(family(name), [(1000,)])
    right, wrong = report.rows
    assert right.ok
    assert wrong.ok is False
    assert says in wrong.verdict.why
    assert not report.ok


@pytest.mark.parametrize(
    ("name", "simulated", "real"),
    [
        ("one_too_many", "0 bytes past the end of the array of 4000 bytes", "the nearest at byte 1 after it"),
        ("one_too_early", "4 bytes before the start of the array of 4000 bytes", "the nearest at byte 1 before it"),
    ],
)
def test_a_write_beside_the_output_is_a_false_row(device, family, name, simulated, real):
    bench = Bench(device if device.kind == "gpu" else cudakit.Device("sim", fresh=True), once=True)
    right, wrong = bench.run(family(name), [(1000,)]).rows
    assert right.ok
    assert wrong.ok is False
    if device.kind == "gpu":
        assert f"wrote 4 bytes outside its output, {real}" in wrong.verdict.why
        return
    bench.device.close()  # the device that replaced the lost one
    assert simulated in wrong.verdict.why
    assert "wrong.cu:" in wrong.verdict.why


def test_a_fault_is_a_false_row_that_names_the_line_and_the_rest_is_run_on_another_device(sim, family):
    bench = Bench(sim, once=True)
    added = family("far_outside")
    added = dataclasses.replace(added, variants=(*added.variants, dataclasses.replace(added.variants[0], name="last")))
    report = bench.run(added, [(1000,), (2000,)])
    bench.device.close()
    assert [row.ok for row in report.rows] == [True, False, True] * 2
    assert [row.subject.shape for row in report.rows] == [(1000,)] * 3 + [(2000,)] * 3
    for row in report.rows[1::3]:
        assert "wrong.cu" in row.verdict.why
        assert "c[i + 100000000]" in row.verdict.why


@pytest.mark.parametrize("after", [0, 7, 40])
def test_a_device_that_is_lost_at_any_call_costs_one_row(sim, family, after):
    add = dataclasses.replace(family(), variants=family().variants * 3)
    sim.context.driver.simInject("context_lost", after=after)
    bench = Bench(sim, once=True)
    report = bench.run(add, [(100,), (200,), (300,)])
    bench.device.close()
    found = [row.ok for row in report.rows]
    assert (found.count(False), found.count(True)) == (1, 8)
    assert "injected fault" in report.rows[found.index(False)].verdict.why


def test_after_a_gpu_is_lost_the_rows_that_are_left_are_not_run(sim, family, monkeypatch):
    monkeypatch.setattr(type(sim), "kind", "gpu")  # a GPU is not reopened
    bench = Bench(sim, once=True)
    report = bench.run(family("far_outside"), [(1000,), (2000,)])
    report.merge(bench.run(ops.families()["softmax"], [(4, 8)], Selection(["tree_reduce"])))
    assert [row.ok for row in report.rows] == [True, False, None, None, None]
    assert [row.subject.variant for row in report.rows[-3:]] == ["vector_add", "far_outside", "tree_reduce"]
    for row in report.rows[2:]:
        assert row.verdict.skipped.startswith("not run: sim:sm_90a was lost at vector_add 1000 float32: ")
    assert not report.ok


def test_rows_that_were_not_timed_before_the_device_was_lost_are_not_run(sim, family, monkeypatch):
    class LosesIt(CannedTimer):
        def time(self, launches):
            if self.stream.context is sim.context:
                sim.context.driver.simInject("context_lost")
            return super().time(launches)

    for name, canned in (("large_copy_ceiling", {}), ("fp32_peak", 1.0), ("copy_ceiling", {"time_ms": {"median": 1}})):
        monkeypatch.setattr(f"cudakit.measure.bench.{name}", lambda *_, canned=canned: canned)
    monkeypatch.setattr(bench_case, "rotations", lambda *_, **__: 1)
    bench = Bench(sim, timer=LosesIt)
    one = family().variants[0]
    add = dataclasses.replace(family(), variants=tuple(dataclasses.replace(one, name=name) for name in "abc"))
    report = bench.run(add, [(100,), (200,)])
    bench.device.close()
    ours = [row for row in report.rows if row.subject.rung is not None]
    assert [row.ok for row in ours] == [False, None, None, True, True, True]
    assert all("lost the device before this row was timed" in row.verdict.skipped for row in ours[1:3])
    assert all(row.times.device is not None for row in ours[3:])


def test_the_fastest_of_several_peers_is_the_ceiling(sim, family, monkeypatch):
    """Each row names it, and a faster peer whose name does not match the pattern is not it."""
    milliseconds = {"peer:torch-a": 4.0, "peer:torch-b": 2.0, "peer:torch-c": 1.0, "peer:other": 0.5}

    class Theirs:
        arrays, rung, idea = "torch", None, ""

        def __init__(self, name):
            self.name = name

        def refusal(self, shape, dtype):
            return "not supported" if self.name == "peer:torch-c" else None

        def on(self, stream):
            return contextlib.nullcontext()

        def call(self, arrays, stream):
            return None

        def bind(self, sets, stream, cost):
            def launch(inputs, output):
                output.copy_from(inputs[0].numpy() + inputs[1].numpy(), stream)

            made = [functools.partial(launch, *arrays) for arrays in sets]
            self.launches = made
            return made

    class Timer(CannedTimer):
        def time(self, launches):
            took = next((milliseconds[one.name] for one in peers if getattr(one, "launches", None) is launches), 8.0)
            return Spread(took, took, took, 1)

    for name, canned in (("large_copy_ceiling", {}), ("fp32_peak", 1.0)):
        monkeypatch.setattr(f"cudakit.measure.bench.{name}", lambda *_, canned=canned: canned)
    monkeypatch.setattr(bench_case, "rotations", lambda *_, **__: 1)
    peers = [Theirs(name) for name in milliseconds]
    monkeypatch.setattr(Bench, "peers", lambda self, family, options: peers)
    report = Bench(sim, timer=Timer, kernels_only=True).run(
        dataclasses.replace(family(), ceiling="peer:torch-*"), [(100,)]
    )
    rows = {row.subject.variant: row for row in report.rows}
    assert list(rows) == ["vector_add", *milliseconds]
    assert {row.rates.ceiling for row in report.rows} == {"peer:torch-b"}
    assert {row.times.end_to_end for row in report.rows} == {None}
    shares = {name: row.rates.of_ceiling for name, row in rows.items()}
    assert shares == {
        "vector_add": 0.25, "peer:torch-a": 0.5, "peer:torch-b": 1.0, "peer:torch-c": None, "peer:other": 4.0
    }  # fmt: skip


def test_a_shape_that_does_not_fit_is_not_run(sim, family, monkeypatch):
    add = family()
    made = lambda shape, *more, **named: (_ for _ in ()).throw(MemoryError("too much"))  # noqa: E731
    report = Bench(sim, once=True).run(dataclasses.replace(add, inputs=made), [(100,)])
    assert [row.verdict.skipped for row in report.rows] == ["not run: out of memory: too much"]
    assert report.ok
    assert not report.checked


def test_a_kernel_that_does_not_compile_is_a_false_row(device, family):
    report = Bench(device, once=True).run(family("no_such_kernel"), [(10,)])
    assert [row.ok for row in report.rows] == [True, False]
    assert "no_such_kernel" in report.rows[1].verdict.why


def test_an_error_of_the_source_is_shown_once_for_all_of_its_variants(device, tmp_path):
    path = tmp_path / "two.cu"
    path.write_text("__global__ void one(const float* x, float* out) { out[0] = y; }\n__global__ void two() {}\n")
    both = Family("both", reference=lambda x: x, inputs={"x": "float32[n]"}, outputs={"out": "float32[n]"})
    for name in ("one", "two"):
        both.variant(str(path), name=name)(lambda p: Launch(1, 32, args=(p.x, p.out)))
    report = Bench(device, once=True).run(both, [(10,)])
    whys = {row.verdict.why for row in report.rows if not row.ok}
    assert len(whys) == 1
    assert "two.cu:\n> 1 | __global__ void one(const float* x, float* out) { out[0] = y; }" in whys.pop()


class CannedTimer:
    """Run each launch once and report one millisecond for it, so that figures are known."""

    def __init__(self, device, stream):
        self.stream = stream
        self.launched = 0

    def time(self, launches):
        for launch in launches[:3]:
            launch()
        self.stream.synchronize()
        return Spread(1.0, 0.9, 1.1, 5)


def test_times_become_bandwidth_and_shares_of_the_copy(device, family, monkeypatch):
    monkeypatch.setattr(ceilings, "rotations", lambda *_, **__: 3)
    monkeypatch.setattr(bench_case, "rotations", lambda *_, **__: 3)
    report = Bench(device, timer=CannedTimer).run(family("writes_nothing"), [(1000,)])
    cpu, right, wrong = (row for row in report.rows if not row.subject.variant.startswith(("peer:", "cpu:")))
    assert right.times.device == Spread(1.0, 0.9, 1.1, 5)
    assert right.rates.gbps == pytest.approx(12 * 1000 / 1e-3 / 1e9)
    assert right.rates.tflops == pytest.approx(1000 / 1e-3 / 1e12)
    assert report.ceilings["copy"] == [
        {
            "shape": (1000,),
            "dtype": "float32",
            "mode": "",
            "bytes": 12000,
            "gbps": pytest.approx(0.012),
            "time_ms": right.times.device.as_dict(),
        }
    ]
    assert right.rates.of_ceiling == pytest.approx(1.0)
    assert right.times.end_to_end > 0
    assert cpu.times.device.median > 0
    assert cpu.rates.of_ceiling is None
    assert wrong.times.device is None, "a wrong variant is not timed"
    assert right.launch["block"] == 1024
    assert 0 < right.launch["occupancy"] <= 1


@pytest.mark.parametrize(
    ("name", "variant", "shape"), [("vector_add", "vector_add", (257,)), ("softmax", "blas_on_device", (3, 40))]
)
def test_every_copy_that_is_rotated_over_holds_the_problem(device, monkeypatch, name, variant, shape):
    monkeypatch.setattr(bench_case, "rotations", lambda *_, **__: 4)
    family = ops.families()[name]
    with device.stream() as stream:
        case = bench_case.BenchCase(device, family, shape, "float32", "", stream, seed=1)
        case.rotate()
        assert len(case.sets) == 4
        assert len({output.pointer for _, output in case.sets}) == 4
        assert len({inputs[0].pointer for inputs, _ in case.sets}) == 4
        for launch in case.prepared(family[variant]):
            launch()
        for _, output in case.sets:
            assert case.verdict(output.numpy(stream)).ok


def test_a_bench_times_launches_on_every_copy(sim, family, monkeypatch):
    """With one set of arrays, the L2 would hold the data."""
    counts = []

    class CountingTimer(CannedTimer):
        def time(self, launches):
            counts.append(len(launches))
            return super().time(launches)

    monkeypatch.setattr(ceilings, "rotations", lambda *_, **__: 2)
    monkeypatch.setattr(bench_case, "rotations", lambda *_, **__: 5)
    Bench(sim, timer=CountingTimer).run(family(), [(300,)])
    assert counts[-1] == 5, "the variant's launches come last"
    assert set(counts[:-1]) == {2}, "the copies that are its ceiling rotate too"


def test_the_time_end_to_end_is_of_both_copies(sim, monkeypatch):
    """End to end includes both copies: the inputs to the device, and the result back."""
    add, pinned = ops.families()["vector_add"], []
    make = sim.pinned
    monkeypatch.setattr(sim, "pinned", lambda *args: pinned.append(make(*args)) or pinned[-1])
    with sim.stream() as stream:
        case = bench_case.BenchCase(sim, add, (257,), "float32", "", stream, seed=1)
        transfers = bench_case.Transfers(case)
        copied = []
        for array in (*case.inputs, case.output):
            array.fill(np.nan, stream)
        pinned[-1][...] = np.nan
        rounds = []

        def launch():
            copied.append([array.numpy(stream) for array in case.inputs])
            case.launch(add.variants[0])
            for array in case.inputs:  # the next round has to copy them again
                array.fill(np.nan, stream)

        monkeypatch.setattr(bench_case, "wall_clock", lambda work, **_: rounds.append(work()) or Spread(2.0, 1, 3, 5))
        assert transfers.time(launch) == 2.0
    assert len(copied) == 1 + len(rounds)
    for inputs in copied:
        for got, host in zip(inputs, case.host, strict=True):
            np.testing.assert_array_equal(got, host)
    assert case.verdict(np.array(pinned[-1])).ok


def test_the_ceiling_copies_as_many_bytes_as_the_work_moves(sim, monkeypatch):
    asked = []
    monkeypatch.setattr(ceilings, "rotations", lambda touched, l2, free_bytes: asked.append((touched, l2)) or 2)
    with sim.stream() as stream:
        ceiling = ceilings.copy_ceiling(sim, CannedTimer(sim, stream), 12_000)
    assert ceiling["bytes"] == 12_000
    assert asked == [(12_000, sim.attribute("L2_CACHE_SIZE"))]


def test_the_large_copy_takes_a_quarter_of_a_small_memory(monkeypatch):
    monkeypatch.setattr(ceilings, "LARGE_COPY", 4 << 30)
    with cudakit.Device("sim", fresh=True, memory=1 << 20) as small, small.stream() as stream:
        assert ceilings.large_copy_ceiling(small, CannedTimer(small, stream))["bytes"] == 1 << 18


def test_a_skipped_variant_says_why(device):
    add = ops.families()["vector_add"]
    never = dataclasses.replace(add.variants[0], name="never", launch=lambda problem: "it never does")
    report = Bench(device, once=True).run(dataclasses.replace(add, variants=(never,)), [(8,)])
    assert (report.rows[0].ok, report.rows[0].verdict.skipped) == (None, "it never does")
    assert report.ok, "a skipped row has not failed"


def test_an_empty_problem_is_right_and_not_timed(device):
    report = Bench(device, timer=CannedTimer).run(ops.families()["softmax"], [(0, 5)])
    ours = [row for row in report.rows if row.subject.rung is not None]
    assert ours
    assert all(row.ok for row in ours)
    assert all(row.times.device is None for row in ours)


def test_steps_announces_as_many_as_are_taken(device, family):
    for timer in (GpuTimer, CannedTimer):
        taken = []
        runs = Bench(device, step=taken.append, timer=timer)
        expected = runs.steps(family("writes_nothing"), [(100,), (200,)])
        runs.run(family("writes_nothing"), [(100,), (200,)])
        assert len(taken) == expected


def test_reports_merge():
    one, two = BenchReport({}), BenchReport({})
    one.ceilings = {"copy_large": {"gbps": 1}, "copy": [{"shape": (1,)}]}
    two.ceilings = {"copy_large": {"gbps": 2}, "copy": [{"shape": (2,)}]}
    two.rows.append(Row(Subject("f", "v", 1, (2,), "float32"), verdict=Verdict(ok=False)))
    one.merge(two)
    assert [copy["shape"] for copy in one.ceilings["copy"]] == [(1,), (2,)]
    assert not one.ok
    json.dumps(outputs.finite(one.as_dict()), allow_nan=False)


def test_without_torch_there_are_no_peers(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert peers_of(ops.families()["softmax"], 0, {}) == []


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["softmax", "vector_add", "matrix_add", "scale", "cast", "fill", "sum", "gemm"])
def test_cupy_does_the_same_work(gpu, family):
    pytest.importorskip("cupy")
    shape = (64, 64) if family != "vector_add" else (4096,)
    if family == "gemm":
        shape = (64,)
    report = Bench(gpu).run(ops.families()[family], [shape])
    (row,) = (row for row in report.rows if row.subject.variant == "peer:cupy")
    assert row.ok, row.verdict.skipped or row.verdict.why
    assert row.times.device is not None


class FakePeer:
    """Another package's add. Its name selects whether it is correct, wrong, unsupported or failing."""

    idea = "a stand-in"

    def __init__(self, name):
        self.name = f"peer:{name}"

    rung = None

    def refusal(self, shape, dtype):
        return "too large" if self.name == "peer:refuses" else None

    def on(self, stream):
        return contextlib.nullcontext()

    def bind(self, sets, stream, cost):
        if self.name == "peer:fails":
            raise OSError("its library is broken")
        value = 0.0 if self.name == "peer:wrong" else 3.0
        return [lambda output=output: output.fill(value, stream) for _, output in sets]


def test_peers_are_checked_and_timed_as_we_are(device, family, monkeypatch):
    monkeypatch.setattr(ceilings, "rotations", lambda *_, **__: 2)
    monkeypatch.setattr(bench_case, "rotations", lambda *_, **__: 2)
    names = ("right", "wrong", "refuses", "fails")
    monkeypatch.setattr(Bench, "peers", lambda self, family, options: [FakePeer(name) for name in names])
    ones = dataclasses.replace(
        family(),
        inputs=lambda shape, dtype, rng: (np.full(shape, 1.0, dtype), np.full(shape, 2.0, dtype)),
    )
    report = Bench(device, timer=CannedTimer).run(ones, [(100,)])
    right, wrong, refuses, fails = (row for row in report.rows if row.subject.variant.startswith("peer:"))
    assert (right.ok, right.rates.gbps) == (True, pytest.approx(12 * 100 / 1e6))
    assert (wrong.ok, wrong.times.device) == (False, None)
    assert (refuses.ok, refuses.verdict.skipped) == (None, "too large")
    assert (fails.ok, fails.verdict.skipped) == (None, "OSError: its library is broken")


def test_the_cpu_row_is_what_numpy_users_write_not_the_yardstick(sim):
    """The computation of the tolerance may be slow; it runs once for all variants with the same arithmetic."""
    family = ops.families()["softmax"]
    timed = []
    watched = dataclasses.replace(
        family,
        rounding=lambda exact, x: timed.append("rounding") or family.rounding(exact, x),
        baseline=lambda x: timed.append("baseline") or family.baseline_of((x,)),
    )
    report = Bench(sim).run(watched, [(8, 100)], Selection(["tree_reduce"]))
    assert timed.count("rounding") == 1, "once, for the tolerance"
    assert timed.count("baseline") >= 2, "once for the check, and for the times"
    assert report.rows[0].subject.variant == "cpu"
    assert report.rows[0].ok


def host_row(sim, family, shape):
    with sim.stream() as stream:
        return time_host_peer(bench_case.BenchCase(sim, family, shape, "float32", "", stream, seed=0))


@pytest.mark.parametrize(("name", "shape"), [("vector_add", (10_000,)), ("softmax", (33, 129))])
def test_a_library_on_all_cores_has_a_checked_row_with_its_threads(sim, name, shape):
    torch = pytest.importorskip("torch")
    row = host_row(sim, ops.families()[name], shape)
    assert (row.subject.variant, row.ok) == ("cpu:torch", True)
    assert row.times.device.n >= 5
    assert f"on the host, {torch.get_num_threads()} thread" in row.subject.idea


def test_a_library_on_all_cores_that_is_wrong_or_fails_is_not_timed(sim):
    pytest.importorskip("torch")
    family = dataclasses.replace(ops.families()["vector_add"], peers=[])
    assert host_row(sim, family, (100,)) is None
    family.peer("torch")(lambda a, b, output: output.copy_(a))
    wrong = host_row(sim, family, (100,))
    assert (wrong.ok, wrong.times.device) == (False, None)
    family.peers[:] = []
    family.peer("torch")(lambda a, b, output: (_ for _ in ()).throw(RuntimeError("needs a GPU")))
    fails = host_row(sim, family, (100,))
    assert (fails.ok, fails.verdict.skipped) == (None, "RuntimeError: needs a GPU")


def rows_of_each_kind():
    """Return rows of each kind: timed, counted, skipped, wrong, a pipeline on a GPU, and one without times."""
    timed = Row(Subject("softmax", "vec4", 7, (64, 128), "float32", "log", "reads 16 bytes"))
    timed.judge(Comparison(ok=True, max_abs_error=1e-7, max_rel_error=2e-6, worst_at=(3, 5)))
    timed.timed(Spread(0.5, 0.25, 0.75, 9), traffic=65536)
    timed.times.end_to_end = 1.5
    timed.times.back_to_back = 0.25
    timed.hold_against(0.4)
    timed.launch = {"grid": (64,), "block": (128,), "shared": 512, "registers": 32, "occupancy": 0.75}
    counted = Row(Subject("softmax", "naive", 1, (2, 3), "float16"), verdict=Verdict(ok=True))
    counted.counters = {"launches": 1, "bytes_per_element": 8.0}
    skipped = Row(Subject("gemm", "tensor", 4, (8, 8, 8), "float32"), Rates(ceiling="cublas"))
    skipped.skip("it needs sm_80")
    wrong = Row(Subject("gemm", "wrong", 2, (8, 8, 8), "float32"), Rates(ceiling="cublas"))
    wrong.fail("wrote 4 bytes outside its output")
    done = pipeline.PipelineReport(
        ["gpu:0"], 3, 4, 40, 1024, 2048, items=40, chunks=10, bytes_in=4 * 10**9, bytes_out=2 * 10**9, seconds=2.0,
        busy={"read": 0.5}, bounds={"link": 1.0}, waited={"reading": 0.1}, link=pipeline.Link(4e9, 4e9, 3e9),
    )  # fmt: skip
    streamed = Row(Subject("blur images", "pipelined", 3, (40, 8, 8), "float32", idea="3 streams"))
    streamed.verdict.ok = True
    streamed.streamed(done)
    simulated = Row(Subject("blur images", "pinned", 2, (40, 8, 8), "float32"))
    simulated.streamed(dataclasses.replace(done, devices=["sim:0"], link=None, bounds={}))
    return [timed, counted, skipped, wrong, streamed, simulated]


def test_a_row_of_each_kind_is_the_contracts_json():
    """Byte for byte: scripts read these files, and committed ones are compared."""
    copies = {"copy": [{"shape": (64, 128), "gbps": 100.0}]}
    report = BenchReport(
        {"name": "a device", "kind": "gpu", "arch": "sm_90a"},
        "2026-01-02",
        copies,
        rows_of_each_kind(),
        "python -m cudakit bench softmax",
    )
    expected = (Path(__file__).parent / "rows.json").read_text(encoding="utf-8")
    assert outputs.json_text(outputs.finite(report.as_dict())) + "\n" == expected


def test_a_derived_rows_own_figures_come_last():
    @dataclasses.dataclass
    class Counted(Row):
        steps: int = 0

    row = Counted(Subject("f", "v", 1, (2,), "float32"), steps=3).as_dict()
    assert list(row)[-2:] == ["pipeline", "steps"]
    assert row["steps"] == 3
