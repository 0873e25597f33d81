"""Matrix instructions on the simulated device: ldmatrix, stmatrix, movmatrix, mma.sync and wmma.

Arithmetic is compared with an H200's results on the same tiles, layouts with the figures of the PTX ISA, complete
kernels with numpy, and reports with the line of the bug.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorforms
from simdevice import ALL_CHECKS, SimDevice
from tensorforms import BITS, Form, Machine

from cudakit.sim.driver.api import Driver
from cudakit.sim.instructions import tensorcore, tiles
from cudakit.sim.instructions.tensor import wmma_tile
from cudakit.sim.lockstep.memory import AddressSpace
from cudakit.sim.lockstep.report import KernelFault
from cudakit.sim.machine.loading import LoadedModule
from cudakit.sim.ptx.ir import PtxError


@functools.cache
def _recorded():
    forms = {}
    for form, *rest in tensorforms.recorded():
        forms.setdefault(form.name, []).append((form, *rest))
    return forms


@functools.cache
def _simulated():
    return Machine(Driver(arch="sm_90a"))


def _differences(cases, made):
    lines = []
    for (form, what, a, b, c, d), found in zip(cases, made, strict=True):
        for tile, row, column in np.argwhere(found != d)[:3]:
            pairs = [f"{x:#x}*{y:#x}" for x, y in zip(a[tile, row], b[tile, :, column], strict=True) if x and y]
            lines.append(f"{form.name}, {what}: {' + '.join(pairs)} + {c[tile, row, column]:#x}")
            lines.append(f"  made {found[tile, row, column]:#x}, recorded {d[tile, row, column]:#x}")
    return lines


# ---- arithmetic ----


@pytest.mark.parametrize("name", sorted(_recorded()))
def test_products_are_those_of_an_h200(name):
    """All bits are equal: rounding, alignment, subnormal numbers, signs of zeros, infinities and NaN patterns."""
    cases = _recorded()[name]
    assert not _differences(cases, tensorforms.multiplied(_simulated(), cases))


def test_the_recording_has_every_form_and_kind():
    kinds = {}
    for cases in _recorded().values():
        for form, what, *_ in cases:
            kinds.setdefault((form.is_wmma, form.types[0]), set()).add(what)
    assert {kind for _, kind in kinds} == set(BITS) - {"f32", "s32"}
    for (_, kind), found in kinds.items():
        assert {"normal", "wide"} <= found if kind in ("s8", "u8", "s4", "u4", "b1") else {"cancel", "tiny"} <= found
    assert len(_recorded()) == 100


@pytest.mark.gpu
def test_the_gpu_at_hand_gives_the_recorded_products(gpu):
    from cuda.bindings import driver

    cases = tensorforms.recorded()
    machine = Machine(driver)
    assert not _differences(cases, tensorforms.multiplied(machine, cases))
    for (shape, role, kind), places in tensorforms.fragments():
        assert (machine.fragment(role, kind, shape, "col" if role == "b" else "row") == places).all()
    machine.close()


def _dot(arch, pairs, c, kinds=("f16", "f16", "f32", "f32"), k=16):
    """Return one element of D for pairs of factors; the rest of k is zero."""
    a, b = np.zeros((1, k, 1), np.float16), np.zeros((k, 1, 1), np.float16)
    for place, (x, y) in enumerate(pairs):
        a[0, place], b[place, 0] = x, y
    added = np.full((1, 1, 1), c, np.float16 if kinds[2] == "f16" else np.float32)
    with np.errstate(all="ignore"):
        made = tensorcore.multiply(kinds, a.view(np.uint16), b.view(np.uint16), added.view(f"u{added.itemsize}"), arch)
    return float(made.view(np.float16 if kinds[3] == "f16" else np.float32).item())


ULP = 2.0**-23


@pytest.mark.parametrize(
    ("arch", "bits", "block"),
    [("sm_70", 23, 4), ("sm_75", 24, 8), ("sm_80", 24, 8), ("sm_86", 24, 8), ("sm_90a", 25, 16), ("sm_100", 25, 16)],
)
def test_bits_and_block_of_each_architecture(arch, bits, block):
    """Computed by hand: bits truncated below the largest exponent, and products summed before rounding."""
    down = 2.0**-12
    # 2**-bits counts, and rounding is towards zero; half of it is lost
    assert _dot(arch, [(-down, 2.0 ** (12 - bits))], 1.0) == np.float32(1 - max(2.0**-bits, 2.0**-24))
    assert _dot(arch, [(-down, 2.0 ** (11 - bits))], 1.0) == 1.0
    # products that are lost next to 1 add up to a unit in its last place if they are summed before 1 is added
    tiny = [(down, 2.0 ** (11 - bits))] * 2 ** (bits - 22)
    for place in range(len(tiny), 16):
        pairs = tiny + [(0, 0)] * (place - len(tiny)) + [(1, 1)]
        assert _dot(arch, pairs, 0.0) == (1 + ULP if place >= block else 1.0)
    # with rounding to nearest they would round up from three quarters
    assert _dot(arch, [(1, 1), (down, down), (down, down / 2)], 0.0) == 1.0
    assert _dot(arch, [(1, 1)] + [(down, 2.0 ** (11 - bits))] * 3, 0.0) == 1.0


def _dot8(arch, pairs, c):
    """``_dot`` for patterns of e4m3."""
    k = 16 if len(pairs) <= 16 else 32
    a, b = np.zeros((1, k, 1), np.uint8), np.zeros((k, 1, 1), np.uint8)
    for place, (x, y) in enumerate(pairs):
        a[0, place], b[place, 0] = x, y
    added = np.float32([c]).reshape(1, 1, 1).view(np.uint32)
    return tensorcore.multiply(("e4m3", "e4m3", "f32", "f32"), a, b, added, arch).view(np.float32).item()


def test_8_bit_floats_lose_bits_where_hardware_multiplies_them_itself():
    """sm_89 aligns to 13 bits and keeps 13 of a sum. sm_90 keeps all bits and adds C last, rounding to nearest."""
    one, small, tiny = (0x38, 0x38), (0x04, 0x04), (0x08, 0x04)  # 1, 2**-14 and 2**-13
    for arch, bits in (("sm_89", 13), ("sm_90", 25), ("sm_100", 25), ("sm_120", 25)):
        assert _dot8(arch, [one] + [small] * 3, 0.0) == (1.0 if bits == 13 else 1 + 3 * 2.0**-14)
        assert _dot8(arch, [one] * 4 + [tiny], 0.0) == (4.0 if bits == 13 else 4 + 2.0**-13)
        assert _dot8(arch, [one, tiny], 0.0) == 1 + 2.0**-13
        # the second 16 products are added to the sum of the first
        assert _dot8(arch, [small] * 2 + [(0, 0)] * 14 + [one], 0.0) == 1 + 2.0**-13
        assert _dot8(arch, [(0x3F, 0x3F)] * 32, 0.0) == 32 * 1.875**2
    # C is a term of the sum, truncated, or added to it with rounding
    assert [_dot8(arch, [one], 0.75 * ULP) for arch in ("sm_89", "sm_90", "sm_120")] == [1.0, 1 + ULP, 1.0]


def test_exponents_past_those_of_float32_in_between():
    """Products of bfloat16 past the range of float32 cancel; subnormal products add up."""

    def dot(pairs):
        a, b = np.zeros((1, 8, 1), np.uint16), np.zeros((8, 1, 1), np.uint16)
        for place, exponents in enumerate(pairs):
            a[0, place], b[place, 0] = ((exponent + 127) << 7 for exponent in exponents)
            a[0, place] |= 0x8000 * (place % 2)
        c = np.zeros((1, 1, 1), np.uint32)
        with np.errstate(all="ignore"):
            made = tensorcore.multiply(("bf16", "bf16", "f32", "f32"), a, b, c, "sm_90")
        return made.view(np.float32).item()

    assert dot([(90, 95), (95, 90), (90, 81)]) == np.inf
    assert dot([(90, 95), (95, 90), (60, 10)]) == 0.0  # too far below 2**185
    assert dot([(90, 95), (95, 90), (80, 81), (81, 80), (0, 0)]) == 0.0
    assert dot([(-80, -65), (-90, -57)]) == 2.0**-145 - 2.0**-147
    assert dot([(64, 63)]) == 2.0**127
    assert dot([(64, 64)]) == np.inf


def test_sums_of_float16_round_to_nearest():
    kinds = ("f16", "f16", "f16", "f16")
    assert _dot("sm_90", [(1, 2.0**-11)], 1.0, kinds) == 1.0  # to even
    assert _dot("sm_90", [(1, 2.0**-11), (2.0**-10, 2.0**-10)], 1.0, kinds) == 1 + 2.0**-10
    assert _dot("sm_90", [(60000, 1), (5600, 1)], 0.0, kinds) == np.inf


def test_zeros_are_positive_and_every_nan_is_the_same():
    assert not np.signbit(_dot("sm_90", [(-1, 0.0), (2.0**-14, -(2.0**-14))], -0.0, ("f16", "f16", "f16", "f16")))
    assert not np.signbit(_dot("sm_90", [(-0.0, 1)], -0.0))
    ones = np.ones((1, 16, 1), np.float16).view(np.uint16)
    c = np.full((1, 1, 1), 0xFF812345, np.uint32)
    with np.errstate(all="ignore"):
        made = tensorcore.multiply(("f16", "f16", "f32", "f32"), ones, ones.reshape(16, 1, 1), c, "sm_90")
    assert made.item() == 0x7FFFFFFF


def test_parts_of_a_batch_are_summed_apart():
    """More warps than one table of products holds, some with infinities: results are those of single warps."""
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((16, 16, 90)), rng.standard_normal((16, 8, 90))
    a[3, 5, 11], b[2, 2, 60] = np.inf, 6e4
    a, b = (v.astype(np.float16).view(np.uint16) for v in (a, b))
    c = rng.standard_normal((16, 8, 90)).astype(np.float32).view(np.uint32)
    kinds = ("f16", "f16", "f32", "f32")
    whole = tensorcore.multiply(kinds, a, b, c, "sm_90")
    for w in (0, 11, 60, 89):
        part = slice(w, w + 1)
        assert (tensorcore.multiply(kinds, a[..., part], b[..., part], c[..., part], "sm_90") == whole[..., part]).all()


# ---- layouts ----

MMA = sorted({(form.shape, form.types, form.layouts) for form in map(Form, _recorded()) if not form.is_wmma})


@pytest.mark.parametrize(("shape", "types", "layouts"), MMA)
def test_fragments_of_mma_lie_as_the_isa_draws_them(shape, types, layouts):
    m, n, k = shape
    form = Form(".".join(["m{}n{}k{}".format(*shape), *layouts, types[3], *types[:3]]))
    for role, kind in zip("abcd", types, strict=True):
        rows, columns, quad = form.places(role)
        if form.quads > 1:
            tile = tiles.quads(role, kind, role in "ab" and layouts["ab".index(role)] == "col")
            rows, columns = (rows, columns + 8 * quad) if role == "b" else (rows + 8 * quad, columns)
        else:
            tile = {"a": lambda t: tiles.left(t, m, k), "b": lambda t: tiles.right(t, k, n)}.get(
                role, lambda t: tiles.sums(t, m, n)
            )(kind)
        assert (tile.rows == rows).all(), role
        assert (tile.columns == columns).all(), role


@pytest.mark.parametrize(
    ("what", "places"), tensorforms.fragments(), ids=lambda v: None if isinstance(v, tuple) else ""
)
def test_fragments_of_wmma_lie_as_on_an_h200(what, places):
    shape, role, kind = what
    tile = wmma_tile(role, kind, shape)
    assert (tile.rows * tile.shape[1] + tile.columns == places).all()
    for layout in ("row", "col") if BITS[kind] >= 8 else ("col",) if role == "b" else ("row",):
        assert (_simulated().fragment(role, kind, shape, layout) == places).all()


WMMA = sorted(form.name for form in map(Form, _recorded()) if form.is_wmma and BITS[form.types[0]] >= 8)


@pytest.mark.parametrize(
    "layouts", [("col", "row", "col", "col"), ("row", "row", "row", "col"), ("col", "col", "col", "row")]
)
def test_wmma_takes_every_layout(layouts):
    for name in WMMA:
        form, _, a, b, c, d = _recorded()[name][0]
        assert (_simulated().multiply(form, a, b, c, layouts) == d).all(), name


# ---- whole kernels ----

PRODUCTS = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda::wmma;
template <class T> __device__ T rounded(T x) { return x; }
__device__ float rounded(float x) { return __float_to_tf32(x); }
// A warp a block makes M x N elements of C (row major) = A (row major) * B (column major).
#define PRODUCT(NAME, T, KIND, SUM, M, N, K)                                                            \
  extern "C" __global__ void NAME(const T* a, const T* b, SUM* c, int n, int k) {                      \
    fragment<accumulator, M, N, K, SUM> sum;                                                            \
    fill_fragment(sum, SUM(0));                                                                         \
    for (int i = 0; i < k; i += K) {                                                                    \
      fragment<matrix_a, M, N, K, KIND, row_major> x;                                                   \
      fragment<matrix_b, M, N, K, KIND, col_major> y;                                                   \
      load_matrix_sync(x, a + blockIdx.y * M * k + i, k);                                               \
      load_matrix_sync(y, b + blockIdx.x * N * k + i, k);                                               \
      if (sizeof(T) == 4) {                                                                             \
        for (int e = 0; e < x.num_elements; ++e) x.x[e] = rounded(x.x[e]);                              \
        for (int e = 0; e < y.num_elements; ++e) y.x[e] = rounded(y.x[e]);                              \
      }                                                                                                 \
      mma_sync(sum, x, y, sum);                                                                         \
    }                                                                                                   \
    for (int e = 0; e < sum.num_elements; ++e) sum.x[e] = sum.x[e] + sum.x[e];                          \
    store_matrix_sync(c + blockIdx.y * M * n + blockIdx.x * N, sum, n, mem_row_major);                  \
  }
PRODUCT(halves, half, half, float, 16, 16, 16)
PRODUCT(halves_tall, half, half, half, 32, 8, 16)
PRODUCT(halves_wide, half, half, float, 8, 32, 16)
PRODUCT(bfloats, __nv_bfloat16, __nv_bfloat16, float, 16, 16, 16)
PRODUCT(tf32s, float, precision::tf32, float, 16, 16, 8)
PRODUCT(doubles, double, double, double, 8, 8, 4)
PRODUCT(signed_bytes, signed char, signed char, int, 16, 16, 16)
PRODUCT(bytes, unsigned char, unsigned char, int, 8, 32, 16)
"""


