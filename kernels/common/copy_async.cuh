// Copies from global to shared memory that pass no register (cp.async, sm_80 on). A thread sees its own copies after
// copy_async_wait(); other threads see them after a barrier behind that.
#pragma once
#include "numbers.cuh"

// Copies BYTES (4, 8 or 16, both sides aligned to it).
template <int BYTES>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "the sizes that cp.async.ca takes");
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(BYTES) : "memory");
}

__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
