// Product of half or bfloat16 matrices, A and at most SMALL columns: A is read once, at memory bandwidth.
//
// Parameters as in 04_pipelined.cu, n <= SMALL. A product with few rows is passed as its transpose, D^T = B^T * A^T.
// A "line" is a row of A. Sums are fp32 multiply-adds. `share`: k per blockIdx.y, a multiple of 8; a small output has
// too few lines to fill the device, so several blocks share k. MODE:
//   kDirect   one block has all k of a line and writes the output
//   kParts    each block writes its sums to `parts`; gemv_join adds them and writes the output
//   kCluster  the blocks along y are a cluster, whose first block adds the sums (Hopper)
// The order of every sum is fixed, so that results are the same on every run.
//
// gemv_rows is for lines that are contiguous along k. A group of warps takes ROWS lines; lanes read 16 bytes at a time,
// with the next loads in flight during the arithmetic. The columns are staged in shared memory, `chunk` k at a time.
// Unaligned lines are read in aligned pieces, which are shifted; the elements at the ends of a line are read one by
// one.
//
// gemv_columns is for an A that is contiguous across its lines. Lanes take VEC neighbouring lines each; the lanes that
// remain, and all warps, share k. A warp stages its part of the columns itself, so that it never waits for other warps.
//
// Bottleneck: memory bandwidth for up to 4 columns. Per 16 bytes of A, 8 conversions and 8 * SMALL multiply-adds: 8
// columns take about as long as the loads.
#include "../common/dependent.cuh"
#include "../common/hopper.cuh"
#include "../common/pack.cuh"
#include "../common/reduce.cuh"
#include "../common/unaligned.cuh"
#include "epilogue.cuh"

constexpr int kDirect = 0, kParts = 1, kCluster = 2;  // MODE
// How columns of B are staged: element by element along k, or across the columns; or in 16-byte pieces along k.
constexpr int kAlong = 0, kAcross = 1, kPieces = 2;

// VEC elements as they are in memory: pairs, or one element.
template <int VEC>
struct Halves {
    uint32 pair[VEC > 1 ? VEC / 2 : 1];
};

// 16 bytes that are read once: L1 keeps other data. Zeros if not `inside`.
__device__ __forceinline__ uint4 load_once(const void* from, bool inside) {
    uint4 v;
    asm("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\tmov.u32 %0, 0;\n\tmov.u32 %1, 0;\n\tmov.u32 %2, 0;\n\t"
        "mov.u32 %3, 0;\n\t@p ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
        : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
        : "l"(from), "r"(static_cast<uint32>(inside)));
    return v;
}

// VEC elements, zeros if not `inside`.
template <int VEC>
__device__ __forceinline__ Halves<VEC> load_halves(const void* from, bool inside) {
    static_assert(VEC == 1 || VEC == 2 || VEC == 4 || VEC == 8, "2, 4, 8 or 16 bytes");
    if constexpr (VEC == 8) {
        const uint4 v = load_once(from, inside);
        return {v.x, v.y, v.z, v.w};
    } else if constexpr (VEC == 4) {
        const uint2 v = inside ? *static_cast<const uint2*>(from) : uint2{};
        return {v.x, v.y};
    } else if constexpr (VEC == 2) {
        return {inside ? *static_cast<const uint32*>(from) : 0u};
    } else {
        return {inside ? *static_cast<const unsigned short*>(from) : 0u};
    }
}

// VEC elements in shared memory.
template <int VEC>
__device__ __forceinline__ Halves<VEC> load_staged(const unsigned short* from) {
    if constexpr (VEC == 8) {
        const uint4 v = *reinterpret_cast<const uint4*>(from);
        return {v.x, v.y, v.z, v.w};
    } else {
        return {*from};
    }
}

