"""Pointers to local variables: used by their own thread, by other threads, and after their function has returned."""

import numpy as np
import pytest
from simdevice import ALL_CHECKS, SimDevice

from cudakit.sim.lockstep.report import KernelFault

SOURCE = r"""
struct Node { int value; Node* next; };
__device__ int* hide(int* p) {
  asm volatile("" : "+l"(p) :: "memory");
  return p;
}
__global__ void by_shared(long long* kept, int* y, int good) {
  __shared__ int* where[64];
  int mine[4];
  for (int i = 0; i < 4; ++i) mine[i] = threadIdx.x * 4 + i;
  where[threadIdx.x] = mine;
  __syncthreads();
  const int* p = where[good ? threadIdx.x : threadIdx.x ^ 1];
  y[threadIdx.x] = p[y[threadIdx.x] & 3];  // BUG
}
__global__ void by_global(long long* kept, int* y, int good) {
  Node** list = (Node**)kept;
  Node own = {int(threadIdx.x), nullptr};
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  list[i] = &own;
  __syncthreads();
  Node* n = list[good ? i : i ^ 33];
  n->value += 5;  // BUG
  y[i] = own.value;
}
__global__ void by_shuffle(long long* kept, int* y, int good) {
  int mine[4];
  for (int i = 0; i < 4; ++i) mine[i] = threadIdx.x * 4 + i;
  int* p = (int*)__shfl_sync(~0u, (unsigned long long)mine, good ? threadIdx.x : 3);
  atomicAdd(p + (y[threadIdx.x] & 3), 1);  // BUG
  y[threadIdx.x] = mine[y[threadIdx.x] & 1];
}
__global__ void of_other_block(long long* kept, int* y, int good) {
  int own = threadIdx.x;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (blockIdx.x == 0) {
    atomicExch((unsigned long long*)kept + threadIdx.x, (unsigned long long)hide(&own));
    __threadfence();
  }
  if (good != (blockIdx.x == 0)) return;
  volatile long long* p = kept + threadIdx.x;
  while (*p == 0) {}
  y[i] = *(int*)*p;  // BUG
}
__device__ __noinline__ int* make(int n) {
  int a[4];
  for (int i = 0; i < 4; ++i) a[i] = n + i;
  return hide(a);
}
__device__ __noinline__ int* fill(int* a, int n) {
  for (int i = 0; i < 4; ++i) a[i] = n + i;
  return hide(a);
}
__device__ __noinline__ int use(int* p, int k) {
  int a[4] = {k, k, k, k};
  int* q = hide(a);
  q[k & 3] = p[k & 3];  // BUG: returned_called returned_relayed
  return q[k & 3];
}
__global__ void returned(long long* kept, int* y, int good) {
  int a[4];
  int* p = good ? fill(a, threadIdx.x) : make(threadIdx.x);
  y[threadIdx.x] = p[y[threadIdx.x] & 3];  // BUG
}
__global__ void returned_called(long long* kept, int* y, int good) {
  int a[4];
  int* p = good ? fill(a, threadIdx.x) : make(threadIdx.x);
  y[threadIdx.x] = use(p, y[threadIdx.x] & 3);
}
__global__ void past_the_frame(long long* kept, int* y, int good) {
  int a[4];
  int* p = fill(a, threadIdx.x);
  y[threadIdx.x] = use(p + (good ? 0 : -1), y[threadIdx.x] & 3);
}
__global__ void past_the_caller(long long* kept, int* y, int good) {
  int a[4];
  int* p = fill(a, threadIdx.x);
  y[threadIdx.x] = use(p + (good ? 0 : 4), y[threadIdx.x] & 3);
}
__global__ void past_the_kernel(long long* kept, int* y, int good) {
  int a[4];
  int* p = fill(a, threadIdx.x);
  y[threadIdx.x] = use(p, y[threadIdx.x] & 3) + p[good ? 0 : 4] - p[0];
}
// a function without local variables is called at the depth of one that has returned
__device__ __noinline__ int relay(int* p, int k) { return use(p, k) + 1; }
__global__ void returned_relayed(long long* kept, int* y, int good) {
  int a[4];
  int* p = good ? fill(a, threadIdx.x) : make(threadIdx.x);
  y[threadIdx.x] = relay(p, y[threadIdx.x] & 3) - 1;
}
__device__ __noinline__ int look(int* p, int k) { return p[k & 3]; }  // BUG: returned_looked
__global__ void returned_looked(long long* kept, int* y, int good) {
  int a[4];
  int* p = good ? fill(a, threadIdx.x) : make(threadIdx.x);
  y[threadIdx.x] = look(p, y[threadIdx.x] & 3);
}
__device__ __noinline__ int deep(int* p, int n) {
  int a[2] = {n, *p};
  int* q = hide(a);
  if (n == 0) return q[1];
  return deep(q + (n & 1), n - 1) + *p;
}
__global__ void recursive(int* y) {
  int a = threadIdx.x;
  y[threadIdx.x] = deep(&a, (threadIdx.x & 3) + 2);
}
__global__ void printed() {
  char text[8];
  for (int i = 0; i < 4; ++i) text[i] = 'a' + threadIdx.x;
  text[4] = 0;
  printf("%s\n", text);
}
"""
WRONG = [("by_shared", 1), ("by_global", 3), ("by_shuffle", 1), ("of_other_block", 2)]
STALE = ["returned", "returned_called", "returned_relayed", "returned_looked"]
PAST = [("past_the_frame", "byte -4 of"), ("past_the_caller", "byte 16 of"), ("past_the_kernel", "byte 16 of")]


