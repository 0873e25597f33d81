// Row softmax for few rows of any length and any strides: CHUNKS blocks share a row, in two launches.
//
// Parameters as in 01_thread_per_row.cu; `parts`: scratch for rows * CHUNKS pairs. The first kernel writes the maximum
// and the sum of each chunk of a row. The second merges the pairs of its row and writes its chunk. The second kernel
// takes the chunks in reverse order, so that it starts with data the first has left in L2.
//
// Bottleneck: memory bandwidth; x is read twice, 12 bytes per element unless it is in L2.
#include "../common/online.cuh"
#include "../common/reduce.cuh"
#include "../common/row_vec4.cuh"

// A block's part of a row: `length` floats from `first`; `length` is a multiple of 4, except in the last chunk.
struct Chunk {
    int64 row, first, length;

    __device__ __forceinline__ Chunk(int64 index, int64 cols, int chunks) {
        const int64 share = (cols + chunks - 1) / chunks;
        const int64 each = (share + 3) / 4 * 4;
        row = index / chunks;           // 0 .. rows - 1
        first = index % chunks * each;  // may be past the row's end
        length = first >= cols ? 0 : first + each < cols ? each : cols - first;
    }
};

__device__ __forceinline__ Online reduce_pairs(Online share, float* maxima, float* sums) {
    const float maximum = warps_reduce_block(share.maximum, maxima, Max());
    const float shift = online_shift(maximum);
    return {maximum, warps_reduce_block(share.sum * expf(share.maximum - shift), sums, Sum())};
}

// grid: rows * CHUNKS, block: a multiple of 32
template <int CHUNKS>
__global__ void __launch_bounds__(1024) chunk_sums(
    const float* x, Online* parts, int64 x_row, int64 x_col, int64 rows, int64 cols) {
    __shared__ float maxima[kWarp], sums[kWarp];
    const Chunk chunk(blockIdx.x, cols, CHUNKS);
    x += chunk.row * x_row + chunk.first * x_col;
    Online share = online_empty();
    for_each_in_row(x, x_col, chunk.length, [&](float v) { share = online_add(share, v); });
    const Online total = reduce_pairs(share, maxima, sums);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// grid: rows * CHUNKS, block: a multiple of 32
template <int CHUNKS>
__global__ void __launch_bounds__(1024) chunk_scale(const float* x, float* y, const Online* parts, int64 x_row,
    int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    __shared__ float maxima[kWarp], sums[kWarp];
    const Chunk chunk(gridDim.x - 1 - blockIdx.x, cols, CHUNKS);
    Online share = online_empty();
    for (int i = threadIdx.x; i < CHUNKS; i += blockDim.x) share = online_merge(share, parts[chunk.row * CHUNKS + i]);
    const Online total = reduce_pairs(share, maxima, sums);
    const float scale = 1.0f / total.sum;
    x += chunk.row * x_row + chunk.first * x_col;
    y += chunk.row * y_row + chunk.first * y_col;
    map_row(x, x_col, y, y_col, chunk.length, [&](float v) { return expf(v - total.maximum) * scale; });
}
