// Barriers of part of a block, and (from copy_async.cuh) asynchronous copies in groups, for the planted kernels.
#pragma once
#include "copy_async.cuh"

// Waits at barrier `id` until `threads` threads have arrived, by bar_sync or bar_arrive.
__device__ __forceinline__ void bar_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives at barrier `id` without waiting.
__device__ __forceinline__ void bar_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
