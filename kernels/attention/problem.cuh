// Shared by the kernels of this folder: their parameters, and which keys a query sees.
//
// Parameters, all rungs: q (batch, heads, sq, d), k and v (batch, heads / group, skv, d), o as q; strides in elements
// of the first three axes, the last one is contiguous; `group` query heads share a key head; `scale`, the factor on the
// scores; `causal`: query i sees the keys up to i + skv - sq, so that the last query sees them all whichever of sq and
// skv is more. (torch's is_causal lines up the first query and the first key instead: the same mask only where sq =
// skv.)
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../common/numbers.cuh"

// More keys than there are, with room to count on.
constexpr int kNoLimit = 0x7f000000;

// The strides of one operand, in elements.
struct HeadStrides {
    int64 batch, head, row;
};

// A (batch, query head) and the head of keys that belongs to it.
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

// How many keys, from the first, query `row` sees under the causal limit, though there may be fewer. 0 or less: none,
// and its output is 0.
__device__ __forceinline__ int key_limit(int row, int sq, int skv, bool causal) {
    return causal ? row + 1 + (skv - sq) : kNoLimit;
}

// How many keys the query sees.
__device__ __forceinline__ int keys_seen(int row, int sq, int skv, bool causal) {
    return max(min(key_limit(row, sq, skv, causal), skv), 0);
}
