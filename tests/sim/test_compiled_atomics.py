"""Atomics in machine code (``sim/compiled``): results that depend on the order of lanes are the interpreter's too."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_runs import both, left, reported
from simdevice import ALL_CHECKS, SimDevice

from cudakit.sim.machine import engine

pytest.importorskip("llvmlite", reason="machine code needs llvmlite, of the extra 'compiled'")

SOURCE = r"""
typedef unsigned long long wide;
#define INDEX const int i = blockIdx.x * blockDim.x + threadIdx.x
#define UPDATES(y, z, v) \
    (atomicAdd(y, v) + atomicMin(y + 1, v) * 3 + atomicMax(y + 2, v) * 5 + atomicAnd(y + 3, v) * 7 + \
     atomicOr(y + 4, v) * 9 + atomicXor(y + 5, v) * 11 + atomicExch(y + 6, v) * 13 + \
     atomicCAS(y + 7, v & 3, v >> 2) * 15 + atomicInc((unsigned*)y + 8, 37u) * 17 + \
     atomicDec((unsigned*)y + 9, v & 63u) * 19 + \
     (int)(atomicAdd(z, (wide)v) * 3 + atomicExch(z + 1, (wide)v) * 5 + atomicCAS(z + 2, (wide)v & 1, (wide)v) * 7))

