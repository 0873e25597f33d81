// Folds contiguous floats with 16-byte loads.
#pragma once
#include "../common/row_vec4.cuh"
#include "operators.cuh"

// Folds the share of lane `lane` (of `lanes`) of the row's `length` elements into one state; `base`: index of the
// first. Any stride is correct; contiguous elements are read as float4 after a scalar head, with eight loads in flight.
template <class Op>
__device__ __forceinline__ typename Op::State fold_vectors(
    const float* row, Walk walk, int64 base, int64 length, int64 lane, int64 lanes) {
    using State = typename Op::State;
    if (walk.along_stride != 1) return fold_scalars<Op>(row, walk, base, lane, length, lanes);
    const Split split = split_row(row, 1, length);
    const float4* body = reinterpret_cast<const float4*>(row + split.head);
    const float4 nothing = make_float4(Op::kNothing, Op::kNothing, Op::kNothing, Op::kNothing);
    State state = fold<2>(
        lane, split.body, lanes, nothing, [&](int64 i) { return Op::start(i == kNone ? kNone : split.head + 4 * i); },
        [&](int64 i) { return body[i]; }, [&](State& s, float4 v, int64 i) { Op::add4(s, v, split.head + 4 * i); },
        [](State a, State b) { return Op::merge(a, b); });
    const auto one = [&](int64 i) {
        State single = Op::start(i);
        Op::add(single, row[i], i);
        state = Op::merge(state, single);
    };
#pragma unroll 1
    for (int64 i = lane; i < split.head; i += lanes) one(i);
#pragma unroll 1
    for (int64 i = split.tail + lane; i < length; i += lanes) one(i);
    return Op::at(state, base, walk.along_index);
}
