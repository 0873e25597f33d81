// A static_assert in the real header computes an address from a null pointer. NVRTC does; clang refuses.
#pragma once
#pragma clang system_header
#pragma push_macro("static_assert")
#define static_assert(...)
#include_next <cuda/__barrier/barrier_block_scope.h>
#pragma pop_macro("static_assert")
