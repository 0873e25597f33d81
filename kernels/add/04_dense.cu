// c = a + b for contiguous arrays, treated as one flat array: four elements per thread, regardless of row boundaries.
//
// a and c are (rows, cols), contiguous and 16-byte aligned. b is one row for all rows (B = 1, b_row = 0), one value per
// row (B = 0), or a row for each row (B = 1). A thread finds its row with one division and moves to the next row if a
// row ends within its four elements. So short rows and rows of odd length cost no more than others, unlike in
// 02_rows.cu. Number: uint32 if there are at most 2^31 elements, else uint64.
//
// Bottleneck: memory bandwidth.
#include "../common/numbers.cuh"

// b_row: b's stride over rows; grid: ceil(ceil(rows * cols / 4) / blockDim.x), any 1-D block
template <class Number, int B>
__global__ void broadcast_dense(const float* a, const float* b, float* c, int64 b_row, Number n, Number cols) {
    const Number first = static_cast<Number>(global_thread()) * 4;
    if (first >= n) return;
    const bool whole = first + 4 <= n;
    // Load a first: b's address needs a division, and a's load should not wait for it.
    float4 p = {};
    if (whole) p = reinterpret_cast<const float4*>(a)[first / 4];
    const Number row = first / cols;
    Number col = first - row * cols;
    const float* from = b + row * b_row;
    float4 q = {};
    float* each = &q.x;
    if (col + 4 <= cols && (B == 0 || reinterpret_cast<uint64>(from + col) % 16 == 0)) {
        if (B == 0)
            q.x = q.y = q.z = q.w = *from;
        else
            q = *reinterpret_cast<const float4*>(from + col);
    } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (first + k < n) each[k] = from[B * static_cast<int64>(col)];
            if (++col == cols) {
                col = 0;
                from += b_row;
            }
        }
    }
    if (whole) {
        reinterpret_cast<float4*>(c)[first / 4] = make_float4(p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w);
    } else {
#pragma unroll
        for (int k = 0; k < 3; ++k)
            if (first + k < n) c[first + k] = a[first + k] + each[k];
    }
}
