// NVRTC's built-in environment for clang: its macros, and its declarations, which are those of CUDA's own headers in the
// form that they have for NVRTC. `cudakit clangd` has clangd include this file before each source; nothing compiles it.
#pragma once
#pragma clang system_header // no warnings in here

// NVRTC defines none of these. CUDA's headers would take another compiler's branch by them.
#undef __clang__
#undef __clang_major__
#undef __clang_minor__
#undef __clang_patchlevel__
#undef __GNUC__
#undef __GNUC_MINOR__
#undef __GNUC_PATCHLEVEL__
#undef __CUDA__
#undef __NVPTX__
#undef __SIZEOF_INT128__
#undef __ELF__
#undef __amd64__
#undef __x86_64__
#undef __aarch64__
#undef __gnu_linux__
#undef __linux__
#undef __unix__
#undef _GNU_SOURCE
#undef _LP64

// The version and the architecture's macros are on the command line.
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDACC_DEVICE_ATOMIC_BUILTINS__ 1
#define __NVCC_DIAG_PRAGMA_SUPPORT__ 1
#define __NV_BUILTIN_INITIALIZER_LIST 1
#define __NV_BUILTIN_MOVE_FORWARD 1
#define __USE_FAST_MATH__ 0
#define __CUDA_FTZ 0
#define __CUDA_PREC_DIV 1
#define __CUDA_PREC_SQRT 1

#define NULL 0
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef long clock_t;

#include <crt/host_config.h>
// NVRTC's front end has functions for these.
#undef va_start
#undef va_arg
#undef va_copy
#undef va_end
#define va_start(list, last) __builtin_va_start(list, last)
#define va_arg(list, type) __builtin_va_arg(list, type)
#define va_copy(to, from) __builtin_va_copy(to, from)
#define va_end(list) __builtin_va_end(list)

#include <builtin_types.h>
#include <crt/host_defines.h>
#include <library_types.h>
#include <nv/target>

// Attributes that clang does not know.
#undef __inline_hint__
#define __inline_hint__
#undef __nv_pure__
#define __nv_pure__
#undef __managed__
#define __managed__ __device__
#undef __local_maxnreg__
#define __local_maxnreg__(count)
#undef __block_size__
#define __block_size__(...)

namespace std {
template <class T> struct __unreferenced {
    using type = T;
};
template <class T> struct __unreferenced<T&> {
    using type = T;
};
template <class T> struct __unreferenced<T&&> {
    using type = T;
};

template <class T> __host__ __device__ constexpr typename __unreferenced<T>::type&& move(T&& value) noexcept {
    return static_cast<typename __unreferenced<T>::type&&>(value);
}
template <class T> __host__ __device__ constexpr T&& forward(typename __unreferenced<T>::type& value) noexcept {
    return static_cast<T&&>(value);
}
template <class T> __host__ __device__ constexpr T&& forward(typename __unreferenced<T>::type&& value) noexcept {
    return static_cast<T&&>(value);
}

template <class E> class initializer_list {
    const E* __first; // clang fills these two in
    size_t __count;

  public:
    using value_type = E;
    using reference = const E&;
    using const_reference = const E&;
    using size_type = size_t;
    using iterator = const E*;
    using const_iterator = const E*;
    __host__ __device__ constexpr initializer_list() noexcept : __first(nullptr), __count(0) {
    }
    __host__ __device__ constexpr size_t size() const noexcept {
        return __count;
    }
    __host__ __device__ constexpr const E* begin() const noexcept {
        return __first;
    }
    __host__ __device__ constexpr const E* end() const noexcept {
        return __first + __count;
    }
};
} // namespace std

// Built into NVRTC's front end; the functions of textures and surfaces call it.
template <class... T> __device__ void __nv_tex_surf_handler(const char* operation, T&&... operands);

#include <vector_functions.h>

#include <crt/device_functions.h>

// Without relocatable device code NVRTC has no runtime API: its header counts as included.
#define __CUDA_DEVICE_RUNTIME_API_H__
#include <crt/math_functions.h>

// clang has a host's `operator new` and `delete` built in. A device's may stand beside them, and one for both may not;
// nor may it be noexcept if the built-in one is not.
#undef __host__
#define __host__
#define noexcept
#include <crt/common_functions.h>
#undef noexcept
#undef __host__
#define __host__ __attribute__((host))
#undef __CUDA_DEVICE_RUNTIME_API_H__

#include <device_launch_parameters.h>

#define __CUDA_RUNTIME_H__ // all of it is above

// Built into NVRTC's front end. The last argument is a scope.
#define __CUDAKIT_SCOPE int scope = __NV_THREAD_SCOPE_SYSTEM
template <class T> __device__ void __nv_atomic_load(const T* from, T* result, int order, __CUDAKIT_SCOPE);
template <class T> __device__ T __nv_atomic_load_n(const T* from, int order, __CUDAKIT_SCOPE);
template <class T> __device__ void __nv_atomic_store(T* to, T* value, int order, __CUDAKIT_SCOPE);
template <class T, class V> __device__ void __nv_atomic_store_n(T* to, V value, int order, __CUDAKIT_SCOPE);
template <class T> __device__ void __nv_atomic_exchange(T* at, T* value, T* result, int order, __CUDAKIT_SCOPE);
template <class T, class V> __device__ T __nv_atomic_exchange_n(T* at, V value, int order, __CUDAKIT_SCOPE);
template <class T>
__device__ bool __nv_atomic_compare_exchange(T* at, T* expected, T* value, bool weak, int success, int failure,
                                             __CUDAKIT_SCOPE);
template <class T, class V>
__device__ bool __nv_atomic_compare_exchange_n(T* at, T* expected, V value, bool weak, int success, int failure,
                                               __CUDAKIT_SCOPE);
__device__ void __nv_atomic_thread_fence(int order, __CUDAKIT_SCOPE);
#define __CUDAKIT_ATOMIC(name)                                                                                         \
    template <class T, class V> __device__ T __nv_atomic_fetch_##name(T* at, V value, int order, __CUDAKIT_SCOPE);     \
    template <class T, class V> __device__ void __nv_atomic_##name(T* at, V value, int order, __CUDAKIT_SCOPE);
__CUDAKIT_ATOMIC(add)
__CUDAKIT_ATOMIC(sub)
__CUDAKIT_ATOMIC(and)
__CUDAKIT_ATOMIC(or)
__CUDAKIT_ATOMIC(xor)
__CUDAKIT_ATOMIC(min)
__CUDAKIT_ATOMIC(max)
#undef __CUDAKIT_ATOMIC
#undef __CUDAKIT_SCOPE