@functools.cache
def _products():
    return SimDevice(PRODUCTS)


@pytest.mark.parametrize(
    ("name", "kind", "total", "tile", "step"),
    [
        ("halves", np.float16, np.float32, (16, 16), 16),
        ("halves_tall", np.float16, np.float16, (32, 8), 16),
        ("halves_wide", np.float16, np.float32, (8, 32), 16),
        ("bfloats", "bf16", np.float32, (16, 16), 16),
        ("tf32s", np.float32, np.float32, (16, 16), 8),
        ("doubles", np.float64, np.float64, (8, 8), 4),
        ("signed_bytes", np.int8, np.int32, (16, 16), 16),
        ("bytes", np.uint8, np.int32, (8, 32), 16),
    ],
)
def test_a_product_written_with_mma_h(name, kind, total, tile, step):
    """Small integers, so that the product is exact in every type."""
    rng = np.random.default_rng(7)
    m, n, k = 2 * tile[0], 3 * tile[1], 3 * step
    low = 0 if kind == np.uint8 else -5
    a, b = rng.integers(low, 6, (m, k)), rng.integers(low, 6, (n, k))
    given = [
        (v.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) if kind == "bf16" else v.astype(kind)
        for v in (a, b)
    ]
    c = np.zeros((m, n), total)
    _products().launch(name, (3, 2), 32, *given, c, n, k, checks=ALL_CHECKS)
    assert (c == 2 * (a @ b.T)).all()


