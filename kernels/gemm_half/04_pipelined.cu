// Product of half or bfloat16 matrices by mma.sync, with copies STAGES - 1 tiles ahead of the arithmetic.
//
// Parameters as in 02_mma.cu, and those of a fused epilogue (epilogue.cuh). Dynamic shared memory: a ring of STAGES
// tiles of each operand.
//
// Improvement: cp.async fills a ring of tiles, part of a tile with each part of the arithmetic. After the one barrier
// per tile the next tile is visible and the oldest can be overwritten. One set of fragments is loaded from shared
// memory while the other is multiplied. Tiles are larger: a block of 128 x 256 outputs computes 85 operations per byte
// from L2, one of 128 x 128 computes 64. Blocks are persistent: each computes tile after tile, and copies for the next
// tile are in flight while one is written. Blocks that run at the same time cover a nearly square part of the output,
// so that they find each other's operands in L2.
//
// Bottleneck: mma.sync. With operands in registers it reaches 637 TFLOP/s on an H200; here its pipe is busy 82 % of the
// time, and the power limit holds the clock at 1.5 to 1.75 GHz. wgmma, which cuBLAS uses there, does more work per
// instruction and reads shared memory without registers.
#include "tensor_tile.cuh"

constexpr int kGroupRows = 2048;  // rows of the output that concurrent blocks cover
constexpr int kSteps = kDepth / 16;

// Multiplies one tile and loads another. WHOLE: no copy checks the end of k. `reading` and `filling`: offsets in bytes
// in the ring, of the tile that is multiplied and of the free one.
template <bool WHOLE, int STAGES, class TILE>
__device__ __forceinline__ void advance(TILE& tile, typename TILE::A& in_a, typename TILE::B& in_b, char* shared,
    int& reading, int& filling, typename TILE::Fragments (&fragments)[2]) {
    using A = typename TILE::A;
    using B = typename TILE::B;
    const unsigned ring = shared_address(shared);
    char* const to_a = shared + filling;
    char* const to_b = to_a + A::kBytes;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
        if (s == kSteps - 1) {
            copy_async_commit();
            copy_async_wait_for<STAGES - 2>();
            __syncthreads();  // the next tile is visible, and no thread reads this one any more
            filling = reading;
            reading = reading + TILE::kStage == STAGES * TILE::kStage ? 0 : reading + TILE::kStage;
        }
        tile.load(fragments[(s + 1) % 2], ring + reading, (s + 1) % kSteps);
        if (s == 0) in_a.template bring<WHOLE, true, 0, A::kCopies / 2>(to_a);
        if (s == 1) in_a.template bring<WHOLE, true, A::kCopies / 2>(to_a);
        if (s == 1 && B::kCopies > A::kCopies) in_b.template bring<WHOLE, true, 0, B::kCopies / 2>(to_b);
        if (s == 2 && B::kCopies > A::kCopies) in_b.template bring<WHOLE, true, B::kCopies / 2>(to_b);
        if (s == 2 && B::kCopies <= A::kCopies) in_b.template bring<WHOLE, true>(to_b);
        tile.multiply(fragments[s % 2]);
    }
    in_a.next(), in_b.next();
}

// The start of the BM x BN tile with a given number: batch by batch, kGroup rows of tiles at a time, down these, then
// across.
template <int BM, int BN>
struct Place {
    static constexpr int kGroup = kGroupRows / BM;

    int64 m0, n0, batch;

    __device__ __forceinline__ Place(int64 tile, int64 down, int64 across) {
        batch = tile / (down * across);
        const int64 in_batch = tile % (down * across);                     // 0 .. down * across - 1
        const int64 first = in_batch / (kGroup * across) * kGroup;         // the group's first row of tiles
        const int64 rows = down - first < kGroup ? down - first : kGroup;  // and how many it has: 1 .. kGroup
        const int64 in_group = in_batch - first * across;                  // 0 .. rows * across - 1
        m0 = (first + in_group % rows) * BM;
        n0 = in_group / rows * BN;
    }
};

