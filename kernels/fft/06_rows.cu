// The Fourier transforms of many rows in one launch: several rows per block, up to 64 values per thread in registers,
// one exchange through shared memory between passes.
//
// x, y: (outer, inner, n), with strides in elements of each. The n of a real transform is that of the real side; its
// complex side has n / 2 + 1 values. y may be x.
//
// A Plan (passes.cuh) sets the threads per row and the rows per block. COLUMNS: the rows of a block are adjacent in
// memory, like the columns of a matrix, and neighbouring threads take neighbouring columns. ACCESS (storage.cuh):
// CONTIGUOUS if the elements of a row are adjacent, in x and in y; ALIGNED_PAIRS if pairs of real ones are aligned,
// too.
//
// Bottleneck: memory bandwidth; each value is read and written once.
#include "rows.cuh"
#include "storage.cuh"

extern __shared__ float2 exchanged[];

// The row (outer, inner) that a group transforms; blocks cover ROWS rows of the inner dimension.
template <class P>
struct Row {
    long long outer, inner;
    bool inside;

    __device__ Row(const Group<P>& group, long long inner_rows) {
        const unsigned blocks = static_cast<unsigned>((inner_rows + P::ROWS - 1) / P::ROWS);
        outer = blockIdx.x / blocks;
        inner = static_cast<long long>(blockIdx.x % blocks) * P::ROWS + group.row;
        inside = inner < inner_rows;
    }
    template <class T>
    __device__ T* of(T* array, const Strides& strides) const {
        return array + outer * strides.outer + inner * strides.inner;
    }
};

template <class KIND, class P, class T, int ACCESS>
__device__ inline void transform_rows(
    const T* x, T* y, long long inner, const Strides& x_strides, const Strides& y_strides, float scale) {
    using In = typename Element<T, !KIND::FROM_REAL>::type;
    using Out = typename Element<T, !KIND::TO_REAL>::type;
    constexpr bool FROM_PAIRS = KIND::FROM_REAL && KIND::PAIRS, TO_PAIRS = KIND::TO_REAL && KIND::PAIRS;
    using Value = decltype(widened(typename Element < T, !KIND::FROM_REAL || FROM_PAIRS > ::type{}));
    using Result = decltype(widened(typename Element < T, !KIND::TO_REAL || TO_PAIRS > ::type{}));
    const Group<P> group(exchanged);
    const Row<P> row(group, inner);
    const In* from = row.of(reinterpret_cast<const In*>(x), x_strides);
    Out* to = row.of(reinterpret_cast<Out*>(y), y_strides);
    KIND::template run<P>(
        group,
        [&](int i) {
            if (!row.inside) return Value{};
            if constexpr (FROM_PAIRS)
                return pair<ACCESS>(from, i, x_strides.step);
            else
                return widened(from[ACCESS == STRIDED ? i * x_strides.step : i]);
        },
        [&](int i, Result value) {
            if (!row.inside) return;
            if constexpr (TO_PAIRS)
                set_pair<ACCESS>(to, i, y_strides.step, scale * value);
            else
                narrowed(to[ACCESS == STRIDED ? i * y_strides.step : i], scale * value);
        });
}

// y = scale * transform of x, complex to complex
template <class P, class T, int ACCESS, bool INVERSE, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) complex_rows(
    const T* x, T* y, long long inner, Strides x_strides, Strides y_strides, float scale) {
    transform_rows<ComplexRow<INVERSE>, P, T, ACCESS>(x, y, inner, x_strides, y_strides, scale);
}

// y = scale * forward transform of the real x, the first n / 2 + 1 values
template <class P, class T, int ACCESS, bool EVEN, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) real_rows(
    const T* x, T* y, long long inner, Strides x_strides, Strides y_strides, float scale) {
    transform_rows<RealRow<EVEN>, P, T, ACCESS>(x, y, inner, x_strides, y_strides, scale);
}

// y = scale * inverse transform of x, the n / 2 + 1 values of a real y
template <class P, class T, int ACCESS, bool EVEN, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) rows_to_real(
    const T* x, T* y, long long inner, Strides x_strides, Strides y_strides, float scale) {
    transform_rows<RowToReal<EVEN>, P, T, ACCESS>(x, y, inner, x_strides, y_strides, scale);
}
