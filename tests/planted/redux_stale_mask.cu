// The largest value per group of lanes with the same key, in a loop over the groups. Wrong: the mask of the first
// group is used for all groups.
// keys, x, y: (gridDim.x, 32), keys 0 to 3; block: 32
__global__ void wrong(const int* keys, const int* x, int* y) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    const unsigned members = __ballot_sync(0xffffffffu, keys[i] == 0);
    for (int key = 0; key < 4; ++key)
        if (keys[i] == key) y[i] = __reduce_max_sync(members, x[i]);  // BUG
}

__global__ void right(const int* keys, const int* x, int* y) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    for (int key = 0; key < 4; ++key) {
        const unsigned members = __ballot_sync(0xffffffffu, keys[i] == key);
        if (keys[i] == key) y[i] = __reduce_max_sync(members, x[i]);
    }
}
