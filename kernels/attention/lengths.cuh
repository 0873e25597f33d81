// How many queries and keys a batch entry has: as many as the arrays, or a number of its own from an array of lengths.
#pragma once
#include "../common/numbers.cuh"

// Every entry has all queries and keys.
struct SameLengths {
    static __device__ __forceinline__ constexpr bool differ() { return false; }

    __device__ __forceinline__ void read(int batch, int& queries, int& keys) const {}
};

// Entry b has lengths[b * step] queries and lengths[b * step + to_keys] keys. Its other rows are not read; the outputs
// of its other queries are 0. Numbers outside 0 .. the arrays' extents count as the nearest of these.
struct OwnLengths {
    static __device__ __forceinline__ constexpr bool differ() { return true; }
    const int* lengths;
    int64 step, to_keys;

    __device__ __forceinline__ void read(int batch, int& queries, int& keys) const {
        const int* const own = lengths + batch * step;
        queries = min(max(own[0], 0), queries);
        keys = min(max(own[to_keys], 0), keys);
    }
};
