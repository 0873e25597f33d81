// The functions of cuda::ptx for Hopper, and those of cuda::device::experimental. x and y have 1024 elements; blocks
// have 128 threads. Kernels whose names begin with "cluster" run in a cluster of two blocks, those that begin with
// "tensor" have tensor maps of x and y as 32 x 32, with boxes of 16 x 16.
#define __cccl_lib_experimental_ctk12_cp_async_exposure
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda/barrier>
#include <cuda/ptx>
#include <cuda_pipeline.h>

#include "both.cuh"

namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;
namespace cde = cuda::device::experimental;
using cuda::std::uint64_t;

constexpr int TILE = 4 * THREADS, BYTES = 4 * TILE;

__device__ void start(uint64_t* barrier, int count) {
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(barrier, count);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();
}

__device__ void wait(uint64_t* barrier, int parity) {
    while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {
    }
}

__device__ bool leader() {
    return threadIdx.x < 32 && ptx::elect_sync(~0u);
}

template <bool Right>
__device__ void bulk_load_kernel(const int* x, int* y) {
    __shared__ uint64_t barrier;
    alignas(128) __shared__ int tile[TILE];
    start(&barrier, 1);
    if (leader()) {
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, BYTES);
        ptx::cp_async_bulk(ptx::space_shared, ptx::space_global, tile, x, BYTES / 2, &barrier);
        if (Right) {
            ptx::cp_async_bulk(
                ptx::space_cluster, ptx::space_global, tile + TILE / 2, x + TILE / 2, BYTES / 2, &barrier);
        }
    }
    wait(&barrier, 0);
    for (int i = threadIdx.x; i < TILE; i += THREADS) {
        y[i] = tile[i ^ 37];
    }
}
KERNELS(bulk_load)

template <bool Right>
__device__ void bulk_store_kernel(const int* x, int* y) {
    alignas(128) __shared__ int tile[TILE];
    for (int i = threadIdx.x; i < TILE; i += THREADS) {
        tile[i] = x[i] + 1;
    }
    if (Right) {
        ptx::fence_proxy_async(ptx::space_shared);
    }
    __syncthreads();
    if (leader()) {
        ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, y, tile, BYTES);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>{});
    }
}
KERNELS(bulk_store)

template <bool Right>
__device__ void bulk_store_twice_kernel(const int* x, int* y) {
    alignas(128) __shared__ int tile[TILE];
    for (int part = 0; part < 2; part++) {
        for (int i = threadIdx.x; i < TILE; i += THREADS) {
            tile[i] = x[part * TILE + i] + 1;
        }
        ptx::fence_proxy_async(ptx::space_shared);
        __syncthreads();
        if (leader()) {
            ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, y + part * TILE, tile, BYTES);
            ptx::cp_async_bulk_commit_group();
            if (Right) {
                ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
            }
        }
        __syncthreads();
    }
}
KERNELS(bulk_store_twice)

template <bool Right>
__device__ void reduce_kernel(const int* x, int* y) {
    alignas(128) __shared__ int tile[TILE];
    for (int i = threadIdx.x; i < TILE; i += THREADS) {
        tile[i] = x[i];
        y[i] = 5;
        y[TILE + i] = 5;
    }
    ptx::fence_proxy_async();
    __syncthreads();
    if (leader()) {
        ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, y, tile, BYTES);
        ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_max, y + TILE, tile, BYTES);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>{});
    }
}
KERNEL(reduce)

template <bool Right>
__device__ void counted_arrivals_kernel(const int* x, int* y) {
    __shared__ uint64_t barrier;
    __shared__ int tile[THREADS];
    start(&barrier, THREADS + 4);
    tile[threadIdx.x] = x[threadIdx.x];
    uint64_t state;
    if (threadIdx.x == 0) {
        state = ptx::mbarrier_arrive_no_complete(&barrier, 2);
        y[THREADS] = ptx::mbarrier_pending_count(state);  // before this arrival
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        state = ptx::mbarrier_arrive(&barrier, Right ? 3 : 2);
    } else {
        state = ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier);
    }
    while (!ptx::mbarrier_test_wait(ptx::sem_acquire, ptx::scope_cta, &barrier, state)) {
    }
    y[threadIdx.x] = tile[threadIdx.x ^ 37];
}
KERNELS(counted_arrivals)

