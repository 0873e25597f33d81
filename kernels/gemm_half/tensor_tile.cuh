// Shared by the variants with mma.sync: tiles of half or bfloat16 operands in shared memory, a warp's fragments of
// them, and the store of the sums.
//
// A "line" is a row of A, or a column of B. A tile of an operand is LINES lines x 64 k, in rows of 128 bytes, which
// cover all banks once, for both layouts of the operand:
//   along k (A row-major, B column-major): row r is line r, its eight 16-byte pieces are 8 k each
//   line by line (A column-major, B row-major): row 64 * p + k is that k of lines 64 * p on, a piece is 8 lines
// ldmatrix reads 8 pieces, one from each of 8 successive rows; for the second layout it transposes them. So both
// layouts form the same fragments, and neither operand is transposed in memory.
//
// The swizzle: piece p of row r is at place p ^ (r % 8). Without it the 8 pieces of an 8 x 8 matrix are 128 bytes
// apart, in the same four banks, and take 8 passes; with it they cover all 32 banks and take one pass. Stores have no
// conflicts either way: 8 neighbouring threads write the 8 pieces of one row.
#pragma once
#include "../common/copy_async.cuh"
#include "../common/mma.cuh"
#include "../common/pack.cuh"
#include "epilogue.cuh"

constexpr int kDepth = 64;  // k of a tile
constexpr int kRowBytes = 128;

// One operand's tile, and this thread's share of the copies that fill it. OF_A: of A, otherwise of B.
template <class T, int LINES, bool OF_A, bool ALONG_K, bool SWIZZLED, int THREADS>
struct OperandTile {
    static_assert(sizeof(T) == 2, "rows are 64 elements");
    static constexpr int kBytes = LINES * kRowBytes;
    static constexpr int kStep = THREADS / 8;         // rows at once
    static constexpr int kCopies = LINES / kStep;     // 16-byte pieces a thread copies
    static constexpr int kPerPanel = kDepth / kStep;  // copies of one thread among 64 rows
    static_assert(LINES % kDepth == 0 && kDepth % kStep == 0 && kStep % 8 == 0, "a thread's rows share one swizzle");

    const T* from;    // this thread's first piece of the next tile
    int64 step;       // elements between its rows
    int64 advance;    // elements between tiles
    int64 left;       // k not yet loaded
    unsigned inside;  // bit i: copy i is within the operand's lines
    unsigned to;      // bytes from the start of the tile to its first piece
    int k;            // of its first piece

    // `operand`: element (0, 0); `line`: first line of the tile, of `lines` in all. The operand's rows in memory are
    // 16-byte aligned, and its contiguous extent is a multiple of 8.
    __device__ __forceinline__ OperandTile(
        const T* operand, int64 line_stride, int64 k_stride, int64 line, int64 lines, int64 depth) {
        const int row = threadIdx.x / 8;                // 0 .. kStep - 1
        const int piece = threadIdx.x % 8;              // 0 .. 7
        const int my_line = ALONG_K ? row : piece * 8;  // 0 .. 63, of copy 0
        k = ALONG_K ? piece * 8 : row;                  // 0 .. 63
        from = operand + (line + my_line) * line_stride + k * k_stride;
        step = kStep * (ALONG_K ? line_stride : k_stride);
        advance = kDepth * k_stride;
        left = depth;
        to = place(row, piece);
        inside = 0;
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const int on = ALONG_K ? i * kStep : i / kPerPanel * kDepth;  // lines from copy 0 to copy i
            if (line + my_line + on < lines) inside |= 1u << i;
        }
    }

    // Bytes from the start of a tile to piece `piece` (0 .. 7) of row `row`.
    static __device__ __forceinline__ unsigned place(int row, int piece) {
        const int column = SWIZZLED ? piece ^ row % 8 : piece;  // 0 .. 7
        return row * kRowBytes + (column << 4);
    }

    // Loads copies FIRST to LAST of the next tile, by cp.async or (not ASYNC) through registers. WHOLE: all its k are
    // within the operand; otherwise elements past the last k become zero. Lines past the operand's end always become
    // zero.
    template <bool WHOLE, bool ASYNC, int FIRST = 0, int LAST = kCopies>
    __device__ __forceinline__ void bring(char* tile) const {
#pragma unroll
        for (int i = FIRST; i < LAST; ++i) {
            // If contiguous along k, all rows are lines; otherwise 64 rows are the k of one panel of 64 lines.
            const int panel = ALONG_K ? 0 : i / kPerPanel;        // 0 .. LINES / 64 - 1
            const int row_step = ALONG_K ? i : i % kPerPanel;     // rows from copy 0, in kStep
            const int my_k = ALONG_K ? k : k + row_step * kStep;  // 0 .. 63
            const T* const at = from + row_step * step + panel * kDepth;
            const bool wanted = (inside >> i & 1) && (WHOLE || my_k < left);
            char* const slot = tile + to + i * kStep * kRowBytes;
            if constexpr (ASYNC)
                copy_async_or_zero<16>(slot, at, wanted);
            else
                *reinterpret_cast<uint4*>(slot) = wanted ? *reinterpret_cast<const uint4*>(at) : make_uint4(0, 0, 0, 0);
        }
    }

    __device__ __forceinline__ void next() {
        from += advance;
        left -= kDepth;
    }

    // Bytes from the start of a tile to this lane's piece of a warp's first fragment; the warp's lines begin at `line`.
    // Lane l loads row l % 8 of matrix l / 8.
    static __device__ __forceinline__ unsigned lane_place(int line) {
        const int lane = threadIdx.x % kWarp;                           // 0 .. 31
        const int first_row = ALONG_K ? line : line / kDepth * kDepth;  // of the warp's lines, or of their panel
        const int first_piece = ALONG_K ? 0 : line % kDepth / 8;        // 0 .. 7
        const bool across = OF_A == ALONG_K;  // the second of the four matrices is 8 rows on, otherwise a piece on
        const int lane_row = across ? lane % 16 : lane % 8 + lane / 16 * 8;  // 0 .. 15
        const int lane_piece = across ? lane / 16 : lane / 8 % 2;            // 0 or 1
        return place(first_row + lane_row, first_piece + lane_piece);
    }

    // Loads lines 16 * i to 16 * i + 15 of the warp, k 16 * s to 16 * s + 15: one A fragment, or two B fragments, each
    // in neighbouring registers. So register [1] has the other 8 lines of A, but the other 8 k of B; [2] has the other
    // 8 k of A and lines of B. `first`: the lane's offset, from lane_place.
    static __device__ __forceinline__ void fragment(unsigned (&to)[4], unsigned tile, unsigned first, int i, int s) {
        const int row = ALONG_K ? i * 16 : i / 4 * kDepth + s * 16;  // rows from the first fragment
        const int pair = ALONG_K ? s : i % 4;                        // 0 .. 3: pairs of pieces from there
        const unsigned at = tile + row * kRowBytes + (first ^ pair << 5);
        if constexpr (ALONG_K)
            load_matrices(to, at);
        else
            load_matrices_transposed(to, at);
    }
};

