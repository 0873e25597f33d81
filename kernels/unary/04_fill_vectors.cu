// y = value over a contiguous array, the value given as its bits: 16 bytes a lane in one store.
//
// y is (n,) and starts on 16 bytes. The last elements, too few for 16 bytes, go to the first threads.
//
// Bound by: memory, written only. (More stores a thread gain nothing on an H200.)
#include "../common/numbers.cuh"
#include "../common/pack.cuh"

// grid: enough threads for n * sizeof(U) / 16 groups, and one a tail element; any 1-D block
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
