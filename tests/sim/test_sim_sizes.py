"""Strong accesses of different sizes to the same bytes are a race; those of one size, and ordered ones, are not."""

import numpy as np
import pytest
from simdevice import ALL_CHECKS, SimDevice

from cudakit.sim.lockstep.report import KernelFault

SOURCE = r"""
#include <cuda/atomic>
#include <cuda_fp16.h>
typedef unsigned long long wide;
// thread 0 of block 0 stores, thread 0 of the last block loads; both in block 0 if there is one
#define SETTER blockIdx.x == 0 && threadIdx.x == 0
#define GETTER blockIdx.x == gridDim.x - 1 && threadIdx.x == blockDim.x - 1
__global__ void stored_whole(wide* x, unsigned* y, int good) {
  volatile wide* whole = x;
  volatile unsigned* halves = (volatile unsigned*)x;
  if (SETTER) *whole = 7ull << 32 | 7;  // BUG
  if (GETTER) {
    if (good) {
      const wide seen = *whole;
      y[0] = unsigned(seen), y[1] = unsigned(seen >> 32);
    } else {
      y[0] = halves[0];  // BUG
      y[1] = halves[1];  // BUG
    }
  }
}
__global__ void stored_in_halves(wide* x, unsigned* y, int good) {
  volatile unsigned* halves = (volatile unsigned*)x;
  if (SETTER) {
    if (good) *(volatile wide*)x = 7ull << 32 | 7;
    else {
      halves[0] = 7;  // BUG
      halves[1] = 7;  // BUG
    }
  }
  if (GETTER) {
    const wide seen = *(volatile wide*)x;  // BUG
    y[0] = unsigned(seen), y[1] = unsigned(seen >> 32);
  }
}
__global__ void atomic_of_half(wide* x, unsigned* y, int good) {
  if (SETTER) atomicAdd(x, 7ull << 32 | 7);  // BUG
  if (GETTER) {
    if (good) y[0] = y[1] = unsigned(atomicAdd(x, 0ull));
    else y[0] = y[1] = atomicAdd((unsigned*)x + 1, 0);  // BUG
  }
}
__global__ void in_shared(wide* x, unsigned* y, int good) {
  __shared__ wide value;
  if (threadIdx.x == 0) value = 0;
  __syncthreads();
  volatile wide* whole = &value;
  volatile unsigned* halves = (volatile unsigned*)&value;
  if (threadIdx.x == 0) *whole = 7ull << 32 | 7;  // BUG
  if (threadIdx.x == blockDim.x - 1) {
    if (good) y[0] = y[1] = unsigned(*whole);
    else y[0] = y[1] = halves[1];  // BUG
  }
}
// correct in all forms
__global__ void ordered(wide* x, unsigned* y, int good) {
  volatile unsigned* halves = (volatile unsigned*)x;
  if (threadIdx.x == 0) *(volatile wide*)(x + blockIdx.x) = 7ull << 32 | 7;
  __syncthreads();
  if (threadIdx.x == blockDim.x - 1) y[0] = y[1] = halves[2 * blockIdx.x] + halves[2 * blockIdx.x + 1] - 7;
}
__global__ void by_flag(wide* x, unsigned* y, int good) {
  volatile unsigned* halves = (volatile unsigned*)x;
  unsigned* flag = (unsigned*)(x + 8);
  if (SETTER) {
    *(volatile wide*)x = 7ull << 32 | 7;
    __threadfence();
    atomicExch(flag, 1);
  }
  if (GETTER) {
    while (atomicAdd(flag, 0) == 0) {}
    __threadfence();
    y[0] = halves[0], y[1] = halves[1];
  }
}
__global__ void vectors(wide* x, unsigned* y, int good) {
  unsigned a, b;
  if (SETTER) asm volatile("st.volatile.global.v2.u32 [%0], {%1, %1};" ::"l"(x), "r"(7) : "memory");
  if (GETTER) {
    asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(x) : "memory");
    y[0] = ((volatile unsigned*)x)[0], y[1] = b + 0 * a;
  }
}
__global__ void small(wide* x, unsigned* y, int good) {
  cuda::atomic_ref<unsigned char, cuda::thread_scope_device> byte(((unsigned char*)x)[good]);
  byte.fetch_add(7);
  cuda::atomic_ref<unsigned short, cuda::thread_scope_device> word(((unsigned short*)x)[5]);
  word.fetch_max(7);
  word.store(7);
  if (GETTER) y[0] = y[1] = word.load();
}
__global__ void packed_halves(wide* x, unsigned* y, int good) {
  __half2* pairs = (__half2*)x;
  if (SETTER) atomicAdd(pairs, __half2half2(__float2half(1)));
  if (GETTER) {
    atomicAdd((__half*)pairs, __float2half(1));
    y[0] = y[1] = 7;
  }
}
"""
MIXED = ["stored_whole", "stored_in_halves", "atomic_of_half"]
CORRECT = ["ordered", "by_flag", "vectors", "small", "packed_halves"]
PLACES = [(1, 64), (1, 2), (3, 1)]


@pytest.fixture(scope="module")
def device():
    return SimDevice(SOURCE)


def run(device, name, grid, block, good):
    x, y = np.zeros(16, np.uint64), np.zeros(2, np.uint32)
    device.launch(name, grid, block, x, y, good, checks=ALL_CHECKS)
    return y.tolist()


def marked(name):
    lines = SOURCE.splitlines()
    start = next(n for n, text in enumerate(lines) if f"void {name}(" in text)
    end = next(n for n in range(start, len(lines)) if lines[n] == "}")
    return {n + 1 for n in range(start, end) if lines[n].endswith("// BUG")}


@pytest.mark.parametrize("name", [*MIXED, "in_shared"])
@pytest.mark.parametrize(("grid", "block"), PLACES)
def test_strong_accesses_of_different_sizes_are_a_race(device, name, grid, block):
    shared = name == "in_shared"
    if shared:
        grid, block = 1, max(block, 2)
    with pytest.raises(KernelFault, match="of another size than an unordered access by another") as caught:
        run(device, name, grid, block, 0)
    report = caught.value.report
    assert report.kind == ("shared memory race" if shared else "global memory race")
    assert {report.line, report.others[0].places[0].line} <= marked(name)


@pytest.mark.parametrize("name", [*MIXED, "in_shared", *CORRECT])
@pytest.mark.parametrize(("grid", "block"), PLACES)
def test_accesses_of_one_size_and_ordered_ones_are_none(device, name, grid, block):
    assert run(device, name, grid, block, 1) in ([0, 0], [7, 7])
