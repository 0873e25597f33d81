// Sum, max or argmax along one axis: LANES threads per result, 16-byte loads, several in flight.
//
// Parameters as in 01_thread_per_row.cu. LANES is part of a warp for short rows, so that a block has several rows.
//
// Bottleneck: memory bandwidth, if there are enough reductions to fill the chip. A single long row uses only one SM;
// the next variant splits it.
#include "vectors.cuh"

// grid: ceil(kept / (BLOCK / LANES)), block: BLOCK; LANES: BLOCK, or a power of two up to 32
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
