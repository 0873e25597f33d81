"""The command line: the output and exit status of each command, and options that all share."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import cudakit
from cudakit import __main__ as command_line
from cudakit import ops
from cudakit.commands import cli, fuzzing, ladder
from cudakit.errors import CompileError, Refused
from cudakit.family import Launch, Variant, ceil_div
from cudakit.show import outputs, tables
from cudakit.show.digits import number
from cudakit.testing import search

GOOD = """
__global__ void scale(const float* x, float* y, float factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
"""


@pytest.mark.parametrize(
    ("text", "shapes"),
    [("8192x8192", [(8192, 8192)]), ("4X5, 7", [(4, 5), (7,)]), ("0x3", [(0, 3)]), ("1x2x3", [(1, 2, 3)])],
)
def test_shapes(text, shapes):
    assert cli.parse_shapes(text) == shapes


@pytest.mark.parametrize("text", ["", "x", "4x", "axb", "4x-1", "4,", "4.5"])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a shape"):
        cli.parse_shapes(text)


def test_json_never_holds_a_bare_nan(tmp_path):
    out = tmp_path / "out.json"
    outputs.write_json({"a": math.nan, "b": [np.float32(math.inf), np.int64(3)], "c": {"d": (1.5, None)}}, str(out))
    assert json.loads(out.read_text()) == {"a": None, "b": [None, 3], "c": {"d": [1.5, None]}}


def test_a_refusal_is_a_sentence_and_not_a_traceback(capsys):
    def refuse():
        raise Refused("there is no such thing: use another")

    assert cli.guarded(refuse) == cli.EXIT_REFUSED
    assert capsys.readouterr().err == "error: there is no such thing: use another\n"


def test_a_bug_is_a_traceback():
    with pytest.raises(ZeroDivisionError):
        cli.guarded(lambda: 1 // 0)


def test_profiler_is_seen(monkeypatch):
    assert not cli.under_profiler()
    monkeypatch.setenv("NV_NSIGHT_INJECTION_TRANSPORT_TYPE", "1")
    assert cli.under_profiler()


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (4160.4, "4,160"), (12.64, "12.6"), (0.00123, "0.00123"), (3.2e-8, "3.20e-08"), (1, "1")],
)
def test_numbers_are_readable(value, text):
    assert number(value) == text


# ---- the commands ----


def run(capsys, *arguments):
    status = command_line.main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_info_says_what_is_here(capsys):
    status, out, _ = run(capsys, "info", "--json", "-")
    facts = json.loads(out)
    assert status == 0
    assert facts["cudakit"]
    assert Path(facts["kernels"], "softmax").is_dir()
    sim = facts["devices"][-1]
    assert (sim["kind"], sim["arch"]) == ("sim", "sm_90a")
    assert len(facts["devices"]) > 1 or facts["gpu"].startswith("none: ")


def test_info_as_text(capsys):
    status, out, _ = run(capsys, "info")
    assert status == 0
    assert "cache" in out
    assert "kind sim" in out


def test_compile_prints_what_a_kernel_takes_and_needs(capsys, tmp_path):
    source, ptx, cubin = tmp_path / "scale.cu", tmp_path / "scale.ptx", tmp_path / "scale.cubin"
    source.write_text(GOOD)
    status, out, _ = run(capsys, "compile", str(source), "--ptx", str(ptx), "--cubin", str(cubin))
    assert status == 0
    assert "scale(const float*, float*, float, int): " in out
    assert "registers" in out
    assert "no spills" in out
    assert ".visible .entry" in ptx.read_text()
    assert cubin.read_bytes()[:4] == b"\x7fELF"


def test_compile_reads_the_types_of_an_extern_c_kernel_from_its_source(capsys, tmp_path):
    path = tmp_path / "plain.cu"
    path.write_text("""
struct Range { float low, high, step; };
typedef int Count;
extern "C" __global__ void plain(const float* __restrict__ x, float* y, Range range, Count n) { y[n] = x[0]; }
""")
    status, out, _ = run(capsys, "compile", str(path))
    assert status == 0
    assert "plain(const float*, float*, struct of 12 bytes, u32): " in out


def test_check_of_a_family_that_passes_a_struct(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "affine.cu").write_text("""
struct Params { float scale; int n; };
__global__ void affine(const float* x, float* out, Params p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) out[i] = p.scale * x[i];
}
""")
    (tmp_path / "affine.py").write_text("""
