// c = a + b over four axes with any strides: one thread per element, in the order of c's memory.
//
// The axes are ordered by c's strides, slowest first. A stride of 0 repeats an operand along that axis, which is how
// broadcasting works. Transposed and reversed views need no special case. The grid has a fixed size and uses a
// grid-stride loop.
//
// Bottleneck: three integer divisions per element to find its indices, and uncoalesced reads of an operand whose last
// stride is not 0 or 1. The next variant finds the indices once per row.
#include "../common/places.cuh"

// a_k, b_k, c_k: strides over axis k of n0 x n1 x n2 x n3; any 1-D grid and
// block; Number: uint32 if there are at most 2^31 elements, else uint64
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
