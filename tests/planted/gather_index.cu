// Gathers rows of a table. Wrong: the index -1, which marks a missing row, is used without a check.
// table: (entries, 4), index: (n,), -1 for no row, y: (n, 4), zeros for no row; block: 32, one thread per row
__global__ void wrong(const float4* table, const int* index, float4* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = table[index[i]];  // BUG
}

__global__ void right(const float4* table, const int* index, float4* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = index[i] >= 0 ? table[index[i]] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
