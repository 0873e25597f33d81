// Sum, max or argmax along one axis of a matrix: one thread per result.
//
// x: element i of reduction k is x[k * kept_stride + i * along_stride]; strides have any sign. y: one result every
// y_stride elements. The matrix has `kept` reductions of `length` elements each.
//
// Bottleneck: uncoalesced access if rows are reduced. Neighbouring threads read addresses a whole row apart: 32 sectors
// per request, an eighth of each used. If columns are reduced, accesses are coalesced, but there are too few threads.
// The next variant uses one block per row.
#include "operators.cuh"

// grid: 1-D, at least one thread for each of the `kept` reductions
template <class Op, class Result>
__global__ void thread_per_row(const float* x, Result* y, int64 kept_stride, int64 along_stride, int64 kept_index,
    int64 along_index, int64 y_stride, int64 kept, int64 length) {
    const int64 k = global_thread();
    if (k >= kept) return;
    const Walk walk{kept_stride, along_stride, kept_index, along_index};
    y[k * y_stride] = Op::result(fold_scalars<Op>(x + k * kept_stride, walk, k * kept_index, 0, length, 1));
}
