// Each kernel of these sources is a template: kernel NAME is the correct one, NAME_wrong has one mistake.
#pragma once
#include <cuda/std/cstdint>

// barriers and states of pipelines in shared memory are initialised by init(), not by their constructors
#pragma nv_diag_suppress static_var_with_dynamic_init

#define KERNEL(name)                                        \
    extern "C" __global__ void name(const int* x, int* y) { \
        name##_kernel<true>(x, y);                          \
    }
#define KERNELS(name)                                               \
    KERNEL(name)                                                    \
    extern "C" __global__ void name##_wrong(const int* x, int* y) { \
        name##_kernel<false>(x, y);                                 \
    }

constexpr int THREADS = 128;
