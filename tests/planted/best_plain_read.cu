// The largest value. Wrong: reads the maximum so far with a plain load while other blocks change it.
// x: (n,), best: (1,) of the least int; block: 64
__global__ void wrong(const int* x, int* best, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] > *best) atomicMax(best, x[i]);  // BUG, OTHER
}

__global__ void right(const int* x, int* best, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] > *static_cast<volatile int*>(best)) atomicMax(best, x[i]);
}
