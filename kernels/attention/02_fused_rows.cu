// Attention in one kernel: the scores of a block's ROWS queries stay in shared memory; keys and values are loaded in
// tiles.
//
// Parameters as in problem.cuh, elements float, half or bfloat16. One warp per query. Shared memory, in floats: ROWS x
// d queries, a tile of KEYS x (d + 1) keys or values, ROWS x skv scores. Tile rows are padded by one float, so that the
// lanes of a warp, each with its own key, read different banks.
//
// Bottleneck: shared memory, two reads per multiply-add. Also, a block's shared memory limits skv. The next variant
// stores no scores and multiplies from registers.
#include "../common/reduce.cuh"
#include "problem.cuh"

constexpr int kKeys = kWarp;  // keys per tile: one per lane

// q, o: (batch, heads, sq, d); k, v: (batch, heads / group, skv, d); grid: all heads x blocks of queries
template <class T, int ROWS>
__global__ void __launch_bounds__(ROWS* kWarp) fused_rows(const T* q, const T* k, const T* v, T* o, int64 q_batch,
    int64 q_head, int64 q_row, int64 k_batch, int64 k_head, int64 k_row, int64 v_batch, int64 v_head, int64 v_row,
    int64 o_batch, int64 o_head, int64 o_row, int batches, int heads, int group, int sq, int skv, int d, float scale,
    int causal) {
    extern __shared__ float shared[];
    float* const queries = shared;
    float* const tile = queries + ROWS * d;
    float* const scores = tile + kKeys * (d + 1);
    const int blocks = (sq + ROWS - 1) / ROWS;         // of a head
    const int first_row = blockIdx.x % blocks * ROWS;  // 0 .. sq - 1
    const int lane = threadIdx.x % kWarp;              // 0 .. 31
    const int warp = threadIdx.x / kWarp;              // 0 .. ROWS - 1
    const int row = first_row + warp;                  // the warp's query; may be past the last
    const Head head(blockIdx.x / blocks, heads, group);
    q = head.queries(q, HeadStrides{q_batch, q_head, q_row});
    k = head.keys(k, HeadStrides{k_batch, k_head, k_row});
    v = head.keys(v, HeadStrides{v_batch, v_head, v_row});
    const int seen = keys_seen(row, sq, skv, causal);                            // by this warp's query
    const int most = keys_seen(min(first_row + ROWS, sq) - 1, sq, skv, causal);  // by any of the block's
    const auto load = [&](const T* from, int64 step, int first) {
        for (int i = threadIdx.x; i < kKeys * d; i += blockDim.x) {
            const int key = i / d;  // 0 .. kKeys - 1
            if (first + key >= skv) continue;
            const int column = i % d;  // 0 .. d - 1
            tile[key * (d + 1) + column] = static_cast<float>(from[(first + key) * step + column]);
        }
        __syncthreads();
    };

    for (int i = lane; i < d && row < sq; i += kWarp) queries[warp * d + i] = static_cast<float>(q[row * q_row + i]);
    for (int first = 0; first < most; first += kKeys) {
        load(k, k_row, first);
        if (row < sq && first + lane < seen) {
            float sum = 0.0f;
            for (int i = 0; i < d; ++i) sum += queries[warp * d + i] * tile[lane * (d + 1) + i];
            scores[warp * skv + first + lane] = sum * scale;
        }
        __syncthreads();
    }

    float maximum = -kInfinity, sum = 0.0f;
    if (row < sq) {
        for (int j = lane; j < seen; j += kWarp) maximum = fmaxf(maximum, scores[warp * skv + j]);
        maximum = lanes_reduce<kWarp>(maximum, Max());
        for (int j = lane; j < seen; j += kWarp) sum += scores[warp * skv + j] = expf(scores[warp * skv + j] - maximum);
        sum = lanes_reduce<kWarp>(sum, Sum());
        __syncwarp();
    }

    float out[8] = {};  // columns lane, lane + 32, ... of the query: d is at most 256
    for (int first = 0; first < most; first += kKeys) {
        load(v, v_row, first);
        for (int j = first; j < min(seen, first + kKeys) && row < sq; ++j) {
            const float weight = scores[warp * skv + j];
            const int key = j - first;  // 0 .. kKeys - 1
#pragma unroll
            for (int c = 0; c < 8; ++c)
                if (lane + c * kWarp < d) out[c] += weight * tile[key * (d + 1) + lane + c * kWarp];
        }
        __syncthreads();
    }
    if (row >= sq) return;
    o = head.queries(o, HeadStrides{o_batch, o_head, o_row}) + row * o_row;
    const float factor = seen > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        const int column = lane + c * kWarp;  // 0 .. 255
        if (column < d) o[column] = static_cast<T>(out[c] * factor);
    }
}
