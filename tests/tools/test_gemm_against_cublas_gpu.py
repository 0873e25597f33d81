"""examples/gemm_against_cublas.py: its turns and clocks, and its code for a GPU, which is tested with torch on the CPU
and with given times."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import stat
import sys
import time
import types

import numpy as np
import programs
import pytest
import torch_installed
from against_cublas import (
    EXAMPLE,
    arrays,
    cases,
    grouped_of,
    modes,
    product_of,
    rounds,
    run,
    ways,
)

from cudakit import nvtx
from cudakit.families import gemm_grouped
from cudakit.measure.timing import Spread
from cudakit.memory.array import as_dtype

# Turns ----------------------------------------------------------------------------------------------------------------


class Timer:
    """Makes each launch once, and returns the next of its times in milliseconds."""

    def __init__(self, times=()):
        self.times, self.count = iter(times), 0

    def time(self, launches):
        for launch in launches:
            launch()
        self.count += 1
        return Spread.of([next(self.times, 0.001 * self.count)])


class Silent:
    """Clocks without a source."""

    source = "NVML"

    @contextlib.contextmanager
    def reading(self, into):
        into.append((1900.0, None))
        yield


def test_rounds_alternate_their_order_after_equal_rests(monkeypatch):
    log = []
    monkeypatch.setattr(rounds.time, "sleep", log.append)
    calls = {name: [functools.partial(log.append, f"{name}{i}") for i in range(3)] for name in ("ours", "theirs")}
    timer = Timer([4, 40, 44, 8, 12, 48])
    found = rounds.in_turns(timer, calls, 1e9, 3, 0.25, Silent())
    assert [word for word in log if word == 0.25] == [0.25] * 6
    names = [word[:-1] for word in log if word != 0.25]
    assert names[::4] == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert [word for word in log if str(word).startswith("ours")][:5] == ["ours0", "ours1", "ours2", "ours0", "ours1"]
    assert found["ours"].rounds == [1, 2, 3], "four products per launch"
    assert found["theirs"].spread.median == 11
    assert (found["ours"].reading(0), found["ours"].reading(1)) == (1900, None)
    assert rounds.in_turns(Timer([7]), {"one": [lambda: None]}, 1e13, 1, 0, Silent())["one"].rounds == [3.5]


# Clocks ---------------------------------------------------------------------------------------------------------------

GPU = types.SimpleNamespace(
    kind="gpu", attribute={"PCI_DOMAIN_ID": 0, "PCI_BUS_ID": 0xC1, "PCI_DEVICE_ID": 2}.__getitem__
)


def library(*, instant=True):
    """A replacement for pynvml, which counts its readings."""
    found = types.ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def fields(handle, wanted):
        assert (handle, wanted) == ("handle", [186])
        value = types.SimpleNamespace(uiVal=612_500)
        return [types.SimpleNamespace(nvmlReturn=0 if instant else 3, value=value)]

    def handle_of(address):
        assert address == "00000000:C1:02.0"
        return "handle"

    def clock(handle, kind):
        assert (handle, kind) == ("handle", 1)
        found.readings += 1
        return 1980

    found.readings, found.NVML_CLOCK_SM, found.NVML_SUCCESS, found.NVML_FI_DEV_POWER_INSTANT = 0, 1, 0, 186
    found.NVMLError, found.nvmlInit, found.nvmlDeviceGetHandleByPciBusId = NVMLError, lambda: None, handle_of
    found.nvmlDeviceGetFieldValues, found.nvmlDeviceGetClockInfo = fields, clock
    found.nvmlDeviceGetPowerUsage = lambda handle: 300_000
    return found


def readings(clocks, seconds=0.1):
    into = []
    with clocks.reading(into):
        deadline = time.monotonic() + 10
        while len(into) < 3 and time.monotonic() < deadline:
            time.sleep(seconds / 10)
    return into


@pytest.mark.parametrize(("instant", "watts"), [(True, 612.5), (False, 300.0)])
def test_clocks_are_read_by_nvml_during_measurements_only(monkeypatch, instant, watts):
    pynvml = library(instant=instant)
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    with rounds.Clocks(GPU) as clocks:
        assert clocks.source == "NVML"
        into = readings(clocks)
        assert set(into) == {(1980.0, watts)}
        time.sleep(0.05)
        before = pynvml.readings
        time.sleep(0.05)
        assert pynvml.readings == before, "no reading between measurements"


def only_nvidia_smi(monkeypatch, tmp_path, script):
    """Replace nvidia-smi by a shell script, and make pynvml unavailable."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def test_clocks_are_read_by_nvidia_smi_without_pynvml(monkeypatch, tmp_path):
    only_nvidia_smi(monkeypatch, tmp_path, 'while echo "1755, [N/A]"; do sleep 0.01; done')
    with rounds.Clocks(GPU) as clocks:
        assert clocks.source == "nvidia-smi"
        assert set(readings(clocks)) == {(1755.0, None)}
    assert clocks._process.poll() is not None


