"""Loops that wait for other threads: by functions that they call, forever, and for long."""

import numpy as np
import pytest
from simdevice import ALL_CHECKS, SimDevice

from cudakit.sim.lockstep.report import KernelFault

SOURCE = r"""
__device__ __noinline__ bool try_lock(int* lock) { return atomicCAS(lock, 0, 1) == 0; }
__device__ __noinline__ int mix(int n) { return n * 3 + 1; }
__device__ __noinline__ int more(int* y) { return *y + 1; }
__device__ __noinline__ int seen(volatile int* p) { return *p; }
__device__ __noinline__ int rounds(int n) {
  int s = 1;
#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    s = s * 5 ^ i;
    asm volatile("" : "+r"(s));
  }
  return s;
}
__device__ int (*look)(volatile int*) = seen;
__global__ void spin_calls(int* lock, int* y) {
  while (!try_lock(lock)) {}
  __threadfence();
  *y = more(y);
  __threadfence();
  atomicExch(lock, 0);
}
__global__ void spin_mixes(int* lock, int* y) {
  int a = threadIdx.x;
  while (atomicCAS(lock, 0, 1) != 0) a = mix(a);
  __threadfence();
  *y = more(y);
  if (a == 123456789) y[1] = a;
  __threadfence();
  atomicExch(lock, 0);
}
__global__ void by_last_block(int* lock, int* y) {
  if (blockIdx.x == gridDim.x - 1) {
    if (threadIdx.x == 0) atomicExch(lock, 1);
  } else {
    while (seen(lock) == 0) {}
  }
  atomicAdd(y, 1);
}
__global__ void by_pointer(int* lock, int* y) {
  if (blockIdx.x == gridDim.x - 1) atomicExch(lock, 1);
  else while (look(lock) == 0) {}
  atomicAdd(y, 1);
}
__global__ void never_free(int* lock, int* y) {
  while (!try_lock(lock)) {}
  *y += 1;
}
__global__ void never_set(int* lock, int* y) {
  while (seen(lock) == 0) {}
}
__global__ void never_set_in_turns(int* lock, int* y) {
  if (threadIdx.x % 2) while (seen(lock) == 0) {}
  else while (atomicAdd(&lock[0], 0) == 0) __nanosleep(20);
}
__global__ void calls_long_loop(int* lock, int* y) {
  int s = 0;
#pragma unroll 1
  for (int i = 0; i < 20; ++i) s += rounds(5000) * i;
  *y = s;
}
__global__ void reads_often(volatile int* lock, int* y) {
  int s = 0;
#pragma unroll 1
  for (int i = 0; i < 50000; ++i) s += *lock + 1;
  *y = s;
}
"""


@pytest.fixture(scope="module")
def device():
    return SimDevice(SOURCE)


def run(device, name, grid, block, **more):
    lock, y = np.zeros(1, np.int32), np.zeros(2, np.int32)
    device.launch(name, grid, block, lock, y, checks=ALL_CHECKS, **more)
    return y[0]


@pytest.mark.parametrize("name", ["spin_calls", "spin_mixes"])
@pytest.mark.parametrize(("grid", "block"), [(1, 32), (1, 70), (5, 1), (3, 33)])
def test_a_lane_whose_loop_calls_functions_lets_the_holder_of_a_lock_run(device, name, grid, block):
    assert run(device, name, grid, block) == grid * block


@pytest.mark.parametrize("name", ["by_last_block", "by_pointer"])
def test_blocks_that_wait_by_a_function_run_together_with_the_block_that_they_wait_for(device, name):
    assert run(device, name, 700, 256) == 700 * 256


@pytest.mark.parametrize("name", ["never_free", "never_set", "never_set_in_turns"])
@pytest.mark.parametrize(("grid", "block"), [(1, 32), (3, 64)])
def test_waiting_forever_by_a_function_is_a_hang(device, name, grid, block):
    with pytest.raises(KernelFault) as caught:
        run(device, name, grid, block)
    assert caught.value.report.kind == "hang"


def test_a_loop_in_a_function_that_is_called_again_is_no_cycle(device):
    """The registers of the function are the same at each call, those of its caller are not."""
    s = 1
    for i in range(5000):
        s = (s * 5 ^ i) & 0xFFFFFFFF
    assert run(device, "calls_long_loop", 1, 1, step_limit=10**6) == np.uint32(s * 190 % 2**32).astype(np.int32)


def test_many_volatile_loads_without_a_store_are_no_hang(device):
    assert run(device, "reads_often", 1, 1, step_limit=10**6) == 50000
