"""CUDA's own headers and libraries on the simulated device: cooperative groups, CUB, cuda::atomic and cuda::std,
libdevice. Complete kernels, compared with numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from simdevice import CheckedDevice

GROUPS = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
__global__ void grid(int* o, int n) {
    auto g = cg::this_grid();
    for (int i = g.thread_rank(); i < n; i += g.size()) o[i] = i;
    g.sync();
    int s = 0;
    for (int i = 0; i < n; i++) s += o[i];
    g.sync();
    o[g.thread_rank()] = s + g.block_rank() + g.num_blocks() + g.dim_blocks().x + g.is_valid();
}
__global__ void tiles(int* o, const int* in) {
    auto b = cg::this_thread_block();
    auto t = cg::tiled_partition<8>(b);
    int v = in[b.thread_rank()], *r = o + 16 * b.thread_rank();
    r[0] = cg::reduce(t, v, cg::plus<int>()); r[1] = cg::reduce(t, v, cg::greater<int>());
    r[2] = cg::inclusive_scan(t, v); r[3] = cg::exclusive_scan(t, v, cg::bit_xor<int>());
    r[4] = t.shfl_xor(v, 2) + t.meta_group_rank() + t.meta_group_size(); r[5] = t.ballot(v & 1);
    if (v & 1) {
        auto c = cg::coalesced_threads();
        r[6] = 100 * c.size() + c.thread_rank(); r[7] = c.shfl(v, 0); r[8] = cg::reduce(c, v, cg::plus<int>());
        r[9] = cg::inclusive_scan(c, v); c.sync();
    }
    auto w = cg::tiled_partition<32>(b);
    auto l = cg::labeled_partition(w, v % 3);
    r[10] = 100 * l.size() + l.thread_rank(); r[11] = cg::reduce(l, v, cg::plus<int>());
    auto p = cg::binary_partition(w, v > 40);
    r[12] = 100 * p.size() + p.thread_rank();
    r[13] = cg::invoke_one_broadcast(w, [&] { return v; }) == w.shfl(v, 0);
    r[14] = cg::tiled_partition(b, 16).size() + cg::tiled_partition<4>(t).thread_rank();
    auto token = b.barrier_arrive();
    b.barrier_wait(std::move(token));
}
__global__ void wide_tile(int* o, const int* in) {
    __shared__ cg::block_tile_memory<256> scratch;
    auto t = cg::tiled_partition<64>(cg::this_thread_block(scratch));
    o[threadIdx.x] = cg::reduce(t, in[threadIdx.x], cg::plus<int>()) + 100000 * t.any(in[threadIdx.x] == 3);
    t.sync();
}
__global__ void copies(const int4* in, int4* o) {
    __shared__ int4 s[65];
    auto b = cg::this_thread_block();
    cg::memcpy_async(b, s, in, 64 * sizeof(int4));
    cg::wait(b);
    o[threadIdx.x] = s[63 - threadIdx.x];
    b.sync();
    cg::memcpy_async(b, s, in + 64, 64 * sizeof(int4));
    cg::memcpy_async(b, s + 64, in + 128, sizeof(int4));
    cg::wait_prior<0>(b);
    o[64 + threadIdx.x] = s[threadIdx.x + 1];
}
"""


@pytest.fixture(scope="module")
def groups():
    return CheckedDevice(GROUPS, name="groups.cu")


