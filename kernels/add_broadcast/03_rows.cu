// out[x, y, z] = volume[x, y, z] + plane[x, y] + line[x], a row of z to a group of lanes.
//
// volume and out are (nx, ny, nz) with z contiguous, plane (nx, ny), line (nx,); other strides are any, in elements;
// out may be volume. LANES lanes share a row and read its two scalars once; each has DEEP vectors of VEC floats in
// flight. A long row is split into pieces of LANES * DEEP vectors. VEC 4 needs every row of volume and out to lie alike
// against the 16-byte boundaries (not on one); VEC 1 takes any.
//
// Bound by: memory, at 8 bytes an element: volume once, out once. Rows of a few floats leave lanes without work, and
// odd ones leave the vectors; the next rung is for those.
#include "../common/row_pieces.cuh"

struct Shifted {
    const float* row;
    float plane, line;

    // volume + plane first: the order in which the sum is written
    template <int N>
    __device__ __forceinline__ Floats<N> get(int64 i) const {
        Floats<N> v = load_floats<N>(row + i);
#pragma unroll
        for (int k = 0; k < N; ++k) v.at[k] = v.at[k] + plane + line;
        return v;
    }
};

// pieces: a row; grid: enough threads for nx * ny * pieces groups of LANES, block: a multiple of LANES
template <int VEC, int LANES, int DEEP>
__global__ void add_rows(const float* volume, const float* plane, const float* line, float* out, int64 v_x, int64 v_y,
    int64 p_x, int64 p_y, int64 l_x, int64 o_x, int64 o_y, int64 nx, int64 ny, int64 nz, int64 pieces) {
    static_assert(LANES >= 1 && LANES <= kWarp && (LANES & (LANES - 1)) == 0, "a power of two of lanes");
    const uint64 group = static_cast<uint64>(global_thread()) / LANES;
    const uint64 row = pieces == 1 ? group : group / pieces;
    const int64 piece = static_cast<int64>(group - row * pieces);
    const int64 x = static_cast<int64>(row / static_cast<uint64>(ny)), y = static_cast<int64>(row) - x * ny;
    if (x >= nx) return;
    const Shifted value{volume + x * v_x + y * v_y, plane[x * p_x + y * p_y], line[x * l_x]};
    write_piece<VEC, LANES, DEEP>(out + x * o_x + y * o_y, nz, piece, value);
}
