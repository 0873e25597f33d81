// Shared by the variants with wgmma: an operand's tile in shared memory and the copies that fill it, the order of
// tiles, and the products. The store of the sums is in warpgroup_store.cuh.
//
// Lines are the rows of A and the columns of B; common/wgmma.cuh has the two layouts of their tiles. Both operands can
// have either, so no operand is transposed in memory. 64 lines x 64 k take 8 KB in both layouts.
#pragma once
#include "../common/hopper.cuh"
#include "../common/unaligned.cuh"
#include "../common/wgmma.cuh"

constexpr int kDepth = 64;   // k of a tile
constexpr int kGroup = 128;  // threads of a warpgroup
constexpr int kRowBytes = 128;

// --- Operands ------------------------------------------------------------------------------------------------------

// An operand whose rows along its contiguous axis adjoin: they have no padding, and the first one begins on a 16-byte
// boundary. A tensor map needs strides of whole 16 bytes, which 8 rows of 2-byte elements have at any length: the maps
// are of *super rows* of 8 rows, in which row 8 i + c is row c of super row i. No map reaches beyond the operand's end:
// the loader's map has the super rows of 8 rows, and `partial` also the one of the last rows % 8 rows, for copies of
// these.
struct SuperRows {
    const CUtensorMap* partial;
    int rows, count;  // count: elements of a row

    // The element of a super row at which its row c begins.
    __device__ __forceinline__ int begin(int c) const { return c * count; }
};

// The tile of LINES lines x 64 k of an operand.
template <class T, int LINES, bool ALONG_K>
struct OperandTile {
    static constexpr int kPanels = (LINES + 63) / 64;
    static constexpr int kBytes = ALONG_K ? LINES * kRowBytes : kPanels * kPanelBytes;

    // Loads the tile by tensor copies of BOX lines if it is along k; or part `rank` of SHARES, into all SHARES blocks
    // of the cluster.
    template <int SHARES = 1, int BOX = LINES / SHARES>
    static __device__ __forceinline__ void load(
        char* tile, const CUtensorMap* map, int line, int k, int batch, uint64* barrier, int rank = 0) {
        constexpr int kLines = LINES / SHARES, kRows = kDepth / SHARES;  // of a part
        static_assert(LINES % SHARES == 0 && (SHARES == 1 || kLines % 8 == 0), "parts begin at 1024 bytes");
        const auto copy = [&](char* to, int x, int y) {
            if constexpr (SHARES == 1)
                tensor_load(to, map, x, y, batch, barrier);
            else
                tensor_load_to(to, map, x, y, batch, barrier, (1 << SHARES) - 1);
        };
        if constexpr (ALONG_K) {
#pragma unroll
            for (int from = 0; from < kLines; from += BOX)
                copy(tile + (rank * kLines + from) * kRowBytes, k, line + rank * kLines + from);
        } else {
#pragma unroll
            for (int p = 0; p < kPanels; ++p)
                copy(tile + p * kPanelBytes + rank * kRows * kRowBytes, line + p * 64, k + rank * kRows);
        }
    }

    // Copies of super rows to raw memory: a box per class c of rows 8 i + c, or one per panel of 64 lines. A row of a
    // box has 16 bytes more than one of the tile, as it begins up to 14 bytes before that.
    static constexpr int kRawRow = kRowBytes + 16;
    static constexpr int kBoxRows = ALONG_K ? LINES : 64, kBoxes = ALONG_K ? 1 : kPanels;  // kBoxRows: of all classes
    static constexpr int kBoxBytes = kBoxRows / 8 * kRawRow;
    static constexpr int kPitch = (kBoxBytes + 127) / 128 * 128;  // tensor copies write to multiples of 128 bytes
    static constexpr int kRaw = 8 * kBoxes * kPitch, kCopied = 8 * kBoxes * kBoxBytes;

    // Starts the copies of class c, of kCopied / 8 bytes. One thread calls it.
    static __device__ __forceinline__ void start(
        char* raw, const CUtensorMap* map, const SuperRows& of, int line, int k, int batch, uint64* arrived, int c) {
        const int x = ALONG_K ? k : line, y = (ALONG_K ? line : k) / 8;
#pragma unroll
        for (int box = 0; box < kBoxes; ++box)
            tensor_load(raw + (box * 8 + c) * kPitch, c < of.rows % 8 ? of.partial : map,
                of.begin(c) / 8 * 8 + x + box * 64, y, batch, arrived);
    }