def test_a_grid_of_cooperative_groups(groups):
    out = np.zeros(200, np.int32)
    groups.launch("grid", 4, 32, out, 200, cooperative=True)
    assert (out[:128] == 19900 + np.arange(128) // 32 + 4 + 4 + 1).all()


def test_tiles_and_coalesced_groups(groups):
    values = np.random.default_rng(8).integers(0, 80, 64).astype(np.int32)
    out = np.zeros((64, 16), np.int32)
    groups.launch("tiles", 1, 64, out, values)
    i = np.arange(64)
    rows = values.reshape(8, 8)
    assert (out[:, 0] == rows.sum(axis=1).repeat(8)).all()
    assert (out[:, 1] == rows.max(axis=1).repeat(8)).all()
    assert (out[:, 2] == rows.cumsum(axis=1).ravel()).all()
    before = np.concatenate((np.zeros((8, 1), int), np.bitwise_xor.accumulate(rows, axis=1)[:, :-1]), axis=1)
    assert (out[:, 3] == before.ravel()).all()
    assert (out[:, 4] == values[i ^ 2] + i // 8 + 8).all()
    assert (out[:, 5] == ((rows & 1) << np.arange(8)).sum(axis=1).repeat(8)).all()
    for warp in (slice(0, 32), slice(32, 64)):
        mine, got = values[warp], out[warp]
        odd = np.flatnonzero(mine & 1)
        assert (got[odd, 6] == 100 * len(odd) + np.arange(len(odd))).all()
        assert (got[odd, 7] == mine[odd[0]]).all()
        assert (got[odd, 8] == mine[odd].sum()).all()
        assert (got[odd, 9] == mine[odd].cumsum()).all()
        for columns, label in (((10, 11), mine % 3), ((12, None), mine > 40)):
            for which in np.unique(label):
                lanes = np.flatnonzero(label == which)
                assert (got[lanes, columns[0]] == 100 * len(lanes) + np.arange(len(lanes))).all()
                if columns[1]:
                    assert (got[lanes, columns[1]] == mine[lanes].sum()).all()
    assert (out[:, 13] == 1).all()
    assert (out[:, 14] == 16 + i % 4).all()


def test_tiles_of_several_warps_and_copies(groups):
    values = np.random.default_rng(9).integers(4, 80, 128).astype(np.int32)
    values[70] = 3
    out = np.zeros(128, np.int32)
    groups.launch("wide_tile", 1, 128, out, values)
    assert (out == values.reshape(2, 64).sum(axis=1).repeat(64) + np.repeat([0, 100000], 64)).all()
    data, moved = np.arange(129 * 4, dtype=np.int32).reshape(129, 4), np.zeros((128, 4), np.int32)
    groups.launch("copies", 1, 64, data, moved)
    assert (moved[:64] == data[63::-1]).all()
    assert (moved[64:] == data[65:]).all()


LIBRARIES = r"""
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cuda/atomic>
#include <cuda/pipeline>
#include <cuda/std/bit>
#include <cuda/std/complex>
#include <cuda/std/optional>
__global__ void block_reduce(const int* in, int* o) {
    using Reduce = cub::BlockReduce<int, 128>;
    __shared__ typename Reduce::TempStorage scratch;
    int sum = Reduce(scratch).Sum(in[threadIdx.x]);
    __syncthreads();
    int most = Reduce(scratch).Reduce(in[threadIdx.x], [](int a, int b) { return a > b ? a : b; });
    if (threadIdx.x == 0) { o[0] = sum; o[1] = most; }
}
__global__ void block_scan(int* x) {
    using Scan = cub::BlockScan<int, 128>;
    __shared__ typename Scan::TempStorage scratch;
    int v[2] = {x[2 * threadIdx.x], x[2 * threadIdx.x + 1]};
    Scan(scratch).ExclusiveSum(v, v);
    x[2 * threadIdx.x] = v[0]; x[2 * threadIdx.x + 1] = v[1];
}
__global__ void block_sort(unsigned* x, int* y) {
    using Sort = cub::BlockRadixSort<unsigned, 128, 2, int>;
    __shared__ typename Sort::TempStorage scratch;
    int i = 2 * threadIdx.x;
    unsigned k[2] = {x[i], x[i + 1]};
    int v[2] = {y[i], y[i + 1]};
    Sort(scratch).Sort(k, v);
    x[i] = k[0]; x[i + 1] = k[1]; y[i] = v[0]; y[i + 1] = v[1];
}
__global__ void warp_reduce(const float* in, float* o) {
    using Reduce = cub::WarpReduce<float>;
    __shared__ typename Reduce::TempStorage scratch[4];
    float v = Reduce(scratch[threadIdx.x / 32]).Sum(in[threadIdx.x]);
    if (threadIdx.x % 32 == 0) o[threadIdx.x / 32] = v;
}
template <class T> __device__ void every(T* p, T* o, int i) {
    cuda::atomic_ref<T, cuda::thread_scope_device> a(p[0]), b(p[1]), c(p[2]), d(p[3]);
    a.fetch_add(T(2)); b.fetch_max(T(i)); c.fetch_min(T(i));
    T seen = d.load(cuda::memory_order_acquire);
    while (!d.compare_exchange_weak(seen, seen + T(3), cuda::memory_order_acq_rel, cuda::memory_order_relaxed)) {}
    cuda::atomic_ref<T, cuda::thread_scope_system> e(p[4]);
    o[i] = e.exchange(T(i));
    if (i == 0) cuda::atomic_ref<T, cuda::thread_scope_block>(p[5]).store(T(9), cuda::memory_order_release);
}
__global__ void atomics(int* i, unsigned char* c, unsigned short* s, double* d, long long* l) {
    int t = threadIdx.x;
    every(i, i + 8, t); every(c, c + 8, t); every(s, s + 8, t); every(d, d + 8, t); every(l, l + 8, t);
}
struct alignas(16) Wide { long long a, b; };
__global__ void wide(Wide* w, Wide* o) {
    cuda::atomic_ref<Wide, cuda::thread_scope_device> a(*w);
    Wide seen = a.load();
    while (!a.compare_exchange_strong(seen, Wide{seen.a + 1, seen.b - 1})) {}
    o[threadIdx.x] = seen;
}
__global__ void standard(float* x, int* n) {
    cuda::std::complex<float> c(x[0], x[1]);
    c = c * c / cuda::std::complex<float>(1, 2);
    x[2] = c.real(); x[3] = c.imag(); x[4] = cuda::std::abs(c);
    cuda::std::optional<int> o;
    if (n[0] > 3) o = n[1];
    n[2] = o.value_or(3); n[3] = cuda::std::popcount((unsigned)n[1]) + 100 * cuda::std::countl_zero((unsigned)n[1]);
}
__global__ void pipelined(const int* in, int* o) {
    __shared__ int s[2][64];
    auto p = cuda::make_pipeline();
    for (int i = 0; i < 5; i++) {
        if (i < 4) {
            p.producer_acquire();
            cuda::memcpy_async(&s[i % 2][threadIdx.x], in + i * 64 + threadIdx.x, sizeof(int), p);
            p.producer_commit();
        }
        if (i) {
            if (i < 4) cuda::pipeline_consumer_wait_prior<1>(p); else cuda::pipeline_consumer_wait_prior<0>(p);
            o[(i - 1) * 64 + threadIdx.x] = s[(i - 1) % 2][threadIdx.x] + 1;
            p.consumer_release();
        }
    }
}
"""


@pytest.fixture(scope="module")
def libraries():
    return CheckedDevice(LIBRARIES, name="libraries.cu")


def test_cub_sorts_scans_and_reduces(libraries):
    rng = np.random.default_rng(10)
    values, out = rng.integers(-1000, 1000, 256).astype(np.int32), np.zeros(2, np.int32)
    libraries.launch("block_reduce", 1, 128, values, out)
    assert out.tolist() == [values[:128].sum(), values[:128].max()]
    scanned = values.copy()
    libraries.launch("block_scan", 1, 128, scanned)
    assert (scanned == np.concatenate(([0], values.cumsum()[:-1]))).all()
    keys, places = rng.integers(0, 200, 256).astype(np.uint32), np.arange(256, dtype=np.int32)
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys.copy()
    libraries.launch("block_sort", 1, 128, sorted_keys, places)
    assert (sorted_keys == keys[order]).all()
    assert (places == order).all()
    floats, sums = rng.integers(0, 100, 128).astype(np.float32), np.zeros(4, np.float32)
    libraries.launch("warp_reduce", 1, 128, floats, sums)
    assert (sums == floats.reshape(4, 32).sum(axis=1)).all()


def test_atomics_of_the_standard_library(libraries):
    arrays = [np.zeros(72, kind) for kind in ("i4", "u1", "u2", "f8", "i8")]
    for array in arrays:
        array[2] = 50
    libraries.launch("atomics", 1, 64, *arrays)
    for array in arrays:
        assert array[:4].tolist() == [128, 63, 0, 192], array.dtype
        assert array[5] == 9
        assert sorted([*array[8:].tolist(), array[4]]) == sorted([0, *range(64)])
    wide, seen = np.array([5, 100]), np.zeros((32, 2), np.int64)
    libraries.launch("wide", 1, 32, wide, seen)
    assert wide.tolist() == [37, 68]
    assert sorted(seen[:, 0].tolist()) == list(range(5, 37))
    assert (seen.sum(axis=1) == 105).all()


def test_the_standard_library_and_pipelines(libraries):
    x, n = np.array([1.5, -2, 0, 0, 0], np.float32), np.array([4, 0xF0, 0, 0], np.int32)
    libraries.launch("standard", 1, 1, x, n)
    want = (1.5 - 2j) ** 2 / (1 + 2j)
    assert np.allclose(x[2:], [want.real, want.imag, abs(want)], rtol=1e-6)
    assert n[2:].tolist() == [0xF0, 4 + 2400]
    data, out = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    libraries.launch("pipelined", 1, 64, data, out)
    assert (out == data + 1).all()


# name, reference, lowest and highest argument, permitted error in units in the last place (from CUDA's documentation)
DOUBLES = [
    ("sin", math.sin, -1e6, 1e6, 2), ("cos", math.cos, -1e6, 1e6, 2), ("tan", math.tan, -100, 100, 2),
    ("asin", math.asin, -1, 1, 2), ("acos", math.acos, -1, 1, 2), ("atan", math.atan, -50, 50, 2),
    ("exp", math.exp, -300, 300, 1), ("expm1", math.expm1, -3, 3, 1), ("exp2", lambda x: 2.0**x, -300, 300, 1),
    ("log", math.log, 1e-300, 1e3, 1), ("log1p", math.log1p, -0.9, 5, 1), ("log2", math.log2, 1e-3, 1e9, 1),
    ("log10", math.log10, 1e-3, 1e9, 1), ("sinh", math.sinh, -20, 20, 2), ("cosh", math.cosh, -20, 20, 1),
    ("tanh", math.tanh, -5, 5, 2), ("asinh", math.asinh, -1e4, 1e4, 3), ("acosh", math.acosh, 1, 1e4, 3),
    ("atanh", math.atanh, -0.99, 0.99, 2), ("cbrt", lambda x: math.copysign(abs(x) ** (1 / 3), x), -1e5, 1e5, 4),
    ("erf", math.erf, -3, 3, 2), ("erfc", math.erfc, -3, 10, 5), ("tgamma", math.gamma, 0.1, 100, 10),
    ("lgamma", math.lgamma, 3, 1000, 4), ("sqrt", math.sqrt, 0, 1e10, 0), ("rsqrt", lambda x: x**-0.5, 1e-5, 1e5, 1),
]  # fmt: skip
FLOATS = [
    ("sinf", math.sin, -1e7, 1e7, 2), ("cosf", math.cos, -1e7, 1e7, 2), ("tanf", math.tan, -1e5, 1e5, 4),
    ("expf", math.exp, -80, 80, 2), ("exp2f", lambda x: 2.0**x, -100, 100, 2), ("logf", math.log, 1e-30, 1e30, 2),
    ("log10f", math.log10, 1e-30, 1e30, 3), ("tanhf", math.tanh, -5, 5, 2), ("erff", math.erf, -3, 3, 2),
    ("atanf", math.atan, -50, 50, 2), ("asinf", math.asin, -1, 1, 2), ("sqrtf", math.sqrt, 0, 1e10, 1),
    ("cbrtf", lambda x: math.copysign(abs(x) ** (1 / 3), x), -1e5, 1e5, 2), ("lgammaf", math.lgamma, 3, 1000, 6),
    ("sinhf", math.sinh, -20, 20, 3),
]  # fmt: skip
TWO = [
    ("pow", math.pow, (0.01, 50), (-20, 20), 2), ("fmod", math.fmod, (-1e9, 1e9), (0.1, 100), 0),
    ("remainder", math.remainder, (-1e9, 1e9), (0.1, 100), 0), ("atan2", math.atan2, (-9, 9), (-9, 9), 2),
    ("hypot", math.hypot, (-1e9, 1e9), (-1e9, 1e9), 2), ("divide", lambda a, b: a / b, (-1e9, 1e9), (0.01, 9), 0),
]  # fmt: skip


def maths():
    """A kernel per function, k_NAME(x) or k_NAME(x, y), with its result in x."""
    lines = ["__device__ double divide(double a, double b) { return a / b; }"]
    lines.append("__device__ float dividef(float a, float b) { return a / b; }")
    for kind, table, suffix in (("double", DOUBLES, ""), ("float", FLOATS, "f")):
        for name, *_ in table:
            lines.append(f"__global__ void k_{name}({kind}* x) {{ x[threadIdx.x] = {name}(x[threadIdx.x]); }}")
        for name, *_ in TWO:
            call = f"{name}{suffix}(x[threadIdx.x], y[threadIdx.x])"
            lines.append(f"__global__ void k_{name}{suffix}({kind}* x, const {kind}* y) {{ x[threadIdx.x] = {call}; }}")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def maths_library():
    return CheckedDevice(maths(), name="maths.cu")


def units(got, want):
    """Return the errors of results, in units in the last place of the expected ones."""
    want = np.array(want)
    last = np.spacing(np.abs(want).astype(got.dtype)).astype(np.float64)
    return np.abs(got.astype(np.float64) - want) / last


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_the_maths_library_is_as_exact_as_documented(maths_library, kind):
    rng = np.random.default_rng(11)
    for name, reference, low, high, allowed in DOUBLES if kind is np.float64 else FLOATS:
        x = rng.uniform(low, high, 256).astype(kind)
        got = x.copy()
        maths_library.launch(f"k_{name}", 1, 256, got)
        assert units(got, [reference(float(v)) for v in x]).max() <= allowed + 0.5, name
    suffix = "" if kind is np.float64 else "f"
    for name, reference, first, second, allowed in TWO:
        x, y = rng.uniform(*first, 256).astype(kind), rng.uniform(*second, 256).astype(kind)
        got = x.copy()
        maths_library.launch(f"k_{name}{suffix}", 1, 256, got, y)
        off = units(got, [reference(float(a), float(b)) for a, b in zip(x, y, strict=True)])
        # powf is allowed 4, atan2f and hypotf 3
        assert off.max() <= (allowed + 2 if suffix and allowed else allowed) + 0.5, name