template <bool Right>
__device__ void dropped_kernel(const int* x, int* y) {
    __shared__ uint64_t barrier;
    __shared__ int tile[THREADS];
    start(&barrier, THREADS);
    tile[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x < 64) {
        ptx::mbarrier_arrive_drop(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, 1);
        return;
    }
    for (int phase = 0; phase < 3; phase++) {
        ptx::mbarrier_arrive(&barrier);
        while (!ptx::mbarrier_test_wait_parity(&barrier, phase & 1)) {
        }
    }
    y[threadIdx.x] = tile[threadIdx.x ^ 127];
}
KERNEL(dropped)

template <bool Right>
__device__ void cluster_multicast_kernel(const int* x, int* y) {
    __shared__ uint64_t barrier;
    alignas(128) __shared__ int tile[TILE];
    start(&barrier, 1);
    if (leader()) {
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, BYTES);
    }
    ptx::barrier_cluster_arrive(ptx::sem_release);
    ptx::barrier_cluster_wait(ptx::sem_acquire);
    const int rank = cg::this_cluster().block_rank(), half = TILE / 2;
    if (leader()) {  // each block loads its half into both
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, tile + rank * half, x + rank * half, BYTES / 2,
            &barrier, Right ? 3 : 1 << rank);
    }
    wait(&barrier, 0);
    for (int i = threadIdx.x; i < TILE; i += THREADS) {
        y[rank * TILE + i] = tile[i ^ 37];
    }
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
}
KERNELS(cluster_multicast)

template <bool Right>
__device__ void cluster_copy_kernel(const int* x, int* y) {
    __shared__ uint64_t barrier;
    alignas(128) __shared__ int mine[THREADS], theirs[THREADS];
    auto cluster = cg::this_cluster();
    start(&barrier, 1);
    const int rank = cluster.block_rank(), other = rank ^ 1;
    mine[threadIdx.x] = x[rank * THREADS + threadIdx.x];
    ptx::fence_proxy_async(ptx::space_shared);
    if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, sizeof(theirs));
    }
    cluster.sync();
    if (leader()) {
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_shared, cluster.map_shared_rank(theirs, other), mine,
            sizeof(mine), cluster.map_shared_rank(&barrier, other));
    }
    if (Right) {
        wait(&barrier, 0);
    }
    y[rank * THREADS + threadIdx.x] = theirs[threadIdx.x ^ 37];
    cluster.sync();
}
KERNELS(cluster_copy)

template <bool Right>
__device__ void cluster_reduce_kernel(const int* x, int* y) {
    __shared__ uint64_t barrier;
    alignas(128) __shared__ int mine[THREADS], sums[THREADS];
    auto cluster = cg::this_cluster();
    start(&barrier, 1);
    const int rank = cluster.block_rank(), other = rank ^ 1;
    mine[threadIdx.x] = x[rank * THREADS + threadIdx.x];
    sums[threadIdx.x] = mine[threadIdx.x];
    ptx::fence_proxy_async();
    if (threadIdx.x == 0) {
        ptx::mbarrier_expect_tx(ptx::sem_relaxed, ptx::scope_cta, ptx::space_shared, &barrier, sizeof(sums));
        ptx::mbarrier_arrive(&barrier);
    }
    cluster.sync();
    if (leader()) {
        ptx::cp_reduce_async_bulk(ptx::space_cluster, ptx::space_shared, ptx::op_add,
            cluster.map_shared_rank(sums, other), mine, sizeof(mine), cluster.map_shared_rank(&barrier, other));
    }
    wait(&barrier, 0);
    y[rank * THREADS + threadIdx.x] = sums[threadIdx.x];
    cluster.sync();
}
KERNEL(cluster_reduce)

template <bool Right>
__device__ void cluster_stores_kernel(const int* x, int* y) {
    __shared__ uint64_t barrier;
    alignas(16) __shared__ int theirs[4 * THREADS];
    auto cluster = cg::this_cluster();
    start(&barrier, 1);
    const int rank = cluster.block_rank(), other = rank ^ 1;
    if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, sizeof(theirs));
    }
    cluster.sync();
    auto* at = cluster.map_shared_rank(theirs, other);
    auto* there = cluster.map_shared_rank(&barrier, other);
    y[TILE + cluster.thread_rank()] = ptx::getctarank(ptx::space_cluster, at);
    const int value = x[cluster.thread_rank()], two[2] = {value + 1, value + 2}, one = value + 3;
    ptx::st_async(&at[4 * threadIdx.x], value, there);
    ptx::st_async(&at[4 * threadIdx.x + 2], two, there);
    ptx::st_async(&at[4 * threadIdx.x + 1], one, there);
    if (Right) {
        wait(&barrier, 0);
    }
    for (int i = 0; i < 2; i++) {
        y[(2 * rank + i) * THREADS + threadIdx.x] = theirs[4 * threadIdx.x + i] + theirs[4 * threadIdx.x + 3];
    }
    cluster.sync();
}
KERNELS(cluster_stores)

