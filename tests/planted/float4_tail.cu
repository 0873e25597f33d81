// Doubles an array, four values per thread. Wrong: the number of groups is rounded up, and the last group runs past the
// end.
// x, y: (n,), 16-byte aligned
__global__ void wrong(const float* x, float* y, int n) {
    const int group = blockIdx.x * blockDim.x + threadIdx.x;
    if (group >= (n + 3) / 4) return;
    const float4 v = reinterpret_cast<const float4*>(x)[group];  // BUG
    reinterpret_cast<float4*>(y)[group] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
}

__global__ void right(const float* x, float* y, int n) {
    const int group = blockIdx.x * blockDim.x + threadIdx.x;
    if (group < n / 4) {
        const float4 v = reinterpret_cast<const float4*>(x)[group];
        reinterpret_cast<float4*>(y)[group] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
    } else if (group == n / 4) {
        for (int i = 4 * group; i < n; ++i) y[i] = 2 * x[i];
    }
}
