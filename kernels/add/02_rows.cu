// c = a + b over four axes: LANES neighbouring lanes share a row of the last axis, find its address once and move
// vectors.
//
// Along the last axis c and a are contiguous; b is contiguous (B = 1) or one value (B = 0). The other strides are
// arbitrary. Each lane moves DEEP vectors of VEC floats; longer rows are split into pieces. VEC = 4 needs all rows of
// all arrays to have the same offset from a 16-byte boundary; VEC = 1 has no such limit.
//
// Bottleneck: memory bandwidth. It does not accept a transposed operand (see 03_tiles.cu), and short or odd-length rows
// are slow (see 04_dense.cu).
#include "../common/row_pieces.cuh"

template <int B>
struct Sum {
    static_assert(B == 0 || B == 1, "b is one value per row, or contiguous");
    const float *a, *b;

    template <int N>
    __device__ __forceinline__ Floats<N> get(int64 i) const {
        Floats<N> v = load_floats<N>(a + i);
        const Floats<B ? N : 1> w = load_floats<B ? N : 1>(b + B * i);
#pragma unroll
        for (int k = 0; k < N; ++k) v.at[k] += w.at[B * k];
        return v;
    }
};

// a_k, b_k, c_k: strides over axis k of n0 x n1 x n2 x cols; pieces: pieces per row;
// grid: at least n0 * n1 * n2 * pieces groups of LANES threads, block: a multiple of LANES
template <int VEC, int LANES, int DEEP, int B>
__global__ void broadcast_rows(const float* a, const float* b, float* c, int64 a_0, int64 a_1, int64 a_2, int64 b_0,
    int64 b_1, int64 b_2, int64 c_0, int64 c_1, int64 c_2, uint64 n0, uint64 n1, uint64 n2, int64 cols, uint64 pieces) {
    static_assert(LANES >= 1 && LANES <= kWarp && (LANES & (LANES - 1)) == 0, "a power of two of lanes");
    const uint64 group = static_cast<uint64>(global_thread()) / LANES;
    const uint64 row = pieces == 1 ? group : group / pieces;
    const uint64 sheet = n2 == 1 ? row : row / n2, i0 = n1 == 1 ? sheet : sheet / n1;
    if (i0 >= n0) return;
    const int64 i2 = row - sheet * n2, i1 = sheet - i0 * n1, piece = group - row * pieces;
    const Sum<B> value{a + i0 * a_0 + i1 * a_1 + i2 * a_2, b + i0 * b_0 + i1 * b_1 + i2 * b_2};
    write_piece<VEC, LANES, DEEP>(c + i0 * c_0 + i1 * c_1 + i2 * c_2, cols, piece, value);
}
