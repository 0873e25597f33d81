// A pair of values guarded by a sequence number, which a reader checks before and after. Wrong: the reader's loads of
// the pair are plain.
// pair: (2,) of 0, sequence: (1,) of 0, y: (31,); two blocks of 32
template <bool RIGHT>
__device__ __forceinline__ void body(volatile int* pair, volatile int* sequence, int* y) {
    if (blockIdx.x == 0) {
        if (threadIdx.x > 0) return;
        for (int k = 1; k < 5; ++k) {
            sequence[0] = 2 * k - 1;
            __threadfence();
            pair[0] = k;   // BUG, OTHER
            pair[1] = -k;  // BUG, OTHER
            __threadfence();
            sequence[0] = 2 * k;
        }
        return;
    }
    int before, sum;
    do {
        before = sequence[0];
        __threadfence();
        if (RIGHT)
            sum = pair[0] + pair[1];
        else
            sum = const_cast<int*>(pair)[0] + const_cast<int*>(pair)[1];  // BUG, OTHER
        __threadfence();
    } while (before % 2 != 0 || sequence[0] != before);
    y[threadIdx.x] = sum;
}

__global__ void wrong(volatile int* pair, volatile int* sequence, int* y) {
    body<false>(pair, sequence, y);
}

__global__ void right(volatile int* pair, volatile int* sequence, int* y) {
    body<true>(pair, sequence, y);
}
