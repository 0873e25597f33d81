// The hybrid filter of many images in one launch: as fused.cu, but the spectra of an image are used again while L2
// still has them. Device memory is read once and written once.
//
// Blocks take tiles from a queue: in step s, the tiles of rows of image s, then the tiles of columns of image s - lag,
// then the tiles of result rows of image s - 2 lag. A tile waits for those that it depends on; they were taken earlier,
// so that blocks that run will finish them. lag 0: for one image.
//
// images, out: (count, rows, cols), as in fused.cu. spectra: (ring, rows, pitch); image i uses spectra i % ring, after
// the image that used them before is finished. ring: at least 2 * lag + 1. progress: 2 + 3 * count counters, zero at
// the start and again at the end: tiles taken, blocks that are done, and three per image, the finished tiles of each
// kind.
//
// Bottleneck: L2 bandwidth, if the spectra of the ring fit in L2.
#include "steps.cuh"

extern __shared__ float2 exchanged[];

// Wait until `count` tiles are finished, and see what they wrote.
__device__ inline void wait_for(unsigned* finished, unsigned count) {
    if (threadIdx.x == 0) {
        while (atomicAdd(finished, 0u) < count) __nanosleep(100);
        __threadfence();
    }
    __syncthreads();
}

// All threads' writes are visible before the tile counts as finished.
__device__ inline void finish(unsigned* finished) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(finished, 1u);
}

template <class ROW, bool EVEN, class COLUMN, class BACK, class BEFORE, class FILTER, int BLOCKS>
__global__ void __launch_bounds__(ROW::THREADS* ROW::ROWS, BLOCKS) filter_in_cache(const float* images, float* out,
    float2* spectra, unsigned* progress, int count, int lag, int ring, long long pitch, float scale, BEFORE before,
    FILTER filter) {
    constexpr int ROWS = COLUMN::N, COLS = RealRow<EVEN>::inputs(ROW::N), HALF = COLS / 2 + 1;
    constexpr long long SIZE = static_cast<long long>(ROWS) * COLS;
    constexpr unsigned ROW_TILES = (ROWS + ROW::ROWS - 1) / ROW::ROWS,
                       COLUMN_TILES = (HALF + COLUMN::ROWS - 1) / COLUMN::ROWS, TILES = 2 * ROW_TILES + COLUMN_TILES;
    static_assert(ROW::THREADS * ROW::ROWS == COLUMN::THREADS * COLUMN::ROWS, "one block does all kinds of tiles");
    unsigned* finished = progress + 2;
    __shared__ unsigned taken;

    for (;;) {
        __syncthreads();  // the block has finished its last tile
        if (threadIdx.x == 0) taken = atomicAdd(&progress[0], 1u);
        __syncthreads();
        const int step = static_cast<int>(taken / TILES);
        unsigned tile = taken % TILES;
        if (step >= count + 2 * lag) break;

        const int kind = tile < ROW_TILES ? 0 : tile < ROW_TILES + COLUMN_TILES ? 1 : 2, image = step - kind * lag;
        if (image < 0 || image >= count) continue;
        float2* used = spectra + static_cast<long long>(image % ring) * ROWS * pitch;
        unsigned* own = finished + 3 * image;
        if (kind == 0) {
            const Group<ROW> group(exchanged);
            const int row = tile * ROW::ROWS + group.row;
            if (image >= ring) wait_for(own - 3 * ring + 2, ROW_TILES);
            row_to_spectrum<ROW, EVEN>(
                group, images + image * SIZE + row * COLS, used + row * pitch, row < ROWS, before);
        } else if (kind == 1) {
            const int col = (tile - ROW_TILES) * COLUMN::ROWS + Group<COLUMN>(exchanged).row;
            const float u = static_cast<float>(col) / static_cast<float>(COLS);
            wait_for(own, ROW_TILES);
            filter_column<COLUMN, BACK, true>(exchanged, used + col, pitch, col < HALF, u, filter);
        } else {
            const Group<ROW> group(exchanged);
            const int row = (tile - ROW_TILES - COLUMN_TILES) * ROW::ROWS + group.row;
            wait_for(own + 1, COLUMN_TILES);
            spectrum_to_row<ROW, EVEN, true>(
                group, used + row * pitch, out + image * SIZE + row * COLS, row < ROWS, scale);
        }
        finish(own + kind);
    }

    // The last block resets the counters for the next launch.
    __syncthreads();  // all threads have read `taken`
    if (threadIdx.x == 0) {
        __threadfence();  // the block's last access to the counters is before this one
        taken = atomicAdd(&progress[1], 1u);
        __threadfence();
    }
    __syncthreads();
    if (taken + 1 == gridDim.x) {
        for (int i = threadIdx.x; i < 2 + 3 * count; i += blockDim.x) atomicExch(&progress[i], 0u);
    }
}
