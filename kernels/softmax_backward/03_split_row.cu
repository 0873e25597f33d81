// Gradient of row softmax or log-softmax for long rows: the blocks of a cluster share a row, each holds its part of
// both arrays in registers, and each element is read once.
//
// Parameters in rows.cuh, with grad_col = y_col = out_col = 1, 16-byte aligned rows and cols a multiple of VEC. CLUSTER
// blocks of BLOCK threads share a row; each thread holds HELD pieces of VEC elements of grad and of y. CLUSTER * BLOCK
// * HELD * VEC is at least cols.
//
// The blocks exchange the sums of their parts once per row, through distributed shared memory.
//
// Bottleneck: memory bandwidth, as in 02. Rows too long for a cluster are read twice.
#include <cooperative_groups.h>

#include "rows.cuh"

namespace cg = cooperative_groups;

// grad, y, out: (rows, cols); grid: rows * CLUSTER, cluster: CLUSTER, block: BLOCK
template <class T, bool LOG, int BLOCK, int CLUSTER, int HELD, int VEC>
__global__ void __launch_bounds__(BLOCK) split_row(const T* grad, const T* y, T* out, int64 grad_row, int64 grad_col,
    int64 y_row, int64 y_col, int64 out_row, int64 out_col, int64 rows, int64 cols, float scale) {
    static_assert(BLOCK % kWarp == 0, "whole warps");
    __shared__ float sums[kWarp];
    __shared__ float mine;

    const cg::cluster_group cluster = cg::this_cluster();
    const int64 row = blockIdx.x / CLUSTER;                   // 0 .. rows - 1
    const int part = static_cast<int>(cluster.block_rank());  // 0 .. CLUSTER - 1
    grad += row * grad_row;
    y += row * y_row;
    out += row * out_row;
    // The first column of this thread's piece i. Neighbouring threads of the cluster take neighbouring pieces.
    const auto column = [&](int i) {
        const int64 stretch = static_cast<int64>(i) * CLUSTER + part;  // of BLOCK pieces
        return (stretch * BLOCK + threadIdx.x) * VEC;
    };

    Pack<T, VEC> grads[HELD] = {}, values[HELD] = {};  // 0 past the row: adds nothing to the sum
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        if (column(i) >= cols) continue;
        grads[i] = *reinterpret_cast<const Pack<T, VEC>*>(grad + column(i));
        values[i] = *reinterpret_cast<const Pack<T, VEC>*>(y + column(i));
    }

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        add_terms<LOG>(sum, grads[i], values[i]);
        forget_conversions(grads[i]);
        forget_conversions(values[i]);
    }
    sum = warps_reduce_block(sum, sums, Sum());

    if (threadIdx.x == 0) mine = sum;
    cluster.sync();
    sum = 0.0f;
#pragma unroll
    for (int other = 0; other < CLUSTER; ++other) sum += *cluster.map_shared_rank(&mine, other);
    cluster.sync();  // no block may exit while another reads its shared memory

#pragma unroll
    for (int i = 0; i < HELD; ++i)
        if (column(i) < cols) store(out + column(i), gradient<LOG>(grads[i], values[i], sum, scale));
}
