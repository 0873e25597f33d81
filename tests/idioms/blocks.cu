// Shared memory and barriers of a block, and operations of a warp.
#include <cuda_pipeline.h>
#include "copy_async.cuh"

// Dynamic shared memory in three parts of different types; rows sorted by counting.
// x: (gridDim.x, n) of 0 to 9, y: the same, means: (gridDim.x,); shared: 8 n + 40 + n bytes
__global__ void partitioned(const unsigned char* x, unsigned char* y, double* means, int n) {
    extern __shared__ __align__(8) unsigned char shared[];
    double* values = reinterpret_cast<double*>(shared);
    int* starts = reinterpret_cast<int*>(values + n);
    unsigned char* bytes = reinterpret_cast<unsigned char*>(starts + 10);
    const int t = threadIdx.x;
    if (t < 10) starts[t] = 0;
    for (int i = t; i < n; i += blockDim.x) {
        bytes[i] = x[blockIdx.x * n + i];
        values[i] = bytes[i];
    }
    __syncthreads();
    for (int i = t; i < n; i += blockDim.x)
        for (int k = bytes[i] + 1; k < 10; ++k) atomicAdd(&starts[k], 1);
    for (int half = 1; half < n; half *= 2) {
        __syncthreads();
        for (int i = 2 * half * t; i + half < n; i += 2 * half * blockDim.x) values[i] += values[i + half];
    }
    __syncthreads();
    if (t == 0) means[blockIdx.x] = values[0] / n;
    for (int i = t; i < n; i += blockDim.x) {
        int key = 9;
        while (starts[key] > i) --key;
        y[blockIdx.x * n + i] = key;
    }
}

// Transpose through a tile with a padded column; a block of 32 by 8 threads moves 32 by 32 elements.
// x: (rows, cols), y: (cols, rows)
__global__ void padded_transpose(const float* x, float* y, int rows, int cols) {
    __shared__ float tile[32][33];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (r + k < rows && c < cols) tile[threadIdx.y + k][threadIdx.x] = x[(r + k) * cols + c];
    __syncthreads();
    c = blockIdx.y * 32 + threadIdx.x;
    r = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (r + k < cols && c < rows) y[(r + k) * rows + c] = tile[threadIdx.x][threadIdx.y + k];
}

// Tiles copied by cp.async into two buffers, one being filled while the other is used. The last tile is partial.
// x: (gridDim.x, n), y: (gridDim.x, blockDim.x): sums over tiles, of the mirrored thread's element; block: 96
__global__ void double_buffered(const float* x, float* y, int n) {
    __shared__ float buffers[2][96];
    const float* row = x + blockIdx.x * n;
    const int t = threadIdx.x, tiles = (n + 95) / 96;
    auto fill = [&](int k) {
        const int i = k * 96 + t;
        copy_async_or_zero<4>(&buffers[k % 2][t], row + (i < n ? i : 0), i < n);
        copy_async_commit();
    };
    fill(0);
    float sum = 0;
    for (int k = 0; k < tiles; ++k) {
        if (k + 1 < tiles) {
            fill(k + 1);
            copy_async_wait_for<1>();
        } else {
            copy_async_wait_for<0>();
        }
        __syncthreads();
        sum += buffers[k % 2][95 - t] * (k + 1);
        __syncthreads();
    }
    y[blockIdx.x * 96 + t] = sum;
}

// The pipeline primitives: a ring of three stages with 16-byte copies, of which each thread uses only its own.
// x: (gridDim.x, stages, blockDim.x, 4), y: (gridDim.x, blockDim.x, 4)
__global__ void pipeline_ring(const int4* x, int4* y, int stages) {
    __shared__ int4 ring[3][80];
    const int t = threadIdx.x;
    x += blockIdx.x * stages * blockDim.x;
    int4 sum = make_int4(0, 0, 0, 0);
    for (int k = 0; k < stages + 2; ++k) {
        if (k < stages) __pipeline_memcpy_async(&ring[k % 3][t], &x[k * blockDim.x + t], sizeof(int4));
        __pipeline_commit();
        if (k < 2) continue;
        __pipeline_wait_prior(2);
        const int4 v = ring[(k - 2) % 3][t];
        sum = make_int4(sum.x + v.x, sum.y ^ v.y, max(sum.z, v.z), min(sum.w, v.w));
    }
    y[blockIdx.x * blockDim.x + t] = sum;
}

// Barriers that also count and vote.
// x: (gridDim.x, blockDim.x), y: (gridDim.x, 3)
__global__ void barrier_votes(const int* x, int* y) {
    const int v = x[blockIdx.x * blockDim.x + threadIdx.x];
    const int positive = __syncthreads_count(v > 0), all = __syncthreads_and(v > -20), any = __syncthreads_or(v == 19);
    if (threadIdx.x == blockDim.x - 1) {
        y[3 * blockIdx.x] = positive;
        y[3 * blockIdx.x + 1] = all != 0;
        y[3 * blockIdx.x + 2] = any != 0;
    }
}

