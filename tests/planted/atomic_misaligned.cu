// Counts and sums of records by key, in packed slots of a 4-byte count and an 8-byte sum. Wrong: the 8-byte atomic add
// is at an address aligned to 4 bytes only.
// keys, values: (n,), slots: (entries, 3) words of zeros: count, sum in two words
__global__ void wrong(const int* keys, const int* values, int* slots, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int* slot = slots + 3 * keys[i];
    atomicAdd(slot, 1);
    atomicAdd(reinterpret_cast<unsigned long long*>(slot + 1), (unsigned long long)values[i]);  // BUG
}

__global__ void right(const int* keys, const int* values, int* slots, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int* slot = slots + 3 * keys[i];
    atomicAdd(slot, 1);
    const unsigned before = atomicAdd(reinterpret_cast<unsigned*>(slot + 1), (unsigned)values[i]);
    if (before + (unsigned)values[i] < before) atomicAdd(slot + 2, 1);
}
