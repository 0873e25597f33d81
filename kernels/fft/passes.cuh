// The Fourier transform of N values by a group of threads: in Stockham's order, which needs no bit reversal.
//
// N is a product of radices, one pass each. In a pass, each thread computes transforms of `radix` values in registers;
// between passes, the values are exchanged through shared memory.
#pragma once

#include "butterflies.cuh"

// Transforms of N_ values by THREADS_ threads each, ROWS_ of them in a block; the radices of the passes.
//
// COLUMNS_: the ROWS_ transforms are adjacent columns of a matrix. Threads with consecutive numbers then have
// consecutive columns, so that they access consecutive addresses.
template <int N_, int THREADS_, int ROWS_, bool COLUMNS_, int... RADICES>
struct Plan {
    static constexpr int N = N_, THREADS = THREADS_, ROWS = ROWS_, PASSES = sizeof...(RADICES);
    static constexpr bool COLUMNS = COLUMNS_;

    __device__ static constexpr int radix(int pass) {
        constexpr int radices[] = {RADICES...};
        return radices[pass];
    }
    // The product of the radices of earlier passes: the length of the transforms that are done before the pass.
    __device__ static constexpr int span(int pass) { return pass == 0 ? 1 : span(pass - 1) * radix(pass - 1); }
    // Transforms of `radix` values that a thread computes in the pass.
    __device__ static constexpr int each_thread(int pass) { return (N / radix(pass) + THREADS - 1) / THREADS; }

    // Shared memory has 16 banks of 8 bytes. After a pass, threads store runs of `span` values, span * radix apart. A
    // gap of `gap` values after every `run` values moves neighbouring runs to other banks.
    static constexpr int BANKS = COLUMNS ? (ROWS >= 16 ? 1 : 16 / ROWS) : 16;
    __device__ static constexpr int run(int pass) {
        int length = span(pass + 1);
        while (pass == 0 && length % BANKS != 0) length += span(pass + 1);
        return length;
    }
    __device__ static constexpr int gap(int pass) {
        return span(pass) >= BANKS ? 0 : (span(pass) + BANKS - run(pass) % BANKS) % BANKS;
    }
    // The place of value i in shared memory after a pass.
    template <int PASS>
    __device__ static constexpr int padded(int i) {
        constexpr int RUN = run(PASS), GAP = gap(PASS);
        return GAP == 0 ? i : i + static_cast<unsigned>(i) / RUN * GAP;
    }
    // The distance of rows of `length` values in shared memory: the rows that half a warp accesses are in different
    // banks.
    __device__ static constexpr int apart(int length) {
        while (!COLUMNS && THREADS < BANKS && length % BANKS != THREADS % BANKS) length++;
        return length;
    }
    // Values of a row in shared memory, gaps included.
    template <int PASS = 0>
    __device__ static constexpr int length() {
        if constexpr (PASS + 1 >= PASSES) {
            return N;
        } else {
            constexpr int here = padded<PASS>(N - 1) + 1, later = length<PASS + 1>();
            return here > later ? here : later;
        }
    }
    static constexpr int PITCH = apart(length());
    static constexpr int SHARED = ROWS * PITCH;

    static_assert(span(PASSES) == N, "the product of the radices is the length");
};

// The threads of one transform, and its part of the block's shared memory.
template <class P>
struct Group {
    float2* shared;
    int thread, row;

    __device__ explicit Group(float2* block) {
        const unsigned number = threadIdx.x;
        thread = P::COLUMNS ? number / P::ROWS : number % P::THREADS;
        row = P::COLUMNS ? number % P::ROWS : number / P::THREADS;
        shared = P::COLUMNS ? block + row : block + row * P::PITCH;
    }
    __device__ float2& at(int place) const { return shared[place * (P::COLUMNS ? P::ROWS : 1)]; }
    // A group that is a part of one warp needs no barrier of the block.
    __device__ void sync() const {
        if constexpr (!P::COLUMNS && P::THREADS <= 32 && 32 % P::THREADS == 0) {
            __syncwarp();
        } else {
            __syncthreads();
        }
    }
};

// Multiply x[r] by e^(-2 pi i r k/(SPAN R)). Two of three factors are products of two others, which costs less than to
// load them.
template <int SPAN, int R>
__device__ inline void twiddle(float2 (&x)[R], int k) {
    const float2* w = twiddles<SPAN, R>.w + k;
    float2 low[4];
#pragma unroll
    for (int r = 1; r < 4 && r < R; r++) {
        low[r] = w[(r - 1) * SPAN];
        x[r] = x[r] * low[r];
    }
#pragma unroll
    for (int r = 4; r < R; r += 4) {
        const float2 high = w[(r - 1) * SPAN];
        x[r] = x[r] * high;
#pragma unroll
        for (int s = 1; s < 4; s++) {
            if (r + s < R) x[r + s] = x[r + s] * (high * low[s]);
        }
    }
}

// Value j + r * STEP for r = 0 .. R - 1, as the pass before PASS stored them.
template <class P, int PASS, int R>
__device__ inline void fetch(const Group<P>& group, int j, float2 (&x)[R]) {
    constexpr int STEP = P::N / R, RUN = P::run(PASS - 1), GAP = P::gap(PASS - 1);
    if constexpr (GAP == 0 || STEP % RUN == 0) {  // each r is a constant distance from the first
        const int first = P::template padded<PASS - 1>(j);
#pragma unroll
        for (int r = 0; r < R; r++) x[r] = group.at(first + r * (STEP + STEP / RUN * GAP));
    } else {
#pragma unroll
        for (int r = 0; r < R; r++) x[r] = group.at(P::template padded<PASS - 1>(j + r * STEP));
    }
}

// Pass PASS and those after it. load(i) returns input i; store(i, z) receives output i. All threads of the block call
// it.
//
// REUSED: `store` writes to the shared memory of the group, so that all threads must have read their values before.
template <class P, bool REUSED = false, int PASS = 0, class Load, class Store>
__device__ inline void transform(const Group<P>& group, Load load, Store store) {
    constexpr int R = P::radix(PASS), SPAN = P::span(PASS), STEP = P::N / R, EACH = P::each_thread(PASS);
    constexpr bool WHOLE = EACH * P::THREADS == STEP, LAST = PASS + 1 == P::PASSES;
    float2 x[EACH][R];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int j = group.thread + e * P::THREADS;
        if (WHOLE || j < STEP) {
            if constexpr (PASS == 0) {
#pragma unroll
                for (int r = 0; r < R; r++) x[e][r] = load(j + r * STEP);
            } else {
                fetch<P, PASS>(group, j, x[e]);
            }
        }
    }
    if constexpr (PASS > 0 && (!LAST || REUSED)) group.sync();
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int j = group.thread + e * P::THREADS;
        if (WHOLE || j < STEP) {
            if constexpr (PASS > 0) twiddle<SPAN, R>(x[e], j % SPAN);
            dft<R>(x[e]);
            if constexpr (LAST) {
#pragma unroll
                for (int r = 0; r < R; r++) store(j + r * STEP, x[e][r]);
            } else {
                const int first = P::template padded<PASS>(j / SPAN * SPAN * R) + j % SPAN;
#pragma unroll
                for (int r = 0; r < R; r++) group.at(first + r * SPAN) = x[e][r];
            }
        }
    }
    if constexpr (!LAST) {
        group.sync();
        transform<P, REUSED, PASS + 1>(group, load, store);
    }
}
