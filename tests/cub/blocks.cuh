// One block of 96 threads with four items each: a tile of 384. Partial tiles have 301 items.
#pragma once
constexpr int THREADS = 96, ITEMS = 4, TILE = THREADS * ITEMS, PART = 301;

template <class T>
__device__ void read(const int* x, T (&v)[ITEMS]) {
    for (int i = 0; i < ITEMS; i++) v[i] = T(x[threadIdx.x * ITEMS + i]);
}
template <class T>
__device__ void write(int* y, const T (&v)[ITEMS]) {
    for (int i = 0; i < ITEMS; i++) y[threadIdx.x * ITEMS + i] = int(v[i]);
}
// NVRTC does not compile cub::Inequality.
struct Unequal {
    __device__ bool operator()(int a, int b) const { return a != b; }
};
struct Minus {
    __device__ int operator()(int a, int b) const { return a - b; }
};
struct Larger {
    __device__ int operator()(int a, int b) const { return a > b ? a : b; }
};
