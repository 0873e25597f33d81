// c = a + b over four axes of any strides: one thread an element at a time, in the order of c's memory.
//
// The axes are slowest first in c; a stride of 0 repeats its operand along the axis. That is the whole of broadcasting,
// and of views that are transposed or run backwards. The grid is fixed and strides over the elements.
//
// Bound by: three divisions an element to find its place, and by uncoalesced reads of an operand whose last stride is
// not 1 or 0. The next rung finds the place once a row.
#include "../common/places.cuh"

// a_k, b_k, c_k: strides over axis k of n0 x n1 x n2 x n3; any 1-D grid and
// block; Number: uint32 for up to 2^31 elements, or uint64
template <class Number>
__global__ void broadcast_strided(const float* a, const float* b, float* c, int64 a_0, int64 a_1, int64 a_2, int64 a_3,
    int64 b_0, int64 b_1, int64 b_2, int64 b_3, int64 c_0, int64 c_1, int64 c_2, int64 c_3, Number n0, Number n1,
    Number n2, Number n3) {
    const Number n = n0 * n1 * n2 * n3;
    for (Number number = global_thread(); number < n; number += global_threads()) {
        const Place at = place_of(number, n1, n2, n3);
        c[at.by(c_0, c_1, c_2, c_3)] = a[at.by(a_0, a_1, a_2, a_3)] + b[at.by(b_0, b_1, b_2, b_3)];
    }
}