TILES = r"""
#include <cuda_fp16.h>
__device__ unsigned shared(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
__device__ half* spot(half* tile, int row, int chunk, int swizzle) {
  return tile + row * 64 + (chunk ^ (swizzle ? row % 8 : 0)) * 8;
}
// One warp: 16 x 64 of C = A (16 x k) * B (k x 64), by tiles whose rows are 128 bytes.
extern "C" __global__ void product(const half* a, const half* b, float* c, int k, int swizzle) {
  __shared__ __align__(128) half left[16 * 64], right[64 * 64];
  const int t = threadIdx.x;
  float sum[8][4] = {};
  for (int first = 0; first < k; first += 64) {
    for (int i = t; i < 16 * 8; i += 32)
      *reinterpret_cast<int4*>(spot(left, i / 8, i % 8, swizzle)) =
          *reinterpret_cast<const int4*>(a + i / 8 * k + first + i % 8 * 8);
    for (int i = t; i < 64 * 8; i += 32)
      *reinterpret_cast<int4*>(spot(right, i / 8, i % 8, swizzle)) =
          *reinterpret_cast<const int4*>(b + (first + i / 8) * 64 + i % 8 * 8);
    __syncwarp();
    for (int step = 0; step < 64; step += 16) {
      unsigned x[4], y[2];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"  // LEFT
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(shared(spot(left, t % 16, step / 8 + t / 16, swizzle))));
      for (int column = 0; column < 8; ++column) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%0, %1}, [%2];"  // RIGHT
                     : "=r"(y[0]), "=r"(y[1])
                     : "r"(shared(spot(right, step + t % 16, column, swizzle))));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(sum[column][0]), "+f"(sum[column][1]), "+f"(sum[column][2]), "+f"(sum[column][3])
                     : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
      }
    }
    __syncwarp();
  }
  for (int column = 0; column < 8; ++column)
    for (int e = 0; e < 4; ++e)
      c[(t / 4 + e / 2 * 8) * 64 + column * 8 + t % 4 * 2 + e % 2] = sum[column][e];
}
// Four 8 x 8 matrices from registers to shared memory; lane t holds row t / 4, columns 2 (t % 4) and the next.
extern "C" __global__ void scatter(const unsigned* x, half* y, int trans) {
  __shared__ __align__(16) half tile[4 * 64];
  const int t = threadIdx.x;
  const unsigned at = shared(tile + t * 8);
  if (trans)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(x[t]), "r"(x[32 + t]), "r"(x[64 + t]), "r"(x[96 + t]) : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(x[t]), "r"(x[32 + t]), "r"(x[64 + t]), "r"(x[96 + t]) : "memory");
  __syncwarp();
  for (int i = t; i < 256; i += 32) y[i] = tile[i];
}
extern "C" __global__ void turn(const unsigned* x, unsigned* y) {
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y[threadIdx.x]) : "r"(x[threadIdx.x]));
}
// Loads a matrix whose rows are `step` bytes apart from `offset` on.
extern "C" __global__ void rows(unsigned* y, int step, int offset, int filled, int some) {
  __shared__ __align__(16) half tile[64];
  const int t = threadIdx.x;
  for (int i = t; i < filled; i += blockDim.x) tile[i] = __float2half(static_cast<float>(i));
  __syncthreads();
  if (some == 1 && t >= 16) return;
  unsigned found = 0;
  const unsigned at = shared(tile) + offset + t % 8 * step;
  if (some != 2 || t % 2)
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(found) : "r"(at) : "memory");  // ROWS
  y[t] = found;
}
extern "C" __global__ void pointers(const half* x, unsigned* y, int there) {
  __shared__ __align__(16) half tile[64];
  const int t = threadIdx.x;
  tile[t] = x[t];
  tile[t + 32] = x[t + 32];
  __syncwarp();
  const half* at = (there ? tile : x) + t % 8 * 8;
  unsigned found;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.b16 {%0}, [%1];" : "=r"(found) : "l"(at) : "memory");  // POINTER
  y[t] = found;
}
// The second warp stores what the first loads, with or without a barrier between them.
extern "C" __global__ void handed(unsigned* y, int wait) {
  __shared__ __align__(16) half tile[64];
  const int t = threadIdx.x;
  tile[t] = __float2half(0);
  __syncthreads();
  if (t >= 32) {
    const unsigned at = shared(tile + t % 8 * 8);
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(at), "r"(t) : "memory");  // HAND
  }
  if (wait) __syncthreads();
  if (t < 32) {
    unsigned found;
    const unsigned at = shared(tile + t % 8 * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(found) : "r"(at) : "memory");  // TAKE
    y[t] = found;
  }
}
extern "C" __global__ void incomplete(float* y, int lanes) {
  float d[4] = {};
  if (threadIdx.x < lanes)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "  // MMA
                 "{%0, %1, %2, %3}, {%4, %4}, {%4}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(0x3C003C00));
  y[threadIdx.x] = d[0];
}
"""


