// The hybrid filter in three launches, on Fourier transforms of our own: rows forward, with the threshold in the load;
// columns forward, filter, columns inverse; rows inverse, with the normalisation in the store. Memory is accessed six
// times instead of the fourteen of two real transforms by a library with separate steps.
//
// images: (batch, rows, cols) floats, contiguous; pairs aligned if cols is even. spectra: (batch, rows, pitch of cols)
// complex numbers, of which the first cols / 2 + 1 per row are used, since the others are their conjugates.
//
// A Plan (../fft/passes.cuh) has the threads per row, the rows per block and the radices; for even cols, the N of a
// row's plan is cols / 2. Dynamic shared memory: P::SHARED complex numbers; in the second launch, the maximum of both
// plans.
//
// Bottleneck: memory bandwidth in the launches of rows; that of columns, which does two transforms, reaches about 60 %
// of their rate. For few images: the latency of a block.
#include "../fft/rows.cuh"
#include "../fft/storage.cuh"

extern __shared__ float2 exchanged[];

// Complex numbers per row of the spectra. A multiple of 16 makes the accesses of the second launch whole 128-byte
// lines.
__device__ constexpr int pitch_of(int cols) {
    return (cols / 2 + 1 + 15) / 16 * 16;
}

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
        return __fdividef(1.0f, 1.0f + d2 * d2);  // two instructions; the error is at most 2 units in the last place
    }
};

// spectra = transforms of the rows of before(images). count: batch * rows
template <class P, bool EVEN, class BEFORE, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) rows_to_spectra(
    const float* images, float2* spectra, long long count, BEFORE before) {
    constexpr int COLS = RealRow<EVEN>::inputs(P::N), PITCH = pitch_of(COLS);
    const Group<P> group(exchanged);
    const long long row = static_cast<long long>(blockIdx.x) * P::ROWS + group.row;
    const bool inside = row < count;
    const float* from = images + row * COLS;
    float2* to = spectra + row * PITCH;
    RealRow<EVEN>::template run<P>(
        group,
        [&](int i) {
            if constexpr (EVEN) {
                const float2 x = inside ? __ldcs(reinterpret_cast<const float2*>(from) + i) : float2{0.0f, 0.0f};
                return float2{before(x.x), before(x.y)};
            } else {
                return before(inside ? __ldcs(from + i) : 0.0f);
            }
        },
        [&](int k, float2 z) {
            if (inside) to[k] = z;
        });
}

// spectra = inverse transforms of filter * transforms of the columns, unscaled. BACK: P with its radices in reverse.
// Then the values that a thread has after the transform are those with which it begins the inverse one: they stay in
// registers. COLS: of the images.
template <class P, class BACK, int COLS, class FILTER, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) filter_columns(float2* spectra, FILTER filter) {
    constexpr int HALF = COLS / 2 + 1, PITCH = pitch_of(COLS), BLOCKS_PER_IMAGE = (HALF + P::ROWS - 1) / P::ROWS;
    constexpr int R = P::radix(P::PASSES - 1), STEP = P::N / R, EACH = P::each_thread(P::PASSES - 1);
    static_assert(P::COLUMNS && BACK::COLUMNS && BACK::N == P::N && BACK::ROWS == P::ROWS, "both are of the columns");
    static_assert(BACK::THREADS == P::THREADS && BACK::radix(0) == R, "each thread keeps its values");

    const Group<P> group(exchanged);
    const Group<BACK> back(exchanged);
    const int col = static_cast<int>(blockIdx.x % BLOCKS_PER_IMAGE) * P::ROWS + group.row;
    const bool inside = col < HALF;
    // Value i of the thread is at a distance from its first one that is known at compile time, as loops are unrolled.
    float2* first =
        spectra + (static_cast<long long>(blockIdx.x / BLOCKS_PER_IMAGE) * P::N + group.thread) * PITCH + col;
    const auto distance = [&](int i) { return i - group.thread; };
    const auto place = [&](int i) { return distance(i) % STEP / P::THREADS * R + distance(i) / STEP; };

    const float u = static_cast<float>(col) / COLS, thread = static_cast<float>(group.thread);
    float2 values[EACH * R];
    transform<P, true>(
        group, [&](int i) { return inside ? first[distance(i) * PITCH] : float2{0.0f, 0.0f}; },
        [&](int k, float2 z) {
            const float row = thread + static_cast<float>(distance(k));
            const float v = (row < 0.5f * P::N ? row : row - P::N) * (1.0f / P::N);
            values[place(k)] = swapped(filter(v, u) * z);  // an inverse transform is one of swapped values
        });
    transform<BACK>(
        back, [&](int k) { return values[place(k)]; },
        [&](int i, float2 z) {
            if (inside) first[distance(i) * PITCH] = swapped(z);
        });
}

// images = scale * inverse transforms of the rows of spectra; scale is 1 / (rows * cols) to normalise.
template <class P, bool EVEN, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) spectra_to_rows(
    const float2* spectra, float* images, long long count, float scale) {
    constexpr int COLS = RealRow<EVEN>::inputs(P::N), PITCH = pitch_of(COLS);
    const Group<P> group(exchanged);
    const long long row = static_cast<long long>(blockIdx.x) * P::ROWS + group.row;
    const bool inside = row < count;
    const float2* from = spectra + row * PITCH;
    float* to = images + row * COLS;
    RowToReal<EVEN>::template run<P>(
        group, [&](int k) { return inside ? from[k] : float2{0.0f, 0.0f}; },
        [&](int i, typename Element<float, EVEN>::type value) {
            if (!inside) return;
            if constexpr (EVEN)
                __stcs(reinterpret_cast<float2*>(to) + i, scale * value);
            else
                __stcs(to + i, scale * value);
        });
}
