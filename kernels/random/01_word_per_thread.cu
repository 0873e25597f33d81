// Random numbers, one thread per element: element i of the stream of `seed` is word i % 4 of Philox counter i / 4.
//
// y: (n,) floats; y[j] is element offset + j of the stream, so it depends only on seed and index, not on the launch.
//
// Bottleneck: arithmetic. Each thread computes four words and keeps one. The next variant keeps all four.
#include "../common/philox.cuh"

// grid: ceil(n / block), any 1-D block
template <class Kind>
__global__ void word_per_thread(float* y, int64 n, uint64 seed, uint64 offset) {
    const int64 i = global_thread();
    if (i >= n) return;
    const uint64 place = offset + i;
    const float4 four = Kind()(philox(place / 4, seed));
    const int word = static_cast<int>(place % 4);
    y[i] = word == 0 ? four.x : word == 1 ? four.y : word == 2 ? four.z : four.w;
}
