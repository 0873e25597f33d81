// Brings an operand of a large fp32 product to the form that the inner loop reads fastest: [k][line], rows on 16-byte
// boundaries. The product itself is 11_stream_k.cu's.
//
// from: `lines` x k, any strides; to: k rows of `pitch` floats, pitch a multiple of 4 and at least `lines`; what is
// behind the last line is zero.
//
// What it adds: an operand that lies along k costs the inner loop 20 accesses a tile instead of 4, one that is not
// aligned 16. Turning it once in memory costs 8 bytes an element, which is read 128 / BN times less often than the
// inner loop reads it: 0.6 % of a product of 8192, 1.2 % at 4096.
//
// Bound by: memory; a 32 x 32 tile goes through shared memory, with a column of padding against bank conflicts.
#include "../common/numbers.cuh"

constexpr int kTile = 32, kRows = 8;

// ALONG_K: reads run along k, otherwise along the lines. grid: any, block: (32, 8)
template <bool ALONG_K>
__global__ void __launch_bounds__(kTile* kRows) pack(
    const float* from, float* to, int64 line_stride, int64 k_stride, int64 lines, int64 k, int64 pitch) {
    __shared__ float tile[kTile][kTile + 1];
    const int64 across = (pitch + kTile - 1) / kTile, tiles = across * ((k + kTile - 1) / kTile);
    for (int64 t = blockIdx.x; t < tiles; t += gridDim.x) {
        const int64 line0 = t % across * kTile, k0 = t / across * kTile;
#pragma unroll
        for (int i = 0; i < kTile; i += kRows) {
            const int fast = threadIdx.x, slow = threadIdx.y + i;
            const int64 line = line0 + (ALONG_K ? slow : fast), at = k0 + (ALONG_K ? fast : slow);
            float value = 0.0f;
            if (line < lines && at < k) value = from[line * line_stride + at * k_stride];
            tile[ALONG_K ? fast : slow][ALONG_K ? slow : fast] = value;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kTile; i += kRows) {
            const int64 line = line0 + threadIdx.x, at = k0 + threadIdx.y + i;
            if (line < pitch && at < k) to[at * pitch + line] = tile[threadIdx.y + i][threadIdx.x];
        }
        __syncthreads();  // before the tile is filled again
    }
}
