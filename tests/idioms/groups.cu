// Cooperative groups, clusters, cuda::pipeline, and matrix instructions.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/pipeline>
#include <cuda_fp16.h>
#include <mma.h>
namespace cg = cooperative_groups;

// Sum per tile of 16 threads, and running sums; odd elements counted by the group of threads that are together.
// x: (gridDim.x, blockDim.x), y: the same, sums: (gridDim.x, blockDim.x / 16), odd: (1,) of 0
__global__ void tiles(const int* x, int* y, int* sums, int* odd) {
    const auto block = cg::this_thread_block();
    const auto tile = cg::tiled_partition<16>(block);
    const int i = blockIdx.x * blockDim.x + block.thread_rank(), v = x[i];
    y[i] = cg::inclusive_scan(tile, v) - tile.shfl_xor(v, 5);
    const int sum = cg::reduce(tile, v, cg::plus<int>());
    if (tile.thread_rank() == 0) sums[blockIdx.x * tile.meta_group_size() + tile.meta_group_rank()] = sum;
    if (v % 2 != 0) {
        const auto together = cg::coalesced_threads();
        if (together.thread_rank() == 0) atomicAdd(odd, together.num_threads());
    }
}

// Smoothing in place of buffers, several rounds in one cooperative launch.
// x, y: (n,)
__global__ void grid_rounds(int* x, int* y, int n, int rounds) {
    const auto grid = cg::this_grid();
    for (int round = 0; round < rounds; ++round) {
        for (int i = grid.thread_rank(); i < n; i += grid.size()) y[i] = x[i] + x[(i + 1) % n];
        grid.sync();
        int* swap = x;
        x = y;
        y = swap;
    }
}

// A histogram spread over the shared memory of a cluster; then the sum of all ranks' shares by rank 0.
// x: (clusters, n), counts: (clusters, ranks, 32), total: (clusters,)
__global__ void cluster_bins(const int* x, int* counts, int* total, int n) {
    __shared__ int bins[32];
    __shared__ int share;
    const auto cluster = cg::this_cluster();
    const int ranks = cluster.num_blocks(), rank = cluster.block_rank(), id = blockIdx.x / ranks;
    for (int i = threadIdx.x; i < 32; i += blockDim.x) bins[i] = 0;
    cluster.sync();
    for (int i = cluster.thread_rank(); i < n; i += cluster.num_threads()) {
        const int v = x[id * n + i];
        atomicAdd(cluster.map_shared_rank(bins, v / 32) + v % 32, 1);
    }
    cluster.sync();
    for (int i = threadIdx.x; i < 32; i += blockDim.x) counts[blockIdx.x * 32 + i] = bins[i];
    if (threadIdx.x == 0) {
        share = 0;
        for (int i = 0; i < 32; ++i) share += (i + 1) * bins[i];
    }
    cluster.sync();
    if (rank == 0 && threadIdx.x == 0) {
        int sum = 0;
        for (int r = 0; r < ranks; ++r) sum += *cluster.map_shared_rank(&share, r);
        total[id] = sum;
    }
    cluster.sync();
}

// A block's copy of a tile by the group's memcpy_async, with the barrier split into arrival and wait.
// x: (gridDim.x, n), y: the same, reversed; n up to 200
__global__ void group_copy(const int* x, int* y, int n) {
    __shared__ int tile[200];
    const auto block = cg::this_thread_block();
    cg::memcpy_async(block, tile, x + blockIdx.x * n, sizeof(int) * n);
    cg::wait(block);
    int sum = 0;
    for (int i = block.thread_rank(); i < n; i += block.size()) sum += tile[n - 1 - i];
    auto token = block.barrier_arrive();
    sum *= 2;
    block.barrier_wait(std::move(token));
    if (block.thread_rank() < n) tile[block.thread_rank()] = sum;
    block.sync();
    for (int i = block.thread_rank(); i < n; i += block.size())
        y[blockIdx.x * n + i] = tile[(i + 1) % min(n, static_cast<int>(block.size()))];
}

// cuda::pipeline of one thread with two stages.
// x: (gridDim.x, batches, blockDim.x), y: (gridDim.x, blockDim.x)
__global__ void thread_pipeline(const int* x, int* y, int batches) {
    __shared__ int stages[2][72];
    const int t = threadIdx.x;
    x += blockIdx.x * batches * blockDim.x;
    auto pipe = cuda::make_pipeline();
    auto fetch = [&](int k) {
        pipe.producer_acquire();
        if (k < batches)
            cuda::memcpy_async(&stages[k % 2][t], &x[k * blockDim.x + t], cuda::aligned_size_t<4>(4), pipe);
        pipe.producer_commit();
    };
    fetch(0);
    int value = 0;
    for (int k = 0; k < batches; ++k) {
        fetch(k + 1);
        cuda::pipeline_consumer_wait_prior<1>(pipe);
        value = 3 * value + stages[k % 2][t];
        pipe.consumer_release();
    }
    y[blockIdx.x * blockDim.x + t] = value;
}

// A product of small integers by wmma, one warp per tile of 16 by 16.
// a: (rows, depth), b: (depth, cols), c: (rows, cols); all extents multiples of 16; grid: (cols / 16, rows / 32)
__global__ void warp_matrices(const half* a, const half* b, float* c, int rows, int cols, int depth) {
    using namespace nvcuda;
    const int row = (blockIdx.y * 2 + threadIdx.x / 32) * 16, col = blockIdx.x * 16;
    if (row >= rows) return;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    for (int k = 0; k < depth; k += 16) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> right;
        wmma::load_matrix_sync(left, a + row * depth + k, depth);
        wmma::load_matrix_sync(right, b + k * cols + col, cols);
        wmma::mma_sync(sum, left, right, sum);
    }
    wmma::store_matrix_sync(c + row * cols + col, sum, cols, wmma::mem_row_major);
}

// The same for one tile of 16 by 8 per warp, by ldmatrix and mma.sync through shared memory.
// a: (gridDim.x, warps, 16, 16), b: (gridDim.x, warps, 16, 8), c: (gridDim.x, warps, 16, 8); block: up to 96
__global__ void matrix_tiles(const half* a, const half* b, float* c) {
    __shared__ __align__(16) half left[3][16][24], right[3][16][8];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = blockIdx.x * (blockDim.x / 32) + warp;
    for (int i = lane; i < 256; i += 32) left[warp][i / 16][i % 16] = a[tile * 256 + i];
    for (int i = lane; i < 128; i += 32) right[warp][i / 8][i % 8] = b[tile * 128 + i];
    __syncwarp();
    unsigned x[4], y[2];
    float z[4] = {};
    const auto from = static_cast<unsigned>(__cvta_generic_to_shared(&left[warp][lane % 16][lane / 16 * 8]));
    const auto other = static_cast<unsigned>(__cvta_generic_to_shared(&right[warp][lane % 16][0]));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
        : "r"(from));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
        : "=r"(y[0]), "=r"(y[1])
        : "r"(other));
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(z[0]), "+f"(z[1]), "+f"(z[2]), "+f"(z[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
    float* to = c + tile * 128 + lane / 4 * 8 + lane % 4 * 2;
    to[0] = z[0], to[1] = z[1], to[64] = z[2], to[65] = z[3];
}
