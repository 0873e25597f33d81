// A lock that each thread takes, lanes of one warp among them. Wrong: no fences.
// x: (n,), sum: (1,) of 0, mutex: (1,) of 0
template <bool RIGHT>
__device__ __forceinline__ void body(const int* x, int* sum, int* mutex, int n) {
    bool waiting = threadIdx.x < n;
    while (waiting)
        if (atomicCAS(mutex, 0, 1) == 0) {
            if (RIGHT) __threadfence();
            *sum += x[threadIdx.x];  // BUG, OTHER
            if (RIGHT) __threadfence();
            atomicExch(mutex, 0);
            waiting = false;
        }
}

__global__ void wrong(const int* x, int* sum, int* mutex, int n) {
    body<false>(x, sum, mutex, n);
}

__global__ void right(const int* x, int* sum, int* mutex, int n) {
    body<true>(x, sum, mutex, n);
}
