// A block per row, eight values per thread in registers: radix 8, and exchanges by warp shuffles if the values of a
// transform are in one warp; else through shared memory.
//
// Value v of a row, a number of BITS bits, starts in register v / T of thread v % T, with T = 2^BITS / 8 threads. A
// transform over the registers' three bits replaces them by three bits of the result's place, lowest first. Then these
// bits change places with the next three bits of the thread's number, from the top: registers and threads exchange
// values like the rows and columns of 8 x 8 matrices.
//
// x, y: (rows, 2^BITS), with strides in elements; y may be x. Dynamic shared memory: 2^BITS values if T > 32.
//
// Bottleneck: latency of shared memory and barriers, with one row per block.
#include "butterflies.cuh"
#include "strides.cuh"

extern __shared__ float2 exchanged[];

template <int BITS>
struct Block {
    static constexpr int VALUES = 1 << BITS, THREADS = VALUES / 8;
    static constexpr unsigned LANES = THREADS < 32 ? (1u << THREADS) - 1 : ~0u;
};

// Registers that differ in bit `REGISTER` change places with lanes that differ in bit `LANE`.
template <class B, int REGISTER, int LANE>
__device__ inline void swap_bits(float2 (&x)[8]) {
    constexpr int R = 1 << REGISTER, L = 1 << LANE;
    const bool upper = threadIdx.x & L;
#pragma unroll
    for (int r = 0; r < 8; r++) {
        if (r & R) continue;
        const float2 sent = upper ? x[r] : x[r + R];
        const float2 received = {__shfl_xor_sync(B::LANES, sent.x, L), __shfl_xor_sync(B::LANES, sent.y, L)};
        if (upper) {
            x[r] = received;
        } else {
            x[r + R] = received;
        }
    }
}

// The number of the register changes places with the bits LOW, LOW + 1 and LOW + 2 of the thread.
template <class B, int LOW>
__device__ inline void exchange(float2 (&x)[8]) {
    if constexpr (LOW + 3 <= 5) {
        swap_bits<B, 0, LOW>(x);
        swap_bits<B, 1, LOW + 1>(x);
        swap_bits<B, 2, LOW + 2>(x);
    } else {
        const int thread = threadIdx.x, own = (thread >> LOW) & 7, rest = thread - (own << LOW);
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 8; r++) exchanged[r * B::THREADS + thread] = x[r];
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 8; r++) x[r] = exchanged[own * B::THREADS + rest + (r << LOW)];
    }
}

// Multiply by the factors between a transform of 8 values and those of 2^LEFT values, which follow.
template <int LEFT>
__device__ inline void twiddle(float2 (&x)[8]) {
    constexpr int SPAN = 1 << LEFT;
    const int k = threadIdx.x % SPAN;
#pragma unroll
    for (int r = 1; r < 8; r++) x[r] = twiddles<SPAN, 8>.w[(r - 1) * SPAN + k] * x[r];
}

// The rest of the transform: over the low LEFT bits of the thread's number. `digits`: the low DONE bits of the result's
// place; the next three are the number of the register. Returns the place of each register's result.
template <class B, int LEFT, int DONE>
__device__ inline void finish(float2 (&x)[8], int digits, int (&places)[8]) {
    if constexpr (LEFT > 0) twiddle<LEFT>(x);
    if constexpr (LEFT >= 3) {
        exchange<B, LEFT - 3>(x);
        digits += ((threadIdx.x >> (LEFT - 3)) & 7) << DONE;
        dft<8>(x);
        finish<B, LEFT - 3, DONE + 3>(x, digits, places);
    } else {  // one or two bits are left: they change places with the upper bits of the registers
        constexpr int R = 1 << LEFT, STEP = 8 / R, KEPT = 3 - LEFT;
        if constexpr (LEFT > 0) swap_bits<B, KEPT, 0>(x);
        if constexpr (LEFT > 1) swap_bits<B, KEPT + 1, 1>(x);
#pragma unroll
        for (int q = 0; q < STEP; q++) {
            float2 part[R];
#pragma unroll
            for (int r = 0; r < R; r++) part[r] = x[q + r * STEP];
            dft<R>(part);
#pragma unroll
            for (int r = 0; r < R; r++) {
                x[q + r * STEP] = part[r];
                places[q + r * STEP] = digits + (q << DONE) + ((threadIdx.x % R) << (DONE + KEPT)) + (r << (DONE + 3));
            }
        }
    }
}

template <int BITS, bool INVERSE>
__global__ void __launch_bounds__(Block<BITS>::THREADS) registers(
    const float2* x, float2* y, long long inner, Strides x_strides, Strides y_strides, float scale) {
    using B = Block<BITS>;
    const int thread = threadIdx.x;
    x += x_strides.row(blockIdx.x, inner);
    y += y_strides.row(blockIdx.x, inner);

    float2 values[8];
    int places[8];
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const float2 z = x[(r * B::THREADS + thread) * x_strides.step];
        values[r] = INVERSE ? swapped(z) : z;
    }
    dft<8>(values);
    finish<B, BITS - 3, 0>(values, 0, places);
    if constexpr (B::THREADS > 32) {  // so that neighbouring threads store neighbouring elements
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 8; r++) exchanged[places[r]] = values[r];
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 8; r++) {
            places[r] = r * B::THREADS + thread;
            values[r] = exchanged[places[r]];
        }
    }
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const float2 z = scale * values[r];
        y[places[r] * y_strides.step] = INVERSE ? swapped(z) : z;
    }
}
