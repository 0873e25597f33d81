"""Every example runs from its own command line, and keeps the contract for flags, JSON and exit status."""

from __future__ import annotations

import importlib.util
import json
import math
import runpy
import subprocess
import sys

import numpy as np
import programs
import pytest
from paths import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

ROW = {
    "family": str, "variant": str, "rung": (int, type(None)), "shape": list, "dtype": str, "ok": (bool, type(None)),
    "skipped": (str, type(None)), "max_abs_error": (float, type(None)), "max_rel_error": (float, type(None)),
    "time_ms": (dict, type(None)), "end_to_end_ms": (float, type(None)), "gbps": (float, type(None)),
    "call_us": (dict, type(None)),
    "tflops": (float, type(None)), "of_ceiling": (float, type(None)), "counters": (dict, type(None)),
}  # fmt: skip

# Arguments that make an example short enough for a test, in addition to its defaults for the simulated device.
SHORT = {
    "add_1d": ["--n", "3000"],
    "add_2d": ["--shapes", "33x20,16x16"],
    "batch": ["--shapes", "3x20x33"],
    "batched_gemm": ["--count", "9", "--size", "8", "--chunk", "4"],
    "gemm_fft": ["--count", "7", "--size", "6", "--chunk", "3"],
    "hybrid_filter": ["--size", "20"],
    "ptychography": ["--positions", "2", "--size", "12"],
    "cluster": ["--count", "9", "--size", "16", "--chunk", "2"],
    "several_devices": ["--count", "9", "--size", "16", "--chunk", "2"],
    "tensor_parallel": ["--shapes", "20x17x12"],
    "block_shapes": ["--shapes", "3x8x40"],
    "blur_images": ["--count", "5", "--size", "20", "--chunk", "2"],
    "broadcast": ["--shapes", "4x5x36"],
    "compilers": ["--shapes", "3000,5x100"],
    "chunked_add": ["--count", "23", "--size", "12", "--chunk", "5"],
    "attention": ["--shapes", "1x2x1x17x33x32"],
    "blur": ["--shapes", "2x20x36"],
    "random_numbers": ["--count", "2", "--size", "30"],
    "fft": ["--shapes", "3x12", "--planes", "2x6x10"],
    "gemm": ["--shapes", "40,33x8x20"],
    "gemm_against_cublas": ["--shapes", "64,33x20x17", "--rounds", "1", "--rest-ms", "1"],
    "iterate": ["--shapes", "9x40", "--steps", "6", "--length", "4"],
    "tiled_matmul": ["--shapes", "33x40x20"],
    "simulator_speed": ["--cases", "softmax:2x100,matmul:20,vector_add:300", "--seconds", "0"],
    "nvtx_matmul": ["--shapes", "33x20x12"],
    "occupancy": ["--shapes", "2000"],
    "launch_overhead": ["--repeats", "1", "--bursts", "1"],
    "libraries": ["--shapes", "24"],
    "reconstruction": ["--side", "2", "--size", "6", "--iterations", "3"],
    "reductions": ["--shapes", "12x100"],
    "softmax_compare": ["--shapes", "4x100,1x33"],
    "streams": ["--count", "11", "--size", "12", "--chunk", "3", "--study", "1,3"],
    "vector_add": ["--shapes", "1000,3x5x7"],
}


def run(name, *arguments):
    return programs.run(ROOT / "examples" / f"{name}.py", *arguments)


def check_contract(result, kind):
    assert set(result["device"]) >= {"name", "kind", "arch", "driver", "nvrtc"}
    assert result["device"]["kind"] == kind
    assert isinstance(result["ceilings"], dict)
    assert result["rows"]
    for row in result["rows"]:
        for key, types in ROW.items():
            assert isinstance(row[key], types), f"{key} of {row['variant']} is {row[key]!r}"
        assert (row["ok"] is None) == (row["skipped"] is not None)
        if row["time_ms"] is not None:
            assert set(row["time_ms"]) == {"median", "p10", "p90", "n"}
            spread = [row["time_ms"][key] for key in ("p10", "median", "p90")]
            assert spread == sorted(spread)
            assert row["time_ms"]["p10"] > 0
        if kind == "sim":
            assert row["of_ceiling"] is None
            assert row["end_to_end_ms"] is None
            assert row["call_us"] is None, "host times of the simulator are not launch costs"
            assert row["time_ms"] is None or row["variant"] == "cpu", "a simulated device has no clock"


def expect_checked(result):
    """Check that the run did not skip every kernel."""
    assert any(row["ok"] for row in result["rows"] if row["variant"] != "cpu"), "only the host's row was checked"


