// Four steps of smoothing between two buffers in one cooperative launch, with a hand-written grid barrier. Wrong: the
// barrier has no fences.
// a, b: (gridDim.x * blockDim.x,), a ring; a holds the result, came: (1,) of 0; a cooperative launch
template <bool FENCE>
__device__ __forceinline__ void grid_barrier(unsigned* came, unsigned goal) {
    __syncthreads();
    if (threadIdx.x == 0) {
        if (FENCE) __threadfence();
        atomicAdd(came, 1);
        while (*static_cast<volatile unsigned*>(came) < goal) {
        }
        if (FENCE) __threadfence();
    }
    __syncthreads();
}

template <bool FENCE>
__device__ __forceinline__ void smooth(float* a, float* b, unsigned* came) {
    const int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int step = 0; step < 4; ++step) {
        const float* from = step % 2 == 0 ? a : b;
        float* to = step % 2 == 0 ? b : a;
        to[i] = from[(i + n - 1) % n] + from[(i + 1) % n];  // BUG, OTHER
        grid_barrier<FENCE>(came, (step + 1) * gridDim.x);
    }
}

__global__ void wrong(float* a, float* b, unsigned* came) {
    smooth<false>(a, b, came);
}

__global__ void right(float* a, float* b, unsigned* came) {
    smooth<true>(a, b, came);
}
