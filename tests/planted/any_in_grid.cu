// Reports whether an array holds a negative value. Wrong: each block that finds one stores its own number. Correct: all
// store the same 1, which is harmless.
// x: (n,), found: (1,) of 0; block: 64
__global__ void wrong(const int* x, int* found, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (__syncthreads_or(i < n && x[i] < 0) && threadIdx.x == 0) *found = blockIdx.x + 1;  // BUG, OTHER
}

__global__ void right(const int* x, int* found, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (__syncthreads_or(i < n && x[i] < 0) && threadIdx.x == 0) *found = 1;
}
