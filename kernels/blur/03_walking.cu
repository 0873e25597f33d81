// 3 x 3 Gaussian blur, one warp per strip of 128 columns: it walks down the strip with three row sums in registers.
//
// Parameters as in 01_naive.cu, for contiguous columns, cols a multiple of 4, and 16-byte aligned rows.
//
// The filter is (1 2 1) across times (1 2 1) down, so each row is summed across once and used for three outputs. A lane
// has four columns, 16 bytes per load. The adjacent columns come from the neighbouring lanes, and at the strip's ends
// from memory.
//
// Bottleneck: memory bandwidth, 8 bytes per pixel plus two extra rows per strip of ROWS rows.
#include "border.cuh"

// grid: ceil(strips of all images / warps of a block), block: a multiple of 32
template <int BORDER, int ROWS>
__global__ void __launch_bounds__(256) walking(const float* x, float* y, int64 images, int64 rows, int64 cols,
    int64 x_image, int64 x_row, int64 x_col, int64 y_image, int64 y_row, int64 y_col) {
    constexpr int kColumns = 4 * kWarp;
    const int lane = threadIdx.x % kWarp;
    const int64 strip = (static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
    const int64 across = (cols + kColumns - 1) / kColumns, down = (rows + ROWS - 1) / ROWS;
    if (strip >= across * down * images) return;  // whole warps
    const int64 c = strip % across * kColumns + lane * 4, r0 = strip / across % down * ROWS;
    const int64 image = strip / across / down, last = r0 + ROWS < rows ? r0 + ROWS : rows;
    x += image * x_image;
    y += image * y_image;

    // A lane's part of row r, which may be one row outside the image: its four columns, and for the strip's first and
    // last lane the adjacent column. It is loaded one row before its use.
    const int64 beside = lane == 0 ? c - 1 : lane == kWarp - 1 && c + 4 < cols ? c + 4 : -1;
    struct Piece {
        float4 v;
        float end;
    };
    const auto bring = [&](int64 r) {
        const int64 at = inside<BORDER>(r, rows);
        Piece piece = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), 0.0f};
        const float* from = x + at * x_row;
        if (at >= 0 && c < cols) piece.v = *reinterpret_cast<const float4*>(from + c);
        if (at >= 0 && c < cols && beside >= 0) piece.end = from[beside];
        return piece;
    };
    // The weights add up to 1, so intermediate sums cannot overflow.
    const auto mix = [](float a, float b, float d) { return 0.25f * a + 0.5f * b + 0.25f * d; };
    // Sums across a row. Every lane must call it, for the shuffles.
    const auto across_row = [&](const Piece& piece) {
        const float4 v = piece.v;
        float left = __shfl_up_sync(kAllLanes, v.w, 1), right = __shfl_down_sync(kAllLanes, v.x, 1);
        if (lane == 0) left = piece.end;
        if (lane == kWarp - 1) right = piece.end;
        if (c == 0) left = BORDER == ZERO ? 0.0f : BORDER == CLAMP ? v.x : v.y;
        if (c + 4 == cols) right = BORDER == ZERO ? 0.0f : BORDER == CLAMP ? v.w : v.z;
        return make_float4(mix(left, v.x, v.y), mix(v.x, v.y, v.z), mix(v.y, v.z, v.w), mix(v.z, v.w, right));
    };

    float4 above = across_row(bring(r0 - 1)), here = across_row(bring(r0));
    Piece next = bring(r0 + 1);
#pragma unroll 4
    for (int64 r = r0; r < last; ++r) {
        const float4 below = across_row(next);
        if (r + 1 < last) next = bring(r + 2);
        if (c < cols)
            *reinterpret_cast<float4*>(y + r * y_row + c) = make_float4(mix(above.x, here.x, below.x),
                mix(above.y, here.y, below.y), mix(above.z, here.z, below.z), mix(above.w, here.w, below.w));
        above = here;
        here = below;
    }
}
