// Sum, max or argmax down the columns: a warp reads neighbouring columns, so its loads are coalesced; each block takes
// a slab of rows.
//
// x as in 01_thread_per_row.cu. VEC = 4 needs neighbouring columns that are contiguous and 16-byte aligned. `parts`:
// scratch for slabs * kept states, slab by slab; a second launch combines the slabs. With a single slab, results go
// directly to y. A block of 32 x ROWS threads takes 32 * VEC columns; its ROWS warps share the slab's rows, and a tree
// in shared memory combines the warps' states.
//
// Bottleneck: memory bandwidth.
#include "../common/pack.cuh"
#include "operators.cuh"

template <class Op, int VEC>
struct States {
    typename Op::State at[VEC];
};

// Combines the states that ROWS warps hold of the same columns; the first warp gets the result.
template <class Op, int VEC, int ROWS>
__device__ __forceinline__ States<Op, VEC> merge_down(States<Op, VEC> mine, States<Op, VEC> (&shared)[ROWS][kWarp]) {
    static_assert((ROWS & (ROWS - 1)) == 0, "the tree halves");
    if constexpr (ROWS == 1) return mine;
    shared[threadIdx.y][threadIdx.x] = mine;
    __syncthreads();
    for (int half = ROWS / 2; half > 0; half /= 2) {
        if (threadIdx.y < half) {
#pragma unroll
            for (int v = 0; v < VEC; ++v)
                mine.at[v] = Op::merge(mine.at[v], shared[threadIdx.y + half][threadIdx.x].at[v]);
            shared[threadIdx.y][threadIdx.x] = mine;
        }
        __syncthreads();
    }
    return mine;
}

// grid: slabs * tiles, block: (32, ROWS); `each`: rows per slab
template <class Op, class Result, int VEC, int ROWS>
__global__ void __launch_bounds__(kWarp* ROWS) column_slabs(const float* x, typename Op::State* parts, Result* y,
    int64 kept_stride, int64 along_stride, int64 kept_index, int64 along_index, int64 y_stride, int64 slabs, int64 each,
    int64 kept, int64 length) {
    using Held = States<Op, VEC>;
    __shared__ Held shared[ROWS][kWarp];
    const int64 slab = blockIdx.x % slabs, column = (blockIdx.x / slabs * kWarp + threadIdx.x) * VEC;
    const int64 first = slab * each, last = first + each < length ? first + each : length;
    const float* from = x + column * kept_stride;
    Pack<float, VEC> nothing;
#pragma unroll
    for (int v = 0; v < VEC; ++v) nothing.at[v] = Op::kNothing;
    const Held mine = fold<2>(
        first + threadIdx.y, column < kept ? last : 0, ROWS, nothing,
        [&](int64 i) {
            Held held;
#pragma unroll
            for (int v = 0; v < VEC; ++v) held.at[v] = Op::start(i);
            return held;
        },
        [&](int64 i) { return *reinterpret_cast<const Pack<float, VEC>*>(from + i * along_stride); },
        [&](Held& held, const Pack<float, VEC>& values, int64 i) {
#pragma unroll
            for (int v = 0; v < VEC; ++v) Op::add(held.at[v], values.at[v], i);
        },
        [](Held a, Held b) {
#pragma unroll
            for (int v = 0; v < VEC; ++v) a.at[v] = Op::merge(a.at[v], b.at[v]);
            return a;
        });
    const Held all = merge_down<Op, VEC, ROWS>(mine, shared);
    if (threadIdx.y == 0 && column < kept) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
            const auto state = Op::at(all.at[v], (column + v) * kept_index, along_index);
            if (slabs == 1)
                y[(column + v) * y_stride] = Op::result(state);
            else
                parts[slab * kept + column + v] = state;
        }
    }
}

// grid: ceil(kept / 32), block: (32, ROWS)
template <class Op, class Result, int ROWS>
__global__ void __launch_bounds__(kWarp* ROWS) finish_columns(
    const typename Op::State* parts, Result* y, int64 y_stride, int64 slabs, int64 kept) {
    using Held = States<Op, 1>;
    __shared__ Held shared[ROWS][kWarp];
    const int64 column = static_cast<int64>(blockIdx.x) * kWarp + threadIdx.x;
    const Held mine = fold<2>(
        threadIdx.y, column < kept ? slabs : 0, ROWS, Op::start(kNone), [](int64) { return Held{{Op::start(kNone)}}; },
        [&](int64 i) { return parts[i * kept + column]; },
        [](Held& held, typename Op::State part, int64) { held.at[0] = Op::merge(held.at[0], part); },
        [](Held a, Held b) { return Held{{Op::merge(a.at[0], b.at[0])}}; });
    const Held all = merge_down<Op, 1, ROWS>(mine, shared);
    if (threadIdx.y == 0 && column < kept) y[column * y_stride] = Op::result(all.at[0]);
}
