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
