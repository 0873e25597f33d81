"""Loads and stores in machine code (``sim/compiled``): guards, alignment, small elements, and barriers that vote."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_runs import both, reported
from simdevice import SimDevice

pytest.importorskip("llvmlite", reason="machine code needs llvmlite, of the extra 'compiled'")

SOURCE = r"""
extern "C" __global__ void every_fourth(const unsigned char* x, unsigned char* y) {
    __shared__ unsigned char s[256];
    const int t = threadIdx.x;
    for (int i = t; i < 256; i += 64) s[i] = x[i];
    __syncthreads();
    y[t] = s[4 * t];
}
extern "C" __global__ void guarded_shared(const float* x, float* y, int n) {
    __shared__ float s[128];
    __shared__ double q[64];
    const int t = threadIdx.x;
    s[t] = x[t];
    s[t + 64] = x[t + 64];
    q[t] = x[t] * 2;
    __syncthreads();
    // lanes whose guard does not hold have addresses out of bounds
    const int at = (int)__cvta_generic_to_shared(s), own = at + 4 * (t < n ? t : 9999);
    const int wide = (int)__cvta_generic_to_shared(q) + 8 * (t < n ? 9999 : t);
    float v = 5, w = 7, u = 1;
    double z = 3;
    asm("{ .reg .pred p; setp.lt.s32 p, %1, %2; @p ld.shared.f32 %0, [%3]; }" : "+f"(v) : "r"(t), "r"(n), "r"(own));
    asm("{ .reg .pred p; setp.lt.s32 p, %1, %2; @p ld.shared.f32 %0, [%3+4]; }" : "+f"(w) : "r"(t), "r"(n), "r"(at));
    asm("{ .reg .pred p; setp.lt.s32 p, %1, %2; @!p ld.shared.f64 %0, [%3]; }" : "+d"(z) : "r"(t), "r"(n), "r"(wide));
    asm("{ .reg .pred p; setp.lt.s32 p, %1, 8; @p ld.shared.f32 %0, [%2+8]; }" : "+f"(u) : "r"(n), "r"(at));
    y[t] = v * 3 + w + (float)z + u;
}
extern "C" __global__ void guarded_global(const float* x, float* y, int n) {
    const int t = threadIdx.x;
    float u = 1, v = 2;
    asm("{ .reg .pred p; setp.lt.s32 p, %1, 8; @p ld.global.f32 %0, [%2+8]; }" : "+f"(u) : "r"(n), "l"(x));
    asm("{ .reg .pred p; setp.lt.s32 p, %1, %3; @p ld.global.f32 %0, [%2+8]; }" : "+f"(v) : "r"(t), "l"(x), "r"(n));
    y[t] = u + v;
}
extern "C" __global__ void odd_offsets(const float* x, float* y, int n) {
    __shared__ __align__(16) float s[160];
    const int t = threadIdx.x;
    s[t] = x[t];
    s[t + 64] = x[t + 64];
    if (t < 32) s[t + 128] = x[t];
    __syncthreads();
    const int at = (int)__cvta_generic_to_shared(s) + 8 * t + 4 * n;
    float a, b, c, e;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2+4];" : "=f"(a), "=f"(b) : "r"(at));
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2+12];" : "=f"(c), "=f"(e) : "r"(at));
    y[t] = a + 2 * b + 3 * c + 4 * e;
}
extern "C" __global__ void votes_of_blocks(const int* x, int* y, int n, int m) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int few = __syncthreads_count(x[i] > n), all = __syncthreads_and(x[i] > m), any = __syncthreads_or(x[i] > n);
    y[i] = few + 1000 * all + 10000 * any + 100000 * __syncthreads_count(n > m);
}
"""


@pytest.fixture(scope="module")
def kernels() -> SimDevice:
    return SimDevice(SOURCE)


@pytest.fixture
def numbers() -> np.ndarray:
    return np.random.default_rng(3).standard_normal(256).astype(np.float32)


def test_small_elements_a_word_apart(monkeypatch, kernels) -> None:
    both(monkeypatch, kernels, "every_fourth", 1, 64, np.arange(256, dtype=np.uint8), np.zeros(64, np.uint8))


@pytest.mark.parametrize("n", [0, 5, 40, 64])
def test_loads_with_a_guard(monkeypatch, kernels, numbers, n: int) -> None:
    for name in ("guarded_shared", "guarded_global"):
        both(monkeypatch, kernels, name, 1, 64, numbers, np.zeros(64, np.float32), n)


def test_offsets_that_are_no_multiples_of_the_size(monkeypatch, kernels, numbers) -> None:
    both(monkeypatch, kernels, "odd_offsets", 1, 64, numbers, np.zeros(64, np.float32), 3)
    report = reported(monkeypatch, SOURCE, "odd_offsets", 1, 64, numbers, np.zeros(64, np.float32), 0)
    assert "misaligned access" in report


@pytest.mark.parametrize(("n", "m"), [(3, -100), (100, -30), (-30, 0)])
def test_barriers_that_vote(monkeypatch, kernels, n: int, m: int) -> None:
    x = np.random.default_rng(0).integers(-20, 20, 300).astype(np.int32)
    both(monkeypatch, kernels, "votes_of_blocks", 3, 100, x, np.zeros(300, np.int32), n, m)
