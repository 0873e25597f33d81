// Walks a row of floats in 16-byte accesses for any alignment: a scalar head up to the first 16-byte boundary, a
// float4 body, a scalar tail. An unaligned float4 access faults, and rows whose stride is not a multiple of 4
// floats start unaligned: so the split is computed for each row. Bodies are unrolled by four, for more loads in
// flight.
#pragma once
#include "numbers.cuh"

struct Split {
    int64 head;  // scalars before the body
    int64 body;  // float4 groups
    int64 tail;  // index of the first scalar after the body
};

// `stride`: floats between neighbouring elements. If it is not 1, the whole row is head.
__device__ __forceinline__ Split split_row(const float* row, int64 stride, int64 cols) {
    if (stride != 1) return {cols, 0, cols};
    const int64 to_boundary = (16 - (reinterpret_cast<uint64>(row) & 15)) / 4 % 4;
    const int64 head = to_boundary < cols ? to_boundary : cols;
    const int64 body = (cols - head) / 4;
    return {head, body, head + body * 4};
}

// Calls use(element) once for every element of the row; the block's threads share the calls.
template <class Use>
__device__ __forceinline__ void for_each_in_row(const float* row, int64 stride, int64 cols, Use use) {
    const Split split = split_row(row, stride, cols);
    for (int64 i = threadIdx.x; i < split.head; i += blockDim.x) use(row[i * stride]);
    const float4* body = reinterpret_cast<const float4*>(row + split.head);
#pragma unroll 4
    for (int64 i = threadIdx.x; i < split.body; i += blockDim.x) {
        const float4 v = body[i];
        use(v.x), use(v.y), use(v.z), use(v.w);
    }
    for (int64 i = split.tail + threadIdx.x; i < cols; i += blockDim.x) use(row[i]);
}

// Sets to[i] = f(from[i]) for every i of the row. Stores are 16 bytes wide if both rows have the same offset from 16
// bytes.
template <class F>
__device__ __forceinline__ void map_row(
    const float* from, int64 from_stride, float* to, int64 to_stride, int64 cols, F f) {
    const bool together =
        to_stride == 1 && (reinterpret_cast<uint64>(from) & 15) == (reinterpret_cast<uint64>(to) & 15);
    const Split split = split_row(from, together ? from_stride : 0, cols);
    for (int64 i = threadIdx.x; i < split.head; i += blockDim.x) to[i * to_stride] = f(from[i * from_stride]);
    const float4* from4 = reinterpret_cast<const float4*>(from + split.head);
    float4* to4 = reinterpret_cast<float4*>(to + split.head);
#pragma unroll 4
    for (int64 i = threadIdx.x; i < split.body; i += blockDim.x) {
        const float4 v = from4[i];
        to4[i] = make_float4(f(v.x), f(v.y), f(v.z), f(v.w));
    }
    for (int64 i = split.tail + threadIdx.x; i < cols; i += blockDim.x) to[i] = f(from[i]);
}
