#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

template <int WIDTH>
__device__ void tile(const int* x, int* y) {
    auto t = cg::tiled_partition<WIDTH>(cg::this_thread_block());
    int v = x[threadIdx.x];
    y[threadIdx.x] = cg::reduce(t, v, cg::plus<int>());
    y[96 + threadIdx.x] = cg::inclusive_scan(t, v);
    y[192 + threadIdx.x] = cg::exclusive_scan(t, v);
}
extern "C" __global__ void tile_32(const int* x, int* y) {
    tile<32>(x, y);
}
extern "C" __global__ void tile_8(const int* x, int* y) {
    tile<8>(x, y);
}
extern "C" __global__ void coalesced(const int* x, int* y) {
    int v = x[threadIdx.x];
    if (v > 0) {
        auto g = cg::coalesced_threads();
        y[threadIdx.x] = cg::reduce(g, v, cg::plus<int>());
        y[96 + threadIdx.x] = cg::inclusive_scan(g, v);
        y[192 + threadIdx.x] = g.thread_rank();
    }
}
template <class G>
__device__ void part(const G& g, const int* x, int* y) {
    int v = x[threadIdx.x];
    y[threadIdx.x] = cg::reduce(g, v, cg::plus<int>());
    y[96 + threadIdx.x] = cg::inclusive_scan(g, v);
    y[192 + threadIdx.x] = g.thread_rank();
}
extern "C" __global__ void labeled(const int* x, int* y) {
    auto t = cg::tiled_partition<32>(cg::this_thread_block());
    part(cg::labeled_partition(t, x[threadIdx.x] & 3), x, y);
}
extern "C" __global__ void binary(const int* x, int* y) {
    auto t = cg::tiled_partition<32>(cg::this_thread_block());
    part(cg::binary_partition(t, x[threadIdx.x] > 0), x, y);
}
extern "C" __global__ void big_tile(const int* x, int* y) {
    __shared__ cg::block_tile_memory<128> scratch;
    auto t = cg::tiled_partition<64>(cg::this_thread_block(scratch));
    y[threadIdx.x] = cg::reduce(t, x[threadIdx.x], cg::plus<int>());
}
extern "C" __global__ void copy(const int* x, int* y) {
    __shared__ int s[384];
    auto b = cg::this_thread_block();
    cg::memcpy_async(b, s, x, sizeof s);
    cg::wait(b);
    for (int i = threadIdx.x; i < 384; i += 96) y[i] = s[383 - i];
}
extern "C" __global__ void grid(const int* x, int* y) {
    auto g = cg::this_grid();
    int i = g.thread_rank();
    y[i] = x[i];
    g.sync();
    int v = y[383 - i];
    g.sync();
    y[i] = v;
}
extern "C" __global__ void __cluster_dims__(4) cluster(const int* x, int* y) {
    __shared__ int s[96];
    auto c = cg::this_cluster();
    s[threadIdx.x] = x[c.thread_rank()];
    c.sync();
    int* other = c.map_shared_rank(s, (c.block_rank() + 1) % c.num_blocks());
    y[c.thread_rank()] = other[threadIdx.x];
    c.sync();
}
