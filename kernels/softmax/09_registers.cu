// Row softmax that reads and writes each element once: the row stays in registers in between, and in shared memory if
// the registers cannot hold it.
//
// Parameters as in 01_thread_per_row.cu. LANES threads share a row: part of a warp or a warp for short rows (no
// barrier), or the whole block. Each thread holds HELD pieces of VEC floats in registers and PARKED pieces in its own
// slots of dynamic shared memory. cp.async fills the slots without registers; no other thread reads a slot, so parking
// needs no barrier.
//
// VEC = 4 needs contiguous columns, 16-byte aligned rows in x and y, and cols a multiple of 4; VEC = 1 takes any
// strides. LANES * (HELD + PARKED) * VEC is at least cols. SHIFTED: contiguous columns in rows that are not aligned,
// with the same offset from a 16-byte boundary in x and y. Pieces are then cut at the boundaries; the incomplete pieces
// at the row's ends belong to at most two threads and are moved float by float. (Rows of 8,191 floats moved float by
// float reach 0.76 of copy bandwidth.) SHIFTED needs room for three floats more than cols.
//
// __expf is accurate enough. Its error is 2 ulp plus one ulp per unit of |x - maximum|, and an element that far below
// the maximum adds almost nothing to the sum. It saves registers, so that 1024 threads can hold 32 floats each (H200,
// 4096x32768: 0.969 of copy bandwidth, 0.960 with expf).
//
// Bottleneck: memory bandwidth, 8 bytes per element. The rest is the tail of the last wave of blocks.
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

// One thread's share of a row. Piece i is the VEC columns from column(i) on. A whole piece is moved in one access, the
// row's head or tail (SHIFTED rows only) column by column. LANES threads share the row. A piece may be parked in a slot
// of shared memory that no other thread uses; a thread's slots are BLOCK slots apart.
template <int BLOCK, int LANES, int VEC, bool SHIFTED>
struct RowShare {
    using P = typename Piece<VEC>::type;

    P* slots;     // this thread's first slot
    int64 cols;   // of the row
    int lane;     // 0 .. LANES - 1
    int lead;     // floats from the last 16-byte boundary to the row's first: 0 .. 3; 0 unless SHIFTED
    bool inside;  // false for threads past the last row

    // The first column of piece i; negative if the piece begins before a shifted row.
    __device__ __forceinline__ int64 column(int i) const {
        const int number = i * LANES + lane;  // of the piece in the row
        return static_cast<int64>(number) * VEC - lead;
    }

    // Whether piece i begins before the row's end.
    __device__ __forceinline__ bool begins(int i) const { return inside && column(i) < cols; }

    // Whether all columns of piece i are in the row, if it begins there.
    __device__ __forceinline__ bool whole(int i) const {
        return !SHIFTED || (column(i) >= 0 && column(i) + VEC <= cols);
    }

    // Whether column k of piece i is in the row.
    __device__ __forceinline__ bool within(int i, int k) const { return column(i) + k >= 0 && column(i) + k < cols; }

    // Floats from the row's first element to piece i; columns are `stride` floats apart. Pieces of four are contiguous
    // and at a constant distance from the first.
    __device__ __forceinline__ int64 place(int64 stride, int i) const {
        return VEC == 4 ? column(0) + i * LANES * VEC : column(i) * stride;
    }

    // Slot i, as VEC floats.
    __device__ __forceinline__ float* slot(int i) const { return reinterpret_cast<float*>(&slots[i * BLOCK]); }

    // Starts copying piece i of `x` to slot `to`, without registers. Columns outside the row become -inf.
    __device__ __forceinline__ void park(const float* x, int64 stride, int i, int to) const {
        if (begins(i) && whole(i))
            copy_async<VEC * 4>(slot(to), x + place(stride, i));
        else
#pragma unroll
            for (int k = 0; k < VEC; ++k)
                slot(to)[k] = SHIFTED && begins(i) && within(i, k) ? x[column(i) + k] : -kInfinity;
    }

