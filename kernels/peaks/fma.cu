// Measures the peak FP32 rate: FFMA instructions on registers only.
//
// Each thread computes x = a * x + b `steps` times for 16 independent values. A value must wait about four cycles for
// its last FFMA; the other 15 keep the pipe busy. Memory is written once, at the end.
//
// Bottleneck: the FMA pipe; two of three operands are the same registers for all values. It is the roofline's roof.
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
