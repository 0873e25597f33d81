// The part of <cuda.h> that kernels need, for NVRTC, which cannot read the driver API: the tensor map.
#pragma once

#if !defined(__CUDACC_RTC__)
#error "this <cuda.h> is for NVRTC: put the include folder of CUDA before kernels/common"
#endif

#define CUDA_VERSION (__CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10)
#define CU_TENSOR_MAP_NUM_QWORDS 16

typedef unsigned int cuuint32_t;
typedef unsigned long long cuuint64_t;
typedef unsigned long long CUdeviceptr;

// Made by the driver (cudakit.TensorMap); a kernel takes it as `const __grid_constant__ CUtensorMap map`.
#if __CUDACC_VER_MAJOR__ >= 13
typedef struct alignas(128) CUtensorMap_st {
#else
typedef struct alignas(64) CUtensorMap_st {
#endif
    cuuint64_t opaque[CU_TENSOR_MAP_NUM_QWORDS];
} CUtensorMap;
