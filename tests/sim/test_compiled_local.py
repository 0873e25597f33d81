"""Local arrays in machine code (``sim/compiled``)."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_runs import both, left, reported
from simdevice import ALL_CHECKS, SimDevice

pytest.importorskip("llvmlite", reason="machine code needs llvmlite, of the extra 'compiled'")

SOURCE = r"""
extern "C" __global__ void digits(const unsigned* x, unsigned* y, int n) {  // bytes and shorts, indices that vary
    unsigned char d[12];
    short e[8];
    double q[4];
    const int t = threadIdx.x;
    unsigned v = x[t];
#pragma unroll 1
    for (int k = 0; k < 12; ++k) d[k] = v % 10, v /= 10;
#pragma unroll 1
    for (int k = 0; k < 8; ++k) e[(k + t) & 7] = (short)(x[t] >> k) - 3 * k;
#pragma unroll 1
    for (int k = 0; k < 4; ++k) q[k] = x[t] * (k + 0.5);
    unsigned s = 0;
#pragma unroll 1
    for (int k = 0; k < n; ++k) {
        s = s * 31 + d[(k * 7 + t) % 12] + e[(k * 3 + x[t]) & 7];
        s += (unsigned)(__double_as_longlong(q[(k + t) & 3]) >> 20);
    }
    y[t] = s + d[n % 12] + e[n & 7];
}
extern "C" __global__ void vectors(const float4* x, float4* y, int n) {
    float4 a[6];
    const int t = threadIdx.x;
#pragma unroll 1
    for (int k = 0; k < 6; ++k) a[k] = x[t + k];
    float4 s = a[n];
    if (t % 3) {
        const float4 v = a[(t + n) % 6];
        s.x += v.w;
        s.y -= v.z;
        a[t % 6] = s;
    }
    y[t] = make_float4(s.x, s.y, a[t % 6].z, a[(n + 1) % 6].w);
}
extern "C" __global__ void not_set(const int* x, int* y, int n) {
    int a[8];
    const int t = threadIdx.x;
#pragma unroll 1
    for (int k = 0; k < n; ++k) a[k] = x[t + k];
    y[t] = a[(t & 7)];
}
extern "C" __global__ void not_used(const int* x, int* y, int n) {  // an unset element is loaded, but not used
    int a[8];
    const int t = threadIdx.x;
#pragma unroll 1
    for (int k = 0; k < n; ++k) a[k] = x[t + k];
    const int v = a[t & 7];
    y[t] = (t & 7) < n ? v : 3;
}
extern "C" __global__ void beyond(const int* x, int* y, int n) {
    int a[8];
    const int t = threadIdx.x;
#pragma unroll 1
    for (int k = 0; k < 8; ++k) a[k] = x[t + k];
    y[t] = a[(t & 7) + n];
}
extern "C" __global__ void several_blocks(const int* x, int* y, int n) {   // local memory is new in each block
    int a[8];
    const int t = threadIdx.x;
    if (blockIdx.x == 0) {
#pragma unroll 1
        for (int k = 0; k < 8; ++k) a[k] = x[t + k];
    }
#pragma unroll 1
    for (int k = 0; k < n; ++k) a[k] = x[t + k] + blockIdx.x;
    y[blockIdx.x * blockDim.x + t] = a[x[t] & 7];
}
"""

CHECKS = pytest.mark.parametrize(
    "checks", [pytest.param(ALL_CHECKS, id="checked"), pytest.param(frozenset(), id="not")]
)


@pytest.fixture(scope="module")
def kernels() -> SimDevice:
    return SimDevice(SOURCE)


@pytest.fixture
def numbers() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 1000, 512).astype(np.int32)


@CHECKS
@pytest.mark.parametrize("n", [0, 5, 30])
def test_elements_of_all_sizes(monkeypatch, kernels, n: int, checks: frozenset[str]) -> None:
    x = np.random.default_rng(n).integers(0, 1 << 32, 128).astype(np.uint32)
    both(monkeypatch, kernels, "digits", 1, 80, x, np.zeros(80, np.uint32), n, checks=checks)


@pytest.mark.parametrize("n", [0, 3])
def test_vectors(monkeypatch, kernels, n: int) -> None:
    x = np.random.default_rng(n).standard_normal(400).astype(np.float32)
    both(monkeypatch, kernels, "vectors", 1, 80, x, np.zeros(320, np.float32), n)


@CHECKS
@pytest.mark.parametrize(("name", "n"), [("not_set", 8), ("not_used", 8), ("beyond", 0), ("several_blocks", 8)])
def test_arrays(monkeypatch, kernels, numbers, name: str, n: int, checks: frozenset[str]) -> None:
    blocks = 3 if name == "several_blocks" else 1
    both(monkeypatch, kernels, name, blocks, 80, numbers, np.zeros(240, np.int32), n, checks=checks)


def test_an_unset_array_is_new_in_each_block(monkeypatch, kernels, numbers) -> None:
    both(monkeypatch, kernels, "several_blocks", 3, 80, numbers, np.zeros(240, np.int32), 0, checks=frozenset())


def test_elements_that_are_loaded_and_not_used_are_left_to_the_interpreter(monkeypatch, kernels, numbers) -> None:
    left(monkeypatch, kernels, "not_used", 1, 80, numbers, np.zeros(80, np.int32), 5)


@pytest.mark.parametrize(
    ("name", "n", "kind"),
    [
        ("not_set", 5, "uninitialised read"),
        ("several_blocks", 0, "uninitialised read"),
        ("beyond", 1, "out-of-bounds access"),
        ("beyond", -1, "out-of-bounds access"),
    ],
)
def test_wrong_accesses_are_reported(monkeypatch, numbers, name: str, n: int, kind: str) -> None:
    assert kind in reported(monkeypatch, SOURCE, name, 3, 80, numbers, np.zeros(240, np.int32), n)
