// C = A * B^T of bfloat16 matrices with float sums, by wgmma from a ring of tiles that pairs of blocks share.
//
// Parameters: tensor maps of A (m x k) and B (n x k) with boxes of 128 x 64 and BN / 2 x 64, and of C (m x n) with
// boxes of 64 x 64, all with 128-byte swizzle; m, n, k. All rows are 16-byte aligned: n and k are multiples of 8.
//
// A block computes 128 x BN tiles of C. Its first warpgroup is the producer: one thread loads 64 columns of both
// operands at a time into a ring of STAGES buffers. The two other warpgroups, the consumers, multiply 64 rows each;
// they have most of the registers. The two blocks of a cluster compute tiles one above the other, which need the same
// part of B. Each loads half of it into both blocks. So a buffer is empty when the consumers of both blocks have
// released it.
//
// Blocks are persistent: while the consumers write a tile, the producer fills the ring for the next one.
//
// Bottleneck: the tensor cores, and the power limit, which holds the clock below its maximum.
#include "../common/hopper.cuh"
#include "../common/wgmma.cuh"

constexpr int kRows = 128;   // of C per block
constexpr int kDepth = 64;   // k of a buffer: 128 bytes, the swizzle's span
constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kBlocks = 2;   // of a cluster
constexpr int kBand = 8;     // rows of cluster tiles that concurrent blocks cover

// A block's dynamic shared memory.
template <int BN, int STAGES>
struct Storage {
    alignas(1024) __nv_bfloat16 a[STAGES][kRows * kDepth];
    alignas(1024) __nv_bfloat16 b[STAGES][BN * kDepth];
    alignas(1024) __nv_bfloat16 c[2][BN / 64][64 * 64];
    uint64 full[STAGES], empty[STAGES];
};

// The cluster tile with a given number: bands of kBand rows, down a band's rows, then across. So concurrent blocks
// cover a nearly square part of C, and find each other's operands in L2.
template <int BN>
struct Place {
    int m0, n0;

    __device__ __forceinline__ Place(int tile, int down, int across) {
        const int first = tile / (kBand * across) * kBand;             // row of the band
        const int rows = down - first < kBand ? down - first : kBand;  // 1 .. kBand
        const int in_band = tile - first * across;                     // 0 .. rows * across - 1
        m0 = (first + in_band % rows) * kBlocks * kRows;
        n0 = in_band / rows * BN;
    }
};

// grid: a multiple of 2, cluster: 2, block: 384,
// shared: STAGES * (128 + BN) * 128 + BN * 256 + STAGES * 16 bytes
template <int BN, int STAGES>
__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(3 * kGroup, 1)
wgmma_product(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
    const __grid_constant__ CUtensorMap c, int m, int n, int k) {
    static_assert(STAGES >= 2, "one buffer is read while the next one's products start");
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Storage<BN, STAGES>*>(memory);
    const int rank = cluster_rank();
    const int group = threadIdx.x / kGroup - 1;  // -1: producer; 0 and 1: consumers

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&shared.full[i], 1);
            barrier_init(&shared.empty[i], kBlocks * 2 * kGroup / kWarp);  // all consumer warps of the cluster
        }
        fence_barrier_init();
    }
    cluster_sync();

    const int down = (m + kBlocks * kRows - 1) / (kBlocks * kRows);
    const int across = (n + BN - 1) / BN;
    const int steps = (k + kDepth - 1) / kDepth;
    const int first = blockIdx.x / kBlocks, stride = gridDim.x / kBlocks;  // in cluster tiles
    RingPlace<STAGES> place;
    if (group < 0) {
        registers_decrease<40>();
        if (threadIdx.x < kWarp && elect_one()) {
            constexpr int kHalf = BN / kBlocks;  // rows of B that this block loads
            for (int tile = first; tile < down * across; tile += stride) {
                const Place<BN> at(tile, down, across);
                // Rows that lie wholly outside a matrix are not loaded: any others do, their products are not stored
                const int row_a = at.m0 + rank * kRows < m ? at.m0 + rank * kRows : at.m0;
                const int row_b = at.n0 + rank * kHalf < n ? at.n0 + rank * kHalf : at.n0;
                for (int step = 0; step < steps; ++step) {
                    uint64* const full = &shared.full[place.stage];
                    barrier_wait<true>(&shared.empty[place.stage], place.parity ^ 1);
                    barrier_arrive_expect(full, (kRows + BN) * kDepth * 2);
                    tensor_load(shared.a[place.stage], &a, step * kDepth, row_a, full);
                    tensor_load_to(shared.b[place.stage] + rank * kHalf * kDepth, &b, step * kDepth, row_b, full, 3);
                    place.next();
                }
            }
        }
    } else {
        registers_increase<232>();
        const int lane = threadIdx.x % kWarp;
        const int row = threadIdx.x % kGroup / kWarp * 16 + lane % 16;  // 0 .. 63, which this lane stores
        const bool leader = threadIdx.x % kGroup == 0;                  // issues the group's tensor stores
        for (int tile = first; tile < down * across; tile += stride) {
            float sums[BN / 2];
#pragma unroll
            for (int i = 0; i < BN / 2; ++i) sums[i] = 0.0f;
            int reading = -1;  // the stage that the products in flight read
            for (int step = 0; step < steps; ++step) {
                barrier_wait(&shared.full[place.stage], place.parity);
                const uint64 rows_a = wgmma_operand<true>(shared_address(shared.a[place.stage] + group * 64 * kDepth));
                const uint64 rows_b = wgmma_operand<true>(shared_address(shared.b[place.stage]));
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < kDepth / 16; ++i)
                    wgmma<__nv_bfloat16, true, true>(sums, rows_a + 2 * i, rows_b + 2 * i, 1);
                wgmma_commit();
                wgmma_wait<1>();  // the products of the step before are complete
                if (reading >= 0 && lane < kBlocks) barrier_arrive_at(&shared.empty[reading], lane);
                reading = place.stage;
                place.next();
            }
            wgmma_wait<0>();
            wgmma_result(sums);
            if (lane < kBlocks) barrier_arrive_at(&shared.empty[reading], lane);

            const Place<BN> at(tile, down, across);
            const int m0 = at.m0 + rank * kRows + group * 64;
            if (leader) bulk_wait_read<0>();  // the stores of the last tile have read the buffer
            named_sync(1 + group, kGroup);
#pragma unroll
            for (int i = 0; i < BN / 16; ++i) {
                const float* const from = sums + i * 8;  // 16 columns
                const unsigned packed[4] = {pack<__nv_bfloat16>(from[0], from[1]),
                    pack<__nv_bfloat16>(from[2], from[3]), pack<__nv_bfloat16>(from[4], from[5]),
                    pack<__nv_bfloat16>(from[6], from[7])};
                const int piece = (i % 4 * 2 + lane / 16) ^ row % 8;  // 8 columns, at their swizzled place
                store_matrices(shared.c[group][i / 4] + row * 64 + piece * 8, packed);
            }
            fence_async_shared();
            named_sync(1 + group, kGroup);
            if (leader) {
                for (int i = 0; i < BN / 64; ++i)
                    if (m0 < m && at.n0 + i * 64 < n) tensor_store(&c, at.n0 + i * 64, m0, shared.c[group][i]);
                bulk_commit();
            }
        }
        if (leader) bulk_wait_read<0>();  // shared memory must exist until it is read
    }
    cluster_sync();  // no block may exit while the other one arrives at its barriers
}
