// The distance of each point from its mirror image in the block, through records in shared memory. Wrong: the third
// coordinate of flat points is not set. The records' 4 bytes of padding are never written.
// x: (gridDim.x, 64, 3), flat: (gridDim.x, 64), y: (gridDim.x, 64) squared distances; block: 64
struct alignas(16) Point {
    float x, y, z;
};

template <bool SET>
__device__ __forceinline__ void distances(const float* x, const int* flat, float* y) {
    __shared__ Point points[64];
    const int t = threadIdx.x, i = blockIdx.x * 64 + t;
    points[t].x = x[3 * i];
    points[t].y = x[3 * i + 1];
    if (SET || !flat[i]) points[t].z = flat[i] ? 0.0f : x[3 * i + 2];
    __syncthreads();
    const Point p = points[t], q = points[63 - t];  // BUG
    const float dx = p.x - q.x, dy = p.y - q.y, dz = p.z - q.z;
    y[i] = dx * dx + dy * dy + dz * dz;
}

__global__ void wrong(const float* x, const int* flat, float* y) {
    distances<false>(x, flat, y);
}

__global__ void right(const float* x, const int* flat, float* y) {
    distances<true>(x, flat, y);
}
