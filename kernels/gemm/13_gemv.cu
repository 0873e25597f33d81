// fp32 product of a matrix A and at most SMALL columns: A is read once, at memory bandwidth.
//
// Parameters as in 01_naive_uncoalesced.cu, n <= SMALL. A product with few rows is passed as its transpose, D^T = B^T *
// A^T. Tiles of 64 or 128 columns would mostly multiply zeros. The product has only 2 * n
// operations per 4 bytes of A and needs no tiles: it is a matrix-vector product for n vectors at once.
//
// gemv_rows is for an A with contiguous rows (and takes any strides). A warp takes ROWS rows, and its lanes read along
// k 16 bytes at a time. B is transposed in shared memory, one piece of k after another, so that its reads are also 16
// bytes. A single column is read directly: waiting for it at a barrier would delay the loads of A.
//
// gemv_columns is for an A with contiguous columns. Lanes take neighbouring rows; the block's warps share k. Each warp
// loads a piece of B at a time to shared memory; all lanes read the same address. The warps' sums are added in
// shared memory.
//
// Bottleneck: memory bandwidth for one or two columns, 4 bytes of A per 2 * n operations; for 8, the wait for the
// pieces of B, which are not loaded ahead.
#include "../common/reduce.cuh"
#include "output.cuh"

// grid: ceil(m / (8 * ROWS)) * batches, block: 256
template <int SMALL, int ROWS, int VEC>
__global__ void __launch_bounds__(256) gemv_rows(const float* a, const float* b, const float* c, float* d, int64 a_row,
    int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col, int64 c_batch,
    int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha, float beta) {
    constexpr int kWarps = 8, kThreads = kWarps * kWarp, kChunk = 8192 / SMALL;
    // 4 floats of padding per column: each column's piece is still 16-byte aligned, and neighbouring columns use other
    // banks
    __shared__ __align__(16) float columns[SMALL > 1 ? SMALL : 1][SMALL > 1 ? kChunk + 4 : 1];
    const int lane = threadIdx.x % kWarp;  // 0 .. 31
    const int warp = threadIdx.x / kWarp;  // 0 .. 7
    const BlockTile<kWarps * ROWS, SMALL> tile(m, n);
    const int64 row = tile.m0 + warp * ROWS;  // the warp's first row
    float sums[ROWS][SMALL] = {};
    for (int64 k0 = 0; k0 < k; k0 += kChunk) {
        const int count = static_cast<int>(k - k0 < kChunk ? k - k0 : kChunk);
        const float* of_b = b + tile.batch * b_batch + k0 * b_row;
        if constexpr (SMALL > 1) {
            const int padded = (count + VEC - 1) / VEC * VEC;
            __syncthreads();  // all reads of the previous piece are done
#pragma unroll 4
            for (int at = threadIdx.x; at < padded * SMALL; at += kThreads) {
                const int i = at / SMALL;  // 0 .. padded - 1, from k0 on
                const int j = at % SMALL;  // 0 .. SMALL - 1
                columns[j][i] = j < n && i < count ? of_b[i * b_row + j * b_col] : 0.0f;
            }
            __syncthreads();
        }
#pragma unroll 4
        for (int i = lane * VEC; i < count; i += kWarp * VEC) {
            float values[ROWS][VEC];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float* from = a + tile.batch * a_batch + (row + r) * a_row + (k0 + i) * a_col;
                if constexpr (VEC == 4) {
                    const float4 v = row + r < m ? *reinterpret_cast<const float4*>(from) : float4{};
                    values[r][0] = v.x, values[r][1] = v.y, values[r][2] = v.z, values[r][3] = v.w;
                } else {
                    values[r][0] = row + r < m ? *from : 0.0f;
                }
            }
#pragma unroll
            for (int j = 0; j < SMALL; ++j)
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    const float of_column = SMALL > 1 ? columns[j][i + e] : of_b[(i + e) * b_row];
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) sums[r][j] = fmaf(values[r][e], of_column, sums[r][j]);
                }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int j = 0; j < SMALL; ++j) {
            const float sum = lanes_reduce<kWarp>(sums[r][j], Sum());
            if (lane == 0 && row + r < m && j < n) {
                const float* of_c = c + tile.batch * c_batch + (row + r) * c_row + j * c_col;
                d[tile.batch * d_batch + (row + r) * d_row + j * d_col] = combined(sum, alpha, beta, of_c);
            }
        }
}

