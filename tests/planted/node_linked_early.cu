// Blocks push nodes onto a linked list, and check those pushed before. Wrong: a node is linked before its value is
// stored.
// value, next: (gridDim.x,), head: (1,) of -1, y: (gridDim.x,): the number of values that are not positive; block: 1
template <bool EARLY>
__device__ __forceinline__ void push(int* value, int* next, int* head, int* y) {
    if (threadIdx.x != 0) return;
    const int node = blockIdx.x;
    if (!EARLY) value[node] = node + 1;
    int first = atomicAdd(head, 0);
    while (true) {
        next[node] = first;
        __threadfence();
        const int seen = atomicCAS(head, first, node);
        if (seen == first) break;
        first = seen;
    }
    __threadfence();
    if (EARLY) value[node] = node + 1;  // BUG, OTHER
    int bad = 0;
    for (int i = first; i >= 0; i = next[i]) bad += value[i] <= 0;  // BUG, OTHER
    y[node] = bad;
}

__global__ void wrong(int* value, int* next, int* head, int* y) {
    push<true>(value, next, head, y);
}

__global__ void right(int* value, int* next, int* head, int* y) {
    push<false>(value, next, head, y);
}
