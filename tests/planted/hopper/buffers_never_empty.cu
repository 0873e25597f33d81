// A producer and a consumer with two buffers. Wrong: the producer waits for the first parity of an unused empty
// barrier, and each waits for the other.
// x: (4, 32), y: (32,): y = sum of x; one block of 64
#include "small.cuh"

template <bool WRONG>
__device__ __forceinline__ void sum(const float* x, float* y) {
    __shared__ alignas(128) float tiles[2][32];
    __shared__ uint64 full[2], empty[2];
    for (int i = 0; i < 2; ++i) {
        start(&full[i], 1);
        start(&empty[i], 1);
    }
    __syncthreads();
    const int t = threadIdx.x - kWarp;
    RingPlace<2> place;
    float value = 0.0f;
    for (int i = 0; i < 4; ++i, place.next()) {
        if (t == -kWarp) {
            barrier_wait(&empty[place.stage], WRONG ? place.parity : place.parity ^ 1);  // BUG
            barrier_arrive_expect(&full[place.stage], sizeof(tiles[0]));
            bulk_load(tiles[place.stage], x + i * 32, sizeof(tiles[0]), &full[place.stage]);
        } else if (t >= 0) {
            barrier_wait(&full[place.stage], place.parity);  // BUG
            value += tiles[place.stage][t];
            __syncwarp();
            if (t == 0) barrier_arrive(&empty[place.stage]);
        }
    }
    if (t >= 0) y[t] = value;
}

__global__ void wrong(const float* x, float* y) {
    sum<true>(x, y);
}

__global__ void right(const float* x, float* y) {
    sum<false>(x, y);
}
