// Copies an operand of a large product to the layout that the inner loop reads fastest: [k][line], with 16-byte aligned
// rows. The product itself is 11_stream_k.cu, or gemm_half/04_pipelined.cu for half and bfloat16.
//
// from: `lines` x k, any strides, `batches` of them; to: k rows of `pitch` elements for each batch. pitch is at least
// `lines` and a multiple of 16 bytes; elements after the last line are zero.
//
// Improvement: 4 accesses per tile in the inner loop, instead of 20 if the operand is contiguous along k, or 16 if it
// is not aligned. Transposing once in memory moves 8 bytes per element, which takes 0.6 % of the time of a product of
// 8192, and 1.2 % at 4096.
//
// Bottleneck: memory bandwidth; 32 x 32 tiles go through shared memory, padded against bank conflicts.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../common/numbers.cuh"

constexpr int kTile = 32, kRows = 4;

// ALONG_K: reads run along k, otherwise along the lines. grid: (any, 1, batches up to 65,535), block: (32, 4)
template <class T, bool ALONG_K>
__global__ void __launch_bounds__(kTile* kRows) pack(const T* from, T* to, int64 line_stride, int64 k_stride,
    int64 batch_stride, int64 lines, int64 k, int64 pitch, int64 batches) {
    __shared__ T tile[kTile][kTile + 4 / sizeof(T)];
    const int64 across = (pitch + kTile - 1) / kTile;  // tiles along the lines
    const int64 down = (k + kTile - 1) / kTile;        // tiles along k
    const int64 tiles = across * down;
    for (int64 z = blockIdx.z; z < batches; z += gridDim.z)
        for (int64 t = blockIdx.x; t < tiles; t += gridDim.x) {
            const int64 line0 = t % across * kTile;  // 0 .. pitch - 1
            const int64 k0 = t / across * kTile;     // 0 .. k - 1
#pragma unroll
            for (int i = 0; i < kTile; i += kRows) {
                const int fast = threadIdx.x;                 // 0 .. 31
                const int slow = threadIdx.y + i;             // 0 .. 31
                const int tile_line = ALONG_K ? slow : fast;  // neighbouring lanes read neighbouring elements
                const int tile_k = ALONG_K ? fast : slow;
                const int64 line = line0 + tile_line;
                const int64 at = k0 + tile_k;
                T value = static_cast<T>(0.0f);
                if (line < lines && at < k) value = from[z * batch_stride + line * line_stride + at * k_stride];
                tile[tile_k][tile_line] = value;
            }
            __syncthreads();
#pragma unroll
            for (int i = 0; i < kTile; i += kRows) {
                const int64 line = line0 + threadIdx.x;
                const int64 at = k0 + threadIdx.y + i;
                if (line < pitch && at < k) to[(z * k + at) * pitch + line] = tile[threadIdx.y + i][threadIdx.x];
            }
            __syncthreads();  // before the tile is filled again
        }
}
