// Product of half or bfloat16 matrices by wgmma: one warpgroup per block, 128 x 128 outputs.
//
// Parameters: A and B, whose rows along their contiguous axis consist of aligned 16-byte pieces; `step` is the stride
// of the other axis and `batch` that of a batch, in elements. D, m, n, k and alpha as in 04_pipelined.cu.
//
// Improvement: wgmma. Four warps start one product of 64 x 128 x 16 together. It reads both operands from shared
// memory, so no registers hold fragments, and its sums are complete only after a wait. Both operands can be contiguous
// along k or across it. A tile is swizzled as wgmma expects it: no bank conflicts. Ordinary stores fill it, so a proxy
// fence orders them before the products.
//
// Bottleneck: latency. The block loads, then multiplies, then loads. Global loads also pass through registers, and
// take instructions for addresses, bounds and stores to shared memory.
#include "ring.cuh"

// Fills a tile of LINES lines x 64 k. from: its first element. lines, depth: those inside the operand.
template <int LINES, bool ALONG_K, class T>
__device__ __forceinline__ void fill(char* tile, const T* from, int64 step, int lines, int depth) {
#pragma unroll
    for (int i = 0; i < LINES * 8 / kGroup; ++i) {
        const int row = (i * kGroup + threadIdx.x) / 8, piece = threadIdx.x % 8;  // of the tile in shared memory
        const int line = ALONG_K ? row : row / 64 * 64 + piece * 8, k = ALONG_K ? piece * 8 : row % 64;
        uint4 loaded = make_uint4(0, 0, 0, 0);
        if (line < lines && k < depth)
            loaded = *reinterpret_cast<const uint4*>(from + (ALONG_K ? line * step + k : k * step + line));
        *reinterpret_cast<uint4*>(tile + row * kRowBytes + ((piece ^ row % 8) << 4)) = loaded;
    }
}

// grid: (ceil(m / 128), ceil(n / 128), batches), block: 128
template <class T, class R, bool A_K, bool B_K>
__global__ void __launch_bounds__(kGroup) wgmma_tile(const T* a, const T* b, R* d, int64 a_step, int64 a_batch,
    int64 b_step, int64 b_batch, int64 d_row, int64 d_batch, int m, int n, int k, float alpha) {
    constexpr int BM = 128, BN = 128, kWide = BM / 64;
    __shared__ alignas(1024) char tile_a[BM * kRowBytes];
    __shared__ alignas(1024) char tile_b[BN * kRowBytes];
    const int m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    const T* const first_a = a + blockIdx.z * a_batch + (A_K ? m0 * a_step : m0);
    const T* const first_b = b + blockIdx.z * b_batch + (B_K ? n0 * b_step : n0);
    const uint64 of_a = wgmma_operand<A_K>(shared_address(tile_a));
    const uint64 of_b = wgmma_operand<B_K>(shared_address(tile_b));

    float sums[kWide][BN / 2];
    for (int k0 = 0; k0 < k; k0 += kDepth) {
        fill<BM, A_K>(tile_a, first_a + (A_K ? k0 : k0 * a_step), a_step, m - m0, k - k0);
        fill<BN, B_K>(tile_b, first_b + (B_K ? k0 : k0 * b_step), b_step, n - n0, k - k0);
        fence_async_shared();  // the products read in another way than these stores
        __syncthreads();
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < kDepth / 16; ++s)
#pragma unroll
            for (int i = 0; i < kWide; ++i)
                wgmma<T, A_K, B_K>(sums[i], of_a + i * (kPanelBytes >> 4) + s * kWgmmaStep<A_K>,
                    of_b + s * kWgmmaStep<B_K>, k0 > 0 || s > 0);
        wgmma_commit();
        wgmma_wait<0>();  // all warps' products have read the tiles: they are products of the warpgroup
    }
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
        wgmma_result(sums[i]);
        store_sums(d + blockIdx.z * d_batch, d_row, sums[i], m0 + i * 64, n0, m, n, alpha);
    }
}
