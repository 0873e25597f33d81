"""Traps and the float64 shadow name the line of planted numerical bugs, and report nothing for correct kernels."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted.numerics import CASES, Case

import cudakit
from cudakit import ops
from cudakit.debugger.numerics import KINDS, AccuracyReport, float64_shadow, trap
from cudakit.errors import CudakitError, DeviceFault

RNG = np.random.default_rng(1)
# a trap for denormals is for kernels that must not have any
USUAL = ("nan", "inf", "overflow", "division")


@pytest.fixture
def device() -> Iterator[cudakit.Device]:
    with cudakit.Device("sim", fresh=True) as made:
        yield made


def launch(device: cudakit.Device, case: Case, kernel: str) -> None:
    given = case.arguments(np.random.default_rng(1))
    args = tuple(device.array(a) if isinstance(a, np.ndarray) else a for a in given)
    device.compile(case.file)[kernel].launch(device.default_stream, grid=case.grid, block=case.block, args=args)
    device.default_stream.synchronize()


def run(device: cudakit.Device, source: str, *args: Any, zeros: int = 0) -> None:
    """Launch the kernel `k` of a source with 64 threads; `zeros`: the elements of its only argument."""
    args = (device.zeros(zeros),) if zeros else args
    device.compile(source=source)["k"].launch(device.default_stream, grid=1, block=64, args=args)
    device.default_stream.synchronize()


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.trap], ids=lambda case: case.name)
def test_a_trap_names_the_line(device: cudakit.Device, case: Case) -> None:
    with trap(*USUAL, case.trap, device=device):
        launch(device, case, "right")
    with pytest.raises(DeviceFault) as caught, trap(case.trap, device=device):
        launch(device, case, "wrong")
    report = caught.value.report
    assert (report.kind, report.line, report.file) == (case.kind, case.bug, str(case.file))


@pytest.mark.parametrize("case", [case for case in CASES.values() if not case.trap], ids=lambda case: case.name)
def test_the_shadow_names_the_line(device: cudakit.Device, case: Case) -> None:
    with float64_shadow(device) as accuracy:
        launch(device, case, "right")
    assert not accuracy.losses, str(accuracy)
    with float64_shadow(device) as accuracy:
        launch(device, case, "wrong")
    assert [line.place.line for line in accuracy.losses] == [case.bug], str(accuracy)


@pytest.mark.parametrize("name", ["masked_mean", "softmax_no_max", "half_norm", "root_of_residue", "angle"])
def test_the_shadow_reports_no_correct_twin(device: cudakit.Device, name: str) -> None:
    with float64_shadow(device) as accuracy:
        launch(device, CASES[name], "right")
    assert accuracy.lines
    assert not accuracy.losses, str(accuracy)


def test_a_report_has_the_operands_and_the_lanes(device: cudakit.Device) -> None:
    with pytest.raises(DeviceFault) as caught, trap("overflow", device=device):
        launch(device, CASES["half_norm"], "wrong")
    report = caught.value.report
    assert report.detail.startswith("64416 + 1374 = inf; the value is stored to global memory at ")
    assert (report.thread, report.lanes, report.name) == ((30, 0, 0), 1, "wrong")
    with cudakit.Device("sim", fresh=True) as fresh, pytest.raises(DeviceFault) as caught, trap("overflow"):
        launch(fresh, CASES["offset_in_window"], "wrong")
    assert "40000 * 60000 = 2400000000 does not fit int and becomes -1894967296" in caught.value.report.detail
    assert caught.value.report.lanes == 64


def test_an_unknown_kind_and_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match=r"kinds are nan, inf, .*Did you mean 'denormal'"), trap("denormals"):
        pass
    lists: Any = ["nan"]
    name: Any = "sim"
    for refused in (lambda: trap(lists), lambda: trap(device=name), lambda: float64_shadow(name)):
        with pytest.raises(TypeError, match="was requested; "), refused():
            pass


def test_work_that_is_still_queued_is_trapped_at_the_end_of_the_block(device: cudakit.Device) -> None:
    source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1.0f / x[threadIdx.x]; }'
    kernel, x = device.compile(source=source)["k"], device.zeros(64)
    with pytest.raises(DeviceFault, match=r"division by zero: 1\.0 / 0\.0 = inf"), trap("division"):
        kernel.launch(device.default_stream, grid=1, block=64, args=(x,))
    with pytest.raises(DeviceFault, match="division by zero"), trap("division"):
        run(cudakit.Device("sim", fresh=True), source, zeros=64)
    with cudakit.Device("sim", fresh=True) as untouched:
        kernel, x = untouched.compile(source=source)["k"], untouched.zeros(64)
        kernel.launch(untouched.default_stream, grid=1, block=64, args=(x,))
        untouched.default_stream.synchronize()
        assert np.isinf(x.numpy()).all()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        # through shared memory, a shuffle and a function that is called
        ("__shared__ float s[64]; s[t] = 0.0f / x[t]; __syncthreads(); y[t] = s[63 - t];", "nan"),
        ("float v = sqrtf(x[t] - 1.0f); v = __shfl_xor_sync(~0u, v, 1); y[t] = v;", "nan"),
        ("y[t] = called(x[t]);", "nan"),
        ("y[t] = logf(x[t] - 1.0f);", "nan"),
        ("y[t] = powf(x[t] + 9.0f, 50.0f);", "overflow"),
        ("y[t] = (int)(x[t] / x[t] * 3.0f);", "nan"),
        ("y[t] = powf(x[t] - 1.0f, 0.5f);", "nan"),
        ("y[t] = fmodf(1.0f, x[t]);", "nan"),
        ("y[t] = (float)log((double)x[t]);", "inf"),
        ("y[t] = -logf(x[t]);", "inf"),
        ("y[t] = (float)exp(1000.0 + x[t]);", "overflow"),
        ("y[t] = powf(x[t], -2.0f);", "division"),
        ("y[t] = (float)__nv_fp8_e4m3(500.0f + x[t]);", "overflow"),
        ("float v = x[t] / x[t]; int n = 0; while (v < 3.0f) { v += 1.0f; ++n; } y[t] = n;", "nan"),
        ("atomicAdd(y, 1.0f / x[t]);", "inf"),
        ("y[t] = __fdividef(1.0f, x[t]);", "division"),
        ("y[t] = (float)(t % (int)x[t]);", "division"),
        ("double v = exp(710.0 + x[t]); y[t] = v > 1.0 ? (float)(v * 0.5) : 0.0f;", "overflow"),
        ("y[t] = __half2float(__float2half(70000.0f + x[t]));", "overflow"),
        ("__half2 v = __floats2half2_rn(300.0f, x[t]); y[t] = __low2float(__hmul2(v, v));", "overflow"),
        ("y[t] = __fmul_rn(1e-30f, 1e-9f + x[t]);", "denormal"),
    ],
)
def test_a_value_is_followed_until_it_is_used(device: cudakit.Device, body: str, kind: str) -> None:
    source = f"""#include <cuda_fp16.h>
        #include <cuda_fp8.h>
        __device__ __noinline__ float called(float v) {{ return v / v + 1.0f; }}
        extern "C" __global__ void k(const float* x, float* y) {{
            const int t = threadIdx.x;
            {body}
        }}"""
    with pytest.raises(DeviceFault) as caught, trap(kind, device=device):
        run(device, source, device.zeros(64), device.zeros(64))
    titles = {"nan": "NaN made", "inf": "infinity made", "denormal": "denormal result", "division": "division by zero"}
    assert caught.value.report.kind == titles.get(kind, kind)


@pytest.mark.parametrize(
    "body",
    [
        "y[t] = x[t] == 0.0f ? 0.0f : 1.0f / x[t];",  # the quotient of these lanes is discarded
        "const float v = 0.0f / x[t]; y[t] = isnan(v) ? 1.0f : v;",
        "const float v = 0.0f / x[t]; if (isfinite(v)) y[t] = v;",
        "y[t] = 1.0f / (1.0f + expf(100.0f + x[t]));",  # exp overflows, and the quotient is 0 as it should be
        "y[t] = fminf(expf(100.0f + x[t]), 1e30f);",
        "y[t] = (float)(1.0 / (1.0 + exp(1000.0 + x[t])) + exp(-1000.0 - x[t]));",
        "y[t] = (x[t] == 0.0f ? 0.0f : -logf(x[t])) + fminf(-logf(x[t]), 99.0f);",
        "y[t] = expf(-__int_as_float(0x7f800000)) + tanhf(1e10f + x[t]) + powf(x[t], 2.0f) + sinf(1e6f + x[t]);",
        "y[t] = log1pf(x[t]) + erff(1e3f) + expf(-200.0f + x[t]) + log1pf(expf(-90.0f)) + cbrtf(x[t]) + atanf(1e30f);",
        "float m = -__int_as_float(0x7f800000); for (int k = 0; k < 4; ++k) m = fmaxf(m, x[t]); y[t] = expf(x[t] - m);",
        "const unsigned h = (t + 1) * 2654435761u; y[t] = x[(h >> 13) % 64] + x[(h ^ (h >> 9)) & 63];",
        "const int h = (t + 1) * __float_as_int(1.1f + x[t]); y[t] = x[abs(h) % 64] + x[abs(h) % 37] + x[abs(h % 32)];",
        "const unsigned h = (t + 1) * 2654435761u; y[t] = x[h % 61] + x[h % 64] + x[h / 70000000];",
        "const int last = 63; y[last - t] = x[(unsigned)last - t];",
        "const int a = __float_as_int(x[0]), b = __float_as_int(x[1]); y[a * 9 - b * 9 + t] = a + a - b - b;",
        "const float v = x[t] / x[t]; if (t == 64) y[t] = v;",
    ],
)
def test_correct_kernels_have_no_trap(device: cudakit.Device, body: str) -> None:
    source = f'extern "C" __global__ void k(const float* x, float* y) {{ const int t = threadIdx.x; {body} }}'
    with trap(*USUAL, device=device):
        run(device, source, device.zeros(64), device.zeros(64))


@pytest.mark.parametrize(
    ("index", "operation"),
    [
        ("a + a - t", " = 4000000000 does not fit int and becomes -294967296"),
        ("t - a - a", "-1999999999 - 2000000000 = -3999999999 does not fit 32 bits"),
        ("(t + 1) * a", "2000000000 * 2 = 4000000000 does not fit int"),
        ("a * 2 % 71", "= 4000000000 does not fit int"),
        ("a * 2 % x[63]", "= 4000000000 does not fit int"),
        ("a << 2", "2000000000 << 2 = 8000000000"),
        ("(unsigned)a * 3u", "2000000000 * 3 = 6000000000"),
    ],
)
def test_an_index_that_overflows(device: cudakit.Device, index: str, operation: str) -> None:
    source = f"""extern "C" __global__ void k(const int* x, float* y) {{
            const int t = threadIdx.x, a = x[t];
            y[{index}] = 1.0f;
        }}"""
    values = np.full(64, 2_000_000_000, np.int32)
    values[0], values[63] = 0, 17  # whose index is in bounds
    with pytest.raises(DeviceFault) as caught, trap("overflow", device=device):
        run(device, source, device.array(values), device.zeros(64))
    assert caught.value.report.kind == "index overflow"
    assert operation in caught.value.report.detail


def test_an_infinity_that_was_loaded_is_not_made(device: cudakit.Device) -> None:
    source = 'extern "C" __global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * 2.0f; }'
    x = device.array(np.full(64, np.inf, np.float32))
    with trap(*KINDS, device=device):
        run(device, source, x, device.zeros(64))


@pytest.mark.parametrize("variant", ["thread_per_row_online", "online_fused", "warp_shuffle", "split_row", "on_chip"])
def test_softmax_is_clean(device: cudakit.Device, variant: str) -> None:
    x = device.array(np.random.default_rng(2).standard_normal((8, 152)).astype(np.float32))
    with trap(*USUAL, device=device):
        ops.softmax(x, variant=variant)
    with float64_shadow(device) as accuracy:
        ops.softmax(x, variant=variant)
    assert accuracy.lines
    assert not accuracy.losses, str(accuracy)


@pytest.mark.parametrize("variant", ["tiled16", "register_1d"])
def test_products_and_attention_are_clean(device: cudakit.Device, variant: str) -> None:
    draw = np.random.default_rng(2).standard_normal
    a, b = device.array(draw((48, 40)).astype(np.float32)), device.array(draw((40, 33)).astype(np.float32))
    q, k, v = (device.array(draw((1, 1, 32, 64)).astype(np.float16)) for _ in range(3))
    with trap(*USUAL, device=device):
        ops.gemm(a, b, variant=variant)
        ops.attention(q, k, v, causal=True, variant="flash")
    with float64_shadow(device) as accuracy:
        ops.gemm(a, b, variant=variant)
        ops.attention(q, k, v, causal=True, variant="flash")
    assert not accuracy.losses, str(accuracy)
    assert accuracy.notes == [note for note in accuracy.notes if "ldmatrix" in note and "mma" in note]


def test_a_matrix_product_that_overflows(device: cudakit.Device) -> None:
    a = device.array(np.full((64, 64), 200, np.float16))
    with pytest.raises(DeviceFault) as caught, trap("overflow", device=device):
        ops.gemm(a, a, variant="wmma")
    assert caught.value.report.kind == "overflow"


@pytest.mark.parametrize("stored", ["shared", "global"])
def test_a_value_is_followed_through_tiles_of_wmma(device: cudakit.Device, stored: str) -> None:
    store = (
        "nvcuda::wmma::store_matrix_sync(out, c, 16, nvcuda::wmma::mem_row_major);"
        if stored == "global"
        else """
            nvcuda::wmma::store_matrix_sync(sums, c, 16, nvcuda::wmma::mem_row_major);
            __syncwarp();
            for (int k = threadIdx.x; k < 256; k += 32) out[k] = sums[k];"""
    )
    source = f"""#include <mma.h>
        using namespace nvcuda::wmma;
        extern "C" __global__ void k(const float* x, float* out) {{
            __shared__ __align__(32) half tile[256];
            __shared__ __align__(32) float sums[256];
            if (threadIdx.x >= 32) return;
            for (int k = threadIdx.x; k < 256; k += 32)
                tile[k] = __float2half(k == 40 ? x[0] / x[1] : 1.0f);
            __syncwarp();
            fragment<matrix_a, 16, 16, 16, half, row_major> a;
            fragment<matrix_b, 16, 16, 16, half, row_major> b;
            fragment<accumulator, 16, 16, 16, float> c;
            fill_fragment(c, 0.0f);
            load_matrix_sync(a, tile, 16);
            load_matrix_sync(b, tile, 16);
            mma_sync(c, a, b, c);
            {store}
        }}"""
    with pytest.raises(DeviceFault) as caught, trap("nan", device=device):
        run(device, source, device.zeros(64), device.zeros(256))
    assert "x[0] / x[1]" in str(caught.value.report.text)


# an index that wraps to 0, on its way to an address
WRAPS = [
    "int v = t < 32 ? 0 : 4; for (int k = 0; k < 3; ++k) v = v ? v : product(z, w, h); y[v] = 1.0f;",
    "put(y, z * w * h);",
    "int v; by_reference(v, z, w, h); y[v] = 1.0f;",
    "*pointer(y, z, w, h) = 1.0f;",
    "int v = t % 32 == 0 ? z * w * h : 0; v = __shfl_sync(~0u, v, 0); y[v] = 1.0f;",
    "unsigned long long p = (unsigned long long)(y + z * w * h); *(float*)__shfl_sync(~0u, p, 3) = 1.0f;",
    "__shared__ int s; if (t == 0) s = z * w * h; __syncthreads(); y[s] = 1.0f;",
    "__shared__ float* s[64]; s[t] = y + z * w * h; __syncthreads(); *s[63 - t] = 1.0f;",
    "int a[4]; for (int k = 0; k < 4; ++k) a[(k + w) & 3] = z * w * h; y[a[h & 3]] = 1.0f;",
    """int v = 1 << 27; for (int k = 1; k < 32; k *= 2) { int u = __shfl_up_sync(~0u, v, k); v += t % 32 >= k ? u : 0; }
       if (t == 31) y[v] = 1.0f;""",
    """__shared__ int s[64]; s[t] = 1 << 27;
       for (int k = 1; k < 32; k *= 2) {
           __syncthreads(); int u = t >= k ? s[t - k] : 0; __syncthreads(); s[t] += u;
       }
       if (t == 31) y[s[t]] = 1.0f;""",
]


@pytest.mark.parametrize("options", [(), ("-G",)], ids=["optimized", "for a debugger"])
@pytest.mark.parametrize("body", WRAPS)
def test_an_index_is_followed_until_it_is_used(device: cudakit.Device, body: str, options: tuple[str, ...]) -> None:
    source = f"""__device__ __noinline__ int product(int z, int w, int h) {{ return z * w * h; }}
        __device__ __noinline__ void put(float* y, int index) {{ y[index] = 1.0f; }}
        __device__ __noinline__ void by_reference(int& index, int z, int w, int h) {{ index = z * w * h; }}
        __device__ __noinline__ float* pointer(float* y, int z, int w, int h) {{ return y + z * w * h; }}
        extern "C" __global__ void k(float* y, int z, int w, int h) {{ const int t = threadIdx.x; {body} }}"""
    kernel, args = device.compile(source=source, options=options)["k"], (device.zeros(64), 2048, 2048, 1024)
    with pytest.raises(DeviceFault, match="does not fit 32 bits and becomes 0"), trap("overflow", device=device):
        kernel.launch(device.default_stream, grid=1, block=64, args=args)


@pytest.mark.parametrize("options", [(), ("-G",)], ids=["optimized", "for a debugger"])
@pytest.mark.parametrize(
    "body",
    [
        "const unsigned h = hashed(t); y[t] = x[h % n] + x[h & 63] + x[h >> 26] + x[__umulhi(h, n)];",
        "const unsigned h = hashed(t); y[t] = x[(unsigned)((unsigned long long)h * n >> 32)];",
        "unsigned s = t; for (int k = 0; k < 5; ++k) next(s); y[t] = x[s % n] + x[modulo(s, n)];",
        "__shared__ unsigned s[64]; s[t] = t * 2654435761u; __syncthreads(); y[t] = x[s[63 - t] % n] + x[s[t] >> 26];",
        "unsigned h = t * 2654435761u; h = __shfl_xor_sync(~0u, h, 3) * 31u; y[t] = x[h % n] + x[h >> 26];",
        "unsigned a[4]; for (int k = 0; k < 4; ++k) a[(k + t) & 3] = t * 2654435761u + k; y[t] = x[a[t & 3] % n];",
        "__shared__ int s[64]; s[t] = t * 99999999; __syncthreads(); s[t] = t; __syncthreads(); y[t] = x[s[63 - t]];",
        """__shared__ unsigned head; if (t == 0) head = 0x7ffffff0u; __syncthreads();
           for (int k = 0; k < 40; ++k) { if (t == 0) head += 1; __syncthreads(); }
           y[t] = x[head & 63] + x[head % n];""",
        # an index that wrapped to 0, and the index 0 in the same place
        """__shared__ int s[64]; s[t] = (n << 31) * 2; __syncthreads(); y[t] = s[t]; __syncthreads();
           s[t] = 0; __syncthreads(); y[s[63 - t]] = 1.0f;""",
        "y[t] = chosen(n << 30, 1) * 0.0f; y[chosen(n << 30, 0) + t] = 1.0f;",
        """__shared__ int s; if (t == 0) s = (n << 31) * 2; __syncthreads(); y[t] = s; __syncthreads();
           if (t == 0) atomicExch(&s, 0); __syncthreads(); y[s] = 1.0f;""",
        "__shared__ unsigned s[64]; s[t] = 3000000000u + t; __syncthreads(); y[t] = (x - 3000000000ull)[s[t]];",
        "const float* p = x + t; p = (const float*)__shfl_sync(~0u, (unsigned long long)p, 5); y[t] = *p;",
    ],
)
def test_correct_indices_in_memory_and_functions_have_no_trap(
    device: cudakit.Device, body: str, options: tuple[str, ...]
) -> None:
    source = f"""__device__ __noinline__ unsigned hashed(unsigned h) {{ return (h + 1) * 2654435761u; }}
        __device__ __noinline__ void next(unsigned& s) {{ s = s * 1664525u + 1013904223u; }}
        __device__ __noinline__ int modulo(int a, int n) {{ int r = a % n; if (r < 0) r += n; return r; }}
        __device__ __noinline__ int chosen(int a, int b) {{ if (b) return a * 4; return 0; }}
        extern "C" __global__ void k(const float* x, float* y, int n) {{ const int t = threadIdx.x; {body} }}"""
    kernel = device.compile(source=source, options=options)["k"]
    with trap(*USUAL, device=device):
        kernel.launch(device.default_stream, grid=1, block=64, args=(device.zeros(64), device.zeros(64), 61))


SUMS = """#include <cuda_fp16.h>
    extern "C" __global__ void k(const float* x, float* y) {
        __shared__ float s;
        const int t = threadIdx.x;
        if (t == 0) s = 0.0f;
        __syncthreads();
        BODY
    }"""


@pytest.mark.parametrize(
    ("body", "kind", "detail"),
    [
        ("atomicAdd(y + t % 2, x[t]);", "overflow", "0.0 + 3e+37 + 3e+37 + 3e+37 + ... (32 atomics) = inf"),
        ("atomicAdd((half*)y + t / 2, __float2half(t < 2 ? 4e4f : x[t] * 1e-37f));", "inf", "0 + 40000 + 40000 = inf"),
        ("atomicAdd((half2*)y, __floats2half2_rn(1.0f, 3e4f));", "overflow", "... (64 atomics) = inf"),
        ("atomicAdd(&s, x[t]); __syncthreads(); y[t] = s;", "overflow", "(64 atomics) = inf; the value is stored"),
        ("const float v = atomicAdd(&s, x[t]); y[t] = v;", "inf", "(64 atomics) = inf; the value is stored"),
        ("atomicAdd(&s, x[t]); __syncthreads(); y[t] = atomicExch(&s, 0.0f);", "overflow", "(64 atomics) = inf"),
        ("atomicAdd(y, __int_as_float(t & 1 ? 0x7f800000 : 0xff800000));", "nan", "0.0 + (-inf) + inf + (-inf) + ..."),
    ],
)
def test_a_sum_of_atomics(device: cudakit.Device, body: str, kind: str, detail: str) -> None:
    x = device.array(np.full(64, 3e37, np.float32))
    with pytest.raises(DeviceFault) as caught, trap(kind, device=device):
        run(device, SUMS.replace("BODY", body), x, device.zeros(64))
    assert caught.value.report.kind == {"nan": "NaN made", "inf": "infinity made"}.get(kind, kind)
    assert detail in caught.value.report.detail


@pytest.mark.parametrize(
    "body",
    [
        "atomicAdd(&s, x[t]); __syncthreads(); y[t] = isinf(s) ? 0.0f : s;",
        "atomicAdd(&s, x[t]); __syncthreads(); y[t] = 1.0f / (1.0f + s);",
        "atomicAdd(&s, x[t]); __syncthreads(); atomicExch(&s, 0.0f); __syncthreads(); y[t] = s;",
        "atomicAdd(&s, x[t]); __syncthreads(); s = 0.0f; __syncthreads(); y[t] = atomicAdd(&s, 1.0f);",
        "atomicAdd(y, x[t] * 0.01f); atomicMax((int*)y + 1, __float_as_int(x[t]));",
    ],
)
def test_correct_sums_of_atomics_have_no_trap(device: cudakit.Device, body: str) -> None:
    with trap(*USUAL, device=device):
        run(device, SUMS.replace("BODY", body), device.array(np.full(64, 3e37, np.float32)), device.zeros(64))


def shadowed(device: cudakit.Device, body: str, x: np.ndarray, y: np.ndarray) -> tuple[AccuracyReport, np.ndarray]:
    source = f"""#include <cuda_fp16.h>
        #include <cuda_bf16.h>
        extern "C" __global__ void k(const float* x, float* y) {{
            const int t = threadIdx.x;
            {body}
        }}"""
    out = device.array(y)
    with float64_shadow(device) as accuracy:
        run(device, source, device.array(x), out)
    return accuracy, out.numpy()


X = np.random.default_rng(5).uniform(1, 2, 64).astype(np.float32)


@pytest.mark.parametrize(
    "body",
    [
        "y[t] = x[t] - x[63 - t];",  # exact operands lose nothing
        "y[t] = expf(x[t] * 9.0f) + sinf(x[t]) + logf(x[t]) * tanhf(x[t]) + powf(x[t], 3.3f) + erff(x[t]);",
        "float s = 0.0f; for (int k = 0; k < 500; ++k) s += x[(t + k) % 64]; y[t] = s;",
        "float s = 0.0f; for (int k = 0; k < 64; ++k) s += expf(10.0f * x[k] - 20.0f); y[t] = s;",
        "y[t] = __bfloat162float(__float2bfloat16(x[t])) * __half2float(__hmul(__float2half(x[t]), __half(3)));",
        # a store of the same bits ends the shadow, and lanes that are off drop no addends
        "volatile __shared__ float s[64]; s[t] = (x[t] * 0.2f + 1e9f) - 1e9f; s[t] = 0.0f; y[t] = s[t] + x[t];",
        """float s = 1048576.0f; for (int k = 0; k < 100; ++k) {
            const float v = k == 97 ? 1e-3f : 0.1f;
            asm("{.reg .pred p; setp.ne.s32 p, %2, 0; @p add.f32 %0, %0, %1;}" : "+f"(s) : "f"(v), "r"(k & 1));
            }
            y[t] = s;""",
        "y[t] = rintf(x[t] * 1000.0f) + floorf(x[t] * 77.7f);",
        "double s = 0.0; for (int k = 0; k < 64; ++k) s += (double)x[k] * x[k]; y[t] = (float)(s / 64.0);",
        "y[t] = expm1f(x[t] * 1e-4f) + atan2f(x[t], 2.0f) + cbrtf(x[t]) + rsqrtf(x[t]) + hypotf(x[t], 1.0f);",
    ],
)
def test_correct_arithmetic_loses_nothing(device: cudakit.Device, body: str) -> None:
    accuracy, _ = shadowed(device, body, X, np.zeros(64, np.float32))
    assert accuracy.lines
    assert not accuracy.losses, str(accuracy)


@pytest.mark.parametrize(
    "body",
    [
        "const float a = x[t] * 1.1f; y[t] = (a + 1e6f) - 1e6f;",
        "__shared__ float s[64]; s[t] = x[t] / 3.0f + 4096.0f; __syncthreads(); y[t] = s[63 - t] - 4096.0f;",
        "const float a = __shfl_xor_sync(~0u, x[t] / 3.0f + 4096.0f, 3); y[t] = a - 4096.0f;",
        "y[t] = (1.0f - cosf(x[t] * 1e-3f)) * 1e6f;",
        "y[t] = __low2float(__hsub2(__float2half2_rn(x[t] / 3.0f + 100.0f), __float2half2_rn(100.0f)));",
        "const __nv_bfloat16 a = __float2bfloat16(x[t] / 3.0f + 64.0f); y[t] = __bfloat162float(a) - 64.0f;",
        "float s = 16777216.0f; for (int k = 0; k < 40; ++k) s += x[t] * 0.3f; y[t] = s;",
        "const double a = x[t] * 1.1f + 5000.0f; y[t] = (float)(a - 5000.0);",
    ],
)
def test_cancellation_and_dropped_addends_are_losses(device: cudakit.Device, body: str) -> None:
    accuracy, _ = shadowed(device, body, X, np.zeros(64, np.float32))
    assert [line.place.line for line in accuracy.losses] == [5], str(accuracy)


def test_a_sum_in_memory_that_drops_its_addends(device: cudakit.Device) -> None:
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    x[17], y[17] = 1.0, 2.0**24
    accuracy, _ = shadowed(device, "for (int k = 0; k < 40; ++k) atomicAdd(y + t, x[t]);", x, y)
    assert [line.thread for line in accuracy.losses] == [(17, 0, 0)], str(accuracy)


def test_the_shadow_survives_launches_and_ends_with_a_copy(device: cudakit.Device) -> None:
    source = """extern "C" __global__ void first(float* x) { x[threadIdx.x] = x[threadIdx.x] / 3.0f + 9999.0f; }
        extern "C" __global__ void second(float* x) { x[threadIdx.x] -= 9999.0f; }"""
    module, stream, x = device.compile(source=source), device.default_stream, device.array(X)
    losses = []
    for copies in (False, True):
        with float64_shadow(device) as accuracy:
            module["first"].launch(stream, grid=1, block=64, args=(x,))
            if copies:
                x.copy_from(x.numpy() + np.float32(0.5))
            module["second"].launch(stream, grid=1, block=64, args=(x,))
        losses.append([line.kernel for line in accuracy.losses])
        x.copy_from(X)
    assert losses == [["second"], []]


def test_results_do_not_change_and_the_report_is_data(device: cudakit.Device) -> None:
    body = "float s = 0.0f; for (int k = 0; k < 9; ++k) s = fmaf(s, 0.3f, expf(x[t] * k)); y[t] = s - 1e8f;"
    accuracy, got = shadowed(device, body, X, np.zeros(64, np.float32))
    plain = device.zeros(64)
    source = f'extern "C" __global__ void k(const float* x, float* y) {{ const int t = threadIdx.x; {body} }}'
    run(device, source, device.array(X), plain)
    assert np.array_equal(got, plain.numpy())
    data = json.loads(json.dumps(accuracy.as_dict()))
    assert data["lines"][0]["operations"] == accuracy.lines[0].operations > 64 * 9
    assert accuracy.worst(1) == accuracy.lines[:1]
    assert "typical" in str(accuracy)


@pytest.mark.parametrize(
    "body",
    [
        # sums that no longer change from 256 and 2048 on, in less than a quarter of their additions
        "__nv_bfloat16 s = 0.0f; for (int k = 0; k < 320; ++k) s = __hadd(s, __nv_bfloat16(1)); y[t] = float(s);",
        "__half s = 0.0f; for (int k = 0; k < 2400; ++k) s = __hadd(s, __half(1)); y[t] = float(s);",
        "const float v = x[t] < 9.0f ? 1.0f : 0.0f; float s = 0.0f; for (int k = 0; k < 5396; ++k)"
        " s += k < 4096 ? 4096.0f * v : v; y[t] = s;",
        # a 0 because of an infinite sum, norm or divisor
        "float s = 0.0f; for (int k = 0; k < 64; ++k) s += expf(x[k] + 86.0f); y[t] = expf(x[t] + 86.0f) / s;",
        "__half s = 0.0f; for (int k = 0; k < 64; ++k) s = __hadd(s, __half(2000)); y[t] = float(__half(2000) / s);",
        "float s = 0.0f; for (int k = 0; k < 64; ++k) s += x[k] * 1e38f * x[k]; y[t] = x[t] * 1e19f * rsqrtf(s);",
        "__shared__ float s[64]; s[t] = x[t] * 1e19f * (x[t] * 1e19f); __syncthreads(); y[t] = 1e38f / s[63 - t];",
        # in one of 64 lanes
        "const float v = t == 9 ? 1e20f : 1.0f, s = x[t] * v * v; y[t] = v / s * v;",
        # the rounding of integers
        "const float now = 1700000000000000000ll + t * 1000000ll, start = 1700000000000000000ll; y[t] = now - start;",
        "const unsigned n = 4000000000u + t; const float a = n, b = 4000000000u; y[t] = a - b;",
        "const __half a = __int2half_rn(4096 + t); y[t] = float(a) - 4096.0f;",
    ],
)
def test_stagnation_overflow_and_converted_integers_are_losses(device: cudakit.Device, body: str) -> None:
    accuracy, got = shadowed(device, body, X, np.zeros(64, np.float32))
    assert np.isfinite(got).all()
    assert [line.place.line for line in accuracy.losses] == [5], str(accuracy)
    assert accuracy.losses[0].bits_lost >= 4


def test_an_overflow_or_underflow_is_reported_where_it_is_made(device: cudakit.Device) -> None:
    body = """float s = 0.0f;
            for (int k = 0; k < 64; ++k)
                s += x[k] * 3e37f;
            const float half = s * 0.5f;
            y[t] = x[t] * 1e37f / half;"""
    accuracy, _ = shadowed(device, body, X, np.zeros(64, np.float32))
    (line,) = accuracy.losses
    assert (line.place.line, line.result, line.unit) == (7, "inf", -24), str(accuracy)
    assert float(line.exact) > 3.4e38
    body = """const float v = x[t] * 1e-22f;
            const float s = v * v;
            y[t] = v * rsqrtf(s);"""
    accuracy, _ = shadowed(device, body, X, np.zeros(64, np.float32))
    assert [line.place.line for line in accuracy.losses] == [6], str(accuracy)
    assert accuracy.losses[0].bits_lost > 10
    source = """extern "C" __global__ void k(float* x) { atomicAdd(x, 3e37f); }
        extern "C" __global__ void second(float* x) { x[0] = 1e38f / x[0]; }"""
    module, x = device.compile(source=source), device.zeros(1)
    with float64_shadow(device) as accuracy:
        for name in ("k", "second"):
            module[name].launch(device.default_stream, grid=1, block=64 if name == "k" else 1, args=(x,))
    assert [line.kernel for line in accuracy.losses] == ["k"], str(accuracy)


@pytest.mark.parametrize(
    "body",
    [
        "y[t] = 1.0f / (1.0f + expf(100.0f + x[t])) + 1.0f / (1.0f + __expf(90.0f * x[t]));",
        "const float v = t * 6.0f - 192.0f; y[t] = v / (1.0f + __expf(-v));",
        "const float v = t * 3.0f + 1.0f; y[t] = v * v * v / (__expf(v) - 1.0f);",
        "const float v = t * 3.0f + 1.0f; y[t] = 1.0f - 2.0f / (__expf(2.0f * v) + 1.0f);",
        "const __half v = t * 0.5f - 16.0f; y[t] = float(v / (__half(1) + hexp(-v)));",
        "y[t] = fminf(__expf(90.0f * x[t]), 1e4f) + (isinf(__expf(90.0f * x[t])) ? 1.0f : 2.0f);",
        "y[t] = __expf(90.0f * x[t]);",  # stored infinities are for the traps
        """const float inf = __int_as_float(0x7f800000); float m = -inf, s = 0.0f; for (int k = 0; k < 64; ++k) {
            const float v = (k + t) % 3 ? x[k] : -inf, n = fmaxf(m, v), b = n == -inf ? 0.0f : n;
            s = s * __expf(m - b) + __expf(v - b); m = n; }
            y[t] = m + logf(s);""",
        "float s = 0.0f; for (int k = 0; k < 64; ++k) s += __expf((k % 3 ? x[k] : -3.4028235e38f) - x[t]); y[t] = s;",
        "float best = __int_as_float(0x7f800000); for (int k = 0; k < 64; ++k) { const float d = (x[k] - x[t]) * 1e30f;"
        " if (k != t) best = fminf(best, d * d); } y[t] = 1.0f / best;",
        # the parts of an integer, and integers that floats hold exactly
        "const long long n = 170000000000000ll + t * 1000ll; const float a = n, b = n - (long long)a;"
        " const float c = 170000000000000ll, d = 170000000000000ll - (long long)c; y[t] = (a - c) + (b - d);",
        "const float a = t * 100003, b = 100003; y[t] = a - b + (float)(short)(t * 77) + sqrtf(t * 123456789u);",
    ],
)
def test_harmless_infinities_and_integers_are_no_losses(device: cudakit.Device, body: str) -> None:
    accuracy, _ = shadowed(device, body, X, np.zeros(64, np.float32))
    assert accuracy.lines
    assert not accuracy.losses, str(accuracy)


def test_kernels_compiled_for_a_debugger(device: cudakit.Device) -> None:
    module = device.compile(CASES["quadratic"].file, options=("-G",))
    args = [device.array(a) if isinstance(a, np.ndarray) else a for a in CASES["quadratic"].arguments(RNG)]
    with float64_shadow(device) as accuracy:
        module["wrong"].launch(device.default_stream, grid=1, block=256, args=args)
    assert [line.place.line for line in accuracy.losses] == [CASES["quadratic"].bug], str(accuracy)
    module = device.compile(CASES["root_of_residue"].file, options=("-G",))
    args = [device.array(a) if isinstance(a, np.ndarray) else a for a in CASES["root_of_residue"].arguments(RNG)]
    with pytest.raises(DeviceFault) as caught, trap("nan", device=device):
        module["wrong"].launch(device.default_stream, grid=1, block=256, args=args)
    assert caught.value.report.line == CASES["root_of_residue"].bug


def test_a_trap_ends_with_its_block(device: cudakit.Device) -> None:
    source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1.0f / x[threadIdx.x]; }'
    with trap("nan", device=device), contextlib.suppress(CudakitError):
        pass
    run(device, source, device.zeros(64))


def test_every_case_has_a_mark() -> None:
    folder = Path(next(iter(CASES.values())).file).parent
    assert {path.stem for path in folder.glob("*.cu")} == set(CASES)
    assert all(case.bug > 0 for case in CASES.values())
