// y = f(x) over four axes with any strides: one thread per element, in the order of y's memory.
//
// f is a map of maps.cuh with one parameter; y may be x. The axes are ordered by y's strides, slowest first. The grid
// has a fixed size and uses a grid-stride loop.
//
// Bottleneck: the divisions that find an element's indices, and accesses of 2 or 4 bytes per lane. The next variant is
// for contiguous arrays: no divisions, 16 bytes per lane.
#include "../common/places.cuh"
#include "maps.cuh"

// x_k, y_k: strides over axis k of n0 x n1 x n2 x n3; any 1-D grid and
// block; Number: uint32 if there are at most 2^31 elements, else uint64
template <class X, class Y, class Map, class Number>
__global__ void map_strided(const X* x, Y* y, int64 x_0, int64 x_1, int64 x_2, int64 x_3, int64 y_0, int64 y_1,
    int64 y_2, int64 y_3, Number n0, Number n1, Number n2, Number n3, float parameter) {
    const Map map{parameter};
    const Number n = n0 * n1 * n2 * n3;
    for (Number number = global_thread(); number < n; number += global_threads()) {
        const Place at = place_of(number, n1, n2, n3);
        y[at.by(y_0, y_1, y_2, y_3)] = map(x[at.by(x_0, x_1, x_2, x_3)]);
    }
}