template <class T, int VEC>
__device__ __forceinline__ void widen(const Halves<VEC>& from, float (&to)[VEC]) {
#pragma unroll
    for (int e = 0; e < VEC; e += 2) {
        const float2 both = unpack<T>(from.pair[e / 2]);
        to[e] = both.x;
        if constexpr (VEC > 1) to[e + 1] = both.y;
    }
}

// Writes the output from a block's sums. parts: [batch][line][column][split].
template <int MODE, class E, class R>
struct Output {
    E epilogue;  // of the batch
    R* d;        // of the batch
    int64 d_row, d_col, m, n, batch;
    float* parts;

    // Writes the outputs of `lines` lines from line0 on, for SMALL columns. sum(line, j): the block's sum, for line 0
    // .. lines - 1. All threads of the block call it.
    template <int SMALL, int MOST, class Sums>
    __device__ __forceinline__ void write(int64 line0, int lines, Sums sum) const {
        if constexpr (MODE == kCluster) {
            __shared__ float own[MOST];
            for (int at = threadIdx.x; at < lines * SMALL; at += blockDim.x) own[at] = sum(at % lines, at / lines);
            cluster_sync();
            if (cluster_rank() == 0)
                for (int at = threadIdx.x; at < lines * SMALL; at += blockDim.x) {
                    float total = 0.0f;
                    for (unsigned rank = 0; rank < gridDim.y; ++rank) total += read_of(own + at, rank);
                    store(total, line0 + at % lines, at / lines);
                }
            cluster_sync();  // no block ends while its sums are read
        } else {
            for (int at = threadIdx.x; at < lines * SMALL; at += blockDim.x)
                store(sum(at % lines, at / lines), line0 + at % lines, at / lines);
        }
    }

  private:
    __device__ __forceinline__ void store(float sum, int64 line, int64 j) const {
        if (line >= m || j >= n) return;
        if constexpr (MODE == kParts)
            parts[((batch * m + line) * n + j) * gridDim.y + blockIdx.y] = sum;
        else
            d[line * d_row + j * d_col] = static_cast<R>(epilogue.at(sum, line, j));
    }

    // The value at the same place in the cluster's block `rank`.
    static __device__ __forceinline__ float read_of(const float* shared, unsigned rank) {
        float value;
        asm volatile(
            "{\n\t.reg .b32 from;\n\tmapa.shared::cluster.u32 from, %1, %2;\n\t"
            "ld.shared::cluster.f32 %0, [from];\n\t}"
            : "=f"(value)
            : "r"(shared_address(shared)), "r"(rank)
            : "memory");
        return value;
    }
};

// The k of this block: `share` of them, fewer at the end.
struct Span {
    int64 begin, end;

    __device__ __forceinline__ Span(int64 k, int64 share) {
        begin = blockIdx.y * share;
        end = begin + share < k ? begin + share : k;
    }
};

// SHIFT: lines begin anywhere, otherwise on 16-byte boundaries; VEC is 8 if lines are contiguous, else 1. group: warps
// per ROWS lines, a power of two up to 8. COLUMNS: how B's columns are staged.
//
// grid: (ceil(m / (8 / group * ROWS)) * batches, splits), block: 256, shared: SMALL * (chunk + 8) * 2 bytes
template <class T, class R, class B, int ACTIVATION, int C, int BIAS, int RESIDUAL, int SMALL, int ROWS, int VEC,
    bool SHIFT, int COLUMNS, int MODE>
