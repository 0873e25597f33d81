// Random numbers, EACH counters per thread, all four words of each counter used, with 16-byte stores if y is aligned.
//
// Parameters as in 01_word_per_thread.cu. ALIGNED: offset is a multiple of 4 and y is 16-byte aligned; otherwise the
// words are stored one by one, and the first and last counter store only the words that are within y.
//
// A block fills one tile. A whole tile needs no bounds checks, and only the last tile can be incomplete. A thread's
// counters share the keys of the ten rounds.
//
// Bottleneck: for uniform numbers, stores: 17.5 us for 2^24 (H200), of which the arithmetic takes 14.8 us. For normal
// numbers, logarithms and sines: 38.7 us, 36.6 us without the stores.
#include "../common/philox.cuh"

// grid: ceil(counters / (block * EACH)), any 1-D block of 256 threads at most
template <class Kind, bool ALIGNED, int EACH>
__global__ void __launch_bounds__(256) counter_per_thread(float* y, int64 n, uint64 seed, uint64 offset) {
    const uint64 first = offset / 4;
    const int64 tile = static_cast<int64>(blockDim.x) * EACH, begin = blockIdx.x * tile;
    if (ALIGNED && (begin + tile) * 4 <= n) {
        float4* four = reinterpret_cast<float4*>(y) + begin + threadIdx.x;
        const uint64 counter = first + begin + threadIdx.x;
#pragma unroll
        for (int i = 0; i < EACH; ++i) four[i * blockDim.x] = Kind()(philox(counter + i * blockDim.x, seed));
        return;
    }
    const int64 lead = static_cast<int64>(offset % 4), counters = (n + lead + 3) / 4;
#pragma unroll 1
    for (int64 c = begin + threadIdx.x; c < begin + tile && c < counters; c += blockDim.x) {
        const float4 four = Kind()(philox(first + c, seed));
        const float words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int64 at = c * 4 - lead + k;
            if (at >= 0 && at < n) y[at] = words[k];
        }
    }
}
