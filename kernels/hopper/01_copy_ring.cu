// y = a * x + b for a float matrix of any shape, through a ring of tiles in shared memory that tensor copies fill.
//
// Parameters: tensor maps of x and y with boxes of ROWS x COLS and no swizzle, a, b, the matrix' shape. Rows are
// 16-byte aligned.
//
// The first warp, the producer, loads tiles into a ring of STAGES buffers; the WARPS others, the consumers, compute.
// Each buffer has two barriers: `full` completes a phase when the buffer's bytes have arrived, `empty` when every
// consumer warp has read them. Results go through two more buffers to tensor stores, which one consumer thread issues.
// Copies in flight occupy no registers and no threads, and the edges of the matrix need no code: tensor copies fill
// loads from outside with zeros, and drop such stores.
//
// Bottleneck: memory bandwidth, 8 bytes per element.
#include "../common/hopper.cuh"

// A block's dynamic shared memory.
template <int ROWS, int COLS, int STAGES>
struct Storage {
    alignas(128) float in[STAGES][ROWS * COLS];
    alignas(128) float out[2][ROWS * COLS];
    uint64 full[STAGES], empty[STAGES];
};

// grid: any, block: (1 + WARPS) * 32, shared: (STAGES + 2) * ROWS * COLS * 4 + STAGES * 16 bytes
template <int ROWS, int COLS, int STAGES, int WARPS>
__global__ void __launch_bounds__((1 + WARPS) * kWarp) copy_ring(const __grid_constant__ CUtensorMap x,
    const __grid_constant__ CUtensorMap y, float a, float b, int rows, int cols) {
    constexpr int kTile = ROWS * COLS;
    constexpr int kThreads = WARPS * kWarp;             // consumers
    constexpr int kPerThread = kTile / (kThreads * 4);  // float4 of a tile
    static_assert(kTile % (kThreads * 4) == 0, "all consumers have the same number of float4");
    extern __shared__ __align__(128) char memory[];
    auto& shared = *reinterpret_cast<Storage<ROWS, COLS, STAGES>*>(memory);

    if (threadIdx.x == 0) {
        tensor_prefetch(&x);
        tensor_prefetch(&y);
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(&shared.full[i], 1);
            barrier_init(&shared.empty[i], WARPS);
        }
        fence_barrier_init();
    }
    __syncthreads();

    const int across = (cols + COLS - 1) / COLS;  // tiles in a row of tiles
    const int tiles = (rows + ROWS - 1) / ROWS * across;
    RingPlace<STAGES> place;
    if (threadIdx.x < kWarp) {
        if (threadIdx.x != 0) return;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            barrier_wait(&shared.empty[place.stage], place.parity ^ 1);
            barrier_arrive_expect(&shared.full[place.stage], kTile * 4);
            tensor_load(
                shared.in[place.stage], &x, tile % across * COLS, tile / across * ROWS, &shared.full[place.stage]);
            place.next();
        }
    } else {
        const int thread = threadIdx.x - kWarp;  // 0 .. kThreads - 1
        int buffer = 0;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            barrier_wait(&shared.full[place.stage], place.parity);
            float4 v[kPerThread];
#pragma unroll
            for (int i = 0; i < kPerThread; ++i)
                v[i] = reinterpret_cast<const float4*>(shared.in[place.stage])[i * kThreads + thread];
            __syncwarp();  // the whole warp has read the tile
            if (thread % kWarp == 0) barrier_arrive(&shared.empty[place.stage]);
            place.next();

            if (thread == 0) bulk_wait_read<1>();  // the store of two tiles ago has read this buffer
            named_sync(1, kThreads);
#pragma unroll
            for (int i = 0; i < kPerThread; ++i)
                reinterpret_cast<float4*>(shared.out[buffer])[i * kThreads + thread] =
                    make_float4(fmaf(a, v[i].x, b), fmaf(a, v[i].y, b), fmaf(a, v[i].z, b), fmaf(a, v[i].w, b));
            fence_async_shared();
            named_sync(1, kThreads);
            if (thread == 0) {
                tensor_store(&y, tile % across * COLS, tile / across * ROWS, shared.out[buffer]);
                bulk_commit();
            }
            buffer ^= 1;
        }
        if (thread == 0) bulk_wait_read<0>();  // shared memory must exist until it is read
    }
}
