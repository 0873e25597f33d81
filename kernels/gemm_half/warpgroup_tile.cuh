// Shared by the variants with wgmma: an operand's tile in shared memory and the copies that fill it, the order of
// tiles, the products, and the store of the sums.
//
// A "line" is a row of A or a column of B; common/wgmma.cuh has the two layouts of a tile. Both operands can have
// either, so no operand is transposed in memory. 64 lines x 64 k take 8 KB in both layouts.
#pragma once
#include "../common/hopper.cuh"
#include "../common/pack.cuh"
#include "../common/wgmma.cuh"
#include "epilogue.cuh"

constexpr int kDepth = 64;   // k of a tile
constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kRowBytes = 128;

// --- Operands ------------------------------------------------------------------------------------------------------

// An operand in global memory, for copies that are not tensor copies.
template <class T>
struct Source {
    const T* first;
    int64 line_stride, k_stride;
    int64 lines, depth;
};

// Eight elements of a row, from index `first` on, of which the row has `count` in all; zeros past its end. Whole words
// of 16 bytes that lie in the row are loaded at once and shifted; elements next to its ends one by one.
template <class T>
__device__ __forceinline__ uint4 row_piece(const T* row, int64 first, int64 count) {
    const T* const from = row + first;
    const int off = static_cast<int>(reinterpret_cast<uint64>(from) & 15);  // bytes, even
    const int64 word = first - off / 2;                                     // first element of the aligned word
    if (word >= 0 && word + 16 <= count) {
        const uint4* const words = reinterpret_cast<const uint4*>(from - off / 2);
        const uint4 low = __ldg(words), high = off ? __ldg(words + 1) : low;
        unsigned x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        if (off & 8) {
#pragma unroll
            for (int i = 0; i < 6; ++i) x[i] = x[i + 2];
        }
        if (off & 4) {
#pragma unroll
            for (int i = 0; i < 5; ++i) x[i] = x[i + 1];
        }
        const unsigned bits = off & 2 ? 16 : 0;
        return make_uint4(__funnelshift_r(x[0], x[1], bits), __funnelshift_r(x[1], x[2], bits),
            __funnelshift_r(x[2], x[3], bits), __funnelshift_r(x[3], x[4], bits));
    }
    unsigned x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned low = first + 2 * i < count ? reinterpret_cast<const unsigned short*>(from)[2 * i] : 0;
        const unsigned high = first + 2 * i + 1 < count ? reinterpret_cast<const unsigned short*>(from)[2 * i + 1] : 0;
        x[i] = high << 16 | low;
    }
    return make_uint4(x[0], x[1], x[2], x[3]);
}

// The tile of LINES lines x 64 k of an operand.
template <class T, int LINES, bool ALONG_K>
struct OperandTile {
    static constexpr int kPanels = (LINES + 63) / 64;
    static constexpr int kBytes = ALONG_K ? LINES * kRowBytes : kPanels * kPanelBytes;

    // Loads share `rank` of SHARES of the tile by tensor copies, into all SHARES blocks of the cluster.
    template <int SHARES>
    static __device__ __forceinline__ void load(
        char* tile, const CUtensorMap* map, int line, int k, int batch, uint64* barrier, int rank) {
        constexpr int kLines = LINES / SHARES, kRows = kDepth / SHARES;
        static_assert(LINES % SHARES == 0 && (SHARES == 1 || LINES / SHARES % 8 == 0), "shares begin at 1024 bytes");
        if constexpr (ALONG_K) {
            copy<SHARES>(tile + rank * kLines * kRowBytes, map, k, line + rank * kLines, batch, barrier);
        } else {
#pragma unroll
            for (int p = 0; p < kPanels; ++p)
                copy<SHARES>(tile + p * kPanelBytes + rank * kRows * kRowBytes, map, line + p * 64, k + rank * kRows,
                    batch, barrier);
        }
    }

    // Loads the tile by the warpgroup's ordinary loads, for rows of any alignment.
    static __device__ __forceinline__ void gather(char* tile, const Source<T>& from, int64 line, int64 k) {
        constexpr int kPasses = kBytes / kRowBytes / (kGroup / 8), kBatch = kPasses < 4 ? kPasses : 4;
        const int thread = threadIdx.x % kGroup, piece = thread % 8;
#pragma unroll 1
        for (int pass = 0; pass < kPasses; pass += kBatch) {
            uint4 pieces[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const int row = (pass + i) * (kGroup / 8) + thread / 8;
                const int64 my_line = ALONG_K ? line + row : line + row / 64 * 64 + piece * 8;
                const int64 my_k = ALONG_K ? k + piece * 8 : k + row % 64;
                pieces[i] = make_uint4(0, 0, 0, 0);
                if (my_line >= from.lines || my_k >= from.depth) continue;
                if constexpr (ALONG_K)
                    pieces[i] = row_piece(from.first + my_line * from.line_stride, my_k, from.depth);
                else
                    pieces[i] = row_piece(from.first + my_k * from.k_stride, my_line, from.lines);
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const int row = (pass + i) * (kGroup / 8) + thread / 8;
                *reinterpret_cast<uint4*>(tile + row * kRowBytes + ((piece ^ row % 8) << 4)) = pieces[i];
            }
        }
    }

