// Adds to a float with compare-and-swap and counts the attempts. Wrong: after a failed attempt the old value is not
// read again.
// x: (n,), sum: (1,) of 0, attempts: (1,) of 0; block: 32
__global__ void wrong(const float* x, float* sum, int* attempts, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int* bits = reinterpret_cast<int*>(sum);
    const int old = 0;
    while (atomicCAS(bits, old, __float_as_int(__int_as_float(old) + x[i])) != old)  // BUG
        atomicAdd(attempts, 1);
}

__global__ void right(const float* x, float* sum, int* attempts, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int* bits = reinterpret_cast<int*>(sum);
    int old = 0, seen;
    while ((seen = atomicCAS(bits, old, __float_as_int(__int_as_float(old) + x[i]))) != old) {
        old = seen;
    }
}