template <bool Right>
__device__ void cluster_atomics_kernel(const int* x, int* y) {
    __shared__ uint64_t barrier;
    __shared__ int sum;
    __shared__ unsigned counter;
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) {
        sum = 0;
        counter = 0;
    }
    start(&barrier, 1);
    if (threadIdx.x == 0) {
        ptx::mbarrier_arrive_expect_tx(
            ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, (Right ? 8 : 12) * THREADS);
    }
    cluster.sync();
    const int rank = cluster.block_rank(), other = rank ^ 1;
    auto* there = cluster.map_shared_rank(&barrier, other);
    ptx::red_async(ptx::op_add, cluster.map_shared_rank(&sum, other), x[cluster.thread_rank()], there);
    ptx::red_async(ptx::op_inc, cluster.map_shared_rank(&counter, other), 1000u, there);
    wait(&barrier, 0);
    if (threadIdx.x == 0) {
        y[2 * rank] = sum;
        y[2 * rank + 1] = counter;
    }
    cluster.sync();
}
KERNELS(cluster_atomics)

template <bool Right>
__device__ void cluster_remote_arrivals_kernel(const int* x, int* y) {
    __shared__ uint64_t barrier;
    __shared__ int tile[THREADS];
    auto cluster = cg::this_cluster();
    start(&barrier, THREADS);
    cluster.sync();
    const int rank = cluster.block_rank(), other = rank ^ 1;
    cluster.map_shared_rank(tile, other)[threadIdx.x] = x[cluster.thread_rank()];
    if (Right || threadIdx.x < 127) {
        ptx::mbarrier_arrive(
            ptx::sem_release, ptx::scope_cluster, ptx::space_cluster, cluster.map_shared_rank(&barrier, other));
    }
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &barrier, 0)) {
    }
    y[cluster.thread_rank()] = tile[threadIdx.x ^ 37];
    cluster.sync();
}
KERNELS(cluster_remote_arrivals)

template <bool Right>
__device__ void copies_arrive_kernel(const int* x, int* y) {
    __shared__ uint64_t barrier;
    __shared__ int tile[THREADS];
    start(&barrier, THREADS);
    __pipeline_memcpy_async(&tile[threadIdx.x], &x[threadIdx.x], 4);
    if (Right) {
        ptx::cp_async_mbarrier_arrive_noinc(&barrier);
    } else {
        ptx::mbarrier_arrive(&barrier);
    }
    wait(&barrier, 0);
    y[threadIdx.x] = tile[threadIdx.x ^ 37];
}
KERNELS(copies_arrive)

template <bool Right>
__device__ void copies_arrive_too_kernel(const int* x, int* y) {
    __shared__ uint64_t barrier;
    __shared__ int tile[THREADS];
    start(&barrier, THREADS);
    __pipeline_memcpy_async(&tile[threadIdx.x], &x[threadIdx.x], 4);
    ptx::cp_async_mbarrier_arrive(&barrier);  // counts in addition
    if (Right || threadIdx.x > 0) {
        ptx::mbarrier_arrive(&barrier);
    }
    wait(&barrier, 0);
    y[threadIdx.x] = tile[threadIdx.x ^ 37];
}
KERNELS(copies_arrive_too)

// ---- tensor maps ----

#define TENSOR(name)                                                                                                  \
    extern "C" __global__ void name(                                                                                  \
        const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y, CUtensorMap* map, int* other) { \
        name##_kernel<true>(x, y, map, other);                                                                        \
    }
#define TENSORS(name)                                                                                                 \
    TENSOR(name)                                                                                                      \
    extern "C" __global__ void name##_wrong(                                                                          \
        const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y, CUtensorMap* map, int* other) { \
        name##_kernel<false>(x, y, map, other);                                                                       \
    }

constexpr int BOX = 16;

template <bool Right>
__device__ void tensor_copy_kernel(const CUtensorMap& x, const CUtensorMap& y, CUtensorMap*, int*) {
    __shared__ uint64_t barrier;
    alignas(128) __shared__ int tile[BOX][BOX];
    start(&barrier, 1);
    for (int part = 0; part < 4; part++) {
        const int at[2] = {part % 2 * BOX, part / 2 * BOX};
        if (leader()) {
            ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, sizeof(tile));
            ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, &x, at, &barrier);
        }
        if (Right) {
            wait(&barrier, part & 1);
        }
        for (int i = threadIdx.x; i < BOX * BOX; i += THREADS) {
            tile[i / BOX][i % BOX] *= 3;
        }
        ptx::fence_proxy_async(ptx::space_shared);
        __syncthreads();
        if (leader()) {
            ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &y, at, tile);
            ptx::cp_async_bulk_commit_group();
            ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
        }
        __syncthreads();
    }
}
TENSORS(tensor_copy)

