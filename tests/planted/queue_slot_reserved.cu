// Block 0 puts values into a queue, block 1 takes them out. Wrong: the consumer waits for the count of reserved slots,
// which is raised before the slot is stored.
// x, slots, y: (n,), counts: (2,) of 0: reserved and stored; two blocks of 1
template <int COUNT>
__device__ __forceinline__ void pass_on(const int* x, int* slots, int* counts, int* y, int n) {
    for (int i = 0; i < n; ++i) {
        if (blockIdx.x == 0) {
            const int slot = atomicAdd(&counts[0], 1);
            __threadfence();
            slots[slot] = 3 * x[i];  // BUG, OTHER
            __threadfence();
            atomicAdd(&counts[1], 1);
        } else {
            while (atomicAdd(&counts[COUNT], 0) <= i) {
            }
            __threadfence();
            y[i] = slots[i];  // BUG, OTHER
        }
    }
}

__global__ void wrong(const int* x, int* slots, int* counts, int* y, int n) {
    pass_on<0>(x, slots, counts, y, n);
}

__global__ void right(const int* x, int* slots, int* counts, int* y, int n) {
    pass_on<1>(x, slots, counts, y, n);
}
