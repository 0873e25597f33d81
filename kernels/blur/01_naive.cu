// 3 x 3 Gaussian blur, (1 2 1; 2 4 2; 1 2 1) / 16, of a batch of images, one thread per pixel.
//
// x, y: (images, rows, cols), strides in floats; y must not overlap x. One launch handles the batch: a flat index
// counts images too, so there may be more than the 65,535 of a grid's z.
//
// Bottleneck: nine loads per pixel, of which eight hit L1. The next variant loads each pixel once per block.
#include "border.cuh"

// grid: any, any 1-D block (grid-stride loop over the pixels)
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
