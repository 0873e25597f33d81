// Shared by the variants with wgmma: the stores of a warpgroup's sums, with their epilogue.
#pragma once
#include "../common/pack.cuh"
#include "epilogue.cuh"
#include "warpgroup_tile.cuh"

// The output of a batch, for stores that are not tensor stores.
template <class R>
struct Output {
    R* first;
    int64 row, col;
    int m, n;

    __device__ __forceinline__ R& at(int my_row, int my_col) const { return first[my_row * row + my_col * col]; }
};

// An unsigned number of 4 or 2 bytes.
template <int BYTES>
struct Unsigned {
    using Type = unsigned;
};
template <>
struct Unsigned<2> {
    using Type = unsigned short;
};

// Lines of at most MOST elements in a warp's shared memory, `pitch` bytes apart, before their ordinary stores. A line
// begins after as many elements as there are between an aligned 16-byte vector of the output and the line's first
// element, so that it is stored as aligned vectors: few sectors of L2 are written in parts.
template <class R, int MOST>
struct StagedLines {
    static constexpr int kVector = 16 / sizeof(R), kMost = MOST;            // elements
    static constexpr int kLanes = MOST / kVector > 4 ? MOST / kVector : 4;  // of a line
    static constexpr int kOnce = kWarp / kLanes, kEnds = (2 * kVector - 2 + kLanes - 1) / kLanes;
    static_assert(MOST % kVector == 0 && kOnce > 0, "whole vectors, one per lane");
    char* first;
    int pitch;
    R* to;                // the first line's place in the output
    int64 across, along;  // elements from line to line, and between neighbours

    // Elements between an aligned vector and a line's first element. Only the last bits of the address count.
    __device__ __forceinline__ int skip(int line) const {
        const unsigned first_skip = static_cast<unsigned>(reinterpret_cast<uint64>(to)) / sizeof(R);
        return (first_skip + line * static_cast<unsigned>(across)) % kVector;
    }

    // The place of a line's first element.
    __device__ __forceinline__ R* operator[](int line) const {
        return reinterpret_cast<R*>(first + line * pitch) + skip(line);
    }

    // Stores the first `count` elements of each of `lines` lines, at most LINES. The warp calls it after __syncwarp.
    template <int LINES>
    __device__ __forceinline__ void store(int lines, int count) const {
        const int lane = threadIdx.x % kWarp;
        if (along != 1) {
            for (int line = 0; line < lines; ++line)
                for (int i = lane; i < count; i += kWarp) to[line * across + i * along] = (*this)[line][i];
            return;
        }
        constexpr int kTimes = (LINES + kOnce - 1) / kOnce, kBatch = kTimes < 4 ? kTimes : 4;  // whose loads overlap
#pragma unroll 1
        for (int first_line = 0; first_line < lines; first_line += kBatch * kOnce) {
            const int first_mine = first_line + lane / kLanes;
            Part parts[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const int line = first_mine + i * kOnce;
                parts[i].load(
                    (*this)[line], (kVector - skip(line)) % kVector, line < lines && lane < kLanes * kOnce ? count : 0);
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) parts[i].store(to + (first_mine + i * kOnce) * across);
        }
    }

  private:
    // A lane's part of a line: one of the aligned vectors from `begin` on, and some of the other elements at both ends.
    struct Part {
        using Bits = typename Unsigned<sizeof(R)>::Type;
        uint4 vector;
        unsigned ends[kEnds];       // as bits: each in a register of its own
        int begin, vectors, count;  // vectors: elements in all of them

        __device__ __forceinline__ int mine() const { return threadIdx.x % kWarp % kLanes * kVector; }
        __device__ __forceinline__ int at(int i) const {
            const int other = threadIdx.x % kWarp % kLanes + i * kLanes;
            return other < begin ? other : other + vectors;
        }

        __device__ __forceinline__ void load(const R* from, int first, int all) {
            begin = first, count = all, vectors = max(0, count - begin) / kVector * kVector;
            if (mine() < vectors) vector = *reinterpret_cast<const uint4*>(from + (begin + mine()));
#pragma unroll
            for (int i = 0; i < kEnds; ++i)
                if (at(i) < count) ends[i] = reinterpret_cast<const Bits*>(from)[at(i)];
        }

        __device__ __forceinline__ void store(R* to) const {
            if (mine() < vectors) *reinterpret_cast<uint4*>(to + (begin + mine())) = vector;
#pragma unroll
            for (int i = 0; i < kEnds; ++i)
                if (at(i) < count) reinterpret_cast<Bits*>(to)[at(i)] = static_cast<Bits>(ends[i]);
        }
    };
};

// The columns of a chunk of a store: 64, 32, 16 or 8, as many as divide COLUMNS; at most 32 floats.
template <class R, int COLUMNS>
constexpr int kStoreColumns = COLUMNS % 64 == 0 && sizeof(R) == 2 ? 64
                              : COLUMNS % 32 == 0                 ? 32
                              : COLUMNS % 16 == 0                 ? 16
                                                                  : 8;

