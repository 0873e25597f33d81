// cuda::barrier and cuda::memcpy_async to it. x and y have 1024 elements; blocks have 128 threads.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/ptx>
#include <cuda/std/utility>

#include "both.cuh"

namespace cg = cooperative_groups;
using Barrier = cuda::barrier<cuda::thread_scope_block>;
using cuda::std::move;

__device__ void start(Barrier& barrier, int count = THREADS) {
    if (threadIdx.x == 0) {
        init(&barrier, count);
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);  // bulk copies arrive at it
    }
    __syncthreads();
}

template <bool Right>
__device__ void arrive_and_wait_kernel(const int* x, int* y) {
    __shared__ Barrier barrier;
    __shared__ int tile[THREADS];
    start(barrier);
    tile[threadIdx.x] = x[threadIdx.x];
    if (Right) {
        barrier.arrive_and_wait();
    } else {
        (void)barrier.arrive();  // the wait is missing
    }
    y[threadIdx.x] = tile[THREADS - 1 - threadIdx.x];
}
KERNELS(arrive_and_wait)

template <bool Right>
__device__ void token_kernel(const int* x, int* y) {
    __shared__ Barrier barrier;
    __shared__ int tile[THREADS];
    start(barrier);
    for (int round = 0; round < 4; round++) {
        tile[threadIdx.x] = x[round * THREADS + threadIdx.x];
        auto token = barrier.arrive();
        int own = tile[threadIdx.x];
        barrier.wait(move(token));
        y[round * THREADS + threadIdx.x] = own + tile[threadIdx.x ^ 37];
        if (Right) {  // otherwise the next round overwrites elements that others still read
            barrier.wait(barrier.arrive());
        }
    }
}
KERNELS(token)

template <bool Right>
__device__ void parity_kernel(const int* x, int* y) {
    __shared__ Barrier barrier;
    __shared__ int tile[THREADS];
    start(barrier);
    for (int round = 0; round < 4; round++) {
        tile[threadIdx.x] = x[round * THREADS + threadIdx.x];
        (void)barrier.arrive();
        barrier.wait_parity(Right ? round & 1 : 1);  // the parity 1 is that of the phase before the first one
        y[round * THREADS + threadIdx.x] = tile[threadIdx.x ^ 37];
        __syncthreads();
    }
}
KERNELS(parity)

template <bool Right>
__device__ void arrive_and_drop_kernel(const int* x, int* y) {
    __shared__ Barrier barrier;
    __shared__ int tile[THREADS];
    start(barrier);
    tile[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x >= 64) {
        if (Right) {  // otherwise the others wait for these threads in the second phase
            barrier.arrive_and_drop();
        } else {
            (void)barrier.arrive();
        }
        return;
    }
    barrier.arrive_and_wait();
    int sum = tile[threadIdx.x] + tile[64 + threadIdx.x];
    tile[threadIdx.x] = sum;
    barrier.arrive_and_wait();
    y[threadIdx.x] = sum + tile[63 - threadIdx.x];
}
KERNELS(arrive_and_drop)

struct Count {
    int* phases;
    __device__ void operator()() { ++*phases; }
};

template <bool Right>
__device__ void completion_kernel(const int* x, int* y) {
    using Counting = cuda::barrier<cuda::thread_scope_block, Count>;
    __shared__ Counting barrier;
    __shared__ int phases, tile[THREADS];
    if (threadIdx.x == 0) {
        phases = 0;
        init(&barrier, THREADS, Count{&phases});
    }
    __syncthreads();
    for (int round = 0; round < 3; round++) {
        tile[threadIdx.x] = x[threadIdx.x] + phases;
        barrier.arrive_and_wait();
        y[round * THREADS + threadIdx.x] = (tile[threadIdx.x ^ 64] + tile[threadIdx.x ^ 1]) * phases;
        if (Right) {
            barrier.arrive_and_wait();
        }
    }
}
KERNELS(completion)