__global__ void __launch_bounds__(256, SHIFT || SMALL > 2 ? 2 : 5 - SMALL) gemv_rows(const T* a, const T* b, const R* c,
    R* d, int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col,
    int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha,
    float beta, const B* bias, int64 bias_row, int64 bias_col, int64 bias_batch, const R* residual, int64 residual_row,
    int64 residual_col, int64 residual_batch, float scale, void* parts, int64 share, int group, int chunk) {
    if (threadIdx.x == 0) start_dependents();
    wait_for_predecessor();
    constexpr int kWarps = 8, kThreads = kWarps * kWarp;
    constexpr int kDeep = (SHIFT ? 4 : 8) / ROWS;  // vectors of a line in flight per lane
    static_assert(ROWS * SMALL <= kWarp, "a lane per sum");
    static_assert(VEC == 8 || (VEC == 1 && !SHIFT), "16-byte pieces or elements");
    extern __shared__ __align__(16) unsigned short staged[];  // [SMALL][chunk + 8]
    __shared__ float totals[kWarps][ROWS * SMALL];
    const int pitch = chunk + 8;
    const int lane = threadIdx.x % kWarp;                   // 0 .. 31
    const int warp = threadIdx.x / kWarp;                   // 0 .. 7
    const int member = warp % group;                        // 0 .. group - 1
    const int lines = kWarps / group * ROWS;                // of the block
    const int64 tiles = (m + lines - 1) / lines;            // of a batch
    const int64 batch = blockIdx.x / tiles;                 // 0 .. batches - 1
    const int64 line0 = blockIdx.x % tiles * lines;         // the block's first line
    const int64 line = line0 + int64{warp / group} * ROWS;  // the warp's
    const T* const of_b = b + batch * b_batch;
    const Span span(k, share);

    const auto head = [](int skip) { return SHIFT && skip ? 1 : 0; };  // the first vector that is loaded whole
    const T* rows[ROWS];                                               // the warp's lines
    int skip[ROWS];     // bytes from a 16-byte boundary to a line's first element
    int64 whole[ROWS];  // the end of the vectors of a line that are loaded whole
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        rows[r] = a + batch * a_batch + (line + r < m ? line + r : 0) * a_row;
        skip[r] = SHIFT ? past_boundary(rows[r]) : 0;
        // If it is shifted, neither of its two aligned vectors may reach past the line.
        const int64 last = SHIFT ? (k + skip[r] / 2) / VEC - 1 : k / VEC;
        whole[r] = last > head(skip[r]) ? last : head(skip[r]);
    }
    float sums[ROWS][SMALL] = {};

    // The loads in flight: vectors first + i * stride of a chunk. As soon as one is used, its registers are filled
    // again.
    Halves<VEC> low[kDeep][ROWS];
    Halves<VEC> high[SHIFT ? kDeep : 1][SHIFT ? ROWS : 1];
    const int first = member * kWarp + lane;
    const int stride = group * kWarp;
    const auto loads = [&](int64 v, int r) { return !SHIFT || (v >= head(skip[r]) && v < whole[r]); };
    // Loads vector v of the lines, if it is `inside`.
    const auto load = [&](int i, int64 v, bool inside) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const bool wanted = inside && line + r < m && loads(v, r);
            if constexpr (SHIFT) {
                const uint4* from = boundary(rows[r]) + v;
                const uint4 front = wanted ? from[0] : uint4{};
                const uint4 back = wanted ? from[1] : uint4{};
                low[i][r] = {front.x, front.y, front.z, front.w};
                high[i][r] = {back.x, back.y, back.z, back.w};
            } else {
                low[i][r] = load_halves<VEC>(rows[r] + (VEC == 1 ? v * a_col : v * VEC), wanted);
            }
        }
    };
    // Adds the products of vector v, which is number `at` of the staged columns.
    const auto add = [&](int i, int64 v, int at) {
        float of_a[ROWS][VEC];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            Halves<VEC> of_line = low[i][r];
            if constexpr (SHIFT) {
                const Halves<VEC>&front = low[i][r], &back = high[i][r];
                const uint4 moved = shifted({front.pair[0], front.pair[1], front.pair[2], front.pair[3]},
                    {back.pair[0], back.pair[1], back.pair[2], back.pair[3]}, skip[r]);
                of_line = {moved.x, moved.y, moved.z, moved.w};
            }
            widen<T>(of_line, of_a[r]);
        }
