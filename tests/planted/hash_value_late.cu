// Blocks look up keys in a hash table, and the first to need a key computes its value. Wrong: another block that finds
// the key reads the value before it is there.
// keys: (n,), table: (64,) of -1, values: (64,), done: (64,) of 0, y: (n,): the squares of the keys; one thread per
// block
template <bool WAIT>
__device__ __forceinline__ void look_up(const int* keys, int* table, int* values, int* done, int* y) {
    const int key = keys[blockIdx.x];
    int slot = key * 7 % 64;
    while (true) {
        const int seen = atomicCAS(&table[slot], -1, key);
        if (seen == -1) {
            values[slot] = key * key;  // BUG, OTHER
            __threadfence();
            atomicExch(&done[slot], 1);
        }
        if (seen == -1 || seen == key) break;
        slot = (slot + 1) % 64;
    }
    while (WAIT && atomicAdd(&done[slot], 0) == 0) {
    }
    __threadfence();
    y[blockIdx.x] = values[slot];  // BUG, OTHER
}

__global__ void wrong(const int* keys, int* table, int* values, int* done, int* y) {
    look_up<false>(keys, table, values, done, y);
}

__global__ void right(const int* keys, int* table, int* values, int* done, int* y) {
    look_up<true>(keys, table, values, done, y);
}
