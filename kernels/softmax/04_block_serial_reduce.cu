// Row softmax, one block per row: each thread reduces a strided share of the row, then thread 0 combines the shares.
//
// Parameters as in 01_thread_per_row.cu. BLOCK is both the largest block and the length of the shared array: with an
// array of 256 and a block of 512, threads 256 and up would write out of bounds.
//
// Bottleneck: thread 0's serial loop, for which BLOCK - 1 threads wait, twice per row. The next variant uses a tree.
#include "../common/reduce.cuh"
#include "../common/row_strided.cuh"

template <class Op>
__device__ float serial_reduce_block(float value, float* partial, Op op) {
    partial[threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.x == 0)
        for (unsigned i = 1; i < blockDim.x; ++i) partial[0] = op(partial[0], partial[i]);
    __syncthreads();
    const float result = partial[0];
    __syncthreads();  // before the caller fills partial again
    return result;
}

// x, y: (rows, cols); grid: rows, block: at most BLOCK
template <int BLOCK>
__global__ void __launch_bounds__(BLOCK) block_serial_reduce(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    static_assert(BLOCK % kWarp == 0 && BLOCK <= 1024, "whole warps, at most 1024 threads");
    __shared__ float partial[BLOCK];
    x += blockIdx.x * x_row;
    y += blockIdx.x * y_row;

    float maximum = -kInfinity;
    for_each_strided(x, x_col, cols, [&](float v) { maximum = fmaxf(maximum, v); });
    maximum = serial_reduce_block(maximum, partial, Max());

    float sum = 0.0f;
    for_each_strided(x, x_col, cols, [&](float v) { sum += expf(v - maximum); });
    sum = serial_reduce_block(sum, partial, Sum());

    map_strided(x, x_col, y, y_col, cols, [&](float v) { return expf(v - maximum) / sum; });
}
