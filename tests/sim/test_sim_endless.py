"""Loops without an end, and correct loops that are long or look alike, under the default limit of steps."""

import numpy as np
import pytest
from simdevice import ALL_CHECKS, SimDevice

from cudakit.sim.lockstep.report import KernelFault

ENDLESS = r"""
#define ARGS int* x, int* y, int n
#define INDEX const int i = blockIdx.x * blockDim.x + threadIdx.x
__global__ void adds(ARGS) { while (1) atomicAdd(y, 1); }
__global__ void copies(ARGS) { INDEX; while (i < n) y[i] = x[i]; }
__global__ void waits(ARGS) { INDEX; volatile int* v = y; while (i < n) v[i] = v[i] + 1; }
__global__ void meets(ARGS) { while (n > 0) { __syncthreads(); atomicAdd(y, 1); } }
__global__ void nested(ARGS) {
  while (n > 0) {
#pragma unroll 1
    for (int k = 0; k < 100; ++k) atomicAdd(y, k);
  }
}
__global__ void branches(ARGS) {
  INDEX;
  int k = 0;
  while (k < n) {
    if (n < 5) ++k;
    atomicAdd(&y[i], 1);
  }
}
// halves of an odd number below n do not reach it
__global__ void bisects(ARGS) {
  int low = 0, high = n;
  while (low < high - 1) {
    const int middle = (low + high) / 2;
    if (middle * 2 <= n) low = middle - 1;
    else high = middle;
    atomicAdd(y, 1);
  }
}
__global__ void follows(ARGS) { for (int at = 0; at >= 0; at = x[at]) atomicAdd(y, 1); }
__global__ void stuck(ARGS) {
#pragma unroll 1
  for (int k = 0; k < 1000; ++k)
    for (int at = k == 3 ? 0 : -1; at >= 0; at = x[at]) atomicAdd(y, 1);
}
__global__ void overruns(ARGS) {
  for (unsigned k = n - 1; k >= 0; --k) x[k] = 1;  // BUG
}
"""
KNOWN = ["adds", "copies", "waits", "meets", "nested", "branches", "bisects"]

CORRECT = r"""
__device__ unsigned next(unsigned s) { s = s * 1664525u + 1013904223u; return s ^ s >> 7; }
__global__ void up(unsigned* y, int n) {
  unsigned s = threadIdx.x;
#pragma unroll 1
  for (int i = 0; i < 300000; ++i) s = next(s);
  y[threadIdx.x] = s;
}
__global__ void down(unsigned* y, int n) {
  unsigned s = threadIdx.x;
#pragma unroll 1
  for (long long i = 600000; i > 0; i -= 2) s = next(s);
  y[threadIdx.x] = s;
}
__global__ void stores(unsigned* y, int n) {
  y[threadIdx.x] = threadIdx.x;
#pragma unroll 1
  for (unsigned i = 7; i != 3u * 300000 + 7; i += 3) y[threadIdx.x] = next(y[threadIdx.x]);
}
__global__ void collatz(unsigned* y, int n) {
  unsigned most = 0;
  for (unsigned first = 1; first < 1500; ++first) {
    unsigned long long v = first;
    unsigned steps = 0;
    while (v != 1) v = v & 1 ? 3 * v + 1 : v / 2, ++steps;
    most = max(most, steps);
  }
  y[threadIdx.x] = most;
}
__device__ __noinline__ unsigned rounds(unsigned s, int n) {
#pragma unroll 1
  for (int i = 0; i < n; ++i) s = next(s);
  return s;
}
__global__ void calls(unsigned* y, int n) {
  unsigned s = rounds(threadIdx.x, 3000);
  y[threadIdx.x] = s;
  s = rounds(s, 3000);
#pragma unroll 1
  for (int k = 0; k < 3; ++k) {
    y[threadIdx.x] = k;
    s = rounds(s, 3000);
  }
  y[threadIdx.x] = s;
}
__global__ void restarts(unsigned* y, int n) {
  unsigned sum = 0;
  for (int k = 0; k < 8; ++k) {
#pragma unroll 1
    for (int i = 0; i < 700 + (threadIdx.x & 3); ++i) {
      y[threadIdx.x] = i;
      sum += i & 1;
    }
    __syncwarp();
  }
  y[threadIdx.x] = sum;
}
// both loops end at one block
__global__ void grid_of_two(unsigned* y, int n) {
  unsigned s = threadIdx.x;
#pragma unroll 1
  for (int k = 0; k < 40; ++k) {
#pragma unroll 1
    for (int i = 0; i < 600; ++i) {
      y[threadIdx.x] = i;
      s = next(s);
    }
  }
  y[threadIdx.x] = s;
}
// the inner loop, whose length memory decides, changes the condition of the outer one
__global__ void toggles(unsigned* y, int n) {
  unsigned state = 0, rounds = 0;
#pragma unroll 1
  do {
    y[threadIdx.x] = rounds > 2000 ? 3 : 2;
    ++rounds;
#pragma unroll 1
    for (unsigned k = 0; k < y[threadIdx.x]; ++k) state ^= 1;
  } while (state == 0);
  y[threadIdx.x] = rounds;
}
__global__ void sometimes(unsigned* y, int n) {
  unsigned s = 1, found = 0, tries = 0;
  while (found < 5) {
    s = next(s);
    ++tries;
    y[threadIdx.x] = s;
    if (y[threadIdx.x] % 512 == 0) ++found;
  }
  y[threadIdx.x] = tries;
}
__global__ void waiting(unsigned* y, int n) {
  __shared__ volatile unsigned count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < 3000; ++i) y[1] = i;
    count = 1;
  } else if (threadIdx.x == 32) {
    while (count == 0) y[2] = 1;
  }
  __syncthreads();
  y[threadIdx.x] = 5;
}
"""