    // Shifts the copied rows to their places in the tile. The warpgroup calls it: 8 lanes per row, so that all rows of
    // a lane are of one class.
    static __device__ __forceinline__ void shift(char* tile, const char* raw, const SuperRows& of, int line, int k) {
        constexpr int kRows = kBytes / kRowBytes, kOnce = kGroup / 8, kPasses = kRows / kOnce;
        constexpr int kBatch = ALONG_K && kPasses % 4 ? kPasses : 4;  // whose loads overlap; of one box
        const int row0 = threadIdx.x % kGroup / 8, piece = threadIdx.x % 8, c = row0 % 8;
        const int skip = of.begin(c) % 8 * static_cast<int>(sizeof(T));
        const int left = of.count - (ALONG_K ? k : line) - piece * 8;  // elements from the piece to the end of a row
        raw += c * kPitch + piece * 16;
#pragma unroll
        for (int pass = 0; pass < kPasses; pass += kBatch) {
            const uint4 mask = first_elements(left - pass * kOnce / kBoxRows * 64);
            uint4 low[kBatch], high[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const int row = (pass + i) * kOnce + row0;
                const uint4* const words =
                    reinterpret_cast<const uint4*>(raw + row / kBoxRows * 8 * kPitch + row % kBoxRows / 8 * kRawRow);
                low[i] = words[0];
                high[i] = words[1];
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const int row = (pass + i) * kOnce + row0;
                put(tile, row, piece, shifted(low[i], high[i], skip), mask);
            }
        }
    }

    // The tile's rows, loaded by the block's first THREADS threads: 8 lanes per row, each 16 bytes, which it shifts.
    // Elements and rows outside the operand are zeros, and are not loaded.
    template <int THREADS>
    struct Direct {
        static constexpr int kRows = kBytes / kRowBytes, kOnce = THREADS / 8, kPasses = (kRows + kOnce - 1) / kOnce;
        uint4 low[kPasses], high[kPasses];
        int row0, piece, line, k;
        const T* operand;
        SuperRows of;

        __device__ __forceinline__ Direct(const T* operand, const SuperRows& of, int line, int k)
            : row0(threadIdx.x / 8), piece(threadIdx.x % 8), line(line), k(k), operand(operand), of(of) {
#pragma unroll
            for (int pass = 0; pass < kPasses; ++pass) {
                low[pass] = high[pass] = {0, 0, 0, 0};
                const int left = elements(pass);
                if (left <= 0) continue;
                const T* const from = begin(pass);
                const int past = past_boundary(from);
                const T* const end = operand + static_cast<int64>(of.rows) * of.count;
                if (from + 16 <= end) {  // so are both vectors
                    low[pass] = boundary(from)[0];
                    if (past) high[pass] = boundary(from)[1];
                } else {
                    T* const words = reinterpret_cast<T*>(&low[pass]);
#pragma unroll
                    for (int i = 0; i < 8; ++i)
                        if (i < left) words[i] = from[i];
                }
            }
        }

        // Writes the rows to their places in the tile.
        __device__ __forceinline__ void store(char* tile) const {
            if (kRows < kOnce && row0 >= kRows) return;
            const T* const end = operand + static_cast<int64>(of.rows) * of.count;
#pragma unroll
            for (int pass = 0; pass < kPasses; ++pass) {
                const T* const from = begin(pass);
                put(tile, pass * kOnce + row0, piece,
                    shifted(low[pass], high[pass], from + 16 <= end ? past_boundary(from) : 0),
                    first_elements(elements(pass)));
            }
        }

      private:
        // The row of the operand, and the first element in it, that the lane loads in a pass.
        __device__ __forceinline__ int row(int pass) const {
            return ALONG_K ? line + pass * kOnce + row0 : k + (pass * kOnce + row0) % 64;
        }
        __device__ __forceinline__ int column(int pass) const {
            return (ALONG_K ? k : line + (pass * kOnce + row0) / 64 * 64) + piece * 8;
        }
        __device__ __forceinline__ const T* begin(int pass) const {
            return operand + static_cast<int64>(row(pass)) * of.count + column(pass);
        }
        __device__ __forceinline__ int elements(int pass) const {
            return row(pass) < of.rows && pass * kOnce + row0 < kRows ? of.count - column(pass) : 0;
        }
    };

  private:
    // Writes the elements of a piece that `mask` selects, and zeros, to the piece's place in a row of the tile.
    static __device__ __forceinline__ void put(char* tile, int row, int piece, uint4 words, const uint4& mask) {
        words.x &= mask.x, words.y &= mask.y, words.z &= mask.z, words.w &= mask.w;
        *reinterpret_cast<uint4*>(tile + row * kRowBytes + ((piece ^ row % 8) << 4)) = words;
    }

    // Bits of the first `count` of 8 elements.
    static __device__ __forceinline__ uint4 first_elements(int count) {
        const auto pair = [&](int i) { return count > 2 * i + 1 ? ~0u : count > 2 * i ? 0xffffu : 0u; };
        return {pair(0), pair(1), pair(2), pair(3)};
    }
};

