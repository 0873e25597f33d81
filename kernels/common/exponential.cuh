// The exponential of the kernels that are bound by instructions as soon as memory is fast.
#pragma once

// e^x, 0 where that is no normal number: as __expf, without the steps that save denormals.
__device__ __forceinline__ float exponential(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
    return result;
}
