// A bank of two accounts under one lock; even blocks deposit, odd ones transfer. Wrong: a deposit takes no lock.
// amounts: (gridDim.x,), accounts: (2,), mutex: (1,) of 0; block: 32
__device__ __forceinline__ void lock(int* mutex) {
    while (atomicCAS(mutex, 0, 1) != 0) {
    }
    __threadfence();
}

__device__ __forceinline__ void unlock(int* mutex) {
    __threadfence();
    atomicExch(mutex, 0);
}

__global__ void wrong(const int* amounts, int* accounts, int* mutex) {
    if (threadIdx.x != 0) return;
    const int amount = amounts[blockIdx.x];
    if (blockIdx.x % 2 == 0) {
        accounts[0] += amount;  // BUG, OTHER
    } else {
        lock(mutex);
        accounts[0] -= amount;  // BUG, OTHER
        accounts[1] += amount;
        unlock(mutex);
    }
}

__global__ void right(const int* amounts, int* accounts, int* mutex) {
    if (threadIdx.x != 0) return;
    const int amount = amounts[blockIdx.x];
    lock(mutex);
    if (blockIdx.x % 2 == 0) {
        accounts[0] += amount;
    } else {
        accounts[0] -= amount;
        accounts[1] += amount;
    }
    unlock(mutex);
}
