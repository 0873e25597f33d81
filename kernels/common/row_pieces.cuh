// Writes a row of floats with vector stores. Neighbouring lanes share a row in pieces of DEEP vectors per lane, so each
// lane has DEEP loads in flight before its first store. Scalars handle the head, up to the output's first 16-byte
// boundary, and the tail after the last whole vector: rows of any alignment are correct.
#pragma once
#include "pack.cuh"
#include "row_vec4.cuh"

template <int N>
using Floats = Pack<float, N>;

template <int N>
__device__ __forceinline__ Floats<N> load_floats(const float* from) {
    return *reinterpret_cast<const Floats<N>*>(from);
}

// Writes piece number `piece` of a row: to[i] = value(i) for its LANES * DEEP vectors of VEC floats. Piece 0 also
// writes the head and the tail. All LANES lanes that share the row must call it.
// value.get<N>(i) returns the Floats<N> of elements i to i + N - 1; if N > 1, to + i is 16-byte aligned.
template <int VEC, int LANES, int DEEP, class Value>
__device__ __forceinline__ void write_piece(float* to, int64 cols, int64 piece, Value value) {
    const int lane = threadIdx.x % LANES;
    const Split split = VEC == 1 ? Split{0, cols, cols} : split_row(to, 1, cols);
    const int64 first = piece * (int64{LANES} * DEEP) + lane;
    Floats<VEC> held[DEEP];
#pragma unroll
    for (int k = 0; k < DEEP; ++k)
        if (first + k * LANES < split.body) held[k] = value.template get<VEC>(split.head + (first + k * LANES) * VEC);
    Floats<VEC>* vectors = reinterpret_cast<Floats<VEC>*>(to + split.head);
#pragma unroll
    for (int k = 0; k < DEEP; ++k)
        if (first + k * LANES < split.body) vectors[first + k * LANES] = held[k];

    if (VEC > 1 && piece == 0) {
#pragma unroll 1  // at most three elements: unrolling would only cost registers
        for (int64 i = lane; i < split.head; i += LANES) to[i] = value.template get<1>(i).at[0];
#pragma unroll 1
        for (int64 i = split.tail + lane; i < cols; i += LANES) to[i] = value.template get<1>(i).at[0];
    }
}