SLOW = ("gemm", "launch_mistakes", "launch_overhead", "simulator_speed", "call_overhead", "reductions")


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.long] if p.stem in SLOW else []) for p in EXAMPLES]
)
def test_every_example_keeps_the_contract_on_the_simulated_device(path):
    done = run(path.stem, "--device", "sim", "--json", "-", *SHORT.get(path.stem, []))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    check_contract(result, "sim")
    assert all(row["ok"] is not False for row in result["rows"])
    expect_checked(result)
    assert "sim" in done.stderr.lower(), "the table goes to stderr when JSON has stdout"


def test_tiled_matmul_skips_only_the_tile_that_fits_no_block():
    done = run("tiled_matmul", "--device", "sim", "--json", "-", "--quiet", *SHORT["tiled_matmul"])
    assert done.returncode == 0, done.stderr
    rows = {row["variant"]: row for row in json.loads(done.stdout)["rows"]}
    assert [rows[tile]["ok"] for tile in ("8x8", "16x16", "32x32", "64x64")] == [True, True, True, None]
    assert "a block of 64x64x1 has 4096 threads, but sim:sm_90a supports at most 1024" in rows["64x64"]["skipped"]


def test_tiles_of_16_make_a_sixteenth_of_the_loads_and_an_eighth_of_the_sectors():
    """Loads of a warp of the naive kernel share sectors, so sectors fall by less than loads. Tiles of 64 need a fourth
    of both, whatever the number of outputs per thread."""
    done = run("tiled_matmul", "--device", "sim", "--shapes", "64", "--json", "-", "--quiet")
    assert done.returncode == 0, done.stderr
    counters = {row["variant"]: row["counters"] for row in json.loads(done.stdout)["rows"] if row["counters"]}

    def ratio(figure, one, other):
        return counters[one][f"global_load_{figure}"] / counters[other][f"global_load_{figure}"]

    assert (ratio("requests", "naive", "16x16"), ratio("sectors", "naive", "16x16")) == (16, 8)
    for outputs in (4, 8, 16):
        tiles = f"64x64_{outputs}_outputs"
        assert (ratio("requests", "16x16", tiles), ratio("sectors", "16x16", tiles)) == (4, 4)
    done = run("tiled_matmul", "--device", "sim", "--shapes", "33x40x20", "--once", "--json", "-", "--quiet")
    assert {row["variant"] for row in json.loads(done.stdout)["rows"]} == {*counters, "64x64"}, "the host is not timed"


def test_random_matrices_have_the_sums_and_products_of_their_distribution():
    arguments = ["--count", "301", "--size", "9", "--chunk", "5", "--buffers", "2"]
    done = run("random_numbers", "--device", "sim", *arguments, "--json", "-", "--quiet")
    assert done.returncode == 0, done.stderr
    rows = {row["variant"]: row for row in json.loads(done.stdout)["rows"]}
    assert all(row["ok"] for row in rows.values())
    assert set(rows["reduced"]["statistics"]) == {"sums", "squares"}
    for found in (*rows["reduced"]["statistics"].values(), *rows["multiplied"]["statistics"].values()):
        assert abs(found["mean"]) < 0.35
        assert 0.5 < found["variance"] < 1.5
    done = run("random_numbers", "--device", "sim", "--count", "1", "--size", "7", "--json", "-", "--quiet")
    assert "a product needs two matrices" in json.loads(done.stdout)["rows"][-1]["skipped"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda sums: sums + 0.3, "the mean score"),
        (lambda sums: sums * 2, "the variance of the scores"),
        (lambda sums: np.where(np.arange(sums.size) == 77, 9.0, sums), "standard deviations from its expected value"),
        (lambda sums: np.where(np.arange(sums.size) == 77, np.nan, sums), "the mean score"),
    ],
)
def test_sums_that_do_not_fit_their_distribution_are_wrong(change, words):
    scores = runpy.run_path(str(ROOT / "examples" / "random_numbers.py"))["scores"]
    sums = np.random.default_rng(0).standard_normal(1000)
    assert scores(5 + 3 * sums, 5, 3)[1] == []
    assert any(words in wrong for wrong in scores(5 + 3 * change(sums), 5, 3)[1])


def test_nvtx_matmul_checks_its_product_and_draws_its_ranges(tmp_path):
    picture = tmp_path / "ranges.png"
    drawn = ["--picture", str(picture)] if importlib.util.find_spec("matplotlib") else []
    done = run("nvtx_matmul", "--device", "sim", "--json", "-", "--quiet", *SHORT["nvtx_matmul"], *drawn)
    assert done.returncode == 0, done.stderr
    assert {row["variant"]: row["ok"] for row in json.loads(done.stdout)["rows"]} == {"cpu": True, "tiled": True}
    assert not drawn or picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.gpu
