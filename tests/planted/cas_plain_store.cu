// Adds to a double with atomicCAS. The plain first read is harmless: the atomicCAS confirms its value. Wrong: one
// thread also adds with a plain store, which is not atomic.
// x: (n,), sum: (1,) of 0
__device__ void add(double* address, double value) {
    unsigned long long* bits = reinterpret_cast<unsigned long long*>(address);
    unsigned long long old = *bits, assumed;
    do {
        assumed = old;
        old = atomicCAS(bits, assumed, __double_as_longlong(value + __longlong_as_double(assumed)));  // BUG, OTHER
    } while (assumed != old);
}
__global__ void wrong(const double* x, double* sum, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0)
        *sum = *sum + x[0];  // BUG, OTHER
    else if (i < n)
        add(sum, x[i]);
}

__global__ void right(const double* x, double* sum, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) add(sum, x[i]);
}
