// Random numbers, one element a thread: element i of the stream that `seed` names is word i % 4 of counter i / 4.
//
// y: n floats; element j of y is element offset + j of the stream, so the numbers depend on nothing but seed and place.
//
// Bound by: arithmetic; each thread makes four words and keeps one. The next rung keeps all four.
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
