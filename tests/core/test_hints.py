"""Hints at compile errors: each is given, and the source compiles once it is followed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from cudakit.compile import compiler, headers, hints
from cudakit.errors import CompileError

KERNEL = "\n__global__ void k(float* x) { x[0] = 2; }\n"
DELETED = KERNEL
FROM_PYTHON = r"allocate, copy and launch from Python \(device.array, kernel.launch\)"


def build(source: str, *, minimal: bool = True, **options: object) -> compiler.Compiled:
    more = (*options.pop("options", ()), *(("--minimal",) if minimal else ()))
    return compiler.compile(compiler.request(source, name="k.cu", arch="sm_90a", options=more, **options))


def error(source: str, **options: object) -> str:
    with pytest.raises(CompileError) as caught:
        build(source, **options)
    return caught.value.message


@dataclass(frozen=True)
class Beginning:
    """A source that newcomers write, what the error says, and the source that follows it (None: nothing to compile)."""

    source: str
    said: str
    fixed: str | None
    options: tuple[str, ...] = ()
    minimal: bool = True  # NVRTC is quicker without its own declarations


def there(header: str) -> bool:
    return any(Path(place, header).is_file() for place in headers.cuda_directories())


def body(text: str) -> str:
    return f"__global__ void k(float* x, int i) {{ {text} }}\n"


def needs(header: str, text: str, what: str) -> Beginning:
    return Beginning(body(text), f"{what} needs #include <{header}>", f"#include <{header}>\n{body(text)}")


BEGINNINGS = {
    # headers
    "stdio.h": Beginning(
        "#include <stdio.h>" + KERNEL, "Delete #include <stdio.h>: printf is built in", body('printf("%d", i);')
    ),
    "cstdio": Beginning(
        "#include <cstdio>" + KERNEL, "Delete #include <cstdio>: printf is built in", body('printf("%d", i);')
    ),
    "assert.h": Beginning(
        "#include <assert.h>" + KERNEL, "Delete #include <assert.h>: assert is built in", body("assert(i);")
    ),
    "math.h": Beginning(
        "#include <math.h>" + KERNEL,
        "Delete #include <math.h>: sqrtf, expf, pow and similar are built in. Or include <cuda/std/cmath> instead",
        body("x[0] = sqrtf(expf(x[1])) + powf(x[2], 2);"),
        minimal=False,
    ),
    "stdlib.h": Beginning(
        "#include <stdlib.h>" + KERNEL, "malloc, free and abs are built in", body("free(malloc(abs(i)));")
    ),
    "cstring": Beginning(
        "#include <cstring>" + KERNEL, "memcpy and memset are built in", body("memcpy(x, x + 1, 4); memset(x, 0, 4);")
    ),
    "stddef.h": Beginning("#include <stddef.h>" + KERNEL, "size_t is built in", body("size_t n = i; x[n] = 1;")),
    "stdbool.h": Beginning("#include <stdbool.h>" + KERNEL, "bool is built in", body("bool n = i; x[0] = n;")),
    "time.h": Beginning("#include <time.h>" + KERNEL, "clock() is built in", body("x[0] = clock();")),
    "iostream": Beginning(
        "#include <iostream>" + KERNEL, "Delete #include <iostream>: it is a host header; printf is built in", DELETED
    ),
    "vector": Beginning("#include <vector>" + KERNEL, "kernels take pointers and sizes instead", DELETED),
    "a header, then main": Beginning(
        "#include <stdio.h>" + KERNEL + "int main(void) { return 0; }",
        "Delete #include <stdio.h>: printf is built in. Delete main",
        DELETED,
    ),
    "helper_cuda.h": Beginning(
        "#include <helper_cuda.h>" + KERNEL, "Delete #include <helper_cuda.h>: it is a host header", DELETED
    ),
    "cublas_v2.h": Beginning("#include <cublas_v2.h>" + KERNEL, "cudakit.libs has cuBLAS and cuFFT", DELETED),
    # names
    "uint32_t": needs("cuda/std/cstdint", "uint32_t n = i; x[n] = 1;", "uint32_t"),
    "several types": Beginning(
        "__global__ void k(const uint8_t* x, int64_t* y) { y[0] = x[0]; }",
        "uint8_t, int64_t need #include <cuda/std/cstdint>",
        "#include <cuda/std/cstdint>\n__global__ void k(const uint8_t* x, int64_t* y) { y[0] = x[0]; }",
    ),
    "FLT_MAX": Beginning(
        body("x[0] = FLT_MAX;"),
        "include <cuda/std/",  # cfloat, or limits if cfloat is an old one
        "#include <cuda/std/limits>\n" + body("x[0] = cuda::std::numeric_limits<float>::max();"),
    ),
    "INT_MAX": needs("cuda/std/climits", "x[0] = INT_MAX;", "INT_MAX"),
    "INFINITY": Beginning(body("x[0] = INFINITY;"), "INFINITY needs #include <cuda/std/cmath>", None),  # see below
    "half": needs("cuda_fp16.h", "half h; h = x[0];", ["half", " __float2half"][0]),
    "bfloat16": needs("cuda_bf16.h", "__nv_bfloat16 h; h = x[0];", "__nv_bfloat16"),
    "M_PI": Beginning(
        body("x[0] = M_PI;"),
        "include <math_constants.h>",
        "#include <math_constants.h>\n" + body("x[0] = CUDART_PI_F;"),
    ),
    "uint": Beginning(body("uint n = i; x[n] = 1;"), "Use unsigned int instead of uint", body("unsigned int n = i;")),
    "a typing error": Beginning(body("x[threadidx.x] = 1;"), "Did you mean threadIdx?", body("x[threadIdx.x] = 1;")),
    "__syncthread": Beginning(body("__syncthread();"), "Did you mean __syncthreads?", body("__syncthreads();")),
    "__shfl_down": Beginning(
        body("x[0] = __shfl_down(x[0], 1);"),
        "use __shfl_down_sync, whose first argument is the lane mask",
        body("x[0] = __shfl_down_sync(0xffffffff, x[0], 1);"),
    ),
    "exit": Beginning(body("exit(1);"), "return from the kernel, or stop it with __trap()", body("__trap();")),
    "fprintf": Beginning(
        body('fprintf(stderr, "x");'), "fprintf is a host function: use printf, which is built in", body('printf("x");')
    ),
    "std::max": Beginning(
        body("x[0] = std::max(x[0], x[1]);"),
        "Use cuda::std::max instead of std::max, and include <cuda/std/algorithm>",
        None,
    ),
    "std::vector": Beginning(body("std::vector<int> v;"), "std::vector is host code: kernels take pointers", None),
    "cuda::std without its header": Beginning(
        "#include <cuda/std/cstdint>\n" + body("x[0] = cuda::std::accumulate(x, x + 3, 0.0f);"),
        "cuda::std::accumulate needs #include <cuda/std/numeric>",
        None,
    ),
    "cooperative groups": Beginning(
        "namespace cg = cooperative_groups;\n" + body("cg::this_grid().sync();"),
        "#include <cooperative_groups.h>",
        None,
    ),
    "wmma": Beginning(
        "using namespace nvcuda;\n" + body(""), "#include <mma.h>", "#include <mma.h>\nusing namespace nvcuda;\n"
    ),
    "cub": Beginning(body("typedef cub::BlockReduce<float, 32> R;"), "such as <cub/block/block_reduce.cuh>", None),
    # the host's functions
    "main": Beginning(KERNEL + "int main() { return 0; }", "Delete main: it is host code", DELETED),
    "main that launches": Beginning(
        KERNEL + "int main(int argc, char** argv) {\n  float* d;\n  cudaMalloc(&d, 4);\n  k<<<1, 32>>>(d);\n}\n",
        "Delete main: it is host code",
        DELETED,
    ),
    "a function that launches": Beginning(
        KERNEL + "void go(float* x) {\n  k<<<1, 32>>>(x);\n}\n", "Delete the function that launches kernels", DELETED
    ),
    "the runtime in a kernel": Beginning(
        body("cudaDeviceSynchronize(); cudaFree(x);"), "cudaDeviceSynchronize, cudaFree are host code", DELETED
    ),
    "no __device__": Beginning(
        "float sq(float x) { return x * x; }\n" + body("x[0] = sq(x[1]);"),
        "Mark functions that kernels call with __device__",
        "__device__ float sq(float x) { return x * x; }\n" + body("x[0] = sq(x[1]);"),
    ),
    "-default-device": Beginning(
        "float sq(float x) { return x * x; }\n" + body("x[0] = sq(x[1]);"),
        'compile with options=("-default-device",)',
        "float sq(float x) { return x * x; }\n" + body("x[0] = sq(x[1]);"),
        ("-default-device",),
    ),
    "a kernel launches": Beginning(
        "__global__ void c() {}\n" + body("c<<<1, 1>>>();"), "Launch the kernel from Python", DELETED
    ),
    # variables
    "a global variable": Beginning(
        "float table[3];\n" + body("x[0] = table[i];"),
        "with __device__, __constant__ or constexpr",
        "__constant__ float table[3];\n" + body("x[0] = table[i];"),
    ),
    "dim3": Beginning(
        "dim3 grid(4, 4);" + KERNEL, "Delete the dim3: grid and block are arguments of the launch", DELETED
    ),
    "_global_": Beginning(
        "_global_ void k(float* x) {}", "Write __global__, with two underscores", "__global__ void k() {}"
    ),
    "texture": Beginning(
        "texture<float, 1> t;" + KERNEL,
        "Pass the kernel a cudaTextureObject_t",
        "__global__ void k(cudaTextureObject_t t, float* x) { x[0] = tex2D<float>(t, 0, 0); }",
        minimal=False,
    ),
    "a shared array without a size": Beginning(
        body("__shared__ float s[]; s[0] = 1;"),
        "declare extern __shared__ float s[]; and launch with shared=BYTES",
        body("extern __shared__ float s[]; s[0] = 1;"),
    ),
    "a shared array of a variable's size": Beginning(
        body("__shared__ float s[i];"),
        "The size of a __shared__ array must be a constant",
        body("__shared__ float s[4];"),
    ),
    "the name of a built-in function": Beginning(
        'extern "C" __global__ void norm(float* x) {}',
        'Rename norm, or delete its extern "C"',
        "__global__ void norm(float* x) {}",
        minimal=False,
    ),
    "Python": Beginning("def k(x):\n    x[0] = 1\n", "This is Python, but NVRTC compiles CUDA C++", None),
}


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_hint_is_given_and_is_right(beginning: Beginning) -> None:
    for header in re.findall(r"<(cuda/std/\w+|cuda_\w+\.h)>", beginning.said):
        if not there(header):
            pytest.skip(f"CUDA's headers here have no <{header}>")
    said = error(beginning.source)
    assert beginning.said in said
    if beginning.fixed is not None:
        assert build(beginning.fixed, options=beginning.options, minimal=beginning.minimal).ptx


@pytest.mark.long
def test_every_name_of_std_is_in_its_header() -> None:
    here = {name: header for name, header in hints.STD.items() if there(f"cuda/std/{header}")}
    assert "numeric_limits" in here
    names = "".join(f"namespace of_{header} {{ using cuda::std::{name}; }}\n" for name, header in here.items())
    included = "".join(f"#include <cuda/std/{header}>\n" for header in dict.fromkeys(here.values()))
    assert build(included + names + body("x[0] = INFINITY; x[1] = NAN;")).ptx


def test_the_limits_of_floats_are_in_a_header_that_has_them() -> None:
    said = error(body("x[0] = FLT_MAX + DBL_EPSILON;"))
    if "<cuda/std/cfloat>" in said:
        assert build("#include <cuda/std/cfloat>\n" + body("x[0] = FLT_MAX + DBL_EPSILON;")).ptx
    else:
        assert (
            "Use cuda::std::numeric_limits<float>::max() or another of its members, and include <cuda/std/limits>"
            in said
        )


def test_main_is_named_once_with_all_its_calls() -> None:
    said = error(BEGINNINGS["main that launches"].source)
    assert said.count("from Python") == 1
    assert "cudaMalloc is" not in said


def test_few_hints_are_given() -> None:
    said = error(body("uint a; half b; x[threadidx.x] = M_PI; __shfl(1, 1); exit(1);"))
    assert said.count(". ") == 3


def test_an_error_without_a_hint_has_none() -> None:
    assert error(body("x[0] = missing;")) == "k.cu does not compile for sm_90a: 1 error"


def test_a_users_header_has_hints_too(tmp_path: Path) -> None:
    (tmp_path / "mine.cuh").write_text("inline float twice(float x) { return 2 * x; }\ntypedef uint32_t word;\n")
    said = error('#include "mine.cuh"\n' + KERNEL, include=(tmp_path,))
    assert "Mark functions that kernels call with __device__" in said
    assert "uint32_t needs #include <cuda/std/cstdint>" in said


def test_cutlass_needs_an_option(tmp_path: Path) -> None:
    """A header with what CUTLASS's have: functions without an execution space."""
    (tmp_path / "cutlass").mkdir()
    (tmp_path / "cutlass" / "exmy_base.h").write_text("inline int bits(int x) { return x; }\n")
    source = "#include <cutlass/exmy_base.h>\n" + KERNEL
    assert 'CUTLASS\'s headers need options=("-default-device",)' in error(source, include=(tmp_path,))
    assert build(source, include=(tmp_path,), options=("-default-device",)).ptx
    assert "Add the folder of CUTLASS's headers to include=" in error(source)


def test_thrust_is_for_the_host(tmp_path: Path) -> None:
    """A header with what Thrust's have: a function of the host."""
    (tmp_path / "thrust").mkdir()
    (tmp_path / "thrust" / "sort.h").write_text("inline void sort(int* x) {}\n")
    said = error("#include <thrust/sort.h>\n" + KERNEL, include=(tmp_path,))
    assert said.endswith("in a kernel use CUB's primitives, such as <cub/block/block_reduce.cuh>")


@pytest.mark.long
def test_all_of_cub_at_once() -> None:
    assert "such as <cub/block/block_reduce.cuh>" in error("#include <cub/cub.cuh>\n" + KERNEL, minimal=False)