// The copies that fill a stage of the ring, with a tile of each operand: tensor copies, or, for an operand of super
// rows, `start` and `shift`, or `load_directly`. SHARES: blocks of a cluster that load B for each other. BOX: lines of
// a copy of A. ARRIVALS: threads that gather rows, if an operand has super rows.
template <class T, int BM, int BN, bool A_K, bool B_K, bool TENSOR_A, bool TENSOR_B, int SHARES = 1, int BOX = BM,
    int ARRIVALS = kGroup>
struct Loader {
    using A = OperandTile<T, BM, A_K>;
    using B = OperandTile<T, BN, B_K>;
    static constexpr int kStage = A::kBytes + B::kBytes;
    static constexpr bool kGathers = !TENSOR_A || !TENSOR_B;
    static constexpr int kArrivals = kGathers ? ARRIVALS : 1;                             // at the barrier `full`
    static constexpr int kRawA = TENSOR_A ? 0 : A::kRaw, kRawB = TENSOR_B ? 0 : B::kRaw;  // bytes
    static constexpr int kRaw = kRawA + kRawB;
    static_assert(SHARES == 1 || !kGathers, "blocks gather for themselves");

    const CUtensorMap *map_a, *map_b;
    SuperRows of_a, of_b;
    int m0, n0, batch_a, batch_b, rank;

    __device__ __forceinline__ Loader(const CUtensorMap* map_a, const CUtensorMap* map_b, const SuperRows& of_a,
        const SuperRows& of_b, int m0, int n0, int batch_a, int batch_b, int rank = 0)
        : map_a(map_a),
          map_b(map_b),
          of_a(of_a),
          of_b(of_b),
          m0(m0),
          n0(n0),
          batch_a(batch_a),
          batch_b(batch_b),
          rank(rank) {}

    // Tensor copies to a stage. One thread calls it.
    __device__ __forceinline__ void operator()(char* stage, int k, uint64* full) const {
        constexpr int kBytes = (TENSOR_A ? A::kBytes : 0) + (TENSOR_B ? B::kBytes : 0);
        if constexpr (!kGathers)
            barrier_arrive_expect(full, kBytes);
        else if constexpr (kBytes > 0)
            barrier_expect(full, kBytes);
        if constexpr (TENSOR_A) A::template load<1, BOX>(stage, map_a, m0, k, batch_a, full);
        if constexpr (TENSOR_B) B::template load<SHARES>(stage + A::kBytes, map_b, n0, k, batch_b, full, rank);
    }

    // Starts a warp's part of the copies of super rows, to kRaw bytes. One thread of each of kStarts warps calls it.
    static constexpr int kStarts = kGroup / kWarp;

    __device__ __forceinline__ void start(char* raw, int k, uint64* arrived, int warp) const {
        constexpr int kBytes = (TENSOR_A ? 0 : A::kCopied) + (TENSOR_B ? 0 : B::kCopied), kClasses = 8 / kStarts;
        barrier_arrive_expect(arrived, kBytes / kStarts);
#pragma unroll
        for (int c = warp * kClasses; c < (warp + 1) * kClasses; ++c) {
            if constexpr (!TENSOR_A) A::start(raw, map_a, of_a, m0, k, batch_a, arrived, c);
            if constexpr (!TENSOR_B) B::start(raw + kRawA, map_b, of_b, n0, k, batch_b, arrived, c);
        }
    }

    // Shifts rows that have arrived to a stage. The warpgroup calls it.
    __device__ __forceinline__ void shift(char* stage, const char* raw, int k, uint64* full) const {
        if constexpr (!TENSOR_A) A::shift(stage, raw, of_a, m0, k);
        if constexpr (!TENSOR_B) B::shift(stage + A::kBytes, raw + kRawA, of_b, n0, k);
        fence_async_shared();
        barrier_arrive(full);
    }

    // Loads the gathered operands, whose first elements in the batch are a and b, to a stage. The first ARRIVALS
    // threads call it.
    __device__ __forceinline__ void load_directly(char* stage, const T* a, const T* b, int k, uint64* full) const {
        if constexpr (TENSOR_A) {
            typename B::template Direct<ARRIVALS>(b, of_b, n0, k).store(stage + A::kBytes);
        } else if constexpr (TENSOR_B) {
            typename A::template Direct<ARRIVALS>(a, of_a, m0, k).store(stage);
        } else {  // the loads of both overlap
            const typename A::template Direct<ARRIVALS> rows_a(a, of_a, m0, k);
            const typename B::template Direct<ARRIVALS> rows_b(b, of_b, n0, k);
            rows_a.store(stage);
            rows_b.store(stage + A::kBytes);
        }
        fence_async_shared();
        barrier_arrive(full);
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
