// Kernels for the planted bugs of host code; the kernels themselves are correct.

struct View {
    const float* data;
    int size;
};

// x, y: (n,)
__global__ void scale(const float* x, float* y, float factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];  // BUG
}

// y: (view.size,)
__global__ void scale_view(View view, float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < view.size) y[i] = 2.0f * view.data[i];  // BUG
}

__constant__ float factors[4];
__device__ float offsets[64];
__device__ int counter;

// x, y: (n,)
__global__ void scale_by_constant(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factors[i % 4] * x[i];
}

__global__ void set_offsets(float first) {
    offsets[threadIdx.x] = first + threadIdx.x;
}

// y: (64,)
__global__ void get_offsets(float* y) {
    y[threadIdx.x] = offsets[threadIdx.x];
}

// x: (n,)
__global__ void count_large(const float* x, float limit, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] > limit) atomicAdd(&counter, 1);
}
