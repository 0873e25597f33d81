// Rows as in 06_rows.cu, with the next row on its way while one is transformed.
//
// A block stays on its multiprocessor and transforms one tile of ROWS rows after another. cp.async copies a row to
// shared memory without registers, so that reads from memory continue during the arithmetic, and in whole 16-byte
// pieces however the passes access the row. Each group copies its own row: groups of a warp or less never wait for
// others.
//
// x, y: (rows, n), contiguous rows at any pitch. x and its rows are aligned to COPY bytes; pairs of real elements of x
// and y are aligned. Dynamic shared memory: the plan's exchange, then ROWS rows of input, each rounded up to 16 bytes.
//
// Bottleneck: memory bandwidth; each value is read and written once.
#include "../common/copy_async.cuh"
#include "rows.cuh"
#include "storage.cuh"

extern __shared__ __align__(16) unsigned char block_memory[];

template <class KIND, class P, class T, int COPY, int BLOCKS>
__global__ void __launch_bounds__(P::THREADS* P::ROWS, BLOCKS) rows_ahead(
    const T* x, T* y, long long rows, long long x_pitch, long long y_pitch, float scale) {
    using In = typename Element<T, !KIND::FROM_REAL>::type;
    using Out = typename Element<T, !KIND::TO_REAL>::type;
    constexpr int BYTES = KIND::inputs(P::N) * sizeof(In), PITCH = (P::apart((BYTES + 7) / 8) + 1) / 2 * 16;
    constexpr int EXCHANGE = (P::SHARED + P::SHARED % 2) * sizeof(float2);
    static_assert(BYTES % COPY == 0, "a row is copied in whole pieces");

    constexpr bool FROM_PAIRS = KIND::FROM_REAL && KIND::PAIRS, TO_PAIRS = KIND::TO_REAL && KIND::PAIRS;
    using Result = decltype(widened(typename Element < T, !KIND::TO_REAL || TO_PAIRS > ::type{}));
    const Group<P> group(reinterpret_cast<float2*>(block_memory));
    unsigned char* next = block_memory + EXCHANGE + group.row * PITCH;
    const In* values = reinterpret_cast<const In*>(next);
    const long long step = static_cast<long long>(gridDim.x) * P::ROWS;
    long long first = static_cast<long long>(blockIdx.x) * P::ROWS;

    const auto copy = [&](long long row) {
        if (row < rows) {
            const unsigned char* from =
                reinterpret_cast<const unsigned char*>(reinterpret_cast<const In*>(x) + row * x_pitch);
#pragma unroll
            for (int byte = 0; byte < BYTES; byte += P::THREADS * COPY) {
                const int at = byte + group.thread * COPY;
                if (BYTES % (P::THREADS * COPY) == 0 || at < BYTES)
                    copy_async_or_zero<COPY>(next + at, from + at, true);
            }
        }
    };
    copy(first + group.row);
    for (; first < rows; first += step) {
        const long long row = first + group.row;
        copy_async_wait();
        group.sync();
        Out* to = reinterpret_cast<Out*>(y) + row * y_pitch;
        const bool inside = row < rows;
        KIND::template run<P>(
            group,
            [&](int i) {
                if constexpr (FROM_PAIRS)
                    return pair<ALIGNED_PAIRS>(values, i, 1);
                else
                    return widened(values[i]);
            },
            [&](int i, Result value) {
                if (!inside) return;
                if constexpr (TO_PAIRS)
                    set_pair<ALIGNED_PAIRS>(to, i, 1, scale * value);
                else
                    narrowed(to[i], scale * value);
            },
            [&] { copy(row + step); });
    }
}
