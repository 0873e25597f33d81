// 16-byte copies of tiles, for the variants vec4 and warp_tile.
//
// A "line" is a row of A, or a column of B. Both are stored in shared memory as [k][line], PITCH floats from k to k +
// 1, so that neighbouring lines of one k are one 16-byte read, whichever axis is contiguous in global memory.
#pragma once
#include "output.cuh"

// Loads LINES lines x BK of an operand, from line `line0` and `k0` on, with zeros past its `lines` or `depth`. ALONG_K:
// its contiguous axis is k, and the tile is transposed on the way. VEC: 4 if the contiguous axis is a multiple of 16
// bytes, so that each piece is either inside the operand or outside; else 1.
template <int LINES, int BK, bool ALONG_K, int VEC, int PITCH, int THREADS>
__device__ __forceinline__ void bring(const float* operand, int64 line_stride, int64 k_stride, int64 line0, int64 lines,
    int64 k0, int64 depth, float* tile) {
    constexpr int kAcross = (ALONG_K ? BK : LINES) / VEC;  // pieces along the contiguous axis
    static_assert(VEC == 4 || VEC == 1, "accesses of 16 or of 4 bytes");
    static_assert(LINES * BK % (VEC * THREADS) == 0, "every thread loads the same share");
#pragma unroll
    for (int first = 0; first < LINES * BK / VEC; first += THREADS) {
        const int piece = first + threadIdx.x;    // 0 .. LINES * BK / VEC - 1
        const int along = piece % kAcross * VEC;  // its first element on the contiguous axis: 0 .. kAcross * VEC - VEC
        const int across = piece / kAcross;       // and on the other one
        const int line = ALONG_K ? across : along;  // 0 .. LINES - 1
        const int i = ALONG_K ? along : across;     // 0 .. BK - 1
        const bool inside = line0 + line < lines && k0 + i < depth;
        const float* from = operand + (line0 + line) * line_stride + (k0 + i) * k_stride;
        float* to = tile + i * PITCH + line;
        if constexpr (VEC == 4) {
            const float4 v = inside ? *reinterpret_cast<const float4*>(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if constexpr (ALONG_K)
                to[0] = v.x, to[PITCH] = v.y, to[2 * PITCH] = v.z, to[3 * PITCH] = v.w;
            else
                *reinterpret_cast<float4*>(to) = v;
        } else {
            *to = inside ? *from : 0.0f;
        }
    }
}

// Reads four neighbouring lines of one k.
__device__ __forceinline__ void read_four(const float* tile, float* values) {
    const float4 v = *reinterpret_cast<const float4*>(tile);
    values[0] = v.x, values[1] = v.y, values[2] = v.z, values[3] = v.w;
}

// Writes four neighbouring outputs of row r, from column s on. VEC: 4 if they are one aligned 16-byte piece of D. c and
// d point to the batch.
template <int VEC>
__device__ __forceinline__ void write_four(const float* sums, const float* c, int64 c_row, int64 c_col, float* d,
    int64 d_row, int64 d_col, int64 r, int64 s, int64 m, int64 n, float alpha, float beta) {
    if (r >= m) return;
    c += r * c_row;
    d += r * d_row;
    if constexpr (VEC == 4) {
        if (s >= n) return;
        float values[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) values[e] = combined(sums[e], alpha, beta, c + (s + e) * c_col);
        *reinterpret_cast<float4*>(d + s) = make_float4(values[0], values[1], values[2], values[3]);
    } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (s + e < n) d[(s + e) * d_col] = combined(sums[e], alpha, beta, c + (s + e) * c_col);
    }
}