__device__ __forceinline__ void wait_at(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void arrive_at(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// One warp loads into a ring of two buffers, two warps add from it; named barriers 1, 2 for full and 3, 4 for empty.
// x: (gridDim.x, tiles, 64), y: (gridDim.x, 64); block: 96
__global__ void specialised_warps(const int* x, int* y, int tiles) {
    __shared__ int ring[2][64];
    x += blockIdx.x * tiles * 64;
    if (threadIdx.x < 32) {
        for (int k = 0; k < tiles; ++k) {
            if (k >= 2) wait_at(3 + k % 2, 96);
            for (int i = threadIdx.x; i < 64; i += 32) ring[k % 2][i] = x[k * 64 + i];
            arrive_at(1 + k % 2, 96);
        }
    } else {
        const int t = threadIdx.x - 32;
        int sum = 0;
        for (int k = 0; k < tiles; ++k) {
            wait_at(1 + k % 2, 96);
            sum += (k + 1) * ring[k % 2][63 - t];
            if (k + 2 < tiles) arrive_at(3 + k % 2, 96);
        }
        y[blockIdx.x * 64 + t] = sum;
    }
}

// A ring in shared memory between two warps, with positions in volatile memory and fences of block scope.
// x: (gridDim.x, n), y: (gridDim.x, n), block: 64
__global__ void volatile_ring(const int* x, int* y, int n) {
    __shared__ volatile int ring[4];
    __shared__ volatile int written, taken;
    if (threadIdx.x == 0) written = taken = 0;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 0; i < n; ++i) {
            while (i - taken >= 4) {
            }
            __threadfence_block();
            ring[i % 4] = x[blockIdx.x * n + i];
            __threadfence_block();
            written = i + 1;
        }
    else if (threadIdx.x == 32)
        for (int i = 0; i < n; ++i) {
            while (written <= i) {
            }
            __threadfence_block();
            y[blockIdx.x * n + i] = 2 * ring[i % 4];
            __threadfence_block();
            taken = i + 1;
        }
}

// Exclusive sums by the up and down sweeps of a tree, with padded indices.
// x, y: (gridDim.x, 2 blockDim.x); block: a power of two up to 128
__global__ void sweep_scan(const int* x, int* y) {
    __shared__ int tree[256 + 8];
    auto at = [](int i) { return i + i / 32; };
    const int t = threadIdx.x, n = 2 * blockDim.x, base = blockIdx.x * n;
    tree[at(t)] = x[base + t];
    tree[at(t + n / 2)] = x[base + t + n / 2];
    int stride = 1;
    for (int d = n / 2; d > 0; d /= 2, stride *= 2) {
        __syncthreads();
        if (t < d) tree[at(stride * (2 * t + 2) - 1)] += tree[at(stride * (2 * t + 1) - 1)];
    }
    if (t == 0) tree[at(n - 1)] = 0;
    for (int d = 1; d < n; d *= 2) {
        stride /= 2;
        __syncthreads();
        if (t < d) {
            const int left = at(stride * (2 * t + 1) - 1), right = at(stride * (2 * t + 2) - 1), kept = tree[left];
            tree[left] = tree[right];
            tree[right] += kept;
        }
    }
    __syncthreads();
    y[base + t] = tree[at(t)];
    y[base + t + n / 2] = tree[at(t + n / 2)];
}

// Shuffles: sum of the block, running sums and broadcasts in each warp, minimum by a butterfly, mirror.
// x: (gridDim.x, blockDim.x), y: (gridDim.x, blockDim.x, 4), sums: (gridDim.x,); block: a multiple of 32
__global__ void shuffles(const int* x, int4* y, int* sums) {
    __shared__ int parts[32];
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const int v = x[i];
    int scan = v, least = v, sum = v;
    for (int step = 1; step < 32; step *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, scan, step);
        if (lane >= step) scan += before;
    }
    for (int mask = 16; mask > 0; mask /= 2) least = min(least, __shfl_xor_sync(0xffffffffu, least, mask));
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    y[i] = make_int4(scan, least, __shfl_sync(0xffffffffu, v, 31 - lane), __shfl_sync(0xffffffffu, v, 3, 8));
    if (lane == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = lane < warps ? parts[lane] : 0;
        for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
        if (lane == 0) sums[blockIdx.x] = sum;
    }
}

// Reductions of the lanes within the array, and votes.
// x: (n,), y: (warps, 5)
__global__ void warp_reductions(const int* x, int* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned present = __ballot_sync(0xffffffffu, i < n);
    if (i >= n) return;
    const int v = x[i];
    const int sum = __reduce_add_sync(present, v), most = __reduce_max_sync(present, v);
    const unsigned bits = __reduce_xor_sync(present, static_cast<unsigned>(v));
    const int all = __all_sync(present, v > -19), any = __any_sync(present, v > 18);
    if (threadIdx.x % 32 == 0) {
        int* o = y + 5 * (i / 32);
        o[0] = sum, o[1] = most, o[2] = static_cast<int>(bits), o[3] = all, o[4] = any;
    }
}

// Warp-synchronous exchange through shared memory, with __syncwarp on both sides of each read; partial last warp.
// x, y: (gridDim.x, blockDim.x)
__global__ void warp_exchange(const int* x, int* y) {
    __shared__ int cells[160];
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t, warp = t & ~31;
    const int size = min(32, blockDim.x - warp), lane = t & 31;
    int v = x[i];
    for (int step = 0; step < 3; ++step) {
        cells[t] = v;
        __syncwarp(__activemask());
        v = cells[warp + (lane + 1) % size] + step;
        __syncwarp(__activemask());
    }
    y[i] = v;
}
