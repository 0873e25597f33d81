// Fourier transforms of rows that one block cannot hold, N = A B values, in two launches.
//
// A row is a matrix of A rows and B columns, value a B + b in row a. This launch transforms the columns, multiplies
// value (k, b) by e^(-2 pi i k b/N), and stores the transposed matrix. The transforms of that matrix's columns
// (long_rows) are the result: value j A + k in row j.
//
// x: (outer, inner, N), with strides in elements; transposed: (outer * inner, B, A), contiguous, complex float. The
// plan transforms A values in each of ROWS neighbouring columns. Dynamic shared memory: the plan's, but at least A
// (ROWS + 1) values.
//
// Bottleneck: memory bandwidth; each value is read and written once per launch.
#include "rows.cuh"
#include "storage.cuh"

extern __shared__ float2 exchanged[];

template <class P, int B, class T, bool INVERSE, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) long_columns(
    const T* x, float2* transposed, long long inner, Strides x_strides) {
    static_assert(P::COLUMNS, "neighbouring columns of one row");
    using C = typename Complex<T>::type;
    constexpr int A = P::N, TILES = (B + P::ROWS - 1) / P::ROWS, THREADS = P::THREADS * P::ROWS;
    const Group<P> group(exchanged);
    const long long row = blockIdx.x / TILES;
    const int first = static_cast<int>(blockIdx.x % TILES) * P::ROWS, column = first + group.row;
    const C* from = reinterpret_cast<const C*>(x) + x_strides.row(row, inner);

    transform<P, true>(
        group,
        [&](int a) {
            const long long i = static_cast<long long>(a) * B + column;
            return column < B ? directed<INVERSE>(widened(from[i * x_strides.step])) : float2{0.0f, 0.0f};
        },
        [&](int k, float2 z) {
            if (column < B) exchanged[k * (P::ROWS + 1) + group.row] = turn_of(k * column, A * B) * z;
        });
    __syncthreads();
    transposed += (row * B + first) * A;
    for (int i = threadIdx.x; i < P::ROWS * A; i += THREADS) {
        if (first + i / A < B) transposed[i] = exchanged[i % A * (P::ROWS + 1) + i / A];
    }
}

// y = scale * transform of the columns of `transposed`, columns of B values with a distance of A; y: (rows, N), with
// strides in elements.
template <class P, int A, class T, bool INVERSE, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) long_rows(
    const float2* transposed, T* y, long long inner, Strides y_strides, float scale) {
    static_assert(P::COLUMNS, "neighbouring columns of one row");
    using C = typename Complex<T>::type;
    constexpr int TILES = (A + P::ROWS - 1) / P::ROWS;
    const Group<P> group(exchanged);
    const long long row = blockIdx.x / TILES;
    const int column = static_cast<int>(blockIdx.x % TILES) * P::ROWS + group.row;
    const float2* from = transposed + row * A * P::N + column;
    C* to = reinterpret_cast<C*>(y) + y_strides.row(row, inner);

    transform<P>(
        group, [&](int b) { return column < A ? from[static_cast<long long>(b) * A] : float2{0.0f, 0.0f}; },
        [&](int j, float2 z) {
            const long long i = static_cast<long long>(j) * A + column;
            if (column < A) narrowed(to[i * y_strides.step], directed<INVERSE>(scale * z));
        });
}
