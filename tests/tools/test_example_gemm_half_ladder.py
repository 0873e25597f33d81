"""examples/gemm_half_ladder.py: its rows, its turns, its refusals."""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
import types

import programs
import pytest
from paths import ROOT

from cudakit.families.gemm_half import FAMILY
from cudakit.measure.timing import Spread

EXAMPLE = ROOT / "examples" / "gemm_half_ladder.py"


def run(*arguments):
    return programs.run(EXAMPLE, "--device", "sim", "--json", "-", *arguments)


@pytest.fixture
def script(monkeypatch):
    """The names of the example."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return types.SimpleNamespace(**runpy.run_path(str(EXAMPLE)))


def test_every_variant_is_checked_or_says_why_not():
    done = run("--shapes", "40x24x32,7x5x9")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    names = [variant.name for variant in FAMILY]
    assert [row["variant"] for row in rows] == names * 2, "in the ladder's order"
    assert [row["rung"] for row in rows] == [*range(1, len(names) + 1)] * 2
    square = {row["variant"]: row for row in rows[: len(names)]}
    assert {name for name in names if not square[name]["ok"]} == {"gemv", "gemv_cluster"}
    assert "at most 8 rows or columns" in square["gemv"]["skipped"]
    unaligned = {row["variant"]: row for row in rows[len(names) :]}
    assert "tensor copies cannot access A" in unaligned["stored"]["skipped"]
    assert unaligned["packed_tiles"]["ok"]
    assert all(row["time_ms"] is None and row["watts"] is None for row in rows)


def test_selected_variants_of_both_dtypes():
    done = run("--shapes", "16x24x32", "--variants", "tiles,swizzled", "--dtypes", "float16,bfloat16", "--once")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["dtype"], row["variant"]) for row in rows] == [
        (dtype, name) for dtype in ("float16", "bfloat16") for name in ("swizzled", "tiles")
    ]
    assert all(row["ok"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--variants", "tile"], "--variants tile: unknown; choose from wmma"),
        (["--dtypes", "float32"], "--dtypes float32: unknown; choose from float16, bfloat16"),
        (["--shapes", "2x3"], "--shapes 2x3: write N or MxNxK"),
        (["--shapes", "0"], "extents of at least 1"),
        (["--rounds", "0"], "at least 1"),
    ],
)
def test_impossible_requests_are_refused(arguments, words):
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


class Timer:
    """Makes each launch once, and returns the next of its times in milliseconds."""

    def __init__(self, times):
        self.times = iter(times)

    def time(self, launches):
        for launch in launches:
            launch()
        return Spread.of([next(self.times)])


class Clocks:
    """A clock that falls by 100 MHz per measurement."""

    source, mhz = "NVML", 2000.0

    @contextlib.contextmanager
    def reading(self, into):
        self.mhz -= 100
        into.append((self.mhz, 700.0))
        yield


@pytest.fixture
def timed(sim, script):
    """A function that returns the rows of two variants, with given times of their measurements."""

    def timed(times):
        made = script.OwnArrays(sim, sim.default_stream, 0)
        shared = script.product.Run(
            device=sim, made=made, timer=Timer(times), clocks=Clocks(), say=None, rounds=3, rest_s=0
        )
        return script.rows_of(shared, (16, 24, 64), "bfloat16", script.chosen(["swizzled", "tiles", "gemv"]))

    return timed


def test_variants_are_timed_in_turns_with_clock_and_power(timed):
    swizzled, tiles, gemv = timed([4, 400, 480, 8, 16, 440])  # four products per measurement
    assert (swizzled.times.device.median, tiles.times.device.median) == (2, 110)
    assert swizzled.rates.tflops == pytest.approx(2 * 16 * 24 * 64 / 2e9)
    assert (swizzled.sm_mhz, tiles.sm_mhz) == (1600, 1700)
    assert (swizzled.watts, tiles.watts) == (700, 700)
    assert gemv.verdict.skipped
    assert gemv.times.device is None


def test_a_wrong_variant_is_reported_and_not_timed(timed, monkeypatch):
    from cudakit import ops

    real = ops.gemm

    def gemm(a, b, out, *, variant, stream):
        result = real(a, b, out, variant=variant, stream=stream)
        if variant == "tiles":
            host = result.numpy(stream)
            host[3, 5] += 1
            result.copy_from(host, stream)
        return result

    monkeypatch.setattr(sys.modules["half_products.ways"], "ops", types.SimpleNamespace(gemm=gemm))
    swizzled, tiles, _ = timed([4, 8, 12])
    assert swizzled.ok
    assert tiles.ok is False
    assert "(3, 5)" in tiles.verdict.why
    assert tiles.times.device is None
    assert swizzled.times.device.median == 2


@pytest.mark.gpu
def test_every_variant_is_timed_on_a_gpu_with_clock_and_power(gpu):
    pytest.importorskip("torch")
    arguments = ["--shapes", "512", "--rounds", "2", "--budget-ms", "60", "--rest-ms", "1", "--json", "-", "--quiet"]
    done = programs.run(EXAMPLE, "--device", "gpu", *arguments)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    timed = [row for row in result["rows"] if not row["skipped"]]
    assert {"wmma", "pipelined", "peer:torch"} <= {row["variant"] for row in timed}
    assert all(row["ok"] and row["tflops"] > 0 and row["of_ceiling"] > 0 for row in timed)
    if result["clocks"] in ("NVML", "nvidia-smi"):
        assert all(100 < row["sm_mhz"] < 5000 for row in timed)
    once = programs.run(EXAMPLE, "--device", "gpu", "--once", "--shapes", "512", "--json", "-", "--quiet")
    assert once.returncode == 0, once.stderr
    result = json.loads(once.stdout)
    assert result["torch"] is None, "a profile would contain torch's kernels"
    assert all(row["time_ms"] is None for row in result["rows"])
