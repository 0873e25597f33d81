// out[x, y, z] = volume[x, y, z] + plane[x, y] + line[x], threadIdx.x along z: neighbouring lanes read neighbouring
// floats.
//
// Parameters as in 01_slow_axis.cu. The block is 32x4x2: a warp reads 32 consecutive floats in z, 128 bytes, whole
// sectors.
//
// Bottleneck: memory bandwidth. But each element reads its plane and line value again (from L1) and computes three
// index products. The next variant reads both values once per row and moves 16 bytes per lane.
#include "../common/numbers.cuh"

// grid: (ceil(nz / bx), at most 65535 of ceil(ny / by) and of ceil(nx / bz)), block: (bx, by, bz)
__global__ void coalesced(const float* volume, const float* plane, const float* line, float* out, int64 v_x, int64 v_y,
    int64 v_z, int64 p_x, int64 p_y, int64 l_x, int64 o_x, int64 o_y, int64 o_z, int64 nx, int64 ny, int64 nz) {
    const int64 z = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (z >= nz) return;
    const int64 y_step = static_cast<int64>(gridDim.y) * blockDim.y,
                x_step = static_cast<int64>(gridDim.z) * blockDim.z;
#pragma unroll 1
    for (int64 x = static_cast<int64>(blockIdx.z) * blockDim.z + threadIdx.z; x < nx; x += x_step)
#pragma unroll 1
        for (int64 y = static_cast<int64>(blockIdx.y) * blockDim.y + threadIdx.y; y < ny; y += y_step)
            out[x * o_x + y * o_y + z * o_z] =
                volume[x * v_x + y * v_y + z * v_z] + plane[x * p_x + y * p_y] + line[x * l_x];
}
