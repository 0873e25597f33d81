// Shared by the kernels of this folder: their parameters, and which keys a query sees.
//
// Parameters of all variants: q (batch, heads, sq, d), k and v (batch, heads / group, skv, d), o like q; strides in
// elements of the first three axes, the last is contiguous; `group` query heads share a key head; `scale`
// multiplies the scores; `causal`: query i sees the keys up to i + skv - sq, so the last query sees all keys,
// whether sq or skv is larger. (torch's is_causal aligns the first query with the first key: the masks are equal
// only if sq = skv.)
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../common/numbers.cuh"

// More keys than any problem has; additions to it do not overflow.
constexpr int kNoLimit = 0x7f000000;

// The strides of one operand, in elements.
struct HeadStrides {
    int64 batch, head, row;
};

// A batch, a query head and its key head.
struct Head {
    int batch, query, key;

    // number: 0 to batches * heads - 1, heads fastest
    __device__ __forceinline__ Head(int number, int heads, int group)
        : batch(number / heads),         // 0 .. batches - 1
          query(number % heads),         // 0 .. heads - 1
          key(number % heads / group) {  // 0 .. heads / group - 1
    }

    template <class T>
    __device__ __forceinline__ T* queries(T* base, HeadStrides s) const {
        return base + batch * s.batch + query * s.head;
    }
    template <class T>
    __device__ __forceinline__ T* keys(T* base, HeadStrides s) const {
        return base + batch * s.batch + key * s.head;
    }
};

// The causal mask of query `row`: it sees the keys below this number. If the number is 0 or less, it sees no key
// and its output is 0.
__device__ __forceinline__ int key_limit(int row, int sq, int skv, bool causal) {
    return causal ? row + 1 + (skv - sq) : kNoLimit;
}

// How many keys the query sees.
__device__ __forceinline__ int keys_seen(int row, int sq, int skv, bool causal) {
    return max(min(key_limit(row, sq, skv, causal), skv), 0);
}
