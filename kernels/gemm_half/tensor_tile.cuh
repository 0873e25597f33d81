// What the rungs with mma.sync share: tiles of half or bfloat16 operands in shared memory, a warp's fragments of them,
// and the sums' way out.
//
// A "line" is a row of A or a column of B. A tile of an operand is LINES lines x 64 k, in rows of 128 bytes, all banks
// once, whichever way the operand lies:
//   along k (A row-major, B column-major): row r is line r, its eight 16-byte pieces are 8 k each
//   line by line (A column-major, B row-major): row 64 * p + k is that k of lines 64 * p on, a piece is 8 lines
// ldmatrix reads 8 pieces, one from each of 8 rows in succession; in the second form it transposes them on the way. So
// both forms give the same fragments, and neither operand is turned in memory.
//
// The swizzle: piece p of row r lies at place p ^ (r % 8). Without it the 8 pieces of an 8 x 8 matrix lie 128 bytes
// apart, in the same four banks, and come in 8 passes; with it they lie in all 32 banks and come in one. Writing is
// free of conflicts either way: 8 neighbouring threads write the 8 pieces of one row.
#pragma once
#include "../common/copy_async.cuh"
#include "../common/mma.cuh"
#include "../common/pack.cuh"

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
    static_assert(LINES % kDepth == 0 && kDepth % kStep == 0 && kStep % 8 == 0, "a thread's rows are of one swizzle");

    const T* from;    // this thread's first piece of the next tile
    int64 step;       // elements between its rows
    int64 advance;    // elements between tiles
    int64 left;       // k not yet brought
    unsigned inside;  // bit i: copy i lies within the operand's lines
    unsigned to;      // bytes from the start of the tile to its first piece
    int k;            // of its first piece

    // `operand`: element (0, 0); `line`: first line of the tile, of `lines` in all. Rows of the operand's memory begin
    // on 16 bytes, and its contiguous extent is a multiple of 8.
    __device__ __forceinline__ OperandTile(
        const T* operand, int64 line_stride, int64 k_stride, int64 line, int64 lines, int64 depth) {
        const int row = threadIdx.x / 8, piece = threadIdx.x % 8;
        const int my_line = ALONG_K ? row : piece * 8;
        k = ALONG_K ? piece * 8 : row;
        from = operand + (line + my_line) * line_stride + k * k_stride;
        step = kStep * (ALONG_K ? line_stride : k_stride);
        advance = kDepth * k_stride;
        left = depth;
        to = row * kRowBytes + ((SWIZZLED ? piece ^ row % 8 : piece) << 4);
        inside = 0;
#pragma unroll
        for (int i = 0; i < kCopies; ++i)
            if (line + my_line + (ALONG_K ? i * kStep : i / kPerPanel * kDepth) < lines) inside |= 1u << i;
    }

    // Brings copies FIRST to LAST of the next tile, by cp.async or (not ASYNC) through registers. WHOLE: all its k are
    // within the operand; otherwise what lies past the last is zero, as what lies past the operand's lines always is.
    template <bool WHOLE, bool ASYNC, int FIRST = 0, int LAST = kCopies>
    __device__ __forceinline__ void bring(char* tile) const {
#pragma unroll
        for (int i = FIRST; i < LAST; ++i) {
            const T* const at = ALONG_K ? from + i * step : from + i % kPerPanel * step + i / kPerPanel * kDepth;
            const bool wanted = (inside >> i & 1) && (WHOLE || k + (ALONG_K ? 0 : i % kPerPanel * kStep) < left);
            char* const place = tile + to + i * kStep * kRowBytes;
            if constexpr (ASYNC)
                copy_async_or_zero<16>(place, at, wanted);
            else
                *reinterpret_cast<uint4*>(place) =
                    wanted ? *reinterpret_cast<const uint4*>(at) : make_uint4(0, 0, 0, 0);
        }
    }

    __device__ __forceinline__ void next() {
        from += advance;
        left -= kDepth;
    }

    // Where this lane's pieces of a warp's fragments lie in a tile, the warp's lines beginning at `line`.
    static __device__ __forceinline__ unsigned lane_place(int line) {
        const int lane = threadIdx.x % kWarp;
        const int first = ALONG_K ? line : line / kDepth * kDepth, within = ALONG_K ? 0 : line % kDepth / 8;
        const bool across = OF_A == ALONG_K;  // the second of the four matrices is 8 rows on, otherwise a piece on
        const int row = first + (across ? lane % 16 : lane % 8 + lane / 16 * 8);
        const int piece = within + (across ? lane / 16 : lane / 8 % 2);
        return row * kRowBytes + ((SWIZZLED ? piece ^ row % 8 : piece) << 4);
    }

    // Lines 16 * i to 16 * i + 15 of the warp, k 16 * s to 16 * s + 15: an A fragment, or two B fragments, whose pairs
    // of registers must be neighbours. So of A [1] is the other 8 lines and [2] the other 8 k, and of B the other way
    // round.
    static __device__ __forceinline__ void fragment(unsigned (&to)[4], unsigned tile, unsigned place, int i, int s) {
        if constexpr (ALONG_K)
            load_matrices(to, tile + i * 16 * kRowBytes + (place ^ s << 5));
        else
            load_matrices_transposed(to, tile + (i / 4 * kDepth + s * 16) * kRowBytes + (place ^ i % 4 << 5));
    }
};