#pragma unroll
        for (int j = 0; j < SMALL; ++j) {
            float of_column[VEC];
            widen<T>(load_staged<VEC>(staged + j * pitch + at * VEC), of_column);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                if (loads(v, r))  // a vector that is not loaded is not 0 * B, which may be NaN
#pragma unroll
                    for (int e = 0; e < VEC; ++e) sums[r][j] = fmaf(of_a[r][e], of_column[e], sums[r][j]);
        }
    };

    for (int64 k0 = span.begin; k0 < span.end; k0 += chunk) {
        const int count = static_cast<int>(span.end - k0 < chunk ? span.end - k0 : chunk);
        const int vectors = count / VEC;
        const int64 v0 = k0 / VEC;
#pragma unroll
        for (int i = 0; i < kDeep; ++i)  // in flight while the columns are staged
            load(i, v0 + first + i * stride, first + i * stride < vectors);
        __syncthreads();  // all reads of the previous chunk are done
        const auto* from = reinterpret_cast<const unsigned short*>(of_b) + k0 * b_row;
        if constexpr (COLUMNS == kAcross) {
#pragma unroll 4
            for (int at = threadIdx.x; at < count * SMALL; at += kThreads) {
                const int i = at / SMALL, j = at % SMALL;
                if (j < n) staged[j * pitch + i] = from[i * b_row + j * b_col];
            }
        } else {
            for (int j = 0; j < n; ++j, from += b_col)
                if constexpr (COLUMNS == kPieces)
#pragma unroll 4
                    for (int i = threadIdx.x * 8; i + 8 <= count; i += kThreads * 8)
                        *reinterpret_cast<uint4*>(staged + j * pitch + i) = *reinterpret_cast<const uint4*>(from + i);
                else
#pragma unroll 4
                    for (int i = threadIdx.x; i < count; i += kThreads) staged[j * pitch + i] = from[i * b_row];
        }
        if (SMALL > 1 && n < SMALL && k0 == span.begin)  // columns past the last one are zero
            for (int at = threadIdx.x; at < (SMALL - n) * pitch; at += kThreads) staged[n * pitch + at] = 0;
        __syncthreads();
        for (int at = first; at < vectors; at += kDeep * stride)
#pragma unroll
            for (int i = 0; i < kDeep; ++i) {
                const int now = at + i * stride, next = now + kDeep * stride;
                if (now < vectors) add(i, v0 + now, now);
                load(i, v0 + next, next < vectors);
            }
    }

    // The elements outside the whole vectors, at most 22: a lane per element, of the group's first warp in the first
    // block that shares k.
    if (VEC == 8 && member == 0 && blockIdx.y == 0) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int before = head(skip[r]) * VEC;  // elements
            const int64 at = lane < before ? lane : whole[r] * VEC + (lane - before);
            if (line + r >= m || at >= k) continue;
            const float of_a = static_cast<float>(rows[r][at]);
#pragma unroll
            for (int j = 0; j < SMALL; ++j)
                if (j < n) sums[r][j] = fmaf(of_a, static_cast<float>(of_b[at * b_row + j * b_col]), sums[r][j]);
        }
    }

    float mine = 0.0f;
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int j = 0; j < SMALL; ++j) {
            const float sum = lanes_reduce<kWarp>(sums[r][j], Sum());
            if (lane == r * SMALL + j) mine = sum;
        }
    if (lane < ROWS * SMALL) totals[warp][lane] = mine;
    __syncthreads();
    using E = Epilogue<B, R, ACTIVATION, C, BIAS, RESIDUAL>;
    const Output<MODE, E, R> output{
        {c + batch * c_batch, c_row, c_col, bias + batch * bias_batch, bias_row, bias_col,
            residual + batch * residual_batch, residual_row, residual_col, alpha, beta, scale},
        d + batch * d_batch, d_row, d_col, m, n, batch, static_cast<float*>(parts)};
    output.template write<SMALL, kWarps * ROWS * SMALL>(line0, lines, [&](int of, int j) {
        float sum = 0.0f;
        for (int g = 0; g < group; ++g) sum += totals[of / ROWS * group + g][of % ROWS * SMALL + j];
        return sum;
    });
}

