// Atomic operations in the forms of the CUDA C++ Programming Guide and the Best Practices Guide.
#include <cuda_fp16.h>

__device__ __forceinline__ void add_to(double* address, double value) {
    auto* bits = reinterpret_cast<unsigned long long*>(address);
    unsigned long long old = *bits, expected;
    do {
        expected = old;
        old = atomicCAS(bits, expected, __double_as_longlong(__longlong_as_double(expected) + value));
    } while (old != expected);
}

// The sum of doubles by compare and swap, in a grid-stride loop.
// x: (n,), sums: (2,) of zeros: of even and of odd elements
__global__ void double_add(const double* x, double* sums, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) add_to(&sums[i & 1], x[i]);
}

// The largest float by integer atomics: the order of floats is that of their bits, reversed for negative ones.
// x: (rows, cols), best: (rows,) of -infinity; grid: (any, rows)
__global__ void float_max(const float* x, float* best, int cols) {
    const int row = blockIdx.y;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < cols; i += gridDim.x * blockDim.x) {
        const float value = x[row * cols + i];
        if (__float_as_int(value) >= 0)
            atomicMax(reinterpret_cast<int*>(best + row), __float_as_int(value));
        else
            atomicMin(reinterpret_cast<unsigned*>(best + row), __float_as_uint(value));
    }
}

// Positive elements, packed in any order: one atomic per group of lanes that are together.
// x: (n,), y: (n,), count: (1,) of 0
__global__ void warp_aggregated(const int* x, int* y, int* count, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || x[i] <= 0) return;
    const unsigned together = __activemask();
    const int lane = threadIdx.x & 31, leader = __ffs(together) - 1;
    int first = 0;
    if (lane == leader) first = atomicAdd(count, __popc(together));
    first = __shfl_sync(together, first, leader);
    y[first + __popc(together & ((1u << lane) - 1))] = x[i];
}

// Counts per key: one atomic per warp and key.
// keys: (n,), counts: (keys' range,) of zeros
__global__ void match_groups(const int* keys, int* counts, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned present = __ballot_sync(0xffffffffu, i < n);
    if (i >= n) return;
    const unsigned same = __match_any_sync(present, keys[i]);
    if (__ffs(same) - 1 == int(threadIdx.x & 31)) atomicAdd(&counts[keys[i]], __popc(same));
}