// A block's BM x BN tile of the output, WM x WN of it per warp.
template <class T, int BM, int BN, int WM, int WN, bool A_K, bool B_K, bool SWIZZLED>
struct TensorTile {
    static_assert(BM % WM == 0 && BN % WN == 0 && (64 % WM == 0 || WM % 64 == 0) && (64 % WN == 0 || WN % 64 == 0),
        "a warp's lines begin at the start of a piece");
    static constexpr int kThreads = BM / WM * (BN / WN) * kWarp;
    static constexpr int kTilesM = WM / 16, kTilesN = WN / 8;
    using A = OperandTile<T, BM, true, A_K, SWIZZLED, kThreads>;
    using B = OperandTile<T, BN, false, B_K, SWIZZLED, kThreads>;
    static constexpr int kStage = A::kBytes + B::kBytes;
    static constexpr int kPitch = WN + 8;  // floats per row of staged sums; padding against bank conflicts
    static constexpr int kOut = kThreads / kWarp * 16 * kPitch * 4;  // bytes
    static_assert(kOut <= kStage, "the sums are staged in the tiles' memory");

    struct Fragments {
        unsigned a[kTilesM][4], b[kTilesN / 2][4];
    };

    float sums[kTilesM][kTilesN][4];
    int warp_m, warp_n;
    unsigned place_a, place_b;

