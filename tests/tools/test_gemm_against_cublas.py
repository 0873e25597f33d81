"""examples/gemm_against_cublas.py: its draws, checks, turns, clocks and tables. The code for a GPU is tested with torch
on the CPU, and with given times."""

from __future__ import annotations

import contextlib
import functools
import importlib
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
from paths import ROOT

from cudakit import nvtx
from cudakit.families import gemm_grouped
from cudakit.families.gemm_half import FAMILY
from cudakit.measure.timing import Spread
from cudakit.memory.array import as_dtype

EXAMPLE = ROOT / "examples" / "gemm_against_cublas.py"
SIZES = "33x20x17,64"


def part(name):
    """Import one module of the example."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        return importlib.import_module(f"half_products.{name}")
    finally:
        sys.path.remove(str(ROOT / "examples"))


arrays, cases, grouped_of, modes, product_of, rounds, tables, ways = map(
    part, ("arrays", "cases", "grouped", "modes", "product", "rounds", "tables", "ways")
)


def run(*arguments):
    return programs.run(EXAMPLE, "--device", "sim", "--json", "-", *arguments)


def result_of(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# Draws and cases ------------------------------------------------------------------------------------------------------


def test_drawn_shapes_are_those_that_the_page_describes():
    shapes = cases.drawn(400, 20261128)
    expected = np.exp(np.random.default_rng(20261128).uniform(math.log(16), math.log(16384), (400, 3)))
    assert shapes == [tuple(int(x) for x in row) for row in np.rint(expected)]
    assert cases.drawn(400, 1) != shapes
    extents = np.array(shapes)
    assert extents.min() >= 16
    assert extents.max() <= 16384
    for low in (16, 64, 256, 1024, 4096):  # equal parts of the logarithm, 240 each within their noise
        assert 190 < ((extents >= low) & (extents < 4 * low)).sum() < 290


def test_traffic_counts_a_float32_output_as_four_bytes():
    case = cases.Case((3, 5, 7), "float16")
    assert (case.flops, case.traffic, case.mode) == (210, 2 * (21 + 35 + 15), "")
    wide = cases.Case((3, 5, 7), "float16", "tn", "float32", (1, 0, 2))
    assert (wide.traffic, wide.mode) == (2 * (21 + 35) + 60, "tn float32 out rows + 1,0,2")


def test_rows_per_group_are_those_that_the_page_describes():
    shape = (8, 16384, 4096, 7168)
    found = {case.mode: case for case in cases.grouped(shape, 20261128)}
    assert list(found) == ["drawn", "drawn masked", "equal", "equal masked"]
    expected = np.random.default_rng(20261128).integers(256, 4097, 8)
    assert found["drawn"].rows == found["drawn masked"].rows == tuple(expected)
    assert found["drawn"].shape == (8, expected.sum(), 4096, 7168)
    assert found["equal"].rows == (2048,) * 8
    assert found["equal"].shape == shape
    assert cases.grouped(shape, 1)[0].rows != found["drawn"].rows
    for seed in range(50):
        rows = cases.grouped((64, 64 * 16, 8, 8), seed)[0].rows
        assert set(rows).issubset(range(2, 33))
    assert min(cases.grouped((64, 64, 8, 8), 0)[0].rows) == 1


def test_the_work_of_a_group_is_that_of_its_own_rows():
    for case in cases.grouped((2, 6, 5, 7), 3, dtype="float16", out_dtype="float32"):
        rows = case.shape[1]
        assert rows == sum(case.rows)
        assert (case.flops, case.traffic) == (2 * rows * 35, 2 * (rows * 7 + 2 * 35) + 4 * rows * 5)
        assert case.flops == case.one.flops
    masked = cases.GroupedCase((2, 5, 5, 7), rows=(4, 1), capacity=6)
    assert (masked.sizes.tolist(), masked.starts.tolist(), masked.held) == ([4, 1], [0, 6], 12)
    contiguous = cases.GroupedCase((2, 5, 5, 7), rows=(4, 1))
    assert (contiguous.sizes.tolist(), contiguous.starts.tolist(), contiguous.held) == ([0, 4, 5], [0, 4], 5)


def test_cancelling_data_has_small_sums(sim):
    made = arrays.OwnArrays(sim, sim.default_stream, 0)
    for k in (64, 65):
        a, b = cases.cancelling(made, 8, 9, k)
        pairs = k // 2 * 2
        assert np.abs(a[:, :pairs] @ b[:pairs]).max() < 0.05 * math.sqrt(k)
        assert np.abs(a).mean() > 0.5
    a, _ = cases.large_row(made, 9, 3, 500)
    assert np.abs(a).mean(axis=1).argmax() == 4


# On the simulated device ----------------------------------------------------------------------------------------------


def test_every_layout_dtype_and_padding_is_multiplied_and_checked():
    arguments = ["--shapes", SIZES, "--layouts", "nn,nt,tn,tt", "--dtypes", "bfloat16,float16", "--leading", "1,3,5"]
    for out in ("", "float32"):
        rows = result_of(run(*arguments, "--out-dtype", out))["rows"]
        ours = [row for row in rows if not row["variant"].startswith("peer:")]
        assert len({(row["dtype"], row["mode"], *row["shape"]) for row in ours}) == len(ours) == 16
        assert all(row["ok"] and row["rung"] for row in ours)
        unknown = {row["variant"] for row in ours} - {variant.name for variant in FAMILY}
        assert not unknown, "named after the variant that ran"
        assert {row["skipped"] for row in rows if row not in ours} == {"it needs a GPU"}


def test_all_tables_in_one_run(tmp_path):
    page = tmp_path / "page.md"
    asked = ["--drawn", "2", "--errors", "--epilogue", "--calls", "--grouped"]
    done = run(*asked, "--shapes", "24x40x33", "--markdown", str(page))
    result = result_of(done)
    ours = [row for row in result["rows"] if not row["variant"].startswith("peer:")]
    counts = {name: sum(row["table"] == name for row in ours) for name in modes.MODES}
    assert counts == {"shapes": 0, "drawn": 2, "errors": 8, "epilogue": 3, "calls": 1, "grouped": 4}
    assert all(row["ok"] for row in ours)
    assert all(row["time_ms"] is None and row["call_us"] is None for row in result["rows"])
    titles = [title for name, (title, _) in tables.TABLES.items() if name != "shapes"]
    assert all(title in done.stderr and f"**{title}**" in page.read_text() for title in titles)
    errors = {(row["data"], row["mode"]): row for row in ours if row["table"] == "errors"}
    for kind in cases.DATA:
        narrow, wide = errors[kind, kind], errors[kind, f"float32 out {kind}"]
        assert 0 < wide["mean_abs_error"] < narrow["mean_abs_error"] < narrow["max_abs_error"]
    worst = max(("normal", "large_row"), key=lambda kind: errors[kind, kind]["max_abs_error"])
    assert worst == "large_row"


def test_grouped_products_are_checked_in_both_forms():
    arguments = ["--grouped", "3x96x40x32,2x10x33x17", "--dtypes", "bfloat16,float16"]
    for out in ("", "float32"):
        result = result_of(run(*arguments, "--out-dtype", out, "--seed", "7"))
        rows = result["rows"]
        assert {(row["table"], row["family"]) for row in rows} == {("grouped", "gemm_grouped")}
        ours, one, torch = (
            [row for row in rows if row["variant"].startswith(name)] for name in ("grouped", "peer:gemm", "peer:torch")
        )
        assert len({(*row["shape"], row["dtype"], row["mode"]) for row in ours}) == len(ours) == len(one) == 16
        assert all(row["ok"] for row in ours + one)
        assert {row["variant"] for row in ours}.issubset(variant.name for variant in gemm_grouped.FAMILY)
        assert {row["skipped"] for row in torch} == {"it needs a GPU"}
        for row, other in zip(ours, one, strict=True):
            assert (row["shape"], row["mode"]) == (other["shape"], other["mode"])
            assert other["idea"].startswith(f"cudakit.ops.gemm, one product of {sum(row['group_rows'])} rows: ")
            assert other["idea"].rpartition(" ")[2] in {variant.name for variant in FAMILY}
            groups, rows_in_all, *_ = row["shape"]
            assert (len(row["group_rows"]), sum(row["group_rows"])) == (groups, rows_in_all)
            assert bool(row["capacity"]) == ("masked" in row["mode"])
    first = result["rows"][0]["group_rows"]
    assert first == np.random.default_rng(7).integers(4, 65, 3).tolist()


def test_grouped_products_alone_make_one_table_with_their_rows(tmp_path):
    page = tmp_path / "page.md"
    done = run("--grouped", "--markdown", str(page))
    assert {row["table"] for row in result_of(done)["rows"]} == {"grouped"}
    for text in (done.stderr, page.read_text()):
        assert "3x96x40x32 equal: 32, 32, 32 rows" in text
        assert "3x96x40x32 equal masked: memory for 64 rows per group" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--grouped", "8x64x64"], "--grouped 8x64x64: write GROUPSxROWSxNxK, with extents of at least 1"),
        (["--grouped", "8x0x64x64"], "--grouped 8x0x64x64: write GROUPSxROWSxNxK, with extents of at least 1"),
        (["--grouped", "8x100x64x64"], "100 rows cannot be divided into 8 equal groups; write a multiple of 8 rows"),
        (["--grouped", "1025x2050x8x8"], "1025 groups; at most 1024 are supported"),
        (["--grouped", "--layouts", "nn,nt"], "--layouts nn,nt: --grouped supports only nn; leave out --layouts"),
        (["--grouped", "--leading", "0,8,0"], "--leading 0,8,0: --grouped supports only 0,0,0; leave out --leading"),
        (["--grouped", "--variant", "pipelined"], "--variant pipelined: --grouped supports only auto"),
        (["--grouped", "--peers", "torch,compile"], "--peers torch,compile: --grouped supports only torch"),
        (["--layouts", "nx"], "--layouts nx: unknown; choose from nn, nt, tn, tt"),
        (["--dtypes", "float32"], "--dtypes float32: unknown; choose from float16, bfloat16"),
        (["--peers", "cutlass"], "choose from torch, compile, triton"),
        (["--variant", "fastest"], "--variant fastest: unknown; choose from auto, wmma"),
        (["--leading", "1,2"], "write three numbers"),
        (["--shapes", "2x3x4x5"], "write N or MxNxK"),
        (["--rest-ms", "no"], "write milliseconds"),
        (["--markdown", "/no/such/folder/x.md"], "does not exist"),
    ],
)
def test_impossible_requests_are_refused(arguments, words, monkeypatch):
    monkeypatch.setattr(ways, "ops", None)  # nothing is launched
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def broken(change):
    """cudakit.ops, with a change of gemm's result on the host."""
    real = ways.ops

    def gemm(a, b, out, *, stream, **options):
        return overwritten(real.gemm(a, b, out, stream=stream, **options), stream, change)

    return types.SimpleNamespace(gemm=gemm)