import numpy as np
from cudakit import Family, Launch, ceil_div

FAMILY = Family("affine", reference=lambda x, *, scale=2.0: scale * x, inputs={"x": "float32[n]"},
                outputs={"out": "float32[n]"}, shapes=((100,), (33,)))
PARAMS = np.dtype([("scale", "f4"), ("n", "i4")])

@FAMILY.variant("affine.cu")
def affine(p):
    return Launch(ceil_div(p.n, 64), 64, args=(p.x, p.out, np.array((p.scale, p.n), PARAMS)[()]))
""")
    status, out, _ = run(capsys, "check", "affine.py:FAMILY", "--arch", "sm_90a", "--examples", "20")
    assert status == 0
    assert "occupancy: 100 % with 64 threads" in out
    assert "20 problems, 20 runs" in out


def test_compile_gives_ptx_alone_on_stdout(capsys, tmp_path):
    source = tmp_path / "scale.cu"
    source.write_text(GOOD)
    status, out, err = run(capsys, "compile", str(source), "--ptx", "-", "--arch", "sm_80")
    assert status == 0
    assert out.lstrip().startswith("//")
    assert ".target sm_80" in out
    assert "registers" in err


def test_compile_of_a_template_needs_its_name(capsys, tmp_path):
    source = tmp_path / "t.cu"
    source.write_text("template <int N> __global__ void fill(float* y) { y[threadIdx.x] = N; }")
    status, _, err = run(capsys, "compile", str(source))
    assert status == cli.EXIT_REFUSED
    assert "NOTHING CHECKED" in err
    assert "--names" in err
    status, out, _ = run(capsys, "compile", str(source), "--names", "fill<3>", "--names", "fill<4>")
    assert status == 0
    assert "fill<3>(float*)" in out
    assert "fill<4>(float*)" in out


def test_compile_refuses_what_does_not_compile(capsys, tmp_path):
    source = tmp_path / "bad.cu"
    source.write_text("__global__ void bad(float* y) { y[0] = nothing; }")
    status, _, err = run(capsys, "compile", str(source))
    assert status == cli.EXIT_REFUSED
    assert "bad.cu" in err
    assert "nothing" in err
    status, _, err = run(capsys, "compile", str(tmp_path / "absent.cu"))
    assert status == cli.EXIT_REFUSED
    assert "absent.cu" in err


def test_check_runs_a_declared_kernel_on_the_simulated_device(capsys):
    status, out, _ = run(capsys, "check", "softmax/05_tree_reduce.cu", "--arch", "sm_90a", "--examples", "3")
    assert status == 0
    assert "tree_reduce(const float*" in out
    assert "softmax/tree_reduce on Simulated H200 (sm_90a): 3 problems, 3 runs" in out


def test_check_leaves_out_architectures_that_no_variant_of_a_file_supports(capsys):
    # other seeds may draw problems that the kernel refuses
    status, out, _ = run(capsys, "check", "gemm_half/05_wgmma.cu", "--examples", "3", "--seed", "1")
    assert status == 0
    assert re.search(r"05_wgmma\.cu for sm_80: not compiled, needs sm_90a itself", out)
    assert "gemm_half/wgmma on Simulated H200 (sm_90a): 3 problems, 3 runs" in out
    status, _, err = run(capsys, "check", "gemm_half/05_wgmma.cu", "--examples", "3", "--arch", "sm_80")
    assert status != 0, err


def test_a_source_that_is_not_utf_8_is_refused_by_name(capsys, sim, tmp_path):
    source = tmp_path / "latin.cu"
    source.write_bytes(GOOD.encode() + "// \u00e9\n".encode("latin-1"))
    status, _, err = run(capsys, "compile", str(source))
    assert status == cli.EXIT_REFUSED
    assert re.search(r"latin\.cu is not UTF-8 text: byte \d+ is 0xe9", err)
    with pytest.raises(CompileError, match=r"latin\.cu is not UTF-8 text \(byte \d+ is 0xe9\)"):
        sim.compile(str(source))


@pytest.mark.parametrize("command", [["compile"], ["check", "--examples", "0"]], ids=" ".join)
def test_a_byte_order_mark_is_left_out_as_by_device_compile(capsys, tmp_path, command):
    source = tmp_path / "marked.cu"
    source.write_text(GOOD, encoding="utf-8-sig")
    status, _, err = run(capsys, *command, str(source))
    assert (status, err) == (0, "")


def test_check_of_a_file_of_ones_own_without_a_script_checks_nothing(capsys, tmp_path):
    source = tmp_path / "scale.cu"
    source.write_text(GOOD)
    status, out, err = run(capsys, "check", str(source))
    assert status == cli.EXIT_REFUSED
    assert "for sm_80" in out
    assert "for sm_90a" in out
    assert "error: NOTHING CHECKED: " in err
    assert "Pass --run SCRIPT.py" in err
    status, out, err = run(capsys, "check", str(source), "--examples", "0")
    assert (status, err) == (0, "")
    assert "compiled only, nothing was run" in out


def test_check_prints_occupancy_and_its_limit_for_the_blocks_it_knows(capsys, tmp_path):
    source = tmp_path / "bounded.cu"
    source.write_text(GOOD.replace("void scale", "void __launch_bounds__(1024) scale") + MANY_REGISTERS)
    flags = ["--arch", "sm_90a", "--examples", "0", "--json", str(tmp_path / "out.json")]
    status, out, _ = run(capsys, "check", str(source), *flags)
    assert status == 0
    assert "occupancy: 100 % with 1024 threads (2 blocks, by threads)" in out
    assert "12.5 % with 256 threads (1 block, by registers); 0 % with 512 threads" in out
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["ok"]
    scale, many = found["architectures"][0]["kernels"]
    assert (scale["max_threads"], many["max_threads"]) == (1024, None)
    assert many["registers"] > 128
    assert many["occupancy"][1] == {"threads": 256, "shared": 0, "blocks": 1, "occupancy": 0.125, "limit": "registers"}


def test_check_shows_spills(capsys, tmp_path):
    source = tmp_path / "spills.cu"
    source.write_text(MANY_REGISTERS.replace("void many", "void __launch_bounds__(1024) many"))
    status, out, _ = run(capsys, "check", str(source), "--arch", "sm_90a", "--examples", "0")
    assert status == 0
    assert re.search(r"many\(.*64 registers.*SPILLS \d+ bytes", out)


MANY_REGISTERS = """
__global__ void many(const float* x, float* y) {
    float v[160];
#pragma unroll
    for (int k = 0; k < 160; k++) v[k] = x[threadIdx.x + 1000 * k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 160; k++) y[threadIdx.x + 1000 * k] = v[k] + v[(k + 77) % 160];
}
"""


def test_check_fails_where_it_does_not_compile(capsys, tmp_path):
    source = tmp_path / "bad.cu"
    source.write_text("__global__ void bad(float* y) { y[0] = nothing; }")
    status, out, _ = run(capsys, "check", str(source), "--arch", "sm_90a")
    assert status == cli.EXIT_FALSE
    assert "FAILED" in out


# c = a + b, copied to other threads through shared memory
PLANTED = """
__global__ void planted(const float* a, const float* b, float* c, long long n) {
    __shared__ float sums[256];
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    sums[255 - threadIdx.x] = i < n ? a[i] + b[i] : 0.0f;
    BARRIER
    const float sum = sums[255 - threadIdx.x], other = sums[(threadIdx.x + 64) % 256];
    if (i < n) c[i] = other == 12345.0f ? sum : sum + 0.0f;
}
"""
HALF_A_BARRIER = """if (threadIdx.x % 2) __syncthreads();
    __syncthreads();"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """Write PLANTED with a text for its barrier, and let vector_add declare it. Return the path."""

    def write(barrier):
        path = tmp_path / "planted.cu"
        path.write_text(PLANTED.replace("BARRIER", barrier))
        launch = lambda problem: Launch(ceil_div(problem.n, 256), 256)  # noqa: E731
        one = Variant("planted", launch, str(path), "wrong", "planted")
        add = dataclasses.replace(ops.families()["vector_add"], variants=(one,))
        monkeypatch.setattr(ops, "families", lambda: {"vector_add": add})
        return path

    return write


@pytest.mark.parametrize(
    ("barrier", "said", "at"),
    [
        ("", "data race", "const float sum = "),
        (HALF_A_BARRIER, "divergent __syncthreads()", "    __syncthreads();"),
    ],
)
def test_check_fails_on_a_planted_bug_and_names_its_line(capsys, planted, barrier, said, at):
    path = planted(barrier)
    line = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if at in text)
    status, out, _ = run(capsys, "check", str(path), "--arch", "sm_90a", "--examples", "30", "--seed", "1")
    assert status == cli.EXIT_FALSE
    assert "seed 1: FAILED" in out
    assert said in out
    assert f"at {path}:{line}" in out


def test_check_passes_the_kernel_without_the_bug(capsys, planted):
    path = planted("__syncthreads();")
    status, out, _ = run(capsys, "check", str(path), "--arch", "sm_80,sm_90a", "--examples", "30", "--seed", "1")
    assert status == 0
    assert "vector_add/planted on Simulated H200 (sm_90a): 30 problems, 30 runs, 0 unsupported, seed 1" in out
    assert "100 % with 256 threads (8 blocks, by threads)" in out


def test_check_runs_with_the_checks_asked_for_alone(capsys, planted):
    path = planted("")
    common = ["check", str(path), "--arch", "sm_90a", "--examples", "5", "--seed", "1", "--checks"]
    assert run(capsys, *common, "init,warp")[0] == 0
    assert run(capsys, *common, "race")[0] == cli.EXIT_FALSE


def test_check_as_json_carries_the_report(capsys, planted):
    path = planted(HALF_A_BARRIER)
    status, out, err = run(capsys, "check", str(path), "--arch", "sm_90a", "--examples", "30", "--json", "-")
    assert status == cli.EXIT_FALSE
    found = json.loads(out)
    assert not found["ok"]
    assert found["architectures"][0]["ok"]
    assert "divergent __syncthreads()" in found["fuzzed"][0]["failure"]
    [report] = found["reports"]
    assert (report["kind"], report["file"], report["family"]) == ("divergent barrier", str(path), "vector_add")
    assert path.read_text().splitlines()[report["line"] - 1].strip() == report["text"] == "__syncthreads();"
    assert report["problem"] in found["fuzzed"][0]["failure"]
    assert report["step"] == found["fuzzed"][0]["step"]
    assert "FAILED" in err


# wrong in one element of each problem with two or more
SECOND = """
__global__ void planted(const float* a, const float* b, float* c, long long n);
__global__ void planted(const float* a, const float* b, float* c, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n && i != 1) c[i] = a[i] + b[i];
    /* two
       lines */ LAST
}
"""


@pytest.mark.parametrize(
    ("last", "at", "thread"),
    [
        ("if (i == 1 && i < n) c[i] = a[i] + b[i] + 1;", "LAST", (1, 0, 0)),
        ("if (i == 0 && n > 1) atomicExch(c + 1, 7.0f);", "LAST", (0, 0, 0)),
        ("", "long long n) {", None),
    ],
)
def test_a_wrong_result_has_the_line_of_the_last_store_to_it(capsys, planted, last, at, thread):
    path = planted("")
    path.write_text(SECOND.replace("LAST", last))
    line = next(number for number, text in enumerate(SECOND.splitlines(), 1) if at in text)
    status, out, _ = run(capsys, "check", str(path), "--arch", "sm_90a", "--examples", "40", "--json", f"{path}.json")
    assert status == cli.EXIT_FALSE
    assert f"{path}:{line}" in out
    [report] = json.loads(Path(f"{path}.json").read_text())["reports"]
    assert (report["kind"], report["file"], report["line"]) == ("wrong result", str(path), line)
    assert report["kernel"] == "planted"
    assert report["thread"] == (thread and list(thread))
    assert re.match(r"element \((0, )*1,?\) is ", report["message"])
    assert report["replay"].startswith("cudakit fuzz vector_add ")


@pytest.fixture
def ticks(monkeypatch):
    """A clock for fuzzing that advances by a tenth of a second each time it is read."""
    reads = []

    def monotonic():
        reads.append(len(reads) / 10)
        return reads[-1]

    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=monotonic))
    return reads


def test_fuzzing_ends_in_time(ticks):
    add = ops.families()["vector_add"]
    found = fuzzing.run("sim", add, ["vector_add"], 100_000, seed=1, seconds=0.5)
    assert found.ok
    assert found.cut_after == 0.5
    assert found.problems == found.ran + found.refused == 5
    assert "stopped after 0.5 seconds" in found.text()


def test_fuzzing_that_ends_in_time_still_shows_the_failure(wrong_family, ticks):
    found = fuzzing.run("sim", wrong_family("wrong_from_100_on"), [], 200, seed=1, seconds=1.0)
    assert not found.ok
    assert "is 12345.0" in found.failure
    # One second to find the problem, and one to make it smaller.
    assert 1.2 < ticks[-1] < 2.5


def test_fuzz_counts_its_problems(capsys):
    status, out, _ = run(capsys, "fuzz", "vector_add", "--examples", "5", "--device", "sim", "--variants", "vector_add")
    assert status == 0
    assert "5 problems" in out


@pytest.fixture
def wrong_family(tmp_path):
    """Return vector add with one variant, which is wrong as its name says."""
    path = tmp_path / "wrong.cu"
    path.write_text(WRONG)
    add = ops.families()["vector_add"]

    def named(name):
        launch = lambda problem: Launch(ceil_div(problem.n, 256), 256)  # noqa: E731
        return dataclasses.replace(add, variants=(Variant(name, launch, str(path), "wrong", name),))

    return named


WRONG = """
__global__ void wrong_from_100_on(const float* a, const float* b, float* c, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) c[i] = i < 100 ? a[i] + b[i] : 12345.0f;
}
__global__ void reads_far_outside(const float* a, const float* b, float* c, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i + 100000000];
}
"""


def test_fuzz_finds_the_smallest_wrong_problem(wrong_family):
    found = fuzzing.run("sim", wrong_family("wrong_from_100_on"), [], 200, seed=1)
    assert not found.ok
    assert "wrong_from_100_on on a float32[101], b float32[101]" in found.failure
    assert "element (100,) is 12345.0" in found.failure
    assert "FAILED" in found.text()
    assert found.problems <= 200


def test_fuzz_reports_a_fault_and_goes_on_with_a_fresh_device(wrong_family):
    found = fuzzing.run("sim", wrong_family("reads_far_outside"), [], 200, seed=1)
    assert not found.ok
    assert "b[i + 100000000]" in found.failure
    assert "reads_far_outside on a float32[1]" in found.failure, "it was made smaller after the first fault"


def test_fuzz_tries_the_variants_after_a_wrong_one_and_repeats_those_that_failed(wrong_family):
    one, two = (wrong_family(name) for name in ("reads_far_outside", "wrong_from_100_on"))
    right = next(each for each in ops.families()["vector_add"].variants if each.name == "vector_add")
    family = dataclasses.replace(one, variants=(*one.variants, right, *two.variants))
    found = fuzzing.run("sim", family, [], 20, seed=1)
    assert found.failed == ["reads_far_outside", "wrong_from_100_on"]
    assert "b[i + 100000000]" in found.failure
    assert "element (100,) is 12345.0" in found.failure
    assert found.different["vector_add"] == 20
    assert "FAILED: reads_far_outside, wrong_from_100_on" in found.text()
    assert "--variants reads_far_outside,wrong_from_100_on" in found.text()
    assert [report.replay.split()[-1] for report in found.reports] == found.failed


def test_fuzz_where_nothing_ran_is_not_all_right(wrong_family):
    family = wrong_family("wrong_from_100_on")
    never = dataclasses.replace(family.variants[0], launch=lambda problem: "never")
    found = fuzzing.run("sim", dataclasses.replace(family, variants=(never,)), [], 3, seed=1)
    assert not found.ok
    assert all("were unsupported" in why for why in found.short.values())
    assert len(found.short) == 1
    assert "NOTHING RAN" in found.text()


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "vector_add", "--device", "sim", "--shapes", "8"],
        ["bench", "vector_add", "--device", "sim", "--shapes", "8", "--once"],
        ["fuzz", "vector_add", "--device", "sim", "--examples", "2"],
        ["compile", "vector_add/01_vector_add.cu", "--arch", ""],
        ["check", "vector_add/01_vector_add.cu", "--arch", ","],
        ["fill", "plain.md"],
        ["fill", "plain.md", "--check"],
    ],
    ids=" ".join,
)
def test_a_command_that_checked_nothing_fails(capsys, monkeypatch, tmp_path, arguments):
    add = ops.families()["vector_add"]
    never = dataclasses.replace(add.variants[0], name="never", launch=lambda problem: "it never does")
    monkeypatch.setattr(ops, "families", lambda: {"vector_add": dataclasses.replace(add, variants=(never,))})
    monkeypatch.chdir(tmp_path)
    Path("plain.md").write_text("text\n")
    status, _, err = run(capsys, *arguments)
    assert status == cli.EXIT_REFUSED
    assert "error: NOTHING CHECKED: " in err


def test_fuzz_of_a_variant_that_refuses_most_problems_is_not_all_right():
    family = ops.families()["vector_add"]
    picky = dataclasses.replace(family["vector_add_vec4"], problems="")
    found = fuzzing.run("sim", dataclasses.replace(family, variants=(family.variants[0], picky)), [], 40, seed=1)
    assert found.ran > 20
    assert not found.ok
    assert "TOO FEW PROBLEMS RAN\nvector_add_vec4: " in found.text()


def test_fuzz_refuses_an_unknown_family(capsys):
    status, _, err = run(capsys, "fuzz", "nothing", "--device", "sim")
    assert status == cli.EXIT_REFUSED
    assert "softmax" in err


def test_bench_measures_families(capsys):
    status, out, _ = run(
        capsys, "bench", "vector_add", "--device", "sim", "--shapes", "1000", "--variants", "vector_add", "--json", "-"
    )
    assert status == 0
    assert [row["variant"] for row in json.loads(out)["rows"]] == ["cpu", "vector_add"]


def test_bench_refuses_what_there_is_not(capsys):
    assert "there is no family 'nothing'" in run(capsys, "bench", "nothing", "--device", "sim")[2]
    status, _, err = run(capsys, "bench", "softmax", "--device", "sim", "--variants", "best")
    assert status == cli.EXIT_REFUSED
    assert "no variant 'best'" in err
    status, _, err = run(capsys, "bench", "softmax", "--device", "sim", "--shapes", "2x3x4")
    assert status == cli.EXIT_REFUSED
    assert "2x3x4" in err


@pytest.mark.parametrize(
    ("flag", "name", "why"),
    [
        ("--json", "absent/out.json", r"the folder .*absent does not exist. Create it"),
        ("--plot", "absent/out.png", r"the folder .*absent does not exist. Create it"),
        ("--json", ".", "is a folder: name a file in it"),
        ("--plot", "out.xyz", r"matplotlib does not write \.xyz files. Use one of .*pdf, .*png"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_measured(capsys, monkeypatch, tmp_path, flag, name, why):
    monkeypatch.setattr(cli, "open_device", lambda spec: pytest.fail("measuring began"))
    status, _, err = run(capsys, "bench", "softmax", "--device", "sim", flag, str(tmp_path / name))
    assert status == cli.EXIT_REFUSED
    assert re.search(f"^error: {flag} .*{why}", err)


def test_a_file_that_may_not_be_written_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(cli.os, "access", lambda path, mode: False)
    with pytest.raises(Refused, match=r"--json .*out\.json is not writable"):
        outputs.check_destination("--json", str(tmp_path / "out.json"))
    outputs.check_destination("--json", "-")


def test_without_a_command_it_prints_the_help(capsys):
    status, out, _ = run(capsys)
    assert status == cli.EXIT_REFUSED
    assert re.findall(r"(?m)^ {4}(\w+) ", out) == list(command_line.COMMANDS)


def test_it_says_its_version(capsys):
    with pytest.raises(SystemExit) as ended:
        run(capsys, "--version")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"cudakit {cudakit.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["bnech"], "bench"),
        (["bench", "softmx"], "softmax"),
        (["fuzz", "gem"], "gemm"),
        (["bench", "softmax", "--variants", "regsters"], "registers"),
        (["bench", "softmax", "--dtypes", "flaot16"], "float16"),
        (["bench", "softmax", "--modes", "maskd"], "masked"),
    ],
)
def test_a_name_that_is_nearly_right_is_suggested(capsys, monkeypatch, arguments, meant):
    monkeypatch.setattr(cli, "open_device", lambda spec: pytest.fail("measuring began"))
    status, _, err = run(capsys, *arguments)
    assert status == cli.EXIT_REFUSED
    assert err.endswith(f"Did you mean '{meant}'?\n")


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        ([], [("softmax", "float32", "")]),
        (["--dtypes", "float16"], [("softmax_modes", "float16", "")]),
        (["--dtypes", "float32,bfloat16"], [("softmax", "float32", ""), ("softmax_modes", "bfloat16", "")]),
        (["--modes", "log"], [("softmax_modes", "float32", "log")]),
    ],
)
def test_bench_finds_what_the_function_takes(flags, chosen):
    arguments = command_line.build_parser().parse_args(["bench", "softmax", *flags])
    found = ladder.selected(ops.families()["softmax"], arguments)
    assert [(f.name, *selection.dtypes, *selection.modes) for f, selection in found] == chosen


def test_bench_add_runs_the_rungs_for_arrays_of_one_shape(capsys):
    status, out, _ = run(capsys, "bench", "add", "--device", "sim", "--shapes", "4x64", "--quiet", "--json", "-")
    assert status == 0
    assert {row["variant"] for row in json.loads(out)["rows"] if row["ok"]} >= {"strided", "rows", "flat", "streamed"}


def test_a_compile_error_is_shown_once_and_its_options_on_request(capsys, tmp_path):
    source = tmp_path / "bad.cu"
    source.write_text("__global__ void bad(float* y) { y[0] = nothing; }")
    status, _, err = run(capsys, "compile", str(source))
    assert status == cli.EXIT_REFUSED
    assert err.count("is undefined") == 1
    code, caret = err.splitlines()[2:4]
    assert caret.index("^") == code.index("nothing")
    assert "-I" not in err
    assert "options: --gpu-architecture=sm_90a" in run(capsys, "compile", str(source), "-v")[2]


def test_an_option_of_nvrtc_is_given_to_the_compiler(capsys, tmp_path):
    source = tmp_path / "k.cu"
    source.write_text("float twice(float x) { return 2 * x; }\n__global__ void k(float* y) { y[0] = twice(y[1]); }\n")
    status, _, err = run(capsys, "compile", str(source))
    assert status == cli.EXIT_REFUSED
    assert 'compile with options=("-default-device",)' in err
    status, out, _ = run(capsys, "compile", str(source), "--option=-default-device", "-v")
    assert status == cli.EXIT_OK
    assert re.search(r"options: .* -default-device", " ".join(out.split()))
    assert "precompiled headers: not used: " in " ".join(out.split())
    status, _, err = run(capsys, "compile", str(source), "--option=-arch=sm_80")
    assert status == cli.EXIT_REFUSED
    assert "pass the architecture with --arch" in err


@pytest.mark.parametrize(
    ("terminal", "no_colour", "coloured"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_errors_have_colours_on_a_terminal_alone(capsys, monkeypatch, terminal, no_colour, coloured):
    def refuse():
        raise Refused("x.cu does not compile\n> 2 |   x = y;\n    |       ^ error: no y")

    monkeypatch.setenv("NO_COLOR", no_colour)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    cli.guarded(refuse)
    err = capsys.readouterr().err
    assert ("\x1b[31m^ error: no y\x1b[0m" in err) == coloured
    assert ("\x1b" in err) == coloured


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "cudakit", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("info", "compile", "check", "fuzz", "bench", "profile", "export"))


# ---- tables in markdown ----


def report(kind="gpu"):
    row = {
        "family": "softmax", "variant": "vec4", "rung": 7, "shape": [8, 16], "dtype": "float32", "idea": "a | b",
        "ok": True, "skipped": None, "max_abs_error": 1e-8, "max_rel_error": 1e-7, "end_to_end_ms": 20.0,
        "time_ms": {"median": 0.5, "p10": 0.4, "p90": 0.6, "n": 9}, "gbps": 2000.0, "tflops": None, "of_ceiling": 0.5,
        "counters": None,
    }  # fmt: skip
    first = {**row, "variant": "thread_per_row", "rung": 1, "time_ms": {"median": 5.0, "p10": 4, "p90": 6, "n": 9}}
    first |= {"gbps": 200.0, "of_ceiling": 0.05}
    skipped = {
        **row,
        "variant": "registers",
        "rung": 9,
        "ok": None,
        "skipped": "too long",
        "time_ms": None,
        "gbps": None,
    }
    peer = {**row, "variant": "peer:torch", "rung": None, "gbps": 1500.0}
    return {
        "device": {"name": "NVIDIA H200", "kind": kind, "arch": "sm_90", "driver": "13.0", "nvrtc": "13.4"},
        "date": "2026-11-20",
        "ceilings": {"copy": [{"shape": [8, 16], "gbps": 4000.0}], "copy_large": {"bytes": 4 << 30, "gbps": 4200.0}},
        "rows": [first, row, skipped, peer],
    }


def test_markdown_has_a_cell_for_every_column():
    lines = tables.markdown(report()).splitlines()
    grid = [line for line in lines if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in grid}) == 1
    vec4 = next(line for line in grid if "| vec4 |" in line)
    assert "| 50.0 % |" in vec4
    assert "| 10 x |" in vec4
    assert "a \\| b" in vec4
    assert "skipped: too long" in next(line for line in grid if "registers" in line)
    assert "copy of the same bytes 4,000 GB/s" in lines[0]
    assert "NVIDIA H200" in lines[-1]


def test_summary_names_the_best_and_the_peers():
    found = report()
    (line,) = (line for line in tables.summary(found).splitlines() if line.startswith("| 8x16"))
    assert line == "| 8x16 | 2,000 | 50.0 % | 4,000 | 1,500 | yes | vec4 |"
    found["rows"][1]["call_us"], found["rows"][3]["call_us"] = {"median": 6.25}, {"median": 5.5}
    (line,) = (line for line in tables.summary(found).splitlines() if line.startswith("| 8x16"))
    assert line == "| 8x16 | 2,000 | 50.0 % | 4,000 | 1,500 | 6.25 | 5.5 | yes | vec4 |"


def test_a_simulated_report_has_no_time():
    text = tables.markdown(report("sim"))
    assert "ms" not in text.replace("items", "")
    assert "no clock" in text


def test_marks_are_filled_from_json_and_checked(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("softmax.json").write_text(json.dumps(report()))
    page = Path("README.md")
    page.write_text("before\n<!-- summary softmax.json -->\nold\n<!-- end -->\nafter\n")
    assert run(capsys, "fill", "README.md", "--check")[0] == cli.EXIT_FALSE
    assert "old" in page.read_text(), "--check must not write"
    assert run(capsys, "fill", "README.md")[0] == cli.EXIT_OK
    text = page.read_text()
    assert text.startswith("before\n<!-- summary softmax.json -->\n| shape |")
    assert text.endswith("\n<!-- end -->\nafter\n")
    assert "old" not in text
    assert run(capsys, "fill", "README.md", "--check")[0] == cli.EXIT_OK


@pytest.mark.parametrize("mark", ["nothing softmax.json", "summary absent.json"])
def test_marks_that_name_nothing_are_refused(capsys, tmp_path, monkeypatch, mark):
    monkeypatch.chdir(tmp_path)
    Path("softmax.json").write_text(json.dumps(report()))
    Path("README.md").write_text(f"<!-- {mark} -->\n<!-- end -->\n")
    status, _, err = run(capsys, "fill", "README.md")
    assert status == cli.EXIT_FALSE
    assert mark.split()[0] in err or "absent.json" in err
    assert Path("README.md").read_text() == f"<!-- {mark} -->\n<!-- end -->\n"


@pytest.mark.parametrize(("flags", "shown"), [([], False), (["--table"], True)])
def test_under_a_profiler_nothing_is_printed_unless_the_table_is_asked_for(capsys, monkeypatch, tmp_path, flags, shown):
    monkeypatch.setenv("NV_NSIGHT_INJECTION_PORT_BASE", "1")
    out = tmp_path / "out.json"
    status, said, err = run(
        capsys, "bench", "vector_add", "--device", "sim", "--shapes", "64", "--json", str(out), *flags
    )
    assert status == cli.EXIT_OK, err
    assert ("vector_add_vec4" in said) == shown
    assert shown or not said + err
    assert json.loads(out.read_text())["rows"]


def test_dtypes_and_modes_that_two_families_share_are_run_once_each() -> None:
    """softmax takes float32 without options, softmax_modes takes the rest: each supported combination runs once."""
    asked = argparse.Namespace(variants=None, dtypes=["float32", "float16"], modes=["", "log"])
    chosen = ladder.selected(ops.families()["softmax"], asked)
    runs = [
        (family.name, dtype, mode)
        for family, part in chosen
        for dtype in part.dtypes or ()
        for mode in part.modes or ()
    ]
    assert sorted(runs) == [
        ("softmax", "float32", ""),
        ("softmax_modes", "float16", ""),
        ("softmax_modes", "float16", "log"),
        ("softmax_modes", "float32", "log"),
    ]


def test_launches_back_to_back_are_timed_only_on_a_gpu(capsys):
    status, _, err = run(capsys, "bench", "vector_add", "--device", "sim", "--shapes", "8", "--back-to-back")
    assert status == cli.EXIT_REFUSED
    assert "--back-to-back times launches: it needs a GPU" in err
