// A stack of nodes pushed by compare and swap; another block takes all of them. Wrong: no fence between a node's value
// and the push.
// values, next: (31,), head: (2,): -1 and 0, total: (1,); two blocks of 31
template <bool RIGHT>
__device__ __forceinline__ void body(int* values, int* next, int* head, int* total) {
    if (blockIdx.x == 0) {
        const int me = threadIdx.x;
        values[me] = me * me;  // OTHER
        int old = *reinterpret_cast<volatile int*>(head), expected;
        do {
            expected = old;
            *reinterpret_cast<volatile int*>(next + me) = expected;
            if (RIGHT) __threadfence();
            old = atomicCAS(head, expected, me);
        } while (old != expected);
        atomicAdd(&head[1], 1);
    } else if (threadIdx.x == 0) {
        while (*reinterpret_cast<volatile int*>(&head[1]) < 31) {
        }
        int sum = 0;
        __threadfence();
        for (int at = atomicExch(head, -1); at >= 0; at = *reinterpret_cast<volatile int*>(next + at))
            sum += values[at];  // BUG
        *total = sum;
    }
}

__global__ void wrong(int* values, int* next, int* head, int* total) {
    body<false>(values, next, head, total);
}

__global__ void right(int* values, int* next, int* head, int* total) {
    body<true>(values, next, head, total);
}
