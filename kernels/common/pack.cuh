// N elements that are loaded and stored together, in accesses of at most 16 bytes.
#pragma once

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
    T at[N];
};
