// Sorts each block's values with CUB: loads them through shared memory, sorts them, stores them through shared memory.
// Wrong: the three share their storage, and there is no barrier between the first and the second.
// x: (gridDim.x, 256), y: the same, sorted; block: 64
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_store.cuh>

template <bool WAITS>
__device__ __forceinline__ void sort(const int* x, int* y) {
    using Load = cub::BlockLoad<int, 64, 4, cub::BLOCK_LOAD_TRANSPOSE>;
    using Sort = cub::BlockRadixSort<int, 64, 4>;
    using Store = cub::BlockStore<int, 64, 4, cub::BLOCK_STORE_TRANSPOSE>;
    __shared__ union {
        typename Load::TempStorage load;
        typename Sort::TempStorage sort;
        typename Store::TempStorage store;
    } storage;
    int values[4];
    Load(storage.load).Load(x + blockIdx.x * 256, values);  // OTHER
    if (WAITS) __syncthreads();
    Sort(storage.sort).Sort(values);  // BUG
    __syncthreads();
    Store(storage.store).Store(y + blockIdx.x * 256, values);
}

__global__ void wrong(const int* x, int* y) {
    sort<false>(x, y);
}

__global__ void right(const int* x, int* y) {
    sort<true>(x, y);
}
