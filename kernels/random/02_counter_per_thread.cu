// Random numbers, one counter a thread at a time: all four words are kept, and stored as 16 bytes where they lie so.
//
// Parameters as in 01_word_per_thread.cu. ALIGNED: offset is a multiple of 4 and y starts on 16 bytes; otherwise the
// four are stored one by one, those of the first and last counter only as far as they are within y.
//
// Bound by: the write, 4 bytes an element; 20 wide multiplications for four elements come close to it.
#include "../common/philox.cuh"

// grid: any, any 1-D block: it strides over the counters
template <class Kind, bool ALIGNED>
__global__ void __launch_bounds__(256) counter_per_thread(float* y, int64 n, uint64 seed, uint64 offset) {
    const uint64 first = offset / 4;
    const int64 lead = static_cast<int64>(offset % 4), counters = (n + lead + 3) / 4, step = global_threads();
    int64 c = global_thread();
    if (ALIGNED) {  // four counters at a time that lie wholly within y: nothing is asked about them
#pragma unroll 1
        for (; (c + 3 * step) * 4 + 4 <= n; c += 4 * step)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                reinterpret_cast<float4*>(y)[c + i * step] = Kind()(philox(first + c + i * step, seed));
    }
#pragma unroll 1
    for (; c < counters; c += step) {
        const float4 four = Kind()(philox(first + c, seed));
        const float words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int64 at = c * 4 - lead + k;
            if (at >= 0 && at < n) y[at] = words[k];
        }
    }
}