// Starts the copies of the first STAGES - 1 tiles, one commit group each.
template <int STAGES, class TILE>
__device__ __forceinline__ void begin(typename TILE::A& in_a, typename TILE::B& in_b, char* shared) {
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        in_a.template bring<false, true>(shared + s * TILE::kStage);
        in_b.template bring<false, true>(shared + s * TILE::kStage + TILE::A::kBytes);
        in_a.next(), in_b.next();
        copy_async_commit();
    }
}

// B, ACTIVATION, C, BIAS, RESIDUAL: of the Epilogue.
//
// grid: any, block: BM / WM * BN / WN warps
template <class T, class R, class B, int ACTIVATION, int C, int BIAS, int RESIDUAL, int BM, int BN, int WM, int WN,
    int STAGES, int RESIDENT, bool A_K, bool B_K>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * kWarp, RESIDENT) pipelined(const T* a, const T* b, const R* c,
    R* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col,
    int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha,
    float beta, const B* bias, int64 bias_row, int64 bias_col, int64 bias_batch, const R* residual, int64 residual_row,
    int64 residual_col, int64 residual_batch, float scale, int wide) {
    using Tile = TensorTile<T, BM, BN, WM, WN, A_K, B_K, true>;
    using At = Place<BM, BN>;
    static_assert(STAGES >= 2, "one tile to multiply and one to fill");
    extern __shared__ __align__(128) char shared[];
    const int64 across = (n + BN - 1) / BN;  // tiles in a row of tiles
    const int64 down = (m + BM - 1) / BM;    // rows of tiles
    const int64 all = down * across * batches;
    const int64 depth = (k + kDepth - 1) / kDepth;  // steps of a tile
    const int64 hot = k / kDepth - (STAGES - 1);    // steps that copy only whole tiles

    const auto operand_a = [&](const At& at) {
        return typename Tile::A(a + at.batch * a_batch, a_row, a_col, at.m0, m, k);
    };
    const auto operand_b = [&](const At& at) {
        return typename Tile::B(b + at.batch * b_batch, b_col, b_row, at.n0, n, k);
    };
    At at(blockIdx.x, down, across);
    auto in_a = operand_a(at);
    auto in_b = operand_b(at);
    begin<STAGES, Tile>(in_a, in_b, shared);

    constexpr int kFree = (STAGES - 1) * Tile::kStage;  // start of the ring's last tile, in bytes
    for (int64 next = blockIdx.x + gridDim.x;; next += gridDim.x) {
        Tile tile;
        copy_async_wait_for<STAGES - 2>();
        __syncthreads();
        typename Tile::Fragments fragments[2];
        int reading = 0, filling = kFree;
        if (depth > 0) tile.load(fragments[0], shared_address(shared), 0);
        int64 t = 0;
#pragma unroll 1
        for (; t < hot; ++t) advance<true, STAGES>(tile, in_a, in_b, shared, reading, filling, fragments);
#pragma unroll 1
        for (; t < depth; ++t) {
            // Multiples of the steps are not kept in registers, which ptxas would spill.
            asm volatile("" : "+l"(in_a.step), "+l"(in_b.step));
            advance<false, STAGES>(tile, in_a, in_b, shared, reading, filling, fragments);
        }
        copy_async_wait_for<0>();
        __syncthreads();  // no thread reads or fills the ring any more

        // Stage this tile's output in the part of the ring that the next tile's copies do not use: they are in
        // flight.
        const At here = at;
        if (next < all) {
            at = At(next, down, across);
            in_a = operand_a(at), in_b = operand_b(at);
            begin<STAGES, Tile>(in_a, in_b, shared);
        }
        const Epilogue<B, R, ACTIVATION, C, BIAS, RESIDUAL> epilogue{c + here.batch * c_batch, c_row, c_col,
            bias + here.batch * bias_batch, bias_row, bias_col, residual + here.batch * residual_batch, residual_row,
            residual_col, alpha, beta, scale};
        R* of_d = d + here.batch * d_batch;
        tile.store(shared + kFree, epilogue, of_d, d_row, d_col, here.m0, here.n0, m, n, wide);
        if (next >= all) return;
    }
}
