// Keeps the positive values in any order, one atomic per group of lanes that take the branch together. Wrong: the
// leader broadcasts its position by a shuffle whose mask names all lanes. Correct: by a coalesced group.
// x: (n,), kept: (n,), count: (1,) of 0; block: 64
#include <cooperative_groups.h>

__global__ void wrong(const int* x, int* kept, int* count, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] > 0) {
        const unsigned group = __activemask();
        const int leader = __ffs(group) - 1, lane = threadIdx.x % 32;
        int first = 0;
        if (lane == leader) first = atomicAdd(count, __popc(group));
        first = __shfl_sync(0xffffffffu, first, leader);  // BUG
        kept[first + __popc(group & ((1u << lane) - 1))] = x[i];
    }
    __syncwarp();
}

__global__ void right(const int* x, int* kept, int* count, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] > 0) {
        const auto group = cooperative_groups::coalesced_threads();
        int first = 0;
        if (group.thread_rank() == 0) first = atomicAdd(count, group.size());
        first = group.shfl(first, 0);
        kept[first + group.thread_rank()] = x[i];
    }
    __syncwarp();
}
