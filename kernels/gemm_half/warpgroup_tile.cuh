// Shared by the variants with wgmma: an operand's tile in shared memory and the copies that fill it, the order of
// tiles, the products, and the store of the sums.
//
// A "line" is a row of A or a column of B; common/wgmma.cuh has the two layouts of a tile. Both operands can have
// either, so no operand is transposed in memory. 64 lines x 64 k take 8 KB in both layouts.
#pragma once
#include "../common/hopper.cuh"
#include "../common/pack.cuh"
#include "../common/unaligned.cuh"
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

// Eight elements of a row, from index `first` on, of which the row has `count` in all; zeros past its end. Aligned
// words of 16 bytes that lie in the row are loaded at once and shifted; elements next to its ends one by one.
template <class T>
__device__ __forceinline__ uint4 row_piece(const T* row, int64 first, int64 count) {
    const T* const from = row + first;
    const int past = past_boundary(from);
    const int64 word = first - past / 2;  // the first element of the aligned word
    if (word >= 0 && word + 16 <= count) {
        const uint4 low = __ldg(boundary(from));
        return shifted(low, past ? __ldg(boundary(from) + 1) : low, past);
    }
    const unsigned short* const elements = reinterpret_cast<const unsigned short*>(from);
    unsigned pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned low = first + 2 * i < count ? elements[2 * i] : 0;
        const unsigned high = first + 2 * i + 1 < count ? elements[2 * i + 1] : 0;
        pairs[i] = high << 16 | low;
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// The tile of LINES lines x 64 k of an operand.
template <class T, int LINES, bool ALONG_K>
struct OperandTile {
    static constexpr int kPanels = (LINES + 63) / 64;
    static constexpr int kBytes = ALONG_K ? LINES * kRowBytes : kPanels * kPanelBytes;

    // Loads the tile by tensor copies.
    static __device__ __forceinline__ void load(
        char* tile, const CUtensorMap* map, int line, int k, int batch, uint64* barrier) {
        if constexpr (ALONG_K) {
            tensor_load(tile, map, k, line, batch, barrier);
        } else {
#pragma unroll
            for (int p = 0; p < kPanels; ++p)
                tensor_load(tile + p * kPanelBytes, map, line + p * 64, k, batch, barrier);
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
};

// The copies that fill a stage of the ring, with a tile of each operand. If both are tensor copies, one thread calls
// it, otherwise the whole warpgroup.
template <class T, int BM, int BN, bool A_K, bool B_K, bool TENSOR_A, bool TENSOR_B>
struct Loader {
    using A = OperandTile<T, BM, A_K>;
    using B = OperandTile<T, BN, B_K>;
    static constexpr int kStage = A::kBytes + B::kBytes;
    static constexpr bool kGathers = !TENSOR_A || !TENSOR_B;
    static constexpr int kArrivals = kGathers ? kGroup : 1;  // at the barrier `full`

    const CUtensorMap *map_a, *map_b;
    Source<T> of_a, of_b;
    int m0, n0, batch_a, batch_b;

    __device__ __forceinline__ Loader(const CUtensorMap* map_a, const CUtensorMap* map_b, const Source<T>& of_a,
        const Source<T>& of_b, int m0, int n0, int batch_a, int batch_b)
        : map_a(map_a), map_b(map_b), of_a(of_a), of_b(of_b), m0(m0), n0(n0), batch_a(batch_a), batch_b(batch_b) {}

    __device__ __forceinline__ void operator()(char* stage, int k, uint64* full) const {
        constexpr int kBytes = (TENSOR_A ? A::kBytes : 0) + (TENSOR_B ? B::kBytes : 0);  // of tensor copies
        if constexpr (!kGathers) barrier_arrive_expect(full, kBytes);
        if (kGathers && kBytes && threadIdx.x == 0) barrier_expect(full, kBytes);
        if (TENSOR_A && threadIdx.x == 0) A::load(stage, map_a, m0, k, batch_a, full);
        if (TENSOR_B && threadIdx.x == 0) B::load(stage + A::kBytes, map_b, n0, k, batch_b, full);
        if constexpr (!TENSOR_A) A::gather(stage, of_a, m0, k);
        if constexpr (!TENSOR_B) B::gather(stage + A::kBytes, of_b, n0, k);
        if constexpr (kGathers) {
            fence_async_shared();
            barrier_arrive(full);
        }
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

// --- The order of tiles --------------------------------------------------------------------------------------------

// The start of the tile of ROWS x COLS outputs with a given number: batch by batch, in bands of BAND rows of tiles,
// down a band's rows, then across, to the right in one band and to the left in the next one. So concurrent blocks cover
// a nearly square part of the output, and find each other's operands in L2.
template <int ROWS, int COLS, int BAND>
struct Place {
    int m0, n0, batch;

    __device__ __forceinline__ Place(int tile, int down, int across) {
        batch = tile / (down * across);
        const int in_batch = tile % (down * across);
        const int band = in_batch / (BAND * across);
        const int rows = down - band * BAND < BAND ? down - band * BAND : BAND;  // 1 .. BAND
        const int in_band = in_batch - band * BAND * across;                     // 0 .. rows * across - 1
        const int col = in_band / rows;                                          // 0 .. across - 1
        m0 = (band * BAND + in_band % rows) * ROWS;
        n0 = (band % 2 ? across - 1 - col : col) * COLS;
    }
};

// --- The output ----------------------------------------------------------------------------------------------------

// The output of a batch, for stores that are not tensor stores. vector: the contiguous axis (columns, or rows for the
// layout COLUMNS of Store) consists of aligned vectors of VECTOR elements.
template <class R>
struct Output {
    R* first;
    int64 row, col;
    int m, n;
    bool vector;
};

// A warpgroup's 64 x 2 * COUNT sums, stored through shared memory in chunks of kCols columns, as many as divide their
// number: 64, 32 or 16; at most 32 floats. BY_COLUMNS: the output is contiguous along columns, from row to row;
// otherwise along rows. A chunk has the layout of a tensor store's box: rows of at most 128 bytes along the contiguous
// axis, swizzled.
template <class R, int COUNT, bool BY_COLUMNS, class E>
struct Store {
    static constexpr bool kWide = sizeof(R) == 4;
    static constexpr int kCols = 2 * COUNT % 64 == 0 && !kWide ? 64 : 2 * COUNT % 32 == 0 ? 32 : 16;
    static constexpr int kChunks = 2 * COUNT / kCols;
    static constexpr int kChunkBytes = 64 * kCols * sizeof(R);
    static constexpr int kSpan = BY_COLUMNS ? 128 : kCols * sizeof(R);  // bytes of a row in shared memory
    static constexpr int kBoxRows = BY_COLUMNS && kWide ? 32 : 64;      // of the output, in a box
    static_assert(COUNT % 8 == 0, "columns in sixteens");

    // Writes chunk `j` to shared memory. m0, n0: of the warpgroup's sums.
    static __device__ __forceinline__ void stage(
        char* chunk, const float (&sums)[COUNT], int j, const E& finish, int m0, int n0, int m, int n) {
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kGroup / kWarp;
        const int row = warp * 16 + lane / 4;  // the lane's sums are in this row and the one 8 below
#pragma unroll
        for (int i = 0; i < kCols / 16; ++i) {
            float values[8];
#pragma unroll
            for (int v = 0; v < 8; ++v)
                values[v] = finished(finish, sums[j * kCols / 2 + i * 8 + v], m0 + row + v / 2 % 2 * 8,
                    n0 + j * kCols + i * 16 + v / 4 * 8 + lane % 4 * 2 + v % 2, m, n);
            if constexpr (!kWide) {
                const unsigned packed[4] = {pack<R>(values[0], values[1]), pack<R>(values[2], values[3]),
                    pack<R>(values[4], values[5]), pack<R>(values[6], values[7])};
                // The lane passes the address of row lane % 8 of matrix lane / 8
                if constexpr (BY_COLUMNS)
                    store_matrices_transposed(
                        chunk + piece(i * 16 + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2), packed);
                else
                    store_matrices(chunk + piece(warp * 16 + lane % 16, i * 2 + lane / 16), packed);
            } else {
#pragma unroll
                for (int v = 0; v < 8; v += BY_COLUMNS ? 1 : 2) {
                    const int to = row + v / 2 % 2 * 8, col = i * 16 + v / 4 * 8 + lane % 4 * 2 + v % 2;
                    if constexpr (BY_COLUMNS)
                        *at(chunk, to, col) = values[v];
                    else
                        *reinterpret_cast<float2*>(at(chunk, to, col)) = make_float2(values[v], values[v + 1]);
                }
            }
        }
    }

    // Tensor stores of all chunks, through BUFFERS of 8 KB of the warpgroup, BATCH of them at a time. leader: the
    // thread that issues them, which must wait until they have been read before it exits. barrier: a named one.
    template <int BUFFERS, int BATCH>
    static __device__ __forceinline__ void by_tensor(char* staging, const float (&sums)[COUNT], const CUtensorMap* map,
        const E& finish, int m0, int n0, int batch, int m, int n, int barrier, bool leader) {
        static_assert(BUFFERS % BATCH == 0, "whole batches");
        constexpr int kEach = BATCH * 8192 / kChunkBytes;  // chunks at a time
#pragma unroll
        for (int j = 0; j < kChunks; j += kEach) {
            char* const to = staging + j / kEach % (BUFFERS / BATCH) * BATCH * 8192;
            if (leader) bulk_wait_read<BUFFERS / BATCH - 1>();  // an earlier batch has been read from here
            named_sync(barrier, kGroup);
#pragma unroll
            for (int i = 0; i < kEach && j + i < kChunks; ++i)
                stage(to + i * kChunkBytes, sums, j + i, finish, m0, n0, m, n);
            fence_async_shared();
            named_sync(barrier, kGroup);
            if (!leader) continue;
#pragma unroll
            for (int i = 0; i < kEach && j + i < kChunks; ++i)
#pragma unroll
                for (int row = 0; row < 64; row += kBoxRows) {
                    const int from = n0 + (j + i) * kCols;
                    if (m0 + row >= m || from >= n) continue;
                    const char* const box = to + i * kChunkBytes + (row ? kChunkBytes / 2 : 0);
                    tensor_store(map, BY_COLUMNS ? m0 + row : from, BY_COLUMNS ? from : m0 + row, batch, box);
                }
            bulk_commit();
        }
    }

    // Ordinary stores of all chunks, through one buffer of the warpgroup, for an output with any strides. barrier: a
    // named one.
    static __device__ __forceinline__ void by_lanes(
        char* staging, const float (&sums)[COUNT], const Output<R>& out, const E& finish, int m0, int n0, int barrier) {
        constexpr int kAlong = BY_COLUMNS ? 64 : kCols, kAcross = BY_COLUMNS ? kCols : 64;
        const int64 along_stride = BY_COLUMNS ? out.row : out.col, across_stride = BY_COLUMNS ? out.col : out.row;
        const int along_end = BY_COLUMNS ? out.m - m0 : out.n - n0, across_end = BY_COLUMNS ? out.n - n0 : out.m - m0;
        R* const first = out.first + m0 * out.row + n0 * out.col;
        const int thread = threadIdx.x % kGroup;
#pragma unroll
        for (int j = 0; j < kChunks; ++j) {
            named_sync(barrier, kGroup);  // before the staged sums are overwritten
            stage(staging, sums, j, finish, m0, n0, out.m, out.n);
            named_sync(barrier, kGroup);
            const int before = j * kCols;  // columns before the chunk
            const auto each = [&](auto width) {
                constexpr int kWidth = sizeof(width) / sizeof(R), kLanes = kAlong / kWidth;
                const int along = thread % kLanes * kWidth;
#pragma unroll 4
                for (int across = thread / kLanes; across < kAcross; across += kGroup / kLanes) {
                    const int x = along + (BY_COLUMNS ? 0 : before), y = across + (BY_COLUMNS ? before : 0);
                    if (x >= along_end || y >= across_end) continue;
                    using Vector = Pack<R, kWidth>;
                    *reinterpret_cast<Vector*>(first + x * along_stride + y * across_stride) =
                        *reinterpret_cast<const Vector*>(
                            BY_COLUMNS ? at(staging, along, across) : at(staging, across, along));
                }
            };
            if (out.vector)
                each(Pack<R, kVector>());
            else
                each(Pack<R, 1>());
        }
    }

    static constexpr int kVector = 8 / sizeof(R);  // elements: 8 bytes

  private:
    static __device__ __forceinline__ float finished(const E& finish, float sum, int row, int col, int m, int n) {
        if constexpr (E::kReads) {
            if (row >= m || col >= n) return 0.0f;  // nothing may be read there
        }
        return finish.at(sum, row, col);
    }

    // Bytes from the start of a chunk to piece `piece` of a row.
    static __device__ __forceinline__ int piece(int row, int piece) {
        return row * kSpan + ((piece ^ row * kSpan / 128 % (kSpan / 16)) << 4);
    }

    // The place of an element in a chunk.
    static __device__ __forceinline__ R* at(char* chunk, int row, int col) {
        constexpr int kElements = 16 / sizeof(R);
        if (BY_COLUMNS && kWide && row >= 32) chunk += kChunkBytes / 2;
        const int along = BY_COLUMNS ? row % kBoxRows : col, across = BY_COLUMNS ? col : row;
        return reinterpret_cast<R*>(chunk + piece(across, along / kElements)) + along % kElements;
    }
};
