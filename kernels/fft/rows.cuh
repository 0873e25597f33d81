// One row's transform, complex or real, by a group of threads: from the values that in(i) returns to those that out(i,
// v) receives. PAIRS: the real side is accessed in pairs; value i is then elements 2 i and 2 i + 1.
//
// The inverse transform swaps the real and the imaginary part of each value at the load and at the store, which costs
// nothing. A real transform of even length n is a complex one of n / 2 values, which are pairs of real ones.
#pragma once

#include "pairs.cuh"
#include "passes.cuh"
#include "strides.cuh"

template <bool INVERSE>
__device__ inline float2 directed(float2 z) {
    return INVERSE ? swapped(z) : z;
}

// Complex to complex
template <bool INVERSE>
struct ComplexRow {
    static constexpr bool FROM_REAL = false, TO_REAL = false, PAIRS = false;

    template <class P, class In, class Out>
    __device__ static void run(const Group<P>& group, In in, Out out) {
        transform<P>(
            group, [&](int i) { return directed<INVERSE>(in(i)); },
            [&](int i, float2 z) { out(i, directed<INVERSE>(z)); });
    }
};

// Real to complex: the first n / 2 + 1 values. The plan's N is n / 2 if n is even.
template <bool EVEN>
struct RealRow {
    static constexpr bool FROM_REAL = true, TO_REAL = false, PAIRS = EVEN;
    // The length of a real row, by the plan's N
    __device__ static constexpr int inputs(int n) { return EVEN ? 2 * n : n; }

    template <class P, class In, class Out>
    __device__ static void run(const Group<P>& group, In in, Out out) {
        constexpr int M = P::N;
        if constexpr (!EVEN) {
            transform<P>(
                group, [&](int i) { return float2{in(i), 0.0f}; },
                [&](int k, float2 z) {
                    if (k <= M / 2) out(k, z);
                });
        } else {
            transform<P, true>(group, in, [&](int k, float2 z) { group.at(k) = z; });
            group.sync();
            for (int k = group.thread; k <= M / 2; k += P::THREADS) {
                const float2 a = group.at(k), b = conjugate(group.at(k == 0 ? 0 : M - k));
                const Terms terms = terms_of_pairs(a, b, roots<2 * M, M / 2 + 1>.w[k]);
                out(k, terms.low);
                if (2 * k != M) out(M - k, terms.high);
            }
        }
    }
};

// Complex to real: the inverse transform of n / 2 + 1 values, which must be those of a real row. As in numpy, the
// imaginary parts of values that must be real are ignored. The plan's N is n / 2 if n is even.
template <bool EVEN>
struct RowToReal {
    static constexpr bool FROM_REAL = false, TO_REAL = true, PAIRS = EVEN;

    template <class P, class In, class Out>
    __device__ static void run(const Group<P>& group, In in, Out out) {
        constexpr int M = P::N;
        const auto value = [&](int k) {
            const float2 z = in(k);
            return k == 0 || (EVEN && k == M) ? float2{z.x, 0.0f} : z;
        };
        if constexpr (!EVEN) {
            transform<P>(
                group, [&](int k) { return swapped(k <= M / 2 ? value(k) : conjugate(value(M - k))); },
                [&](int i, float2 z) { out(i, z.y); });
        } else {
            transform<P>(
                group,
                [&](int k) {
                    const float2 a = value(k), b = conjugate(value(M - k));
                    const bool mirrored = 2 * k > M;
                    const float2 w = roots<2 * M, M / 2 + 1>.w[mirrored ? M - k : k];
                    return swapped(pair_of_terms(a, b, float2{mirrored ? -w.x : w.x, w.y}));
                },
                [&](int i, float2 z) { out(i, swapped(z)); });
        }
    }
};
