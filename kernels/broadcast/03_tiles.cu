// c = a + b where an operand is transposed: it is read along its own rows and turned in shared memory.
//
// The last axis is c's fastest; along axis `across` (the grid's tiles take both) the transposed operand's steps are
// smallest. A block of 32x8 threads takes 32x32 elements: an operand that is transposed is read with neighbouring lanes
// along `across`, and put down with one float of padding a row, so that 32 lanes that read a column of the tile meet 32
// banks. Other operands are read where they are used. TURN_A and TURN_B say which is transposed.
//
// Bound by: memory, as the rows are; two barriers and a round trip through shared memory a tile.
#include "../common/numbers.cuh"

constexpr int kTile = 32, kRows = 8;

// a_k, b_k, c_k: strides over n0 x n1 outer axes, `across` and `along` (the last one); block: (32, 8);
// grid: (ceil(along / 32), at most 65535 of ceil(across / 32), at most 65535 of n0 * n1)
template <int TURN_A, int TURN_B>
__global__ void __launch_bounds__(kTile* kRows) broadcast_tiles(const float* a, const float* b, float* c, int64 a_0,
    int64 a_1, int64 a_across, int64 a_along, int64 b_0, int64 b_1, int64 b_across, int64 b_along, int64 c_0, int64 c_1,
    int64 c_across, int64 c_along, uint64 n0, uint64 n1, int64 across, int64 along) {
    static_assert(TURN_A || TURN_B, "rows are for operands that are not transposed");
    __shared__ float a_tile[TURN_A ? kTile : 1][kTile + 1], b_tile[TURN_B ? kTile : 1][kTile + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int64 left = static_cast<int64>(blockIdx.x) * kTile;

#pragma unroll 1
    for (uint64 sheet = blockIdx.z; sheet < n0 * n1; sheet += gridDim.z) {
        const int64 i0 = sheet / n1, i1 = sheet - i0 * n1;
        const float *from_a = a + i0 * a_0 + i1 * a_1, *from_b = b + i0 * b_0 + i1 * b_1;
        float* to = c + i0 * c_0 + i1 * c_1;
#pragma unroll 1
        for (int64 top = static_cast<int64>(blockIdx.y) * kTile; top < across;
            top += static_cast<int64>(gridDim.y) * kTile) {
            // Transposed operands go to the tiles, the others to registers, all before the barrier: more loads in
            // flight.
            const float *turn_a = from_a + (top + tx) * a_across + (left + ty) * a_along,
                        *turn_b = from_b + (top + tx) * b_across + (left + ty) * b_along,
                        *next_a = from_a + (top + ty) * a_across + (left + tx) * a_along,
                        *next_b = from_b + (top + ty) * b_across + (left + tx) * b_along;
            float x[kTile / kRows], y[kTile / kRows];
#pragma unroll
            for (int k = 0; k < kTile / kRows; ++k) {
                const int j = ty + k * kRows;
                if (top + tx < across && left + j < along) {
                    if (TURN_A) a_tile[j][tx] = turn_a[k * kRows * a_along];
                    if (TURN_B) b_tile[j][tx] = turn_b[k * kRows * b_along];
                }
                if (left + tx < along && top + j < across) {
                    if (!TURN_A) x[k] = next_a[k * kRows * a_across];
                    if (!TURN_B) y[k] = next_b[k * kRows * b_across];
                }
            }
            __syncthreads();
            float* at = to + (top + ty) * c_across + (left + tx) * c_along;
#pragma unroll
            for (int k = 0; k < kTile / kRows; ++k) {
                const int j = ty + k * kRows;
                if (left + tx < along && top + j < across)
                    at[k * kRows * c_across] = (TURN_A ? a_tile[tx][j] : x[k]) + (TURN_B ? b_tile[tx][j] : y[k]);
            }
            __syncthreads();
        }
    }
}