@functools.cache
def _tiles():
    return SimDevice(TILES)


def _line(mark):
    return next(number for number, line in enumerate(TILES.splitlines(), 1) if line.endswith("// " + mark))


def _product(swizzle, k=128):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-8, 9, shape).astype(np.float16) for shape in ((16, k), (k, 64)))
    c = np.zeros((16, 64), np.float32)
    counters = _tiles().launch("product", 1, 32, a, b, c, k, swizzle, checks=ALL_CHECKS)
    assert (c == a.astype(np.float64) @ b.astype(np.float64)).all()
    return counters


@pytest.mark.parametrize(("swizzle", "ways"), [(1, 1), (0, 8)])
def test_ldmatrix_feeds_mma_and_its_bank_conflicts_are_counted(swizzle, ways):
    """Rows of 128 bytes all begin in bank 0, so the eight rows of a matrix conflict; XOR of row and chunk spreads them
    over the banks."""
    counters = _product(swizzle)
    for mark, requests, matrices in (("LEFT", 8, 4), ("RIGHT", 64, 2)):
        found = [v for (_, number), v in counters.per_line.items() if number == _line(mark)]
        assert len(found) == 1
        assert found[0].shared_load_requests == requests
        assert found[0].worst_bank_conflict == ways
        assert found[0].bank_conflicts == requests * matrices * (ways - 1)


