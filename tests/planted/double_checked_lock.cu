// Multiplies the marked rows by a table, which the first block to need it fills under a lock. Wrong: no fence follows
// the check outside the lock, so that a block may see the mark of the table and not its values.
// x: (gridDim.x, rows, 32), a row is marked if its first value is positive: x[t] *= t * t, table: (32,), ready, mutex:
// (1,) of 0; block: 32
template <bool FENCE>
__device__ __forceinline__ void use_table(int* x, int* table, int* ready, int* mutex, int rows) {
    const int t = threadIdx.x;
    for (int row = blockIdx.x * rows; row < (blockIdx.x + 1) * rows; ++row) {
        const int value = x[row * 32 + t];
        if (__shfl_sync(0xffffffffu, value, 0) <= 0) continue;
        if (t == 0) {
            if (*static_cast<volatile int*>(ready) == 0) {
                while (atomicCAS(mutex, 0, 1) != 0) {
                }
                __threadfence();
                if (*static_cast<volatile int*>(ready) == 0) {
                    for (int i = 0; i < 32; ++i) table[i] = i * i;  // OTHER
                    __threadfence();
                    *static_cast<volatile int*>(ready) = 1;
                }
                __threadfence();
                atomicExch(mutex, 0);
            }
            if (FENCE) __threadfence();
        }
        __syncthreads();
        x[row * 32 + t] = value * table[t];  // BUG
    }
}

__global__ void wrong(int* x, int* table, int* ready, int* mutex, int rows) {
    use_table<false>(x, table, ready, mutex, rows);
}

__global__ void right(int* x, int* table, int* ready, int* mutex, int rows) {
    use_table<true>(x, table, ready, mutex, rows);
}
