// Wrong: vector addition without the bounds check: the last block's threads past n read and write out of
// bounds.
#include "../../kernels/common/numbers.cuh"

__global__ void wrong(const float* a, const float* b, float* c, int64 n) {
    const int64 i = global_thread();
    c[i] = a[i] + b[i];
}
