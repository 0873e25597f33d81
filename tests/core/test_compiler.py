"""The compiler: results, errors with their source, headers, options, ptxas's report."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from paths import ROOT

from cudakit.compile import compiler, headers
from cudakit.errors import CompileError

SCALE = """
__global__ void scale(float* x, float s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= s;
}
template <int N> __global__ void add(const float* x, float* y) {
    static_assert(N > 1, "N is too small");
    for (int i = 0; i < N; ++i) y[i] += x[i];
}
"""


def build(source: str, name: str = "scale.cu", arch: str = "sm_90a", **options: object) -> compiler.Compiled:
    return compiler.compile(compiler.request(source, name=name, arch=arch, **options))


def test_one_compile_gives_cubin_ptx_and_lowered_names() -> None:
    result = build(SCALE, names=("add<4>", "add<8>"))
    assert result.cubin[:4] == b"\x7fELF"
    assert ".target sm_90a" in result.ptx
    assert result.lowered == {"add<4>": "_Z3addILi4EEvPKfPf", "add<8>": "_Z3addILi8EEvPKfPf"}
    for mangled in ("_Z5scalePffi", *result.lowered.values()):
        assert f".entry {mangled}(" in result.ptx
        assert 0 < result.resources[mangled].registers < 256
    assert result.nvrtc_version >= (13, 0)


@pytest.mark.parametrize(("capability", "arch"), [((8, 6), "sm_86"), ((9, 0), "sm_90a"), ((12, 1), "sm_121a")])
def test_chip_arch(capability: tuple[int, int], arch: str) -> None:
    assert compiler.chip_arch(*capability) == arch
    assert build(SCALE, arch=arch).cubin[:4] == b"\x7fELF"


def test_resources_follow_the_kernel() -> None:
    source = """
    __device__ __noinline__ float pick(float x) {
        float a[20];
        for (int i = 0; i < 20; ++i) a[i] = x * i;
        return a[int(x) % 20];
    }
    __global__ void busy(float* p) {
        __shared__ float tile[1000];
        tile[threadIdx.x] = p[threadIdx.x];
        __syncthreads();
        p[threadIdx.x] = pick(tile[999 - threadIdx.x]);
    }
    __global__ void idle(float* p) {}
    """
    resources = build(source).resources
    busy, idle = resources["_Z4busyPf"], resources["_Z4idlePf"]
    assert busy.static_shared == 4000
    assert busy.barriers == 1
    assert busy.stack >= 80
    assert (idle.static_shared, idle.barriers, idle.stack) == (0, 0, 0)
    assert busy.registers > idle.registers


def test_spills_are_reported() -> None:
    lines = "\n".join(f"float a{i} = p[{i} * n];" for i in range(64))
    sums = "\n".join(f"p[{i} * n + 1] = a{i} * a{63 - i};" for i in range(64))
    source = f"__global__ void spill(volatile float* p, int n) {{ {lines} __syncthreads(); {sums} }}"
    assert build(source).resources["_Z5spillPVfi"].spill_stores == 0
    tight = build(source, max_registers=24).resources["_Z5spillPVfi"]
    assert tight.registers <= 24
    assert tight.spill_stores > 0
    assert tight.spill_loads > 0


def test_errors_show_numbered_source() -> None:
    with pytest.raises(CompileError) as caught:
        build(SCALE.replace("x[i] *= s", "x[i] *= missing"))
    error = caught.value
    assert "> 4 |     if (i < n) x[i] *= missing;" in str(error)
    assert "  3 |     int i" in error.excerpt
    assert 'identifier "missing" is undefined' in error.log
    assert "--gpu-architecture=sm_90a" in error.options
    assert str(error).startswith("scale.cu does not compile for sm_90a: 1 error")


def test_each_error_is_shown_once_under_a_caret() -> None:
    with pytest.raises(CompileError) as caught:
        build(
            "template <int N> __global__ void k(float* x) {\n\tx[0] = foo + N;\n  x[1] = 2.0f * bar(2)\n}\n",
            names=("k<1>",),
        )
    text = str(caught.value)
    for message in ('identifier "foo" is undefined', 'identifier "bar" is undefined', 'expected a ";"'):
        assert text.count(message) == 1
    lines = text.splitlines()
    for word, message in (("foo", '^ error: identifier "foo"'), ("bar", '^ error: identifier "bar"')):
        at = next(number for number, line in enumerate(lines) if word in line)
        assert lines[at + 1].index("^") == lines[at].index(word)
        assert message in lines[at + 1]
    assert "-I" not in text
    assert any(option.startswith("-I") for option in caught.value.options)


def test_the_instantiation_that_failed_is_named() -> None:
    source = 'template <int N> __global__ void k(float* x) {\n  static_assert(N > 1, "N is too small");\n}\n'
    with pytest.raises(CompileError) as caught:
        build(source, names=("k<1>",))
    assert str(caught.value).count('^ error: static assertion failed with "N is too small"') == 1
    assert "instantiation" in str(caught.value)


def test_errors_in_a_header_show_the_header(tmp_path: Path) -> None:
    (tmp_path / "helper.cuh").write_text("__device__ int twice(int x) {\n    return 2 * y;\n}\n")
    with pytest.raises(CompileError) as caught:
        build('#include "helper.cuh"\n', name=str(tmp_path / "main.cu"))
    assert f"{tmp_path}/helper.cuh:" in caught.value.excerpt
    assert "> 2 |     return 2 * y;" in caught.value.excerpt


def test_a_warning_does_not_hide_the_error() -> None:
    with pytest.raises(CompileError) as caught:
        build("__global__ void k() {\n  int unused;\n\n\n\n\n\n  bad;\n}\n")
    assert "> 8 |   bad;" in caught.value.excerpt
    assert "unused" not in caught.value.excerpt
    assert "unused" in caught.value.log


def test_static_assert_sentence_reaches_the_user() -> None:
    with pytest.raises(CompileError, match="N is too small"):
        build(SCALE, names=("add<1>",))


def test_wrong_name_expression() -> None:
    with pytest.raises(CompileError, match="nowhere"):
        build(SCALE, names=("nowhere<1>",))


def test_unknown_arch_names_what_there_is() -> None:
    with pytest.raises(CompileError, match=r"compiles for .*sm_90.*, not for sm_35"):
        build(SCALE, arch="sm_35")


def test_missing_header_says_where_headers_come_from() -> None:
    with pytest.raises(CompileError, match="nvidia-cuda-runtime"):
        build('#include "nowhere.cuh"\n')


def test_unknown_option() -> None:
    with pytest.raises(CompileError, match="--no-such-option"):
        build(SCALE, options=("--no-such-option",))


def test_defines() -> None:
    ptx = build(
        "__global__ void k(float* p) { p[0] = SCALE; static_assert(ON == 1 && OFF == 0 && BARE == 1); }",
        defines={"SCALE": 0.5, "ON": True, "OFF": False, "BARE": None},
    ).ptx
    assert "1056964608" in ptx or "0f3F000000" in ptx  # 0.5f


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"defines": {"not a name": 1}}, "is not a macro name"),
        ({"defines": {"TILE": [1]}}, "TILE"),
        ({"names": "add<4>"}, "sequences"),
        ({"options": "-G"}, "sequences"),
        ({"options": ("-arch=sm_80",)}, "architecture"),
        ({"max_registers": 1000}, "16 to 255"),
    ],
)
def test_refused_requests(arguments: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        compiler.request(SCALE, name="scale.cu", arch="sm_90a", **arguments)


def test_a_nul_ends_no_source_silently() -> None:
    with pytest.raises(CompileError, match=r"cut\.cu:2 has a NUL character"):
        compiler.compile(compiler.request("// first\n\0__global__ void rest() {}", name="cut.cu", arch="sm_80"))


def test_a_byte_order_mark_is_no_part_of_a_source(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_bytes(b"\xef\xbb\xbf__global__ void k() {}\n")
    assert headers.read_source(tmp_path / "k.cu") == "__global__ void k() {}\n"


def test_fmad() -> None:
    source = "__global__ void k(float* p) { p[0] = p[1] * p[2] + p[3]; }"
    assert "fma.rn.f32" in build(source).ptx
    assert "fma.rn.f32" not in build(source, fmad=False).ptx


def test_line_info_names_the_real_files(tmp_path: Path) -> None:
    (tmp_path / "helper.cuh").write_text("__device__ inline float twice(float x) { return x * 2; }\n")
    path = tmp_path / "main.cu"
    path.write_text('#include "helper.cuh"\n__global__ void k(float* p) {\n    p[0] = twice(p[1]);\n}\n')
    ptx = build(path.read_text(), name=str(path)).ptx
    assert f'.file\t1 "{path}"' in ptx
    assert f'"{tmp_path}/helper.cuh"' in ptx
    assert ".loc\t1 3" in ptx
    assert '.file\t1 "label.cu"' in build(path.read_text(), name="label.cu", include=(tmp_path,)).ptx
    assert ".loc" not in build(path.read_text(), name=str(path), line_info=False).ptx


def test_cuda_headers_are_found() -> None:
    source = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    #include <cuda/std/cstdint>
    #include <mma.h>
    #include <cooperative_groups.h>
    __global__ void k(__half* h, __nv_bfloat16* b, std::int64_t n) { h[0] = __float2half(float(b[0])); }
    """.replace("std::int64_t", "cuda::std::int64_t")
    assert "_Z1kP6__halfP13__nv_bfloat16" in build(source).ptx