extern "C" __global__ void commuting(const int* x, int* y, wide* z, int n) {
    INDEX;
    if (i >= n) return;
    const int v = x[i];
    atomicAdd(y, v), atomicMin(y + 1, v), atomicMax(y + 2, v), atomicAnd(y + 3, v), atomicOr(y + 4, v);
    atomicXor(y + 5, v), atomicMin((unsigned*)y + 6, (unsigned)v), atomicMax((unsigned*)y + 7, (unsigned)v);
    atomicAdd(z, (wide)v), atomicMin((long long*)z + 1, (long long)v), atomicMax((long long*)z + 2, (long long)v);
    atomicXor(z + 3, (wide)v), atomicMin(z + 4, (wide)v), atomicMax(z + 5, (wide)v), atomicAnd(z + 6, (wide)v);
    atomicOr(z + 7, (wide)v);
}
extern "C" __global__ void used(const int* x, int* y, wide* z, int* w, int n) {
    INDEX;
    if (i < n) w[i] = UPDATES(y, z, x[i]);
}
extern "C" __global__ void used_shared(const int* x, int* w, int n) {
    __shared__ int y[16];
    __shared__ wide z[4];
    __shared__ float f;
    __shared__ double g;
    const int t = threadIdx.x;
    INDEX;
    if (t < 16) y[t] = 0;
    if (t < 4) z[t] = 0;
    if (t == 0) f = g = 0;
    __syncthreads();
    int s = 0;
    if (i < n) {
        s = UPDATES(y, z, x[i]) + __float_as_int(atomicAdd(&f, x[i] * 0.37f));
        s += (int)__double_as_longlong(atomicAdd(&g, x[i] * 0.37));
    }
    __syncthreads();
    w[i] = s + y[t & 7] + (int)z[t & 3] + __float_as_int(f) + (int)__double_as_longlong(g);
}
extern "C" __global__ void sums(const float* x, float* y, double* z, float* w, int n) {
    INDEX;
    if (i >= n) return;
    w[i] = atomicAdd(y, x[i]);
    atomicAdd(y + 1 + (i & 3), x[i] * 3);
    atomicAdd(z, (double)x[i]);
}
extern "C" __global__ void histogram(const unsigned char* x, unsigned* y, int n) {
    __shared__ unsigned h[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) h[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) atomicAdd(&h[x[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&y[i], h[i]);
}
extern "C" __global__ void compacted(const int* x, int* y, int n) {
    __shared__ int count, base;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    INDEX;
    const int slot = i < n && x[i] > 0 ? atomicAdd(&count, 1) : -1;
    __syncthreads();
    if (threadIdx.x == 0) base = atomicAdd(y, count);
    __syncthreads();
    if (slot >= 0) y[8 + base + slot] = x[i];
}
extern "C" __global__ void own_element(const int* x, int* y, int n) {
    INDEX;
    y[8 + i] = 5;
    atomicAdd(y + 8 + i, x[i]);
    y[8 + i] += 1;
}
extern "C" __global__ void two_sites(const int* x, int* y, int n) {
    INDEX;
    y[8 + i] = atomicAdd(y, x[i]) - atomicAdd(y, 1);
}
extern "C" __global__ void two_operations(const int* x, int* y, int n) {
    INDEX;
    atomicAdd(y, x[i]);
    atomicMax(y, x[i]);
}
extern "C" __global__ void after_unequal_barriers(const int* x, int* y, int n) {
    for (int k = 0; k < (int)(3 - blockIdx.x); ++k) __syncthreads();
    INDEX;
    y[8 + i] = atomicAdd(y, x[i]);
}
extern "C" __global__ void in_a_loop(const int* x, int* y, int n) {
    for (int k = threadIdx.x; k < n; k += blockDim.x) if (x[k] > 0) y[8 + atomicAdd(y, 1)] = x[k];
}
extern "C" __global__ void read_early(const int* x, int* y, int n) {
    __shared__ int h[32];
    const int t = threadIdx.x;
    if (t < 32) h[t] = 0;
    __syncthreads();
    atomicAdd(&h[x[t] & 31], 1);
    if (n) __syncthreads();
    y[t] = h[t & 31];
}
extern "C" __global__ void cleared_late(const int* x, int* y, int n) {
    __shared__ int h[32];
    const int t = threadIdx.x;
    if (t < 32) h[t] = 0;
    if (n) __syncthreads();
    atomicAdd(&h[x[t] & 31], 1);
    __syncthreads();
    y[t] = h[t & 31];
}
extern "C" __global__ void partly_cleared(const int* x, int* y, int n) {
    __shared__ int h[32];
    const int t = threadIdx.x;
    if (t < 16 + 16 * n) h[t] = 0;
    __syncthreads();
    atomicAdd(&h[x[t] & 31], 1);
    __syncthreads();
    y[t] = h[t & 31];
}
extern "C" __global__ void plain_read(const int* x, int* y, int n) {
    INDEX;
    atomicAdd(y + (i & 7), x[i]);
    if (n) __syncthreads();
    y[8 + i] = y[i & 7];
}
extern "C" __global__ void cleared_by_one(const int* x, int* y, int n) {
    INDEX;
    if (threadIdx.x == 0) y[0] = 0;
    __syncthreads();
    atomicAdd(y, x[i]);
}
extern "C" __global__ void past_the_end(const int* x, int* y, int n) { atomicAdd(y + threadIdx.x + 400, x[0]); }
"""


@pytest.fixture(scope="module")
def kernels() -> SimDevice:
    return SimDevice(SOURCE)


@pytest.fixture
def numbers() -> np.ndarray:
    return np.random.default_rng(5).integers(-2000, 2000, 4096).astype(np.int32)


@pytest.mark.parametrize("checks", [ALL_CHECKS, frozenset()])
def test_updates_that_commute(monkeypatch, kernels, numbers, checks: frozenset[str]) -> None:
    both(monkeypatch, kernels, "commuting", 9, 96, numbers, np.zeros(8, np.int32), np.zeros(8, np.uint64), 800,
         checks=checks)  # fmt: skip


# the interpreter runs 64 blocks of 256 threads at once
@pytest.mark.parametrize("blocks", [9, 150])
def test_old_values_are_those_of_the_interpreters_order(monkeypatch, kernels, numbers, blocks: int) -> None:
    x, z = np.tile(numbers, 10), np.zeros(3, np.uint64)
    both(monkeypatch, kernels, "used", blocks, 256, x, np.zeros(10, np.int32), z, np.zeros(len(x), np.int32), 38000)


def test_old_values_in_shared_memory(monkeypatch, kernels, numbers) -> None:
    both(monkeypatch, kernels, "used_shared", 9, 96, numbers, np.zeros(900, np.int32), 800)


@pytest.mark.parametrize("special", [[], [np.inf, 1, -np.inf], [np.nan], [1e-40, 2e-39, -3e-40]])
@pytest.mark.parametrize("scale", [1.0, 1e-38])
def test_sums_of_floats_are_rounded_in_the_interpreters_order(
    monkeypatch, kernels, special: list[float], scale: float
) -> None:
    x = (np.random.default_rng(0).standard_normal(2880) * scale).astype(np.float32)
    x[5 : 5 + len(special)] = special
    both(monkeypatch, kernels, "sums", 30, 96, x, np.zeros(5, np.float32), np.zeros(1), np.zeros_like(x), 2800)


@pytest.mark.parametrize("n", [4096, 5000])
def test_histogram(monkeypatch, kernels, n: int) -> None:
    x = np.random.default_rng(n).integers(0, 256, 5000).astype(np.uint8)
    both(monkeypatch, kernels, "histogram", 5, 128, x, np.zeros(256, np.uint32), n)


@pytest.mark.parametrize("name", ["compacted", "own_element"])
def test_atomics_between_other_accesses(monkeypatch, kernels, numbers, name: str) -> None:
    both(monkeypatch, kernels, name, 9, 96, numbers, np.zeros(900, np.int32), 800)


@pytest.mark.parametrize("name", ["two_sites", "two_operations", "after_unequal_barriers"])
def test_other_orders_are_left_to_the_interpreter(monkeypatch, kernels, numbers, name: str) -> None:
    left(monkeypatch, kernels, name, 4, 96, numbers, np.zeros(400, np.int32), 0)


def test_used_results_in_loops_are_not_compiled(monkeypatch, kernels, numbers) -> None:
    monkeypatch.setenv("CUDAKIT_SIM_ENGINE", "compiled")
    kernels.launch("in_a_loop", 1, 64, numbers, np.zeros(400, np.int32), 300)
    assert engine.engine_of(kernels.kernel("in_a_loop")).refusal


@pytest.mark.parametrize("name", ["read_early", "cleared_late", "partly_cleared", "plain_read"])
def test_barriers_order_atomics(monkeypatch, kernels, numbers, name: str) -> None:
    both(monkeypatch, kernels, name, 1, 96, numbers, np.zeros(104, np.int32), 1)


@pytest.mark.parametrize(
    ("name", "blocks", "kind"),
    [
        ("read_early", 1, "data race"),
        ("cleared_late", 1, "data race"),
        ("partly_cleared", 1, "uninitialised read"),
        ("plain_read", 1, "data race"),
        ("plain_read", 4, "data race"),
        ("cleared_by_one", 3, "data race"),
        ("past_the_end", 1, "out-of-bounds access"),
    ],
)
def test_wrong_atomics_are_reported(monkeypatch, numbers, name: str, blocks: int, kind: str) -> None:
    assert kind in reported(monkeypatch, SOURCE, name, blocks, 96, numbers, np.zeros(400, np.int32), 0)
