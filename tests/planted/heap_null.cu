// Scratch from malloc(). Wrong: its result is not compared with null.
// x, y: (n,); bytes: the size of the scratch
template <bool RIGHT>
__device__ __forceinline__ void body(const int* x, int* y, long long bytes, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int* scratch = static_cast<int*>(malloc(bytes));
    if (RIGHT && scratch == nullptr) {
        y[i] = x[i];
        return;
    }
    scratch[0] = x[i];  // BUG
    y[i] = scratch[0];
    free(scratch);
}

__global__ void wrong(const int* x, int* y, long long bytes, int n) {
    body<false>(x, y, bytes, n);
}

__global__ void right(const int* x, int* y, long long bytes, int n) {
    body<true>(x, y, bytes, n);
}