template <bool Right>
__device__ void tensor_reduce_kernel(const CUtensorMap& x, const CUtensorMap& y, CUtensorMap*, int*) {
    alignas(128) __shared__ int tile[BOX][BOX];
    for (int i = threadIdx.x; i < BOX * BOX; i += THREADS) {
        tile[i / BOX][i % BOX] = i;
    }
    if (Right) {
        ptx::fence_proxy_async(ptx::space_shared);
    }
    __syncthreads();
    if (leader()) {
        const int at[2] = {8, 24};  // half of the box is outside
        ptx::cp_reduce_async_bulk_tensor(ptx::space_global, ptx::space_shared, ptx::op_add, &y, at, tile);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>{});
    }
}
TENSORS(tensor_reduce)

// stores through a changed copy of y's map, to another array
template <bool Right>
__device__ void tensor_replace_kernel(const CUtensorMap& x, const CUtensorMap& y, CUtensorMap* map, int* other) {
    alignas(128) __shared__ CUtensorMap changed;
    alignas(128) __shared__ int tile[BOX][BOX];
    for (int i = threadIdx.x; i < BOX * BOX; i += THREADS) {
        tile[i / BOX][i % BOX] = i;
    }
    ptx::fence_proxy_async(ptx::space_shared);
    if (threadIdx.x == 0) {
        changed = y;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            ptx::tensormap_replace_global_address(ptx::space_shared, &changed, other);
            ptx::tensormap_replace_global_dim(ptx::space_shared, &changed, ptx::n32_t<1>{}, 8);
        }
        __syncwarp();
        ptx::tensormap_cp_fenceproxy(ptx::sem_release, ptx::scope_gpu, map, &changed, ptx::n32_t<128>{});
        if (Right) {
            ptx::fence_proxy_tensormap_generic(ptx::sem_acquire, ptx::scope_gpu, map, ptx::n32_t<128>{});
        }
        if (leader()) {
            const int at[2] = {0, 0};
            ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, map, at, tile);
            ptx::cp_async_bulk_commit_group();
            ptx::cp_async_bulk_wait_group(ptx::n32_t<0>{});
        }
    }
}
TENSORS(tensor_replace)

#pragma nv_diag_suppress deprecated_entity_with_custom_message, deprecated_entity
template <bool Right>
__device__ void tensor_experimental_kernel(const CUtensorMap& x, const CUtensorMap& y, CUtensorMap*, int*) {
    using Barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ Barrier barrier;
    alignas(128) __shared__ int tile[BOX][BOX];
    if (threadIdx.x == 0) {
        init(&barrier, THREADS);
        cde::fence_proxy_async_shared_cta();
    }
    __syncthreads();
    Barrier::arrival_token token;
    if (threadIdx.x == 0) {
        cde::cp_async_bulk_tensor_2d_global_to_shared(&tile, &x, 0, BOX, barrier);
        token = cuda::device::barrier_arrive_tx(barrier, 1, sizeof(tile));
    } else {
        token = barrier.arrive();
    }
    barrier.wait(cuda::std::move(token));
    for (int i = threadIdx.x; i < BOX * BOX; i += THREADS) {
        tile[i / BOX][i % BOX]++;
    }
    if (Right) {
        cde::fence_proxy_async_shared_cta();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        cde::cp_async_bulk_tensor_2d_shared_to_global(&y, 0, BOX, &tile);
        cde::cp_async_bulk_commit_group();
        cde::cp_async_bulk_wait_group_read<0>();
    }
}
TENSORS(tensor_experimental)

template <bool Right>
__device__ void experimental_bulk_kernel(const int* x, int* y) {
    using Barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ Barrier barrier;
    alignas(128) __shared__ int tile[TILE];
    if (threadIdx.x == 0) {
        init(&barrier, 1);
        cde::fence_proxy_async_shared_cta();
        cde::cp_async_bulk_global_to_shared(tile, x, BYTES, barrier);
        barrier.wait(cuda::device::barrier_arrive_tx(barrier, 1, BYTES));
        cde::cp_async_bulk_shared_to_global(y, tile, BYTES);
        cde::cp_async_bulk_commit_group();
        cde::cp_async_bulk_wait_group_read<0>();
    }
}
KERNEL(experimental_bulk)
