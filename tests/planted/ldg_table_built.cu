// Counts of a table that its first warp builds in a __device__ variable. Wrong: loaded through the read-only cache.
// x: (64,) of 0 to 31, y: (64,): x squared; one block of 64
__device__ int table[32];

__global__ void wrong(const int* x, int* y) {
    const int t = threadIdx.x;
    if (t < 32) atomicExch(&table[t], t * t);  // OTHER
    __syncthreads();
    y[t] = __ldg(&table[x[t]]);  // BUG
}

__global__ void right(const int* x, int* y) {
    const int t = threadIdx.x;
    if (t < 32) atomicExch(&table[t], t * t);
    __syncthreads();
    y[t] = __ldcg(&table[x[t]]);
}
