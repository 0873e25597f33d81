#include "blocks.cuh"
#include <cub/block/block_histogram.cuh>
#include <cub/block/block_radix_rank.cuh>
#include <cub/block/block_merge_sort.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/warp/warp_merge_sort.cuh>

template <class T>
__device__ void sort(const int* x, int* y) {
    using Sort = cub::BlockRadixSort<T, THREADS, ITEMS>;
    __shared__ typename Sort::TempStorage scratch;
    T v[ITEMS];
    read(x, v);
    Sort(scratch).Sort(v);
    write(y, v);
}
extern "C" __global__ void sort_int(const int* x, int* y) {
    sort<int>(x, y);
}
extern "C" __global__ void sort_float(const int* x, int* y) {
    sort<float>(x, y);
}
extern "C" __global__ void sort_long(const int* x, int* y) {
    sort<long long>(x, y);
}
extern "C" __global__ void sort_double(const int* x, int* y) {
    sort<double>(x, y);
}
extern "C" __global__ void sort_descending(const int* x, int* y) {
    using Sort = cub::BlockRadixSort<int, THREADS, ITEMS>;
    __shared__ typename Sort::TempStorage scratch;
    int v[ITEMS];
    read(x, v);
    Sort(scratch).SortDescending(v);
    write(y, v);
}
extern "C" __global__ void sort_bits(const int* x, int* y) {
    using Sort = cub::BlockRadixSort<unsigned, THREADS, ITEMS>;
    __shared__ typename Sort::TempStorage scratch;
    unsigned v[ITEMS];
    read(x, v);
    Sort(scratch).Sort(v, 3, 9);
    write(y, v);
}
extern "C" __global__ void sort_pairs(const int* x, int* y) {
    using Sort = cub::BlockRadixSort<int, THREADS, ITEMS, int>;
    __shared__ typename Sort::TempStorage scratch;
    int v[ITEMS], place[ITEMS];
    read(x, v);
    for (int i = 0; i < ITEMS; i++) place[i] = threadIdx.x * ITEMS + i;
    Sort(scratch).Sort(v, place);
    write(y, place);
}
extern "C" __global__ void sort_striped(const int* x, int* y) {
    using Sort = cub::BlockRadixSort<int, THREADS, ITEMS>;
    __shared__ typename Sort::TempStorage scratch;
    int v[ITEMS];
    read(x, v);
    Sort(scratch).SortBlockedToStriped(v);
    for (int i = 0; i < ITEMS; i++) y[i * THREADS + threadIdx.x] = v[i];
}
extern "C" __global__ void sort_descending_striped(const int* x, int* y) {
    using Sort = cub::BlockRadixSort<int, THREADS, ITEMS, int>;
    __shared__ typename Sort::TempStorage scratch;
    int v[ITEMS], place[ITEMS];
    read(x, v);
    for (int i = 0; i < ITEMS; i++) place[i] = threadIdx.x * ITEMS + i;
    Sort(scratch).SortDescendingBlockedToStriped(v, place);
    for (int i = 0; i < ITEMS; i++) y[i * THREADS + threadIdx.x] = place[i];
}
template <class Rank>
__device__ void ranks(const int* x, int* y) {
    __shared__ typename Rank::TempStorage scratch;
    unsigned v[ITEMS];
    int rank[ITEMS];
    read(x, v);
    cub::BFEDigitExtractor<unsigned> digits(2, 4);
    Rank(scratch).RankKeys(v, rank, digits);
    write(y, rank);
}
extern "C" __global__ void rank_up(const int* x, int* y) {
    ranks<cub::BlockRadixRank<THREADS, 4, false>>(x, y);
}
extern "C" __global__ void rank_down(const int* x, int* y) {
    ranks<cub::BlockRadixRank<THREADS, 4, true>>(x, y);
}

template <cub::BlockHistogramAlgorithm A>
__device__ void histogram(const int* x, int* y) {
    using Count = cub::BlockHistogram<unsigned char, THREADS, ITEMS, 256, A>;
    __shared__ typename Count::TempStorage scratch;
    __shared__ int bins[256];
    unsigned char v[ITEMS];
    read(x, v);
    Count(scratch).Histogram(v, bins);
    __syncthreads();
    Count(scratch).Composite(v, bins);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += THREADS) y[i] = bins[i];
}
extern "C" __global__ void histogram_sort(const int* x, int* y) {
    histogram<cub::BLOCK_HISTO_SORT>(x, y);
}
extern "C" __global__ void histogram_atomic(const int* x, int* y) {
    histogram<cub::BLOCK_HISTO_ATOMIC>(x, y);
}

struct Less {
    __device__ bool operator()(int a, int b) const { return a < b; }
};
// block: 64; sorts the first 256 items
extern "C" __global__ void merge_block(const int* x, int* y) {
    using Sort = cub::BlockMergeSort<int, 64, 4>;
    __shared__ typename Sort::TempStorage storage;
    int items[4];
    for (int i = 0; i < 4; ++i) items[i] = x[threadIdx.x * 4 + i];
    Sort(storage).Sort(items, Less());
    for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = items[i];
}
// block: 64; sorts the first 150 items
extern "C" __global__ void merge_partial(const int* x, int* y) {
    using Sort = cub::BlockMergeSort<int, 64, 4>;
    __shared__ typename Sort::TempStorage storage;
    int items[4];
    for (int i = 0; i < 4; ++i) items[i] = threadIdx.x * 4 + i < 150 ? x[threadIdx.x * 4 + i] : 5000;
    Sort(storage).Sort(items, Less(), 150, 5000);
    for (int i = 0; i < 4; ++i) {
        if (threadIdx.x * 4 + i < 150) y[threadIdx.x * 4 + i] = items[i];
    }
}
// each warp sorts its 128 items
extern "C" __global__ void merge_warp(const int* x, int* y) {
    using Sort = cub::WarpMergeSort<int, 4, 32>;
    __shared__ typename Sort::TempStorage storage[3];
    int items[4];
    for (int i = 0; i < 4; ++i) items[i] = x[threadIdx.x * 4 + i];
    Sort(storage[threadIdx.x / 32]).Sort(items, Less());
    for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = items[i];
}
