"""Uninitialised reads on the simulated device: of shared, global and local memory, and what counts as initialised."""

import numpy as np
import pytest
from simdevice import ALL_CHECKS, SimDevice

import cudakit
from cudakit.sim.lockstep.report import KernelFault

KIND = "uninitialised read"

SOURCE = r"""
__global__ void tail(const int* x, int* y, int n) {
  __shared__ int s[64];
  const int t = threadIdx.x;
  if (t < n) s[t] = x[t];
  __syncthreads();
  y[t] = s[63 - t];  // READ
}
__global__ void dynamic(const int* x, int* y, int n) {
  extern __shared__ int d[];
  const int t = threadIdx.x;
  if (t < n) d[t] = x[t];
  __syncthreads();
  y[t] = d[t];
}
__global__ void padded(const int* x, int* y, int n) {
  __shared__ int s[8][9];
  const int t = threadIdx.x;
  s[t / 8][t % 8] = x[t];
  __syncthreads();
  y[t] = s[t % 8][t / 8 + n];
}
__global__ void counts(const int* x, int* y, int zero) {
  __shared__ int bins[16];
  if (zero && threadIdx.x < 16) bins[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&bins[x[threadIdx.x] % 16], 1);  // READ
  __syncthreads();
  if (threadIdx.x < 16) y[threadIdx.x] = bins[threadIdx.x];
}
__global__ void swapped(const int* x, int* y, int n) {
  __shared__ int s[64];
  atomicExch(&s[threadIdx.x], x[threadIdx.x]);
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
struct alignas(16) Point { float a, b, c; };
__global__ void points(const float* x, float* y, int n) {
  __shared__ Point p[32];
  const int t = threadIdx.x;
  p[t].a = x[t];
  p[t].b = x[t + 1];
  if (t < n) p[t].c = x[t + 2];
  __syncthreads();
  const Point q = p[31 - t];
  y[t] = q.a + q.b * q.c;
}
__global__ void half(unsigned short* y, int n) {
  __shared__ unsigned short s[64];
  if (threadIdx.x % 2 < n) s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
__global__ void copy(const int* x, int* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];  // READ
}
__global__ void fresh(int* scratch, int* y, int n) {
  const int i = threadIdx.x;
  if (i < n) scratch[i] = i;
  __syncthreads();
  y[i] = scratch[i];  // READ
}
__global__ void add(int* y) { atomicAdd(y, 1); }
__global__ void bytes(const unsigned char* x, int* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void vector(const int4* x, int* y) { y[threadIdx.x] = x[threadIdx.x].w; }
__global__ void local(const int* x, int* y, int n) {
  int s[16];
  for (int i = 0; i < n; ++i) s[x[i]] = i;
  y[threadIdx.x] = s[x[threadIdx.x]];  // READ
}
struct Pair { int a; long long b; };
__device__ __noinline__ int look(const Pair* p, int i) { return p[i].a; }
__global__ void structs(const int* x, int* y, int n) {
  Pair p[4], q[4];
  for (int i = 0; i < 4; ++i) {
    p[i].a = x[i];
    p[i].b = 1;
  }
  for (int i = 0; i < 4; ++i) q[i] = p[3 - i];
  y[threadIdx.x] = look(q, x[threadIdx.x] % 4);
}
struct Mark { double d; char t; };
__device__ __noinline__ Mark mark(int v) {
  Mark m;
  m.d = v;
  m.t = 1;
  return m;
}
__global__ void marks(const int* x, int* y, int n) {
  __shared__ Mark s[4];
  Mark p[4], q[4];
#pragma unroll 1
  for (int i = 0; i < 4; ++i) p[i] = mark(x[i]);
#pragma unroll 1
  for (int i = 0; i < 4; ++i) q[i] = p[x[i] % 4];
  s[threadIdx.x].d = q[threadIdx.x].d;
  s[threadIdx.x].t = q[threadIdx.x].t;
  __syncthreads();
  if (threadIdx.x < n) p[threadIdx.x] = s[3 - threadIdx.x];
  y[threadIdx.x] = p[x[threadIdx.x] % 4].d + p[threadIdx.x].t;
}
__device__ __noinline__ int frame(const int* x, int n) {
  int s[8];
  if (n) for (int i = 0; i < 8; ++i) s[x[i] % 8] = i;
  return s[x[1] % 8];
}
__global__ void calls(const int* x, int* y, int n) { y[threadIdx.x] = frame(x, 1) + frame(x + 1, n); }
"""


