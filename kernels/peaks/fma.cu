// The highest rate of float multiply-adds that instructions reach: nothing but FFMA on registers.
//
// x becomes a * x + b, `steps` times for each of 16 values a thread. A sum waits for itself some four cycles, and the
// other 15 fill them; memory is touched once, at the end.
//
// Bound by: the FMA pipe, two thirds of whose operands are the same register for all 16. Shapes of a roofline's roof.
constexpr int kChains = 16;

// out: (threads,), the sum of a thread's values; any 1-D grid and block
__global__ void __launch_bounds__(256) fma_chains(float* out, float a, float b, int steps) {
    float x[kChains];
#pragma unroll
    for (int i = 0; i < kChains; ++i) x[i] = static_cast<float>(i);
#pragma unroll 8
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int i = 0; i < kChains; ++i) x[i] = fmaf(a, x[i], b);
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kChains; ++i) sum += x[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
