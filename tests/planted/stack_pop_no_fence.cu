// A stack of nodes that one block pushes by compare and swap, and another one pops. Wrong: no fence between the load of
// the head and those of its node.
// values, next: (32,), head: (1,) of -1, y: (32,): the squares of 0 to 31 in any order; two blocks of 32
template <bool RIGHT>
__device__ __forceinline__ void body(int* values, volatile int* next, int* head, int* y) {
    const int me = threadIdx.x;
    int old = *reinterpret_cast<volatile int*>(head), expected;
    if (blockIdx.x == 0) {
        values[me] = me * me;  // OTHER
        do {
            expected = old;
            next[me] = expected;
            __threadfence();
            old = atomicCAS(head, expected, me);
        } while (old != expected);
        return;
    }
    do {
        while (old < 0) old = *reinterpret_cast<volatile int*>(head);
        if (RIGHT) __threadfence();
        expected = old;
        old = atomicCAS(head, expected, next[expected]);
    } while (old != expected);
    y[me] = values[expected];  // BUG
}

__global__ void wrong(int* values, volatile int* next, int* head, int* y) {
    body<false>(values, next, head, y);
}

__global__ void right(int* values, volatile int* next, int* head, int* y) {
    body<true>(values, next, head, y);
}
