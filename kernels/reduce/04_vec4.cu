// Sum, maximum or its place along one axis: LANES threads a reduction, 16-byte loads, several in flight.
//
// Parameters as in 01_thread_per_row.cu. Bound by memory where there are reductions enough to fill the chip. One long
// row keeps one multiprocessor busy: the next rung parts it.
#include "vectors.cuh"

// grid: ceil(kept / (BLOCK / LANES)), block: BLOCK; LANES: a power of two up to 32, or BLOCK
template <class Op, class Result, int BLOCK, int LANES>
__global__ void __launch_bounds__(BLOCK) vec4(const float* x, Result* y, int64 kept_stride, int64 along_stride,
    int64 kept_index, int64 along_index, int64 y_stride, int64 kept, int64 length) {
    static_assert(LANES == BLOCK || (LANES <= kWarp && (LANES & (LANES - 1)) == 0), "part of a warp, or a block");
    const Walk walk{kept_stride, along_stride, kept_index, along_index};
    const int lane = threadIdx.x % LANES;
    const int64 k = static_cast<int64>(blockIdx.x) * (BLOCK / LANES) + threadIdx.x / LANES;
    auto state = Op::start(kNone);
    if (k < kept) state = fold_vectors<Op>(x + k * kept_stride, walk, k * kept_index, length, lane, LANES);
    if constexpr (LANES <= kWarp) {
        state = lanes_merge<Op, LANES>(state);
    } else {
        __shared__ typename Op::State shared[kWarp];
        state = block_merge<Op>(state, shared);
    }
    if (lane == 0 && k < kept) y[k * y_stride] = Op::result(state);
}
