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
#include "../fft/rows.cuh"
#include "../fft/storage.cuh"

extern __shared__ float2 exchanged[];

// The element-wise step before the transforms: a value equal to the cut stays, and so does NaN, as in ops.threshold.
struct Threshold {
    float cut;
    __device__ float operator()(float x) const { return x < cut ? 0.0f : x; }
};

// The gain at a frequency: v along the columns, u along the rows, in cycles per pixel. A filter of your own may return
// a complex gain, too; for a real result, the gains at (v, u) and (-v, -u) must be conjugates. u is never negative
// here.
struct LowPass {
    float cutoff;
    __device__ float operator()(float v, float u) const {
        const float d2 = (u * u + v * v) * (1.0f / (cutoff * cutoff));
        return 1.0f / (1.0f + d2 * d2);
    }
};

// spectra = transforms of the rows of before(images). count: batch * rows
template <class P, bool EVEN, class BEFORE, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) rows_to_spectra(
    const float* images, float2* spectra, long long count, long long pitch, BEFORE before) {
    constexpr int COLS = RealRow<EVEN>::inputs(P::N);
    const Group<P> group(exchanged);
    const long long row = static_cast<long long>(blockIdx.x) * P::ROWS + group.row;
    const bool inside = row < count;
    const float* from = images + row * COLS;
    float2* to = spectra + row * pitch;
    RealRow<EVEN>::template run<P>(
        group,
        [&](int i) {
            if constexpr (EVEN) {
                const float2 x = inside ? pair<ALIGNED_PAIRS>(from, i, 1) : float2{};
                return float2{before(x.x), before(x.y)};
            } else {
                return before(inside ? from[i] : 0.0f);
            }
        },
        [&](int k, float2 z) {
            if (inside) to[k] = z;
        });
}

// spectra = inverse transforms of filter * transforms of the columns, unscaled. BACK: P with its radices in reverse.
// Then the values that a thread has after the transform are those with which it begins the inverse one: they stay in
// registers. half: the columns, cols / 2 + 1.
template <class P, class BACK, class FILTER, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) filter_columns(
    float2* spectra, int half, int cols, long long pitch, FILTER filter) {
    constexpr int R = P::radix(P::PASSES - 1), STEP = P::N / R, EACH = P::each_thread(P::PASSES - 1);
    static_assert(P::COLUMNS && BACK::COLUMNS && BACK::N == P::N && BACK::ROWS == P::ROWS, "both are of the columns");
    static_assert(BACK::THREADS == P::THREADS && BACK::radix(0) == R, "each thread keeps its values");

    const Group<P> group(exchanged);
    const Group<BACK> back(exchanged);
    const unsigned blocks = (half + P::ROWS - 1) / P::ROWS;
    const int col = static_cast<int>(blockIdx.x % blocks) * P::ROWS + group.row;
    const bool inside = col < half;
    float2* column = spectra + static_cast<long long>(blockIdx.x / blocks) * P::N * pitch + col;
    const float u = static_cast<float>(col) / static_cast<float>(cols);

    float2 values[EACH * R];
    // The place of value i of the thread; known at compile time, as loops are unrolled.
    const auto place = [&](int i) {
        const int distance = i - group.thread;
        return distance % STEP / P::THREADS * R + distance / STEP;
    };
    transform<P, true>(
        group, [&](int i) { return inside ? column[i * pitch] : float2{}; },
        [&](int k, float2 z) {
            const float v = static_cast<float>(k < (P::N + 1) / 2 ? k : k - P::N) * (1.0f / P::N);
            values[place(k)] = swapped(filter(v, u) * z);  // an inverse transform is one of swapped values
        });
    transform<BACK>(
        back, [&](int k) { return values[place(k)]; },
        [&](int i, float2 z) {
            if (inside) column[i * pitch] = swapped(z);
        });
}

// images = scale * inverse transforms of the rows of spectra; scale is 1 / (rows * cols) to normalise.
template <class P, bool EVEN, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) spectra_to_rows(
    const float2* spectra, float* images, long long count, long long pitch, float scale) {
    constexpr int COLS = RealRow<EVEN>::inputs(P::N);
    const Group<P> group(exchanged);
    const long long row = static_cast<long long>(blockIdx.x) * P::ROWS + group.row;
    const bool inside = row < count;
    const float2* from = spectra + row * pitch;
    float* to = images + row * COLS;
    RowToReal<EVEN>::template run<P>(
        group, [&](int k) { return inside ? from[k] : float2{}; },
        [&](int i, auto value) {
            if (!inside) return;
            if constexpr (EVEN)
                set_pair<ALIGNED_PAIRS>(to, i, 1, scale * value);
            else
                to[i] = scale * value;
        });
}
