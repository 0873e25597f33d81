"""Races on the simulated device: for each rule a kernel that breaks it, reported with both lines, and a correct twin
without a report."""

import numpy as np
import pytest
from simdevice import ALL_CHECKS, SimDevice

from cudakit.sim.lockstep.report import KernelFault

SHARED_RACE, GLOBAL_RACE = "shared memory race", "global memory race"
IN_FLIGHT = "read before cp.async wait"

SHARED = r"""
__device__ void bar_sync(int id, int count) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory"); }
__device__ void bar_arrive(int id, int count) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory"); }
__global__ void reverse(const int* x, int* y, int good) {
  __shared__ int s[128];
  const int t = threadIdx.x;
  s[t] = x[t];  // ONE
  if (good) __syncthreads();
  y[t] = s[127 - t];  // TWO
}
__global__ void reuse(const int* x, int* y, int good) {
  __shared__ int s[128];
  const int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  const int v = s[127 - t];  // ONE
  if (good) __syncthreads();
  s[t] = v + 1;  // TWO
  __syncthreads();
  y[t] = s[t];
}
// One warp reads what the other writes, whichever comes first in the program.
__global__ void roles(const int* x, int* y, int writer) {
  __shared__ int s[32];
  const int t = threadIdx.x;
  if (t < 32) s[t] = 0;
  __syncthreads();
  if (t / 32 == writer) {
    s[t % 32] = x[t] + 1;  // ONE
  } else {
    y[t % 32] = s[t % 32];  // TWO
  }
}
__global__ void buffers(const int* x, int* y, int two) {
  __shared__ int s[2][64];
  const int t = threadIdx.x;
  int sum = 0;
  for (int i = 0; i < 6; ++i) {
    s[two ? i % 2 : 0][t] = x[i * 64 + t];  // ONE
    __syncthreads();
    sum += s[two ? i % 2 : 0][63 - t];  // TWO
  }
  y[t] = sum;
}
__global__ void flag(const int* x, int* y, int good) {
  __shared__ int found;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  if (x[threadIdx.x] > 3) found = good ? 1 : threadIdx.x;  // ONE TWO
  __syncthreads();
  if (threadIdx.x == 0) *y = found;
}
__global__ void twice(const int* x, int* y, int good) {
  __shared__ int s[64];
  const int t = threadIdx.x;
  s[t] = x[0];  // ONE
  if (x[t] > 0) s[t ^ 33] = good ? x[0] : x[t];  // TWO
  __syncthreads();
  y[t] = s[t];
}
__global__ void pairs(const int* x, int* y, int how) {
  __shared__ int s[64];
  const int t = threadIdx.x;
  s[t] = x[t];  // ONE
  int extra = 0;
  if (how == 1) __syncwarp();
  if (how == 2) extra = __shfl_xor_sync(0xffffffffu, t, 1) - (t ^ 1);
  y[t] = s[t ^ 1] + extra;  // TWO
}
__global__ void half_mask(const int* x, int* y, int good) {
  __shared__ int s[32];
  const int t = threadIdx.x;
  s[t] = x[t];  // ONE
  if (t < 16) __syncwarp(0x0000ffff);
  else if (good) __syncwarp(0xffff0000);
  if (good) __syncwarp();
  y[t] = s[31 - t];  // TWO
}
__global__ void across_warps(const int* x, int* y, int good) {
  __shared__ int s[64];
  const int t = threadIdx.x;
  s[t] = x[t];  // ONE
  __syncwarp();
  y[t] = s[good ? t ^ 1 : t ^ 32];  // TWO
}
__global__ void histogram(const int* x, int* y, int good) {
  __shared__ int bins[16];
  const int t = threadIdx.x;
  if (t < 16) bins[t] = 0;
  __syncthreads();
  atomicAdd(&bins[x[t] & 15], 1);  // ONE
  if (good) __syncthreads();
  if (t < 16) y[t] = bins[t];  // TWO
}
__global__ void lock(const int* x, int* y, int good) {
  __shared__ int mutex, sum;
  if (threadIdx.x == 0) mutex = sum = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    while (atomicCAS(&mutex, 0, 1) != 0) {
    }
    if (good) __threadfence_block();
    sum += x[threadIdx.x];  // ONE TWO
    if (good) __threadfence_block();
    atomicExch(&mutex, 0);
  }
  __syncthreads();
  if (threadIdx.x == 0) *y = sum;
}
__global__ void raised(const int* x, int* y, int good) {
  __shared__ int s[32];
  __shared__ volatile int ready;
  const int t = threadIdx.x;
  if (t == 0) ready = 0;
  __syncthreads();
  if (t < 32) {
    s[t] = x[t];  // ONE
    __syncwarp();
    if (t == 0) {
      if (good) __threadfence_block();
      ready = 1;
    }
  } else {
    while (!ready) {
    }
    __threadfence_block();
    y[t % 32] = s[63 - t];  // TWO
  }
}
// Warp 0 produces for warp 1, which hands on to warp 2: two hops.
__global__ void relay(const int* x, int* y, int good) {
  __shared__ int s[32];
  const int t = threadIdx.x, lane = t % 32;
  if (t < 32) {
    s[lane] = x[lane];  // ONE
    bar_arrive(1, 64);
  } else if (t < 64) {
    if (good) bar_sync(1, 64);
    bar_arrive(2, 64);
    if (!good) bar_sync(1, 64);
  } else {
    bar_sync(2, 64);
    y[lane] = s[31 - lane];  // TWO
  }
}
__device__ int count_one(int* left, int release) {
  int seen;
  if (release) asm volatile("atom.acq_rel.cta.add.s32 %0, [%1], -1;" : "=r"(seen) : "l"(left) : "memory");
  else asm volatile("atom.relaxed.cta.add.s32 %0, [%1], -1;" : "=r"(seen) : "l"(left) : "memory");
  return seen;
}
// All lanes of a warp release in one instruction; its last lane releases to all of them.
__global__ void last_lane(const int* x, int* y, int good) {
  __shared__ int s[64], left, done;
  const int t = threadIdx.x;
  if (t == 0) { left = blockDim.x; done = 0; }
  __syncthreads();
  s[t] = x[t];  // ONE
  if (count_one(&left, good) == 1) asm volatile("st.release.cta.s32 [%0], 1;" ::"l"(&done) : "memory");
  int seen = 0;
  while (!seen) asm volatile("ld.acquire.cta.s32 %0, [%1];" : "=r"(seen) : "l"(&done) : "memory");
  y[t] = s[t ^ 1];  // TWO
}
__global__ void ring(const int* x, int* y, int good) {
  __shared__ int s[2][32];
  const int lane = threadIdx.x % 32;
  if (threadIdx.x < 32) {
    for (int i = 0; i < 20; ++i) {
      if (i >= 2 && good) bar_sync(3 + i % 2, 64);
      s[i % 2][lane] = x[lane] + i;  // ONE
      if (i >= 2 && !good) bar_sync(3 + i % 2, 64);
      bar_arrive(1 + i % 2, 64);
    }
  } else {
    int sum = 0;
    for (int i = 0; i < 20; ++i) {
      bar_sync(1 + i % 2, 64);
      sum += s[i % 2][31 - lane];  // TWO
      if (i + 2 < 20) bar_arrive(3 + i % 2, 64);
    }
    y[lane] = sum;
  }
}
__global__ void bytes(const unsigned char* x, unsigned char* y, int good) {
  __shared__ unsigned char s[64];
  const int t = threadIdx.x;
  s[t] = x[t];  // ONE
  if (good) __syncwarp();
  y[t] = good ? s[t] : s[t ^ 1];  // TWO
}
__global__ void vectors(const int4* x, int* y, int good) {
  __shared__ int4 s[32];
  const int t = threadIdx.x;
  s[t] = x[t];  // ONE
  if (good) __syncthreads();
  int sum = 0;
  for (int k = 0; k < 4; ++k) sum += reinterpret_cast<int*>(s)[(4 * t + k + 4) % 128];  // TWO
  y[t] = sum;
}
__global__ void early(const int* x, int* y, int n) {
  __shared__ int s[96];
  const int t = threadIdx.x;
  s[t] = x[t];
  if (t >= n) return;
  __syncthreads();
  y[t] = s[95 - t];
}
__global__ void uneven(const int* x, int* y, int unused) {
  __shared__ int s[64];
  const int t = threadIdx.x;
  int v = x[t];
  for (int i = 0; i <= blockIdx.x; ++i) {
    s[t] = v;
    __syncthreads();
    v = s[63 - t] + 1;
    __syncthreads();
  }
  y[blockIdx.x * 64 + t] = v;
}
// Each cell is read by two threads, the second of which writes it: the first must be remembered beside it.
__global__ void two_readers(const int* x, int* y, int good) {
  __shared__ int s[64];
  const int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  const int v = s[t ^ 1];  // ONE
  if (good) __syncthreads();
  s[t] = v + s[t];  // TWO
  y[t] = s[t];
}
__global__ void counted(const int* x, int* y, int reader) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, x[threadIdx.x]);  // ONE
  if (threadIdx.x == reader) *y = sum;  // TWO
}
__device__ __noinline__ void put(int* p, int v) { *p = v; }
__global__ void generic(const int* x, int* y, int good) {
  extern __shared__ int d[];
  const int t = threadIdx.x;
  put(&d[t], x[t]);
  if (good) __syncthreads();
  put(&y[t], d[63 - t]);
}
__global__ void many_reads(const int* x, int* y, int good) {
  __shared__ int s[64];
  const int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < 600; ++i) sum += s[(t + i) % 64];  // ONE
  if (good) __syncthreads();
  s[t] = sum;  // TWO
  y[t] = s[t];
}
"""

