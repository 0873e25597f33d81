// Threads take work from a queue. Wrong: the loop ends if the counter is the number of items exactly, and several
// threads raise it beyond that.
// x: (n,), y: (n,): squares; next: (1,) of 0; block: 64
__global__ void wrong(const int* x, int* y, int* next, int n) {
    int i = atomicAdd(next, 1);
    while (i != n) {  // BUG
        if (i < n) y[i] = x[i] * x[i];
        i = atomicAdd(next, 1);
    }
}

__global__ void right(const int* x, int* y, int* next, int n) {
    int i = atomicAdd(next, 1);
    while (i < n) {
        y[i] = x[i] * x[i];
        i = atomicAdd(next, 1);
    }
}