@pytest.fixture(scope="module")
def device():
    return SimDevice(SOURCE)


def run(device, name, grid, good):
    kept, y = np.zeros(64 * grid, np.int64), np.zeros(64 * grid, np.int32)
    device.launch(name, grid, 64, kept, y, good, checks=ALL_CHECKS)
    return y


def line_of(name):
    lines = SOURCE.splitlines()
    marked = [n for n, text in enumerate(lines, 1) if name in text.partition("// BUG: ")[2].split()]
    start = next(n for n, text in enumerate(lines, 1) if f"void {name}(" in text)
    return marked[0] if marked else next(n for n in range(start, len(lines)) if lines[n - 1].endswith("// BUG"))


@pytest.mark.parametrize(("name", "grid"), WRONG)
def test_a_local_variable_of_another_thread_is_out_of_bounds(device, name, grid):
    with pytest.raises(KernelFault, match="at the address of a local variable of block") as caught:
        run(device, name, grid, 0)
    assert (caught.value.report.kind, caught.value.report.line) == ("out of bounds", line_of(name))


def test_the_report_names_the_threads(device):
    with pytest.raises(KernelFault, match=r"of block \(0, 0, 0\), thread \(1, 0, 0\)") as caught:
        run(device, "by_shared", 1, 0)
    assert caught.value.report.thread == (0, 0, 0)
    assert caught.value.report.lanes == 64


@pytest.mark.parametrize("name", STALE)
def test_a_variable_of_a_function_that_has_returned_is_freed(device, name):
    with pytest.raises(KernelFault, match="of a function that has returned") as caught:
        run(device, name, 1, 0)
    assert (caught.value.report.kind, caught.value.report.line) == ("use after free", line_of(name))


@pytest.mark.parametrize(("name", "where"), PAST)
def test_an_index_past_the_variables_of_a_function_is_out_of_bounds(device, name, where):
    with pytest.raises(KernelFault, match=f"{where} local memory") as caught:
        run(device, name, 1, 0)
    assert caught.value.report.kind == "out of bounds"


@pytest.mark.parametrize(("name", "grid"), [*WRONG, *((name, 1) for name in STALE), *((name, 1) for name, _ in PAST)])
def test_a_thread_may_use_its_own_pointer(device, name, grid):
    y, t = run(device, name, grid, 1), np.arange(64)
    want = {"by_shared": 4 * t, "by_global": t + 5, "by_shuffle": 4 * t + 1}.get(name, t)
    assert np.array_equal(y[:64], want)


def test_recursive_functions_may_use_the_variables_of_their_callers(device):
    y = np.zeros(64, np.int32)
    device.launch("recursive", 1, 64, y, checks=ALL_CHECKS)

    def deep(memory, at, n):
        own = [n, memory[at]]
        return own[1] if n == 0 else deep(own, n & 1, n - 1) + memory[at]

    assert y.tolist() == [deep([t], 0, (t & 3) + 2) for t in range(64)]


def test_printf_reads_the_strings_of_each_thread(device):
    device.launch("printed", 1, 3)
    assert "".join(device.printed) == "aaaa\nbbbb\ncccc\n"
