// The square of a 16x16 tile by wmma; the block's two warps fill half the tile each. Wrong: there is no barrier before
// the first warp loads it.
// x, y: (16, 16); one block of 64
#include <cuda_fp16.h>
#include <mma.h>

template <bool BARRIER>
__device__ __forceinline__ void square(const __half* x, float* y) {
    __shared__ alignas(32) __half tile[256];
    for (int i = threadIdx.x; i < 256; i += 64) tile[i] = x[i];  // OTHER
    if (BARRIER) __syncthreads();
    if (threadIdx.x >= 32) return;
    using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::fill_fragment(c, 0.0f);
    __syncwarp();
    wmma::load_matrix_sync(a, tile, 16);  // BUG
    wmma::load_matrix_sync(b, tile, 16);  // BUG
    wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync(y, c, 16, wmma::mem_row_major);
}

__global__ void wrong(const __half* x, float* y) {
    square<false>(x, y);
}

__global__ void right(const __half* x, float* y) {
    square<true>(x, y);
}
