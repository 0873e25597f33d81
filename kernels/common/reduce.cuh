// Reductions over a warp with shuffles, and over a block with a shared-memory tree or with warp shuffles.
#pragma once
#include "numbers.cuh"

struct Max {
    static constexpr float identity = -kInfinity;
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct Sum {
    static constexpr float identity = 0.0f;
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// Returns the group's result to every lane of each group of `WIDTH` neighbouring lanes. All 32 lanes must call it.
template <int WIDTH, class Op>
__device__ __forceinline__ float lanes_reduce(float value, Op op) {
    static_assert(WIDTH >= 1 && WIDTH <= kWarp && (WIDTH & (WIDTH - 1)) == 0, "a power of two of lanes");
#pragma unroll
    for (int distance = WIDTH / 2; distance > 0; distance /= 2)
        value = op(value, __shfl_xor_sync(kAllLanes, value, distance));
    return value;
}

// Returns the result to every thread of the block. `scratch` holds blockDim.x values. Half counts are rounded up, so
// any block size works, not only powers of two.
template <class T, class Op>
__device__ __forceinline__ T tree_reduce_block(T value, T* scratch, Op op) {
    scratch[threadIdx.x] = value;
    __syncthreads();
    for (unsigned count = blockDim.x; count > 1;) {
        const unsigned half = (count + 1) / 2;
        if (threadIdx.x < count / 2) scratch[threadIdx.x] = op(scratch[threadIdx.x], scratch[threadIdx.x + half]);
        __syncthreads();
        count = half;
    }
    const T result = scratch[0];
    __syncthreads();  // before the caller fills scratch again
    return result;
}

// Returns the result to every thread of the block: shuffles first, then one value per warp through shared memory.
// `scratch` holds 32 values; blockDim.x is a multiple of 32. Two calls in a row need two scratch areas. MOST: a power
// of two, at least the block's number of warps; a smaller value needs fewer shuffles.
template <int MOST = kWarp, class Op>
__device__ __forceinline__ float warps_reduce_block(float value, float* scratch, Op op) {
    const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    value = lanes_reduce<kWarp>(value, op);
    if (lane == 0) scratch[warp] = value;
    __syncthreads();
    return lanes_reduce<MOST>(lane % MOST < warps ? scratch[lane % MOST] : Op::identity, op);
}
