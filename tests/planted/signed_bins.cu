// Counts of bytes in shared memory. Wrong: the byte is a signed number, negative from 128 on.
// x: (n,), counts: (256,) of 0
template <class Byte>
__device__ __forceinline__ void count_bytes(const unsigned char* x, int* counts, int n) {
    __shared__ int bins[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&bins[static_cast<Byte>(x[i])], 1);  // BUG
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) counts[i] = bins[i];
}

__global__ void wrong(const unsigned char* x, int* counts, int n) {
    count_bytes<signed char>(x, counts, n);
}

__global__ void right(const unsigned char* x, int* counts, int n) {
    count_bytes<unsigned char>(x, counts, n);
}