  private:
    template <int SHARES>
    static __device__ __forceinline__ void copy(
        char* to, const CUtensorMap* map, int x, int y, int batch, uint64* barrier) {
        if constexpr (SHARES == 1)
            tensor_load(to, map, x, y, batch, barrier);
        else
            tensor_load_to(to, map, x, y, batch, barrier, (1 << SHARES) - 1);
    }
};

// sums (+)= A * B^T for one tile of k: WIDE x 64 lines of A, 2 * COUNT lines of B. add: otherwise they are overwritten.
template <class T, bool A_K, bool B_K, int WIDE, int COUNT>
__device__ __forceinline__ void multiply(float (&sums)[WIDE][COUNT], unsigned a, unsigned b, bool add) {
    const uint64 of_a = wgmma_operand<A_K>(a), of_b = wgmma_operand<B_K>(b);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kDepth / 16; ++s)
#pragma unroll
        for (int i = 0; i < WIDE; ++i)
            wgmma<T, A_K, B_K>(
                sums[i], of_a + i * (kPanelBytes >> 4) + s * kWgmmaStep<A_K>, of_b + s * kWgmmaStep<B_K>, add || s > 0);
    wgmma_commit();
}

// Releases a stage of the ring to the producers of all SHARES blocks of the cluster. The whole warp calls it.
template <int SHARES>
__device__ __forceinline__ void release(uint64* empty, int lane) {
    if constexpr (SHARES == 1) {
        if (lane == 0) barrier_arrive(empty);
    } else {
        if (lane < SHARES) barrier_arrive_at(empty, lane);
    }
}

// --- The order of tiles --------------------------------------------------------------------------------------------

// The start of the tile of ROWS x COLS outputs with a given number: batch by batch, in bands of BAND rows of tiles,
// down a band's rows, then across. So concurrent blocks cover a nearly square part of the output, and find each other's
// operands in L2.
template <int ROWS, int COLS, int BAND>
struct Place {
    int m0, n0, batch;

    __device__ __forceinline__ Place(int tile, int down, int across) {
        batch = tile / (down * across);
        const int in_batch = tile % (down * across);
        const int first = in_batch / (BAND * across) * BAND;         // row of the band
        const int rows = down - first < BAND ? down - first : BAND;  // 1 .. BAND
        const int in_band = in_batch - first * across;               // 0 .. rows * across - 1
        m0 = (first + in_band % rows) * ROWS;
        n0 = in_band / rows * COLS;
    }
};

// --- The output ----------------------------------------------------------------------------------------------------

// The output of a batch for stores that are not tensor stores. pairs: columns are contiguous, and pairs of them
// aligned.
template <class R>
struct Output {
    R* first;
    int64 row, col;
    int m, n;
    bool pairs;
};

// A warpgroup's 64 x 2 * COUNT sums, stored in chunks of 64 rows of 128 bytes through shared memory.
template <class R, int COUNT, class E>
struct Store {
    static constexpr int kCols = kRowBytes / sizeof(R);  // of a chunk: 64 or 32
    static constexpr int kChunks = 2 * COUNT / kCols;
    static constexpr int kChunkBytes = 64 * kRowBytes;
    static_assert(2 * COUNT % kCols == 0, "whole chunks");

