// Product of half or bfloat16 matrices by wgmma, with a producer warpgroup and a ring of stages: 128 x 128 outputs per
// block.
//
// Parameters as in 06_tensor_copies.cu.
//
// Improvement: a producer. The first warpgroup only loads, into a ring of STAGES buffers; the two others, the
// consumers, multiply 64 rows each. Two barriers per stage order them, and no barrier of the block: `full` completes a
// phase when the stage's bytes have arrived, `empty` when the products of all consumer warps have read them. So copies
// are several steps ahead, and the products of one step run while the next ones start. The producer needs few
// registers; the consumers take over the rest.
//
// Bottleneck: shared memory. A step reads 64 rows of A and 128 columns of B per consumer, and B twice.
#include "ring.cuh"

// grid: (ceil(m / 128), ceil(n / 128), batches), block: 384, shared: STAGES * 32784 bytes
template <class T, class R, bool A_K, bool B_K, int STAGES>
__global__ void __launch_bounds__(3 * kGroup, 1) producer(const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b, int a_batched, int b_batched, R* d, int64 d_row, int64 d_batch, int m,
    int n, int k, float alpha) {
    constexpr int BM = 128, BN = 128;
    using A = OperandTile<T, BM, A_K>;
    using B = OperandTile<T, BN, B_K>;
    constexpr int kStage = A::kBytes + B::kBytes;
    extern __shared__ __align__(1024) char shared[];
    uint64* const full = reinterpret_cast<uint64*>(shared + STAGES * kStage);
    uint64* const empty = full + STAGES;
    const int group = consumer_number();  // -1: producer; 0 and 1: consumers
    const int m0 = blockIdx.x * BM, n0 = blockIdx.y * BN, batch = blockIdx.z;
    const int steps = (k + kDepth - 1) / kDepth;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&full[i], 1);                    // the producer
            barrier_init(&empty[i], 2 * kGroup / kWarp);  // the consumers' warps
        }
        fence_barrier_init();
    }
    __syncthreads();

    RingPlace<STAGES> place;
    if (group < 0) {
        registers_decrease<40>();
        if (threadIdx.x > 0) return;
        for (int step = 0; step < steps; ++step) {
            char* const stage = shared + place.stage * kStage;
            uint64* const arrived = &full[place.stage];
            barrier_wait(&empty[place.stage], place.parity ^ 1);  // the stage is empty at first
            barrier_arrive_expect(arrived, kStage);
            A::load(stage, &map_a, m0, step * kDepth, batch * a_batched, arrived);
            B::load(stage + A::kBytes, &map_b, n0, step * kDepth, batch * b_batched, arrived);
            place.next();
        }
    } else {
        registers_increase<232>();
        float sums[1][BN / 2];
        int reading = -1;  // the stage that the products in flight read
        for (int step = 0; step < steps; ++step) {
            barrier_wait(&full[place.stage], place.parity);
            const unsigned stage = shared_address(shared) + place.stage * kStage;
            multiply<T, A_K, B_K>(sums, stage + group * 64 * kRowBytes, stage + A::kBytes, step > 0);
            wgmma_wait<1>();  // the products of the step before are complete
            if (reading >= 0 && threadIdx.x % kWarp == 0) barrier_arrive(&empty[reading]);
            reading = place.stage;
            place.next();
        }
        wgmma_wait<0>();
        wgmma_result(sums[0]);
        store_sums(d + batch * d_batch, d_row, sums[0], m0 + group * 64, n0, m, n, alpha);
    }
}
