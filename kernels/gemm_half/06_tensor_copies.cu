// Product of half or bfloat16 matrices by wgmma, with tensor copies: one warpgroup per block, 128 x 128 outputs.
//
// Parameters: tensor maps of A and B as in 12_tiles.cu, with boxes of 128 lines or 64 k; whether each has batches of
// its own, 0 or 1; D, m, n, k, alpha.
//
// Improvement: tensor copies. One thread starts the copy of a whole tile, swizzled. The copy engine computes addresses,
// and fills the edges with zeros. The bytes arrive at a barrier (mbarrier), for which all threads wait. So the copies
// of the next step run during the products of this one, without registers. No proxy fence: copies and products both use
// the async proxy.
//
// Bottleneck: the wait in each step. No product of a block runs from its end to the start of the next one. Only the
// other blocks of a multiprocessor fill the gap.
#include "ring.cuh"

// grid: (ceil(m / 128), ceil(n / 128), batches), block: 128, shared: 65536 bytes
template <class T, class R, bool A_K, bool B_K>
__global__ void __launch_bounds__(kGroup) tensor_copies(const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b, int a_batched, int b_batched, R* d, int64 d_row, int64 d_batch, int m,
    int n, int k, float alpha) {
    constexpr int BM = 128, BN = 128, kWide = BM / 64;
    using A = OperandTile<T, BM, A_K>;
    using B = OperandTile<T, BN, B_K>;
    constexpr int kStage = A::kBytes + B::kBytes;
    extern __shared__ __align__(1024) char shared[];
    __shared__ uint64 full[2];
    const int m0 = blockIdx.x * BM, n0 = blockIdx.y * BN, batch = blockIdx.z;
    const int steps = (k + kDepth - 1) / kDepth;

    // Loads the tiles of a step into its buffer.
    const auto load = [&](int step) {
        char* const stage = shared + step % 2 * kStage;
        uint64* const arrived = &full[step % 2];
        barrier_arrive_expect(arrived, kStage);
        A::load(stage, &map_a, m0, step * kDepth, batch * a_batched, arrived);
        B::load(stage + A::kBytes, &map_b, n0, step * kDepth, batch * b_batched, arrived);
    };
    if (threadIdx.x == 0) {
        barrier_init(&full[0], 1);
        barrier_init(&full[1], 1);
        fence_barrier_init();
        load(0);
    }
    __syncthreads();

    float sums[kWide][BN / 2];
    for (int step = 0; step < steps; ++step) {
        if (threadIdx.x == 0 && step + 1 < steps) load(step + 1);
        barrier_wait(&full[step % 2], step / 2 % 2);
        const unsigned stage = shared_address(shared) + step % 2 * kStage;
        multiply<T, A_K, B_K>(sums, stage, stage + A::kBytes, step > 0);
        wgmma_wait<0>();  // all warps' products have read the buffer, which the next copies fill
    }
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
        wgmma_result(sums[i]);
        store_sums(d + batch * d_batch, d_row, sums[i], m0 + i * 64, n0, m, n, alpha);
    }
}
