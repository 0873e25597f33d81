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

// z * e^(-2 pi i k/N), for 0 <= k < N known at compile time, as loops are unrolled: quarters and eighths of a turn need
// fewer operations than a product.
template <int N>
__device__ inline float2 turned(float2 z, int k) {
    const float2 w = roots<N>.w[k];
    if (k == 0) return z;
    if (4 * k == N) return {z.y, -z.x};
    if (2 * k == N) return {-z.x, -z.y};
    if (4 * k == 3 * N) return {-z.y, z.x};
    if (8 * k == N || 8 * k == 5 * N) return {w.x * (z.x + z.y), w.x * (z.y - z.x)};
    if (8 * k == 3 * N || 8 * k == 7 * N) return {w.x * (z.x - z.y), w.x * (z.x + z.y)};
    return w * z;
}

// The factor that dft<R> splits off: 4 as long as it divides R, then 2, then the smallest odd factor.
__device__ constexpr int first_factor(int r) {
    if (r % 4 == 0) return 4;
    for (int f = 2; f < r; f++) {
        if (r % f == 0) return f;
    }
    return r;
}

// An odd prime R: outputs k and R - k share the sums of each pair x[r] + x[R - r], and their differences.
template <int R>
__device__ inline void prime_dft(float2 (&x)[R]) {
    constexpr int H = R / 2;
    float2 sum[H], difference[H];
    const float2 first = x[0];
#pragma unroll
    for (int r = 0; r < H; r++) {
        sum[r] = x[r + 1] + x[R - 1 - r];
        difference[r] = x[r + 1] - x[R - 1 - r];
        x[0] = x[0] + sum[r];
    }
#pragma unroll
    for (int k = 1; k <= H; k++) {
        float2 even = first, odd = {0.0f, 0.0f};
#pragma unroll
        for (int r = 1; r <= H; r++) {
            const float2 w = roots<R>.w[r * k % R];
            even = even + w.x * sum[r - 1];
            odd = odd + w.y * difference[r - 1];
        }
        x[k] = {even.x - odd.y, even.y + odd.x};
        x[R - k] = {even.x + odd.y, even.y - odd.x};
    }
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
        const float2 a = x[0] + x[2], b = x[0] - x[2], c = x[1] + x[3], d = turned<4>(x[1] - x[3], 1);
        x[0] = a + c;
        x[1] = b + d;
        x[2] = a - c;
        x[3] = b - d;
    } else if constexpr (R > 2 && first_factor(R) == R) {
        prime_dft<R>(x);
    } else if constexpr (R > 4) {
        constexpr int A = first_factor(R), B = R / A;
        float2 y[A][B];
#pragma unroll
        for (int b = 0; b < B; b++) {
            float2 column[A];
#pragma unroll
            for (int a = 0; a < A; a++) column[a] = x[a * B + b];
            dft<A>(column);
#pragma unroll
            for (int a = 0; a < A; a++) y[a][b] = turned<R>(column[a], a * b);
        }
#pragma unroll
        for (int a = 0; a < A; a++) {
            dft<B>(y[a]);
#pragma unroll
            for (int b = 0; b < B; b++) x[a + A * b] = y[a][b];
        }
    }
}
