// Spreads the least value along a line until nothing changes. Wrong: the flag of the next round is cleared while slower
// threads are still reading this round's.
// x: (gridDim.x, 64), changed in place: each cell the least of the cells to its left; block: 64
__global__ void wrong(int* x) {
    __shared__ int values[64], changed;
    const int t = threadIdx.x;
    values[t] = x[blockIdx.x * 64 + t];
    do {
        if (t == 0) changed = 0;  // BUG, OTHER
        __syncthreads();
        const int left = values[max(t - 1, 0)];
        __syncthreads();
        if (left < values[t]) {
            values[t] = left;
            changed = 1;
        }
        __syncthreads();
    } while (changed);  // BUG, OTHER
    x[blockIdx.x * 64 + t] = values[t];
}

__global__ void right(int* x) {
    __shared__ int values[64], changed;
    const int t = threadIdx.x;
    values[t] = x[blockIdx.x * 64 + t];
    int again;
    do {
        if (t == 0) changed = 0;
        __syncthreads();
        const int left = values[max(t - 1, 0)];
        __syncthreads();
        if (left < values[t]) {
            values[t] = left;
            changed = 1;
        }
        __syncthreads();
        again = changed;
        __syncthreads();
    } while (again);
    x[blockIdx.x * 64 + t] = values[t];
}