COPIES = r"""
__device__ void copy(int* to, const int* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from) : "memory");
}
template <int N> __device__ void wait_group() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__global__ void waits(const int* x, int* y, int wait, int sync) {
  __shared__ int s[64];
  const int t = threadIdx.x;
  copy(&s[t], &x[t]);  // ONE
  commit();
  if (wait) wait_group<0>();
  if (sync) __syncthreads();
  y[t] = s[sync ? 63 - t : t];  // TWO
}
__global__ void others(const int* x, int* y, int wait, int sync) {
  __shared__ int s[64];
  const int t = threadIdx.x;
  copy(&s[t], &x[t]);  // ONE
  commit();
  wait_group<0>();
  if (sync) __syncthreads();
  y[t] = s[63 - t];  // TWO
}
__global__ void stored(const int* x, int* y, int wait, int sync) {
  __shared__ int s[64];
  const int t = threadIdx.x;
  copy(&s[t], &x[t]);  // ONE
  commit();
  if (wait) wait_group<0>();
  s[t] = 7;  // TWO
  wait_group<0>();
  y[t] = s[t];
}
__global__ void pipeline(const int* x, int* y, int late, int sync) {
  __shared__ int s[2][64];
  const int t = threadIdx.x;
  copy(&s[0][t], &x[t]);  // ONE
  commit();
  int sum = 0;
  for (int i = 0; i < 8; ++i) {
    if (i + 1 < 8) copy(&s[(i + 1) % 2][t], &x[(i + 1) * 64 + t]);  // ONE
    commit();
    if (late) wait_group<1>();
    else wait_group<2>();
    __syncthreads();
    sum += s[i % 2][63 - t];  // TWO
    if (sync) __syncthreads();
  }
  wait_group<0>();
  y[t] = sum;
}
"""

