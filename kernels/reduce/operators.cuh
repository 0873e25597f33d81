// Shared by sum, max and argmax: the state of a reduction, how a thread folds its elements into a state, and how the
// states of a warp and of a block are combined.
//
// An operator has a State type, start(index) (the state before the element of that index), add(state, value, index) for
// increasing indices, merge of two states in either order, and result. Adding kNothing does not change a state.
#pragma once
#include "../common/numbers.cuh"

constexpr int64 kNone = 0x7fffffffffffffff;  // an index after all others
constexpr int kFold = 32;

// The layout of x: element i of reduction k is x[k * kept_stride + i * along_stride], and its index is k * kept_index +
// i * along_index.
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

// a != a keeps a NaN: fmaxf would drop it, and numpy's maximum of a row with a NaN is NaN.
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

// A NaN is greater than all numbers; of equal values the first wins. `merge` compares indices, so that a tie does not
// depend on the order of the warps.
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
    // Converts the element's number in its reduction to its index. Counting numbers saves a multiplication per element.
    __device__ __forceinline__ static State at(State best, int64 base, int64 step) {
        return {best.value, best.index == kNone ? kNone : base + best.index * step};
    }
    __device__ __forceinline__ static Result result(State best) { return best.index; }
};

// Adds elements first, first + step, ... (kBatch of them) to a state, all loaded before the first is used. WHOLE: all
// are before `end`. Otherwise an element past `end` counts as `none`, and its load reads `first` again, because a
// conditional load would wait until the previous one is used.
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

// Folds elements first, first + step, ... before end into one state, as a tree of LEVEL levels with 32 branches each
// below the top, so that rounding errors hardly grow with the length. (Ones added one by one in float32 stop at 2^24.)
// Unneeded levels cost registers. start(i), load(i), add(state, loaded, i), merge(a, b); adding `none` does not change
// a state.
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

// Combines the states of WIDTH neighbouring lanes; each of them gets the result. All 32 lanes must call it.
template <class Op, int WIDTH>
__device__ __forceinline__ typename Op::State lanes_merge(typename Op::State state) {
#pragma unroll
    for (int distance = WIDTH / 2; distance > 0; distance /= 2) state = Op::merge(state, Op::from(state, distance));
    return state;
}

// Combines the block's states; every thread of the first warp gets the result. `shared`: 32 states; blockDim.x is a
// multiple of 32.
template <class Op>
__device__ __forceinline__ typename Op::State block_merge(typename Op::State state, typename Op::State* shared) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    state = lanes_merge<Op, kWarp>(state);
    if (lane == 0) shared[warp] = state;
    __syncthreads();
    return lanes_merge<Op, kWarp>(lane < warps ? shared[lane] : Op::start(kNone));
}

// Folds every `lanes`-th element of one reduction, starting at number `lane`, into one state; `base`: index of number
// 0.
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
