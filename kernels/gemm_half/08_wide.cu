// Product of half or bfloat16 matrices by wgmma, with a producer warpgroup: 128 x 256 outputs per block.
//
// Parameters as in 06_tensor_copies.cu; B's map has boxes of 256 lines, or of 64 lines and 64 k.
//
// Improvement: wider tiles. Each consumer multiplies 64 rows by 256 columns, the widest wgmma, with 128 sums per
// thread. Per product, shared memory is read 0.83 times as often as with 64 x 128, and L2 0.75 times as often as with
// tiles of 128 x 128.
//
// Bottleneck: L2. All blocks load their own tiles, although neighbours load the same rows or columns.
#include "ring.cuh"

// grid: (ceil(m / 128), ceil(n / 256), batches), block: 384, shared: STAGES * 49168 bytes
template <class T, class R, bool A_K, bool B_K, int STAGES>
__global__ void __launch_bounds__(3 * kGroup, 1) wide(const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b, int a_batched, int b_batched, R* d, int64 d_row, int64 d_batch, int m,
    int n, int k, float alpha) {
    constexpr int BM = 128, BN = 256;
    extern __shared__ __align__(1024) char shared[];
    Ring<T, BM, BN, A_K, B_K, STAGES> ring(shared);
    const int group = consumer_number();  // -1: producer; 0 and 1: consumers
    const int m0 = blockIdx.x * BM, n0 = blockIdx.y * BN, batch = blockIdx.z;
    const int steps = (k + kDepth - 1) / kDepth;

    if (group < 0) {
        registers_decrease<40>();
        if (threadIdx.x == 0) ring.fill(&map_a, &map_b, m0, n0, batch * a_batched, batch * b_batched, steps);
    } else {
        registers_increase<232>();
        float sums[1][BN / 2];
        ring.multiply_all(sums, group * 64, steps);
        store_sums(d + batch * d_batch, d_row, sums[0], m0 + group * 64, n0, m, n, alpha);
    }
}
