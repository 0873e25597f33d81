// Keeps 16-bit elements in registers as they were loaded.
#pragma once

// Makes the compiler convert the elements of `piece` again at their next use: the floats that it would keep of them
// take twice the registers.
template <class PIECE>
__device__ __forceinline__ void forget_conversions(PIECE& piece) {
    static_assert(sizeof(PIECE) == 16, "four registers");
    uint4& words = reinterpret_cast<uint4&>(piece);
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
}
