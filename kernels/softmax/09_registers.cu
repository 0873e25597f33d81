// Row softmax that reads each element once and writes it once: the row stays in registers between the two, and what
// the registers cannot hold stays in shared memory.
//
// Parameters as in 01_thread_per_row.cu. A row is shared by LANES threads: part of a warp or a warp for short rows (no
// barrier at all), or the whole block. Each thread holds HELD pieces of VEC floats in registers and PARKED pieces in
// its own slots of dynamic shared memory, brought there by cp.async past the registers; nobody else reads a slot, so
// parking needs no barrier.
//
// VEC = 4 needs neighbouring columns, 16-byte aligned rows on both sides and cols a multiple of 4; VEC = 1 takes any
// strides. LANES * (HELD + PARKED) * VEC is at least cols. SHIFTED: neighbouring columns, rows that start anywhere, at
// the same distance from a 16-byte boundary in x and y: pieces are cut at the boundaries, and those that stick out at
// the ends of the row, of at most two threads, are moved by single floats. (Rows of 8,191 floats were 0.76 of a copy in
// single floats.) It takes three floats more than cols.
//
// __expf, an error of 2 ulp and one more for each unit of |x - maximum|, is enough: an element so far below the maximum
// that the error shows in its own digits adds nothing to the sum. It saves the registers that let 1024 threads hold 32
// floats each (measured on an H200, 4096x32768: 0.969 of a copy against 0.960 with expf).
//
// Bound by: memory; 8 bytes an element. What is left is the tail of the last wave of blocks.
#include "../common/copy_async.cuh"
#include "../common/exponential.cuh"
#include "../common/reduce.cuh"

template <int VEC>
struct Piece;
template <>
struct Piece<1> {
    using type = float;
};
template <>
struct Piece<4> {
    using type = float4;
};

// Every thread of the row's group gets the result. `scratch` holds 32 floats. MOST: as in warps_reduce_block.
template <int LANES, int MOST, class Op>
__device__ __forceinline__ float group_reduce(float value, float* scratch, Op op) {
    if constexpr (LANES > kWarp)
        return warps_reduce_block<MOST>(value, scratch, op);
    else
        return lanes_reduce<LANES>(value, op);
}

