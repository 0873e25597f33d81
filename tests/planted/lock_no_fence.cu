// Count and sum of the blocks' largest values, kept together under a lock. Wrong: there are no fences, so the next
// owner of the lock may not see the values that this one wrote.
// x: (gridDim.x, 32), state: (2,) of zeros: the count and the sum, mutex: (1,) of 0; block: 32
__global__ void wrong(const int* x, int* state, int* mutex) {
    const int largest = __reduce_max_sync(0xffffffffu, x[blockIdx.x * 32 + threadIdx.x]);
    if (threadIdx.x == 0) {
        while (atomicCAS(mutex, 0, 1) != 0) {
        }
        state[0] += 1;        // BUG, OTHER
        state[1] += largest;  // BUG, OTHER
        atomicExch(mutex, 0);
    }
}

__global__ void right(const int* x, int* state, int* mutex) {
    const int largest = __reduce_max_sync(0xffffffffu, x[blockIdx.x * 32 + threadIdx.x]);
    if (threadIdx.x == 0) {
        while (atomicCAS(mutex, 0, 1) != 0) {
        }
        __threadfence();
        state[0] += 1;
        state[1] += largest;
        __threadfence();
        atomicExch(mutex, 0);
    }
}
