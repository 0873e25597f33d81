// Two-dimensional Fourier transforms of many planes in one launch: the rows of a plane are transformed into y, then its
// columns in place, while L2 still has them. Device memory is read once and written once; two launches over all planes
// do so twice.
//
// x, y: (planes, rows, cols) complex numbers, contiguous along cols, with any distance of planes and rows. y may be x.
//
// Blocks take tiles from a queue: in step s, all row tiles of plane s, then all column tiles of plane s - lag. A column
// tile waits until all row tiles of its plane are finished; they were taken earlier, so that blocks that run will
// finish them. progress: 1 + planes counters, zero at the start: tiles taken, then the finished row tiles of each
// plane.
//
// Bottleneck: memory bandwidth, if lag + 1 planes fit in L2.
#include "rows.cuh"
#include "storage.cuh"

extern __shared__ float2 exchanged[];

struct Plane {
    long long distance, pitch;  // of planes and of rows, in elements
};

template <class P, bool INVERSE, class Load, class Store>
__device__ inline void transform_tile(Load load, Store store) {
    const Group<P> group(exchanged);
    ComplexRow<INVERSE>::template run<P>(
        group, [&](int i) { return load(group.row, i); }, [&](int i, float2 z) { store(group.row, i, z); });
}

template <class ROW, class COLUMN, class T, bool INVERSE, int BLOCKS>
__global__ void __launch_bounds__(ROW::THREADS* ROW::ROWS, BLOCKS) planes_in_cache(
    const T* x, T* y, unsigned* progress, int planes, int lag, Plane x_plane, Plane y_plane, float scale) {
    using C = typename Complex<T>::type;
    constexpr int ROWS = COLUMN::N, COLS = ROW::N;
    constexpr unsigned ROW_TILES = (ROWS + ROW::ROWS - 1) / ROW::ROWS,
                       COLUMN_TILES = (COLS + COLUMN::ROWS - 1) / COLUMN::ROWS, TILES = ROW_TILES + COLUMN_TILES;
    static_assert(ROW::THREADS * ROW::ROWS == COLUMN::THREADS * COLUMN::ROWS, "one block does both kinds of tile");
    __shared__ unsigned taken;

    for (;;) {
        __syncthreads();  // the block has finished its last tile
        if (threadIdx.x == 0) taken = atomicAdd(&progress[0], 1u);
        __syncthreads();
        const unsigned tile = taken % TILES;
        const int step = static_cast<int>(taken / TILES);
        if (step >= planes + lag) return;

        if (tile < ROW_TILES) {
            if (step >= planes) continue;
            const C* from = reinterpret_cast<const C*>(x) + step * x_plane.distance;
            C* to = reinterpret_cast<C*>(y) + step * y_plane.distance;
            const int first = tile * ROW::ROWS;
            transform_tile<ROW, INVERSE>(
                [&](int row, int i) {  // x is not needed again: keep L2 for y
                    if (first + row >= ROWS) return float2{0.0f, 0.0f};
                    return widened(__ldcs(from + (first + row) * x_plane.pitch + i));
                },
                [&](int row, int i, float2 z) {
                    if (first + row < ROWS) narrowed(to[(first + row) * y_plane.pitch + i], z);
                });
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) atomicAdd(&progress[1 + step], 1u);
        } else {
            const int plane = step - lag;
            if (plane < 0) continue;
            C* values = reinterpret_cast<C*>(y) + plane * y_plane.distance;
            const int first = (tile - ROW_TILES) * COLUMN::ROWS;
            if (threadIdx.x == 0) {
                while (atomicAdd(&progress[1 + plane], 0u) < ROW_TILES) __nanosleep(100);
                __threadfence();
            }
            __syncthreads();
            transform_tile<COLUMN, INVERSE>(
                [&](int column, int i) {  // other multiprocessors wrote it: L1 may be stale
                    if (first + column >= COLS) return float2{0.0f, 0.0f};
                    return widened(__ldcg(values + i * y_plane.pitch + first + column));
                },
                [&](int column, int i, float2 z) {
                    if (first + column >= COLS) return;
                    C value;
                    narrowed(value, scale * z);
                    __stcs(values + i * y_plane.pitch + first + column, value);
                });
        }
    }
}
