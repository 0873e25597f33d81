// The groups of a grouped product: the rows of each group, and the tiles of all groups in one sequence of numbers.
#pragma once
#include "../common/numbers.cuh"

// Returns `value`, but at least `low` and at most `high`.
__device__ __forceinline__ int clamped(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

// Group g has rows first(g) .. end(g) - 1 and tiles tiles[g] .. tiles[g + 1] - 1. The lists are in shared memory.
struct Groups {
    int* ends;   // [g + 1]: the end of group g; [0]: the first row of group 0
    int* tiles;  // count + 1 numbers
    int count;
    bool masked;  // each group has rows of its own, from row 0 on; otherwise groups follow one another

    static constexpr int kBytes = 2 * sizeof(int);  // per group, and for one group more

    __device__ __forceinline__ Groups(char* lists, int count, bool masked)
        : ends(reinterpret_cast<int*>(lists)), tiles(ends + count + 1), count(count), masked(masked) {}

    // Lists the groups, by one warp, from the offsets of their rows (count + 1 numbers) or, if masked, their numbers of
    // rows. A group has `across` tiles per BM rows, and one per TAIL rows (0: none). Numbers out of 0 .. rows count as
    // the nearest of these, an offset below an earlier one as the largest earlier one: so all rows exist, and groups
    // do not overlap.
    template <int BM, int TAIL = 0>
    __device__ __forceinline__ void list(const int* sizes, int64 step, int rows, int across) const {
        const int lane = threadIdx.x % kWarp;
        int reached = masked ? 0 : clamped(sizes[0], 0, rows), listed = 0;  // rows and tiles of the groups before
        if (lane == 0) ends[0] = reached, tiles[0] = 0;
        for (int base = 0; base < count; base += kWarp) {
            const int group = base + lane;
            const int size = group < count ? sizes[(masked ? group : group + 1) * step] : 0;
            int end = clamped(size, masked ? 0 : reached, rows);
            if (!masked) {
#pragma unroll
                for (int by = 1; by < kWarp; by *= 2) {
                    const int before = __shfl_up_sync(kAllLanes, end, by);
                    if (lane >= by && before > end) end = before;
                }
            }
            const int before = __shfl_up_sync(kAllLanes, end, 1);
            const int first = masked ? 0 : lane ? before : reached;
            int last = (end - first + BM - 1) / BM * across;
            if constexpr (TAIL > 0) last += (end - first + TAIL - 1) / TAIL;
            if (lane == 0) last += listed;
#pragma unroll
            for (int by = 1; by < kWarp; by *= 2) {
                const int more = __shfl_up_sync(kAllLanes, last, by);
                if (lane >= by) last += more;
            }
            if (group < count) ends[group + 1] = end, tiles[group + 1] = last;
            if (!masked) reached = __shfl_sync(kAllLanes, end, kWarp - 1);
            listed = __shfl_sync(kAllLanes, last, kWarp - 1);
        }
    }

    __device__ __forceinline__ int first(int group) const { return masked ? 0 : ends[group]; }

    __device__ __forceinline__ int end(int group) const { return ends[group + 1]; }

    // The number of tiles of all groups.
    __device__ __forceinline__ int all() const { return tiles[count]; }

    // The group of a tile: the last one whose first tile has no larger number. Empty groups have no tiles.
    __device__ __forceinline__ int of(int tile) const {
        int low = 0, high = count;  // tiles[low] <= tile < tiles[high]
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (tiles[middle] <= tile)
                low = middle;
            else
                high = middle;
        }
        return low;
    }
};
