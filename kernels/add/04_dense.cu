// c = a + b over rows, as one run of memory: four elements a thread, wherever rows begin and end.
//
// a and c are (rows, cols), contiguous, and start on 16 bytes; b is one row for all of them (B = 1, b_row = 0), or one
// value a row (B = 0), or a row for each row (B = 1). A thread works out its row once, by one division, and steps into
// the next row where its four elements cross the end of one. So short rows and rows of odd lengths cost no more than
// others, which is what the dealing of whole rows cannot give. Number: uint32 for up to 2^31 elements, or uint64.
//
// Bound by: memory.
#include "../common/numbers.cuh"

// b_row: b's stride over rows; grid: ceil(ceil(rows * cols / 4) / blockDim.x), any 1-D block
template <class Number, int B>
__global__ void broadcast_dense(const float* a, const float* b, float* c, int64 b_row, Number n, Number cols) {
    const Number first = static_cast<Number>(global_thread()) * 4;
    if (first >= n) return;
    const bool whole = first + 4 <= n;
    // a's vector first: it must not wait for b's value, whose place takes a division to find
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
