// Walks a row of floats in 16-byte pieces whatever its alignment: a scalar head up to the first 16-byte boundary, a
// float4 body, a scalar tail. A float4 access off a 16-byte boundary faults, and rows whose stride is not a multiple
// of 4 floats start off one: the split is worked out for each row, not assumed. Bodies are unrolled by four for loads
// in flight.
#pragma once
#include "numbers.cuh"

struct Split {
    int64 head;  // scalars before the body
    int64 body;  // float4 groups
    int64 tail;  // index of the first scalar behind the body
};

// `stride` is the distance of neighbouring elements in floats; anything but 1 has no body.
__device__ __forceinline__ Split split_row(const float* row, int64 stride, int64 cols) {
    if (stride != 1) return {cols, 0, cols};
    const int64 to_boundary = (16 - (reinterpret_cast<uint64>(row) & 15)) / 4 % 4;
    const int64 head = to_boundary < cols ? to_boundary : cols;
    const int64 body = (cols - head) / 4;
    return {head, body, head + body * 4};
}

// Calls use(element) for every element of the row, each in one thread of the block.
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

// to[i] = f(from[i]) for every i of the row. Stores are 16 bytes wide where both rows share their boundaries.
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