def one_element(host):
    host[7, 11] += 1


def nothing_written(host):
    host[-1] = np.nan


@pytest.mark.parametrize("change", [one_element, nothing_written])
def test_a_wrong_product_is_reported_and_not_hidden_by_the_table(monkeypatch, change):
    monkeypatch.setattr(ways, "ops", broken(change))
    for table in ("--errors", "--calls"):
        done = run("--shapes", "24x40x33", table)
        assert done.returncode == 1, done.stderr
        assert "NO [1]" in done.stderr
        assert "in the sample, it is (" in done.stderr


def overwritten(array, stream, change):
    """Make `change` to an array, by its copy in host memory."""
    host = array.numpy(stream)
    change(host)
    return array.copy_from(host, stream)


def first_row_of_a_group(host):
    host[..., 0, 3] += 1


def row_after_the_last_group(host):
    host[-1, -1, 5] = 0


@pytest.mark.parametrize(
    ("change", "forms"), [(first_row_of_a_group, {"", "masked"}), (row_after_the_last_group, {"masked"})]
)
def test_a_wrong_group_is_reported(monkeypatch, change, forms):
    real = ways.ops

    def gemm_grouped(a, b, out, *, stream, **options):
        result = real.gemm_grouped(a, b, out, stream=stream, **options)
        return overwritten(result, stream, change) if ("masked" if a.ndim == 3 else "") in forms else result

    monkeypatch.setattr(ways, "ops", types.SimpleNamespace(gemm=real.gemm, gemm_grouped=gemm_grouped))
    done = run("--grouped", "3x96x40x32")
    assert done.returncode == 1, done.stderr
    wrong = {row["mode"]: row["variant"] for row in json.loads(done.stdout)["rows"] if row["ok"] is False}
    expected = [f"{kind} {form}".strip() for kind in ("drawn", "equal") for form in sorted(forms)]
    assert wrong == dict.fromkeys(expected, "grouped")


