// Sum, max or argmax along one axis: one block per result, combined by a tree in shared memory.
//
// Parameters as in 01_thread_per_row.cu.
//
// Bottleneck: barriers. The tree needs a barrier per halving, with half as many active threads each time. The next
// variant combines within warps, which needs no barrier.
#include "operators.cuh"

// grid: kept, block: BLOCK
template <class Op, class Result, int BLOCK>
__global__ void __launch_bounds__(BLOCK) shared_tree(const float* x, Result* y, int64 kept_stride, int64 along_stride,
    int64 kept_index, int64 along_index, int64 y_stride, int64 kept, int64 length) {
    static_assert((BLOCK & (BLOCK - 1)) == 0, "the tree halves");
    __shared__ typename Op::State states[BLOCK];
    const Walk walk{kept_stride, along_stride, kept_index, along_index};
    const int64 k = blockIdx.x;
    const int t = threadIdx.x;
    states[t] = fold_scalars<Op>(x + k * kept_stride, walk, k * kept_index, t, length, BLOCK);
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (t < half) states[t] = Op::merge(states[t], states[t + half]);
        __syncthreads();
    }
    if (t == 0) y[k * y_stride] = Op::result(states[0]);
}