GLOBAL = r"""
#include <cooperative_groups.h>
__global__ void counter(const int* x, int* y, int atomic) {
  if (threadIdx.x == 0) {
    if (atomic) atomicAdd(y, x[blockIdx.x]);
    else *y += x[blockIdx.x];  // ONE TWO
  }
}
// A block reads what another one writes, whichever runs first here.
__global__ void blocks(int* x, int* y, int writer) {
  if (blockIdx.x == writer) x[threadIdx.x] = threadIdx.x + 1;  // ONE
  else y[threadIdx.x] = x[threadIdx.x];  // TWO
}
__global__ void own(int* x, int* y, int unused) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] += 1;
  __syncthreads();
  y[i] = x[blockIdx.x * blockDim.x + (threadIdx.x ^ 1)];
}
__global__ void same(int* x, int* y, int good) {
  if (threadIdx.x == 0) *x = good ? 7 : blockIdx.x;  // ONE TWO
}
__global__ void last_block(const int* x, int* part, int* count, int* y, int good) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    part[blockIdx.x] = x[blockIdx.x];  // ONE
    if (good) __threadfence();
    last = atomicAdd(count, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) {
    int sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += part[i];  // TWO
    if (threadIdx.x == 0) *y = sum;
  }
}
__global__ void handed(const int* x, int* data, int* ready, int* y, int how) {
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) {
      *data = *x;  // ONE
      if (how == 1) {
        asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(ready) : "memory");
      } else {
        if (how == 2) __threadfence();
        if (how == 3) __threadfence_block();
        *static_cast<volatile int*>(ready) = 1;
      }
    }
  } else if (threadIdx.x == 0) {
    int seen;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(ready) : "memory");
    while (!seen);
    *y = *data;  // TWO
  }
}
// Block 0 hands to block 1, which hands to block 2.
__global__ void chain(const int* x, int* data, int* ready, int* y, int good) {
  const int b = blockIdx.x;
  if (b > 0) {
    while (atomicAdd(&ready[b - 1], 0) == 0) {
    }
    __threadfence();
  }
  if (b == 0) *data = *x;  // ONE
  if (b == 2) *y = *data;  // TWO
  if (good || b == 1) __threadfence();
  atomicExch(&ready[b], 1);
}
__global__ void grid_sync(const int* x, int* data, int* count, int* y, int good) {
  auto grid = cooperative_groups::this_grid();
  const int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  for (int step = 0; step < 3; ++step) {
    data[i] = x[i] + step;  // ONE
    if (good) grid.sync();
    else __syncthreads();
    y[i] = data[n - 1 - i];  // TWO
    grid.sync();
  }
}
__global__ void bytes_apart(unsigned char* x, int* y, int good) {
  x[good ? blockIdx.x : blockIdx.x / 2] = blockIdx.x;  // ONE TWO
}
// The first block to run reads what the last one stores, through pointers that come from memory and through a function.
__device__ __noinline__ void put(int* p, int v) { *p = v; }
__global__ void late(int** table, int* y, int how) {
  if (blockIdx.x + 1 < gridDim.x) y[blockIdx.x] = *(how == 1 ? table[0] : y + 100);  // ONE
  else if (how == 1) *table[1] = 5;  // TWO
  else put(y + 100, 5);  // TWO
}
__global__ void behind(int** table, int* y, int good) {
  int* x = table[0];
  if (good) x[blockIdx.x] = y[blockIdx.x] + 1;
  else x[0] = y[blockIdx.x] + blockIdx.x;  // ONE TWO
}
"""


