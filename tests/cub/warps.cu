#include "blocks.cuh"
#include <cub/warp/warp_exchange.cuh>
#include <cub/warp/warp_load.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cub/warp/warp_scan.cuh>
#include <cub/warp/warp_store.cuh>

template <class T, int WIDTH>
__device__ void reduce(const int* x, int* y) {
    using Reduce = cub::WarpReduce<T, WIDTH>;
    __shared__ typename Reduce::TempStorage scratch[THREADS / WIDTH];
    int group = threadIdx.x / WIDTH;
    T sum = Reduce(scratch[group]).Sum(T(x[threadIdx.x]));
    if (threadIdx.x % WIDTH == 0) y[group] = int(sum);
}
extern "C" __global__ void warp_reduce_32(const int* x, int* y) {
    reduce<int, 32>(x, y);
}
extern "C" __global__ void warp_reduce_16(const int* x, int* y) {
    reduce<double, 16>(x, y);
}
extern "C" __global__ void warp_reduce_4(const int* x, int* y) {
    reduce<long long, 4>(x, y);
}
extern "C" __global__ void warp_reduce_head(const int* x, int* y) {
    using Reduce = cub::WarpReduce<int>;
    __shared__ typename Reduce::TempStorage scratch[3];
    bool head = threadIdx.x % 5 == 0 || threadIdx.x % 32 == 0;
    int sum = Reduce(scratch[threadIdx.x / 32]).HeadSegmentedSum(x[threadIdx.x], head);
    if (head) y[threadIdx.x] = sum;
}
extern "C" __global__ void warp_reduce_tail(const int* x, int* y) {
    using Reduce = cub::WarpReduce<int>;
    __shared__ typename Reduce::TempStorage scratch[3];
    bool head = threadIdx.x % 5 == 0 || threadIdx.x % 32 == 0;
    bool tail = threadIdx.x % 5 == 4 || threadIdx.x % 32 == 31;
    int sum = Reduce(scratch[threadIdx.x / 32]).TailSegmentedSum(x[threadIdx.x], tail);
    if (head) y[threadIdx.x] = sum;
}
template <class T, int WIDTH>
__device__ void scan(const int* x, int* y) {
    using Scan = cub::WarpScan<T, WIDTH>;
    __shared__ typename Scan::TempStorage scratch[THREADS / WIDTH];
    T in, ex;
    Scan(scratch[threadIdx.x / WIDTH]).Scan(T(x[threadIdx.x]), in, ex, T(0), [](T a, T b) { return a + b; });
    y[threadIdx.x] = int(in);
    y[THREADS + threadIdx.x] = int(ex);
}
extern "C" __global__ void warp_scan_32(const int* x, int* y) {
    scan<int, 32>(x, y);
}
extern "C" __global__ void warp_scan_16(const int* x, int* y) {
    scan<double, 16>(x, y);
}
extern "C" __global__ void warp_scan_8(const int* x, int* y) {
    scan<long long, 8>(x, y);
}
extern "C" __global__ void warp_exchange(const int* x, int* y) {
    using Exchange = cub::WarpExchange<int, ITEMS, 32>;
    __shared__ typename Exchange::TempStorage scratch[3];
    int v[ITEMS];
    read(x, v);
    Exchange(scratch[threadIdx.x / 32]).StripedToBlocked(v, v);
    write(y, v);
}
template <cub::WarpLoadAlgorithm A>
__device__ void load(const int* x, int* y) {
    using Load = cub::WarpLoad<int, ITEMS, A>;
    __shared__ typename Load::TempStorage scratch[3];
    int v[ITEMS], warp = threadIdx.x / 32;
    Load(scratch[warp]).Load(x + 128 * warp, v, 100, -1);
    write(y, v);
}
extern "C" __global__ void warp_load_direct(const int* x, int* y) {
    load<cub::WARP_LOAD_DIRECT>(x, y);
}
extern "C" __global__ void warp_load_transpose(const int* x, int* y) {
    load<cub::WARP_LOAD_TRANSPOSE>(x, y);
}
template <cub::WarpStoreAlgorithm A>
__device__ void store(const int* x, int* y) {
    using Store = cub::WarpStore<int, ITEMS, A>;
    __shared__ typename Store::TempStorage scratch[3];
    int v[ITEMS], warp = threadIdx.x / 32;
    read(x, v);
    Store(scratch[warp]).Store(y + 128 * warp, v, 100);
}
extern "C" __global__ void warp_store_direct(const int* x, int* y) {
    store<cub::WARP_STORE_DIRECT>(x, y);
}
extern "C" __global__ void warp_store_transpose(const int* x, int* y) {
    store<cub::WARP_STORE_TRANSPOSE>(x, y);
}