@pytest.fixture
def device():
    made = SimDevice(SOURCE)
    made.space.track_undefined = True
    return made


def line_of(kernel):
    lines = SOURCE.splitlines()
    start = next(n for n, text in enumerate(lines) if f"void {kernel}(" in text)
    return next(n for n, text in enumerate(lines[start:], start + 1) if "// READ" in text)


def stopped(device, *args, **more):
    with pytest.raises(KernelFault) as caught:
        device.launch(*args, checks=ALL_CHECKS, **more)
    assert caught.value.report.kind == KIND, str(caught.value)
    return caught.value.report


X = np.arange(64, dtype=np.int32)


def zeros(count=64, dtype=np.int32):
    return np.zeros(count, dtype)


# ---- shared memory ----


@pytest.mark.parametrize("grid", [1, 3])
def test_tail_of_shared_memory(device, grid):
    device.launch("tail", 1, 64, X.copy(), zeros(), 64, checks=ALL_CHECKS)
    found = stopped(device, "tail", grid, 64, X.copy(), zeros(), 60)
    assert (found.line, found.thread, found.lanes, found.address) == (line_of("tail"), (0, 0, 0), 4 * grid, 252)
    assert found.space == "shared"
    assert not found.others


def test_dynamic_shared_memory(device):
    device.launch("dynamic", 1, 64, X.copy(), zeros(), 64, shared=256, checks=ALL_CHECKS)
    assert stopped(device, "dynamic", 1, 64, X.copy(), zeros(), 63, shared=256).thread == (63, 0, 0)


def test_padding_of_a_tile_is_not_read(device):
    y = zeros()
    device.launch("padded", 1, 64, X.copy(), y, 0, checks=ALL_CHECKS)
    np.testing.assert_array_equal(y.reshape(8, 8), X.reshape(8, 8).T)
    assert stopped(device, "padded", 1, 64, X.copy(), zeros(), 1).lanes == 8


def test_counts_must_start_at_something(device):
    y = zeros(16)
    device.launch("counts", 1, 64, X.copy(), y, 1, checks=ALL_CHECKS)
    assert (y == 4).all()
    assert stopped(device, "counts", 1, 64, X.copy(), zeros(16), 0).line == line_of("counts")


def test_an_exchange_initialises(device):
    y = zeros()
    device.launch("swapped", 1, 64, X.copy(), y, 0, checks=ALL_CHECKS)
    np.testing.assert_array_equal(y, X)


def test_padding_that_a_vector_load_takes_along_is_not_read(device):
    x, y = np.arange(34, dtype=np.float32), zeros(32, np.float32)
    device.launch("points", 1, 32, x, y, 32, checks=ALL_CHECKS)
    np.testing.assert_array_equal(y[::-1], x[:32] + x[1:33] * x[2:])
    assert stopped(device, "points", 1, 32, x, y, 31).thread == (0, 0, 0)


def test_units_below_a_word_are_told_apart(device):
    device.launch("half", 1, 64, zeros(64, np.uint16), 2, checks=ALL_CHECKS)
    assert stopped(device, "half", 1, 64, zeros(64, np.uint16), 1).thread == (1, 0, 0)


# ---- global memory ----


def undefined(device, count=64, size=4):
    return device.space.allocate(count * size, "device", "by the test")


def test_fresh_memory_is_undefined_until_stored_to(device):
    made = undefined(device)
    found = stopped(device, "copy", 1, 64, made.address, zeros(), 64)
    assert (found.line, found.address, found.allocation.address) == (line_of("copy"), made.address, made.address)
    # half of it is set here, the rest by a kernel
    made.define(0, 128)
    assert stopped(device, "copy", 1, 64, made.address, zeros(), 64).thread == (32, 0, 0)
    device.launch("copy", 1, 32, X.copy(), made.address + 128, 32, checks=ALL_CHECKS)
    device.launch("copy", 1, 64, made.address, zeros(), 64, checks=ALL_CHECKS)
    assert made.undefined_bytes() is None


