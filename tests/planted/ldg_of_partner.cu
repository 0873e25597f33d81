// Averages with the partner at growing distances, by warps; the values are in global memory. Wrong: the partner's value
// is loaded with __ldg().
// x: (gridDim.x, 32), y: (gridDim.x, 32); block: 32
__global__ void wrong(const float* x, float* y) {
    const int t = threadIdx.x, i = blockIdx.x * 32 + t;
    float value = x[i];
    for (int step = 1; step < 32; step *= 2) {
        __syncwarp();
        y[i] = value;  // OTHER
        __syncwarp();
        value = 0.5f * (value + __ldg(&y[i ^ step]));  // BUG
    }
    __syncwarp();
    y[i] = value;
}

__global__ void right(const float* x, float* y) {
    const int t = threadIdx.x, i = blockIdx.x * 32 + t;
    float value = x[i];
    for (int step = 1; step < 32; step *= 2) {
        __syncwarp();
        y[i] = value;
        __syncwarp();
        value = 0.5f * (value + y[i ^ step]);
    }
    __syncwarp();
    y[i] = value;
}
