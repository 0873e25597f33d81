// Copies the operands of a large product to the layout that the inner loop reads fastest: contiguous rows that begin on
// 16-byte boundaries. The product itself is 11_stream_k.cu, or one of gemm_half.
//
// Per operand: `from`, `rows` x `cols`, any strides, `batches` of them; `to`, rows of `pitch` elements one after the
// other. pitch is at least cols and a multiple of 16 bytes; elements after the last column are zero. Rows are k and
// columns are lines (rows of A, columns of B), or the reverse. One launch copies both operands: the first blocks0
// blocks copy the first.
//
// Improvement: 4 accesses per tile in the inner loop of the fp32 product, instead of 20 if the operand is contiguous
// along k, or 16 if it is not aligned. Transposing once in memory moves 8 bytes per element, which takes 0.6 % of the
// time of a product of 8192, and 1.2 % at 4096.
//
// Bottleneck: memory bandwidth. All stores are 16 bytes. Unaligned rows are read in aligned pieces of 16 bytes, which
// are shifted; a transposed operand goes through shared memory.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../common/dependent.cuh"
#include "../common/unaligned.cuh"

constexpr int kThreads = 256;
// How an operand is read: by contiguous rows, by contiguous columns or element by element. kNone: it is not packed.
constexpr int kRows = 0, kColumns = 1, kElements = 2, kNone = 3;

template <class T>
struct Operand {
    const T* from;
    T* to;
    int64 row_stride, col_stride, batch_stride, rows, cols, pitch, batches;
};

// The bits of an element.
template <class T>
__device__ __forceinline__ uint32 bits(const T* at) {
    if constexpr (sizeof(T) == 4)
        return *reinterpret_cast<const uint32*>(at);
    else
        return *reinterpret_cast<const unsigned short*>(at);
}

// Stores a piece. The compiler may split an assignment of uint4 into four stores.
template <class T>
__device__ __forceinline__ void store(T* to, uint4 piece) {
    __stwb(reinterpret_cast<uint4*>(to), piece);
}

// A piece of 16 bytes from its elements, which are `step` apart; zeros after the first `count`.
template <class T>
__device__ __forceinline__ uint4 piece_of(const T* at, int64 step, int64 count) {
    constexpr int kPerWord = 4 / sizeof(T);
    uint32 words[4] = {};
#pragma unroll
    for (int w = 0; w < 4; ++w)
#pragma unroll
        for (int e = 0; e < kPerWord; ++e) {
            const int i = w * kPerWord + e;
            if (i < count) words[w] |= bits(at + i * step) << (32 / kPerWord * e);
        }
    return {words[0], words[1], words[2], words[3]};
}

// Copies row by row. `lanes` neighbouring threads (a power of two up to 32) copy one piece of 16 bytes each of the same
// row; a thread copies the piece at the same place of kDeep rows, with all loads before the first store.
template <class T, bool CONTIGUOUS>
struct RowCopy {
    static constexpr int kWidth = 16 / sizeof(T), kDeep = 4;

    const Operand<T>& of;
    int lanes;

    __device__ __forceinline__ int64 across() const { return (of.pitch / kWidth + lanes - 1) / lanes; }

    __device__ __forceinline__ int64 down() const {
        const int rows = kThreads / lanes * kDeep;
        return (of.rows + rows - 1) / rows;
    }

    __device__ __forceinline__ void copy(int64 x, int64 y, int64 batch) const {
        const int64 col = (x * lanes + threadIdx.x % lanes) * kWidth;  // the piece's first
        if (col >= of.pitch) return;
        const int step = kThreads / lanes;  // rows at once
        const int64 row0 = y * (step * kDeep) + threadIdx.x / lanes;
        uint4 low[kDeep], high[kDeep];
        int skip[kDeep];
#pragma unroll
        for (int i = 0; i < kDeep; ++i) {
            const int64 row = row0 + i * step;
            if (row >= of.rows) continue;
            const T* const at = of.from + batch * of.batch_stride + row * of.row_stride + col * of.col_stride;
            skip[i] = CONTIGUOUS ? past_boundary(at) : 0;
            const int before = skip[i] / sizeof(T);  // elements that are loaded with it
            const int64 end = col - before + (before ? 2 : 1) * kWidth;
            if (CONTIGUOUS && col >= before && end <= of.cols) {
                low[i] = boundary(at)[0];
                if (before) high[i] = boundary(at)[1];
            } else {
                skip[i] = 0;
                low[i] = piece_of(at, of.col_stride, of.cols - col);
            }
        }
#pragma unroll
        for (int i = 0; i < kDeep; ++i) {
            const int64 row = row0 + i * step;
            if (row >= of.rows) continue;
            T* const to = of.to + (batch * of.rows + row) * of.pitch + col;
            store(to, skip[i] ? shifted(low[i], high[i], skip[i]) : low[i]);
        }
    }
};