@pytest.mark.parametrize("trans", [0, 1])
def test_stmatrix_puts_rows_where_lanes_say(trans):
    x = np.random.default_rng(2).integers(0, 2**32, 128, dtype=np.uint32)
    y = np.zeros(256, np.uint16)
    _tiles().launch("scatter", 1, 32, x, y, trans, checks=ALL_CHECKS)
    held = x.view(np.uint16).reshape(4, 8, 8)
    assert (y.reshape(4, 8, 8) == (held.swapaxes(1, 2) if trans else held)).all()


def test_movmatrix_turns_a_matrix():
    x = np.random.default_rng(3).integers(0, 2**32, 32, dtype=np.uint32)
    y = np.zeros_like(x)
    _tiles().launch("turn", 1, 32, x, y)
    assert (y.view(np.uint16).reshape(8, 8) == x.view(np.uint16).reshape(8, 8).T).all()


def test_warps_that_stay_away_and_blocks_of_several():
    """The second of three warps returns; each of the others has its own matrices."""
    y = np.zeros((2, 96), np.uint32)
    source = TILES.replace("if (some == 1 && t >= 16) return;", "if (t / 32 == 1) return;").replace(
        "y[t] =", "y[blockIdx.x * 96 + t] ="
    )
    device = SimDevice(source)
    device.launch("rows", 2, 96, y, 16, 0, 64, 0, checks=ALL_CHECKS)
    halves = np.arange(64, dtype=np.float16).view(np.uint32)
    expected = np.concatenate([halves, np.zeros(32, np.uint32), halves])
    assert (y == expected).all()


