// Row softmax whose reductions are BLAS calls: amax for the maximum, asum for the sum. These kernels are the steps
// between.
//
// amax returns the index of the largest |x|, not of the largest x: in a row with -1000 it would pick the -1000, and exp
// of the difference would overflow. So amax gets two arrays of non-negative keys instead; the first orders the positive
// x, the second orders the others:
//   above = x if x > 0, else 0;   below = the float with the bits of inf minus those of |x| if x <= 0, else 0.
// Both keep the order exactly. If a row has a positive number, the maximum is at the index of the largest `above`,
// otherwise at that of the largest `below`. NaN counts as infinite, so that the row's maximum is NaN.
//
// x and y: (rows, cols) with strides in floats, any for x; keys: (rows, cols), contiguous; y may be x. Each pass moves
// every element once.
//
// Bottleneck: launches. Each row needs a library call per reduction.
#include "../common/numbers.cuh"

// grid: ceil(rows * cols / blockDim.x)
__global__ void blas_keys(
    const float* x, float* above, float* below, int64 x_row, int64 x_col, int64 rows, int64 cols) {
    const int64 i = global_thread();
    if (i >= rows * cols) return;
    const int64 row = i / cols;  // 0 .. rows - 1
    const int64 col = i % cols;  // 0 .. cols - 1
    const float v = x[row * x_row + col * x_col];
    const int size = __float_as_int(v) & 0x7fffffff;
    above[i] = v > 0.0f ? v : isnan(v) ? kInfinity : 0.0f;
    below[i] = v <= 0.0f ? __int_as_float(0x7f800000 - size) : 0.0f;
}

// maxima[r] = the row's maximum, at one of its two candidate indices (counted from 1); grid: ceil(rows / blockDim.x)
__global__ void blas_maxima(const float* x, const int* places_above, const int* places_below, float* maxima,
    int64 x_row, int64 x_col, int64 rows) {
    const int64 row = global_thread();
    if (row >= rows) return;
    const int above = places_above[row] - 1;  // 0 .. cols - 1
    const float high = x[row * x_row + above * x_col];
    const int below = places_below[row] - 1;  // 0 .. cols - 1
    const float low = x[row * x_row + below * x_col];
    maxima[row] = high > 0.0f || isnan(high) ? high : low;
}

// y = exp(x - maximum of the row); grid: ceil(rows * cols / blockDim.x)
__global__ void blas_exponentials(const float* x, float* y, const float* maxima, int64 x_row, int64 x_col, int64 y_row,
    int64 y_col, int64 rows, int64 cols) {
    const int64 i = global_thread();
    if (i >= rows * cols) return;
    const int64 row = i / cols;  // 0 .. rows - 1
    const int64 col = i % cols;  // 0 .. cols - 1
    y[row * y_row + col * y_col] = expf(x[row * x_row + col * x_col] - maxima[row]);
}

// y /= sum of the row; grid: ceil(rows * cols / blockDim.x)
__global__ void blas_quotients(float* y, const float* sums, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    const int64 i = global_thread();
    if (i >= rows * cols) return;
    const int64 row = i / cols;  // 0 .. rows - 1
    const int64 col = i % cols;  // 0 .. cols - 1
    y[row * y_row + col * y_col] /= sums[row];
}
