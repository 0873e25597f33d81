"""Benign races: off by default, reported with the check "benign". Real races in the same form are always reported."""

import numpy as np
import pytest
from simdevice import SimDevice

from cudakit.sim.lockstep.report import KernelFault

CHECKS = frozenset({"barrier", "syncthreads", "warp", "race", "init"})

SOURCE = r"""
template <int HOW> __device__ void add(int* bits, float value, float* log) {
  int old = *bits, seen;  // first
  if (HOW == 1) log[blockIdx.x * blockDim.x + threadIdx.x] = __int_as_float(old);
  if (HOW == 2 && old < 0) return;
  if (HOW == 3) old = old & ~1;
  const int first = __float_as_int(__int_as_float(old) + value);
  while (true) {
    const int next = HOW == 4 ? first : __float_as_int(__int_as_float(old) + value);
    seen = atomicCAS(HOW == 5 ? bits + 1 : bits, old, next);
    if (HOW == 6) log[blockIdx.x * blockDim.x + threadIdx.x] = __int_as_float(old);
    if (seen == old) break;
    old = seen;
  }
  if (HOW == 5) atomicAdd(bits, 1);
  if (HOW == 7) log[blockIdx.x * blockDim.x + threadIdx.x] = __int_as_float(old) + value;
}
#define ADD(HOW) \
  __global__ void add##HOW(int* bits, float* log) { add<HOW>(bits, threadIdx.x, log); }
ADD(0) ADD(1) ADD(2) ADD(3) ADD(4) ADD(5) ADD(6) ADD(7)
__global__ void retry(int* bits, float* log) {
  int old;
  do old = *bits;
  while (atomicCAS(bits, old, old + 1) != old);
}
__global__ void once(int* bits, float* log) {
  const int old = *bits;
  if (atomicCAS(bits, old, old + 1) == old) log[old] = 1;
}
// The value is compared at the next address, at the same one only in the first step.
__global__ void next(int* bits, float* log) {
  const int old = *bits;  // first
  if (atomicCAS(bits, old, old + 1) != old) atomicCAS(bits + 1, old, old + 1);
}
// The same instructions in each step, with the pointer of the step before.
__global__ void moved(int* bits, float* log) {
  int old = 0;
#pragma unroll 1
  for (int i = 0; i < gridDim.x; ++i) {
    atomicCAS(bits, old, old + 1);
    old = *bits;  // first
    bits += log[i] == 0;
  }
}
__global__ void flag(int* bits, float* log) { *bits = 1; }
__global__ void shared_flag(int* bits, float* log) {
  __shared__ int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (log[threadIdx.x] == 0) flag = 1;
  __syncthreads();
  if (threadIdx.x == 0) bits[blockIdx.x] = flag;
}
__global__ void same_read(int* bits, float* log) {
  if (*bits == 0) *bits = 1;  // first
}
__global__ void same_atomic(int* bits, float* log) {
  if (blockIdx.x % 2) *bits = 1;  // first
  else atomicExch(bits, 1);
}
__global__ void same_narrow(int* bits, float* log) {
  if (blockIdx.x % 2) *bits = 1;  // first
  else *reinterpret_cast<short*>(bits) = 1;
}
"""
BENIGN = ["add0", "add7", "retry", "once", "flag", "shared_flag"]
# the first read is stored, decides a branch, is changed before the atomic, computes a value that outlives a failed
# atomic, belongs to another address, or is used although the atomic may have failed; a flag is read
REAL = ["add1", "add2", "add3", "add4", "add5", "add6", "next", "moved", "same_read", "same_atomic", "same_narrow"]


@pytest.fixture(scope="module")
def device():
    return SimDevice(SOURCE)


def report(device, name, checks):
    """Return the report of a launch, or None."""
    try:
        device.launch(name, 4, 64, np.zeros(4, np.int32), np.zeros(256, np.float32), checks=checks)
    except KernelFault as fault:
        return fault.report
    return None


@pytest.mark.parametrize("name", BENIGN)
def test_benign_races_are_reported_only_if_the_check_is_named(device, name):
    assert report(device, name, CHECKS) is None
    found = report(device, name, CHECKS | {"benign"})
    assert found.kind == "benign race"
    assert any("'benign'" in note for note in found.notes)


@pytest.mark.parametrize("name", REAL)
def test_real_races_in_the_same_form_are_reported(device, name):
    found = report(device, name, CHECKS)
    assert found.kind == "global memory race", str(found)
    lines = [found.text, *(other.places[0].text for other in found.others)]
    assert any(line.endswith("// first") for line in lines), str(found)