# ---- errors ----


def _stopped(kind, mark, name, *args, threads=32, device=None):
    with pytest.raises(KernelFault) as caught:
        (device or _tiles()).launch(name, 1, threads, *args, checks=ALL_CHECKS)
    report = caught.value.report
    assert report.kind == kind, str(report)
    assert report.places[0].line == _line(mark), str(report)
    return report


def _registers(count=32):
    return np.zeros(count, np.uint32)


def test_a_matrix_that_is_all_there_is_loaded():
    y = _registers()
    _tiles().launch("rows", 1, 32, y, 16, 0, 64, 0, checks=ALL_CHECKS)
    assert (y.view(np.float16) == np.arange(64)).all()


def test_a_crooked_row_is_misaligned():
    report = _stopped("misaligned", "ROWS", "rows", _registers(), 8, 0, 64, 0)
    assert (report.size, report.access, report.thread, report.lanes) == (16, "shared load", (1, 0, 0), 4)


def test_a_row_past_the_end_is_out_of_bounds():
    """One of the eight lanes whose addresses count is out of bounds; the other 24 addresses are ignored."""
    report = _stopped("out of bounds", "ROWS", "rows", _registers(), 16, 16, 64, 0)
    assert (report.thread, report.lanes) == ((7, 0, 0), 1)
    assert "byte 128 of shared memory; the block has 128 bytes" in str(report)