// A warpgroup's 64 x 2 * COUNT sums, stored through shared memory in chunks of COLS columns, of which the last may have
// fewer. Chunks past the last column of the output are left out. BY_COLUMNS: the output is contiguous along columns,
// from row to row; otherwise along rows. A chunk has the layout of a tensor store's box: rows of at most 128 bytes
// along the contiguous axis, swizzled.
template <class R, int COUNT, bool BY_COLUMNS, class E, int COLS = kStoreColumns<R, 2 * COUNT>>
struct Store {
    static constexpr bool kWide = sizeof(R) == 4;
    static constexpr int kCols = COLS;
    static constexpr int kChunks = (2 * COUNT + kCols - 1) / kCols;
    static constexpr int kChunkBytes = 64 * kCols * sizeof(R);
    static constexpr int kRoom = (kChunks * kChunkBytes + 8191) / 8192 * 8192;
    static constexpr int kSpan = BY_COLUMNS ? 128 : kCols * sizeof(R);  // bytes of a row in shared memory
    static constexpr int kBoxRows = BY_COLUMNS && kWide ? 32 : 64;      // of the output, in a box
    static_assert(COUNT % 8 == 0 || (COUNT % 4 == 0 && BY_COLUMNS), "columns in sixteens, or in eights");

    // The bias of the lane's two rows of 64, if there is a bias per row. m0: of the warpgroup's sums.
    struct RowBias {
        float of[2];

