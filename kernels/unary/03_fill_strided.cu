// y = value over four axes with any strides. The value is passed as its bits: one kernel for all types of U's size.
//
// The axes are ordered by y's strides, slowest first. The grid has a fixed size and uses a grid-stride loop.
//
// Bottleneck: the divisions that find an element's indices. The next variant is for contiguous arrays.
#include "../common/places.cuh"

// y_k: strides over axis k of n0 x n1 x n2 x n3; any 1-D grid and
// block; Number: uint32 if there are at most 2^31 elements, else uint64
template <class U, class Number>
__global__ void fill_strided(
    U* y, int64 y_0, int64 y_1, int64 y_2, int64 y_3, Number n0, Number n1, Number n2, Number n3, uint64 bits) {
    const Number n = n0 * n1 * n2 * n3;
    for (Number number = global_thread(); number < n; number += global_threads()) {
        const Place at = place_of(number, n1, n2, n3);
        y[at.by(y_0, y_1, y_2, y_3)] = static_cast<U>(bits);
    }
}