def test_a_program_that_ends_is_reported(monkeypatch, tmp_path):
    only_nvidia_smi(monkeypatch, tmp_path, "exit 1")
    with rounds.Clocks(GPU) as clocks:
        clocks._thread.join(timeout=10)
        assert clocks.source == "nvidia-smi stopped: EOFError: its output ended"


def test_a_machine_without_either_says_why(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with rounds.Clocks(GPU) as clocks:
        assert clocks.source.startswith("not read: FileNotFoundError")
        with clocks.reading([]):
            pass


# The code for a GPU, with torch on the CPU ----------------------------------------------------------------------------


class Gpu:
    """The simulated device, in the words of a GPU."""

    kind, ordinal = "gpu", 0

    def __init__(self, sim):
        self.synchronize, self.memory_info, self.stream = lambda: None, sim.memory_info, sim.stream
        self.info = lambda: {**sim.info(), "kind": "gpu"}

    def attribute(self, name):
        return {"L2_CACHE_SIZE": 1 << 12}[name]


def product(a, b, out, *, variant, stream, bias=None, activation=None, residual=None):
    """cudakit's product of torch tensors."""
    import torch

    assert (variant, stream) == ("auto", None)
    with nvtx.range("gemm_half.pipelined"):
        found = a.float() @ b.float()
        if activation is not None:
            kind = {"gelu": "none", "gelu_tanh": "tanh"}[activation]
            found = torch.nn.functional.gelu(found + bias.float(), approximate=kind)
        if residual is not None:
            found = found + residual.float()
        return out.copy_(found)


def grouped_product(a, b, out, *, stream, offsets=None, rows=None):
    """cudakit's grouped product of torch tensors."""
    assert stream is None
    with nvtx.range("gemm_grouped.grouped"):
        for group, place in gemm_grouped.pieces(a, (offsets if rows is None else rows).numpy()):
            out[place] = (a[place].float() @ b[group].float()).to(out.dtype)
    return out


OPS = types.SimpleNamespace(gemm=product, gemm_grouped=grouped_product)


@pytest.fixture
def gpu_run(sim, monkeypatch):
    """A function that returns a Run on torch's CPU tensors, with further fields."""
    torch_installed.require()
    monkeypatch.setattr(ways, "ops", OPS)
    made = arrays.TorchArrays(types.SimpleNamespace(on_stream=None), Gpu(sim), None, 5, kind="cpu")
    lines = []
    everything = {"shapes": [(33, 20, 40)], "errors": [(70, 90, 33)], "epilogue": [(24, 16, 32)], "calls": [(8, 8, 8)]}
    everything["grouped"] = [(3, 96, 24, 16)]
    return functools.partial(
        product_of.Run, made.device, made, Timer(), Silent(), lines.append, rest_s=0, rounds=3, copy_gbps=4000.0,
        asked=everything,
    )  # fmt: skip


@pytest.mark.parametrize("layout", cases.LAYOUTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_on_a_gpu_are_checked_and_timed_with_cublas(gpu_run, layout, dtype):
    shared = gpu_run(layouts=[layout], dtypes=[dtype], leading=(1, 3, 5))
    ours, theirs = modes.shapes(shared)
    assert (ours.subject.variant, theirs.subject.variant) == ("pipelined", "peer:torch")
    assert ours.ok
    assert theirs.ok
    assert ours.rates.of_ceiling == theirs.times.device.median / ours.times.device.median
    assert ours.times.device.n == 3
    case = cases.Case((33, 20, 40))
    assert ours.rates.tflops == pytest.approx(case.flops / ours.times.device.median / 1e9)
    assert ours.of_copy == pytest.approx(case.traffic / ours.times.device.median / 1e6 / 4000)
    assert (ours.sm_mhz, ours.watts) == (1900, None)


def test_a_peer_without_the_function_is_skipped_with_its_reason(gpu_run):
    ours, theirs = modes.shapes(gpu_run(out_dtype="float32"))
    assert ours.ok
    assert theirs.verdict.skipped.startswith("NotImplementedError")
    assert theirs.times.device is None
    assert ours.rates.of_ceiling is None


def test_a_tile_that_is_wrong_outside_of_the_sample_is_found_by_the_comparison(gpu_run, monkeypatch):
    shared = gpu_run(asked={"shapes": [(300, 300, 40)]})
    sampled = product_of.Product(shared, "shapes", cases.Case((300, 300, 40)))
    line = next(i for i in range(300) if i not in sampled.lines)
    column = next(i for i in range(300) if i not in sampled.columns)

    def wrong(a, b, out, **options):
        product(a, b, out, **options)
        out[line, column] += 30
        return out

    monkeypatch.setattr(ways, "ops", types.SimpleNamespace(gemm=wrong))
    ours, theirs = modes.shapes(shared)
    assert ours.verdict.why == "1 elements differ from those of peer:torch"
    assert ours.times.device is None
    assert theirs.times.device is not None


def test_grouped_products_on_a_gpu_are_checked_and_timed_with_both_peers(gpu_run, monkeypatch):
    import torch

    counts, real = [], torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda a, b, out: counts.append(len(a)) or real(a, b, out=out))
    rows = list(modes.grouped(gpu_run(dtypes=["float16"], seed=7)))
    assert [row.subject.variant for row in rows] == ["grouped", "peer:gemm", "peer:torch"] * 4
    assert all(row.ok for row in rows)
    found = cases.grouped((3, 96, 24, 16), 7)
    for ours, one, theirs, case in zip(rows[::3], rows[1::3], rows[2::3], found, strict=True):
        assert ours.subject.mode == one.subject.mode == theirs.subject.mode == case.mode
        assert ours.of_plain == ours.times.device.median / one.times.device.median
        assert ours.rates.of_ceiling == theirs.times.device.median / ours.times.device.median
        assert ours.rates.tflops == pytest.approx(2 * case.shape[1] * 24 * 16 / ours.times.device.median / 1e9)
        assert (ours.sm_mhz, one.sm_mhz, theirs.sm_mhz) == (1900,) * 3
        assert ours.times.device.n == 3
        assert set(case.rows) <= set(counts), "a call per group, of its rows"


@pytest.mark.parametrize("form", ["drawn", "drawn masked"])
def test_a_wrong_group_outside_of_the_sample_is_found_by_the_comparison(gpu_run, monkeypatch, form):
    shared = gpu_run(asked={"grouped": [(2, 400, 300, 16)]}, seed=7)
    case = next(one for one in cases.grouped((2, 400, 300, 16), 7) if one.mode == form)
    sampled = grouped_of.GroupedProduct(shared, case)
    line = next(i for i in range(case.starts[1], case.starts[1] + case.rows[1]) if i not in sampled.lines)
    column = next(i for i in range(300) if i not in sampled.columns)

    def wrong(a, b, out, **options):
        grouped_product(a, b, out, **options)
        if len(out.flatten(0, -2)) == case.held:
            out.flatten(0, -2)[line, column] += 30
        return out

    monkeypatch.setattr(ways, "ops", types.SimpleNamespace(gemm=product, gemm_grouped=wrong))
    ours, _, theirs = (row for row in modes.grouped(shared) if row.subject.mode == form)
    assert ours.verdict.why == "1 elements differ from those of peer:torch"
    assert (ours.times.device, ours.of_plain) == (None, None)
    assert theirs.times.device is not None


def test_errors_on_a_gpu_are_those_of_numpy(gpu_run, sim):
    rows = list(modes.errors(gpu_run()))
    assert len(rows) == 16
    assert all(row.ok for row in rows if row.verdict.skipped is None)
    own = arrays.OwnArrays(sim, sim.default_stream, 0)
    made = gpu_run().made
    for dtype, factor in (("bfloat16", 1), ("float16", 40)):  # some sums of the second are out of range
        a, b = (np.float32(factor) * x.astype(as_dtype(dtype)) for x in cases.normal(own, 30, 20, 400))
        result = a.astype(np.float32) @ b.astype(np.float32) * np.float32(1.001)
        least = np.unravel_index(np.abs(result).argmin(), result.shape)
        result[least] = np.inf
        with np.errstate(over="ignore"):
            ours = own.errors(*(own.place(x, dtype) for x in (result, a, b)))
        tensors = (made.torch.from_numpy(np.asarray(x, np.float32)) for x in (result, a, b))
        theirs = made.errors(*(made.place(x, dtype) for x in tensors))
        assert ours == pytest.approx(theirs, rel=1e-12)
        assert ours[2], "the infinity should be a number"
        assert sorted({0.0, *ours[:2], math.inf}) == [0.0, *ours[:2], math.inf]


def test_epilogues_on_a_gpu_are_checked_and_compared(gpu_run, monkeypatch):
    import torch

    compiled = []

    def compile_(function, **options):
        compiled.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(torch.compiler, "reset", lambda: compiled.append("reset"))
    rows = list(modes.epilogue(gpu_run()))
    forms = ("gelu", "gelu_tanh", "residual")
    assert [(row.subject.variant, row.subject.mode) for row in rows] == [
        *((name, mode) for name in ("pipelined", "peer:torch") for mode in ("", *forms)),
        *(("peer:torch-compile", mode) for mode in forms),
    ]  # fmt: skip
    assert compiled == ["reset", *[{"dynamic": False, "mode": "max-autotune-no-cudagraphs"}] * 3]
    assert all(row.ok for row in rows)
    for row in rows[1:4]:
        assert row.of_plain == row.times.device.median / rows[0].times.device.median
    assert rows[1].rates.of_ceiling == rows[5].times.device.median / rows[1].times.device.median
    bytes_per_ms = [row.rates.gbps * row.times.device.median for row in rows[:4]]
    assert bytes_per_ms[3] - bytes_per_ms[0] == pytest.approx(2 * 24 * 16 * 1e-6), "the residual is read"
    assert bytes_per_ms[1] == pytest.approx(bytes_per_ms[0])


def test_peers_can_be_left_out_and_added(gpu_run, monkeypatch):
    import torch

    def no_compiler(function, **options):
        def call(*arrays):
            raise RuntimeError("no valid choices\nfor this product")

        return call

    monkeypatch.setattr(torch, "compile", no_compiler)
    plain = list(modes.epilogue(gpu_run(peers=(ways.TORCH,))))
    assert {row.subject.variant for row in plain} == {"pipelined", "peer:torch"}
    ours, triton = modes.shapes(gpu_run(peers=(ways.TRITON,)))
    assert triton.verdict.skipped == "RuntimeError: no valid choices"
    assert ours.ok
    assert ours.rates.of_ceiling is None


def test_an_epilogue_of_the_other_gelu_is_wrong(gpu_run, monkeypatch):
    def other(a, b, out, *, activation=None, **options):
        return product(a, b, out, activation={"gelu": "gelu_tanh"}.get(activation, activation), **options)

    monkeypatch.setattr(ways, "ops", types.SimpleNamespace(gemm=other))
    shared = gpu_run(out_dtype="float32", peers=(ways.TORCH,))
    rows = {row.subject.mode: row for row in modes.epilogue(shared) if row.subject.variant == "pipelined"}
    assert [row.ok for row in rows.values()] == [True, False, True, True]


def test_a_product_without_its_residual_is_wrong(gpu_run, monkeypatch):
    def other(a, b, out, *, residual=None, **options):
        return product(a, b, out, **options)

    monkeypatch.setattr(ways, "ops", types.SimpleNamespace(gemm=other))
    rows = [row for row in modes.epilogue(gpu_run(peers=(ways.TORCH,))) if row.subject.variant == "pipelined"]
    assert [(row.subject.mode, row.ok) for row in rows][-2:] == [("gelu_tanh", True), ("residual", False)]


def test_calls_are_measured_on_the_host(gpu_run):
    ours, theirs = modes.calls(gpu_run(rounds=1))
    for row in (ours, theirs):
        assert row.times.call.median > 0
        assert row.times.call_arrays == "torch"
        assert row.times.device is None


def test_the_whole_script_on_a_gpu(sim, monkeypatch, tmp_path):
    """All of the script's own code runs; the device, the clocks, the timer and cudakit's kernels are replaced."""
    torch_installed.require()
    from cudakit.commands import cli
    from cudakit.measure import ceilings, timing

    device = Gpu(sim)
    on_stream = types.SimpleNamespace(on_stream=lambda stream, ordinal: contextlib.nullcontext())
    copy = {"bytes": 4 << 30, "gbps": 4200.0, "time_ms": {}}
    monkeypatch.setattr(cli, "open_device", lambda spec: contextlib.nullcontext(device))
    monkeypatch.setattr(timing, "GpuTimer", lambda *_, budget_ms: Timer())
    monkeypatch.setattr(ceilings, "large_copy_ceiling", lambda *_: copy)
    monkeypatch.setattr(rounds, "Clocks", lambda _: contextlib.nullcontext(Silent()))
    monkeypatch.setattr(
        arrays, "made_for", lambda _, stream, seed: arrays.TorchArrays(on_stream, device, stream, seed, "cpu")
    )
    monkeypatch.setattr(ways, "ops", OPS)
    monkeypatch.setattr(cases, "MOST", 40)
    target = tmp_path / "out.json"
    settings = ["--rounds", "2", "--rest-ms", "1", "--peers", "torch", "--json", str(target)]
    tabled = {"--shapes": ["24"], "--drawn": ["3"], "--errors": [], "--epilogue": [], "--calls": []}
    tabled["--grouped"] = ["2x24x16x8"]
    for option, values in tabled.items():
        shapes = [] if option in ("--shapes", "--drawn", "--grouped") else ["--shapes", "24"]
        done = programs.run(EXAMPLE, option, *values, *shapes, *settings)
        assert done.returncode == 0, done.stderr
        result = json.loads(target.read_text())
        assert (result["clocks"], result["ceilings"]["copy_large"]) == ("NVML", copy)
        assert {row["table"] for row in result["rows"]} == {option.strip("-")}
        assert "medians of 2 rounds in turns" in done.stdout
        assert ("geometric mean" in done.stdout) == (option in ("--shapes", "--drawn", "--grouped"))
        timed = [row for row in result["rows"] if row["ok"]]
        assert all((row["time_ms"] is not None) == (option not in ("--errors", "--calls")) for row in timed)


def test_rows_measured_before_an_error_are_kept(monkeypatch):
    shapes = modes.shapes

    def rows(shared):
        yield from shapes(shared)
        raise MemoryError("the second product")

    monkeypatch.setitem(modes.MODES, "shapes", rows)
    failed = run("--shapes", "16")
    assert failed.returncode == 2
    assert "the second product" in failed.stderr
    assert json.loads(failed.stdout)["rows"]
