// Tensor-core operations of one warp: ldmatrix loads fragments from shared memory, mma.sync.m16n8k16 multiplies half or
// bfloat16 fragments with float sums (sm_80 and later).
//
// Fragments of lane l, with g = l / 4 and t = l % 4; each register holds two neighbouring elements:
//   A, 16 x 16: a[0] row g, columns 2t, 2t + 1; a[1] row g + 8; a[2] row g, columns 8 on; a[3] row g + 8, columns 8 on
//   B, 16 x 8:  b[0] rows 2t, 2t + 1 of column g; b[1] rows 8 on
//   C, 16 x 8:  c[0], c[1] row g, columns 2t, 2t + 1; c[2], c[3] row g + 8
// So the sums of two neighbouring C tiles, rounded and packed in pairs, form an A tile of a following product.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "numbers.cuh"

// The shared-memory address of a pointer, in the form the instructions below need.
__device__ __forceinline__ unsigned shared_address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// Loads four 8 x 8 matrices of 16-bit elements, one per register. Lane l passes the address of row l % 8 of matrix l /
// 8 (16 bytes, 16-byte aligned) and receives columns 2t, 2t + 1 of row g of each matrix.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "r"(address)
        : "memory");
}

// Loads four matrices, each transposed: the lane receives rows 2t, 2t + 1 of column g.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "r"(address)
        : "memory");
}

// c += A * B.
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);

template <>
__device__ __forceinline__ void multiply_add<__half>(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply_add<__nv_bfloat16>(
    float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats rounded to the nearest T; `low` is in the register's lower half.
template <class T>
__device__ __forceinline__ unsigned pack(float low, float high);

template <>
__device__ __forceinline__ unsigned pack<__half>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

template <>
__device__ __forceinline__ unsigned pack<__nv_bfloat16>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