@pytest.fixture(scope="module")
def shared():
    return SimDevice(SHARED)


@pytest.fixture(scope="module")
def copies():
    return SimDevice(COPIES)


@pytest.fixture(scope="module")
def memory():
    return SimDevice(GLOBAL)


def marked(source, kernel, mark):
    """Return the lines of a kernel that have a mark."""
    lines = source.splitlines()
    start = next(n for n, text in enumerate(lines) if f"void {kernel}(" in text)
    end = next(n for n, text in enumerate(lines) if n > start and text == "}")
    return {n for n in range(start, end + 1) if "//" in lines[n - 1] and mark in lines[n - 1].split("//")[1]}


def report(device, *args, **more):
    """Return the report that stops a launch."""
    with pytest.raises(KernelFault) as caught:
        device.launch(*args, checks=ALL_CHECKS, **more)
    return caught.value.report


def check_lines(found, source, kernel):
    """Check that a report names both accesses: one as the line at fault, the other as the conflicting one."""
    (other,) = found.others
    one, two = marked(source, kernel, "ONE"), marked(source, kernel, "TWO")
    lines = found.line, other.places[0].line
    assert (lines[0] in one and lines[1] in two) or (lines[0] in two and lines[1] in one), str(found)
    assert found.text.strip() == source.splitlines()[found.line - 1].strip()
    assert kernel in found.kernel
    return other