// Copies tiles through shared memory: reads run along the columns, stores along the rows.
template <class T>
struct TransposedCopy {
    static constexpr int kWidth = 16 / sizeof(T), kTileRows = 64, kTileCols = 32;
    static constexpr int kReads = kTileRows * kTileCols / kThreads;  // of a thread
    using Tile = T[kTileRows][kTileCols + 1];                        // padding against bank conflicts

    const Operand<T>& of;
    Tile& tile;

    __device__ __forceinline__ int64 across() const { return (of.pitch + kTileCols - 1) / kTileCols; }
    __device__ __forceinline__ int64 down() const { return (of.rows + kTileRows - 1) / kTileRows; }

    __device__ __forceinline__ void copy(int64 x, int64 y, int64 batch) const {
        const int64 row0 = y * kTileRows, col0 = x * kTileCols;
        const T* const from = of.from + batch * of.batch_stride;
        const int row = threadIdx.x % kTileRows, first = threadIdx.x / kTileRows;  // of the thread's reads
        T values[kReads];
#pragma unroll
        for (int i = 0; i < kReads; ++i) {
            const int64 col = col0 + first + i * (kTileCols / kReads);
            const bool inside = row0 + row < of.rows && col < of.cols;
            values[i] = inside ? from[(row0 + row) * of.row_stride + col * of.col_stride] : static_cast<T>(0.0f);
        }
#pragma unroll
        for (int i = 0; i < kReads; ++i) tile[row][first + i * (kTileCols / kReads)] = values[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kTileRows * kTileCols / (kThreads * kWidth); ++i) {
            const int at = i * kThreads + threadIdx.x;
            const int row = at / (kTileCols / kWidth), col = at % (kTileCols / kWidth) * kWidth;
            if (row0 + row >= of.rows || col0 + col >= of.pitch) continue;
            T* const to = of.to + (batch * of.rows + row0 + row) * of.pitch + col0 + col;
            store(to, piece_of(&tile[row][col], 1, kWidth));
        }
        __syncthreads();  // before the tile is filled again
    }
};

// Copies parts first, first + step ... of an operand.
template <class Copy>
__device__ __forceinline__ void copy_parts(const Copy& copy, int64 first, int64 step) {
    const int64 across = copy.across(), down = copy.down();
    for (int64 part = first; part < across * down * copy.of.batches; part += step) {
        const int64 row = part / across;
        copy.copy(part - row * across, row % down, row / down);
    }
}

// Copies an operand with the blocks from number `first` on, `blocks` in all.
template <class T, int HOW>
__device__ __forceinline__ void copy_operand(const Operand<T>& of, int lanes, int64 first, int64 blocks) {
    if constexpr (HOW == kColumns) {
        __shared__ typename TransposedCopy<T>::Tile tile;
        copy_parts(TransposedCopy<T>{of, tile}, blockIdx.x - first, blocks);
    } else if constexpr (HOW != kNone) {
        copy_parts(RowCopy<T, HOW == kRows>{of, lanes}, blockIdx.x - first, blocks);
    }
}

// HOW0, HOW1: how the two operands are read.
//
// grid: any number of blocks from blocks0 on; at least one more if there is a second operand; block: 256
template <class T, int HOW0, int HOW1>
__global__ void __launch_bounds__(kThreads, 2) pack(const T* from0, T* to0, int64 row0, int64 col0, int64 batch0,
    int64 rows0, int64 cols0, int64 pitch0, int64 batches0, int lanes0, const T* from1, T* to1, int64 row1, int64 col1,
    int64 batch1, int64 rows1, int64 cols1, int64 pitch1, int64 batches1, int lanes1, int blocks0) {
    if (threadIdx.x == 0) start_dependents();
    wait_for_predecessor();
    if (blockIdx.x < blocks0)
        copy_operand<T, HOW0>({from0, to0, row0, col0, batch0, rows0, cols0, pitch0, batches0}, lanes0, 0, blocks0);
    else
        copy_operand<T, HOW1>(
            {from1, to1, row1, col1, batch1, rows1, cols1, pitch1, batches1}, lanes1, blocks0, gridDim.x - blocks0);
}