// A histogram per block in shared memory, added to the global one at the end.
// x: (n,) of bytes, counts: (256,) of zeros
__global__ void private_histogram(const unsigned char* x, unsigned* counts, int n) {
    __shared__ unsigned mine[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) mine[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&mine[x[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (mine[i]) atomicAdd(&counts[i], mine[i]);
}

// The largest value and its first position, packed in 64 bits; also the bits set anywhere and everywhere.
// x: (n,), best, any, all: (1,): 0, 0 and all ones
__global__ void wide_atomics(
    const unsigned* x, unsigned long long* best, unsigned long long* any, unsigned long long* all, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned long long value = x[i];
    atomicMax(best, value << 32 | static_cast<unsigned>(n - 1 - i));
    atomicOr(any, value << 20);
    atomicAnd(all, value << 20 | 0xff);
}

// Additions to 16-bit counters by compare and swap of 16 bits.
// keys: (n,), counts: (range,) of zeros
__global__ void short_counters(const int* keys, unsigned short* counts, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned short* count = &counts[keys[i]];
    unsigned short old = *reinterpret_cast<volatile unsigned short*>(count), expected;
    do {
        expected = old;
        old = atomicCAS(count, expected, static_cast<unsigned short>(expected + i % 3));
    } while (old != expected);
}

// Indices of the elements above a limit, in order within each block: ballots, a scan of the warps' counts, one atomic.
// x: (n,), found: (n,), starts: (gridDim.x,), total: (1,) of 0; block: up to 1024
__global__ void compaction(const float* x, int* found, int* starts, int* total, float limit, int n) {
    __shared__ int counts[32], start;
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warps = (blockDim.x + 31) / 32;
    const bool wanted = i < n && x[i] > limit;
    const unsigned votes = __ballot_sync(__activemask(), wanted);
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int w = 0; w < warps; ++w) {
            const int count = counts[w];
            counts[w] = sum;
            sum += count;
        }
        start = atomicAdd(total, sum);
        starts[blockIdx.x] = start;
    }
    __syncthreads();
    if (wanted) found[start + counts[warp] + __popc(votes & ~(~0u << lane))] = i;
}

// One level of a breadth-first search: the thread whose compare and swap changes a vertex's depth appends the vertex.
// first: (vertices + 1,), edges: (m,), depth: (vertices,), frontier: (size,), following: (vertices,), count: (1,)
__global__ void frontier_step(const int* first, const int* edges, int* depth, const int* frontier, int* following,
    int* count, int size, int level) {
    const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (warp >= size) return;
    const int vertex = frontier[warp];
    for (int e = first[vertex] + lane; e < first[vertex + 1]; e += 32)
        if (atomicCAS(&depth[edges[e]], -1, level) == -1) following[atomicAdd(count, 1)] = edges[e];
}

// Persistent blocks that take rows from a queue until it is empty.
// x: (rows, cols), sums: (rows,), queue: (1,) of 0; block: any multiple of 32
__global__ void work_queue(const int* x, int* sums, int* queue, int rows, int cols) {
    __shared__ int row, sum;
    while (true) {
        if (threadIdx.x == 0) {
            row = atomicAdd(queue, 1);
            sum = 0;
        }
        __syncthreads();
        const int mine = row;
        if (mine >= rows) return;
        int part = 0;
        for (int c = threadIdx.x; c < cols; c += blockDim.x) part += x[mine * cols + c];
        part = __reduce_add_sync(0xffffffffu, part);
        if (threadIdx.x % 32 == 0) atomicAdd(&sum, part);
        __syncthreads();
        if (threadIdx.x == 0) sums[mine] = sum;
        __syncthreads();
    }
}

// A lock with fences, taken by one thread per block, with back-off; the protected update is not atomic.
// x: (gridDim.x, blockDim.x), state: (3,): count, sum and largest, mutex: (1,) of 0
__global__ void spin_lock(const int* x, int* state, int* mutex) {
    const int value = __reduce_max_sync(__activemask(), x[blockIdx.x * blockDim.x + threadIdx.x]);
    if (threadIdx.x % 32 != 0) return;
    unsigned pause = 8;
    while (atomicCAS(mutex, 0, 1) != 0) {
        __nanosleep(pause);
        if (pause < 256) pause *= 2;
    }
    __threadfence();
    state[0] += 1;
    state[1] += value;
    state[2] = max(state[2], value);
    __threadfence();
    atomicExch(mutex, 0);
}

// Locks taken by each thread, lanes of one warp among them: a lock per account, in shared or in global memory.
// accounts: (n,), sums: (accounts' range,) of zeros, mutexes: the same range, of 0, moved: (gridDim.x,)
__global__ void lock_per_thread(const int* accounts, int* sums, int* mutexes, int* moved, int n) {
    __shared__ int mutex, count;
    if (threadIdx.x == 0) mutex = count = 0;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    bool waiting = i < n;
    while (waiting) {
        const int account = accounts[i];
        if (atomicCAS(&mutexes[account], 0, 1) == 0) {
            __threadfence();
            sums[account] += i;
            __threadfence();
            atomicExch(&mutexes[account], 0);
            waiting = false;
        }
    }
    waiting = i < n;
    while (waiting)
        if (atomicExch(&mutex, 1) == 0) {
            __threadfence_block();
            ++count;
            __threadfence_block();
            atomicExch(&mutex, 0);
            waiting = false;
        }
    __syncthreads();
    if (threadIdx.x == 0) moved[blockIdx.x] = count;
}

__device__ unsigned arrived;
__device__ int partial[64];

// The sum of an array by the last block to finish; its counter wraps to zero, so that the kernel can be launched again.
// x: (n,), total: (1,)
__global__ void last_block(const int* x, int* total, int n) {
    __shared__ bool last;
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    int part = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) part += x[i];
    atomicAdd(&sum, part);
    __syncthreads();
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;
        if (last) {
            __threadfence();
            int all = 0;
            for (int b = 0; b < gridDim.x; ++b) all += partial[b];
            *total = all;
        }
    }
}

// Sums of pairs of half-precision numbers, both halves by one atomic; atomicExch and atomicXor.
// x: (n, 2), sum: (2,) of zeros, parity: (1,) of 0, swapped: (n,) of slots
__global__ void packed_atomics(const __half2* x, __half2* sum, unsigned* parity, int* slots, int* taken, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    atomicAdd(sum, x[i]);
    atomicXor(parity, 1u << (i % 31));
    taken[i] = atomicExch(&slots[i], -i);
}
