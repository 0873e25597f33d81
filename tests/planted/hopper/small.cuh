// Products of one warpgroup for planted bugs: 64 x 8 sums of 64 rows of A and 8 rows of B, 64 bfloat16 each; and
// instructions that only planted bugs use.
#pragma once
#include "hopper.cuh"
#include "wgmma.cuh"

constexpr int kDeep = 64;  // elements of a row: 128 bytes, the swizzle's span
constexpr int kRowsA = 64, kRowsB = 8;

using Element = __nv_bfloat16;

struct Operands {
    alignas(1024) Element a[kRowsA * kDeep];
    alignas(1024) Element b[kRowsB * kDeep];
};

// Initialises a barrier in one thread; the others see it after the block's next barrier.
__device__ __forceinline__ void start(uint64* barrier, unsigned arrivals) {
    if (threadIdx.x == 0) {
        barrier_init(barrier, arrivals);
        fence_barrier_init();
    }
}

// The place of 8 elements of a row in a tile with 128-byte swizzle.
__device__ __forceinline__ Element* swizzled(Element* tile, int row, int piece) {
    return tile + row * kDeep + (piece ^ row % 8) * 8;
}

// Copies rows to a tile by ordinary stores of all threads.
__device__ __forceinline__ void put_rows(Element* tile, const Element* from, int rows) {
    for (int i = threadIdx.x; i < rows * 8; i += blockDim.x)
        *reinterpret_cast<uint4*>(swizzled(tile, i / 8, i % 8)) = reinterpret_cast<const uint4*>(from)[i];
}

// Copies both operands, visible to wgmma in all threads.
__device__ __forceinline__ void put_operands(Operands& to, const Element* a, const Element* b) {
    put_rows(to.a, a, kRowsA);
    put_rows(to.b, b, kRowsB);
    fence_async_shared();
    __syncthreads();
}

// Describes a tile to wgmma. Adding 2 to the descriptor moves it by 16 elements along k.
__device__ __forceinline__ uint64 wgmma_operand(const Element* tile) {
    return wgmma_operand<true>(shared_address(tile));
}

// sums += A * B^T, 16 elements of k.
__device__ __forceinline__ void multiply_16(float (&sums)[4], uint64 a, uint64 b) {
    asm volatile(
        "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 1, 0;\n\twgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, "
        "%1, "
        "%2, %3}, %4, %5, add, 1, 1, 0, 0;\n\t}"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "l"(a), "l"(b)
        : "memory");
}

// The same, with A's fragment in registers.
__device__ __forceinline__ void multiply_16(float (&sums)[4], const unsigned (&a)[4], uint64 b) {
    asm volatile(
        "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, 1, 0;\n\twgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, "
        "%1, "
        "%2, %3}, {%4, %5, %6, %7}, %8, add, 1, 1, 0;\n\t}"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
        : "memory");
}

// sums += A * B^T of whole rows.
__device__ __forceinline__ void multiply(float (&sums)[4], uint64 a, uint64 b) {
#pragma unroll
    for (int i = 0; i < kDeep / 16; ++i) multiply_16(sums, a + 2 * i, b + 2 * i);
}

// This lane's address for load_matrices of 16 columns of A.
__device__ __forceinline__ unsigned fragment_address(Element* tile, int step) {
    const int lane = threadIdx.x % kWarp;
    return shared_address(swizzled(tile, threadIdx.x / kWarp * 16 + lane % 16, step * 2 + lane / 16));
}

// y: (64, 8)
__device__ __forceinline__ void store_sums(float* y, const float (&sums)[4]) {
    const int lane = threadIdx.x % kWarp;
    float* const to = y + (threadIdx.x / kWarp * 16 + lane / 4) * kRowsB + lane % 4 * 2;
    to[0] = sums[0], to[1] = sums[1];
    to[8 * kRowsB] = sums[2], to[8 * kRowsB + 1] = sums[3];
}

// Orders this thread's changes of a tensor map in global memory before later copies that use it.
__device__ __forceinline__ void fence_map(const CUtensorMap* map) {
    asm volatile(
        "fence.proxy.tensormap::generic.release.gpu;\n\tfence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(
            map)
        : "memory");
}
