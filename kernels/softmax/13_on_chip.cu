// Row softmax for at most 32 very long rows: a cooperative launch holds all rows on the chip, with one grid barrier.
//
// Parameters as in 01_thread_per_row.cu, with x_col = y_col = 1, 16-byte aligned rows and cols a multiple of 4;
// `parts`: scratch for rows * gridDim.x * WARPS pairs. Blocks have 1,024 threads, one block per SM.
//
// Every block takes an equal stretch of every row, with WARPS warps per row, so each thread has one row only. A thread
// keeps HELD of its float4 in registers and PARKED in its own slots of dynamic shared memory. It reads its other float4
// twice: at the end of the first pass and at the start of the second, while L2 has them. Each warp writes its maximum
// and sum to `parts`; after the grid barrier each warp merges the pairs of its row.
//
// Bottleneck: memory bandwidth, 8 bytes per element, and the grid barrier, which is not overlapped. For 16 rows of 4
// MiB the chip holds 46 of the 64 MiB, and L2 the rest.
#include <cooperative_groups.h>

#include "../common/copy_async.cuh"
#include "../common/online.cuh"
#include "../common/reduce.cuh"

// x, y: (rows, cols); grid: at most one block per multiprocessor, block: 1024, shared: 1024 * PARKED * 16 bytes
template <int WARPS, int HELD, int PARKED>
__global__ void __launch_bounds__(1024) on_chip(const float* x, float* y, Online* parts, int64 x_row, int64 x_col,
    int64 y_row, int64 y_col, int64 rows, int64 cols) {
    constexpr int kBlock = 1024;
    static_assert(kBlock / kWarp % WARPS == 0, "the same number of warps for each row");
    extern __shared__ float4 slots[];
    const int lane = threadIdx.x % kWarp;           // 0 .. 31
    const int warp = threadIdx.x / kWarp % WARPS;   // of the row: 0 .. WARPS - 1
    const int64 row = threadIdx.x / kWarp / WARPS;  // 0 .. 32 / WARPS - 1
    const bool inside = row < rows;                 // threads without a row only wait at the barrier
    x += row * x_row;
    y += row * y_row;

    // The block's stretch of the row: float4 [begin, end)
    const int64 pieces = cols / 4;
    const int64 share = (pieces + gridDim.x - 1) / gridDim.x;
    const int64 begin = blockIdx.x * share;
    const int64 last = begin + share < pieces ? begin + share : pieces;
    const int64 end = inside ? last : 0;
    // Piece i of the thread is float4 number place(i) of the row, if place(i) < end.
    const auto place = [&](int64 i) {
        const int64 line = i * WARPS + warp;  // of 32 float4, one per lane
        return begin + line * kWarp + lane;
    };
    const float4* from = reinterpret_cast<const float4*>(x);
    float4* to = reinterpret_cast<float4*>(y);
    float4* const parked = slots + threadIdx.x;
    const float4 nothing = make_float4(-kInfinity, -kInfinity, -kInfinity, -kInfinity);

#pragma unroll
    for (int i = 0; i < PARKED; ++i) {
        if (place(HELD + i) < end)
            copy_async<16>(&parked[i * kBlock], from + place(HELD + i));
        else
            parked[i * kBlock] = nothing;
    }
    float4 held[HELD];
#pragma unroll
    for (int i = 0; i < HELD; ++i) held[i] = place(i) < end ? from[place(i)] : nothing;
    Online rest = online_empty();
    const auto largest = [](float4 v) { return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)); };
#pragma unroll 4
    for (int64 i = HELD + PARKED; place(i) < end; ++i) {
        const float4 v = from[place(i)];
        rest = online_add(online_add(online_add(online_add(rest, v.x), v.y), v.z), v.w);
    }

    float maximum = rest.maximum;
#pragma unroll
    for (int i = 0; i < HELD; ++i) maximum = fmaxf(maximum, largest(held[i]));
    if constexpr (PARKED > 0) copy_async_wait();
#pragma unroll
    for (int i = 0; i < PARKED; ++i) maximum = fmaxf(maximum, largest(parked[i * kBlock]));
    maximum = lanes_reduce<kWarp>(maximum, Max());

    const float shift = online_shift(maximum);
    float sum = rest.sum * expf(rest.maximum - shift);
    const auto exponential = [&](float4 v) {
        v = make_float4(__expf(v.x - shift), __expf(v.y - shift), __expf(v.z - shift), __expf(v.w - shift));
        sum += (v.x + v.y) + (v.z + v.w);
        return v;
    };
#pragma unroll
    for (int i = 0; i < HELD; ++i) held[i] = exponential(held[i]);
#pragma unroll
    for (int i = 0; i < PARKED; ++i) parked[i * kBlock] = exponential(parked[i * kBlock]);
    sum = lanes_reduce<kWarp>(sum, Sum());

    const int count = gridDim.x * WARPS;                   // pairs of a row
    const int64 first = row * count + blockIdx.x * WARPS;  // the first pair of this block
    if (inside && lane == 0) parts[first + warp] = {maximum, sum};
    cooperative_groups::this_grid().sync();
    if (!inside) return;
    Online total = online_empty();
    for (int i = lane; i < count; i += kWarp) total = online_merge(total, parts[row * count + i]);
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2)
        total = online_merge(total,
            {__shfl_xor_sync(kAllLanes, total.maximum, distance), __shfl_xor_sync(kAllLanes, total.sum, distance)});

#pragma unroll 4
    for (int64 i = HELD + PARKED; place(i) < end; ++i) {
        const float4 v = from[place(i)];
        const auto part = [&](float e) { return expf(e - total.maximum) / total.sum; };
        to[place(i)] = make_float4(part(v.x), part(v.y), part(v.z), part(v.w));
    }
    // A part of only -inf becomes 0 if the row has other elements, or NaN if the row's sum is NaN. In a row of only
    // -inf the exponential is NaN, as defined.
    const bool none = maximum == -kInfinity && total.maximum > -kInfinity;
    const float scale = none ? 0.0f * total.sum : expf(maximum - total.maximum) / total.sum;
    const auto scaled = [&](float4 v) { return make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale); };
#pragma unroll
    for (int i = 0; i < HELD; ++i)
        if (place(i) < end) to[place(i)] = scaled(held[i]);
#pragma unroll
    for (int i = 0; i < PARKED; ++i)
        if (place(HELD + i) < end) to[place(HELD + i)] = scaled(parked[i * kBlock]);
}
