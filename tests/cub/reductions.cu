#include "blocks.cuh"
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

template <class T, cub::BlockReduceAlgorithm A>
__device__ void sums(const int* x, int* y) {
    using Reduce = cub::BlockReduce<T, THREADS, A>;
    __shared__ typename Reduce::TempStorage scratch;
    T one = Reduce(scratch).Sum(T(x[threadIdx.x]));
    __syncthreads();
    T part = Reduce(scratch).Sum(T(x[threadIdx.x]), 70);
    __syncthreads();
    T v[ITEMS];
    read(x, v);
    T all = Reduce(scratch).Sum(v);
    if (threadIdx.x == 0) y[0] = int(one), y[1] = int(part), y[2] = int(all);
}
extern "C" __global__ void reduce_raking(const int* x, int* y) {
    sums<int, cub::BLOCK_REDUCE_RAKING>(x, y);
}
extern "C" __global__ void reduce_commutative(const int* x, int* y) {
    sums<int, cub::BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY>(x, y);
}
extern "C" __global__ void reduce_warps(const int* x, int* y) {
    sums<int, cub::BLOCK_REDUCE_WARP_REDUCTIONS>(x, y);
}
extern "C" __global__ void reduce_double(const int* x, int* y) {
    sums<double, cub::BLOCK_REDUCE_WARP_REDUCTIONS>(x, y);
}
extern "C" __global__ void reduce_long(const int* x, int* y) {
    sums<long long, cub::BLOCK_REDUCE_RAKING>(x, y);
}
extern "C" __global__ void reduce_max(const int* x, int* y) {
    using Reduce = cub::BlockReduce<int, THREADS>;
    __shared__ typename Reduce::TempStorage scratch;
    int most = Reduce(scratch).Reduce(x[threadIdx.x], Larger(), 70);
    if (threadIdx.x == 0) y[0] = most;
}

template <class T, cub::BlockScanAlgorithm A>
__device__ void exclusive(const int* x, int* y) {
    using Scan = cub::BlockScan<T, THREADS, A>;
    __shared__ typename Scan::TempStorage scratch;
    T v[ITEMS], total;
    read(x, v);
    Scan(scratch).ExclusiveSum(v, v, total);
    v[0] += total;
    write(y, v);
}
template <class T, cub::BlockScanAlgorithm A>
__device__ void inclusive(const int* x, int* y) {
    using Scan = cub::BlockScan<T, THREADS, A>;
    __shared__ typename Scan::TempStorage scratch;
    T v[ITEMS];
    read(x, v);
    Scan(scratch).InclusiveSum(v, v);
    write(y, v);
}
extern "C" __global__ void scan_raking(const int* x, int* y) {
    exclusive<int, cub::BLOCK_SCAN_RAKING>(x, y);
}
extern "C" __global__ void scan_memoize(const int* x, int* y) {
    inclusive<int, cub::BLOCK_SCAN_RAKING_MEMOIZE>(x, y);
}
extern "C" __global__ void scan_warps(const int* x, int* y) {
    exclusive<int, cub::BLOCK_SCAN_WARP_SCANS>(x, y);
}
extern "C" __global__ void scan_double(const int* x, int* y) {
    inclusive<double, cub::BLOCK_SCAN_WARP_SCANS>(x, y);
}
extern "C" __global__ void scan_max(const int* x, int* y) {
    using Scan = cub::BlockScan<int, THREADS, cub::BLOCK_SCAN_RAKING>;
    __shared__ typename Scan::TempStorage scratch;
    int v[ITEMS];
    read(x, v);
    Scan(scratch).ExclusiveScan(v, v, -5000, Larger());
    write(y, v);
}
struct Carry {
    int sum;
    __device__ int operator()(int total) {
        int before = sum;
        sum += total;
        return before;
    }
};
extern "C" __global__ void scan_carry(const int* x, int* y) {
    using Scan = cub::BlockScan<int, THREADS>;
    __shared__ typename Scan::TempStorage scratch;
    Carry carry{0};
    for (int at = 0; at < TILE; at += THREADS) {
        int v = x[at + threadIdx.x];
        Scan(scratch).InclusiveSum(v, v, carry);
        y[at + threadIdx.x] = v;
        __syncthreads();
    }
}
