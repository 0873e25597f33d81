// One access to shared memory per pattern, each its own instruction, so that ncu counts them separately by code
// address. A lane whose offset is negative is inactive.
#include <cuda/std/cstdint>

constexpr int kPatterns = 96;

extern __shared__ uint4 cells[];

__device__ __forceinline__ unsigned shared_base() {
    return static_cast<unsigned>(__cvta_generic_to_shared(cells));
}

// offsets: (kPatterns, 32) bytes, or negative; out: 32; block: 32
extern "C" __global__ void load_4(const int* offsets, unsigned* out) {
    unsigned sum = 0;
#pragma unroll
    for (int p = 0; p < kPatterns; ++p) {
        const int offset = offsets[p * 32 + threadIdx.x];
        unsigned v = 0;
        asm volatile("{ .reg .pred q; setp.ge.s32 q, %1, 0; @q ld.volatile.shared.u32 %0, [%2]; }"
            : "+r"(v)
            : "r"(offset), "r"(shared_base() + offset));
        sum ^= v;
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void load_8(const int* offsets, unsigned* out) {
    unsigned sum = 0;
#pragma unroll
    for (int p = 0; p < kPatterns; ++p) {
        const int offset = offsets[p * 32 + threadIdx.x];
        unsigned v = 0, w = 0;
        asm volatile("{ .reg .pred q; setp.ge.s32 q, %2, 0; @q ld.volatile.shared.v2.u32 {%0, %1}, [%3]; }"
            : "+r"(v), "+r"(w)
            : "r"(offset), "r"(shared_base() + offset));
        sum ^= v ^ w;
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void load_16(const int* offsets, unsigned* out) {
    unsigned sum = 0;
#pragma unroll
    for (int p = 0; p < kPatterns; ++p) {
        const int offset = offsets[p * 32 + threadIdx.x];
        unsigned v = 0, w = 0, x = 0, y = 0;
        asm volatile("{ .reg .pred q; setp.ge.s32 q, %4, 0; @q ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%5]; }"
            : "+r"(v), "+r"(w), "+r"(x), "+r"(y)
            : "r"(offset), "r"(shared_base() + offset));
        sum ^= v ^ w ^ x ^ y;
    }
    out[threadIdx.x] = sum;
}

extern "C" __global__ void store_8(const int* offsets, unsigned* out) {
#pragma unroll
    for (int p = 0; p < kPatterns; ++p) {
        const int offset = offsets[p * 32 + threadIdx.x];
        asm volatile(
            "{ .reg .pred q; setp.ge.s32 q, %0, 0; @q st.volatile.shared.v2.u32 [%1], {%2, %2}; }" ::"r"(offset),
            "r"(shared_base() + offset), "r"(p));
    }
    out[threadIdx.x] = 0;
}

extern "C" __global__ void store_16(const int* offsets, unsigned* out) {
#pragma unroll
    for (int p = 0; p < kPatterns; ++p) {
        const int offset = offsets[p * 32 + threadIdx.x];
        asm volatile(
            "{ .reg .pred q; setp.ge.s32 q, %0, 0; @q st.volatile.shared.v4.u32 [%1], {%2, %2, %2, %2}; }" ::"r"(
                offset),
            "r"(shared_base() + offset), "r"(p));
    }
    out[threadIdx.x] = 0;
}

// from: (kPatterns, 32) byte offsets in source; bytes: (kPatterns, 32) bytes to copy, the rest is filled with zeros.
// A wait after each copy keeps them in order.
template <int SIZE, bool BYPASS>
__device__ __forceinline__ void copies(const int* offsets, const int* from, const int* bytes, const char* source) {
#pragma unroll
    for (int p = 0; p < kPatterns; ++p) {
        const int at = p * 32 + threadIdx.x, offset = offsets[at];
        const char* place = source + from[at];
        const unsigned to = shared_base() + offset;
        if constexpr (BYPASS)
            asm volatile(
                "{ .reg .pred q; setp.ge.s32 q, %0, 0; @q cp.async.cg.shared.global [%1], [%2], %3, %4; }" ::"r"(
                    offset),
                "r"(to), "l"(place), "n"(SIZE), "r"(bytes[at])
                : "memory");
        else
            asm volatile(
                "{ .reg .pred q; setp.ge.s32 q, %0, 0; @q cp.async.ca.shared.global [%1], [%2], %3, %4; }" ::"r"(
                    offset),
                "r"(to), "l"(place), "n"(SIZE), "r"(bytes[at])
                : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
    }
}

extern "C" __global__ void copy_4(const int* offsets, const int* from, const int* bytes, const char* source) {
    copies<4, false>(offsets, from, bytes, source);
}

extern "C" __global__ void copy_8(const int* offsets, const int* from, const int* bytes, const char* source) {
    copies<8, false>(offsets, from, bytes, source);
}

extern "C" __global__ void copy_16(const int* offsets, const int* from, const int* bytes, const char* source) {
    copies<16, false>(offsets, from, bytes, source);
}

extern "C" __global__ void copy_16_bypass(const int* offsets, const int* from, const int* bytes, const char* source) {
    copies<16, true>(offsets, from, bytes, source);
}
