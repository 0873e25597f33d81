// c[i] = a[i] + b[i], one thread an element.
//
// a, b, c are (n,), contiguous. The grid is ceil(n / block): n / block would leave the ragged end
// unwritten, and one block alone ends at 1024 elements. The guard is for the last block's threads past n.
//
// Bound by: memory, 12 bytes an element; but 4 bytes a lane a load, and one block for every 1024 elements to schedule.
// The float4 rung moves 16 bytes a lane.
#include "../common/numbers.cuh"

// a, b, c: (n,); grid: ceil(n / blockDim.x), any 1-D block
__global__ void vector_add(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int64 n) {
    const int64 i = global_thread();
    if (i < n) c[i] = a[i] + b[i];
}
