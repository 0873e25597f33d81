// Constants, fixed-width integers and thread indices for the kernels. NVRTC, which compiles them, has no <cfloat>,
// <cmath> or <cstdint>.
#pragma once

using int64 = long long;
using uint32 = unsigned int;
using uint64 = unsigned long long;

static_assert(sizeof(int64) == 8 && sizeof(uint32) == 4 && sizeof(uint64) == 8, "CUDA's LP64 integer widths");

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// This thread's index among all threads of a 1-D grid. 64-bit, since grid * block can exceed 2^31.
__device__ __forceinline__ int64 global_thread() {
    return static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// The number of threads of a 1-D grid.
__device__ __forceinline__ int64 global_threads() {
    return static_cast<int64>(gridDim.x) * blockDim.x;
}
