#include "blocks.cuh"
#include <cub/block/block_adjacent_difference.cuh>
#include <cub/block/block_discontinuity.cuh>
#include <cub/block/block_exchange.cuh>
#include <cub/block/block_load.cuh>
#include <cub/block/block_run_length_decode.cuh>
#include <cub/block/block_shuffle.cuh>
#include <cub/block/block_store.cuh>

template <cub::BlockLoadAlgorithm A>
__device__ void load(const int* x, int* y) {
    using Load = cub::BlockLoad<int, THREADS, ITEMS, A>;
    __shared__ typename Load::TempStorage scratch;
    int v[ITEMS];
    Load(scratch).Load(x, v, PART, -1);
    write(y, v);
}
extern "C" __global__ void load_direct(const int* x, int* y) {
    load<cub::BLOCK_LOAD_DIRECT>(x, y);
}
extern "C" __global__ void load_vectorize(const int* x, int* y) {
    load<cub::BLOCK_LOAD_VECTORIZE>(x, y);
}
extern "C" __global__ void load_transpose(const int* x, int* y) {
    load<cub::BLOCK_LOAD_TRANSPOSE>(x, y);
}
extern "C" __global__ void load_warp(const int* x, int* y) {
    load<cub::BLOCK_LOAD_WARP_TRANSPOSE>(x, y);
}
extern "C" __global__ void load_sliced(const int* x, int* y) {
    load<cub::BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED>(x, y);
}

template <cub::BlockStoreAlgorithm A>
__device__ void store(const int* x, int* y) {
    using Store = cub::BlockStore<int, THREADS, ITEMS, A>;
    __shared__ typename Store::TempStorage scratch;
    int v[ITEMS];
    read(x, v);
    Store(scratch).Store(y, v, PART);
}
extern "C" __global__ void store_direct(const int* x, int* y) {
    store<cub::BLOCK_STORE_DIRECT>(x, y);
}
extern "C" __global__ void store_transpose(const int* x, int* y) {
    store<cub::BLOCK_STORE_TRANSPOSE>(x, y);
}
extern "C" __global__ void store_warp(const int* x, int* y) {
    store<cub::BLOCK_STORE_WARP_TRANSPOSE>(x, y);
}
extern "C" __global__ void store_sliced(const int* x, int* y) {
    store<cub::BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED>(x, y);
}

using Exchange = cub::BlockExchange<int, THREADS, ITEMS>;
extern "C" __global__ void exchange_striped(const int* x, int* y) {
    __shared__ typename Exchange::TempStorage scratch;
    int v[ITEMS];
    read(x, v);
    Exchange(scratch).StripedToBlocked(v, v);
    write(y, v);
}
extern "C" __global__ void exchange_blocked(const int* x, int* y) {
    __shared__ typename Exchange::TempStorage scratch;
    int v[ITEMS];
    read(x, v);
    Exchange(scratch).BlockedToStriped(v, v);
    write(y, v);
}
extern "C" __global__ void exchange_scatter(const int* x, int* y) {
    __shared__ typename Exchange::TempStorage scratch;
    int v[ITEMS], place[ITEMS];
    read(x, v);
    for (int i = 0; i < ITEMS; i++) place[i] = (threadIdx.x * ITEMS + i) * 5 % TILE;
    Exchange(scratch).ScatterToBlocked(v, v, place);
    write(y, v);
}
extern "C" __global__ void heads_and_tails(const int* x, int* y) {
    using Flag = cub::BlockDiscontinuity<int, THREADS>;
    __shared__ typename Flag::TempStorage scratch;
    int v[ITEMS], head[ITEMS], tail[ITEMS];
    read(x, v);
    for (int i = 0; i < ITEMS; i++) v[i] &= 1;
    Flag(scratch).FlagHeadsAndTails(head, tail, v, Unequal());
    for (int i = 0; i < ITEMS; i++) head[i] += 2 * tail[i];
    write(y, head);
}
extern "C" __global__ void difference_left(const int* x, int* y) {
    using Difference = cub::BlockAdjacentDifference<int, THREADS>;
    __shared__ typename Difference::TempStorage scratch;
    int v[ITEMS];
    read(x, v);
    Difference(scratch).SubtractLeft(v, v, Minus());
    write(y, v);
}
extern "C" __global__ void difference_right(const int* x, int* y) {
    using Difference = cub::BlockAdjacentDifference<int, THREADS>;
    __shared__ typename Difference::TempStorage scratch;
    int v[ITEMS];
    read(x, v);
    Difference(scratch).SubtractRightPartialTile(v, v, Minus(), PART);
    write(y, v);
}
using Shuffle = cub::BlockShuffle<int, THREADS>;
extern "C" __global__ void shuffle_up(const int* x, int* y) {
    __shared__ typename Shuffle::TempStorage scratch;
    int v[ITEMS], out[ITEMS] = {};
    read(x, v);
    Shuffle(scratch).Up(v, out);
    write(y, out);
}
extern "C" __global__ void shuffle_rotate(const int* x, int* y) {
    __shared__ typename Shuffle::TempStorage scratch;
    int out;
    Shuffle(scratch).Rotate(x[threadIdx.x], out, 5);
    y[threadIdx.x] = out;
}
extern "C" __global__ void run_length(const int* x, int* y) {
    using Decode = cub::BlockRunLengthDecode<int, THREADS, 1, ITEMS>;
    __shared__ typename Decode::TempStorage scratch;
    int v[1] = {x[threadIdx.x]}, length[1] = {int(threadIdx.x % 3) + 1}, total, out[ITEMS];
    Decode decode(scratch, v, length, total);
    decode.RunLengthDecode(out, 0);
    for (int i = 0; i < ITEMS; i++)
        if (int(threadIdx.x) * ITEMS + i < total) y[threadIdx.x * ITEMS + i] = out[i];
}
