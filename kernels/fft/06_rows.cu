// The Fourier transforms of many rows in one launch: several rows per block, up to 64 values per thread in registers,
// one exchange through shared memory between passes.
//
// x, y: (outer, inner, n), with strides in elements of each. The n of a real transform is that of the real side; its
// complex side has n / 2 + 1 values. y may be x.
//
// A Plan (passes.cuh) says how many threads compute a row, and how many rows a block has. Its COLUMNS are rows that are
// adjacent in memory, as the columns of a matrix are: then threads with consecutive numbers have consecutive columns.
// CONTIGUOUS: the elements of a row are adjacent, in x and in y.
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

template <class KIND, class P, class T, bool CONTIGUOUS>
__device__ inline void transform_rows(
    const T* x, T* y, long long inner, const Strides& x_strides, const Strides& y_strides, float scale) {
    using In = typename Element<T, !KIND::FROM_REAL>::type;
    using Out = typename Element<T, !KIND::TO_REAL>::type;
    using Value = decltype(widened(In{}));
    using Result = decltype(widened(Out{}));
    const Group<P> group(exchanged);
    const Row<P> row(group, inner);
    const In* from = row.of(reinterpret_cast<const In*>(x), x_strides);
    Out* to = row.of(reinterpret_cast<Out*>(y), y_strides);
    KIND::template run<P>(
        group, [&](int i) { return row.inside ? widened(from[CONTIGUOUS ? i : i * x_strides.step]) : Value{}; },
        [&](int i, Result value) {
            if (row.inside) narrowed(to[CONTIGUOUS ? i : i * y_strides.step], scale * value);
        });
}

// y = scale * transform of x, complex to complex
template <class P, class T, bool CONTIGUOUS, bool INVERSE, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) complex_rows(
    const T* x, T* y, long long inner, Strides x_strides, Strides y_strides, float scale) {
    transform_rows<ComplexRow<INVERSE>, P, T, CONTIGUOUS>(x, y, inner, x_strides, y_strides, scale);
}

// y = scale * forward transform of the real x, the first n / 2 + 1 values
template <class P, class T, bool CONTIGUOUS, bool EVEN, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) real_rows(
    const T* x, T* y, long long inner, Strides x_strides, Strides y_strides, float scale) {
    transform_rows<RealRow<EVEN>, P, T, CONTIGUOUS>(x, y, inner, x_strides, y_strides, scale);
}

// y = scale * inverse transform of x, the n / 2 + 1 values of a real y
template <class P, class T, bool CONTIGUOUS, bool EVEN, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) rows_to_real(
    const T* x, T* y, long long inner, Strides x_strides, Strides y_strides, float scale) {
    transform_rows<RowToReal<EVEN>, P, T, CONTIGUOUS>(x, y, inner, x_strides, y_strides, scale);
}
