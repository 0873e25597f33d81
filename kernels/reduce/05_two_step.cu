// Sum, max or argmax of few long rows, or of a whole array: blocks reduce chunks, a second launch reduces the chunks'
// results.
//
// x as in 01_thread_per_row.cu; `parts`: scratch for kept * chunks states. Without atomics: if blocks added floats in
// order of arrival, the result would differ from run to run.
//
// Bottleneck: memory bandwidth; for small arrays, the second launch.
#include "vectors.cuh"

// grid: kept * chunks, block: BLOCK; `each`: elements per chunk
template <class Op, int BLOCK>
__global__ void __launch_bounds__(BLOCK) reduce_chunks(const float* x, typename Op::State* parts, int64 kept_stride,
    int64 along_stride, int64 kept_index, int64 along_index, int64 chunks, int64 each, int64 length) {
    __shared__ typename Op::State shared[kWarp];
    const Walk walk{kept_stride, along_stride, kept_index, along_index};
    const int64 k = blockIdx.x / chunks, first = blockIdx.x % chunks * each;
    const int64 left = length - first, count = left < 0 ? 0 : left < each ? left : each;
    const float* from = x + k * kept_stride + first * along_stride;
    const int64 base = k * kept_index + first * along_index;
    const auto all = block_merge<Op>(fold_vectors<Op>(from, walk, base, count, threadIdx.x, BLOCK), shared);
    if (threadIdx.x == 0) parts[blockIdx.x] = all;
}

// grid: one block per result, block: BLOCK; `chunks`: states per result
template <class Op, class Result, int BLOCK>
__global__ void __launch_bounds__(BLOCK) finish_chunks(
    const typename Op::State* parts, Result* y, int64 y_stride, int64 chunks) {
    using State = typename Op::State;
    __shared__ State shared[kWarp];
    parts += blockIdx.x * chunks;
    const State mine = fold<2>(
        threadIdx.x, chunks, BLOCK, Op::start(kNone), [](int64) { return Op::start(kNone); },
        [&](int64 i) { return parts[i]; }, [](State& state, State part, int64) { state = Op::merge(state, part); },
        [](State a, State b) { return Op::merge(a, b); });
    const State all = block_merge<Op>(mine, shared);
    if (threadIdx.x == 0) y[blockIdx.x * y_stride] = Op::result(all);
}
