// The kernel of the debugger's tests: a templated device function, shared memory, a divergent branch and a race.
template <typename T, int N>
__device__ __noinline__ T weighted(const T* values, int i, T factor) {
    T parts[N];
    for (int k = 0; k < N; k++) {
        parts[k] = values[i] * factor + T(k);  // PART
    }
    T total = 0;
    for (int k = 0; k < N; k++) {
        total += parts[k];
    }
    return total;  // TOTAL
}

extern "C" __global__ void smooth(const float* values, float* out, int n) {
    __shared__ float tile[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;  // INDEX
    tile[threadIdx.x] = values[i];                  // TILE
    __syncthreads();
    float result = 0;  // AFTER
    if (threadIdx.x % 2 == 0) {
        result = weighted<float, 3>(values, i, 2.0f);  // EVEN
    } else {
        result = -tile[threadIdx.x];  // ODD
    }
    out[i] = result;  // STORE
}

extern "C" __global__ void race(const float* values, float* out, int n) {
    __shared__ float tile[64];
    int i = threadIdx.x;
    tile[i] = values[i];              // RACY
    float next = tile[(i + 1) % 64];  // RACE
    out[i] = next;
}