// grid: ceil(m / (32 * VEC)) * batches, block: 32 * WARPS
template <int SMALL, int WARPS, int VEC>
__global__ void __launch_bounds__(WARPS* kWarp) gemv_columns(const float* a, const float* b, const float* c, float* d,
    int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col,
    int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha,
    float beta) {
    constexpr int kRows = kWarp * VEC, kPiece = kWarp / VEC;
    static_assert(WARPS * kWarp >= kRows, "a thread for every row of the block");
    __shared__ float parts[WARPS][kRows];
    __shared__ __align__(16) float pieces[WARPS][kPiece][SMALL];
    const int lane = threadIdx.x % kWarp;  // 0 .. 31
    const int warp = threadIdx.x / kWarp;  // 0 .. WARPS - 1
    const BlockTile<kRows, SMALL> tile(m, n);
    const int64 row = tile.m0 + lane * VEC;  // the lane's first row
    // The warp's k: [begin, end)
    const int64 share = (k + WARPS - 1) / WARPS;
    const int64 begin = warp * share;
    const int64 end = begin + share < k ? begin + share : k;
    const float* of_a = a + tile.batch * a_batch + row * a_row;
    const float* of_b = b + tile.batch * b_batch;
    float sums[SMALL][VEC] = {};
    for (int64 k0 = begin; k0 < end; k0 += kPiece) {
        const int count = static_cast<int>(end - k0 < kPiece ? end - k0 : kPiece);
        float values[kPiece][VEC], of_columns[SMALL];  // all loads in flight before the first use
#pragma unroll
        for (int i = 0; i < kPiece; ++i) {
            const bool inside = i < count && row < m;
            const float* from = of_a + (k0 + i) * a_col;
            if constexpr (VEC == 4) {
                const float4 v = inside ? *reinterpret_cast<const float4*>(from) : float4{};
                values[i][0] = v.x, values[i][1] = v.y, values[i][2] = v.z, values[i][3] = v.w;
            } else {
                values[i][0] = inside ? *from : 0.0f;
            }
        }
#pragma unroll
        for (int j = 0; j < SMALL; ++j)
            of_columns[j] = lane < count && j < n ? of_b[(k0 + lane) * b_row + j * b_col] : 0.0f;
        __syncwarp();  // all reads of the previous piece are done
#pragma unroll
        for (int j = 0; j < SMALL; ++j)
            if (lane < kPiece) pieces[warp][lane][j] = of_columns[j];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kPiece; ++i)
#pragma unroll
            for (int j = 0; j < SMALL; ++j)
#pragma unroll
                for (int e = 0; e < VEC; ++e) sums[j][e] = fmaf(values[i][e], pieces[warp][i][j], sums[j][e]);
    }
#pragma unroll
    for (int j = 0; j < SMALL; ++j) {
#pragma unroll
        for (int e = 0; e < VEC; ++e) parts[warp][lane * VEC + e] = sums[j][e];
        __syncthreads();
        if (threadIdx.x < kRows && tile.m0 + threadIdx.x < m && j < n) {
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) sum += parts[w][threadIdx.x];
            const int64 r = tile.m0 + threadIdx.x;
            const float* of_c = c + tile.batch * c_batch + r * c_row + j * c_col;
            d[tile.batch * d_batch + r * d_row + j * d_col] = combined(sum, alpha, beta, of_c);
        }
        __syncthreads();
    }
}