def test_a_row_that_nobody_wrote_is_uninitialised():
    report = _stopped("uninitialised read", "ROWS", "rows", _registers(), 16, 0, 56, 0)
    assert report.thread == (7, 0, 0)


@pytest.mark.parametrize(("some", "threads"), [(1, 32), (2, 32), (0, 48)])
def test_a_warp_that_is_not_all_there(some, threads):
    """Lanes that returned, took another path, or are past the end of the block."""
    report = _stopped(
        "lanes missing from a warp operation", "ROWS", "rows", _registers(48), 16, 0, 64, some, threads=threads
    )
    assert "ldmatrix" in str(report)


@pytest.mark.parametrize("lanes", [31, 1])
def test_a_product_without_all_lanes(lanes):
    report = _stopped("lanes missing from a warp operation", "MMA", "incomplete", np.zeros(32, np.float32), lanes)
    assert "mma.sync" in str(report)


def test_a_product_of_all_lanes():
    y = np.zeros(32, np.float32)
    _tiles().launch("incomplete", 1, 32, y, 32, checks=ALL_CHECKS)
    assert (y == 8).all()


def test_generic_pointers_lead_to_shared_memory_alone():
    x, y = np.arange(64, dtype=np.float16), _registers()
    _tiles().launch("pointers", 1, 32, x, y, 1, checks=ALL_CHECKS)
    assert (y.view(np.float16) == x).all()
    report = _stopped("out of bounds", "POINTER", "pointers", x, y, 0)
    assert "a row of 16 bytes at the generic address 0x" in str(report)
    assert "not in shared memory" in str(report)
    assert report.lanes == 8


def test_matrices_in_shared_memory_race_as_words_do():
    y = _registers(64)
    _tiles().launch("handed", 1, 64, y, 1, checks=ALL_CHECKS)
    assert (y[:32] == np.arange(32, 64)).all()
    report = _stopped("shared memory race", "TAKE", "handed", y, 0, threads=64)
    assert report.others[0].places[0].line == _line("HAND")


# ---- unsupported ----

