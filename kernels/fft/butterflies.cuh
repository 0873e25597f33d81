// Discrete Fourier transforms of a few values in registers: dft<R>(x) for any R, as products of smaller ones.
#pragma once

#include "turns.cuh"

__device__ inline float2 operator+(float2 a, float2 b) {
    return {a.x + b.x, a.y + b.y};
}
__device__ inline float2 operator-(float2 a, float2 b) {
    return {a.x - b.x, a.y - b.y};
}
__device__ inline float2 operator*(float2 a, float2 b) {
    return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}
__device__ inline float2 operator*(float a, float2 b) {
    return {a * b.x, a * b.y};
}
__device__ inline float2 conjugate(float2 a) {
    return {a.x, -a.y};
}
__device__ inline float2 swapped(float2 a) {
    return {a.y, a.x};
}

// z * e^(-2 pi i K/N); quarters and eighths of a turn need fewer operations than a product.
template <int K, int N>
__device__ inline float2 turned(float2 z) {
    constexpr int k = K % N;
    constexpr Turn w = turn(k, N);
    constexpr float re = static_cast<float>(w.re), im = static_cast<float>(w.im);
    if constexpr (k == 0) {
        return z;
    } else if constexpr (4 * k == N) {
        return {z.y, -z.x};
    } else if constexpr (2 * k == N) {
        return {-z.x, -z.y};
    } else if constexpr (4 * k == 3 * N) {
        return {-z.y, z.x};
    } else if constexpr (8 * k == N || 8 * k == 5 * N) {
        return {re * (z.x + z.y), re * (z.y - z.x)};
    } else if constexpr (8 * k == 3 * N || 8 * k == 7 * N) {
        return {re * (z.x - z.y), re * (z.x + z.y)};
    } else {
        return {re * z.x - im * z.y, im * z.x + re * z.y};
    }
}

// The factor that dft<R> splits off: 4 as long as it divides R, then 2, then the smallest odd factor.
__device__ constexpr int first_factor(int r) {
    if (r % 4 == 0) return 4;
    for (int f = 2; f < r; f++) {
        if (r % f == 0) return f;
    }
    return r;
}

template <int R>
__device__ inline void dft(float2 (&x)[R]);

// f(0), f(1), ... f(N - 1), each argument a compile-time constant.
template <int I>
struct Index {
    static constexpr int value = I;
};
template <int N, int I = 0, class F>
__device__ inline void each(F f) {
    if constexpr (I < N) {
        f(Index<I>());
        each<N, I + 1>(f);
    }
}

// An odd prime R: x[k] and x[R - k] share the sums of each pair x[r] + x[R - r] and their differences.
template <int R>
__device__ inline void prime_dft(float2 (&x)[R]) {
    constexpr int H = R / 2;
    float2 sum[H], difference[H];
    const float2 first = x[0];
    float2 total = first;
#pragma unroll
    for (int r = 0; r < H; r++) {
        sum[r] = x[r + 1] + x[R - 1 - r];
        difference[r] = x[r + 1] - x[R - 1 - r];
        total = total + sum[r];
    }
    x[0] = total;
    each<H>([&](auto k) {
        float2 even = first, odd = {0.0f, 0.0f};
        each<H>([&](auto r) {
            constexpr Turn w = turn((decltype(k)::value + 1) * (decltype(r)::value + 1), R);
            constexpr float re = static_cast<float>(w.re), im = static_cast<float>(w.im);
            even = even + re * sum[decltype(r)::value];
            odd = odd + im * difference[decltype(r)::value];
        });
        x[decltype(k)::value + 1] = {even.x - odd.y, even.y + odd.x};
        x[R - 1 - decltype(k)::value] = {even.x + odd.y, even.y - odd.x};
    });
}

// x[k] = sum over r of x[r] e^(-2 pi i r k/R), in place and in order. R = A B: B transforms of A values, a turn, then A
// transforms of B values.
template <int R>
__device__ inline void dft(float2 (&x)[R]) {
    if constexpr (R == 2) {
        const float2 a = x[0];
        x[0] = a + x[1];
        x[1] = a - x[1];
    } else if constexpr (R == 4) {
        const float2 a = x[0] + x[2], b = x[0] - x[2], c = x[1] + x[3], d = turned<1, 4>(x[1] - x[3]);
        x[0] = a + c;
        x[1] = b + d;
        x[2] = a - c;
        x[3] = b - d;
    } else if constexpr (R > 2 && first_factor(R) == R) {
        prime_dft<R>(x);
    } else if constexpr (R > 4) {
        constexpr int A = first_factor(R), B = R / A;
        float2 y[A][B];
        each<B>([&](auto b) {
            float2 column[A];
#pragma unroll
            for (int a = 0; a < A; a++) column[a] = x[a * B + decltype(b)::value];
            dft<A>(column);
            each<A>([&](auto a) {
                constexpr int k = decltype(a)::value * decltype(b)::value;
                y[decltype(a)::value][decltype(b)::value] = turned<k, R>(column[decltype(a)::value]);
            });
        });
#pragma unroll
        for (int a = 0; a < A; a++) {
            dft<B>(y[a]);
#pragma unroll
            for (int b = 0; b < B; b++) x[a + A * b] = y[a][b];
        }
    }
}