// ACROSS: lanes along the lines. A's lines, strides and first element are multiples of VEC elements; a column of A is
// contiguous if VEC is more than 1.
//
// grid: (ceil(m / (ACROSS * VEC)) * batches, splits), block: 512
template <class T, class R, class B, int ACTIVATION, int C, int BIAS, int RESIDUAL, int SMALL, int VEC, int ACROSS,
    int MODE>
__global__ void __launch_bounds__(512, SMALL == 1 ? 2 : 1) gemv_columns(const T* a, const T* b, const R* c, R* d,
    int64 a_row, int64 a_col, int64 a_batch, int64 b_row, int64 b_col, int64 b_batch, int64 c_row, int64 c_col,
    int64 c_batch, int64 d_row, int64 d_col, int64 d_batch, int64 m, int64 n, int64 k, int64 batches, float alpha,
    float beta, const B* bias, int64 bias_row, int64 bias_col, int64 bias_batch, const R* residual, int64 residual_row,
    int64 residual_col, int64 residual_batch, float scale, void* parts, int64 share) {
    if (threadIdx.x == 0) start_dependents();
    wait_for_predecessor();
    constexpr int kWarps = 16, kLines = ACROSS * VEC, kDown = kWarp / ACROSS;  // a warp loads kDown k at once
    constexpr int kDeep = SMALL == 8 ? 4 : VEC >= 4 ? 8 : 16;                  // loads in flight per lane
    constexpr int kPiece = kDown * kDeep;                                      // k of a warp per step
    constexpr int kOfLane = (kPiece + kWarp - 1) / kWarp;                      // and of a lane, when it loads B
    constexpr int64 kStep = kWarps * kPiece;                                   // of a block
    __shared__ __align__(16) float pieces[kWarps][kPiece][SMALL];
    __shared__ __align__(16) float totals[kWarps][SMALL][kLines];
    const int lane = threadIdx.x % kWarp;             // 0 .. 31
    const int warp = threadIdx.x / kWarp;             // 0 .. kWarps - 1
    const int down = lane / ACROSS;                   // 0 .. kDown - 1
    const int within = lane % ACROSS * VEC;           // 0 .. kLines - VEC
    const int64 tiles = (m + kLines - 1) / kLines;    // of a batch
    const int64 batch = blockIdx.x / tiles;           // 0 .. batches - 1
    const int64 line0 = blockIdx.x % tiles * kLines;  // the block's first line
    const bool has_line = line0 + within < m;
    const Span span(k, share);

    // The loads in flight. As soon as one is used, its registers are filled again. `from` and `left` are the address
    // and the k to the end of the next load; `from_b` and `left_b` of the next piece of B.
    Halves<VEC> values[kDeep];
    T factors[kOfLane][SMALL];
    const int64 first = span.begin + warp * kPiece;
    const T* from = a + batch * a_batch + (line0 + within) * a_row + (first + down) * a_col;
    const T* from_b = b + batch * b_batch + (first + lane) * b_row;
    int64 left = has_line ? span.end - first - down : 0;
    int64 left_b = span.end - first - lane;
    const auto load_values = [&](int i) {
        values[i] = load_halves<VEC>(from, i * kDown < left);
        from += (i + 1 < kDeep ? kDown : kStep - (kDeep - 1) * kDown) * a_col;
        if (i + 1 == kDeep) left -= kStep;
    };
    const auto load_factors = [&] {
#pragma unroll
        for (int q = 0; q < kOfLane; ++q) {
            const T* at = from_b + q * kWarp * b_row;
#pragma unroll
            for (int j = 0; j < SMALL; ++j, at += b_col) {
                const bool inside = q * kWarp + lane < kPiece && q * kWarp < left_b && j < n;
                factors[q][j] = inside ? *at : static_cast<T>(0.0f);
            }
        }
        from_b += kStep * b_row;
        left_b -= kStep;
    };
    float sums[SMALL][VEC] = {};
    load_factors();
#pragma unroll
    for (int i = 0; i < kDeep; ++i) load_values(i);
    for (int64 k0 = first; k0 < span.end; k0 += kStep) {
        __syncwarp();  // all reads of the previous piece are done
#pragma unroll
        for (int q = 0; q < kOfLane; ++q)
#pragma unroll
            for (int j = 0; j < SMALL; ++j)
                if (q * kWarp + lane < kPiece) pieces[warp][q * kWarp + lane][j] = static_cast<float>(factors[q][j]);
        load_factors();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kDeep; ++i) {
            const auto of_b = *reinterpret_cast<const Pack<float, SMALL>*>(pieces[warp][i * kDown + down]);
            float of_a[VEC];
            widen<T>(values[i], of_a);
#pragma unroll
            for (int j = 0; j < SMALL; ++j)
#pragma unroll
                for (int e = 0; e < VEC; ++e) sums[j][e] = fmaf(of_a[e], of_b.at[j], sums[j][e]);
            load_values(i);
        }
    }
