// Histogram: adds the count of each value of x to counts. x: [n], values below bins; counts: [bins], not cleared here.

// One atomic in global memory per value. grid: any that covers n.
__global__ void global_atomics(const int* x, unsigned* counts, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&counts[x[i]], 1u);
}

// A histogram per block in shared memory, added to the result at the end. grid: any; shared: bins * 4 bytes.
__global__ void per_block(const int* x, unsigned* counts, int n, int bins) {
    extern __shared__ unsigned mine[];
    for (int bin = threadIdx.x; bin < bins; bin += blockDim.x) mine[bin] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&mine[x[i]], 1u);
    __syncthreads();
    for (int bin = threadIdx.x; bin < bins; bin += blockDim.x)
        if (mine[bin]) atomicAdd(&counts[bin], mine[bin]);
}

// ITEMS values per thread. Bug on purpose: no __syncthreads() between the last two loops.
template <int ITEMS>
__global__ void per_block_items(const int* x, unsigned* counts, int n, int bins) {
    extern __shared__ unsigned mine[];
    for (int bin = threadIdx.x; bin < bins; bin += blockDim.x) mine[bin] = 0;
    __syncthreads();
    const int first = blockIdx.x * blockDim.x * ITEMS + threadIdx.x;
    for (int item = 0; item < ITEMS; ++item) {
        const int i = first + item * blockDim.x;
        if (i < n) atomicAdd(&mine[x[i]], 1u);
    }
    for (int bin = threadIdx.x; bin < bins; bin += blockDim.x)
        if (mine[bin]) atomicAdd(&counts[bin], mine[bin]);
}
