// The kernels of a ptychography iteration on one object whose patches overlap: the waves that leave the patches, and
// the update of the object in gather form. Between them are the transforms and `constrain` of fused.cu.
//
// object, ahead: (rows, cols) complex numbers; probe: (size, size); exits, changed: (positions, size, size); corners:
// (positions, 2), the row and column of the object at which each patch begins. All contiguous.

__device__ float2 product(float2 a, float2 b) {
    return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

// exits = probe * patches of the object. One thread per element of exits, count = positions * size * size.
__global__ void illuminate(
    const float2* object, const int* corners, const float2* probe, float2* exits, int size, int cols, long long count) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const int area = size * size, k = static_cast<int>(i % area), y = k / size, x = k % size;
    const int* corner = corners + i / area * 2;
    exits[i] = product(object[static_cast<long long>(corner[0] + y) * cols + corner[1] + x], probe[k]);
}

// next = ahead + sum(conj(probe) * (changed - probe * ahead)) / (least + sum(|probe|^2)); the sums are over the patches
// that cover an element. Then ahead = next + momentum * (next - object), and object = next.
//
// One thread per element of the object. Each thread writes only its own element, so overlapping patches do not race and
// need no atomics. It adds the patches in ascending order, so the result is the same in each run. A block is a tile of
// the object: listed[first[tile]] to listed[first[tile + 1] - 1] are the positions whose patches overlap it.
__global__ void gather(float2* object, float2* ahead, const int* corners, const int* first, const int* listed,
    const float2* probe, const float2* changed, float least, float momentum, int size, int rows, int cols) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= cols || y >= rows) return;
    const long long at = static_cast<long long>(y) * cols + x;
    const int tile = blockIdx.y * gridDim.x + blockIdx.x;
    const float2 o = ahead[at], before = object[at];
    float2 sum = make_float2(0.0f, 0.0f);
    float weight = least;
    for (int n = first[tile]; n < first[tile + 1]; ++n) {
        const int j = listed[n], down = y - corners[2 * j], right = x - corners[2 * j + 1];
        if (down < 0 || down >= size || right < 0 || right >= size) continue;
        const int k = down * size + right;
        const float2 p = probe[k], now = changed[static_cast<long long>(j) * size * size + k], exit = product(o, p);
        const float real = now.x - exit.x, imaginary = now.y - exit.y;
        sum.x += p.x * real + p.y * imaginary;
        sum.y += p.x * imaginary - p.y * real;
        weight += p.x * p.x + p.y * p.y;
    }
    const float2 next = make_float2(o.x + sum.x / weight, o.y + sum.y / weight);
    object[at] = next;
    ahead[at] = make_float2(next.x + momentum * (next.x - before.x), next.y + momentum * (next.y - before.y));
}
