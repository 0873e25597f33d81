// The largest element and its position, packed in one word for atomicMax; threads first look if they can improve it.
// Wrong: they load the two halves one by one, which may be of two different pairs. Right: one load.
// x: (n,) positive, best: (1,) of 0, for the element above n less its position
template <bool RIGHT>
__device__ __forceinline__ void body(const int* x, unsigned long long* best, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned long long seen;
    if (RIGHT) {
        seen = *(volatile unsigned long long*)best;
    } else {
        volatile unsigned* halves = reinterpret_cast<unsigned*>(best);
        seen = (unsigned long long)halves[1] << 32;  // BUG, OTHER
        seen |= halves[0];                           // BUG, OTHER
    }
    const unsigned long long mine = (unsigned long long)x[i] << 32 | (n - i);
    if (mine > seen) atomicMax(best, mine);  // BUG, OTHER
}

__global__ void wrong(const int* x, unsigned long long* best, int n) {
    body<false>(x, best, n);
}

__global__ void right(const int* x, unsigned long long* best, int n) {
    body<true>(x, best, n);
}
