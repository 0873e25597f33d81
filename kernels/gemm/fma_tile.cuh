// The inner loop of the fast fp32 products: one block computes a BM x BN tile of A * B over a range of k, with operands
// in a ring of STAGES shared-memory tiles and TM x TN sums per thread in registers.
//
// A "line" is a row of A, or a column of B. Both operands are stored in shared memory as [k][line], so that a thread
// reads four neighbouring lines of one k in one 16-byte load, whatever their layout in global memory:
//   line by line (A column-major, B row-major): copied by cp.async, 16 bytes at a time, or 4 if rows are not aligned
//   along k (A row-major, B column-major): transposed on the way through registers, which hold the tile after next
//   while this one is multiplied. (4-byte cp.async can transpose too, but keeps the load pipe twice as busy: 0.93 of
//   cuBLAS at 4096 against 1.02.) With LINES + 4 floats from k to k + 1, a warp's stores take at most two passes over
//   the banks.
//
// Bank conflicts of the reads: a 16-byte load takes one pass per half warp if neighbouring lanes (i, i ^ 1 or i, i ^ 2)
// share their address and the others use different 16-byte columns of the banks. So the bits of the lane's number
// alternate between the thread's column and row: lanes i, i ^ 1 share A, lanes i, i ^ 2 share B. This takes half the
// passes of the usual 8 x 4 arrangement, without conflicts.
//
// Bottleneck: instruction issue, 128 FFMA and 6 LDS per k, and a register file with two banks of one port each. An FFMA
// reads three registers, so it takes a second cycle unless the reuse cache holds one of them and the other two are in
// different banks. The order of the sums decides that; see `multiply_add`.
#pragma once
#include "../common/copy_async.cuh"
#include "../common/numbers.cuh"

// One operand's tile of LINES lines x BK. ALONG_K: its contiguous axis is k. VEC: floats per access to global memory.
template <int LINES, int BK, bool ALONG_K, int VEC, int THREADS>
struct OperandTile {
    static_assert(VEC == 4 || VEC == 1, "accesses of 16 or of 4 bytes");
    static constexpr int kPitch = LINES + (ALONG_K ? 4 : 0);  // floats from k to k + 1
    static constexpr int kFloats = kPitch * BK;
    // A thread loads kRuns runs of kRun pieces: neighbouring k, or one 16-byte piece, or lines kWarp apart.
    static constexpr int kRun = ALONG_K ? 4 : VEC == 4 ? 1 : LINES / kWarp;
    static constexpr int kAcross = ALONG_K    ? BK / 4
                                   : VEC == 4 ? LINES / 4
                                              : kWarp;  // threads along the contiguous axis
    static constexpr int kStep = THREADS / kAcross;     // lines (or k) between a thread's runs
    static constexpr int kRuns = (ALONG_K ? LINES : BK) / kStep;
    static_assert(THREADS % kAcross == 0 && (ALONG_K ? LINES : BK) % kStep == 0, "every thread loads the same share");

    const float* from;  // this thread's first element of the next tile
    int64 step;         // floats between a thread's runs
    int64 advance;      // floats between tiles
    int64 left;         // k not yet requested
    unsigned inside;    // bit i: run i (ALONG_K) or piece i of every run is within the operand's lines
    int place, k;       // offset of run 0 in the shared tile, and its first k
    float held[ALONG_K ? kRuns : 1][4];

    // `operand`: element (0, 0); `line`: first line of the tile, of `lines` in all; k in [k0, k1)
    __device__ __forceinline__ OperandTile(
        const float* operand, int64 line_stride, int64 k_stride, int64 line, int64 lines, int64 k0, int64 k1) {
        const int thread = threadIdx.x % THREADS;      // 0 .. THREADS - 1
        const int at = thread % kAcross;               // 0 .. kAcross - 1, along the contiguous axis
        const int row = thread / kAcross;              // 0 .. kStep - 1, along the other one
        const int my_line = ALONG_K ? row : at * VEC;  // 0 .. LINES - 1, in run 0
        k = ALONG_K ? at * 4 : row;                    // 0 .. BK - 1
        from = operand + (line + my_line) * line_stride + (k0 + k) * k_stride;
        step = kStep * (ALONG_K ? line_stride : k_stride);
        advance = BK * k_stride;
        left = k1 - k0;
        place = k * kPitch + my_line;
        inside = 0;
#pragma unroll
        for (int i = 0; i < (ALONG_K ? kRuns : kRun); ++i)
            if (line + my_line + i * (ALONG_K ? kStep : kWarp) < lines) inside |= 1u << i;
    }

