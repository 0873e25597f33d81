// Attention in three kernels, one per step of its definition: scores, their softmax, the weighted sum of values.
//
// Parameters as in problem.cuh, elements float, half or bfloat16; scores: (batch * heads * sq, skv) floats of scratch.
// One block per query in each kernel.
//
// Bottleneck: the L1 data path, because neighbouring threads of the first kernel read different rows of k. The scores
// have skv / d times the size of the inputs and are written once and read four times; this takes less time. The next
// variant keeps the scores of a few queries in shared memory.
#include "../common/reduce.cuh"
#include "problem.cuh"

// scores[row][j] = scale * q[row] . k[j] for the keys j that the row sees; grid: batch * heads * sq
template <class T>
__global__ void scores(const T* q, const T* k, float* scores, int64 q_batch, int64 q_head, int64 q_row, int64 k_batch,
    int64 k_head, int64 k_row, int heads, int group, int sq, int skv, int d, float scale, int causal) {
    const int row = blockIdx.x % sq;  // 0 .. sq - 1
    const Head head(blockIdx.x / sq, heads, group);
    q = head.queries(q, HeadStrides{q_batch, q_head, q_row}) + row * q_row;
    k = head.keys(k, HeadStrides{k_batch, k_head, k_row});
    for (int j = threadIdx.x; j < keys_seen(row, sq, skv, causal); j += blockDim.x) {
        float sum = 0.0f;
        for (int i = 0; i < d; ++i) sum += static_cast<float>(q[i]) * static_cast<float>(k[j * k_row + i]);
        const int64 first = blockIdx.x * static_cast<int64>(skv);  // of the row's scores
        scores[first + j] = sum * scale;
    }
}

// Replaces each row of scores by its softmax; grid: batch * heads * sq
__global__ void __launch_bounds__(1024) softmax_rows(float* scores, int sq, int skv, int causal) {
    __shared__ float maxima[kWarp], sums[kWarp];
    scores += blockIdx.x * static_cast<int64>(skv);
    const int seen = keys_seen(blockIdx.x % sq, sq, skv, causal);
    float maximum = -kInfinity;
    for (int j = threadIdx.x; j < seen; j += blockDim.x) maximum = fmaxf(maximum, scores[j]);
    maximum = warps_reduce_block(maximum, maxima, Max());
    float sum = 0.0f;
    for (int j = threadIdx.x; j < seen; j += blockDim.x) sum += scores[j] = expf(scores[j] - maximum);
    sum = warps_reduce_block(sum, sums, Sum());
    for (int j = threadIdx.x; j < seen; j += blockDim.x) scores[j] /= sum;
}

// o[row] = sum over j of scores[row][j] * v[j]; grid: batch * heads * sq, block: at least d
template <class T>
__global__ void weigh_values(const float* scores, const T* v, T* o, int64 v_batch, int64 v_head, int64 v_row,
    int64 o_batch, int64 o_head, int64 o_row, int heads, int group, int sq, int skv, int d, int causal) {
    const int row = blockIdx.x % sq;  // 0 .. sq - 1
    const int i = threadIdx.x;        // this thread's column
    if (i >= d) return;
    const Head head(blockIdx.x / sq, heads, group);
    scores += blockIdx.x * static_cast<int64>(skv);
    v = head.keys(v, HeadStrides{v_batch, v_head, v_row}) + i;
    float sum = 0.0f;
    for (int j = 0; j < keys_seen(row, sq, skv, causal); ++j) sum += scores[j] * static_cast<float>(v[j * v_row]);
    (head.queries(o, HeadStrides{o_batch, o_head, o_row}) + row * o_row)[i] = static_cast<T>(sum);
}
