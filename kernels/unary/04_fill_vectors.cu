// y = value over a contiguous array, 16 bytes per lane in one store. The value is passed as its bits.
//
// y is (n,) and 16-byte aligned. If the last elements do not fill 16 bytes, the first threads write them.
//
// Bottleneck: memory bandwidth, stores only. More stores per thread are no faster on an H200.
#include "../common/numbers.cuh"
#include "../common/pack.cuh"

// grid: one thread per 16-byte group, and at least one per tail element; any 1-D block
template <class U>
__global__ void fill_vectors(U* y, int64 n, uint64 bits) {
    constexpr int kPer = 16 / sizeof(U);
    Pack<U, kPer> filled;
#pragma unroll
    for (int j = 0; j < kPer; ++j) filled.at[j] = static_cast<U>(bits);
    const int64 group = global_thread(), groups = n / kPer, tail = groups * kPer + group;
    if (group < groups) reinterpret_cast<Pack<U, kPer>*>(y)[group] = filled;
    if (tail < n) y[tail] = static_cast<U>(bits);
}