    // Loads the next tile: to `tile` by cp.async, or (ALONG_K) to registers, for `put`. WHOLE: all its k are within the
    // range; otherwise elements past the last k become zero. Lines past the operand's end always become zero.
    template <bool WHOLE>
    __device__ __forceinline__ void bring(float* tile) {
        const int count = WHOLE || left >= BK ? BK : left > 0 ? static_cast<int>(left) : 0;
        const float* at = from;
#pragma unroll
        for (int run = 0; run < kRuns; ++run, at += step) {
            if constexpr (ALONG_K && VEC == 4) {
                float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if ((inside >> run & 1) && (WHOLE || k < count)) v = *reinterpret_cast<const float4*>(at);
                held[run][0] = v.x, held[run][1] = v.y, held[run][2] = v.z, held[run][3] = v.w;
            } else if constexpr (ALONG_K) {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    held[run][e] = (inside >> run & 1) && (WHOLE || k + e < count) ? at[e] : 0.0f;
            } else {
                float* const to = tile + place + run * (kStep * kPitch);
#pragma unroll
                for (int e = 0; e < kRun; ++e)
                    copy_async_or_zero<VEC * 4>(
                        to + e * kWarp, at + e * kWarp, (inside >> e & 1) && (WHOLE || k + run * kStep < count));
            }
        }
        from += advance;
        if (!WHOLE) left -= BK;
    }

    // Writes the loaded registers to the shared tile.
    __device__ __forceinline__ void put(float* tile) const {
#pragma unroll
        for (int run = 0; run < kRuns; ++run)
#pragma unroll
            for (int e = 0; e < 4; ++e) tile[place + e * kPitch + run * kStep] = held[run][e];
    }

    // Reads N lines of one k, in groups of four that are `apart` lines apart.
    template <int N>
    static __device__ __forceinline__ void read(const float* tile, int line, int apart, float (&values)[N]) {
#pragma unroll
        for (int g = 0; g < N / 4; ++g) {
            const float4 v = *reinterpret_cast<const float4*>(tile + line + g * apart);
            values[g * 4] = v.x, values[g * 4 + 1] = v.y, values[g * 4 + 2] = v.z, values[g * 4 + 3] = v.w;
        }
    }
};

// sums[i][j] += a[i] * b[j], in an order that suits the register file. Along a row a[i] stays in the reuse cache;
// every other row runs backwards, so that b[j] is reused at the turn. The order of the columns determines in which
// banks the compiler places the sums. It was found by trial: in the machine code of NVRTC 13.0 for 16 x 8 sums, 1 FFMA
// in 13 waits for a port with this order, 1 in 8 with columns in plain order, and 1 in 6 if the rows do not alternate
// either.
template <int TM, int TN>
__device__ __forceinline__ void multiply_add(const float (&a)[TM], const float (&b)[TN], float (&sums)[TM][TN]) {
    constexpr int kOrder16x8[8] = {7, 2, 4, 0, 3, 1, 5, 6};
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int step = 0; step < TN; ++step) {
            const int s = i % 2 ? TN - 1 - step : step;
            const int evens_first = s < TN / 2 ? 2 * s : 2 * s - TN + 1;
            const int j = TM == 16 && TN == 8 ? kOrder16x8[s % 8] : evens_first;
            sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
        }
}

// The same output in the memory of COUNT other devices, with the same strides: the address of its first element on
// each.
template <int COUNT>
struct OtherOutputs {
    float* first[COUNT > 0 ? COUNT : 1];

    // Copies the tile of BM x BN elements at (m0, n0) of d, after the whole block has stored it. d: the output on this
    // device. VEC: as for FmaTile::store. Rows of the tile are copied as a whole: 16 bytes per thread, 512 per warp.
    // The order of FmaTile::store would send half as many bytes per packet.
    template <int BM, int BN, int VEC>
    __device__ __forceinline__ void copy(
        const float* d, int64 d_row, int64 d_col, int64 m0, int64 n0, int64 m, int64 n) const {
        constexpr int kAcross = BN / VEC;  // pieces of a row
#pragma unroll 1                           // the main loop before it is faster if this one is short
        for (int piece = threadIdx.x; piece < BM * kAcross; piece += blockDim.x) {
            const int64 r = m0 + piece / kAcross;
            const int64 s = n0 + piece % kAcross * VEC;
            if (r >= m || s >= n) continue;
            const int64 at = r * d_row + s * d_col;
            if constexpr (VEC == 4) {
                const float4 four = __ldcg(reinterpret_cast<const float4*>(d + at));
#pragma unroll
                for (int o = 0; o < COUNT; ++o) *reinterpret_cast<float4*>(first[o] + at) = four;
            } else {
                const float one = __ldcg(d + at);
#pragma unroll
                for (int o = 0; o < COUNT; ++o) first[o][at] = one;
            }
        }
    }
};

