// Barriers of part of a block, and (from copy_async.cuh) asynchronous copies in groups, for the planted kernels.
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
