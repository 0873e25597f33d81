// cuda::pipeline and cuda::memcpy_async to it. x and y have 1024 elements; blocks have 128 threads.
#include <cooperative_groups.h>
#include <cuda/pipeline>
#include <cuda/ptx>

#include "both.cuh"

namespace cg = cooperative_groups;

constexpr int ROUNDS = 6, TILE = THREADS;

// each thread's own copies, two in flight
template <bool Right>
__device__ void of_threads_kernel(const int* x, int* y) {
    __shared__ int tile[2][TILE];
    auto pipe = cuda::make_pipeline();
    for (int round = 0; round <= ROUNDS; round++) {
        if (round < ROUNDS) {
            pipe.producer_acquire();
            cuda::memcpy_async(
                &tile[round % 2][threadIdx.x], &x[round * TILE + threadIdx.x], cuda::aligned_size_t<4>(4), pipe);
        }
        pipe.producer_commit();
        if (round > 0) {
            if (Right) {
                cuda::pipeline_consumer_wait_prior<1>(pipe);
            } else {
                cuda::pipeline_consumer_wait_prior<2>(pipe);
            }
            y[(round - 1) * TILE + threadIdx.x] = 2 * tile[(round - 1) % 2][threadIdx.x];
            pipe.consumer_release();
        }
    }
    pipe.quit();
}
KERNELS(of_threads)

template <bool Right>
__device__ void of_threads_waiting_kernel(const int* x, int* y) {
    __shared__ int4 tile[TILE];
    auto pipe = cuda::make_pipeline();
    pipe.producer_acquire();
    cuda::memcpy_async(
        &tile[threadIdx.x], reinterpret_cast<const int4*>(x) + threadIdx.x, cuda::aligned_size_t<16>(16), pipe);
    pipe.producer_commit();
    if (Right) {
        pipe.consumer_wait();
    }
    int4 own = tile[threadIdx.x];
    y[threadIdx.x] = own.x + own.y + own.z + own.w;
    pipe.consumer_release();
}
KERNELS(of_threads_waiting)

// all threads produce and consume
template <bool Right, cuda::thread_scope Scope>
__device__ void unified(const int* x, int* y) {
    __shared__ cuda::pipeline_shared_state<Scope, 2> state;
    alignas(16) __shared__ int tile[2][TILE];
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    for (int round = 0; round <= ROUNDS; round++) {
        if (round < ROUNDS) {
            pipe.producer_acquire();
            cuda::memcpy_async(
                &tile[round % 2][threadIdx.x], &x[round * TILE + threadIdx.x], cuda::aligned_size_t<4>(4), pipe);
            pipe.producer_commit();
        }
        if (round > 0) {
            pipe.consumer_wait();
            y[(round - 1) * TILE + threadIdx.x] = tile[(round - 1) % 2][threadIdx.x ^ 37];
            if (Right) {  // otherwise the producers wait for ever
                pipe.consumer_release();
            }
        }
    }
    pipe.quit();
}
template <bool Right>
__device__ void of_block_kernel(const int* x, int* y) {
    unified<Right, cuda::thread_scope_block>(x, y);
}
KERNELS(of_block)
template <bool Right>
__device__ void of_device_kernel(const int* x, int* y) {
    unified<Right, cuda::thread_scope_device>(x, y);
}
KERNEL(of_device)
template <bool Right>
__device__ void of_system_kernel(const int* x, int* y) {
    unified<Right, cuda::thread_scope_system>(x, y);
}
KERNEL(of_system)

// two warps load, two compute
template <bool Right>
__device__ void roles_kernel(const int* x, int* y) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 3> state;
    __shared__ int tile[3][TILE];
    auto block = cg::this_thread_block();
    const bool loads = threadIdx.x < 64;
    auto role = loads ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer;
    auto pipe = cuda::make_pipeline(block, &state, role);
    for (int round = 0; round < ROUNDS; round++) {
        int* at = tile[round % 3];
        if (loads) {
            if (Right) {
                pipe.producer_acquire();
            }
            for (int i = threadIdx.x; i < TILE; i += 64) {
                cuda::memcpy_async(&at[i], &x[round * TILE + i], cuda::aligned_size_t<4>(4), pipe);
            }
            pipe.producer_commit();
        } else {
            pipe.consumer_wait();
            for (int i = threadIdx.x - 64; i < TILE; i += 64) {
                y[round * TILE + i] = at[TILE - 1 - i];
            }
            pipe.consumer_release();
        }
    }
}
KERNELS(roles)

template <bool Right>
__device__ void producers_by_count_kernel(const int* x, int* y) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    __shared__ int tile[2][TILE];
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state, 32);  // the first 32 threads are producers
    for (int round = 0; round < ROUNDS; round++) {
        int* at = tile[round % 2];
        if (threadIdx.x < 32) {
            pipe.producer_acquire();
            for (int i = threadIdx.x; i < TILE; i += 32) {
                cuda::memcpy_async(&at[i], &x[round * TILE + i], cuda::aligned_size_t<4>(4), pipe);
            }
            pipe.producer_commit();
        } else {
            if (Right) {
                pipe.consumer_wait();
            }
            for (int i = threadIdx.x - 32; i < TILE; i += 96) {
                y[round * TILE + i] = at[TILE - 1 - i];
            }
            pipe.consumer_release();
        }
    }
}
KERNELS(producers_by_count)

// a group's copy of a whole tile: one bulk copy
template <bool Right>
__device__ void by_group_kernel(const int* x, int* y) {
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    alignas(16) __shared__ int tile[2][TILE];
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    block.sync();
    for (int round = 0; round <= ROUNDS; round++) {
        if (round < ROUNDS) {
            pipe.producer_acquire();
            cuda::memcpy_async(
                block, tile[round % 2], x + round * TILE, cuda::aligned_size_t<16>(sizeof(tile[0])), pipe);
            pipe.producer_commit();
        }
        if (round > 0) {
            if (Right) {
                pipe.consumer_wait();
            }
            y[(round - 1) * TILE + threadIdx.x] = tile[(round - 1) % 2][threadIdx.x ^ 37];
            pipe.consumer_release();
        }
    }
}
KERNELS(by_group)

// the copies of a pipeline of threads, waited for by a barrier
template <bool Right>
__device__ void commit_to_barrier_kernel(const int* x, int* y) {
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ int tile[TILE];
    auto pipe = cuda::make_pipeline();
    if (threadIdx.x == 0) {
        init(&barrier, THREADS);
    }
    __syncthreads();
    cuda::memcpy_async(&tile[threadIdx.x], &x[threadIdx.x], cuda::aligned_size_t<4>(4), pipe);
    if (Right) {
        cuda::pipeline_producer_commit(pipe, barrier);
    }
    barrier.arrive_and_wait();
    y[threadIdx.x] = tile[threadIdx.x ^ 37];
}
KERNELS(commit_to_barrier)