def following(s):
    s = (s * 1664525 + 1013904223) & 0xFFFFFFFF
    return s ^ s >> 7


def repeated(s, n):
    with np.errstate(over="ignore"):
        for _ in range(n):
            s = s * np.uint32(1664525) + np.uint32(1013904223)
            s ^= s >> np.uint32(7)
    return s


def longest(last):
    def steps(v):
        count = 0
        while v != 1:
            v, count = (3 * v + 1 if v & 1 else v // 2), count + 1
        return count

    return max(map(steps, range(1, last)))


def tries():
    s, found, count = 1, 0, 0
    while found < 5:
        s, count = following(s), count + 1
        found += s % 512 == 0
    return count


T = np.arange(64, dtype=np.uint32)
WANT = {
    "up": lambda: repeated(T, 300_000),
    "down": lambda: repeated(T, 300_000),
    "stores": lambda: repeated(T, 300_000),
    "collatz": lambda: np.full(64, longest(1500)),
    "calls": lambda: repeated(T, 15_000),
    "restarts": lambda: 8 * ((700 + (T & 3)) // 2),
    "grid_of_two": lambda: repeated(T, 24_000),
    "toggles": lambda: np.full(64, 2002),
    "sometimes": lambda: np.full(64, tries()),
    "waiting": lambda: np.full(64, 5),
}


@pytest.fixture(scope="module")
def endless():
    return SimDevice(ENDLESS)


@pytest.fixture(scope="module")
def correct():
    return SimDevice(CORRECT)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize(("grid", "block"), [(1, 1), (64, 64)])
def test_a_loop_whose_condition_never_changes_is_known_to_be_endless(endless, name, grid, block):
    x, y = np.zeros(4096, np.int32), np.zeros(4096, np.int32)
    with pytest.raises(KernelFault, match="repeats with the same values in its condition, and nothing") as caught:
        endless.launch(name, grid, block, x, y, 4095, checks=ALL_CHECKS - {"race"})
    assert caught.value.report.kind == "endless loop"
    assert caught.value.report.notes == []


@pytest.mark.parametrize("name", ["follows", "stuck"])
def test_a_loop_that_memory_decides_ends_at_the_limit(endless, name):
    x, y = np.zeros(8, np.int32), np.zeros(8, np.int32)
    with pytest.raises(KernelFault, match=r"stopped after 6\d,\d\d\d loop iterations") as caught:
        endless.launch(name, 1, 1, x, y, 8)
    assert caught.value.report.kind == "endless loop"


def test_a_loop_that_goes_on_to_other_addresses_is_out_of_bounds_first(endless):
    x, y = np.zeros(3000, np.int32), np.zeros(8, np.int32)
    with pytest.raises(KernelFault) as caught:
        endless.launch("overruns", 1, 1, x, y, 3000)
    assert caught.value.report.kind == "out of bounds"


@pytest.mark.parametrize("name", WANT)
def test_long_and_repeated_loops_are_correct(correct, name):
    y = np.zeros(64, np.uint32)
    correct.launch(name, 1, 64, y, 1, checks=ALL_CHECKS)
    assert np.array_equal(y, WANT[name]())