// x, y: (rows, cols); grid: ceil(rows / (BLOCK / LANES)), block: BLOCK, shared: BLOCK * PARKED * VEC * 4 bytes
template <int BLOCK, int LANES, int HELD, int PARKED, int VEC, bool SHIFTED>
__global__ void __launch_bounds__(BLOCK) registers(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    static_assert(!SHIFTED || VEC == 4, "shifted pieces are of 16 bytes");
    static_assert(BLOCK % kWarp == 0 && BLOCK % LANES == 0, "whole warps, whole groups");
    static_assert(LANES <= kWarp || LANES == BLOCK, "a group past a warp is the block: its barrier is the block's");
    using P = typename Piece<VEC>::type;
    // Of shifted rows the shorter ways cost 14 registers, and with them a block a multiprocessor: 0.90 of a copy at
    // 8192x8191 where it was 0.96.
    constexpr int kWarps = SHIFTED ? kWarp : LANES / kWarp;
    constexpr int kMost = kWarps <= 2 ? 2 : kWarps <= 4 ? 4 : kWarps <= 8 ? 8 : kWarps <= 16 ? 16 : 32;
    extern __shared__ float4 slots[];
    __shared__ float maxima[kWarp], sums[kWarp];

    const int lane = threadIdx.x % LANES;
    const int64 row = static_cast<int64>(blockIdx.x) * (BLOCK / LANES) + threadIdx.x / LANES;
    const bool inside = row < rows;  // threads past the last row stay for the shuffles
    x += row * x_row;
    y += row * y_row;
    P* parked = reinterpret_cast<P*>(slots) + threadIdx.x;  // piece i at parked[i * BLOCK]
    // How far the row starts behind a 16-byte boundary, and what of piece i is within the row.
    const int lead = SHIFTED ? static_cast<int>(reinterpret_cast<uint64>(x) / 4 % 4) : 0;
    const auto column = [&](int i) { return static_cast<int64>(i * LANES + lane) * VEC - lead; };
    const auto begins = [&](int i) { return inside && column(i) < cols; };
    const auto whole = [&](int i) { return !SHIFTED || (column(i) >= 0 && column(i) + VEC <= cols); };
    const auto within = [&](int i, int k) { return column(i) + k >= 0 && column(i) + k < cols; };
    const auto slot = [&](int i) { return reinterpret_cast<float*>(&parked[i * BLOCK]); };
    // Where piece i is within its row: pieces of four are of neighbours, a constant from the first.
    const auto place = [&](int64 stride, int i) { return VEC == 4 ? column(0) + i * LANES * VEC : column(i) * stride; };

    // Parked pieces first: they need no register while they are on their way. Places past the end hold -inf.
#pragma unroll
    for (int i = 0; i < PARKED; ++i) {
        const int p = HELD + i;
        if (begins(p) && whole(p))
            copy_async<VEC * 4>(slot(i), x + place(x_col, p));
        else
#pragma unroll
            for (int k = 0; k < VEC; ++k)
                slot(i)[k] = SHIFTED && begins(p) && within(p, k) ? x[column(p) + k] : -kInfinity;
    }
    float held[HELD][VEC];
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        P piece;
        float* parts = reinterpret_cast<float*>(&piece);
#pragma unroll
        for (int k = 0; k < VEC; ++k) parts[k] = -kInfinity;
        if (begins(i) && whole(i))
            piece = *reinterpret_cast<const P*>(x + place(x_col, i));
        else if (SHIFTED && begins(i))
#pragma unroll
            for (int k = 0; k < VEC; ++k)
                if (within(i, k)) parts[k] = x[column(i) + k];
#pragma unroll
        for (int k = 0; k < VEC; ++k) held[i][k] = parts[k];
    }

    float maximum = -kInfinity;
#pragma unroll
    for (int i = 0; i < HELD; ++i)
#pragma unroll
        for (int k = 0; k < VEC; ++k) maximum = fmaxf(maximum, held[i][k]);
    if constexpr (PARKED > 0) copy_async_wait();
#pragma unroll
    for (int i = 0; i < PARKED; ++i) {
        const P piece = parked[i * BLOCK];
        const float* parts = reinterpret_cast<const float*>(&piece);
#pragma unroll
        for (int k = 0; k < VEC; ++k) maximum = fmaxf(maximum, parts[k]);
    }
    maximum = group_reduce<LANES, kMost>(maximum, maxima, Max());

    // A place past the end adds exp(-inf) = 0. In a row of -inf alone it adds NaN, as the row's own elements do.
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; ++i)
#pragma unroll
        for (int k = 0; k < VEC; ++k) sum += held[i][k] = exponential(held[i][k] - maximum);
#pragma unroll
    for (int i = 0; i < PARKED; ++i) {
        P piece = parked[i * BLOCK];
        float* parts = reinterpret_cast<float*>(&piece);
#pragma unroll
        for (int k = 0; k < VEC; ++k) sum += parts[k] = exponential(parts[k] - maximum);
        parked[i * BLOCK] = piece;
    }
    const float total = group_reduce<LANES, kMost>(sum, sums, Sum());  // 1 to cols, or NaN
    const float scale = SHIFTED ? 1.0f / total : __fdividef(1.0f, total);

#pragma unroll
    for (int i = 0; i < HELD + PARKED; ++i) {
        if (!begins(i)) continue;
        P piece;
        float* parts = reinterpret_cast<float*>(&piece);
#pragma unroll
        for (int k = 0; k < VEC; ++k) parts[k] = (i < HELD ? held[i < HELD ? i : 0][k] : slot(i - HELD)[k]) * scale;
        if (whole(i))
            *reinterpret_cast<P*>(y + place(y_col, i)) = piece;
        else
#pragma unroll
            for (int k = 0; k < VEC; ++k)
                if (within(i, k)) y[column(i) + k] = parts[k];
    }
}
