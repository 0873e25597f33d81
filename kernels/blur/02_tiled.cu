// 3 x 3 Gaussian blur, one block per tile of 32 x 16 pixels, with the tile and its halo in shared memory.
//
// Parameters as in 01_naive.cu. All 34 x 18 elements are loaded, including the halo's four corners, which are easily
// forgotten if only edge threads load the halo. Elements outside the image must be set too.
//
// Bottleneck: the barrier, and nine shared-memory loads per pixel. The next variant keeps rows in registers.
#include "border.cuh"

constexpr int kWide = 32, kHigh = 16;

// grid: tiles of all images, in order, block: (32, 16)
template <int BORDER>
__global__ void __launch_bounds__(kWide* kHigh) tiled(const float* x, float* y, int64 images, int64 rows, int64 cols,
    int64 x_image, int64 x_row, int64 x_col, int64 y_image, int64 y_row, int64 y_col) {
    __shared__ float tile[kHigh + 2][kWide + 2];
    const int64 across = (cols + kWide - 1) / kWide, down = (rows + kHigh - 1) / kHigh;
    const int64 c0 = blockIdx.x % across * kWide, r0 = blockIdx.x / across % down * kHigh;
    const int64 image = blockIdx.x / across / down;
    x += image * x_image;
    for (int i = threadIdx.y * kWide + threadIdx.x; i < (kHigh + 2) * (kWide + 2); i += kWide * kHigh) {
        const int r = i / (kWide + 2), c = i % (kWide + 2);
        // nothing is read past the last tile's halo
        const bool near = r0 + r - 1 <= rows && c0 + c - 1 <= cols;
        tile[r][c] = near ? element<BORDER>(x, r0 + r - 1, c0 + c - 1, rows, cols, x_row, x_col) : 0.0f;
    }
    __syncthreads();
    const int64 r = r0 + threadIdx.y, c = c0 + threadIdx.x;
    if (r >= rows || c >= cols) return;
    const auto over = [&](int row) {
        const float* at = &tile[row][threadIdx.x];
        return 0.25f * at[0] + 0.5f * at[1] + 0.25f * at[2];
    };
    const float sum = 0.25f * over(threadIdx.y) + 0.5f * over(threadIdx.y + 1) + 0.25f * over(threadIdx.y + 2);
    y[image * y_image + r * y_row + c * y_col] = sum;
}
