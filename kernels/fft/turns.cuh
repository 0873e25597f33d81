// Roots of unity as compile-time constants, exact to the last bit of a float: tables of twiddle factors need no
// arithmetic at run time and no array from the host.
#pragma once

struct Turn {
    double re, im;
};

// e^(-2 pi i k/n), for 0 <= k. The angle is reduced to an eighth of a turn, 0 to pi/4, for which seven terms of each
// Taylor series are exact to 1e-16.
__device__ constexpr Turn turn(long long k, long long n) {
    k %= n;
    const int quarter = static_cast<int>(4 * k / n);
    const long long rest = 4 * k - quarter * n;  // of n: the part of a quarter turn
    const bool mirrored = 2 * rest > n;
    const double a = 1.57079632679489661923 * static_cast<double>(mirrored ? n - rest : rest) / static_cast<double>(n);
    const double a2 = a * a;
    const double cosine =
        1 - a2 / 2 * (1 - a2 / 12 * (1 - a2 / 30 * (1 - a2 / 56 * (1 - a2 / 90 * (1 - a2 / 132 * (1 - a2 / 182))))));
    const double sine =
        a * (1 - a2 / 6 * (1 - a2 / 20 * (1 - a2 / 42 * (1 - a2 / 72 * (1 - a2 / 110 * (1 - a2 / 156))))));
    const double c = mirrored ? sine : cosine, s = mirrored ? cosine : sine;
    switch (quarter) {
        case 0:
            return {c, -s};
        case 1:
            return {-s, -c};
        case 2:
            return {-c, s};
        default:
            return {s, c};
    }
}

// w[k] = e^(-2 pi i k/N), for k = 0 .. COUNT - 1
template <int N, int COUNT>
struct Roots {
    float2 w[COUNT];
};

template <int N, int COUNT>
__device__ constexpr Roots<N, COUNT> make_roots() {
    Roots<N, COUNT> table{};
    for (int k = 0; k < COUNT; k++) {
        const Turn w = turn(k, N);
        table.w[k].x = static_cast<float>(w.re);
        table.w[k].y = static_cast<float>(w.im);
    }
    return table;
}

template <int N, int COUNT = N>
__device__ constexpr Roots<N, COUNT> roots = make_roots<N, COUNT>();

// w[(r - 1) * SPAN + k] = e^(-2 pi i r k / (SPAN * RADIX)), for r = 1 .. RADIX - 1: the factors of one pass, in the
// order in which the threads of a warp load them.
template <int SPAN, int RADIX>
struct Twiddles {
    float2 w[SPAN * (RADIX - 1)];
};

template <int SPAN, int RADIX>
__device__ constexpr Twiddles<SPAN, RADIX> make_twiddles() {
    Twiddles<SPAN, RADIX> table{};
    for (int r = 1; r < RADIX; r++) {
        for (int k = 0; k < SPAN; k++) {
            const Turn w = turn(static_cast<long long>(r) * k, static_cast<long long>(SPAN) * RADIX);
            table.w[(r - 1) * SPAN + k].x = static_cast<float>(w.re);
            table.w[(r - 1) * SPAN + k].y = static_cast<float>(w.im);
        }
    }
    return table;
}

template <int SPAN, int RADIX>
__device__ constexpr Twiddles<SPAN, RADIX> twiddles = make_twiddles<SPAN, RADIX>();

// e^(-2 pi i k/n) for 0 <= k < n <= 2^29, for tables that would be too long: exact to the last bits of a float, as the
// angle is reduced in integers (4 k + n / 2 fits 32 bits).
__device__ inline float2 turn_of(unsigned k, unsigned n) {
    const unsigned quarter = (4 * k + n / 2) / n;
    const int rest = static_cast<int>(4 * k - quarter * n);
    float s, c;
    sincospif(static_cast<float>(rest) * (-0.5f / static_cast<float>(n)), &s, &c);
    switch (quarter & 3) {
        case 0:
            return {c, s};
        case 1:
            return {s, -c};
        case 2:
            return {-c, -s};
        default:
            return {-s, c};
    }
}
