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
// The inverse transform swaps the real and the imaginary part of each value at the load and at the store, which costs
// nothing. A real transform of even length n is a complex one of n / 2 values, which are pairs of real ones.
//
// Bottleneck: memory bandwidth; each value is read and written once.
#include "passes.cuh"
#include "storage.cuh"

extern __shared__ float2 exchanged[];

struct Strides {
    long long outer, inner, step;
};

// The first element of the row (outer, inner) that a group transforms; blocks cover ROWS rows of the inner dimension.
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

template <bool INVERSE>
__device__ inline float2 directed(float2 z) {
    return INVERSE ? swapped(z) : z;
}

// y = scale * transform of x, complex to complex
template <class P, class T, bool CONTIGUOUS, bool INVERSE, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) complex_rows(
    const T* x, T* y, long long inner, Strides x_strides, Strides y_strides, float scale) {
    using C = typename Complex<T>::type;
    const Group<P> group(exchanged);
    const Row<P> row(group, inner);
    const C* in = row.of(reinterpret_cast<const C*>(x), x_strides);
    C* out = row.of(reinterpret_cast<C*>(y), y_strides);
    transform<P>(
        group,
        [&](unsigned i) {
            const float2 z = row.inside ? widened(in[CONTIGUOUS ? i : i * x_strides.step]) : float2{0.0f, 0.0f};
            return directed<INVERSE>(z);
        },
        [&](unsigned i, float2 z) {
            if (row.inside) narrowed(out[CONTIGUOUS ? i : i * y_strides.step], directed<INVERSE>(scale * z));
        });
}

// y = scale * forward transform of the real x, the first n / 2 + 1 values. The plan's N is n / 2 if n is even.
template <class P, class T, bool CONTIGUOUS, bool EVEN, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) real_rows(
    const T* x, T* y, long long inner, Strides x_strides, Strides y_strides, float scale) {
    using C = typename Complex<T>::type;
    constexpr int M = P::N;
    const Group<P> group(exchanged);
    const Row<P> row(group, inner);
    const T* in = row.of(x, x_strides);
    C* out = row.of(reinterpret_cast<C*>(y), y_strides);
    const auto real = [&](unsigned i) { return row.inside ? widened(in[CONTIGUOUS ? i : i * x_strides.step]) : 0.0f; };
    const auto store = [&](unsigned k, float2 z) {
        if (row.inside) narrowed(out[CONTIGUOUS ? k : k * y_strides.step], scale * z);
    };
    if constexpr (!EVEN) {
        transform<P>(
            group, [&](unsigned i) { return float2{real(i), 0.0f}; },
            [&](unsigned k, float2 z) {
                if (k <= M / 2) store(k, z);
            });
    } else {
        transform<P, true>(
            group, [&](unsigned i) { return float2{real(2 * i), real(2 * i + 1)}; },
            [&](unsigned k, float2 z) { group.at(k) = z; });
        group.sync();
        // The transforms of the even and of the odd elements are the symmetric and antisymmetric parts of z.
        for (unsigned k = group.thread; k <= M / 2; k += P::THREADS) {
            const float2 a = group.at(k), b = conjugate(group.at(k == 0 ? 0 : M - k));
            const float2 even = 0.5f * (a + b), odd = 0.5f * swapped(a - b);
            const float2 turned_odd = roots<2 * M, M / 2 + 1>.w[k] * float2{odd.x, -odd.y};
            store(k, even + turned_odd);
            if (2 * k != M) store(M - k, conjugate(even - turned_odd));
        }
    }
}

// y = scale * inverse transform of x, whose n / 2 + 1 values are those of a real y. As in numpy, the imaginary parts of
// the values that must be real are ignored.
template <class P, class T, bool CONTIGUOUS, bool EVEN, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) rows_to_real(
    const T* x, T* y, long long inner, Strides x_strides, Strides y_strides, float scale) {
    using C = typename Complex<T>::type;
    constexpr int M = P::N;
    const Group<P> group(exchanged);
    const Row<P> row(group, inner);
    const C* in = row.of(reinterpret_cast<const C*>(x), x_strides);
    T* out = row.of(y, y_strides);
    const auto value = [&](unsigned k) {
        const float2 z = row.inside ? widened(in[CONTIGUOUS ? k : k * x_strides.step]) : float2{0.0f, 0.0f};
        return k == 0 || (EVEN && k == M) ? float2{z.x, 0.0f} : z;
    };
    const auto store = [&](unsigned i, float x) {
        if (row.inside) narrowed(out[CONTIGUOUS ? i : i * y_strides.step], scale * x);
    };
    if constexpr (!EVEN) {
        transform<P>(
            group, [&](unsigned k) { return swapped(k <= M / 2 ? value(k) : conjugate(value(M - k))); },
            [&](unsigned i, float2 z) { store(i, z.y); });
    } else {
        transform<P>(
            group,
            [&](unsigned k) {
                const float2 a = value(k), b = conjugate(value(M - k));
                const bool mirrored = 2 * k > M;
                const float2 w = roots<2 * M, M / 2 + 1>.w[mirrored ? M - k : k];
                const float2 odd = float2{mirrored ? -w.x : w.x, -w.y} * (a - b);
                return swapped(a + b + float2{-odd.y, odd.x});
            },
            [&](unsigned i, float2 z) {
                store(2 * i, z.y);
                store(2 * i + 1, z.x);
            });
    }
}