// A block's BM x BN tile of the output, WM x WN of it a warp.
template <class T, int BM, int BN, int WM, int WN, bool A_K, bool B_K, bool SWIZZLED>
struct TensorTile {
    static_assert(BM % WM == 0 && BN % WN == 0 && (64 % WM == 0 || WM % 64 == 0) && (64 % WN == 0 || WN % 64 == 0),
        "a warp's lines begin where the pieces of a row do");
    static constexpr int kThreads = BM / WM * (BN / WN) * kWarp;
    static constexpr int kTilesM = WM / 16, kTilesN = WN / 8;
    using A = OperandTile<T, BM, true, A_K, SWIZZLED, kThreads>;
    using B = OperandTile<T, BN, false, B_K, SWIZZLED, kThreads>;
    static constexpr int kStage = A::kBytes + B::kBytes;
    static constexpr int kPitch = WN + 8;  // floats a row of the sums on their way out: 8 keeps 8-byte stores apart
    static constexpr int kOut = kThreads / kWarp * 16 * kPitch * 4;  // bytes
    static_assert(kOut <= kStage, "the sums leave through the tiles' own memory");

    struct Fragments {
        unsigned a[kTilesM][4], b[kTilesN / 2][4];
    };

    float sums[kTilesM][kTilesN][4];
    int warp_m, warp_n;
    unsigned place_a, place_b;

    __device__ __forceinline__ TensorTile() {
        const int warp = threadIdx.x / kWarp;
        warp_m = warp % (BM / WM) * WM, warp_n = warp / (BM / WM) * WN;
        place_a = A::lane_place(warp_m), place_b = A::kBytes + B::lane_place(warp_n);
#pragma unroll
        for (int i = 0; i < kTilesM; ++i)
#pragma unroll
            for (int j = 0; j < kTilesN; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) sums[i][j][e] = 0.0f;
    }

    // Fragments of k 16 * s on of the tiles that begin at `stage`.
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
            for (int j = 0; j < kTilesN; ++j)
                multiply_add<T>(sums[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
    }

    // d = alpha * sums + beta * c within m x n, rounded once. c is not read where beta is 0. Each warp turns its sums
    // in shared memory, 16 rows at a time, so that whole rows of its tile are written (nobody else may use kOut bytes
    // from `shared` on meanwhile). `wide`: the columns of d are neighbours, n is a multiple of 8 and every row of d
    // starts on 16 bytes.
    template <class R>
    __device__ __forceinline__ void store(char* shared, const R* c, int64 c_row, int64 c_col, R* d, int64 d_row,
        int64 d_col, int64 m0, int64 n0, int64 m, int64 n, float alpha, float beta, bool wide) const {
        float* const staged = reinterpret_cast<float*>(shared) + threadIdx.x / kWarp * (16 * kPitch);
        const int lane = threadIdx.x % kWarp;
        float2* const mine = reinterpret_cast<float2*>(staged + lane / 4 * kPitch + lane % 4 * 2);
        m0 += warp_m, n0 += warp_n;
#pragma unroll
        for (int i = 0; i < kTilesM; ++i) {
            __syncwarp();  // before the rows are filled again
#pragma unroll
            for (int j = 0; j < kTilesN; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    mine[(half * 8 * kPitch + j * 8) / 2] =
                        make_float2(alpha * sums[i][j][half * 2], alpha * sums[i][j][half * 2 + 1]);
            __syncwarp();
            if (wide)
                write<4>(staged, c, c_row, c_col, d, d_row, d_col, m0 + i * 16, n0, m, n, beta);
            else
                write<1>(staged, c, c_row, c_col, d, d_row, d_col, m0 + i * 16, n0, m, n, beta);
        }
    }

  private:
    // 16 x WN staged sums, from row m0 and column n0 of the output on, WIDTH columns a lane.
    template <int WIDTH, class R>
    static __device__ __forceinline__ void write(const float* staged, const R* c, int64 c_row, int64 c_col, R* d,
        int64 d_row, int64 d_col, int64 m0, int64 n0, int64 m, int64 n, float beta) {
        constexpr int kAcross = WN / WIDTH < kWarp ? WN / WIDTH : kWarp, kRows = kWarp / kAcross;
        const int row = threadIdx.x % kWarp / kAcross, col = threadIdx.x % kAcross * WIDTH;
        R* to = d + (m0 + row) * d_row + (n0 + col) * d_col;
        const R* add = c + (m0 + row) * c_row + (n0 + col) * c_col;
#pragma unroll 2
        for (int r = 0; r < 16; r += kRows, to += kRows * d_row, add += kRows * c_row)
#pragma unroll
            for (int s = 0; s < WN; s += kAcross * WIDTH) {
                if (m0 + r + row >= m || n0 + s + col >= n) continue;
                const auto values = *reinterpret_cast<const Pack<float, WIDTH>*>(staged + (r + row) * kPitch + s + col);
                Pack<R, WIDTH> rounded;
#pragma unroll
                for (int e = 0; e < WIDTH; ++e) {
                    float value = values.at[e];
                    if (beta != 0.0f) value = fmaf(beta, static_cast<float>(add[(s + e) * c_col]), value);
                    rounded.at[e] = static_cast<R>(value);
                }
                *reinterpret_cast<Pack<R, WIDTH>*>(to + s * d_col) = rounded;
            }
    }
};