X = np.arange(1, 513, dtype=np.int32)


def run_shared(shared, name, value, threads, grid=1):
    y = np.zeros(1024, np.int32)
    x = X.astype(np.uint8) if name == "bytes" else X.copy()
    y = y.astype(x.dtype)
    shared.launch(name, grid, threads, x, y, value, checks=ALL_CHECKS)
    return y


SHARED_CASES = [
    ("reverse", 0, 1, 128),
    ("reuse", 0, 1, 128),
    ("buffers", 0, 1, 64),
    ("flag", 0, 1, 64),
    ("twice", 0, 1, 64),
    ("pairs", 0, 1, 64),
    ("half_mask", 0, 1, 32),
    ("across_warps", 0, 1, 64),
    ("histogram", 0, 1, 128),
    ("lock", 0, 1, 128),
    ("raised", 0, 1, 64),
    ("relay", 0, 1, 96),
    ("last_lane", 0, 1, 64),
    ("last_lane", 0, 1, 32),
    ("ring", 0, 1, 64),
    ("bytes", 0, 1, 64),
    ("vectors", 0, 1, 32),
    ("many_reads", 0, 1, 64),
    ("two_readers", 0, 1, 64),
]
SHARED_IDS = [f"{name}-{threads}" for name, _, _, threads in SHARED_CASES]


@pytest.mark.parametrize(("name", "bad", "good", "threads"), SHARED_CASES, ids=SHARED_IDS)
@pytest.mark.parametrize("grid", [1, 3])
def test_shared_race_is_reported_with_both_lines(shared, name, bad, good, threads, grid):
    x = X.astype(np.uint8) if name == "bytes" else X.copy()
    found = report(shared, name, grid, threads, x, np.zeros(1024, x.dtype), bad)
    assert found.kind == SHARED_RACE, str(found)
    other = check_lines(found, SHARED, name)
    assert other.block == found.block
    assert other.thread != found.thread
    assert found.space == "shared"


@pytest.mark.parametrize(("name", "bad", "good", "threads"), SHARED_CASES, ids=SHARED_IDS)
@pytest.mark.parametrize("grid", [1, 3])
def test_ordered_twin_is_silent(shared, name, bad, good, threads, grid):
    assert run_shared(shared, name, good, threads, 1).any()
    if name != "bytes":
        # blocks write the same result
        run_shared(shared, name, good, threads, grid)


def test_shuffles_order_no_memory(shared):
    assert report(shared, "pairs", 1, 64, X.copy(), np.zeros(64, np.int32), 2).kind == SHARED_RACE


@pytest.mark.parametrize("writer", [0, 1])
def test_either_role_may_run_first(shared, writer):
    found = report(shared, "roles", 1, 64, X.copy(), np.zeros(64, np.int32), writer)
    assert found.kind == SHARED_RACE
    check_lines(found, SHARED, "roles")


@pytest.mark.parametrize("reader", [0, 40, 127])
def test_every_atomic_counts_whoever_reads_the_sum(shared, reader):
    found = report(shared, "counted", 1, 128, X.copy(), np.zeros(4, np.int32), reader)
    assert found.kind == SHARED_RACE
    assert found.thread == (reader, 0, 0)
    check_lines(found, SHARED, "counted")


