"""Warp operations in machine code (``sim/compiled``): member masks, shuffles, votes, matches and reductions."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_runs import both, left, reported
from simdevice import SimDevice

pytest.importorskip("llvmlite", reason="machine code needs llvmlite, of the extra 'compiled'")

SOURCE = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void mask_in_a_register(const float* x, float* y, int n) {
    float v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float w = x[i];
        for (int k = 16; k; k /= 2) w += __shfl_xor_sync(~0u, w, k);
        v += w;
    }
    y[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
extern "C" __global__ void guarded_sums(const int* x, int* y, int n) {
    // the mask is set again in each branch, to the same value
    int v = x[threadIdx.x];
    if (n > 10) {
        for (int k = 1; k < 32; k *= 2) {
            const int u = __shfl_up_sync(~0u, v, k);
            if (threadIdx.x % 32 >= k) v += u;
        }
    } else {
        for (int k = 16; k; k /= 2) v = max(v, __shfl_xor_sync(~0u, v, k));
    }
    y[threadIdx.x] = v;
}
extern "C" __global__ void halves(const int* x, int* y, int n) {
    const int t = threadIdx.x;
    const unsigned m = t % 32 < 16 ? 0xFFFFu : 0xFFFF0000u;
    int v = x[t];
    if (t % 32 < 16) v += __shfl_xor_sync(m, v, 3);
    else v -= __shfl_xor_sync(m, v, 5);
    y[t] = __shfl_sync(m, v, (t & 16) + n) + __any_sync(m, v > 3) + 2 * __all_sync(m, v > -9) + __ballot_sync(m, v & 1);
}
extern "C" __global__ void groups_of_equals(const int* x, int* y, const long long* z) {
    const int t = threadIdx.x;
    int all, none;
    const unsigned m = __match_any_sync(~0u, x[t] & 3), k = __match_all_sync(~0u, z[t / 32], &all);
    y[t] = m * 3 + k + __match_all_sync(m, x[t], &none) + all * 5 + none;
}
extern "C" __global__ void reductions(const int* x, int* y) {
    const int t = threadIdx.x;
    const unsigned m = t % 32 < 9 ? 0x1FFu : ~0x1FFu, u = x[t];
    y[t] = __reduce_add_sync(m, x[t]) + __reduce_min_sync(m, x[t]) * 3 + __reduce_max_sync(~0u, x[t]) * 5;
    y[t] += __reduce_min_sync(m, u) + __reduce_max_sync(m, u) * 3 + __reduce_and_sync(m, u) * 7;
    y[t] ^= __reduce_or_sync(m, u) * 11 + __reduce_xor_sync(m, u);
}
extern "C" __global__ void votes_of_all(int* y, int n) {
    y[threadIdx.x] = __ballot_sync(~0u, n > 3) + __any_sync(~0u, n > 4) + __popc(__activemask());
}
extern "C" __global__ void tiles(const int* x, int* y, int n) {
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    int v = 0;
    for (int i = tile.thread_rank(); i < x[threadIdx.x / 8]; i += 8) v += i;
    for (int d = tile.size() / 2; d; d /= 2) v += tile.shfl_down(v, d);
    tile.sync();
    y[blockIdx.x * blockDim.x + threadIdx.x] = v + tile.any(v > n);
}
extern "C" __global__ void tiles_part(const int* x, int* y, int n) {
    __shared__ int s[128];
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    const int t = threadIdx.x;
    if (t / 8 % 2) { s[t] = x[t]; tile.sync(); y[t] = s[t ^ 7]; }
    else { s[t] = x[t] * 2; tile.sync(); y[t] = s[t ^ 3]; }
}
extern "C" __global__ void overlapping_masks(const int* x, int* y, int n) {
    const unsigned m = threadIdx.x % 2 ? ~0u : 0x55555555u;
    y[threadIdx.x] = __shfl_xor_sync(m, x[threadIdx.x], 2);
}
extern "C" __global__ void not_a_member(const int* x, int* y, int n) {
    const unsigned m = threadIdx.x % 32 < 8 ? 0xF0u : 0xFFFFFF00u;
    y[threadIdx.x] = __shfl_xor_sync(m, x[threadIdx.x], 2);
}
extern "C" __global__ void another_tile(const int* x, int* y, int n) {
    const unsigned m = 0xFFu << (threadIdx.x & 24);
    y[threadIdx.x] = __shfl_sync(m, x[threadIdx.x], n);
}
"""


@pytest.fixture(scope="module")
def kernels() -> SimDevice:
    return SimDevice(SOURCE)


@pytest.fixture
def numbers() -> np.ndarray:
    return np.random.default_rng(5).integers(-20, 20, 256).astype(np.int32)


def test_a_mask_that_is_one_constant_may_be_set_where_lanes_are_parted(monkeypatch, kernels) -> None:
    x = np.random.default_rng(0).standard_normal(1024).astype(np.float32)
    both(monkeypatch, kernels, "mask_in_a_register", 3, 64, x, np.zeros(192, np.float32), 1024)


@pytest.mark.parametrize("n", [3, 30])
def test_a_mask_that_branches_set_alike(monkeypatch, kernels, numbers, n: int) -> None:
    both(monkeypatch, kernels, "guarded_sums", 1, 64, numbers, np.zeros(64, np.int32), n)


@pytest.mark.parametrize("n", [0, 3])
def test_masks_of_half_a_warp(monkeypatch, kernels, numbers, n: int) -> None:
    both(monkeypatch, kernels, "halves", 1, 96, numbers, np.zeros(96, np.int32), n)


def test_matches(monkeypatch, kernels, numbers) -> None:
    both(monkeypatch, kernels, "groups_of_equals", 1, 96, numbers, np.zeros(96, np.int32), np.arange(3) << 40)


def test_reductions(monkeypatch, kernels, numbers) -> None:
    both(monkeypatch, kernels, "reductions", 1, 96, numbers, np.zeros(96, np.int32))


@pytest.mark.parametrize("n", [3, 4, 5])
def test_votes_on_what_all_lanes_share(monkeypatch, kernels, n: int) -> None:
    both(monkeypatch, kernels, "votes_of_all", 1, 64, np.zeros(64, np.int32), n)


def test_tiles_of_cooperative_groups(monkeypatch, kernels, numbers) -> None:
    both(monkeypatch, kernels, "tiles", 3, 64, np.abs(numbers), np.zeros(192, np.int32), 30)


def test_tiles_that_synchronise_apart_are_left_to_the_interpreter(monkeypatch, kernels, numbers) -> None:
    left(monkeypatch, kernels, "tiles_part", 1, 64, numbers, np.zeros(64, np.int32), 0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("overlapping_masks", "wrong member mask"), ("not_a_member", "wrong member mask"), ("another_tile", "inactive")],
)
def test_wrong_masks_are_reported(monkeypatch, numbers, name: str, kind: str) -> None:
    assert kind in reported(monkeypatch, SOURCE, name, 1, 64, numbers, np.zeros(64, np.int32), 3)