template <int BM, int BN, int TM, int TN, int WARPS_M, int WARPS_N, int STAGES, bool A_K, bool B_K, int VEC_A,
    int VEC_B>
struct FmaTile {
    static constexpr int BK = 16;
    static constexpr int kThreads = WARPS_M * WARPS_N * kWarp;                  // of one slice
    static constexpr int kRows = BM / WARPS_M / TM, kCols = BN / WARPS_N / TN;  // threads of a warp, down and across
    static_assert(kRows * kCols == kWarp && (kRows == 4 || kRows == 8), "a warp tile is 4 x 8 or 8 x 4 threads");
    static_assert(TM % 4 == 0 && TN % 4 == 0, "whole 16-byte reads");
    using A = OperandTile<BM, BK, A_K, VEC_A, kThreads>;
    using B = OperandTile<BN, BK, B_K, VEC_B, kThreads>;
    static constexpr int kStage = A::kFloats + B::kFloats;  // floats of a stage

    float sums[TM][TN];
    int row, col;  // of the thread's first output in the tile

    // Sum (i, j) is output (row_of(i), col_of(j)) of the tile: groups of 4 x 4 outputs, kRows * 4 rows and kCols * 4
    // columns apart.
    __device__ __forceinline__ int row_of(int i) const {
        const int group = i / 4 * (kRows * 4);  // 0 .. (TM - 4) * kRows
        return row + group + i % 4;
    }
    __device__ __forceinline__ int col_of(int j) const {
        const int group = j / 4 * (kCols * 4);  // 0 .. (TN - 4) * kCols
        return col + group + j % 4;
    }

    __device__ __forceinline__ FmaTile() : FmaTile(threadIdx.x % kThreads) {}

    // Thread `thread` of a slice: 0 .. kThreads - 1.
    __device__ __forceinline__ explicit FmaTile(int thread) {
        constexpr int kWarpRows = BM / WARPS_M, kWarpCols = BN / WARPS_N;  // outputs of a warp
        const int lane = thread % kWarp;                                   // 0 .. 31
        const int warp = thread / kWarp;                                   // 0 .. WARPS_M * WARPS_N - 1
        // Bits 0, 2, 4 and bits 1, 3 of the lane's number select row and column (see the bank conflicts above).
        const int three = (lane & 1) | (lane >> 1 & 2) | (lane >> 2 & 4);  // 0 .. 7
        const int two = (lane >> 1 & 1) | (lane >> 2 & 2);                 // 0 .. 3
        const int lane_row = kRows == 8 ? three : two;                     // 0 .. kRows - 1
        const int lane_col = kRows == 8 ? two : three;                     // 0 .. kCols - 1
        const int warp_row = warp / WARPS_N * kWarpRows;                   // 0 .. BM - kWarpRows
        row = warp_row + lane_row * 4;
        const int warp_col = warp % WARPS_N * kWarpCols;  // 0 .. BN - kWarpCols
        col = warp_col + lane_col * 4;
    }

    __device__ __forceinline__ void read(const float* stage, int k, float (&of_a)[TM], float (&of_b)[TN]) const {
        A::read(stage + k * A::kPitch, row, kRows * 4, of_a);
        B::read(stage + A::kFloats + k * B::kPitch, col, kCols * 4, of_b);
    }

