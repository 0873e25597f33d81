// Row softmax for long rows: the blocks of a cluster share a row, hold their parts in shared memory, and exchange the
// maximum and the sum by asynchronous stores.
//
// Parameters: x and y (rows x cols) with rows of x_row and y_row elements, 16-byte aligned; cols is a multiple of 4.
// CLUSTER blocks of BLOCK threads share a row; a block's part has up to CHUNKS * CHUNK elements.
//
// A block loads its part in CHUNKS bulk copies, each with its own barrier, so that it reduces one while the next ones
// arrive. Then it sends its maximum and sum to all blocks of the cluster, each of which waits on its own barrier for
// CLUSTER * 8 bytes: no block waits for a barrier of the whole cluster, and none reads another one's memory. Before a
// block sends those of the next row, all others have signalled that they have read these. Results leave by bulk copies,
// and each chunk of the next row is loaded as soon as its place has been read.
//
// Bottleneck: memory bandwidth, 8 bytes per element.
#include "../common/hopper.cuh"
#include "../common/reduce.cuh"

// A block's dynamic shared memory.
template <int CLUSTER, int CHUNKS, int CHUNK>
struct Storage {
    alignas(128) float values[CHUNKS][CHUNK];
    Online parts[CLUSTER];  // maximum and sum of each block
    float maxima[kWarp], sums[kWarp];
    uint64 full[CHUNKS];  // a chunk has arrived
    uint64 received;      // all parts have
    uint64 read;          // all blocks have read this one's part
};

// Loads each chunk of a row as soon as the store of the one before it has read its place.
template <int CHUNKS, int CHUNK = 0, class LOAD>
__device__ __forceinline__ void refill(const LOAD& load, int64 row) {
    bulk_wait_read<CHUNKS - 1 - CHUNK>();
    load(row, CHUNK);
    if constexpr (CHUNK + 1 < CHUNKS) refill<CHUNKS, CHUNK + 1>(load, row);
}

// x, y: (rows, cols); grid: a multiple of CLUSTER, cluster: CLUSTER, block: BLOCK,
// shared: CHUNKS * CHUNK * 4 + CLUSTER * 8 + 256 + CHUNKS * 8 + 16 bytes
template <int CLUSTER, int BLOCK, int CHUNKS, int CHUNK>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BLOCK)
split_softmax(const float* x, float* y, int64 x_row, int64 y_row, int64 rows, int64 cols) {
    static_assert(BLOCK % kWarp == 0 && CLUSTER <= kWarp && CHUNK % 32 == 0, "whole warps, one of them sends");
    extern __shared__ __align__(128) char memory[];
    auto& shared = *reinterpret_cast<Storage<CLUSTER, CHUNKS, CHUNK>*>(memory);
    const unsigned rank = cluster_rank();
    const int thread = threadIdx.x;

    const int64 part = (cols / 4 + CLUSTER - 1) / CLUSTER * 4;  // columns of a block
    const int64 first = part * rank;                            // of this one
    const int mine = static_cast<int>(cols <= first ? 0 : cols - first < part ? cols - first : part);
    const auto length = [&](int chunk) {  // its elements
        const int left = mine - chunk * CHUNK;
        return left <= 0 ? 0 : left < CHUNK ? left : CHUNK;
    };
    const auto load = [&](int64 row, int chunk) {
        barrier_arrive_expect(&shared.full[chunk], length(chunk) * 4);
        if (length(chunk) > 0)
            bulk_load(
                shared.values[chunk], x + row * x_row + first + chunk * CHUNK, length(chunk) * 4, &shared.full[chunk]);
    };

    const int64 stride = gridDim.x / CLUSTER;
    int64 row = blockIdx.x / CLUSTER;
    if (thread == 0) {
        for (int i = 0; i < CHUNKS; ++i) barrier_init(&shared.full[i], 1);
        barrier_init(&shared.received, 1);
        barrier_init(&shared.read, CLUSTER);
        fence_barrier_init();
    }
    cluster_sync();
    if (thread == 0 && row < rows)
        for (int i = 0; i < CHUNKS; ++i) load(row, i);

    unsigned parity = 0;
    for (; row < rows; row += stride, parity ^= 1) {
        float maximum = -kInfinity;
#pragma unroll
        for (int i = 0; i < CHUNKS; ++i) {
            barrier_wait(&shared.full[i], parity);
            const auto* const from = reinterpret_cast<const float4*>(shared.values[i]);
            for (int k = thread; k < length(i) / 4; k += BLOCK) {
                const float4 v = from[k];
                maximum = fmaxf(fmaxf(fmaxf(maximum, v.x), fmaxf(v.y, v.z)), v.w);
            }
        }
        maximum = warps_reduce_block(maximum, shared.maxima, Max());

        // A part of only -inf uses shift 0: its sum is then 0, instead of the NaN of -inf - -inf.
        const float shift = online_shift(maximum);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; ++i) {
            auto* const at = reinterpret_cast<float4*>(shared.values[i]);
            for (int k = thread; k < length(i) / 4; k += BLOCK) {
                float4 v = at[k];
                sum += v.x = __expf(v.x - shift), sum += v.y = __expf(v.y - shift);
                sum += v.z = __expf(v.z - shift), sum += v.w = __expf(v.w - shift);
                at[k] = v;
            }
        }
        sum = warps_reduce_block(sum, shared.sums, Sum());

        if (thread == 0) barrier_arrive_expect(&shared.received, CLUSTER * sizeof(Online));
        if (thread < CLUSTER) {
            barrier_wait<true>(&shared.read, parity ^ 1);  // all blocks have read the last row's part
            store_async(&shared.parts[rank], {maximum, sum}, &shared.received, thread);
        }
        barrier_wait<true>(&shared.received, parity);
        Online total = online_empty();
#pragma unroll
        for (int i = 0; i < CLUSTER; ++i) total = online_merge(total, shared.parts[i]);
        // A part of only -inf becomes 0 if the row has other elements, or NaN if the row's sum is NaN. In a row of only
        // -inf the exponential is NaN, as defined.
        const bool nothing = maximum == -kInfinity && total.maximum > -kInfinity;
        const float scale = nothing ? 0.0f * total.sum : expf(maximum - total.maximum) / total.sum;

#pragma unroll
        for (int i = 0; i < CHUNKS; ++i) {
            auto* const at = reinterpret_cast<float4*>(shared.values[i]);
            for (int k = thread; k < length(i) / 4; k += BLOCK) {
                const float4 v = at[k];
                at[k] = make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale);
            }
            fence_async_shared();
            __syncthreads();  // the chunk is complete; in the first one, all threads have read the parts
            if (i == 0 && thread < CLUSTER) barrier_arrive_at(&shared.read, thread);
            if (thread == 0) {
                if (length(i) > 0) bulk_store(y + row * y_row + first + i * CHUNK, shared.values[i], length(i) * 4);
                bulk_commit();
            }
        }
        if (thread == 0 && row + stride < rows) refill<CHUNKS>(load, row + stride);
    }
    if (thread == 0) {
        bulk_wait_read<0>();                           // shared memory must exist until it is read,
        barrier_wait<true>(&shared.read, parity ^ 1);  // and until the last signal of the others has arrived
    }
}