@pytest.mark.parametrize("grid", [1, 2])
def test_stores_of_the_same_launch_count(device, grid):
    device.launch("fresh", 1, 64, undefined(device).address, zeros(), 64, checks=ALL_CHECKS)
    assert stopped(device, "fresh", 1, 64, undefined(device).address, zeros(), 63).thread == (63, 0, 0)
    # also without race checks
    with pytest.raises(KernelFault, match=KIND):
        device.launch("fresh", grid, 64, undefined(device).address, zeros(), 63, checks={"init"})


def test_atomics_bytes_and_vectors(device):
    assert stopped(device, "add", 1, 1, undefined(device).address).access == "atomic"
    made = undefined(device)
    made.define(0, 33)
    assert stopped(device, "bytes", 1, 64, made.address, zeros()).address == made.address + 33
    device.launch("bytes", 1, 33, made.address, zeros(), checks=ALL_CHECKS)
    assert stopped(device, "vector", 1, 4, made.address, zeros()).thread == (2, 0, 0)


def test_without_the_check_nothing_is_said(device):
    device.launch("copy", 1, 64, undefined(device).address, zeros(), 64, checks=ALL_CHECKS - {"init"})
    device.launch("tail", 1, 64, X.copy(), zeros(), 60, checks=ALL_CHECKS - {"init"})


# ---- local memory ----


def test_local_memory(device):
    device.launch("local", 1, 16, X.copy(), zeros(16), 16, checks=ALL_CHECKS)
    found = stopped(device, "local", 1, 16, X.copy(), zeros(16), 12)
    assert (found.line, found.thread, found.lanes, found.space) == (line_of("local"), (12, 0, 0), 4, "local")


def test_structures_may_be_copied_with_their_padding(device):
    y = zeros(4)
    device.launch("structs", 1, 4, X.copy(), y, 0, checks=ALL_CHECKS)
    np.testing.assert_array_equal(y, [3, 2, 1, 0])


def test_padding_goes_along_when_a_structure_is_copied_or_returned(device):
    y = zeros(4)
    device.launch("marks", 1, 4, np.arange(4, dtype=np.int32), y, 4, checks=ALL_CHECKS)
    np.testing.assert_array_equal(y, [4, 3, 2, 1])


def test_each_call_has_a_fresh_frame(device):
    device.launch("calls", 1, 4, X.copy(), zeros(4), 1, checks=ALL_CHECKS)
    stopped(device, "calls", 1, 4, X.copy(), zeros(4), 0)


# ---- through the driver ----


@pytest.fixture
def sim_copy():
    with cudakit.Device("sim") as device:
        kernel = device.compile(source=SOURCE, name="init.cu")["copy"]

        def run(x, y):
            kernel.launch(device.default_stream, grid=1, block=64, args=(x, y, 64))
            device.synchronize()

        yield device, run


def test_copies_and_fills_define_and_carry(sim_copy):
    device, run = sim_copy
    first, second = device.empty(64, np.int32), device.empty(64, np.int32)
    result = device.zeros(64, np.int32)
    first.copy_from(X)
    run(first, result)
    np.testing.assert_array_equal(result.numpy(), X)
    # copies of initialised memory are initialised
    second.copy_from(first)
    run(second, result)


def test_a_copy_of_undefined_memory_is_undefined(sim_copy):
    device, run = sim_copy
    first, second = device.empty(64, np.int32), device.zeros(64, np.int32)
    second.copy_from(first)
    # a copy to the host is not reported
    first.numpy()
    with pytest.raises(cudakit.DeviceFault, match=KIND) as caught:
        run(second, device.empty(64, np.int32))
    assert f"init.cu:{line_of('copy')}" in str(caught.value)
    assert "these bytes were never written" in str(caught.value)