    __device__ __forceinline__ TensorTile() {
        constexpr int kWarpsDown = BM / WM;
        const int warp = threadIdx.x / kWarp;  // 0 .. kThreads / 32 - 1
        warp_m = warp % kWarpsDown * WM;       // 0 .. BM - WM
        warp_n = warp / kWarpsDown * WN;       // 0 .. BN - WN
        place_a = A::lane_place(warp_m);
        place_b = A::kBytes + B::lane_place(warp_n);
#pragma unroll
        for (int i = 0; i < kTilesM; ++i)
#pragma unroll
            for (int j = 0; j < kTilesN; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[i][j][e] = 0.0f;
    }

    // Loads the fragments of k 16 * s to 16 * s + 15 of the tiles that begin at `stage`.
    __device__ __forceinline__ void load(Fragments& to, unsigned stage, int s) const {
#pragma unroll
        for (int i = 0; i < kTilesM; ++i) A::fragment(to.a[i], stage, place_a, i, s);
#pragma unroll
        for (int j = 0; j < kTilesN / 2; ++j) B::fragment(to.b[j], stage, place_b, j, s);
    }

    __device__ __forceinline__ void multiply(const Fragments& f) {
#pragma unroll
        for (int i = 0; i < kTilesM; ++i)
#pragma unroll
            for (int j = 0; j < kTilesN; ++j) {
                const unsigned (&pair)[4] = f.b[j / 2];  // two B fragments
                const int first = j % 2 * 2;             // 0 or 2
                multiply_add<T>(sums[i][j], f.a[i], pair[first], pair[first + 1]);
            }
    }

    // Writes the output within m x n: the sums with `epilogue`, rounded once. d, epilogue: of the batch. Each warp
    // stages its sums in shared memory, 16 rows at a time, so that it writes whole rows of its tile (kOut bytes from
    // `shared` on must be unused). `wide`: d's columns are contiguous, n is a multiple of 8 and every row of d is
    // 16-byte aligned.
    template <class E, class R>
    __device__ __forceinline__ void store(char* shared, const E& epilogue, R* d, int64 d_row, int64 d_col, int64 m0,
        int64 n0, int64 m, int64 n, bool wide) const {
        const int lane = threadIdx.x % kWarp;       // 0 .. 31
        const unsigned warp = threadIdx.x / kWarp;  // 0 .. kThreads / 32 - 1
        float* const staged = reinterpret_cast<float*>(shared) + warp * (16 * kPitch);
        // The lane's sums of a 16 x 8 tile: two neighbouring columns of this row and of the one 8 below
        const int row = lane / 4;      // 0 .. 7
        const int col = lane % 4 * 2;  // 0 .. 6
        float2* const mine = reinterpret_cast<float2*>(staged + row * kPitch + col);
        m0 += warp_m, n0 += warp_n;
#pragma unroll
        for (int i = 0; i < kTilesM; ++i) {
            __syncwarp();  // before the staged rows are overwritten
#pragma unroll
            for (int j = 0; j < kTilesN; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int place = half * 8 * kPitch + j * 8;  // floats from `mine`
                    mine[place / 2] = make_float2(sums[i][j][half * 2], sums[i][j][half * 2 + 1]);
                }
            __syncwarp();
            if (wide)
                write<4>(staged, epilogue, d, d_row, d_col, m0 + i * 16, n0, m, n);
            else
                write<1>(staged, epilogue, d, d_row, d_col, m0 + i * 16, n0, m, n);
        }
    }

    // The same for d = alpha * sums + beta * c; c is not read if beta is 0.
    template <class R>
    __device__ __forceinline__ void store(char* shared, const R* c, int64 c_row, int64 c_col, R* d, int64 d_row,
        int64 d_col, int64 m0, int64 n0, int64 m, int64 n, float alpha, float beta, bool wide) const {
        using Adds = Epilogue<R, R, kNoActivation, kAnyArray, kNoBias, kNoArray>;
        using Plain = Epilogue<R, R, kNoActivation, kNoArray, kNoBias, kNoArray>;
        if (beta != 0.0f)
            store(shared, Adds{c, c_row, c_col, c, 0, 0, c, 0, 0, alpha, beta, 1.0f}, d, d_row, d_col, m0, n0, m, n,
                wide);
        else
            store(shared, Plain{c, c_row, c_col, c, 0, 0, c, 0, 0, alpha, beta, 1.0f}, d, d_row, d_col, m0, n0, m, n,
                wide);
    }

  private:
    // Writes the output of 16 x WN staged sums, from row m0 and column n0 of the output on, WIDTH columns per lane.
    template <int WIDTH, class E, class R>
    static __device__ __forceinline__ void write(
        const float* staged, const E& epilogue, R* d, int64 d_row, int64 d_col, int64 m0, int64 n0, int64 m, int64 n) {
        constexpr int kAcross = WN / WIDTH < kWarp ? WN / WIDTH : kWarp;  // lanes along a row
        constexpr int kRows = kWarp / kAcross;                            // rows at once
        const int row = threadIdx.x % kWarp / kAcross;                    // 0 .. kRows - 1
        const int col = threadIdx.x % kAcross * WIDTH;                    // 0 .. kAcross * WIDTH - WIDTH
        R* to = d + (m0 + row) * d_row + (n0 + col) * d_col;
        E of_row = epilogue.from(m0 + row, n0 + col);
#pragma unroll 2
        for (int r = 0; r < 16; r += kRows, to += kRows * d_row, of_row = of_row.from(kRows, 0))
#pragma unroll
            for (int s = 0; s < WN; s += kAcross * WIDTH) {
                if (m0 + r + row >= m || n0 + s + col >= n) continue;
                const auto values = *reinterpret_cast<const Pack<float, WIDTH>*>(staged + (r + row) * kPitch + s + col);
                Pack<R, WIDTH> rounded;
#pragma unroll
                for (int e = 0; e < WIDTH; ++e) rounded.at[e] = static_cast<R>(of_row.at(values.at[e], 0, s + e));
                *reinterpret_cast<Pack<R, WIDTH>*>(to + s * d_col) = rounded;
            }
    }
};
