// Adds the numbers of all blocks to a float total. Wrong: each thread adds 1, which has no effect above 2^24.
// total: (1,)
__global__ void wrong(float* total) {
    atomicAdd(total, 1.0f);  // BUG
}

__global__ void right(float* total) {
    const int added = __syncthreads_count(1);
    if (threadIdx.x == 0) atomicAdd(total, (float)added);
}
