"""Kernels on the simulated device: results, divergence and reconvergence, barriers, atomics, calls, async copies."""

import weakref

import numpy as np
import pytest
from simdevice import SimDevice

from cudakit.sim.checks.guard import Guard
from cudakit.sim.chips.properties import chip
from cudakit.sim.lockstep.report import KernelFault
from cudakit.sim.machine.launch import launch

BASIC = r"""
__global__ void vec_add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
__global__ void index3(int* out, int3 n) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  int z = blockIdx.z * blockDim.z + threadIdx.z;
  if (x < n.x && y < n.y && z < n.z) out[(z * n.y + y) * n.x + x] = x + 1000 * y + 1000000 * z;
}
__global__ void grid_stride(const double* x, double* y, long long n) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (long long)blockDim.x)
    y[i] = 2 * x[i];
}
__global__ void vec4(const float4* x, float4* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { float4 v = x[i]; y[i] = make_float4(v.w, v.z, v.y, v.x); }
}
__global__ void collatz(const unsigned* x, int* steps, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned v = x[i]; int s = 0;
  while (v != 1) { if (v & 1) v = 3 * v + 1; else v >>= 1; s++; }
  steps[i] = s;
}
__global__ void local_array(const int* pick, int* out, int n) {
  int a[32]; int t = threadIdx.x;
  for (int i = 0; i < 32; i++) a[i] = i * n + t;
  a[pick[t]] += 7;
  out[t] = a[(pick[t] + t) & 31] + a[pick[t]];
}
struct Pack { char tag; short s[3]; double d; float f[5]; };
__global__ void by_value(Pack p, double* out) {
  int t = threadIdx.x;
  out[t] = p.tag + p.s[t % 3] + p.d + p.f[t % 5];
}
__global__ void narrow(const signed char* a, const unsigned char* b, const short* c, int* out, short* s,
    signed char* h) {
  int t = threadIdx.x;
  out[t] = a[t] + b[t] + c[t]; s[t] = a[t] * 3; h[t] = c[t];
}
__constant__ float table[64];
__device__ int counter = 5;
__device__ int* where = &counter;
__global__ void variables(float* out) { int t = threadIdx.x; out[t] = table[t & 63] + *where;
    if (t == 0) counter = 9; }
__global__ void many(int* hits) { atomicAdd(hits, 1); }
__global__ void ids(unsigned* out) {
  unsigned lane, warp, lt; asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(lt));
  int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[3 * t] = lane; out[3 * t + 1] = warp; out[3 * t + 2] = lt;
}
__global__ void serial(float* x, int n) { float s = 0; for (int i = 0; i < n; i++) s += x[blockIdx.x * n + i];
    x[blockIdx.x * n] = s; }
"""


@pytest.fixture(scope="module")
def basic():
    return SimDevice(BASIC)


