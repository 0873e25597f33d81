// Block 1 waits for block 0's flag. Wrong: if there is nothing to do, block 0 exits without setting it.
// x: (1,), y: (1,): y = x + 1, or 0; ready: (1,) of 0; two blocks of 1
__global__ void wrong(const int* x, int* ready, int* y) {
    if (blockIdx.x == 0) {
        if (*x <= 0) return;
        atomicExch(ready, *x);
    } else {
        int value;
        do value = atomicAdd(ready, 0);
        while (value == 0);  // BUG
        *y = value + 1;
    }
}

__global__ void right(const int* x, int* ready, int* y) {
    if (blockIdx.x == 0) {
        atomicExch(ready, *x <= 0 ? -1 : *x);
    } else {
        int value;
        do value = atomicAdd(ready, 0);
        while (value == 0);
        *y = value + 1;
    }
}
