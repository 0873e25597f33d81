// Blocks count the positive values of an array. Wrong: the atomics have block scope.
// x: (n,), count: (1,) of 0
__global__ void wrong(const int* x, int* count, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] > 0) atomicAdd_block(count, 1);  // BUG, OTHER
}

__global__ void right(const int* x, int* count, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] > 0) atomicAdd(count, 1);
}