    // Loads piece i of `x`. Columns outside the row become -inf.
    __device__ __forceinline__ void load(const float* x, int64 stride, int i, float (&to)[VEC]) const {
        P piece;
        float* parts = reinterpret_cast<float*>(&piece);
#pragma unroll
        for (int k = 0; k < VEC; ++k) parts[k] = -kInfinity;
        if (begins(i) && whole(i))
            piece = *reinterpret_cast<const P*>(x + place(stride, i));
        else if (SHIFTED && begins(i))
#pragma unroll
            for (int k = 0; k < VEC; ++k)
                if (within(i, k)) parts[k] = x[column(i) + k];
#pragma unroll
        for (int k = 0; k < VEC; ++k) to[k] = parts[k];
    }

    // Writes piece i of `y`; the piece must begin in the row.
    __device__ __forceinline__ void store(float* y, int64 stride, int i, const P& piece) const {
        const float* parts = reinterpret_cast<const float*>(&piece);
        if (whole(i))
            *reinterpret_cast<P*>(y + place(stride, i)) = piece;
        else
#pragma unroll
            for (int k = 0; k < VEC; ++k)
                if (within(i, k)) y[column(i) + k] = parts[k];
    }
};

// Returns the result to every thread of the row's group. `scratch` holds 32 floats. MOST: as in warps_reduce_block.
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
    static_assert(!SHIFTED || VEC == 4, "shifted pieces have 16 bytes");
    static_assert(BLOCK % kWarp == 0 && BLOCK % LANES == 0, "whole warps, whole groups");
    static_assert(LANES <= kWarp || LANES == BLOCK, "a group past a warp is the block: its barrier is the block's");
    using P = typename Piece<VEC>::type;
    // For shifted rows a smaller kMost costs 14 registers, and with them a resident block: 0.90 of copy bandwidth at
    // 8192x8191 instead of 0.96.
    constexpr int kWarps = SHIFTED ? kWarp : LANES / kWarp;
    constexpr int kMost = kWarps <= 2 ? 2 : kWarps <= 4 ? 4 : kWarps <= 8 ? 8 : kWarps <= 16 ? 16 : 32;
    extern __shared__ float4 slots[];
    __shared__ float maxima[kWarp], sums[kWarp];

    constexpr int kRows = BLOCK / LANES;    // of a block
    const int lane = threadIdx.x % LANES;   // 0 .. LANES - 1
    const int group = threadIdx.x / LANES;  // 0 .. kRows - 1
    const int64 row = static_cast<int64>(blockIdx.x) * kRows + group;
    const bool inside = row < rows;  // threads past the last row stay for the shuffles
    x += row * x_row;
    y += row * y_row;
    const int lead = SHIFTED ? static_cast<int>(reinterpret_cast<uint64>(x) / 4 % 4) : 0;  // the same in y
    P* const parked = reinterpret_cast<P*>(slots) + threadIdx.x;  // slot i at parked[i * BLOCK]
    const RowShare<BLOCK, LANES, VEC, SHIFTED> share{parked, cols, lane, lead, inside};

    // Parked pieces first: their copies need no registers while in flight.
#pragma unroll
    for (int i = 0; i < PARKED; ++i) share.park(x, x_col, HELD + i, i);
    float held[HELD][VEC];
#pragma unroll
    for (int i = 0; i < HELD; ++i) share.load(x, x_col, i, held[i]);

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

    // A column past the end adds exp(-inf) = 0. In a row of only -inf it adds NaN, like the row's own elements.
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
        if (!share.begins(i)) continue;
        P piece;
        float* parts = reinterpret_cast<float*>(&piece);
#pragma unroll
        for (int k = 0; k < VEC; ++k)
            parts[k] = (i < HELD ? held[i < HELD ? i : 0][k] : share.slot(i - HELD)[k]) * scale;
        share.store(y, y_col, i, piece);
    }
}
