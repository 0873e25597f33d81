"""cp.async in machine code (``sim/compiled``): nothing sees a copy before it has been waited for."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_runs import both, left, reported
from simdevice import ALL_CHECKS, SimDevice

pytest.importorskip("llvmlite", reason="machine code needs llvmlite, of the extra 'compiled'")

SOURCE = r"""
#include <cuda_pipeline.h>
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
namespace cg = cooperative_groups;
extern "C" __global__ void simple(const float* x, float* y, int n) {
    __shared__ float s[256];
    const int t = threadIdx.x;
    __pipeline_memcpy_async(s + t, x + blockIdx.x * blockDim.x + t, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    y[blockIdx.x * blockDim.x + t] = s[blockDim.x - 1 - t];
}
extern "C" __global__ void ring(const float4* x, float4* y, int n) {
    __shared__ float4 s[3][64];
    const int t = threadIdx.x;
    for (int k = 0; k < 2; ++k) {
        if (k < n) __pipeline_memcpy_async(&s[k][t], x + k * 64 + t, 16);
        __pipeline_commit();
    }
    float4 a = {0, 0, 0, 0};
    for (int k = 0; k < n; ++k) {
        __pipeline_wait_prior(1);
        __syncthreads();
        const float4 v = s[k % 3][63 - t];
        a.x += v.x; a.y += v.y * k; a.z -= v.z; a.w += v.w;
        if (k + 2 < n) __pipeline_memcpy_async(&s[(k + 2) % 3][t], x + (k + 2) * 64 + t, 16);
        __pipeline_commit();
    }
    y[t] = a;
}
extern "C" __global__ void filled(const float2* x, float2* y, int n) {
    __shared__ float2 s[128];
    const int t = threadIdx.x;
    __pipeline_memcpy_async(s + t, x + t, 8, t < n ? 0 : 8);
    if (t % 3) {
        float* to = (float*)(s + 64 + t);
        __pipeline_memcpy_async(to, (const float*)(x + t), 4);
        __pipeline_memcpy_async(to + 1, (const float*)(x + t), 4, 4);
    } else {
        s[64 + t] = x[5];
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    float2 v = s[(t * 7) % 64], w = s[64 + (t * 11) % 64];
    y[t] = make_float2(v.x + w.x, v.y - w.y);
}
extern "C" __global__ void part(const float2* x, float2* y, int n) {
    __shared__ float2 s[64];
    const int t = threadIdx.x;
    __pipeline_memcpy_async(s + t, x + t, 8, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    y[t] = s[63 - t];
}
extern "C" __global__ void early(const float* x, float* y, int n) {  // read before the wait
    __shared__ float s[64];
    const int t = threadIdx.x;
    __pipeline_memcpy_async(s + t, x + t, 4);
    __pipeline_commit();
    if (n == 0) __pipeline_wait_prior(0);
    const float v = s[t];
    __pipeline_wait_prior(0);
    y[t] = v;
}
extern "C" __global__ void overwritten(const float* x, float* y, int n) {
    __shared__ float s[64];
    const int t = threadIdx.x;
    __pipeline_memcpy_async(s + t, x + t, 4);
    __pipeline_commit();
    if (n == 0) __pipeline_wait_prior(0);
    s[t] = 4;
    __pipeline_wait_prior(0);
    __syncthreads();
    y[t] = s[t];
}
extern "C" __global__ void not_met(const float* x, float* y, int n) { // waits, without a barrier
    __shared__ float s[64];
    const int t = threadIdx.x;
    __pipeline_memcpy_async(s + t, x + t, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    if (n) __syncthreads();
    y[t] = s[63 - t];
}
extern "C" __global__ void wrong_group(const float* x, float* y, int n) {
    __shared__ float s[2][64];
    const int t = threadIdx.x;
    for (int k = 0; k < 2; ++k) { __pipeline_memcpy_async(&s[k][t], x + k * 64 + t, 4); __pipeline_commit(); }
    __pipeline_wait_prior(1);
    __syncthreads();
    y[t] = s[n][63 - t];
}
extern "C" __global__ void twice(const float* x, float* y, int n) {
    __shared__ float s[64];
    const int t = threadIdx.x;
    __pipeline_memcpy_async(s + t, x + t, 4); __pipeline_commit();
    if (n) __pipeline_wait_prior(0);
    if (n) __syncthreads();
    __pipeline_memcpy_async(s + 63 - t, x + t, 4); __pipeline_commit();
    __pipeline_wait_prior(0); __syncthreads();
    y[t] = s[t];
}
extern "C" __global__ void left_early(const float* x, float* y, int n) {
    __shared__ float s[64];
    const int t = threadIdx.x;
    __pipeline_memcpy_async(s + t, x + t, 4); __pipeline_commit();
    if (t % 32 < n) return;
    __pipeline_wait_prior(0);
    y[t] = s[t < 32 ? t : 32 + t % 16];
}
extern "C" __global__ void past_end(const float4* x, float4* y, int n) {
    __shared__ float4 s[64];
    const int t = threadIdx.x;
    __pipeline_memcpy_async(s + t, x + t + n, 16); __pipeline_commit();
    __pipeline_wait_prior(0);
    y[t] = s[t];
}
extern "C" __global__ void with_atomics(const float* x, float* y, int n) {
    __shared__ float s[64]; __shared__ unsigned c[64];
    const int t = threadIdx.x;
    c[t] = 0;
    __syncthreads();
    __pipeline_memcpy_async(s + t, x + t, 4); __pipeline_commit();
    atomicAdd(c + (t & 7), 1u);
    __pipeline_wait_prior(0);
    __syncthreads();
    y[t] = s[63 - t] + c[t & 7];
}
extern "C" __global__ void group(const int* x, int* y, int n) {
    extern __shared__ int d[];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, d, x, sizeof(int) * 64);
    cg::wait(block);
    y[threadIdx.x] = d[63 - threadIdx.x];
}
"""


@pytest.fixture(scope="module")
def kernels() -> SimDevice:
    return SimDevice(SOURCE)


@pytest.fixture
def numbers() -> np.ndarray:
    return np.random.default_rng(5).standard_normal(8192).astype(np.float32)


def zeros(count: int) -> np.ndarray:
    return np.zeros(count, np.float32)


CHECKS = pytest.mark.parametrize(
    "checks", [pytest.param(ALL_CHECKS, id="checked"), pytest.param(frozenset(), id="not")]
)


@CHECKS
@pytest.mark.parametrize(
    ("name", "blocks", "n"),
    [
        ("simple", 5, 0), ("ring", 1, 1), ("ring", 1, 2), ("ring", 1, 7), ("filled", 1, 0), ("filled", 1, 9),
        ("filled", 1, 64), ("early", 1, 0), ("overwritten", 1, 0), ("not_met", 1, 1), ("wrong_group", 1, 0),
        ("twice", 1, 1), ("past_end", 1, 0), ("with_atomics", 1, 0),
    ],
)  # fmt: skip
def test_copies(monkeypatch, kernels, numbers, name: str, blocks: int, n: int, checks: frozenset[str]) -> None:
    both(monkeypatch, kernels, name, blocks, 64, numbers, zeros(512), n, checks=checks)


def test_copies_of_cooperative_groups(monkeypatch, kernels) -> None:
    x = np.arange(64, dtype=np.int32)
    both(monkeypatch, kernels, "group", 1, 64, x, np.zeros(64, np.int32), 0, shared=256)


def test_copies_of_a_part_are_left_to_the_interpreter(monkeypatch, kernels, numbers) -> None:
    left(monkeypatch, kernels, "part", 1, 64, numbers, zeros(128), 0)


@pytest.mark.parametrize(("name", "n"), [("early", 1), ("overwritten", 1), ("wrong_group", 1), ("twice", 0)])
def test_without_checks_too_a_copy_is_not_seen_before_the_wait(
    monkeypatch, kernels, numbers, name: str, n: int
) -> None:
    left(monkeypatch, kernels, name, 1, 64, numbers, zeros(64), n, checks=frozenset())


@pytest.mark.parametrize(
    ("name", "n", "kind"),
    [
        ("early", 1, "used before the wait"),
        ("overwritten", 1, "used before the wait"),
        ("wrong_group", 1, "used before the wait"),
        ("twice", 0, "used before the wait"),
        ("left_early", 5, "used before the wait"),
        ("not_met", 0, "data race"),
        ("past_end", 1985, "out-of-bounds access"),
    ],
)
def test_wrong_copies_are_reported(monkeypatch, numbers, name: str, n: int, kind: str) -> None:
    assert kind in reported(monkeypatch, SOURCE, name, 1, 64, numbers, zeros(256), n)