    // Writes chunk `j` to shared memory with 128-byte swizzle, as tensor stores expect it. m0, n0: of the warpgroup's
    // sums.
    static __device__ __forceinline__ void stage(
        char* chunk, const float (&sums)[COUNT], int j, const E& finish, int m0, int n0, int m, int n) {
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kGroup / kWarp;
        const int row = warp * 16 + lane / 4;  // the lane's sums are in this row and the one 8 below
        if constexpr (sizeof(R) == 2) {
            const int to = warp * 16 + lane % 16;  // the row that this lane stores
#pragma unroll
            for (int i = 0; i < 4; ++i) {  // 16 columns
                float values[8];
#pragma unroll
                for (int v = 0; v < 8; ++v)
                    values[v] = finished(finish, sums[j * 32 + i * 8 + v], m0 + row + v / 2 % 2 * 8,
                        n0 + j * kCols + i * 16 + v / 4 * 8 + lane % 4 * 2 + v % 2, m, n);
                const unsigned packed[4] = {pack<R>(values[0], values[1]), pack<R>(values[2], values[3]),
                    pack<R>(values[4], values[5]), pack<R>(values[6], values[7])};
                const int piece = (i * 2 + lane / 16) ^ to % 8;
                store_matrices(chunk + to * kRowBytes + piece * 16, packed);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i)  // 8 columns
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int to = row + half * 8, col = n0 + j * kCols + i * 8 + lane % 4 * 2;
                    const float* const from = &sums[j * 16 + i * 4 + half * 2];
                    const int piece = (i * 2 + lane % 4 / 2) ^ to % 8;
                    *reinterpret_cast<float2*>(chunk + to * kRowBytes + piece * 16 + lane % 2 * 8) =
                        make_float2(finished(finish, from[0], m0 + to, col, m, n),
                            finished(finish, from[1], m0 + to, col + 1, m, n));
                }
        }
    }

    // Tensor stores of all chunks, through BUFFERS buffers of the warpgroup, BATCH at a time. leader: the thread that
    // issues them, which must wait for them to be read before it exits.
    template <int BUFFERS, int BATCH>
    static __device__ __forceinline__ void by_tensor(char* staging, const float (&sums)[COUNT], const CUtensorMap* map,
        const E& finish, int m0, int n0, int batch, int m, int n, int barrier, bool leader) {
        static_assert(BUFFERS % BATCH == 0 && kChunks % BATCH == 0, "whole batches");
#pragma unroll
        for (int j = 0; j < kChunks; j += BATCH) {
            char* const to = staging + j % BUFFERS * kChunkBytes;
            if (leader) bulk_wait_read<BUFFERS / BATCH - 1>();  // an earlier batch has been read from here
            named_sync(barrier, kGroup);
#pragma unroll
            for (int i = 0; i < BATCH; ++i) stage(to + i * kChunkBytes, sums, j + i, finish, m0, n0, m, n);
            fence_async_shared();
            named_sync(barrier, kGroup);
            if (!leader) continue;
#pragma unroll
            for (int i = 0; i < BATCH; ++i)
                if (m0 < m && n0 + (j + i) * kCols < n)
                    tensor_store(map, n0 + (j + i) * kCols, m0, batch, to + i * kChunkBytes);
            bulk_commit();
        }
    }

    // Ordinary stores of all chunks, through one buffer of the warpgroup, for an output with any strides. Each warp
    // stores its own 16 rows.
    static __device__ __forceinline__ void by_lanes(
        char* staging, const float (&sums)[COUNT], const Output<R>& out, const E& finish, int m0, int n0) {
        const int lane = threadIdx.x % kWarp, first = threadIdx.x % kGroup / kWarp * 16;
#pragma unroll
        for (int j = 0; j < kChunks; ++j) {
            __syncwarp();  // before the staged rows are overwritten
            stage(staging, sums, j, finish, m0, n0, out.m, out.n);
            __syncwarp();
            const int col0 = n0 + j * kCols;
            if (out.pairs) {
                constexpr int kAcross = kCols / 2;  // lanes along a row: 32 or 16
#pragma unroll 4
                for (int i = 0; i < 16; i += kWarp / kAcross) {
                    const int row = first + i + lane / kAcross, col = lane % kAcross * 2;
                    using Pair = Pack<R, 2>;
                    if (m0 + row < out.m && col0 + col < out.n)
                        *reinterpret_cast<Pair*>(out.first + (m0 + row) * out.row + col0 + col) =
                            *reinterpret_cast<const Pair*>(place(staging, row, col));
                }
            } else if (out.row == 1) {
#pragma unroll 4
                for (int i = 0; i < kCols; i += 2) {
                    const int row = first + lane % 16, col = i + lane / 16;
                    if (m0 + row < out.m && col0 + col < out.n)
                        out.first[m0 + row + (col0 + col) * out.col] = *place(staging, row, col);
                }
            } else {
#pragma unroll 4
                for (int i = 0; i < 16; ++i)
#pragma unroll
                    for (int col = lane; col < kCols; col += kWarp) {
                        const int row = first + i;
                        if (m0 + row < out.m && col0 + col < out.n)
                            out.first[(m0 + row) * out.row + (col0 + col) * out.col] = *place(staging, row, col);
                    }
            }
        }
    }

  private:
    static __device__ __forceinline__ float finished(const E& finish, float sum, int64 row, int64 col, int m, int n) {
        if constexpr (E::kReads) {
            if (row >= m || col >= n) return 0.0f;  // nothing may be read there
        }
        return finish.at(sum, row, col);
    }

    static __device__ __forceinline__ const R* place(const char* chunk, int row, int col) {
        constexpr int kPiece = 16 / sizeof(R);
        return reinterpret_cast<const R*>(chunk + row * kRowBytes + ((col / kPiece ^ row % 8) << 4)) + col % kPiece;
    }
};