    // Multiplies the tile whose stage begins at `at` (in floats), loads a later one, and leaves the first k of the next
    // tile in registers.
    template <bool WHOLE>
    __device__ __forceinline__ void multiply(
        A& in_a, B& in_b, float* shared, int& at, float (&of_a)[2][TM], float (&of_b)[2][TN]) {
        constexpr int kEnd = STAGES * kStage;
        const int next = at + kStage == kEnd ? 0 : at + kStage;  // the stage after it: 0 .. kEnd - kStage
        const int free = at == 0 ? kEnd - kStage : at - kStage;  // the stage before it, no longer read
        if constexpr (A_K) in_a.put(shared + next);
        if constexpr (B_K) in_b.put(shared + next + A::kFloats);
        in_a.template bring<WHOLE>(shared + free);
        in_b.template bring<WHOLE>(shared + free + A::kFloats);
        copy_async_commit();
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k + 1 == BK) {  // this tile is read; the next must be there
                copy_async_wait_for<STAGES - 2>();
                __syncthreads();
                at = next;
            }
            read(shared + at, (k + 1) % BK, of_a[(k + 1) % 2], of_b[(k + 1) % 2]);
            multiply_add(of_a[k % 2], of_b[k % 2], sums);
        }
    }

    // sums = A * B over k in [k0, k1) for the tile with first row m0 and first column n0. a, b: of the batch. Takes
    // `tiles` steps of BK, which cover [k0, k1); at least `whole` of them are complete. Both counts are the same for
    // every thread of the block.
    __device__ __forceinline__ void product(float* shared, const float* a, int64 a_row, int64 a_col, const float* b,
        int64 b_row, int64 b_col, int64 m0, int64 n0, int64 m, int64 n, int64 k0, int64 k1, int64 tiles, int64 whole) {
        A in_a(a, a_row, a_col, m0, m, k0, k1);
        B in_b(b, b_col, b_row, n0, n, k0, k1);
        float* const shared_b = shared + A::kFloats;
        clear();

        // cp.async copies run STAGES - 1 tiles ahead. An operand that goes through registers has one tile ahead in
        // shared memory and one more in registers.
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            if constexpr (!A_K) in_a.template bring<false>(shared + s * kStage);
            if constexpr (!B_K) in_b.template bring<false>(shared_b + s * kStage);
            copy_async_commit();
        }
        if constexpr (A_K) in_a.template bring<false>(nullptr), in_a.put(shared), in_a.template bring<false>(nullptr);
        if constexpr (B_K) in_b.template bring<false>(nullptr), in_b.put(shared_b), in_b.template bring<false>(nullptr);
        copy_async_wait_for<STAGES - 2>();
        __syncthreads();

        // Registers hold one k while the next is loaded from shared memory.
        float of_a[2][TM], of_b[2][TN];
        read(shared, 0, of_a[0], of_b[0]);
        int at = 0;  // start of the tile that is multiplied, in floats
        // While whole tiles are loaded, no copy checks the end of k.
        const int64 hot = whole - (STAGES - 1 > 2 ? STAGES - 1 : 2);
        int64 t = 0;
#pragma unroll 1
        for (; t < hot; ++t) multiply<true>(in_a, in_b, shared, at, of_a, of_b);
        if (hot > 0) in_a.left -= hot * BK, in_b.left -= hot * BK;
#pragma unroll 1
        for (; t < tiles; ++t) multiply<false>(in_a, in_b, shared, at, of_a, of_b);
        copy_async_wait_for<0>();
        __syncthreads();  // before any thread fills the stages again
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) sums[i][j] = 0.0f;
    }

    // Adds the sums of `slices` groups of kThreads threads (same tile, different k); the first group gets the result.
    __device__ __forceinline__ void gather(float* shared, int slices) {
        const int thread = threadIdx.x % kThreads;  // 0 .. kThreads - 1
        const int slice = threadIdx.x / kThreads;   // 0 .. slices - 1
        for (int other = 1; other < slices; ++other) {
            if (slice == other) keep(shared, thread);
            __syncthreads();
            if (slice == 0) add(shared, thread);
            __syncthreads();
        }
    }

    // Writes the sums to TM x TN x kThreads floats; each access is one cache line per warp.
    __device__ __forceinline__ void keep(float* part, int thread) const {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const int number = i * TN + j;  // 0 .. TM * TN - 1
                part[number * kThreads + thread] = sums[i][j];
            }
    }

    __device__ __forceinline__ void add(const float* part, int thread) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const int number = i * TN + j;  // 0 .. TM * TN - 1
                sums[i][j] += part[number * kThreads + thread];
            }
    }

    // Writes alpha * sum + beta * c for VEC neighbouring columns from s on. c, d: of the row; c is not read if beta is
    // 0.
    template <int VEC>
    static __device__ __forceinline__ void write(
        const float* sum, const float* c, int64 c_col, float* d, int64 d_col, int64 s, float alpha, float beta) {
        float values[VEC];
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            values[e] = alpha * sum[e];
            if (beta != 0.0f) values[e] = fmaf(beta, c[(s + e) * c_col], values[e]);
        }
        if constexpr (VEC == 4)
            *reinterpret_cast<float4*>(d + s) = make_float4(values[0], values[1], values[2], values[3]);
        else
            d[s * d_col] = values[0];
    }

    // d = alpha * sums + beta * c, within m x n. c, d: of the batch; c is not read if beta is 0. VEC: 4 if d's columns
    // are contiguous, n is a multiple of 4 and every row of d is 16-byte aligned.
    template <int VEC>
    __device__ __forceinline__ void store(const float* c, int64 c_row, int64 c_col, float* d, int64 d_row, int64 d_col,
        int64 m0, int64 n0, int64 m, int64 n, float alpha, float beta) const {
        static_assert(VEC == 1 || VEC == 4, "floats per store");
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const int64 r = m0 + row_of(i);
            if (r >= m) continue;
#pragma unroll
            for (int j = 0; j < TN; j += VEC) {
                const int64 s = n0 + col_of(j);
                if (s >= n) continue;
                write<VEC>(&sums[i][j], c + r * c_row, c_col, d + r * d_row, d_col, s, alpha, beta);
            }
        }
    }
};