        __device__ __forceinline__ RowBias(const E& finish, int m0, int m) {
            const int row = m0 + threadIdx.x % kGroup / kWarp * 16 + threadIdx.x % kWarp / 4;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                of[half] = 0.0f;
                if constexpr (E::kBias == kBiasPerRow)
                    if (row + half * 8 < m) of[half] = finish.bias_at(row + half * 8, 0);
            }
        }
    };

    // Writes chunk `j` to shared memory. m0, n0: of the warpgroup's sums.
    static __device__ __forceinline__ void stage(char* chunk, const float (&sums)[COUNT], int j, const E& finish,
        const RowBias& bias, int m0, int n0, int m, int n) {
        const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kGroup / kWarp;
        const int row = warp * 16 + lane / 4;  // the lane's sums are in this row and the one 8 below
        const int left_rows = m - m0 - row, left_cols = n - n0 - j * kCols - lane % 4 * 2;
        const int left[2] = {left_rows > 0 ? left_cols : 0, left_rows > 8 ? left_cols : 0};  // of both rows
        const E part = finish.from(m0 + row, n0 + j * kCols + lane % 4 * 2);
        constexpr int kEach = kCols == 8 ? 4 : 8;  // sums of a lane in 8 or 16 columns
#pragma unroll
        for (int i = 0; i < (kCols + 8) / 16; ++i) {
            if (j * kCols / 2 + i * kEach >= COUNT) break;
            float2 of_cols[kEach / 4] = {};  // a bias per column: one load for both rows
            if constexpr (E::kBiasOfColumns) {
#pragma unroll
                for (int e = 0; e < kEach / 4; ++e) {
                    const int col = i * 16 + e * 8;
                    of_cols[e] = part.bias_pair(col, left_cols);
                }
            }
            typename E::Added read[kEach / 2][2];  // all loads first, so that they overlap
#pragma unroll
            for (int pair = 0; pair < kEach / 2; ++pair) {
                const int to = pair % 2 * 8, col = i * 16 + pair / 2 * 8;
                part.added(read[pair], to, col, left[pair % 2]);
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    if constexpr (E::kBias == kBiasPerRow) read[pair][e].bias = bias.of[pair % 2];
                    if constexpr (E::kBiasOfColumns) read[pair][e].bias = e ? of_cols[pair / 2].y : of_cols[pair / 2].x;
                }
            }
            float values[kEach];
#pragma unroll
            for (int v = 0; v < kEach; ++v)
                values[v] = part.of(sums[j * kCols / 2 + i * kEach + v], read[v / 2][v % 2]);
            if constexpr (!kWide) {
                unsigned packed[kEach / 2];
#pragma unroll
                for (int v = 0; v < kEach; v += 2) packed[v / 2] = pack<R>(values[v], values[v + 1]);
                // The lane passes the address of row lane % 8 of matrix lane / 8
                if constexpr (BY_COLUMNS)
                    store_matrices_transposed(
                        chunk + piece(i * 16 + lane / 16 * 8 % kCols + lane % 8, warp * 2 + lane / 8 % 2), packed);
                else
                    store_matrices(chunk + piece(warp * 16 + lane % 16, i * 2 + lane / 16), packed);
            } else {
#pragma unroll
                for (int v = 0; v < kEach; v += BY_COLUMNS ? 1 : 2) {
                    const int to = row + v / 2 % 2 * 8, col = i * 16 + v / 4 * 8 + lane % 4 * 2 + v % 2;
                    if constexpr (BY_COLUMNS)
                        *at(chunk, to, col) = values[v];
                    else
                        *reinterpret_cast<float2*>(at(chunk, to, col)) = make_float2(values[v], values[v + 1]);
                }
            }
        }
    }

    // Tensor stores of all chunks, through BUFFERS of 8 KB of the warpgroup, BATCH of them at a time; or, if `roomy`,
    // through kRoom bytes that no copy uses, without waits. leader: the thread that issues them, which must wait until
    // they have been read before it exits. barrier: a named one.
    template <int BUFFERS, int BATCH>
    static __device__ __forceinline__ void by_tensor(char* staging, const float (&sums)[COUNT], const CUtensorMap* map,
        const E& finish, int m0, int n0, int batch, int m, int n, int barrier, bool leader, bool roomy = false) {
        static_assert(BUFFERS % BATCH == 0, "whole batches");
        constexpr int kEach = BATCH * 8192 / kChunkBytes;  // chunks at a time
        const RowBias bias(finish, m0, m);
#pragma unroll
        for (int j = 0; j < kChunks; j += kEach) {
            if (n0 + j * kCols >= n) break;
            char* const to = staging + (roomy ? j / kEach : j / kEach % (BUFFERS / BATCH)) * BATCH * 8192;
            if (!roomy) {
                if (leader) {  // an earlier batch, or all those of the tile before, have been read
                    if (j == 0)
                        bulk_wait_read<0>();
                    else
                        bulk_wait_read<BUFFERS / BATCH - 1>();
                }
                named_sync(barrier, kGroup);
            }
#pragma unroll
            for (int i = 0; i < kEach && j + i < kChunks; ++i)
                stage(to + i * kChunkBytes, sums, j + i, finish, bias, m0, n0, m, n);
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

    // Ordinary stores of all sums, for an output with any strides. A warp stages 8 rows at a time in its quarter of
    // BUFFERS * 8 KB and stores them row by row, as aligned vectors if the elements of a row adjoin. So few sectors of
    // L2 are written in parts, and these are complete soon; and no warp waits for another one.
    template <int BUFFERS>
    static __device__ __forceinline__ void by_lanes(
        char* staging, const float (&sums)[COUNT], const Output<R>& out, const E& finish, int m0, int n0) {
        static_assert(!BY_COLUMNS, "a warp has whole rows");
        using Rows = StagedLines<R, BUFFERS * 8 * 16 / sizeof(R)>;
        constexpr int kColumns = Rows::kMost,
                      kPitch = kColumns * static_cast<int>(sizeof(R)) + 16;  // other banks per row
        static_assert(4 * 8 * kPitch <= BUFFERS * 8192, "room for all warps");
        const int lane = threadIdx.x % kWarp;
        // The shuffle makes it uniform for the compiler: early exits by row would otherwise cost uniform registers,
        // from which wgmma reads its operands' descriptors, in the loop over tiles.
        const int warp = __shfl_sync(kAllLanes, threadIdx.x % kGroup / kWarp, 0);
        const int row = lane / 4;  // among the 8, of the sums that the lane has
        const RowBias bias(finish, m0, out.m);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int first = m0 + warp * 16 + half * 8;
#pragma unroll
            for (int begin = 0; begin < 2 * COUNT; begin += kColumns) {
                if (first >= out.m || n0 + begin >= out.n) break;
                const E part = finish.from(first + row, n0 + begin + lane % 4 * 2);
                const int left_cols = out.n - n0 - begin - lane % 4 * 2;
                const Rows rows{staging + warp * 8 * kPitch, kPitch, &out.at(first, n0 + begin), out.row, out.col};
                R* const to = rows[row] + lane % 4 * 2;
#pragma unroll
                for (int g = 0; g < kColumns / 8 && begin + g * 8 < 2 * COUNT; ++g) {
                    typename E::Added read[2];
                    part.added(read, 0, g * 8, first + row < out.m ? left_cols : 0);
                    if constexpr (E::kBiasOfColumns) {
                        const float2 of_cols = part.bias_pair(g * 8, left_cols);
                        read[0].bias = of_cols.x, read[1].bias = of_cols.y;
                    }
                    float values[2];
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        if constexpr (E::kBias == kBiasPerRow) read[e].bias = bias.of[half];
                        values[e] = part.of(sums[(begin / 8 + g) * 4 + half * 2 + e], read[e]);
                    }
                    to[g * 8] = static_cast<R>(values[0]);
                    to[g * 8 + 1] = static_cast<R>(values[1]);
                }
                __syncwarp();
                const int cols = min(min(kColumns, 2 * COUNT - begin), out.n - n0 - begin);
                rows.template store<8>(min(8, out.m - first), cols);
                __syncwarp();  // before the staged rows are overwritten
            }
        }
    }

  private:
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
