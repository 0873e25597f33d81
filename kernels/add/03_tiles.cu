// c = a + b if an operand is transposed: that operand is read along its own contiguous axis and transposed in shared
// memory.
//
// `along` is c's fastest axis; `across` is the axis along which the transposed operand has its smallest stride. A block
// of TILE x ROWS threads computes TILE x TILE elements. Neighbouring lanes read the transposed operand along `across`;
// one float of padding per tile row avoids bank conflicts when the tile is read by columns. Other operands are read
// directly. TURN_A and TURN_B say which operand is transposed.
//
// Bottleneck: two barriers and a pass through shared memory per tile. Blocks wait at the barriers, so __launch_bounds__
// requests 8 resident blocks of 256 threads: an eighth to a quarter faster on an H200.
#include "../common/numbers.cuh"

// a_k, b_k, c_k: strides over n0 x n1 outer axes, `across` and `along` (the last axis); block: (TILE, ROWS);
// grid: (ceil(along / TILE), at most 65535 of ceil(across / TILE), at most 65535 of n0 * n1)
template <int TILE, int ROWS, int TURN_A, int TURN_B>
__global__ void __launch_bounds__(TILE* ROWS, 8) broadcast_tiles(const float* a, const float* b, float* c, int64 a_0,
    int64 a_1, int64 a_across, int64 a_along, int64 b_0, int64 b_1, int64 b_across, int64 b_along, int64 c_0, int64 c_1,
    int64 c_across, int64 c_along, uint64 n0, uint64 n1, int64 across, int64 along) {
    static_assert(TILE == kWarp && TILE % ROWS == 0, "a warp reads a row of a tile, and a thread TILE / ROWS of them");
    static_assert(TURN_A || TURN_B, "rows are for operands that are not transposed");
    __shared__ float a_tile[TURN_A ? TILE : 1][TILE + 1], b_tile[TURN_B ? TILE : 1][TILE + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int64 left = static_cast<int64>(blockIdx.x) * TILE;

#pragma unroll 1
    for (uint64 sheet = blockIdx.z; sheet < n0 * n1; sheet += gridDim.z) {
        const int64 i0 = sheet / n1, i1 = sheet - i0 * n1;
        const float *from_a = a + i0 * a_0 + i1 * a_1, *from_b = b + i0 * b_0 + i1 * b_1;
        float* to = c + i0 * c_0 + i1 * c_1;
#pragma unroll 1
        for (int64 top = static_cast<int64>(blockIdx.y) * TILE; top < across;
            top += static_cast<int64>(gridDim.y) * TILE) {
            // Load transposed operands to tiles and the others to registers before the barrier: more loads in flight.
            const float *turn_a = from_a + (top + tx) * a_across + (left + ty) * a_along,
                        *turn_b = from_b + (top + tx) * b_across + (left + ty) * b_along,
                        *next_a = from_a + (top + ty) * a_across + (left + tx) * a_along,
                        *next_b = from_b + (top + ty) * b_across + (left + tx) * b_along;
            float x[TILE / ROWS], y[TILE / ROWS];
#pragma unroll
            for (int k = 0; k < TILE / ROWS; ++k) {
                const int j = ty + k * ROWS;
                if (top + tx < across && left + j < along) {
                    if (TURN_A) a_tile[j][tx] = turn_a[k * ROWS * a_along];
                    if (TURN_B) b_tile[j][tx] = turn_b[k * ROWS * b_along];
                }
                if (left + tx < along && top + j < across) {
                    if (!TURN_A) x[k] = next_a[k * ROWS * a_across];
                    if (!TURN_B) y[k] = next_b[k * ROWS * b_across];
                }
            }
            __syncthreads();
            float* at = to + (top + ty) * c_across + (left + tx) * c_along;
#pragma unroll
            for (int k = 0; k < TILE / ROWS; ++k) {
                const int j = ty + k * ROWS;
                if (left + tx < along && top + j < across)
                    at[k * ROWS * c_across] = (TURN_A ? a_tile[tx][j] : x[k]) + (TURN_B ? b_tile[tx][j] : y[k]);
            }
            __syncthreads();
        }
    }
}
