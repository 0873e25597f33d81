"""Values without a definition (unwritten locals, shuffles from absent lanes), member masks and the limit of steps:
correct kernels that look like mistakes are not reported, and settings have their effect."""

from __future__ import annotations

import numpy as np
import pytest

import cudakit

SOURCE = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/block/block_load.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>
namespace cg = cooperative_groups;

// the threads of a branch, and tiles of four threads, with masks of their own
extern "C" __global__ void groups(const int* x, int* y) {
    const int t = threadIdx.x;
    int sum = 0;
    if (x[t] % 3 == 0) {
        const auto branch = cg::coalesced_threads();
        sum = cg::reduce(branch, x[t], cg::plus<int>()) + branch.shfl(x[t], 0) + branch.match_any(x[t]);
    } else {
        const unsigned members = __activemask();
        sum = __reduce_add_sync(members, x[t]) + __popc(__ballot_sync(members, x[t] > 5));
    }
    const auto tile = cg::tiled_partition<4>(cg::this_thread_block());
    y[t] = sum + cg::reduce(tile, x[t], cg::plus<int>()) + tile.shfl_xor(x[t], 1) + tile.any(x[t] > 7);
}

// a full mask in a partial warp: the upper lanes compute with absent lanes and discard the result
extern "C" __global__ void partial(const int* x, int* y) {
    int sum = x[threadIdx.x];
    for (int step = 4; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) y[0] = sum;
}

// half a warp with a mask of half a warp and shuffles of the whole width
extern "C" __global__ void half_warp(const int* x, int* y) {
    if (threadIdx.x >= 16) return;
    int sum = x[threadIdx.x];
    for (int step = 8; step > 0; step /= 2) sum += __shfl_down_sync(0xffffu, sum, step);
    if (threadIdx.x == 0) y[0] = sum;
}

// each thread adds the next thread's value, except the last
extern "C" __global__ void neighbour(const int* x, int* y, int n) {
    const int i = threadIdx.x;
    if (i >= n) return;
    const int next = __shfl_down_sync(0xffffffffu, x[i], 1);
    y[i] = x[i] + (i + 1 < n ? next : 0);
}

// a variable that has a value only if it is used
extern "C" __global__ void when_used(const float* x, float* y, int n) {
    const int i = threadIdx.x;
    float value, scale;
    bool some = i < n;
    if (some) {
        value = x[i];
        scale = value > 3 ? 2.0f : 0.5f;
    }
    __syncwarp();
    if (some && value > 1) y[i] = value * scale;
}

// CUB: items past the end have no value, and pass through warp shuffles and shared memory
extern "C" __global__ void valid_items(const float* x, float* y, float* sum, int n) {
    using Load = cub::BlockLoad<float, 48, 4, cub::BLOCK_LOAD_TRANSPOSE>;
    using Store = cub::BlockStore<float, 48, 4, cub::BLOCK_STORE_TRANSPOSE>;
    using Scan = cub::BlockScan<float, 48>;
    using Reduce = cub::BlockReduce<float, 48>;
    __shared__ union {
        typename Load::TempStorage load;
        typename Store::TempStorage store;
        typename Scan::TempStorage scan;
        typename Reduce::TempStorage reduce;
    } memory;
    float items[4], one;
    Load(memory.load).Load(x, items, n);
    __syncthreads();
    Scan(memory.scan).InclusiveSum(items, items);
    __syncthreads();
    Store(memory.store).Store(y, items, n);
    __syncthreads();
    if (threadIdx.x < n) one = x[threadIdx.x];
    const float total = Reduce(memory.reduce).Sum(one, min(n, 48));
    if (threadIdx.x == 0) *sum = total;
}

// a pair of which one element has a value
extern "C" __global__ void half_a_pair(const int* x, int* y, int which) {
    int none, one, other;
    asm("mov.v2.b32 {%0, %1}, {%2, %3};" : "=r"(one), "=r"(other) : "r"(x[threadIdx.x]), "r"(none));
    y[threadIdx.x] = which ? other : one;
}

extern "C" __global__ void count_to(int* x, int n) {
    for (int i = 0; i < n; ++i) atomicAdd(x, 1);
}
"""


def run(name, *given, block=32, want=None, **options):
    with cudakit.Device("sim", fresh=True, **options) as device:
        arrays = [device.array(one) if isinstance(one, np.ndarray) else one for one in given]
        kernel = device.compile(source=SOURCE, name="undefined.cu")[name]
        kernel.launch(device.default_stream, grid=1, block=block, args=arrays)
        device.synchronize()
        return [array.numpy() for array in arrays if not isinstance(array, int)]


X = np.random.default_rng(3).integers(0, 12, 64).astype(np.int32)


def test_groups_and_tiles_pass_masks_of_their_own():
    _, y = run("groups", X[:32], np.zeros(32, np.int32))
    assert (y != 0).all()


@pytest.mark.parametrize(("name", "block"), [("partial", 8), ("half_warp", 32)])
def test_absent_lanes_may_be_read_if_the_result_is_discarded(name, block):
    members = min(block, 16)
    _, y = run(name, X, np.zeros(1, np.int32), block=block)
    assert y[0] == X[:members].sum()


def test_a_value_from_an_exited_lane_may_be_left_unselected():
    _, y = run("neighbour", X, np.zeros(32, np.int32), 20)
    assert y[:20].tolist() == [*(X[:19] + X[1:20]), X[19]]


def test_a_variable_may_have_no_value_while_it_is_unused():
    x = X[:32].astype(np.float32)
    _, y = run("when_used", x, np.zeros(32, np.float32), 20)
    assert np.array_equal(y[:20], np.where(x > 1, x * np.where(x > 3, 2, 0.5), 0)[:20])


def test_the_elements_of_a_moved_pair_have_values_of_their_own():
    assert np.array_equal(run("half_a_pair", X[:32], np.zeros(32, np.int32), 0)[1], X[:32])
    with pytest.raises(cudakit.DeviceFault) as caught:
        run("half_a_pair", X[:32], np.zeros(32, np.int32), 1)
    assert caught.value.report.kind == "uninitialised read"


def test_cubs_items_past_the_end_may_have_no_value():
    x = X.astype(np.float32)
    _, y, total = run("valid_items", x, np.zeros(64, np.float32), np.zeros(1, np.float32), 37, block=48)
    assert np.array_equal(y[:37], np.cumsum(x[:37]))
    assert total[0] == x[:37].sum()


def test_the_step_limit_is_a_setting():
    counter = np.zeros(1, np.int32)
    # the compiler unrolls the loop by 4
    assert run("count_to", counter, 300, block=1, step_limit=100)[0][0] == 300
    with pytest.raises(cudakit.DeviceFault, match="stopped after 51 loop iterations") as caught:
        run("count_to", counter, 300, block=1, step_limit=50)
    assert caught.value.report.kind == "endless loop"
    with pytest.raises(ValueError, match="step_limit must be positive, got 0"):
        cudakit.Device("sim", fresh=True, step_limit=0)


def test_the_default_step_limit_grows_with_a_count_among_the_arguments():
    assert run("count_to", np.zeros(1, np.int32), 3000, block=1)[0][0] == 3000