HEAD = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry k()
{
    .reg .b32 %r<16>;
    .reg .f32 %f<16>;
    .reg .f64 %d<16>;
    .reg .b64 %p;
    .shared .align 16 .b8 buffer[512];
    LINE
    ret;
}
"""
F, R = "{%f0,%f1,%f2,%f3}", "{%r0,%r1,%r2,%r3}"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"mma.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16 {{%r0,%r1}}, {R}, {{%r4,%r5}}, {{%r0,%r1}};", ".m16n8k16"),
        (f"mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {F}, {R}, {{%r4,%r5}}, {F};", "A must be .row and B .col"),
        (f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f16 {F}, {R}, {{%r4,%r5}}, {{%r0,%r1}};", "the same type"),
        (f"mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {F}, {R}, {{%r4,%r5}}, {F};", "combination of types"),
        (f"mma.sync.aligned.m16n8k16.row.col.relu.f32.f16.f16.f32 {F}, {R}, {{%r4,%r5}}, {F};", "modifier .relu"),
        (f"mma.sync.aligned.m16n8k16.row.col.satfinite.f32.f16.f16.f32 {F}, {R}, {{%r4,%r5}}, {F};", "sums of .f16"),
        (f"mma.sync.m16n8k16.row.col.f32.f16.f16.f32 {F}, {R}, {{%r4,%r5}}, {F};", ".sync.aligned"),
        (f"mma.sync.aligned.m16n8k16.row.col.rn.f32.f16.f16.f32 {F}, {R}, {{%r4,%r5}}, {F};", ".rn is only for .f64"),
        (
            f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e2m1.f32 {F}, {R}, {{%r4,%r5}}, {F};",
            "block-scaled products",
        ),
        (
            "mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 "
            f"{F}, {R}, {{%r4,%r5}}, {F}, %r6, {{0, 0}}, %r7, {{0, 0}};",
            "block-scaled products",
        ),
        (
            f"mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {F}, {R}, {R}, {F}, %r6, 0x0;",
            "sparse matrix products are not simulated yet",
        ),
        (f"mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.or.popc {R}, {{%r4,%r5}}, {{%r6}}, {R};", "popc"),
        ("mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f32 {%r0,%r1,%r2,%r3}, {%r4,%r5}, {%r6,%r7}, "
         "{%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7};", "D must be .f32"),
        (f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {F}, {{%r0,%r1}}, {{%r4,%r5}}, {F};", "4 registers, got"),
        ("wmma.mma.sync.aligned.row.col.m8n8k4.rz.f64.f64.f64.f64 {%d0,%d1}, {%d2}, {%d3}, {%d0,%d1};", "modifier .rz"),
        ("wmma.mma.sync.aligned.col.col.m8n8k32.s32.s4.s4.s32 {%r0,%r1}, {%r2}, {%r3}, {%r0,%r1};", "less than 8 bits"),
        ("wmma.load.a.sync.aligned.row.m16n16k4.shared.f16 {%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7}, [buffer];", ".m16n16k16"),
        ("wmma.load.d.sync.aligned.row.m16n16k16.shared.f32 {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7}, [buffer];", "a matrix"),
        ("ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r0,%r1,%r2}, [buffer];", "modifier .x3"),
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0,%r1}, [buffer];", "sm_100"),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r0}, [buffer];", "loads 2 registers"),
        ("ldmatrix.sync.aligned.m8n8.x1.global.b16 {%r0}, [%p];", "modifier .global"),
        ("stmatrix.sync.aligned.m8n8.x1.shared.b16.relaxed [buffer], {%r0};", "modifier .relaxed"),
        ("movmatrix.sync.aligned.m8n8.b16 %r0, %r1;", "movmatrix.sync.aligned.m8n8.trans.b16"),
        ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f0,%f1,%f2,%f3}, %p, %p, %r1, 0, 1, 1, 1, 0, 0;",
         "sparse matrix products"),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r0], %p, %p, %r1, 1;", "fifth-generation"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_by_name(line, reason):
    try:
        (kernel,) = LoadedModule(HEAD.replace("LINE", line), AddressSpace(), {}.get).functions.values()
        message = str(kernel.refusal)
    except PtxError as error:
        message = str(error)
    assert line.split()[0] in message or line.split(".")[0] in message
    assert reason in message