@pytest.mark.parametrize("n", [1, 31, 32, 255, 256, 257, 1000, 40_007])
@pytest.mark.parametrize("block", [32, 100, 256, 1024])
def test_vec_add_ragged(basic, n, block):
    a, b = np.random.default_rng(n).random((2, n), np.float32)
    c = np.full(n, np.nan, np.float32)
    counters = basic.launch("vec_add", -(-n // block), block, a, b, c, n)
    assert np.array_equal(c, a + b)
    assert counters.global_load_bytes == 8 * n
    assert counters.global_store_bytes == 4 * n


@pytest.mark.parametrize("block", [(8, 4, 2), (7, 3, 5), (33, 2, 1), (1, 1, 64)])
def test_three_dimensions(basic, block):
    shape = (6, 7, 40)
    out = np.full(shape, -1, np.int32)
    grid = tuple(-(-n // b) for n, b in zip(shape[::-1], block, strict=True))
    basic.launch("index3", grid, block, out, np.array(shape[::-1], np.int32).tobytes())
    z, y, x = np.indices(shape)
    assert np.array_equal(out, x + 1000 * y + 1000000 * z)


def test_grid_stride_and_doubles(basic):
    x = np.random.default_rng(0).random(10_001)
    y = np.zeros_like(x)
    basic.launch("grid_stride", 5, 64, x, y, len(x))
    assert np.array_equal(y, 2 * x)


def test_vector_access(basic):
    x = np.random.default_rng(0).random((77, 4), np.float32)
    y = np.zeros_like(x)
    counters = basic.launch("vec4", 3, 32, x, y, 77)
    assert np.array_equal(y, x[:, ::-1])
    # 16 sectors per full warp; the last warp has 13 lanes
    assert counters.global_load_sectors == 16 + 16 + 7


def test_every_lane_loops_its_own_number_of_times(basic):
    x = np.arange(1, 3001, dtype=np.uint32)
    steps = np.zeros(3000, np.int32)
    basic.launch("collatz", 24, 128, x, steps, 3000)

    def count(v):
        s = 0
        while v != 1:
            v, s = (3 * v + 1 if v & 1 else v >> 1), s + 1
        return s

    assert steps.tolist() == [count(v) for v in range(1, 3001)]


def test_local_array_with_dynamic_index(basic):
    pick = np.random.default_rng(1).integers(0, 32, 96, dtype=np.int32)
    out = np.zeros(96, np.int32)
    basic.launch("local_array", 1, 96, pick, out, 10)
    t = np.arange(96)
    second = (pick + t) & 31
    expected = second * 10 + t + np.where(second == pick, 7, 0) + pick * 10 + t + 7
    assert np.array_equal(out, expected)


def test_struct_parameter(basic):
    layout = np.dtype([("tag", "i1"), ("s", "<i2", 3), ("d", "<f8"), ("f", "<f4", 5)], align=True)
    value = np.zeros((), layout)
    value["tag"], value["s"], value["d"], value["f"] = -3, [100, 200, 300], 0.5, [1, 2, 3, 4, 5]
    out = np.zeros(40)
    basic.launch("by_value", 1, 40, value.tobytes(), out)
    t = np.arange(40)
    assert np.array_equal(out, -3 + value["s"][t % 3] + 0.5 + value["f"][t % 5])


def test_narrow_integers(basic):
    rng = np.random.default_rng(2)
    a = rng.integers(-128, 128, 64).astype(np.int8)
    b = rng.integers(0, 256, 64).astype(np.uint8)
    c = rng.integers(-(1 << 15), 1 << 15, 64).astype(np.int16)
    out, s, h = np.zeros(64, np.int32), np.zeros(64, np.int16), np.zeros(64, np.int8)
    basic.launch("narrow", 1, 64, a, b, c, out, s, h)
    assert np.array_equal(out, a.astype(int) + b + c)
    assert np.array_equal(s, a.astype(np.int16) * 3)
    assert np.array_equal(h, c.astype(np.int8))


def test_constants_and_globals():
    device = SimDevice(BASIC)
    address, size = device.module.globals["table"]
    assert size == 256
    device.space.bytes(address, size).view(np.float32)[:] = np.arange(64)
    out = np.zeros(100, np.float32)
    device.launch("variables", 1, 100, out)
    assert np.array_equal(out, np.arange(100) % 64 + 5)
    address, size = device.module.globals["counter"]
    assert device.space.bytes(address, size).view(np.int32)[0] == 9
    with pytest.raises(KeyError):
        device.module.globals["nothing"]
    device.module.close()
    assert not list(device.space.allocations())
    device.module.close()


def test_more_than_65535_blocks(basic):
    hits = np.zeros(1, np.int32)
    counters = basic.launch("many", 70_001, 3, hits)
    assert hits[0] == 70_001 * 3
    assert counters.blocks == 70_001
    assert counters.atomics == 70_001


def test_what_checks_a_batch_is_gone_before_the_next(monkeypatch):
    """At most one batch's tables exist at a time, in addition to the launch's."""
    guards = []

    class Watched(Guard):
        def __init__(self, *given):
            assert [guard for guard in guards if guard() is not None] == []
            guards.append(weakref.ref(self))
            super().__init__(*given)

    monkeypatch.setattr("cudakit.sim.machine.launch.Guard", Watched)
    hits = np.zeros(1, np.int32)
    SimDevice(BASIC).launch("many", 100, 1024, hits, checks=frozenset({"race", "init"}))
    assert hits[0] == 102_400
    assert len(guards) > 1


@pytest.mark.parametrize("block", [(50, 1, 1), (5, 4, 3), (32, 2, 1)])
def test_lane_numbers(basic, block):
    threads = int(np.prod(block))
    out = np.zeros((threads, 3), np.uint32)
    basic.launch("ids", 1, block, out)
    t = np.arange(threads)
    assert np.array_equal(out[:, 0], t % 32)
    assert np.array_equal(out[:, 1], t // 32)
    assert np.array_equal(out[:, 2], (1 << (t % 32)) - 1)


def test_one_thread_a_block(basic):
    x = np.random.default_rng(0).integers(0, 100, (50, 20)).astype(np.float32)
    y = x.copy()
    basic.launch("serial", 50, 1, y, 20)
    assert np.array_equal(y[:, 0], x.sum(1))


# ---- shared memory and barriers ----

SHARED = r"""
__global__ void tree(const float* x, float* y, int n) {
  extern __shared__ float buffer[];
  int t = threadIdx.x; float v = 0;
  for (int i = t; i < n; i += blockDim.x) v += x[blockIdx.x * n + i];
  buffer[t] = v; __syncthreads();
  for (int size = blockDim.x; size > 1; ) {
    int half = (size + 1) / 2;
    if (t + half < size) buffer[t] += buffer[t + half];
    __syncthreads(); size = half;
  }
  if (t == 0) y[blockIdx.x] = buffer[0];
}
__global__ void missing_barrier(int* out) {
  __shared__ int s[64]; int t = threadIdx.x;
  if (t < 32) { s[t] = t; } else { s[t] = 2 * t; }
  __syncthreads(); out[t] = s[63 - t];
}
__global__ void early_return(int* out, int n) {
  __shared__ int s[256]; int t = threadIdx.x;
  if (t >= n) return;
  s[t] = t; __syncthreads(); out[t] = s[n - 1 - t];
}
__global__ void counts(const int* x, int* out) {
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  int c = __syncthreads_count(x[i] > 0), a = __syncthreads_and(x[i] > -5), o = __syncthreads_or(x[i] > 8);
  out[i] = c * 4 + (a ? 2 : 0) + (o ? 1 : 0);
}
__global__ void named(int* out) {
  __shared__ int s[128]; int t = threadIdx.x;
  if (t < 64) { s[t] = t; asm volatile("bar.sync 1, 64;"); out[t] = s[63 - t]; }
  else { s[t] = t; asm volatile("bar.sync 2, 64;"); out[t] = s[191 - t]; }
}
__global__ void producer(int* out) {
  __shared__ int s[32]; int t = threadIdx.x;
  if (t < 32) { s[t] = t * t; asm volatile("bar.arrive 3, 64;" ::: "memory"); }
  else { asm volatile("bar.sync 3, 64;" ::: "memory"); out[t - 32] = s[t - 32]; }
}
__global__ void matmul(const float* A, const float* B, float* C, int n) {
  __shared__ float a[16][16], b[16][16];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x; float s = 0;
  for (int k = 0; k < n; k += 16) {
    a[y][x] = A[row * n + k + x]; b[y][x] = B[(k + y) * n + col]; __syncthreads();
    for (int j = 0; j < 16; j++) s += a[y][j] * b[j][x];
    __syncthreads();
  }
  C[row * n + col] = s;
}
__global__ void big(float* out, int n) {
  extern __shared__ float buffer[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) buffer[i] = i;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = buffer[n - 1 - i];
}
"""


@pytest.fixture(scope="module")
def shared():
    return SimDevice(SHARED)


@pytest.mark.parametrize("block", [1, 2, 32, 33, 96, 100, 256, 384, 1024])
def test_tree_reduction(shared, block):
    x = np.random.default_rng(block).integers(-50, 50, (37, 130)).astype(np.float32)
    y = np.zeros(37, np.float32)
    shared.launch("tree", 37, block, x, y, 130, shared=4 * block)
    assert np.array_equal(y, x.sum(1))


def test_parted_lanes_meet_at_the_barrier(shared):
    out = np.zeros(64, np.int32)
    shared.launch("missing_barrier", 1, 64, out)
    t = 63 - np.arange(64)
    assert np.array_equal(out, np.where(t < 32, t, 2 * t))


@pytest.mark.parametrize("n", [256, 200, 96, 5])
def test_lanes_that_returned_hold_no_barrier_up(shared, n):
    out = np.zeros(256, np.int32)
    shared.launch("early_return", 1, 256, out, n)
    assert np.array_equal(out[:n], np.arange(n)[::-1])


@pytest.mark.parametrize("block", [64, 50])
def test_barriers_that_reduce(shared, block):
    x = np.random.default_rng(3).integers(-10, 10, (9, block)).astype(np.int32)
    out = np.zeros_like(x)
    shared.launch("counts", 9, block, x, out)
    expected = 4 * (x > 0).sum(1) + 2 * (x > -5).all(1) + (x > 8).any(1)
    assert np.array_equal(out, np.broadcast_to(expected[:, None], x.shape))


def test_named_barriers_of_half_a_block(shared):
    out = np.zeros(128, np.int32)
    shared.launch("named", 3, 128, out)
    assert np.array_equal(out, np.concatenate([np.arange(64)[::-1], np.arange(64, 128)[::-1]]))
    out = np.zeros(32, np.int32)
    shared.launch("producer", 2, 64, out)
    assert np.array_equal(out, np.arange(32) ** 2)


def test_tiled_matmul(shared):
    a, b = np.random.default_rng(0).integers(-8, 8, (2, 64, 64)).astype(np.float32)
    c = np.zeros_like(a)
    counters = shared.launch("matmul", (4, 4), (16, 16), a, b, c, 64)
    assert np.array_equal(c, a @ b)
    # each block reads 4 tiles of both; a warp reads two rows of 16: 2 x 64 bytes
    assert counters.global_load_requests == 16 * 4 * 2 * 8
    assert counters.sectors_per_request == 4
    assert counters.bank_conflicts == 0


def test_dynamic_shared_memory_past_48_kb(shared):
    n = 50_000
    out = np.zeros(n, np.float32)
    shared.launch("big", 1, 256, out, n, shared=4 * n)
    assert np.array_equal(out, np.arange(n)[::-1])
    with pytest.raises(KernelFault, match="the block has 199996 bytes"):
        shared.launch("big", 1, 256, out, n, shared=4 * n - 4)


# ---- lanes of a warp ----

WARP = r"""
__global__ void warp_sum(const float* x, float* y) {
  float v = x[blockIdx.x * 32 + threadIdx.x];
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  if (threadIdx.x == 0) y[blockIdx.x] = v;
}
__global__ void shuffles(const int* x, int* out, int k) {
  int t = threadIdx.x, v = x[t], n = blockDim.x;
  out[t] = __shfl_up_sync(~0u, v, 3); out[n + t] = __shfl_down_sync(~0u, v, 5, 16);
  out[2 * n + t] = __shfl_sync(~0u, v, t * k, 8); out[3 * n + t] = __shfl_xor_sync(~0u, v, 1);
}
__global__ void wide_shuffle(const double* x, double* y) {
    y[threadIdx.x] = __shfl_down_sync(~0u, x[threadIdx.x], 1); }
__global__ void votes(const int* x, unsigned* out) {
  int t = threadIdx.x; int p = x[t] > 0;
  out[4 * t] = __ballot_sync(~0u, p); out[4 * t + 1] = __any_sync(~0u, x[t] == 9);
  out[4 * t + 2] = __all_sync(~0u, x[t] > -100); out[4 * t + 3] = __match_any_sync(~0u, x[t]);
}
__global__ void reduces(const int* x, unsigned* out) {
  int t = threadIdx.x;
  out[4 * t] = __reduce_add_sync(~0u, x[t]); out[4 * t + 1] = __reduce_min_sync(~0u, x[t]);
  out[4 * t + 2] = __reduce_max_sync(~0u, (unsigned)x[t]); out[4 * t + 3] = __reduce_xor_sync(~0u, x[t]);
}
__global__ void half_masks(const int* x, int* out) {
  int t = threadIdx.x;
  if (t % 32 < 16) out[t] = __reduce_add_sync(0xffff, x[t]);
  else out[t] = __shfl_xor_sync(0xffff0000, x[t], 1) + __popc(__ballot_sync(0xffff0000, x[t] > 0));
}
__global__ void active(unsigned* out) { int t = threadIdx.x; if (t % 3 == 0) out[t] = __activemask();
    else out[t] = 0; }
__global__ void scan(const int* x, int* y) {
  int t = threadIdx.x, v = x[t];
  for (int d = 1; d < 32; d *= 2) { int u = __shfl_up_sync(~0u, v, d); if ((t & 31) >= d) v += u; }
  y[t] = v;
}
__global__ void absent(int* out) { int t = threadIdx.x; if (t < 8) out[t] = __shfl_down_sync(0xff, t, 4); }
__global__ void names_too_many(int* out) {
  int t = threadIdx.x;
  if (t < 8) {
    out[t] = __shfl_xor_sync(~0u, t, 1);
  }
  __syncthreads();
}
__global__ void both_ways(int* out) {
  int t = threadIdx.x, v;
  __shared__ int s[64];
  if (t % 2) { v = __ballot_sync(0xaaaaaaaa, t > 3); s[t] = t; __syncwarp(); }
  else { s[t] = 5; __syncwarp(); v = s[t + 1] - 1; }
  out[t] = v;
}
__global__ void after_divergence(const int* x, int* out) {
  int t = threadIdx.x, v = 0;
  for (int i = 0; i < x[t]; i++) { if (i & 1) v += 2; else v += 5; }
  out[t] = __shfl_xor_sync(~0u, v, 1);
}
"""


@pytest.fixture(scope="module")
def warp():
    return SimDevice(WARP)


def test_warp_sum(warp):
    x = np.random.default_rng(0).integers(-50, 50, (700, 32)).astype(np.float32)
    y = np.zeros(700, np.float32)
    counters = warp.launch("warp_sum", 700, 32, x, y)
    assert np.array_equal(y, x.sum(1))
    assert counters.shuffles == 700 * 5


@pytest.mark.parametrize("k", [1, 3])
def test_shuffle_modes(warp, k):
    n = 64
    x = np.random.default_rng(k).integers(0, 1000, n).astype(np.int32)
    out = np.zeros((4, n), np.int32)
    warp.launch("shuffles", 1, n, x, out, k)
    t = np.arange(n)
    lane, base = t % 32, t // 32 * 32
    assert np.array_equal(out[0], x[np.where(lane >= 3, t - 3, t)])
    assert np.array_equal(out[1], x[np.where(lane % 16 + 5 < 16, t + 5, t)])
    assert np.array_equal(out[2], x[base + lane // 8 * 8 + t * k % 8])
    assert np.array_equal(out[3], x[t ^ 1])


def test_wide_shuffle(warp):
    x = np.random.default_rng(0).random(32)
    y = np.zeros(32)
    warp.launch("wide_shuffle", 1, 32, x, y)
    assert np.array_equal(y, np.append(x[1:], x[31]))


def test_votes(warp):
    x = np.random.default_rng(4).integers(-10, 10, 96).astype(np.int32)
    x[5] = 9
    x[32:64] = np.arange(32) - 40
    out = np.zeros((96, 4), np.uint32)
    warp.launch("votes", 1, 96, x, out)
    for w in range(3):
        v = x[32 * w : 32 * w + 32]
        rows = out[32 * w : 32 * w + 32]
        assert (rows[:, 0] == sum(1 << i for i in range(32) if v[i] > 0)).all()
        assert (rows[:, 1] == (v == 9).any()).all()
        assert (rows[:, 2] == 1).all()
        assert rows[:, 3].tolist() == [sum(1 << i for i in range(32) if v[i] == u) for u in v]


def test_reductions(warp):
    x = np.random.default_rng(5).integers(-1000, 1000, 64).astype(np.int32)
    out = np.zeros((64, 4), np.uint32)
    warp.launch("reduces", 1, 64, x, out)
    for w in range(2):
        v = x[32 * w : 32 * w + 32]
        expected = [v.sum(), v.min(), v.view(np.uint32).max(), np.bitwise_xor.reduce(v)]
        assert np.array_equal(
            out[32 * w : 32 * w + 32].view(np.int32), np.tile(np.array(expected).astype(np.int32), (32, 1))
        )


def test_masks_of_half_a_warp(warp):
    x = np.random.default_rng(6).integers(-9, 9, 64).astype(np.int32)
    out = np.zeros(64, np.int32)
    warp.launch("half_masks", 1, 64, x, out)
    for w in range(2):
        low, high = x[32 * w : 32 * w + 16], x[32 * w + 16 : 32 * w + 32]
        assert (out[32 * w : 32 * w + 16] == low.sum()).all()
        assert np.array_equal(out[32 * w + 16 : 32 * w + 32], high[np.arange(16) ^ 1] + (high > 0).sum())


@pytest.mark.parametrize("block", [32, 40])
def test_active_mask(warp, block):
    out = np.zeros(block, np.uint32)
    warp.launch("active", 1, block, out)
    for first in range(0, block, 32):
        inside = [t for t in range(first, min(first + 32, block)) if t % 3 == 0]
        assert {int(out[t]) for t in inside} == {sum(1 << (t - first) for t in inside)}


def test_scan(warp):
    x = np.arange(32, dtype=np.int32) ** 2
    y = np.zeros(32, np.int32)
    warp.launch("scan", 1, 32, x, y)
    assert np.array_equal(y, np.cumsum(x))


def test_shuffle_after_ragged_loop(warp):
    x = np.random.default_rng(7).integers(0, 50, 64).astype(np.int32)
    out = np.zeros(64, np.int32)
    warp.launch("after_divergence", 1, 64, x, out)
    assert np.array_equal(out, (x // 2 * 7 + x % 2 * 5)[np.arange(64) ^ 1])


def test_a_shuffle_from_an_absent_lane(warp):
    out = np.zeros(8, np.int32)
    with pytest.raises(KernelFault) as caught:
        warp.launch("absent", 1, 32, out)
    assert caught.value.report.kind == "lanes missing from a warp operation"
    assert "the undefined result is stored" in caught.value.report.detail
    warp.launch("absent", 1, 32, out, checks=frozenset())
    assert out.tolist() == [4, 5, 6, 7, -1, -1, -1, -1]


def test_a_mask_that_names_lanes_which_never_come(warp):
    out = np.zeros(32, np.int32)
    with pytest.raises(KernelFault) as caught:
        warp.launch("names_too_many", 1, 32, out)
    report = caught.value.report
    assert report.kind == "lanes missing from a warp operation"
    assert "8, 9, 10" in report.detail
    assert "__shfl_xor_sync(~0u, t, 1)" in report.text
    warp.launch("names_too_many", 1, 32, out, checks=frozenset())
    assert out[:8].tolist() == [1, 0, 3, 2, 5, 4, 7, 6]
    # lanes that have exited or are past the end of the block are not waited for
    warp.launch("names_too_many", 1, 8, out)


def test_lanes_meet_at_different_warp_barriers(warp):
    out = np.zeros(64, np.int32)
    warp.launch("both_ways", 1, 64, out)
    t = np.arange(64)
    ballots = np.where(t < 32, 0xAAAAAAA0, 0xAAAAAAAA).astype(np.uint32).view(np.int32)
    assert np.array_equal(out, np.where(t % 2, ballots, t // 2 * 2))


# ---- atomics, and lanes that wait for each other ----

ATOMIC = r"""
__global__ void histogram(const int* x, int* h, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&h[x[i]], 1);
}
__global__ void ticket(int* next, int* order) { int t = atomicAdd(next, 2);
    order[t / 2] = blockIdx.x * blockDim.x + threadIdx.x; }
__global__ void ranks(const int* x, int* count, int* rank, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) rank[i] = atomicAdd(&count[x[i]], 1);
}
__global__ void all_ops(const int* x, int* m, int* old, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
  int v = x[i];
  old[i] = atomicMin(m, v); atomicMax(m + 1, v); atomicAnd(m + 2, v); atomicOr(m + 3, v); atomicXor(m + 4, v);
  atomicSub(m + 5, v); atomicInc((unsigned*)m + 6, 10u); atomicDec((unsigned*)m + 7, 10u); atomicExch(m + 8, v);
  atomicMax((unsigned*)m + 9, (unsigned)v); atomicAdd((unsigned long long*)(m + 10), (unsigned long long)v);
}
__global__ void float_sum(const float* x, float* s, double* d, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) { atomicAdd(s + (i & 1), x[i]);
    atomicAdd(d, (double)x[i]); }
}
__global__ void cas_max(const float* x, int* m, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
  int old = *m, assumed;
  do { assumed = old; if (__int_as_float(assumed) >= x[i]) break;
    old = atomicCAS(m, assumed, __float_as_int(x[i])); } while (old != assumed);
}
__global__ void spin_lock(int* lock, int* total, int* history) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  while (atomicCAS(lock, 0, 1) != 0) {}
  int k = *(volatile int*)total; history[k] = i; *(volatile int*)total = k + 1;
  __threadfence(); atomicExch(lock, 0);
}
__global__ void chain(volatile int* flags, int* out) {
  int b = blockIdx.x;
  if (threadIdx.x == 0) { if (b > 0) while (flags[b - 1] == 0) {} out[b] = b ? out[b - 1] + b : 0;
    __threadfence(); flags[b] = 1; }
}
__global__ void slow_producer(volatile int* flag, int* out, int n) {
  unsigned v = threadIdx.x;
  if (blockIdx.x == 1) {
    for (int i = 0; i < n; i++) v = v * 1664525u + 1013904223u;
    out[1] = v; __threadfence(); *flag = 1;
  }
  else { while (*flag == 0) {} out[0] = out[1] + 1; }
}
__global__ void last_block(const float* x, float* part, float* y, unsigned* done, int n) {
  __shared__ float s[64]; __shared__ bool last; int t = threadIdx.x, i = blockIdx.x * 64 + t;
  s[t] = i < n ? x[i] : 0; __syncthreads();
  for (int h = 32; h; h >>= 1) { if (t < h) s[t] += s[t + h]; __syncthreads(); }
  if (t == 0) { part[blockIdx.x] = s[0]; __threadfence(); last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1; }
  __syncthreads();
  if (last && t == 0) { float v = 0; for (int k = 0; k < gridDim.x; k++) v += ((volatile float*)part)[k]; *y = v; }
}
__global__ void grid_barrier(int* arrived, int* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] = i; __threadfence(); __syncthreads();
  if (threadIdx.x == 0) { atomicAdd(arrived, 1); while (*(volatile int*)arrived < gridDim.x) {} }
  __syncthreads(); int v = x[(i + 100) % n]; __syncthreads();
  if (threadIdx.x == 0) { atomicAdd(arrived + 1, 1); while (*(volatile int*)(arrived + 1) < gridDim.x) {} }
  __syncthreads(); x[i] = v;
}
__global__ void shared_histogram(const unsigned char* x, unsigned* h, int n) {
  __shared__ unsigned s[256]; for (int i = threadIdx.x; i < 256; i += blockDim.x) s[i] = 0; __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&s[x[i]], 1u);
  __syncthreads(); for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&h[i], s[i]);
}
"""


@pytest.fixture(scope="module")
def atomic():
    return SimDevice(ATOMIC)


@pytest.mark.parametrize("kinds", [1, 7, 5000])
def test_histogram(atomic, kinds):
    x = np.random.default_rng(kinds).integers(0, kinds, 50_000).astype(np.int32)
    h = np.zeros(kinds, np.int32)
    counters = atomic.launch("histogram", 20, 256, x, h, len(x))
    assert np.array_equal(h, np.bincount(x, minlength=kinds))
    assert counters.atomics == -(-50_000 // 32)


def test_atomics_return_what_was_there(atomic):
    order = np.full(6 * 96, -1, np.int32)
    start = np.zeros(1, np.int32)
    atomic.launch("ticket", 6, 96, start, order)
    assert start[0] == 2 * 6 * 96
    assert sorted(order) == list(range(6 * 96))


@pytest.mark.parametrize("kinds", [2, 9, 400])
def test_each_lane_gets_what_it_found(atomic, kinds):
    x = np.random.default_rng(kinds).integers(0, kinds, 700).astype(np.int32)
    count, rank = np.zeros(kinds, np.int32), np.full(700, -1, np.int32)
    atomic.launch("ranks", 3, 256, x, count, rank, 700)
    # lanes run one after another, lowest first
    expected = [int((x[:i] == x[i]).sum()) for i in range(700)]
    assert rank.tolist() == expected


@pytest.mark.parametrize("n", [1, 20, 1000])
def test_all_atomic_operations(atomic, n):
    x = np.random.default_rng(n).integers(-1000, 1000, n).astype(np.int32)
    m = np.array([500, -500, -1, 0, 3, 7, 4, 4, 0, 0, 0, 0], np.int32)
    old = np.zeros(n, np.int32)
    atomic.launch("all_ops", -(-n // 128), 128, x, m, old, n)
    assert m[0] == min(500, x.min())
    assert m[1] == max(-500, x.max())
    assert m[2] == np.bitwise_and.reduce(x)
    assert m[3] == np.bitwise_or.reduce(x)
    assert m[4] == np.bitwise_xor.reduce(x) ^ 3
    assert m[5] == 7 - x.sum()
    inc, dec = 4, 4
    for _ in range(n):
        inc, dec = (0 if inc >= 10 else inc + 1), (10 if dec == 0 or dec > 10 else dec - 1)
    assert (m[6], m[7]) == (inc, dec)
    assert m[8] in x
    assert m[9:10].view(np.uint32)[0] == x.view(np.uint32).max()
    assert m[10:12].view(np.int64)[0] == x.sum()
    running = np.minimum.accumulate(np.append(500, x))[:-1]
    assert sorted(old) == sorted(running)


def test_float_atomics(atomic):
    x = np.random.default_rng(0).integers(-100, 100, 3000).astype(np.float32) / 4
    s, d = np.zeros(2, np.float32), np.zeros(1)
    atomic.launch("float_sum", 12, 256, x, s, d, len(x))
    assert s.tolist() == [x[::2].sum(), x[1::2].sum()]
    assert d[0] == x.sum(dtype=float)


def test_compare_and_swap_loop(atomic):
    x = np.random.default_rng(0).random(5000).astype(np.float32)
    m = np.zeros(1, np.float32)
    atomic.launch("cas_max", 20, 256, x, m, len(x))
    assert m[0] == x.max()


def test_spin_lock_within_a_warp(atomic):
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    history = np.full(128, -1, np.int32)
    atomic.launch("spin_lock", 2, 64, lock, total, history)
    assert total[0] == 128
    assert sorted(history) == list(range(128))
    assert lock[0] == 0


def test_blocks_that_wait_for_earlier_blocks(atomic):
    flags, out = np.zeros(300, np.int32), np.zeros(300, np.int32)
    atomic.launch("chain", 300, 64, flags, out)
    assert np.array_equal(out, np.cumsum(np.arange(300)))


def test_waiting_for_a_long_computation_is_no_hang(atomic):
    flag, out = np.zeros(1, np.int32), np.zeros(2, np.int32)
    atomic.launch("slow_producer", 2, 1, flag, out, 40_000)
    v = 0
    for _ in range(40_000):
        v = (v * 1664525 + 1013904223) % (1 << 32)
    assert out.view(np.uint32).tolist() == [v + 1, v]


def test_last_block_finishes(atomic):
    x = np.random.default_rng(0).integers(0, 9, 3000).astype(np.float32)
    y, done = np.zeros(1, np.float32), np.zeros(1, np.uint32)
    part = np.zeros(47, np.float32)
    atomic.launch("last_block", 47, 64, x, part, y, done, 3000)
    assert y[0] == x.sum()


def test_grid_barrier_by_hand(atomic):
    n = 32 * 64
    x, arrived = np.zeros(n, np.int32), np.zeros(2, np.int32)
    atomic.launch("grid_barrier", 32, 64, arrived, x, n, cooperative=True)
    assert np.array_equal(x, (np.arange(n) + 100) % n)


def test_shared_atomics(atomic):
    x = np.random.default_rng(0).integers(0, 256, 20_000).astype(np.uint8)
    h = np.zeros(256, np.uint32)
    atomic.launch("shared_histogram", 8, 128, x, h, len(x))
    assert np.array_equal(h, np.bincount(x, minlength=256))


def test_cooperative_groups():
    device = SimDevice(r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void rotate(int* x, int* sums) {
  auto grid = cg::this_grid(); auto block = cg::this_thread_block(); auto tile = cg::tiled_partition<8>(block);
  int i = grid.thread_rank(), n = grid.size();
  x[i] = i; grid.sync(); int v = x[(i + 1) % n]; grid.sync(); x[i] = v;
  int s = cg::reduce(tile, v, cg::plus<int>());
  if (tile.thread_rank() == 0) sums[i / 8] = s;
}""")
    x, sums = np.zeros(640, np.int32), np.zeros(80, np.int32)
    device.launch("rotate", 10, 64, x, sums, cooperative=True)
    expected = (np.arange(640) + 1) % 640
    assert np.array_equal(x, expected)
    assert np.array_equal(sums, expected.reshape(80, 8).sum(1))


# ---- calls, printf, templates, generic pointers, cp.async ----

MORE = r"""
#include <cuda_pipeline.h>
#include <cuda_fp16.h>
struct Box { int a[4]; float b; };
__device__ __noinline__ float weigh(float x, Box p, int i) { return x * p.a[i & 3] + p.b; }
__device__ __noinline__ Box make(int i) { Box b; for (int k = 0; k < 4; k++) b.a[k] = i + k; b.b = 0.5f * i;
    return b; }
__global__ void calls(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { Box b = make(i); y[i] = (i & 1) ? weigh(x[i], b, i) : weigh(-x[i], b, i + 1) + 1; }
}
__device__ __noinline__ unsigned ackermann(unsigned m, unsigned n) {
  if (m == 0) return n + 1;
  return n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}
__global__ void recursion(unsigned* out) { int t = threadIdx.x; out[t] = ackermann(t % 3, t / 3); }
__device__ __noinline__ int deeper(volatile int* p, int n) { volatile int a[64]; a[n & 63] = n;
    return n > 100000 ? *p : deeper(p, n + 1) + a[n & 63]; }
__global__ void endless(int* p) { *p = deeper(p, 0); }
template <typename T, int N> __global__ void scale(T* x) { x[threadIdx.x] = x[threadIdx.x] * T(N); }
template __global__ void scale<double, 3>(double*);
template __global__ void scale<short, 5>(short*);
__global__ void say(int n) {
  if (threadIdx.x < n) printf("thread %2d of %u: %.3f %s|%c|%lld %x %%\n", threadIdx.x, blockDim.x,
    threadIdx.x / 4.0, "ok", 'a' + threadIdx.x, -5000000000LL, 255u);
}
__global__ void insist(const int* x) { assert(x[threadIdx.x] < 5); }
__global__ void stop(int n) { if (threadIdx.x == n) __trap(); }
__device__ __noinline__ int through(const int* p, int i) { return p[i]; }
__global__ void generic(const int* g, int* out) {
  __shared__ int s[64]; int l[4]; int t = threadIdx.x;
  s[t] = 1000 + t; for (int i = 0; i < 4; i++) l[i] = 100 * i + t;
  __syncthreads();
  const int* p = t % 3 == 0 ? g : t % 3 == 1 ? s : l;
  out[t] = through(p, t & 3) + (__isShared(p) ? 10000 : 0) + (__isGlobal(p) ? 20000 : 0) + (__isLocal(p) ? 30000 : 0);
}
__global__ void copy_async(const float4* x, float4* y) {
  __shared__ float4 s[2][64]; int t = threadIdx.x;
  __pipeline_memcpy_async(&s[0][t], x + t, 16); __pipeline_commit();
  __pipeline_memcpy_async(&s[1][t], x + 64 + t, 16, 8); __pipeline_commit();
  __pipeline_wait_prior(1); __syncthreads(); y[t] = s[0][63 - t];
  __pipeline_wait_prior(0); __syncthreads(); y[64 + t] = s[1][63 - t];
}
__global__ void copy_async_no_wait(const float4* x, float4* y) {
  __shared__ float4 s[64]; int t = threadIdx.x;
  __pipeline_memcpy_async(&s[t], x + t, 16); __pipeline_commit(); __syncthreads(); y[t] = s[63 - t];
}
__global__ void copy_async_too_early(const float4* x, float4* y) {
  __shared__ float4 s[2][64]; int t = threadIdx.x;
  __pipeline_memcpy_async(&s[0][t], x + t, 16); __pipeline_commit();
  __pipeline_memcpy_async(&s[1][t], x + 64 + t, 16); __pipeline_commit();
  if (t < 32) __pipeline_wait_prior(1);
  __syncthreads(); y[t] = s[0][t]; y[64 + t] = s[1][t];
}
struct Table { float w[600]; int n; };
__device__ __noinline__ float total(const float* w, int n) {
  float s = 0; for (int i = 0; i < n; i++) s += w[i];
  return s;
}
__global__ void big_parameter(const __grid_constant__ Table p, float* y) {
  int t = threadIdx.x; y[t] = p.w[(t * 7) % p.n] + total(p.w, p.n);
}
__global__ void registers_name_barriers(int* out, const int* number) {
  __shared__ int s[64]; int t = threadIdx.x;
  s[t] = 3 * t; asm volatile("bar.sync %0, %1;" :: "r"(number[t]), "r"(32) : "memory"); out[t] = s[t ^ 31];
}
__global__ void match_all(const int* x, int* out) {
  int p, t = threadIdx.x; unsigned m = __match_all_sync(~0u, x[t], &p); out[2 * t] = m; out[2 * t + 1] = p;
}
__global__ void elected(unsigned* out) {
  int t = threadIdx.x; unsigned who, me;
  if (t % 32 >= 5)
    asm volatile("{ .reg .pred p; elect.sync %0|p, 0xffffffe0; selp.u32 %1, 1, 0, p; }" : "=r"(who), "=r"(me));
  else who = 77, me = 0;
  out[2 * t] = who; out[2 * t + 1] = me;
}
__global__ void swap_chain(int* x, int* old) {
  int t = threadIdx.x; old[t] = atomicExch(x, t + 1); old[64 + t] = atomicCAS(x + 1, t, t + 1);
  old[128 + t] = atomicCAS(x + 2, 0, t + 5);
}
__global__ void half_sum(const __half2* x, __half2* y) { int t = threadIdx.x; y[t] = __hadd2(x[t], x[(t + 1) & 31]); }
__global__ void choose(const int* x, int* out) {
  int t = threadIdx.x, v;
  switch (x[t]) { case 0: v = 5; break; case 1: v = t * 3; break; case 2: v = -t; break; case 3: v = t * t; break;
    case 4: v = 77; break; case 5: v = t << 3; break; case 6: v = t ^ 21; break; default: v = 1000; }
  out[t] = v;
}
__global__ void guards(const int* x, int* out) {
  int t = threadIdx.x, v = -1;
  asm volatile("{ .reg .pred p; setp.gt.s32 p, %1, 3; @p ld.global.u32 %0, [%2]; @!p mov.u32 %0, 17; }"
    : "+r"(v) : "r"(t), "l"(x + t));
  asm volatile("{ .reg .pred p; setp.lt.s32 p, %0, 5; @p bra L; st.global.u32 [%1], %2; L: }"
    :: "r"(t), "l"(out + t), "r"(v));
}
__global__ void timer(long long* out) { long long t = clock64(); while (clock64() - t < 100000) {}
    out[threadIdx.x] = clock64() - t; }
"""


@pytest.fixture(scope="module")
def more():
    return SimDevice(MORE)


def test_calls_with_structs(more):
    x = np.arange(100, dtype=np.float32)
    y = np.zeros(100, np.float32)
    more.launch("calls", 2, 64, x, y, 100)
    i = np.arange(100)
    odd = x * (i + (i & 3)) + 0.5 * i
    even = -x * (i + ((i + 1) & 3)) + 0.5 * i + 1
    assert np.array_equal(y, np.where(i & 1, odd, even).astype(np.float32))


def test_recursion_takes_every_lane_its_own_way(more):
    out = np.zeros(30, np.uint32)
    more.launch("recursion", 1, 30, out)
    n = np.arange(30) // 3
    assert np.array_equal(out, np.choose(np.arange(30) % 3, [n + 1, n + 2, 2 * n + 3]))


def test_endless_recursion_is_reported(more):
    with pytest.raises(
        KernelFault, match=r"stack overflow: the call of deeper at depth \d+ needs more than the thread's 8192 bytes"
    ):
        more.launch("endless", 1, 32, np.zeros(1, np.int32))


def test_templates(more):
    x = np.arange(8.0)
    more.launch("_Z5scaleIdLi3EEvPT_", 1, 8, x)
    assert np.array_equal(x, 3 * np.arange(8))
    y = np.arange(8, dtype=np.int16)
    more.launch("_Z5scaleIsLi5EEvPT_", 1, 8, y)
    assert np.array_equal(y, 5 * np.arange(8))


def test_printf(more):
    more.printed.clear()
    more.launch("say", 1, 32, 3)
    assert "".join(more.printed) == "".join(
        f"thread {t:2d} of 32: {t / 4:.3f} ok|{chr(97 + t)}|-5000000000 ff %\n" for t in range(3)
    )


def test_assertion_names_the_line(more):
    x = np.arange(64, dtype=np.int32) % 6
    with pytest.raises(KernelFault, match=r"x\[threadIdx\.x\] < 5") as caught:
        more.launch("insist", 1, 64, x)
    report = caught.value.report
    assert report.kind == "assertion"
    assert report.thread == (5, 0, 0)
    assert report.lanes == 10
    assert "assert(x[threadIdx.x] < 5)" in report.text


def test_trap(more):
    more.launch("stop", 1, 32, 40)
    with pytest.raises(KernelFault) as caught:
        more.launch("stop", 1, 32, 7)
    assert caught.value.report.kind == "trap"
    assert caught.value.report.thread == (7, 0, 0)


def test_generic_pointers_to_three_spaces_at_once(more):
    g, out = np.arange(4, dtype=np.int32) + 50, np.zeros(64, np.int32)
    more.launch("generic", 2, 64, g, out)
    t = np.arange(64)
    expected = np.choose(t % 3, [g[t & 3] + 20000, 1000 + (t & 3) + 10000, 100 * (t & 3) + t + 30000])
    assert np.array_equal(out, expected)


def test_async_copies_arrive_at_their_wait(more):
    x = np.random.default_rng(0).random((128, 4), np.float32)
    y = np.zeros_like(x)
    more.launch("copy_async", 1, 64, x, y)
    assert np.array_equal(y[:64], x[:64][::-1])
    # zfill 8: the last 8 of the 16 bytes are zero
    assert np.array_equal(y[64:, :2], x[64:, :2][::-1])
    assert (y[64:, 2:] == 0).all()


def test_async_copy_without_wait_does_not_arrive(more):
    x = np.random.default_rng(0).random((64, 4), np.float32)
    y = np.zeros_like(x)
    more.launch("copy_async_no_wait", 1, 64, x, y)
    assert not np.isin(y, x).any()


def test_async_copies_arrive_no_earlier_than_their_wait(more):
    x = np.random.default_rng(0).random((128, 4), np.float32)
    y = np.zeros_like(x)
    more.launch("copy_async_too_early", 1, 64, x, y)
    assert np.array_equal(y[:32], x[:32])
    # lanes that did not wait, and the group that no lane waited for
    assert not np.isin(y[32:], x).any()


def test_parameter_memory_by_address(more):
    w = np.random.default_rng(0).integers(0, 9, 600).astype(np.float32)
    y = np.zeros(64, np.float32)
    more.launch("big_parameter", 1, 64, w.tobytes() + np.int32(50).tobytes(), y)
    assert np.array_equal(y, w[np.arange(64) * 7 % 50] + w[:50].sum())


def test_barrier_numbers_in_registers(more):
    out, number = np.zeros(64, np.int32), np.repeat([5, 3], 32).astype(np.int32)
    more.launch("registers_name_barriers", 3, 64, out, number)
    assert np.array_equal(out, 3 * (np.arange(64) ^ 31))


def test_match_all(more):
    x = np.repeat([4, 4], 32).astype(np.int32)
    x[40] = 5
    out = np.zeros((64, 2), np.int32)
    more.launch("match_all", 1, 64, x, out)
    assert (out[:32] == [-1, 1]).all()
    assert (out[32:] == [0, 0]).all()


def test_elect(more):
    out = np.zeros((64, 2), np.uint32)
    more.launch("elected", 1, 64, out)
    lane = np.arange(64) % 32
    assert np.array_equal(out[:, 0], np.where(lane >= 5, 5, 77))
    assert np.array_equal(out[:, 1], lane == 5)


def test_swaps_of_many_lanes_at_one_place(more):
    x, old = np.zeros(3, np.int32), np.zeros((3, 64), np.int32)
    more.launch("swap_chain", 1, 64, x, old)
    t = np.arange(64)
    assert np.array_equal(old[0], t)
    assert np.array_equal(old[1], t)
    assert np.array_equal(old[2], np.where(t == 0, 0, 5))
    assert x.tolist() == [64, 64, 5]


def test_half_pairs(more):
    x = np.random.default_rng(0).random((32, 2)).astype(np.float16)
    y = np.zeros_like(x)
    more.launch("half_sum", 1, 32, x, y)
    assert np.array_equal(y, x + np.roll(x, -1, 0))


def test_switch(more):
    x = np.random.default_rng(0).integers(0, 9, 200).astype(np.int32)
    out = np.zeros(200, np.int32)
    more.launch("choose", 1, 200, x, out)
    t = np.arange(200)
    ways = [0 * t + 5, t * 3, -t, t * t, 0 * t + 77, t << 3, t ^ 21, 0 * t + 1000, 0 * t + 1000]
    assert np.array_equal(out, np.choose(x, ways))


def test_guarded_instructions(more):
    x, out = np.arange(40, dtype=np.int32) + 500, np.zeros(40, np.int32)
    more.launch("guards", 1, 40, x, out)
    assert np.array_equal(out, np.where(np.arange(40) >= 5, x, 0))


def test_the_clock_moves(more):
    out = np.zeros(32, np.int64)
    more.launch("timer", 1, 32, out)
    assert (out >= 100_000).all()


def test_wrong_arguments(more):
    function = more.kernel("stop")
    with pytest.raises(ValueError, match="takes 1 parameters"):
        launch(function, (1, 1, 1), (1, 1, 1), 0, [], chip=chip("sm_90"))
    assert function.params == ((0, 4),)


# ---- modules ----

PTX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) .maxntid 128, 2, 1
{
  .reg .b64 %%rd<4>; .reg .b32 %%r<8>; .reg .pred %%p<3>;
  .shared .align 16 .b8 buffer[100];
  ld.param.u64 %%rd1, [p];
  %s
  ret;
}
"""


def test_brx_idx():
    device = SimDevice(
        PTX
        % """
  mov.u32 %r1, %tid.x;
  rem.u32 %r2, %r1, 3;
  ts: .branchtargets A, B, C;
  brx.idx %r2, ts;
A: mov.u32 %r3, 10; bra D;
B: mov.u32 %r3, 20; bra D;
C: mov.u32 %r3, 30;
D: mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r3;""",
        ptx=True,
    )
    out = np.zeros(64, np.uint32)
    device.launch("k", 1, 64, out)
    assert np.array_equal(out, 10 * (1 + np.arange(64) % 3))


def test_a_value_that_a_guard_may_keep_survives_a_branch():
    device = SimDevice(
        PTX
        % """
  mov.u32 %r1, %tid.x;
  mov.u32 %r3, 100;
  setp.lt.u32 %p1, %r1, 7;
  setp.gt.u32 %p2, %r1, 3;
  add.u32 %r3, %r3, %r1;
  @%p1 bra A;
  add.u32 %r1, %r1, 0;
A: @%p2 mov.u32 %r3, 5;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r3;""",
        ptx=True,
    )
    out = np.zeros(64, np.uint32)
    device.launch("k", 1, 64, out)
    assert np.array_equal(out, np.where(np.arange(64) > 3, 5, 100 + np.arange(64)))


def test_guards_on_return_and_call():
    head, tail = PTX.split(".visible")
    device = SimDevice(
        head
        + """
.func (.param .b32 result) f(.param .b32 x)
{
  .reg .b32 %r<4>; .reg .pred %p<2>;
  ld.param.u32 %r1, [x];
  st.param.b32 [result], %r1;
  setp.lt.u32 %p1, %r1, 9;
  @%p1 ret;
  shl.b32 %r1, %r1, 4;
  st.param.b32 [result], %r1;
  ret;
}
.visible"""
        + tail
        % """
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd3, %rd1, %rd2;
  setp.gt.u32 %p1, %r1, 40;
  setp.eq.u32 %p2, %r1, 63;
  @%p2 exit;
  { .param .b32 a; .param .b32 b;
    st.param.b32 [a], %r1;
    st.param.b32 [b], 1000;
    @!%p1 call (b), f, (a);
    ld.param.b32 %r2, [b]; }
  st.global.u32 [%rd3], %r2;
  bar.sync 0;""",
        ptx=True,
    )
    out = np.zeros(64, np.uint32)
    device.launch("k", 1, 64, out)
    t = np.arange(64)
    assert np.array_equal(out[:63], np.where(t > 40, 1000, np.where(t < 9, t, t << 4))[:63])
    assert out[63] == 0


def test_a_result_stored_before_a_branch_is_returned():
    head, tail = PTX.split(".visible")
    device = SimDevice(
        head
        + """
.func (.param .b32 result) f(.param .b32 x)
{
  .reg .b32 %r<4>; .reg .pred %p<2>;
  ld.param.u32 %r1, [x];
  mul.lo.u32 %r2, %r1, 3;
  st.param.b32 [result], %r2;
  setp.lt.u32 %p1, %r1, 9;
  @%p1 bra END;
  add.u32 %r2, %r2, 1;
  st.param.b32 [result], %r2;
END: ret;
}
.visible"""
        + tail
        % """
  mov.u32 %r1, %tid.x;
  { .param .b32 a; .param .b32 b;
    st.param.b32 [a], %r1;
    call.uni (b), f, (a);
    ld.param.b32 %r2, [b]; }
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r2;""",
        ptx=True,
    )
    out = np.zeros(64, np.uint32)
    device.launch("k", 1, 64, out)
    t = np.arange(64)
    assert np.array_equal(out, np.where(t < 9, 3 * t, 3 * t + 1))


def test_function_properties():
    device = SimDevice(PTX % "", ptx=True)
    function = device.kernel("k")
    assert function.max_threads == 256
    assert function.params == ((0, 8),)
    assert function.static_shared == 100
    assert function.local_bytes == 0
    assert not function.spins
