// 3 x 3 Gaussian blur, (1 2 1; 2 4 2; 1 2 1) / 16, of a batch of images, one pixel a thread.
//
// x, y: (images, rows, cols), strides in floats; y does not lie over x. The batch is one launch: images are counted
// along with the pixels, so there may be more than the 65,535 of a grid's z.
//
// Bound by: nine loads a pixel, all but one from the L1. The next rung loads a pixel once a block.
#include "border.cuh"

// grid: any, any 1-D block: it strides over the pixels
template <int BORDER>
__global__ void naive(const float* x, float* y, int64 images, int64 rows, int64 cols, int64 x_image, int64 x_row,
    int64 x_col, int64 y_image, int64 y_row, int64 y_col) {
    const int64 pixels = images * rows * cols;
#pragma unroll 1
    for (int64 i = global_thread(); i < pixels; i += global_threads()) {
        const int64 c = i % cols, r = i / cols % rows, image = i / cols / rows;
        const float* from = x + image * x_image;
        const auto at = [&](int dr, int dc) { return element<BORDER>(from, r + dr, c + dc, rows, cols, x_row, x_col); };
        const auto across = [&](int dr) { return 0.25f * at(dr, -1) + 0.5f * at(dr, 0) + 0.25f * at(dr, 1); };
        y[image * y_image + r * y_row + c * y_col] = 0.25f * across(-1) + 0.5f * across(0) + 0.25f * across(1);
    }
}
