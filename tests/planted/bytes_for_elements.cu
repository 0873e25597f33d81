// Clears an array of doubles. Wrong: the size in bytes is taken as the number of elements.
// x: (n,)
__global__ void wrong(double* x, int n) {
    const int size = n * sizeof(double);
    for (int i = threadIdx.x; i < size; i += blockDim.x) x[i] = 0.0;  // BUG
}

__global__ void right(double* x, int n) {
    const int size = n * sizeof(double);
    for (int i = threadIdx.x; i < size / sizeof(double); i += blockDim.x) x[i] = 0.0;
}
