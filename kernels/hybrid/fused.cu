// The hybrid filter in three launches, on Fourier transforms of our own: rows forward, with the threshold in the load;
// columns forward, filter, columns inverse; rows inverse, with the normalisation in the store. Memory is accessed six
// times instead of the fourteen of two real transforms by a library with separate steps.
//
// images: (batch, rows, cols) floats, contiguous; pairs aligned if cols is even. spectra: (batch, rows, pitch) complex
// numbers, of which the first cols / 2 + 1 per row are used, since the others are their conjugates. A pitch that is a
// multiple of 16 makes the accesses of the second launch whole 128-byte lines.
//
// A Plan (../fft/passes.cuh) has the threads per row, the rows per block and the radices; for even cols, the N of a
// row's plan is cols / 2. Dynamic shared memory: P::SHARED complex numbers; in the second launch, the maximum of both
// plans.
//
// Bottleneck: memory bandwidth; for few images, the latency of a block.
#include "steps.cuh"

extern __shared__ float2 exchanged[];

// spectra = transforms of the rows of before(images). count: batch * rows
template <class P, bool EVEN, class BEFORE, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) rows_to_spectra(
    const float* images, float2* spectra, long long count, long long pitch, BEFORE before) {
    const Group<P> group(exchanged);
    const long long row = static_cast<long long>(blockIdx.x) * P::ROWS + group.row;
    row_to_spectrum<P, EVEN>(
        group, images + row * RealRow<EVEN>::inputs(P::N), spectra + row * pitch, row < count, before);
}

// spectra = inverse transforms of filter * transforms of the columns, unscaled. BACK: P with its radices in reverse.
// half: the columns, cols / 2 + 1.
template <class P, class BACK, class FILTER, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) filter_columns(
    float2* spectra, int half, int cols, long long pitch, FILTER filter) {
    const unsigned blocks = (half + P::ROWS - 1) / P::ROWS;
    const int col = static_cast<int>(blockIdx.x % blocks) * P::ROWS + Group<P>(exchanged).row;
    float2* column = spectra + static_cast<long long>(blockIdx.x / blocks) * P::N * pitch + col;
    const float u = static_cast<float>(col) / static_cast<float>(cols);
    filter_column<P, BACK, false>(exchanged, column, pitch, col < half, u, filter);
}

// images = scale * inverse transforms of the rows of spectra; scale is 1 / (rows * cols) to normalise.
template <class P, bool EVEN, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) spectra_to_rows(
    const float2* spectra, float* images, long long count, long long pitch, float scale) {
    const Group<P> group(exchanged);
    const long long row = static_cast<long long>(blockIdx.x) * P::ROWS + group.row;
    spectrum_to_row<P, EVEN, false>(
        group, spectra + row * pitch, images + row * RealRow<EVEN>::inputs(P::N), row < count, scale);
}