def test_groups_of_the_wrong_matrix_are_reported(monkeypatch):
    real = ways.ops

    def shifted(a, b, out, **options):
        b.copy_from(np.roll(b.numpy(options["stream"]), 1, axis=0), options["stream"])
        return real.gemm_grouped(a, b, out, **options)

    monkeypatch.setattr(ways, "ops", types.SimpleNamespace(gemm=real.gemm, gemm_grouped=shifted))
    done = run("--grouped", "3x96x40x32")
    rows = json.loads(done.stdout)["rows"]
    assert [row["ok"] for row in rows if row["variant"] == "grouped"] == [False] * 4


def test_a_wrong_product_of_all_rows_is_reported(monkeypatch):
    real = ways.ops
    monkeypatch.setattr(ways, "ops", broken(nothing_written))
    ways.ops.gemm_grouped = real.gemm_grouped
    done = run("--grouped", "3x96x40x32")
    assert done.returncode == 1, done.stderr
    assert {row["variant"] for row in json.loads(done.stdout)["rows"] if row["ok"] is False} == {"peer:gemm"}
    assert "NO [1]" in done.stderr


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


def test_clocks_are_read_by_nvidia_smi_without_pynvml(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\nwhile echo "1755, [N/A]"; do sleep 0.01; done\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with rounds.Clocks(GPU) as clocks:
        assert clocks.source == "nvidia-smi"
        assert set(readings(clocks)) == {(1755.0, None)}
    assert clocks._process.poll() is not None


def test_a_program_that_ends_is_reported(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
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


# Tables ---------------------------------------------------------------------------------------------------------------


def figures(table, variant, ms, shape=(64, 64, 64), mode="", **others):
    """A row of the JSON."""
    call = others.pop("call", None)
    row = {"table": table, "variant": variant, "shape": shape, "dtype": "bfloat16", "mode": mode, "family": "gemm_half"}
    row |= {"ok": True, "skipped": None, "why": None, "sm_mhz": 1980.0, "watts": None, "of_copy": 0.5, "gbps": 900.0}
    row |= {"time_ms": None if ms is None else {"median": ms}, "tflops": None if ms is None else 1 / ms}
    row |= {"call_us": None if call is None else {"median": call}, "of_ceiling": None, "of_plain": None}
    row |= {"group_rows": (), "capacity": 0}
    return row | {"mean_abs_error": None, "max_abs_error": None} | others


def test_products_are_summed_up_by_the_geometric_mean_and_the_least():
    rows = [
        figures("drawn", "packed", 1.0, (16, 32, 48), of_ceiling=2.0),
        figures("drawn", "peer:torch", 2.0, (16, 32, 48), of_ceiling=1.0),
        figures("drawn", "pipelined", 1.0, of_ceiling=0.5),
        figures("drawn", "peer:torch", 0.5, of_ceiling=1.0),
        figures("drawn", "pipelined", None, (9, 9, 9)),
    ]
    summary = tables.summaries({"rows": rows})["drawn"]
    assert summary == {"count": 2, "geometric_mean": 1.0, "least": 0.5, "least_at": "64x64x64 bfloat16"}
    headings, cells = tables.product_table(tables.lines_of({"rows": rows})["drawn"])
    first = dict(zip(headings, cells[0], strict=True))
    assert (first["TFLOP/s"], first["cuBLAS"], first["of cuBLAS"]) == ("1", "0.5", "2.000")
    assert (first["variant"], first["MHz, ours / cuBLAS"], first["W"]) == ("packed", "1980 / 1980", "-")
    assert cells[2][3] == "-"


def test_epilogues_are_compared_with_the_plain_product_and_with_torch():
    rows = [
        figures("epilogue", "pipelined", 1.02, mode="gelu", of_plain=1.02),
        figures("epilogue", "peer:torch", 2.04, mode="gelu"),
        figures("epilogue", "peer:torch-compile", 1.53, mode="gelu"),
    ]
    headings, (cells,) = tables.epilogue_table(tables.lines_of({"rows": rows})["epilogue"])
    found = dict(zip(headings, cells, strict=True))
    assert (found["of plain"], found["torch / ours"], found["torch-compile / ours"]) == ("1.02", "2.000", "1.500")


def test_grouped_products_are_compared_with_one_product_and_with_a_call_per_group():
    shape, columns = (2, 64, 32, 48), {"drawn": (1.05, 1.0, 2.1), "drawn masked": (1.02, 1.0, 0.51)}
    rows = []
    for mode, (ours, one, theirs) in columns.items():
        of = {"shape": shape, "mode": mode, "group_rows": (40, 24), "capacity": 64 * ("masked" in mode)}
        rows += [
            figures("grouped", "grouped", ours, **of, of_plain=ours / one, of_ceiling=theirs / ours),
            figures("grouped", "peer:gemm", one, **of | {"sm_mhz": 1700.0}),
            figures("grouped", "peer:torch", theirs, **of | {"sm_mhz": 1500.0}),
        ]
    result = {"rows": rows}
    headings, cells = tables.grouped_table(tables.lines_of(result)["grouped"])
    drawn, masked = (dict(zip(headings, line, strict=True)) for line in cells)
    assert (drawn["ms"], drawn["one product, ms"], drawn["cuBLAS per group, ms"]) == ("1.05", "1", "2.1")
    assert (drawn["ours / one"], drawn["cuBLAS / ours"], drawn["variant"]) == ("1.050", "2.000", "grouped")
    assert (masked["ours / one"], masked["cuBLAS / ours"]) == ("1.020", "0.500")
    assert drawn["MHz, ours / one / cuBLAS"] == "1980 / 1700 / 1500"
    summary = tables.summaries(result)["grouped"]
    assert summary == {
        "count": 2, "geometric_mean": pytest.approx(1), "least": 0.5, "least_at": "2x64x32x48 bfloat16 drawn masked",
        "most_of_one": 1.05, "most_of_one_at": "2x64x32x48 bfloat16 drawn",
    }  # fmt: skip
    assert tables.notes_of({**result, "summaries": {"grouped": summary}}, "grouped") == [
        "2x64x32x48 drawn: 40, 24 rows",
        "2x64x32x48 drawn masked: memory for 64 rows per group",
        "ours / one product: at most 1.050, at 2x64x32x48 bfloat16 drawn",
        "of cuBLAS: geometric mean 1.000 of 2, least 0.500 at 2x64x32x48 bfloat16 drawn masked",
    ]


def test_wrong_rows_and_differences_of_calls_are_in_the_table():
    rows = [
        figures("calls", "pipelined", None, call=6.5),
        figures("calls", "peer:torch", None, call=9.0, ok=False, why="element 3"),
    ]
    _, (cells,) = tables.call_table(tables.lines_of({"rows": rows})["calls"])
    assert cells[1:4] == ["6.5", "9", "-2.50"]
    assert cells[-1] == "NO: peer:torch: element 3"


# The code for a GPU, with torch on the CPU ----------------------------------------------------------------------------


class Gpu:
    """The simulated device, in the words of a GPU."""

    kind, ordinal = "gpu", 0

    def __init__(self, sim):
        self.synchronize, self.memory_info, self.stream = lambda: None, sim.memory_info, sim.stream
        self.info = lambda: {**sim.info(), "kind": "gpu"}

    def attribute(self, name):
        return {"L2_CACHE_SIZE": 1 << 12}[name]


def product(a, b, out, *, variant, stream, bias=None, activation=None):
    """cudakit's product of torch tensors."""
    import torch

    assert (variant, stream) == ("auto", None)
    with nvtx.range("gemm_half.pipelined"):
        found = a.float() @ b.float()
        if activation is not None:
            kind = {"gelu": "none", "gelu_tanh": "tanh"}[activation]
            found = torch.nn.functional.gelu(found + bias.float(), approximate=kind)
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
    peers = [("peer:torch-compile", "gelu"), ("peer:torch-compile", "gelu_tanh")]
    assert [(row.subject.variant, row.subject.mode) for row in rows] == [
        *((name, mode) for name in ("pipelined", "peer:torch") for mode in ("", "gelu", "gelu_tanh")), *peers
    ]  # fmt: skip
    assert compiled == ["reset", *[{"dynamic": False, "mode": "max-autotune-no-cudagraphs"}] * 2]
    assert all(row.ok for row in rows)
    for row in rows[1:3]:
        assert row.of_plain == row.times.device.median / rows[0].times.device.median
    assert rows[1].rates.of_ceiling == rows[4].times.device.median / rows[1].times.device.median


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
    assert [row.ok for row in rows.values()] == [True, False, True]


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
