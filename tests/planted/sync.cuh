// Barriers of part of a block, and asynchronous copies in groups, for the planted kernels.
#pragma once
#include "copy_async.cuh"

// Waits at barrier `id` until `threads` threads came to it, by this or by bar_arrive.
__device__ __forceinline__ void bar_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Counts as come to barrier `id`, and goes on.
__device__ __forceinline__ void bar_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Closes the group of the thread's asynchronous copies issued since the last one.
__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `PENDING` of the thread's groups are in flight.
template <int PENDING>
__device__ __forceinline__ void copy_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
