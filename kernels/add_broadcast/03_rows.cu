// out[x, y, z] = volume[x, y, z] + plane[x, y] + line[x]; LANES neighbouring lanes share a row of z.
//
// volume and out are (nx, ny, nz) with z contiguous, plane (nx, ny), line (nx,); the other strides are arbitrary, in
// elements; out may be volume. The row's two scalars are read once. Each lane has DEEP vectors of VEC floats in flight;
// a longer row is split into pieces of LANES * DEEP vectors. VEC = 4 needs all rows of volume and out to have the same
// offset from a 16-byte boundary; VEC = 1 has no such limit.
//
// Bottleneck: memory bandwidth, 8 bytes per element. Rows of a few floats leave lanes idle, and odd-length rows need
// scalar accesses; the next variant handles both.
#include "../common/row_pieces.cuh"

struct Shifted {
    const float* row;
    float plane, line;

    // volume + plane first: the reference adds in this order
    template <int N>
    __device__ __forceinline__ Floats<N> get(int64 i) const {
        Floats<N> v = load_floats<N>(row + i);
#pragma unroll
        for (int k = 0; k < N; ++k) v.at[k] = v.at[k] + plane + line;
        return v;
    }
};

// pieces: pieces per row; grid: at least nx * ny * pieces groups of LANES threads, block: a multiple of LANES
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
