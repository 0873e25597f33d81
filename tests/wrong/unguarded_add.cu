// Wrong: vector addition whose guard was dropped: the threads of the last block past n read and write beside the
// arrays.
#include "../../kernels/common/numbers.cuh"

__global__ void wrong(const float* a, const float* b, float* c, int64 n) {
    const int64 i = global_thread();
    c[i] = a[i] + b[i];
}
