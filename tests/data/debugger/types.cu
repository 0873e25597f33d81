// Variables of every kind of type. Each thread also stores what it computes to `out`, with which a test compares what
// the debugger shows.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

enum Plain { kNone, kFirst = 3, kLast = 7 };
enum class Scoped : unsigned char { off = 1, on = 200 };
enum Flags { kRead = 1, kWrite = 2, kExecute = 4 };

struct Inner {
    short low;
    double wide;
    float pair[2];
};

struct Base {
    int id;
};

struct Outer : Base {
    Inner inner;
    Inner* link;
    unsigned small : 5;
    int negative : 6;
    bool ready;
};

union Either {
    float number;
    unsigned bits;
};

__constant__ float coefficients[3];
__device__ int counter = 41;

template <typename T, int N>
__device__ __noinline__ T weighted(const T* values, int thread, T factor) {
    T parts[N];
    for (int k = 0; k < N; k++) {
        parts[k] = values[k] * factor + T(thread);
    }
    T total = 0;
    for (int k = 0; k < N; k++) {
        total += parts[k];
    }
    return total;  // TOTAL
}

extern "C" __global__ void types(double* out, const float* values, int count, Scoped scoped) {
    __shared__ float tile[2][32];
    __shared__ Inner shared_inner;
    extern __shared__ int dynamic[];
    int t = threadIdx.x;
    bool odd = t % 2 != 0;
    char letter = 'a' + t % 26;
    signed char negative = -t;
    unsigned char byte = 250 + t % 4;
    short small = -300 - t;
    unsigned short tall = 65000 + t;
    unsigned int natural = 4000000000u + t;
    long long big = -(1ll << 40) - t;
    unsigned long long huge = (1ull << 63) + t;
    float single = 0.1f * t;
    double precise = 0.1 * t;
    __half half_value = __float2half(1.5f + t);
    __nv_bfloat16 brain = __float2bfloat16(2.5f + t);
    __half2 halves = __floats2half2_rn(t, -t);
    float4 quad = make_float4(t, t + 1, t + 2, t + 3);
    Plain plain = t % 2 ? kFirst : kLast;
    Flags flags = Flags(kRead | kExecute);
    Outer outer;
    outer.id = 100 + t;
    outer.inner.low = -t;
    outer.inner.wide = t / 3.0;
    outer.inner.pair[0] = t;
    outer.inner.pair[1] = t * t;
    outer.link = &outer.inner;
    outer.small = t % 32;
    outer.negative = -(t % 32);
    outer.ready = odd;
    Either either;
    either.number = 1.0f + t;
    int grid[2][3] = {{t, 1, 2}, {3, 4, -t}};
    const float* cursor = values + t;
    float& element = tile[1][t];
    volatile int watched = t * 10;
    tile[0][t] = single;
    tile[1][t] = values[t];
    dynamic[t] = t * 7;
    if (t == 0) {
        shared_inner.low = 12;
        shared_inner.wide = 0.5;
    }
    __syncthreads();
    auto scale = [&](float by) { return by * single; };
    float total = weighted<float, 3>(values, t, 2.0f);
    double* row = out + t * 24;
    row[0] = odd;  // STORED
    row[1] = letter, row[2] = negative, row[3] = byte, row[4] = small, row[5] = tall, row[6] = natural;
    row[7] = big, row[8] = huge, row[9] = single, row[10] = precise, row[11] = __half2float(half_value);
    row[12] = __bfloat162float(brain), row[13] = __high2float(halves), row[14] = quad.z, row[15] = plain;
    row[16] = int(scoped), row[17] = outer.inner.pair[1], row[18] = outer.small + outer.negative, row[19] = either.bits;
    row[20] = grid[1][2] + watched, row[21] = *cursor + element + scale(2), row[22] = total + counter + coefficients[1];
    row[23] = dynamic[t] + shared_inner.low + count + flags;
}