template <bool Right>
__device__ void native_handle_kernel(const int* x, int* y) {
    __shared__ Barrier barrier;
    __shared__ int tile[THREADS];
    start(barrier);
    auto* handle = cuda::device::barrier_native_handle(barrier);
    tile[threadIdx.x] = x[threadIdx.x];
    auto state = cuda::ptx::mbarrier_arrive(handle);
    if (Right) {
        while (!cuda::ptx::mbarrier_try_wait(handle, state)) {
        }
    }
    y[threadIdx.x] = tile[threadIdx.x ^ 37];
}
KERNELS(native_handle)

template <bool Right>
__device__ void several_arrivals_kernel(const int* x, int* y) {
    __shared__ Barrier barrier;
    __shared__ int tile[THREADS];
    start(barrier, 4);
    tile[threadIdx.x] = x[threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 96) {  // one arrival for two warps
        (void)barrier.arrive(Right ? 1 : 2);
    } else if (threadIdx.x % 32 == 0) {
        (void)barrier.arrive();
    }
    barrier.wait_parity(0);
    y[threadIdx.x] = tile[threadIdx.x ^ 37];
}
KERNELS(several_arrivals)

template <bool Right>
__device__ void arrive_tx_kernel(const int* x, int* y) {
    __shared__ Barrier barrier;
    alignas(16) __shared__ int tile[4 * THREADS];
    start(barrier);
    Barrier::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::device::memcpy_async_tx(tile, x, cuda::aligned_size_t<16>(sizeof(tile)), barrier);
        token = cuda::device::barrier_arrive_tx(barrier, 1, Right ? sizeof(tile) : sizeof(tile) / 4);
    } else {
        token = barrier.arrive();
    }
    barrier.wait(move(token));
    for (int i = threadIdx.x; i < 4 * THREADS; i += THREADS) {
        y[i] = tile[i ^ 37];
    }
}
KERNELS(arrive_tx)

template <bool Right>
__device__ void expect_tx_kernel(const int* x, int* y) {
    __shared__ Barrier barrier;
    alignas(16) __shared__ int tile[4 * THREADS];
    start(barrier);
    if (threadIdx.x == 0) {
        cuda::device::barrier_expect_tx(barrier, sizeof(tile));
        for (int part = 0; part < 4; part++) {
            cuda::device::memcpy_async_tx(
                tile + part * THREADS, x + part * THREADS, cuda::aligned_size_t<16>(sizeof(tile) / 4), barrier);
        }
    }
    auto token = barrier.arrive();
    if (Right) {
        barrier.wait(move(token));
    }
    for (int i = threadIdx.x; i < 4 * THREADS; i += THREADS) {
        y[i] = tile[i ^ 37];
    }
    if (!Right) {
        barrier.wait(move(token));
    }
}
KERNELS(expect_tx)

// one bulk copy by one thread
template <bool Right>
__device__ void copy_by_thread_kernel(const int* x, int* y) {
    __shared__ Barrier barrier;
    alignas(16) __shared__ int tile[4 * THREADS];
    start(barrier);
    if (threadIdx.x == 0) {
        cuda::memcpy_async(tile, x, cuda::aligned_size_t<16>(sizeof(tile)), barrier);
    }
    auto token = barrier.arrive();
    if (Right) {
        barrier.wait(move(token));
    }
    for (int i = threadIdx.x; i < 4 * THREADS; i += THREADS) {
        y[i] = tile[i ^ 37];
    }
    if (!Right) {
        barrier.wait(move(token));
    }
}
KERNELS(copy_by_thread)

