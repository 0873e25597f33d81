// The three steps of the fused hybrid filter: a row of an image to its spectrum, with the threshold; a column of
// spectra forward, filtered, and back; a spectrum to a row of the result, normalised. And the threshold and the
// low-pass, which you can replace by functors of your own.
#pragma once

#include "../fft/rows.cuh"
#include "../fft/storage.cuh"

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

// FRESH: other multiprocessors wrote the value in this launch, so that L1 may have an old one.
template <bool FRESH>
__device__ inline float2 spectrum_value(const float2* value) {
    return FRESH ? __ldcg(value) : *value;
}

// to[0 .. n / 2] = transform of before(from[0 .. n - 1]). Pairs of from are aligned if n is even. Images are accessed
// once, so that L2 rather keeps the spectra.
template <class P, bool EVEN, class BEFORE>
__device__ inline void row_to_spectrum(
    const Group<P>& group, const float* from, float2* to, bool inside, const BEFORE& before) {
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

// A column of values that are `pitch` apart, in place: inverse transform of filter * transform, unscaled. BACK: P with
// its radices in reverse. Then the values that a thread has after the transform are those with which it begins the
// inverse one: they stay in registers.
template <class P, class BACK, bool FRESH, class FILTER>
__device__ inline void filter_column(
    float2* exchange, float2* column, long long pitch, bool inside, float u, const FILTER& filter) {
    constexpr int R = P::radix(P::PASSES - 1), STEP = P::N / R, EACH = P::each_thread(P::PASSES - 1);
    static_assert(P::COLUMNS && BACK::COLUMNS && BACK::N == P::N && BACK::ROWS == P::ROWS, "both are of the columns");
    static_assert(BACK::THREADS == P::THREADS && BACK::radix(0) == R, "each thread keeps its values");
    const Group<P> group(exchange);
    const Group<BACK> back(exchange);

    float2 values[EACH * R];
    // The place of value i of the thread; known at compile time, as loops are unrolled.
    const auto place = [&](int i) {
        const int distance = i - group.thread;
        return distance % STEP / P::THREADS * R + distance / STEP;
    };
    transform<P, true>(
        group, [&](int i) { return inside ? spectrum_value<FRESH>(column + i * pitch) : float2{0.0f, 0.0f}; },
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

// to[0 .. n - 1] = scale * inverse transform of from[0 .. n / 2]. Pairs of `to` are aligned if n is even.
template <class P, bool EVEN, bool FRESH>
__device__ inline void spectrum_to_row(const Group<P>& group, const float2* from, float* to, bool inside, float scale) {
    RowToReal<EVEN>::template run<P>(
        group, [&](int k) { return inside ? spectrum_value<FRESH>(from + k) : float2{0.0f, 0.0f}; },
        [&](int i, typename Element<float, EVEN>::type value) {
            if (!inside) return;
            if constexpr (EVEN)
                __stcs(reinterpret_cast<float2*>(to) + i, scale * value);
            else
                __stcs(to + i, scale * value);
        });
}
