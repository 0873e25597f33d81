// c = a + b over a volume (nx, ny, nz), x fastest: one thread per element, 3-D blocks.
//
// a, b, c hold nx * ny * nz floats; element (x, y, z) is at (z * ny + y) * nx + x. A grid is limited to 65,535 blocks
// along y and z (2^31 - 1 along x), so y and z use grid-stride loops and a volume of any shape is covered. `#pragma
// unroll 1`: the loops mostly run once, and unrolling would compute trip counts with 64-bit divisions.
//
// Bottleneck: memory bandwidth, as in one dimension. But a block of 16x8x8 has rows of 16 floats, so a warp reads two
// segments of 64 bytes instead of one of 128, and the index costs more instructions. Choose the block's shape by the
// memory layout, not by the problem's axes.
#include "../common/numbers.cuh"

// a, b, c: (nz, ny, nx); grid: ceil(nx / bx), at most 65535 of ceil(ny / by), ceil(nz / bz), block: (bx, by, bz)
__global__ void vector_add_3d(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int64 nx, int64 ny, int64 nz) {
    const int64 x = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (x >= nx) return;
#pragma unroll 1
    for (int64 z = static_cast<int64>(blockIdx.z) * blockDim.z + threadIdx.z; z < nz; z += gridDim.z * blockDim.z)
#pragma unroll 1
        for (int64 y = static_cast<int64>(blockIdx.y) * blockDim.y + threadIdx.y; y < ny; y += gridDim.y * blockDim.y) {
            const int64 i = (z * ny + y) * nx + x;
            c[i] = a[i] + b[i];
        }
}