template <bool Right>
__device__ void copy_by_block_kernel(const int* x, int* y) {
    __shared__ Barrier barrier;
    alignas(16) __shared__ int tile[4 * THREADS];
    auto block = cg::this_thread_block();
    start(barrier);
    for (int round = 0; round < 2; round++) {
        cuda::memcpy_async(block, tile, x + round * 4 * THREADS, cuda::aligned_size_t<16>(sizeof(tile)), barrier);
        barrier.arrive_and_wait();
        for (int i = threadIdx.x; i < 4 * THREADS; i += THREADS) {
            y[round * 4 * THREADS + i] = tile[i ^ 37];
        }
        if (Right) {  // otherwise the second copy overwrites what others still read
            __syncthreads();
        }
    }
}
KERNELS(copy_by_block)

// 4 bytes per thread: cp.async, whose completion arrives at the barrier
template <bool Right>
__device__ void copy_words_kernel(const int* x, int* y) {
    __shared__ Barrier barrier;
    __shared__ int tile[THREADS];
    start(barrier);
    cuda::memcpy_async(&tile[threadIdx.x], &x[threadIdx.x + 1], cuda::aligned_size_t<4>(4), barrier);
    auto token = barrier.arrive();
    if (Right) {
        barrier.wait(move(token));
    }
    y[threadIdx.x] = tile[threadIdx.x ^ 37];
    if (!Right) {
        barrier.wait(move(token));
    }
}
KERNELS(copy_words)

// of any size and alignment, by a group: plain loads and stores if need be
template <bool Right>
__device__ void copy_bytes_kernel(const int* x, int* y) {
    __shared__ Barrier barrier;
    __shared__ char tile[1024];
    auto block = cg::this_thread_block();
    start(barrier);
    cuda::memcpy_async(block, tile + 1, reinterpret_cast<const char*>(x) + 3, 509, barrier);
    barrier.arrive_and_wait();
    for (int i = threadIdx.x; i < 509; i += THREADS) {
        y[i] = tile[1 + i];
    }
}
KERNEL(copy_bytes)

// between the blocks of a cluster, in the shared memory of the first one
template <bool Right>
__device__ void cluster_kernel(const int* x, int* y) {
    using Wide = cuda::barrier<cuda::thread_scope_device>;
    __shared__ Wide barrier;
    __shared__ int tile[THREADS];
    auto cluster = cg::this_cluster();
    if (cluster.thread_rank() == 0) {
        init(&barrier, cluster.num_threads());
    }
    cluster.sync();
    auto* first = cluster.map_shared_rank(&barrier, 0);
    tile[threadIdx.x] = x[cluster.thread_rank()];
    if (Right) {
        first->arrive_and_wait();
    }
    int other = cluster.block_rank() ^ 1;
    y[cluster.thread_rank()] = cluster.map_shared_rank(tile, other)[threadIdx.x];
    cluster.sync();
}
KERNELS(cluster)

// of one block, with a wider scope: by atomics
template <bool Right>
__device__ void device_scope_kernel(const int* x, int* y) {
    __shared__ cuda::barrier<cuda::thread_scope_device> barrier;
    if (threadIdx.x == 0) {
        init(&barrier, THREADS);
    }
    __shared__ int tile[THREADS];
    __syncthreads();
    for (int round = 0; round < 2; round++) {
        tile[threadIdx.x] = x[round * THREADS + threadIdx.x];
        if (Right) {
            barrier.arrive_and_wait();
        }
        y[round * THREADS + threadIdx.x] = tile[threadIdx.x ^ 37];
        barrier.arrive_and_wait();
    }
}
KERNELS(device_scope)

template <bool Right>
__device__ void thread_scope_kernel(const int* x, int* y) {
    cuda::barrier<cuda::thread_scope_thread> barrier(1);
    alignas(16) __shared__ int tile[4 * THREADS];
    int* own = tile + 4 * threadIdx.x;
    cuda::memcpy_async(own, x + 4 * threadIdx.x, cuda::aligned_size_t<16>(16), barrier);
    if (Right) {
        barrier.arrive_and_wait();
    }
    for (int i = 0; i < 4; i++) {
        y[4 * threadIdx.x + i] = own[i ^ 1];
    }
}
KERNEL(thread_scope)