@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.stem != "simulator_speed"], ids=lambda path: path.stem)
def test_every_example_keeps_the_contract_on_the_gpu(path, gpu):
    if path.stem == "cluster":
        pytest.importorskip("distributed", reason="needs the dask extra")
    # A separate process: libraries of peers keep state that other tests may have reset.
    command = [sys.executable, str(path), "--device", "gpu", "--json", "-", *SHORT.get(path.stem, [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    check_contract(result, "gpu")
    if path.stem in ("nvtx_matmul", "tiled_matmul"):
        expect_checked(result)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_explains_itself(path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = run(path.stem, "--help")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert all(flag in done.stdout for flag in ("--device", "--json", "--quiet"))


def test_softmax_compare_tells_its_story_in_counters(tmp_path):
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    done = run(
        "softmax_compare", "--device", "sim", "--shapes", "32x512,64x256", "--json", str(out), "--plot", str(picture)
    )
    assert done.returncode == 0, done.stderr
    assert "thread_per_row" in done.stdout
    assert "sectors/request" in done.stdout
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    rows = {row["variant"]: row for row in json.loads(out.read_text())["rows"] if row["shape"] == [32, 512]}
    counters = {name: row["counters"] for name, row in rows.items() if row["counters"]}
    # One thread per row reads one sector per element; the threads of a block per row share sectors.
    assert counters["thread_per_row"]["sectors_per_request"] == pytest.approx(32)
    assert counters["tree_reduce"]["sectors_per_request"] == pytest.approx(4)
    # Per element: three reads and one write, two reads and one write, one read and one write.
    assert counters["tree_reduce"]["bytes_per_element"] == pytest.approx(16)
    assert counters["online_fused"]["bytes_per_element"] == pytest.approx(12)
    assert counters["registers"]["bytes_per_element"] == pytest.approx(8)
    assert counters["registers"]["instructions"] < counters["serial_block"]["instructions"]
    assert math.isfinite(rows["cpu"]["time_ms"]["median"])


def test_vector_add_is_right_on_a_volume_and_names_unaligned_work():
    done = run("vector_add", "--device", "sim", "--shapes", "10x11x12", "--json", "-", "--quiet")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {row["variant"] for row in rows} >= {"cpu", "vector_add", "vector_add_3d", "vector_add_vec4"}
    assert all(row["ok"] for row in rows)


def test_quiet_is_quiet():
    done = run("vector_add", "--device", "sim", "--shapes", "100", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_once_launches_each_variant_once():
    done = run("softmax_compare", "--device", "sim", "--shapes", "4x64", "--once", "--json", "-", "--quiet")
    rows = json.loads(done.stdout)["rows"]
    kernels = {"two_launches": 2}
    assert all(row["counters"]["launches"] == kernels.get(row["variant"], 1) for row in rows if row["ok"])
    assert "cpu" not in {row["variant"] for row in rows}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shapes", "4xfour"], "is not a shape"),
        (["--variants", "fastest"], "no variant 'fastest'"),
        (["--device", "gpu:99"], "gpu:99"),
        (["--device", "toaster"], "toaster"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_sentence(arguments, words):
    done = run("softmax_compare", "--device", "sim", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_occupancy_falls_with_shared_memory_and_what_no_block_can_have_is_skipped():
    knobs = ["--blocks", "256", "--shared", "0,50000,200000,300000", "--loads", "1"]
    done = run("occupancy", "--device", "sim", "--shapes", "2000", *knobs, "--json", "-", "--quiet")
    assert done.returncode == 0, done.stderr
    _, *rows, refused = json.loads(done.stdout)["rows"]
    assert [row["launch"]["occupancy"] for row in rows] == [1, 0.5, 0.125]
    assert ["shared memory" in row["idea"] for row in rows] == [False, True, True]
    assert all(row["counters"]["bytes_per_element"] == 8 for row in rows)
    assert "300" in refused["skipped"]


def test_launch_overhead_finds_a_warm_cache_without_nvrtc():
    done = run("launch_overhead", "--device", "sim", "--json", "-", "--quiet", *SHORT["launch_overhead"])
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["first_launch"]["cold"]["nvrtc_loaded"]
    assert not result["first_launch"]["warm"]["nvrtc_loaded"]
    assert result["import"]["seconds"]["cudakit"] > 0
    assert [(row["family"], row["variant"]) for row in result["rows"]] == [
        *(("launch", name) for name in ("bare", "checked", "checked-varied", "prepared")),
        *[("graph", "bare"), ("graph", "replay")] * 2,
        *(("nvtx", name) for name in ("bare", "range")),
        *(("gemm", name) for name in ("bare", "gemm")),
        *(("fft", name) for name in ("bare", "forward")),
    ]
    for row in result["rows"]:
        if row["family"] in ("gemm", "fft"):
            assert row["skipped"] == "it needs a GPU"
        else:
            assert row["ok"]
            assert row["host_us"]["median"] > 0


def test_call_overhead_checks_every_call_and_times_none_without_a_gpu():
    done = run("call_overhead", "--device", "sim", "--json", "-")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    checked = [row for row in rows if row["variant"] == "cudakit arrays"]
    assert {row["family"] for row in checked} == {
        "launch",
        "softmax",
        "add",
        "sum",
        "scale",
        "gemm",
        "gemm_half",
        "attention",
    }
    assert all(row["ok"] for row in checked)
    assert all(row["skipped"] == "it needs a GPU" for row in rows if row not in checked)
    assert all(row[key] is None for row in rows for key in ("call_us", "loop_us", "above_torch_us", "of_torch"))
    assert "call times are measured only on a GPU" in done.stderr


@pytest.mark.gpu
def test_call_overhead_measures_our_calls_beside_torchs(gpu):
    pytest.importorskip("torch")
    done = run("call_overhead", "--device", "gpu", "--json", "-", "--quiet", "--rounds", "1", "--bursts", "1")
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout)["rows"]:
        assert row["ok"], (row["family"], row["variant"], row["skipped"], row["why"])
        taken, other = ("loop_us", "call_us") if row["mode"] == "loop" else ("call_us", "loop_us")
        assert row[taken]["median"] > 0
        assert row[other] is None


def test_iterate_does_the_same_steps_each_way():
    arguments = ["--shapes", "5x33", "--steps", "14", "--length", "4", "--json", "-", "--quiet"]
    done = run("iterate", "--device", "sim", *arguments)
    assert done.returncode == 0, done.stderr
    cpu, *rows = json.loads(done.stdout)["rows"]
    assert cpu["variant"] == "cpu"
    assert [row["variant"] for row in rows] == ["launches", "prepared", "graph"]
    assert all(row["ok"] and row["host_us"]["median"] > 0 for row in rows)
    # three graphs of 4 steps, and one of the remaining 2
    assert {row["counters"]["launches"] for row in rows} == {14}
    assert run("iterate", "--device", "sim", "--steps", "7").returncode == 2


def test_libraries_tells_what_half_sums_and_the_largest_size_cost():
    done = run("libraries", "--device", "sim", "--shapes", "40", "--json", "-", "--quiet")
    assert done.returncode == 0, done.stderr
    rows = {(row["family"], row["variant"]): row for row in json.loads(done.stdout)["rows"]}
    errors = [
        rows["mixed precision", name]["max_rel_error"]
        for name in ("float16, float16 sums", "float16, float32 sums", "float16 to float32")
    ]
    assert errors[0] > 2 * errors[1] > 20 * errors[2]
    assert "largest |x| is -100, at 801 from 1" in rows["level 1", "amax"]["idea"]
    assert "numpy" in rows["sgemm", "cublas"]["idea"]  # the library that ran


def test_compilers_tells_what_each_made_and_refuses_a_row_that_fits_no_block():
    done = run("compilers", "--device", "sim", "--shapes", "100,1x32769", "--json", "-", "--quiet")
    assert done.returncode == 0, done.stderr
    rows = {(row["family"], row["variant"]): row for row in json.loads(done.stdout)["rows"]}
    for family in ("vector_add", "softmax"):
        ours = rows[family, "cuda"]
        assert ours["ok"]
        assert ours["counters"]["instructions"] > 0
        assert ours["code"]["registers"] == ours["launch"]["registers"]
        assert ours["code"]["sass_instructions"] > 20
    assert rows["vector_add", "triton"]["ok"] or "pip install" in rows["vector_add", "triton"]["skipped"]
    for variant in ("triton", "cutile"):
        reason = rows["softmax", variant]["skipped"]
        assert "at most 32,768 columns, not 32,769" in reason or "pip install" in reason
    assert rows["vector_add", "cutile_16"]["skipped"]
    assert run("compilers", "--device", "sim", "--shapes", "2x3x4").returncode == 2


def test_simulator_speed_checks_counts_and_compares():
    """A peer that is not installed has a skipped row; other results are checked and their instructions counted."""
    arguments = ["--cases", "softmax:3x300,matmul:40,vector_add:1000", "--seconds", "0", "--json", "-", "--quiet"]
    done = run("simulator_speed", *arguments, "--peer-python", sys.executable)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {(row["family"], row["variant"]) for row in rows} == {
        (family, variant)
        for family in ("softmax", "matmul", "vector_add")
        for variant in ("sim", "sim:checked", "compiled", "compiled:checked", "peer:numba", "peer:triton")
    }
    for row in rows:
        if row["variant"].startswith("peer"):
            assert row["skipped"] or row["over_ours"] > 0
            continue
        if row["variant"].startswith("compiled") and row["skipped"]:
            assert row["skipped"] == "llvmlite is not installed"
            continue
        assert row["ok"] is True
        assert row["lane_instructions_per_second"] == row["lane_instructions"] / row["seconds"]["median"]
        assert (row["over_unchecked"] is None) == (not row["variant"].endswith(":checked"))
        assert (row["over_compiled"] is None) == row["variant"].startswith("sim")


def test_simulator_speed_measures_few_lanes_and_loading():
    """Their results are checked; no other simulator runs them."""
    cases = "one_warp:96,named_barriers:3,grid_sync:2,grid_sync:3,load:3"
    done = run("simulator_speed", "--cases", cases, "--seconds", "0", "--json", "-", "--quiet")
    assert done.returncode == 0, done.stderr
    rows = [row for row in json.loads(done.stdout)["rows"] if not row["skipped"]]
    assert {row["family"] for row in rows} == {"one_warp", "named_barriers", "grid_sync", "load"}
    assert all(row["ok"] for row in rows)
    for row in rows:
        figure = "ms_per_line" if row["family"] == "load" else "microseconds_per_instruction"
        assert row[figure] > 0
        assert not row["variant"].startswith("peer")


def test_simulator_speed_counts_large_cases_from_small_ones():
    """Counting is slow, so counts of large cases are computed from blocks that do the same work. They are exact."""
    code = """
import runpy, sys
names = runpy.run_path(sys.argv[1])
for family, shape in (("softmax", (5, 700)), ("matmul", (64,)), ("vector_add", (1000,))):
    assert names["scaled_count"](family, shape) == names["count"](family, shape)[0], family
"""
    path = str(ROOT / "examples" / "simulator_speed.py")
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "gpu"], "measures only the simulated device"),
        (["--cases", "fft:8"], "the families are"),
        (["--cases", "softmax:8"], "write softmax:ROWSxCOLUMNS"),
        (["--cases", "one_warp:33"], "a multiple of 32"),
    ],
)
def test_simulator_speed_refuses_what_it_cannot_measure(arguments, words):
    done = run("simulator_speed", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("ends", "outcome", "skipped"),
    [
        ('print(\'a word of the package\'); print(\'{"outcome": "refused", "said": ""}\')', "refused", None),
        ('import os; print(\'{"outcome": "wrong", "said": ""}\', flush=True); os.abort()', "wrong", None),
        ("import os; os.abort()", "fault", None),
        ("import not_there", None, "it failed before the launch: ModuleNotFoundError: No module named 'not_there'"),
    ],
)
def test_a_launch_that_was_never_made_is_no_fault(tmp_path, monkeypatch, ends, outcome, skipped):
    example = runpy.run_path(str(ROOT / "examples" / "launch_mistakes.py"))
    script = tmp_path / "attempt.py"
    script.write_text(ends)
    monkeypatch.setitem(example["run"].__globals__, "SCRIPT", script)
    (ours, theirs) = example["attempts"](["float64 array"], 8, gpu=True)[:2]
    for row in (ours, theirs):
        row.skip(None)
        example["run"](row, "cupy", [])
        assert (row.outcome, row.verdict.skipped) == (outcome, skipped)
        example["judge"](row, right="plain Python numbers")
    assert ours.ok is (outcome == "refused")
    assert theirs.ok is None


def test_cudakit_refuses_each_of_the_nine_mistakes():
    """The launches in the table's first column are made on the simulated device, all in one process."""
    script = runpy.run_path(str(ROOT / "examples" / "launch_mistakes" / "attempt.py"))
    mistakes = list(script["MISTAKES"])
    assert len(mistakes) == 10
    for mistake in mistakes:
        outcome, said = script["attempt"](lambda name: script["with_cudakit"](name, "sim"), mistake)
        if mistake == "plain Python numbers":
            assert (outcome, said) == ("right", "")
        else:
            assert outcome == "refused", mistake
            assert said.startswith(("LaunchError: scale: ", "LaunchError: scale_int: "))
