// Products of pairs in 32 bits, with a trap on overflow. Wrong: the check treats negative products as overflow.
// a, b, y: (n,)
__global__ void wrong(const int* a, const int* b, int* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int product = a[i] * b[i];
    if (__mulhi(a[i], b[i]) != 0) __trap();  // BUG
    y[i] = product;
}

__global__ void right(const int* a, const int* b, int* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int product = a[i] * b[i];
    if (__mulhi(a[i], b[i]) != product >> 31) __trap();
    y[i] = product;
}
