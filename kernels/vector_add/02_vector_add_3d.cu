// c = a + b over a flat volume (nx, ny, nz), x fastest: one thread an element, 3-D blocks.
//
// a, b, c hold nx * ny * nz floats, element (x, y, z) at (z * ny + y) * nx + x. The grid's y and z stop at 65,535
// blocks (x at 2^31 - 1), so y and z go on in strides of the grid: a volume of any shape is covered. (Loops that mostly
// run once are not unrolled: their trip counts would be worked out first, by 64-bit divisions.)
//
// Bound by: memory, as in one dimension; a block of 16x8x8 has rows of 16 floats, so a warp touches two row segments
// of 64 bytes instead of one of 128, and the index costs more instructions. The lesson is that the shape of the block
// should follow memory, not the problem's axes.
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