def test_accesses_through_generic_addresses(shared):
    y = np.zeros(64, np.int32)
    shared.launch("generic", 1, 64, X.copy(), y, 1, shared=256, checks=ALL_CHECKS)
    np.testing.assert_array_equal(y, X[:64][::-1])
    assert report(shared, "generic", 1, 64, X.copy(), y, 0, shared=256).kind == SHARED_RACE


@pytest.mark.parametrize("left", [96, 40, 32])
def test_threads_that_have_exited_are_behind_the_barrier(shared, left):
    y = np.zeros(96, np.int32)
    shared.launch("early", 1, 96, X.copy(), y, left, checks=ALL_CHECKS)
    np.testing.assert_array_equal(y[:left], X[:96][::-1][:left])


def test_blocks_that_pass_different_numbers_of_barriers(shared):
    y = np.zeros(5 * 64, np.int32)
    shared.launch("uneven", 5, 64, X.copy(), y, 0, checks=ALL_CHECKS)
    rows = y.reshape(5, 64)
    np.testing.assert_array_equal(rows[1], X[:64] + 2)
    np.testing.assert_array_equal(rows[4], X[:64][::-1] + 5)


def test_report_reads_well(shared):
    found = report(shared, "reverse", 1, 128, X.copy(), np.zeros(128, np.int32), 0)
    text = str(found)
    assert text.startswith("data race: shared load of 4 bytes at byte ")
    assert "  conflicts with the shared store by block (0, 0, 0), thread (" in text
    assert "s[t] = x[t];" in text
    assert "y[t] = s[127 - t];" in text
    assert found.lanes == 128


def test_without_the_check_nothing_is_said(shared):
    y = np.zeros(128, np.int32)
    shared.launch("reverse", 1, 128, X.copy(), y, 0, checks=ALL_CHECKS - {"race"})
    assert y.any()


# ---- cp.async ----


@pytest.mark.parametrize(
    ("name", "wait", "sync", "kind"),
    [
        ("waits", 0, 0, IN_FLIGHT),
        ("waits", 0, 1, IN_FLIGHT),
        ("waits", 1, 0, None),
        ("waits", 1, 1, None),
        ("others", 1, 0, SHARED_RACE),
        ("others", 1, 1, None),
        ("stored", 0, 0, IN_FLIGHT),
        ("stored", 1, 0, None),
        ("pipeline", 0, 1, IN_FLIGHT),
        ("pipeline", 1, 0, SHARED_RACE),
        ("pipeline", 1, 1, None),
    ],
)
def test_copies_must_be_waited_for(copies, name, wait, sync, kind):
    args = (name, 2, 64, X.copy(), np.zeros(64, np.int32), wait, sync)
    if kind is None:
        copies.launch(*args, checks=ALL_CHECKS)
        return
    found = report(copies, *args)
    assert found.kind == kind, str(found)
    (other,) = found.others
    # an inlined helper function issues the copy
    lines = {place.line for place in (*found.places, *other.places)}
    assert marked(COPIES, name, "ONE") & lines, str(found)
    assert marked(COPIES, name, "TWO") & lines, str(found)


# ---- between blocks ----


@pytest.mark.parametrize("writer", [0, 1, 40])
def test_blocks_race_whichever_runs_first(memory, writer):
    found = report(memory, "blocks", 41, 1024, np.zeros(1024, np.int32), np.zeros(1024, np.int32), writer)
    assert found.kind == GLOBAL_RACE
    other = check_lines(found, GLOBAL, "blocks")
    # batches run one after another, but races between them are found
    assert (writer, 0, 0) in (found.block, other.block)
    assert found.allocation is not None
    assert found.allocation.size == 4096


