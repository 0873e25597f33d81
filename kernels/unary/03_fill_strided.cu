// y = value over four axes of any strides, the value given as its bits: one kernel for every type of U's size.
//
// The axes are slowest first in y. The grid is fixed and strides over the elements.
//
// Bound by: the divisions that find an element's place. The next rung is for contiguous arrays.
#include "../common/places.cuh"

// y_k: strides over axis k of n0 x n1 x n2 x n3; any 1-D grid and
// block; Number: uint32 for up to 2^31 elements, or uint64
template <class U, class Number>
__global__ void fill_strided(
    U* y, int64 y_0, int64 y_1, int64 y_2, int64 y_3, Number n0, Number n1, Number n2, Number n3, uint64 bits) {
    const Number n = n0 * n1 * n2 * n3;
    for (Number number = global_thread(); number < n; number += global_threads()) {
        const Place at = place_of(number, n1, n2, n3);
        y[at.by(y_0, y_1, y_2, y_3)] = static_cast<U>(bits);
    }
}
