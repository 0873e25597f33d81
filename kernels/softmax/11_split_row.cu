// Row softmax for few very long rows: the blocks of a cluster share a row, each block holds its part, and each element
// is read and written once.
//
// Parameters as in 01_thread_per_row.cu, with x_col = y_col = 1, 16-byte aligned rows and cols a multiple of 4. CLUSTER
// blocks of BLOCK threads share a row. Each thread holds HELD float4 in registers and PARKED in its own slots of
// dynamic shared memory, as in 09_registers.cu. CLUSTER * BLOCK * (HELD + PARKED) * 4 is at least cols.
//
// Each block computes the maximum and the sum of its part. The blocks exchange both once per row through distributed
// shared memory, not through device memory, and scale the sums to the common maximum.
//
// Bottleneck: memory bandwidth, 8 bytes per element. A cluster first reads its whole row and then writes it, so reads
// and writes overlap only between clusters. Rows too long for a cluster take the next variant.
#include <cooperative_groups.h>

#include "../common/copy_async.cuh"
#include "../common/online.cuh"
#include "../common/reduce.cuh"

namespace cg = cooperative_groups;

// Stores 16 bytes at once. For plain float4 stores the compiler splits each thread's first one into four, which costs 3
// % of the total time at 1024x131072 on an H200.
__device__ __forceinline__ void store4(float* to, float4 v) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
        : "memory");
}

// x, y: (rows, cols); grid: rows * CLUSTER, cluster: CLUSTER, block: BLOCK, shared: BLOCK * PARKED * 16 bytes
template <int BLOCK, int CLUSTER, int HELD, int PARKED>
__global__ void __launch_bounds__(BLOCK) split_row(
    const float* x, float* y, int64 x_row, int64 x_col, int64 y_row, int64 y_col, int64 rows, int64 cols) {
    static_assert(BLOCK % kWarp == 0, "whole warps");
    extern __shared__ float4 slots[];
    __shared__ float maxima[kWarp], sums[kWarp];
    __shared__ Online mine;

    const cg::cluster_group cluster = cg::this_cluster();
    const int64 row = blockIdx.x / CLUSTER;                   // 0 .. rows - 1
    const int part = static_cast<int>(cluster.block_rank());  // 0 .. CLUSTER - 1
    x += row * x_row;
    y += row * y_row;
    // The first column of this thread's float4 number i. Neighbouring threads of the cluster take neighbouring ones.
    const auto column = [&](int i) {
        const int64 stretch = static_cast<int64>(i) * CLUSTER + part;  // of BLOCK float4
        return (stretch * BLOCK + threadIdx.x) * 4;
    };
    float4* const parked = slots + threadIdx.x;  // slot i at parked[i * BLOCK]

#pragma unroll
    for (int i = 0; i < PARKED; ++i) {
        const int64 c = column(HELD + i);
        if (c < cols)
            copy_async<16>(&parked[i * BLOCK], x + c);
        else
            parked[i * BLOCK] = make_float4(-kInfinity, -kInfinity, -kInfinity, -kInfinity);
    }
    float held[HELD][4];
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        float4 v = make_float4(-kInfinity, -kInfinity, -kInfinity, -kInfinity);
        if (column(i) < cols) v = *reinterpret_cast<const float4*>(x + column(i));
        held[i][0] = v.x, held[i][1] = v.y, held[i][2] = v.z, held[i][3] = v.w;
    }

    float maximum = -kInfinity;
#pragma unroll
    for (int i = 0; i < HELD; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k) maximum = fmaxf(maximum, held[i][k]);
    if constexpr (PARKED > 0) copy_async_wait();
#pragma unroll
    for (int i = 0; i < PARKED; ++i) {
        const float4 v = parked[i * BLOCK];
        maximum = fmaxf(fmaxf(fmaxf(maximum, v.x), fmaxf(v.y, v.z)), v.w);
    }
    maximum = warps_reduce_block(maximum, maxima, Max());

    // A part of only -inf uses shift 0: its sum is then 0, instead of the NaN of -inf - -inf.
    const float shift = online_shift(maximum);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k) sum += held[i][k] = __expf(held[i][k] - shift);
#pragma unroll
    for (int i = 0; i < PARKED; ++i) {
        float4 v = parked[i * BLOCK];
        sum += v.x = __expf(v.x - shift), sum += v.y = __expf(v.y - shift);
        sum += v.z = __expf(v.z - shift), sum += v.w = __expf(v.w - shift);
        parked[i * BLOCK] = v;
    }
    sum = warps_reduce_block(sum, sums, Sum());

    if (threadIdx.x == 0) mine = {maximum, sum};
    cluster.sync();
    Online total = online_empty();
#pragma unroll
    for (int other = 0; other < CLUSTER; ++other) total = online_merge(total, *cluster.map_shared_rank(&mine, other));
    cluster.sync();  // no block may exit while another reads its shared memory
    // A part of only -inf becomes 0 if the row has other elements, or NaN if the row's sum is NaN. In a row of only
    // -inf the exponential is NaN, as defined.
    const bool nothing = maximum == -kInfinity && total.maximum > -kInfinity;
    const float scale = nothing ? 0.0f * total.sum : expf(maximum - total.maximum) / total.sum;

#pragma unroll
    for (int i = 0; i < HELD + PARKED; ++i) {
        const int64 c = column(i);
        if (c >= cols) continue;
        float4 v;
        if (i < HELD) {
            const float (&from)[4] = held[i < HELD ? i : 0];
            v = make_float4(from[0], from[1], from[2], from[3]);
        } else {
            v = parked[(i - HELD) * BLOCK];
        }
        store4(y + c, make_float4(v.x * scale, v.y * scale, v.z * scale, v.w * scale));
    }
}
