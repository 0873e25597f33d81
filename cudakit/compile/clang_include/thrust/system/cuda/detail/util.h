// A template in the real header, which no device code uses, calls a function that CUB does not declare for NVRTC. NVRTC
// looks for it when the template is used, clang where it is written.
#pragma once
#pragma clang system_header
#include <thrust/system/cuda/config.h>
CUB_NAMESPACE_BEGIN
cudaError_t SyncStream(cudaStream_t stream);
CUB_NAMESPACE_END
#include_next <thrust/system/cuda/detail/util.h>
