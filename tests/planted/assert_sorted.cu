// Looks keys up in a sorted table by binary search. Wrong: the kernel asserts that each key is in the table, and the
// caller passes keys that are not.
// table: (n,) sorted, keys, y: (m,): y[i] is the index of keys[i], or -1 if it is missing
__device__ __forceinline__ int find(const int* table, int n, int key) {
    int low = 0, high = n;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (table[middle] < key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

__global__ void wrong(const int* table, const int* keys, int* y, int n, int m) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m) return;
    const int at = find(table, n, keys[i]);
    assert(at < n && table[at] == keys[i]);  // BUG
    y[i] = at;
}

__global__ void right(const int* table, const int* keys, int* y, int n, int m) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m) return;
    const int at = find(table, n, keys[i]);
    assert(at >= 0 && at <= n);
    y[i] = at < n && table[at] == keys[i] ? at : -1;
}
