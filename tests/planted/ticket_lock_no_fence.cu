// A lock by tickets. Wrong: no fence before the next ticket is served.
// sum: (1,) of 0, tickets: (2,) of 0; one thread per block
template <bool RIGHT>
__device__ __forceinline__ void body(int* sum, int* tickets) {
    const int mine = atomicAdd(&tickets[0], 1);
    while (*reinterpret_cast<volatile int*>(&tickets[1]) != mine) {
    }
    if (RIGHT) __threadfence();
    *sum += blockIdx.x + 1;  // BUG, OTHER
    if (RIGHT) __threadfence();
    atomicAdd(&tickets[1], 1);
}

__global__ void wrong(int* sum, int* tickets) {
    body<false>(sum, tickets);
}

__global__ void right(int* sum, int* tickets) {
    body<true>(sum, tickets);
}
