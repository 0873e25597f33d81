// What sum, max and argmax share: the state of a reduction, how a thread folds its elements into one, and how the
// states of a warp and of a block become one.
//
// An operator has a State, start(index) (the state before the element of that index), add(state, value, index) for
// indices that rise, merge of two states in either order, and result. Adding kNothing changes no state.
#pragma once
#include "../common/numbers.cuh"

constexpr int64 kNone = 0x7fffffffffffffff;  // an index behind all others
constexpr int kFold = 32;

// What every kernel of the family is told about x: element i of reduction k is x[k * kept_stride + i * along_stride],
// and its index is k * kept_index + i * along_index.
struct Walk {
    int64 kept_stride, along_stride, kept_index, along_index;
};

struct SumOf {
    using State = float;
    using Result = float;
    static constexpr float kNothing = 0.0f;
    __device__ __forceinline__ static State start(int64) { return 0.0f; }
    __device__ __forceinline__ static void add(State& sum, float value, int64) { sum += value; }
    __device__ __forceinline__ static void add4(State& sum, float4 v, int64) { sum += (v.x + v.y) + (v.z + v.w); }
    __device__ __forceinline__ static State merge(State a, State b) { return a + b; }
    __device__ __forceinline__ static State from(State a, int distance) {
        return __shfl_xor_sync(kAllLanes, a, distance);
    }
    __device__ __forceinline__ static State at(State state, int64, int64) { return state; }
    __device__ __forceinline__ static Result result(State sum) { return sum; }
};

// The comparison with itself keeps a NaN: fmaxf would pass over it, and numpy's maximum of a row with a NaN is NaN.
struct MaxOf {
    using State = float;
    using Result = float;
    static constexpr float kNothing = -kInfinity;
    __device__ __forceinline__ static State start(int64) { return -kInfinity; }
    __device__ __forceinline__ static State merge(State a, State b) { return a >= b || a != a ? a : b; }
    __device__ __forceinline__ static void add(State& best, float value, int64) { best = merge(best, value); }
    __device__ __forceinline__ static void add4(State& best, float4 v, int64) {
        best = merge(best, merge(merge(v.x, v.y), merge(v.z, v.w)));
    }
    __device__ __forceinline__ static State from(State a, int distance) {
        return __shfl_xor_sync(kAllLanes, a, distance);
    }
    __device__ __forceinline__ static State at(State state, int64, int64) { return state; }
    __device__ __forceinline__ static Result result(State best) { return best; }
};

struct Place {
    float value;
    int64 index;
};

// A NaN is above all numbers, and of equal values the first counts. Without the index in `merge` a tie would go to
// whichever warp comes first.
struct ArgMaxOf {
    using State = Place;
    using Result = int64;
    static constexpr float kNothing = -kInfinity;
    __device__ __forceinline__ static State start(int64 index) { return {-kInfinity, index}; }
    __device__ __forceinline__ static void add(State& best, float value, int64 index) {
        if (!(value <= best.value) && best.value == best.value) best = {value, index};
    }
    __device__ __forceinline__ static void add4(State& best, float4 v, int64 index) {
        add(best, v.x, index);
        add(best, v.y, index + 1);
        add(best, v.z, index + 2);
        add(best, v.w, index + 3);
    }
    __device__ __forceinline__ static State merge(State a, State b) {
        const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
        const bool equal = a_nan == b_nan && (a_nan || a.value == b.value);
        const bool second = equal ? b.index < a.index : b_nan || b.value > a.value;
        return second ? b : a;
    }
    __device__ __forceinline__ static State from(State a, int distance) {
        return {__shfl_xor_sync(kAllLanes, a.value, distance), __shfl_xor_sync(kAllLanes, a.index, distance)};
    }
    // With the element's number in its reduction made its index; a number costs no multiplication an element.
    __device__ __forceinline__ static State at(State best, int64 base, int64 step) {
        return {best.value, best.index == kNone ? kNone : base + best.index * step};
    }
    __device__ __forceinline__ static Result result(State best) { return best.index; }
};

// Adds steps first, first + step, ... to a state, kBatch of them, asked for before the first is used. WHOLE: all lie
// before `end`; otherwise those past it are `none`, and the load is of the first again (a load under a condition would
// wait for the one before it to be used).
constexpr int kBatch = 8;
template <bool WHOLE, class State, class None, class Load, class Add>
__device__ __forceinline__ void add_batch(
    State& state, int64 first, int64 end, int64 step, None none, Load load, Add add) {
    None held[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
        const int64 i = first + j * step;
        held[j] = load(WHOLE || i < end ? i : first);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
        const int64 i = first + j * step;
        if (!WHOLE && i >= end) held[j] = none;
        add(state, held[j], i);
    }
}

// One thread's states of steps first, first + step, ... before end, merged as a tree of LEVEL levels with 32 branches
// below the topmost, so that rounding hardly grows with the length. (Ones added from left to right in float32 stop at
// 2^24.) More levels than the length asks for cost registers. start(i), load(i), add(state, loaded, i), merge(a, b);
// adding `none` changes no state.
template <int LEVEL, class None, class Start, class Load, class Add, class Merge>
__device__ __forceinline__ auto fold(
    int64 first, int64 end, int64 step, None none, Start start, Load load, Add add, Merge merge) {
    if constexpr (LEVEL == 0) {
        auto state = start(first);
        int64 i = first;
#pragma unroll 1
        for (; i + (kBatch - 1) * step < end; i += kBatch * step) add_batch<true>(state, i, end, step, none, load, add);
        if (i < end) add_batch<false>(state, i, end, step, none, load, add);
        return state;
    } else {
        int64 piece = step;
#pragma unroll
        for (int i = 0; i < LEVEL; ++i) piece *= kFold;
        auto state = start(kNone);
#pragma unroll 1
        for (int64 i = first; i < end; i += piece)
            state = merge(
                state, fold<LEVEL - 1>(i, i + piece < end ? i + piece : end, step, none, start, load, add, merge));
        return state;
    }
}

// Every lane of WIDTH neighbours gets their state. All 32 lanes take part.
template <class Op, int WIDTH>
__device__ __forceinline__ typename Op::State lanes_merge(typename Op::State state) {
#pragma unroll
    for (int distance = WIDTH / 2; distance > 0; distance /= 2) state = Op::merge(state, Op::from(state, distance));
    return state;
}

// Every thread of the first warp gets the block's state. `shared`: 32 states; blockDim.x is a multiple of 32.
template <class Op>
__device__ __forceinline__ typename Op::State block_merge(typename Op::State state, typename Op::State* shared) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    state = lanes_merge<Op, kWarp>(state);
    if (lane == 0) shared[warp] = state;
    __syncthreads();
    return lanes_merge<Op, kWarp>(lane < warps ? shared[lane] : Op::start(kNone));
}

// One thread's state of every `lanes`-th element of one reduction, from number `lane` on; `base`: index of number 0.
template <class Op>
__device__ __forceinline__ typename Op::State fold_scalars(
    const float* row, Walk walk, int64 base, int64 lane, int64 end, int64 lanes) {
    using State = typename Op::State;
    const State state = fold<3>(
        lane, end, lanes, Op::kNothing, [](int64 i) { return Op::start(i); },
        [&](int64 i) { return row[i * walk.along_stride]; },
        [](State& s, float value, int64 i) { Op::add(s, value, i); }, [](State a, State b) { return Op::merge(a, b); });
    return Op::at(state, base, walk.along_index);
}
