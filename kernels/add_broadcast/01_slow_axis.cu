// out[x, y, z] = volume[x, y, z] + plane[x, y] + line[x], blocks of 4x4x4 with threadIdx.x along x, the slowest axis.
//
// volume and out are (nx, ny, nz), plane (nx, ny), line (nx,), any strides in elements; out may be volume. Index
// products are 64-bit: 1300^3 elements exceed 2^31. The grid's y and z have at most 65,535 blocks; grid-stride loops
// cover the rest.
//
// Bottleneck: uncoalesced access. x is the slowest axis in memory, but neighbouring lanes differ in threadIdx.x. A
// warp's 32 elements (4 in x, 4 in y, 2 in z) are in 16 rows, two floats in each, so a request touches 16 sectors of 32
// bytes instead of 4. The next variant only swaps the axes.
#include "../common/numbers.cuh"

// grid: (ceil(nx / bx), at most 65535 of ceil(ny / by) and of ceil(nz / bz)), block: (bx, by, bz)
__global__ void slow_axis(const float* volume, const float* plane, const float* line, float* out, int64 v_x, int64 v_y,
    int64 v_z, int64 p_x, int64 p_y, int64 l_x, int64 o_x, int64 o_y, int64 o_z, int64 nx, int64 ny, int64 nz) {
    const int64 x = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (x >= nx) return;
    const int64 y_step = static_cast<int64>(gridDim.y) * blockDim.y,
                z_step = static_cast<int64>(gridDim.z) * blockDim.z;
#pragma unroll 1
    for (int64 y = static_cast<int64>(blockIdx.y) * blockDim.y + threadIdx.y; y < ny; y += y_step)
#pragma unroll 1
        for (int64 z = static_cast<int64>(blockIdx.z) * blockDim.z + threadIdx.z; z < nz; z += z_step)
            out[x * o_x + y * o_y + z * o_z] =
                volume[x * v_x + y * v_y + z * v_z] + plane[x * p_x + y * p_y] + line[x * l_x];
}
