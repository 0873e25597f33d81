// Shared by the variants up to warp_tile: the output tile of a block, and how an output is written.
#pragma once
#include "../common/numbers.cuh"

// The BM x BN tile of this block: its first row and column, and its batch. blockIdx.x counts tiles along a row of
// tiles, then down, then batches, because a grid's other axes are limited to 65,535 blocks. There is no loop over
// batches: the compiler would compute values ahead of it, and 64 outputs per thread leave no registers for them.
template <int BM, int BN>
struct BlockTile {
    int64 m0, n0, batch;

    __device__ __forceinline__ BlockTile(int64 m, int64 n) {
        const uint32 across = static_cast<uint32>((n + BN - 1) / BN);  // tiles in a row of tiles
        const uint32 down = static_cast<uint32>((m + BM - 1) / BM);    // rows of tiles in a batch
        const uint32 row = blockIdx.x / across;                        // of tiles, all batches: 0 .. down * batches - 1
        const uint32 col = blockIdx.x - row * across;                  // 0 .. across - 1
        n0 = static_cast<int64>(col) * BN;
        m0 = static_cast<int64>(row % down) * BM;
        batch = row / down;
    }
};

// alpha * sum + beta * *c. *c is not read if beta is 0: it may be uninitialised, and 0 * NaN is NaN.
__device__ __forceinline__ float combined(float sum, float alpha, float beta, const float* c) {
    return beta != 0.0f ? fmaf(beta, *c, alpha * sum) : alpha * sum;
}
