// Asynchronous copies from global to shared memory that use no registers (cp.async, sm_80 and later). After
// copy_async_wait() a thread sees its own copies; other threads see them after a barrier that follows.
#pragma once
#include "numbers.cuh"

// Copies BYTES (4, 8 or 16); both addresses must be aligned to BYTES.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "the sizes that cp.async.ca takes");
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(BYTES) : "memory");
}

// Copies BYTES if `wanted`; otherwise writes BYTES zeros and does not read `global`. 16-byte copies bypass L1: the next
// reader is another block.
template <int BYTES>
__device__ __forceinline__ void copy_async_or_zero(void* shared, const void* global, bool wanted) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "the sizes that cp.async takes");
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    const int bytes = wanted ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(global), "n"(BYTES), "r"(bytes)
            : "memory");
}

__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// Ends a group: all copies started since the last commit. Groups are waited for as a whole.
__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most LATEST of the newest groups are still in flight.
template <int LATEST>
__device__ __forceinline__ void copy_async_wait_for() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LATEST) : "memory");
}
