// Takes a ticket for each value with atomicCAS, and notes it. Wrong: notes the plain first read, which another thread
// may have taken. Correct: notes the value that the atomicCAS has confirmed.
// tickets: (n,), next: (1,) of 0
__global__ void wrong(int* tickets, int* next, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int old = *next, assumed;  // BUG, OTHER
    tickets[i] = old;
    do {
        assumed = old;
        old = atomicCAS(next, assumed, assumed + 1);  // BUG, OTHER
    } while (assumed != old);
}

__global__ void right(int* tickets, int* next, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int old = *next, assumed;
    do {
        assumed = old;
        old = atomicCAS(next, assumed, assumed + 1);
    } while (assumed != old);
    tickets[i] = old;
}
