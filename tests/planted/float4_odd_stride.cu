// Row sums, four values per load. Wrong: if the row stride is not a multiple of 4, most rows are not 16-byte
// aligned.
// x: (rows, stride) of which 8 columns are summed, y: (rows,); one thread per row
__global__ void wrong(const float* x, float* y, int rows, int stride) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float4* from = reinterpret_cast<const float4*>(x + row * stride);
    const float4 a = from[0], b = from[1];  // BUG
    y[row] = a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
}

__global__ void right(const float* x, float* y, int rows, int stride) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float* from = x + row * stride;
    float sum = 0.0f;
    if (reinterpret_cast<unsigned long long>(from) % 16 == 0) {
        const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
        sum = a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
    } else {
        for (int i = 0; i < 8; ++i) sum += from[i];
    }
    y[row] = sum;
}
