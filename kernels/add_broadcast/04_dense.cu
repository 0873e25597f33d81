// out[x, y, z] = volume[x, y, z] + plane[x, y] + line[x] as one flat array: four elements per thread.
//
// volume and out are (nx, ny, nz), contiguous and 16-byte aligned; plane (nx, ny) and line (nx,) have any strides, in
// elements; out may be volume. A thread finds x and y with two divisions and moves to the next row if a row ends within
// its elements: rows of three floats cost no more than long ones. Number: uint32 if there are at most 2^31 elements,
// else uint64.
//
// Bottleneck: memory bandwidth; for short rows, the 8 bytes of plane and line per row.
#include "../common/numbers.cuh"

// grid: ceil(ceil(nx * ny * nz / 4) / blockDim.x), any 1-D block
template <class Number>
__global__ void add_dense(const float* volume, const float* plane, const float* line, float* out, int64 p_x, int64 p_y,
    int64 l_x, Number n, Number ny, Number nz) {
    const Number first = static_cast<Number>(global_thread()) * 4;
    if (first >= n) return;
    const bool whole = first + 4 <= n;
    float4 p = {};
    if (whole) p = reinterpret_cast<const float4*>(volume)[first / 4];
    const Number row = first / nz;
    Number x = row / ny, y = row - x * ny, z = first - row * nz;
    float s = plane[x * p_x + y * p_y], t = line[x * l_x];
    float* each = &p.x;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if (!whole && first + k < n) each[k] = volume[first + k];
        each[k] = each[k] + s + t;
        if (++z == nz && first + k + 1 < n) {
            z = 0;
            if (++y == ny) {
                y = 0;
                t = line[++x * l_x];
            }
            s = plane[x * p_x + y * p_y];
        }
    }
    if (whole) {
        reinterpret_cast<float4*>(out)[first / 4] = p;
    } else {
#pragma unroll
        for (int k = 0; k < 3; ++k)
            if (first + k < n) out[first + k] = each[k];
    }
}
