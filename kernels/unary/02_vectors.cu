// y = f(x) over contiguous arrays: PER elements per lane, in one load and one store.
//
// x and y are (n,) and 16-byte aligned; y may be x. PER elements are 16 bytes of the wider type. The thread after the
// last whole group handles the last n % PER elements.
//
// Bottleneck: memory bandwidth. Two or four groups per thread are slower on an H200: a full chip already has enough
// loads in flight.
#include "../common/pack.cuh"
#include "maps.cuh"

// grid: enough threads for n / PER + 1 groups; any 1-D block
template <class X, class Y, class Map, int PER>
__global__ void map_vectors(const X* x, Y* y, int64 n, float parameter) {
    static_assert(PER * (sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y)) == 16, "16 bytes of the wider type");
    const Map map{parameter};
    const int64 group = global_thread(), groups = n / PER;
    if (group < groups) {
        const Pack<X, PER> taken = reinterpret_cast<const Pack<X, PER>*>(x)[group];
        Pack<Y, PER> mapped;
#pragma unroll
        for (int j = 0; j < PER; ++j) mapped.at[j] = map(taken.at[j]);
        reinterpret_cast<Pack<Y, PER>*>(y)[group] = mapped;
    } else if (group == groups) {
#pragma unroll 1
        for (int64 i = groups * PER; i < n; ++i) y[i] = map(x[i]);
    }
}