def test_cuda_headers_of_a_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers missing in wheels come from a toolkit, which has CCCL under include/cccl."""
    wheel, toolkit = tmp_path / "wheel", tmp_path / "toolkit" / "include"
    in_toolkit = (toolkit / "cuda_fp16.h", toolkit / "mma.h", toolkit / "crt" / "host_defines.h")
    for file in (wheel / "cuda_fp16.h", wheel / "mma.h", *in_toolkit):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (toolkit / "cccl" / "cuda" / "std").mkdir(parents=True)
    (toolkit / "cccl" / "cuda" / "std" / "cstdint").write_text("")
    from cuda import pathfinder

    monkeypatch.setattr(
        pathfinder, "find_nvidia_header_directory", lambda part: str(wheel) if part == "cudart" else None
    )
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("CUDA_PATH", str(toolkit.parent))
    headers.installed_directories.cache_clear()
    try:
        assert headers.installed_directories() == (str(wheel), str(toolkit), str(toolkit / "cccl"))
        monkeypatch.delattr(pathfinder, "find_nvidia_header_directory")
        headers.installed_directories.cache_clear()
        assert headers.installed_directories() == (str(toolkit), str(toolkit / "cccl"))
    finally:
        headers.installed_directories.cache_clear()


def test_find_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.cu").write_text(SCALE)
    assert headers.find_source("mine.cu") == tmp_path / "mine.cu"
    with pytest.raises(FileNotFoundError, match=r"nowhere\.cu.*kernels"):
        headers.find_source("nowhere.cu")


def test_scan_follows_quotes_angles_and_conditions(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "a.cuh").write_text('#include "b.cuh"\n')
    (inner / "b.cuh").write_text("#if 0\n#  include <c.cuh>\n#endif\n")
    (tmp_path / "c.cuh").write_text("#include <cuda_fp16.h>\n#include <made_up>\n")
    included = headers.scan('#include "inner/a.cuh"\n', str(tmp_path / "main.cu"), (str(tmp_path),))
    assert [os.path.relpath(path, tmp_path) for path in included.files] == ["inner/a.cuh", "inner/b.cuh", "c.cuh"]
    assert included.uses_cuda
    places = dict(zip(included.lookups[::2], included.lookups[1::2], strict=True))
    assert places["c.cuh"] == str(tmp_path / "c.cuh")
    assert places["made_up"] == places["cuda_fp16.h"] == ""
    assert not included.unknown
    assert headers.scan("#define H <x.h>\n#include H\n", "x.cu", ()).unknown == ("#include H",)


def test_identity_does_not_load_nvrtc() -> None:
    code = (
        "import sys; from cudakit.compile import compiler; print(compiler.nvrtc_identity()); "
        "sys.exit('cuda.bindings.nvrtc' in sys.modules or 'libnvrtc' in open('/proc/self/maps').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] in ("wheel", "file")


@pytest.mark.parametrize(
    ("header", "own"),
    [("cassert", "cassert"), ("assert.h", "cassert"), ("cstdint", "cstdint"), ("stdint.h", "cstdint")],
)
def test_a_standard_header_of_the_host_has_one_of_cudas_instead(header: str, own: str) -> None:
    with pytest.raises(CompileError, match=rf"[Ii]nclude <cuda/std/{own}> instead") as caught:
        build(f"#include <{header}>\n__global__ void k() {{}}")
    assert "cuda::std" in str(caught.value)
    assert "pip install" not in str(caught.value)
    assert build(f"#include <cuda/std/{own}>\n__global__ void k() {{}}").ptx


@pytest.mark.parametrize("header", ["mine.cuh", "mine"])
def test_a_header_that_cuda_has_none_of_is_to_be_looked_for(header: str) -> None:
    with pytest.raises(CompileError, match="pip install nvidia-cuda-runtime"):
        build(f"#include <{header}>\n")


# A lambda with an `auto` parameter; parameters may contain one level of parentheses.
GENERIC_LAMBDA = re.compile(r"\[[^][]*\]\s*\((?:[^(){};]|\([^()]*\))*\bauto\b[\s&*.]*\w*\s*[,)]")


def test_no_cuda_source_has_a_generic_lambda() -> None:
    """NVRTC 13.0, which the package allows, compiles lambdas with typed parameters only: it takes the template that an
    `auto` parameter makes for a host function. Write a `__device__` function template instead."""
    files = [path for name in ("kernels", "examples", "tests", "docs", "cudakit") for path in (ROOT / name).rglob("*")]
    sources = [path for path in files if path.suffix in (".cu", ".cuh", ".py", ".md")]
    assert any(path.suffix == ".cuh" for path in sources)
    matches = [(path, match) for path in sources for match in GENERIC_LAMBDA.finditer(path.read_text())]
    assert not [f"{path.relative_to(ROOT)}: {match[0]}" for path, match in matches]


def test_kernels_in_strings_of_the_package_compile() -> None:
    """Some of them only run on a GPU, such as the kernel that holds a stream while a bench queues launches."""
    sources = [
        (f"{path.relative_to(ROOT)}:{node.lineno}", node.value)
        for path in (ROOT / "cudakit").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.search(r"__global__\s[^;{]*\{\n", node.value)
    ]
    assert sources
    for place, source in sources:
        assert ".entry" in build(source, name=place).ptx, place


def test_threads_compile_the_same_as_one(tmp_path):
    text = "template <int N> __global__ void k(float* y) { y[threadIdx.x] = N; }\n"
    requests = [compiler.request(text, name=str(tmp_path / "k.cu"), arch="sm_90", names=(f"k<{n}>",)) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(compiler.compile_in_threads, requests))
    for request, one in zip(requests, made, strict=True):
        alone = compiler.compile(request)
        assert (one.cubin, one.ptx, one.lowered) == (alone.cubin, alone.ptx, alone.lowered)
