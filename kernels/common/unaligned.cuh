// Loads of 16 bytes from addresses that are multiples of 2 bytes.
#pragma once
#include "numbers.cuh"

// The 16 bytes from byte `skip` (even, 0 to 14) of the 32 bytes `low`, `high`.
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, int skip) {
    const uint32 words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    uint32 by_8[6], by_4[5];
#pragma unroll
    for (int i = 0; i < 6; ++i) by_8[i] = skip & 8 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) by_4[i] = skip & 4 ? by_8[i + 1] : by_8[i];
    const uint32 bits = (skip & 2) * 8;  // 0 or 16
    return {__funnelshift_r(by_4[0], by_4[1], bits), __funnelshift_r(by_4[1], by_4[2], bits),
        __funnelshift_r(by_4[2], by_4[3], bits), __funnelshift_r(by_4[3], by_4[4], bits)};
}

// The bytes between the last 16-byte boundary and an address: 0 to 15.
__device__ __forceinline__ int past_boundary(const void* address) {
    return static_cast<int>(reinterpret_cast<uint64>(address) & 15);
}

// The last 16-byte boundary up to an address.
__device__ __forceinline__ const uint4* boundary(const void* address) {
    return reinterpret_cast<const uint4*>(static_cast<const char*>(address) - past_boundary(address));
}