@pytest.mark.parametrize(("name", "cells"), [("counter", 16), ("same", 16), ("bytes_apart", 16)])
def test_blocks_that_share_a_place(memory, name, cells):
    x = np.zeros(16, np.uint8 if name == "bytes_apart" else np.int32)
    found = report(memory, name, cells, 32, x, np.zeros(16, np.int32), 0)
    assert found.kind == GLOBAL_RACE
    check_lines(found, GLOBAL, name)
    assert found.others[0].block != found.block
    memory.launch(name, cells, 32, x, np.zeros(16, np.int32), 1, checks=ALL_CHECKS)


def test_a_block_may_do_with_its_own_part_what_it_likes(memory):
    x, y = np.zeros(20 * 256, np.int32), np.zeros(20 * 256, np.int32)
    memory.launch("own", 20, 256, x, y, 0, checks=ALL_CHECKS)
    assert (y == 1).all()


def chained(memory, name, grid, threads, how, **more):
    n = grid * threads
    x, data, flags, y = (np.arange(1, n + 1, dtype=np.int32), *(np.zeros(n, np.int32) for _ in range(3)))
    memory.launch(name, grid, threads, x, data, flags, y, how, checks=ALL_CHECKS, **more)
    return x, y


@pytest.mark.parametrize("grid", [5, 300])
def test_last_block(memory, grid):
    x, y = chained(memory, "last_block", grid, 64, 1)
    assert y[0] == x[:grid].sum()
    with pytest.raises(KernelFault) as caught:
        chained(memory, "last_block", grid, 64, 0)
    assert caught.value.report.kind == GLOBAL_RACE
    check_lines(caught.value.report, GLOBAL, "last_block")


@pytest.mark.parametrize(("how", "good"), [(0, False), (1, True), (2, True), (3, False)])
def test_flag_and_fence_between_blocks(memory, how, good):
    if good:
        assert chained(memory, "handed", 2, 32, how)[1][0] == 1
        return
    with pytest.raises(KernelFault) as caught:
        chained(memory, "handed", 2, 32, how)
    assert caught.value.report.kind == GLOBAL_RACE
    check_lines(caught.value.report, GLOBAL, "handed")


def test_chain_of_blocks(memory):
    assert chained(memory, "chain", 3, 1, 1)[1][0] == 1
    with pytest.raises(KernelFault) as caught:
        chained(memory, "chain", 3, 1, 0)
    check_lines(caught.value.report, GLOBAL, "chain")


@pytest.mark.parametrize("grid", [4, 130])
def test_grid_barrier(memory, grid):
    x, y = chained(memory, "grid_sync", grid, 64, 1, cooperative=True)
    np.testing.assert_array_equal(y, x[::-1] + 2)
    with pytest.raises(KernelFault) as caught:
        chained(memory, "grid_sync", grid, 64, 0, cooperative=True)
    assert caught.value.report.kind == GLOBAL_RACE
    check_lines(caught.value.report, GLOBAL, "grid_sync")


def test_stores_through_pointers_in_memory_count(memory):
    target = memory.upload(np.zeros(16, np.int32))
    table = np.array([target.address], np.uint64)
    memory.launch("behind", 8, 1, table, X.copy(), 1, checks=ALL_CHECKS)
    np.testing.assert_array_equal(target.data.view(np.int32)[:8], X[:8] + 1)
    found = report(memory, "behind", 8, 1, table, X.copy(), 0)
    assert found.kind == GLOBAL_RACE
    check_lines(found, GLOBAL, "behind")


@pytest.mark.parametrize("how", [1, 2])
def test_a_read_counts_before_anybody_has_stored(memory, how):
    target = memory.upload(np.zeros(16, np.int32))
    table = np.array([target.address, target.address], np.uint64)
    # enough blocks that the last runs after the first has ended
    found = report(memory, "late", 40, 1024, table, np.zeros(128, np.int32), how)
    assert found.kind == GLOBAL_RACE
    assert found.block == (39, 0, 0)
    assert found.access.endswith("store")
    assert found.others[0].access.endswith("load")