#pragma unroll
    for (int j = 0; j < SMALL; ++j)
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            float sum = sums[j][e];
#pragma unroll
            for (int distance = ACROSS; distance < kWarp; distance *= 2)
                sum += __shfl_xor_sync(kAllLanes, sum, distance);
            if (down == 0) totals[warp][j][within + e] = sum;
        }
    __syncthreads();
    using E = Epilogue<B, R, ACTIVATION, C, BIAS, RESIDUAL>;
    const Output<MODE, E, R> output{
        {c + batch * c_batch, c_row, c_col, bias + batch * bias_batch, bias_row, bias_col,
            residual + batch * residual_batch, residual_row, residual_col, alpha, beta, scale},
        d + batch * d_batch, d_row, d_col, m, n, batch, static_cast<float*>(parts)};
    output.template write<SMALL, SMALL * kLines>(line0, kLines, [&](int of, int j) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) sum += totals[w][j][of];
        return sum;
    });
}

// Adds the sums of the `splits` blocks that share an output's k: a warp per output.
//
// grid: any, block: 256
template <class T, class R, class B, int ACTIVATION, int C, int BIAS, int RESIDUAL>
__global__ void __launch_bounds__(256) gemv_join(const R* c, R* d, int64 c_row, int64 c_col, int64 c_batch, int64 d_row,
    int64 d_col, int64 d_batch, int64 m, int64 n, int64 batches, float alpha, float beta, const B* bias, int64 bias_row,
    int64 bias_col, int64 bias_batch, const R* residual, int64 residual_row, int64 residual_col, int64 residual_batch,
    float scale, const float* parts, int splits) {
    const int lane = threadIdx.x % kWarp;
    for (int64 at = global_thread() / kWarp; at < m * n * batches; at += global_threads() / kWarp) {
        float sum = 0.0f;
#pragma unroll 4
        for (int split = lane; split < splits; split += kWarp) sum += parts[at * splits + split];
        sum = lanes_reduce<kWarp>(sum, Sum());
        if (lane) continue;
        const int64 col = at % n, line = at / n % m, batch = at / n / m;
        const Epilogue<B, R, ACTIVATION, C, BIAS, RESIDUAL> epilogue{c + batch * c_batch, c_row, c_col,
            bias + batch * bias_batch, bias_row, bias_col, residual + batch * residual_batch, residual_row,
            residual_col, alpha, beta, scale};
        d[batch * d_batch + line * d_row + col * d_col] = static_cast<R>(epilogue.at(sum, line, col));
    }
}
