"""Races in global memory on the simulated device, thread by thread: within a block, and between blocks by flags that
one thread sets or reads for others. Each kernel has a wrong and a correct form, selected by its last argument."""

import numpy as np
import pytest
from simdevice import ALL_CHECKS, SimDevice

from cudakit.sim.lockstep.report import KernelFault

SOURCE = r"""
#include <cuda/atomic>
__device__ void wait_for(int* flag) {
  while (atomicAdd(flag, 0) == 0) {
  }
  __threadfence();
}
// Block 0 hands its data to block 1.
__global__ void early_flag(int* data, int* flag, int* y, int good) {
  const int t = threadIdx.x;
  if (blockIdx.x == 0) {
    data[t] = t + 5;  // BUG
    if (good == 1) __syncthreads();
    if (good == 2) __threadfence(), __syncthreads();
    if (t == 0) {
      if (good != 2) __threadfence();
      atomicExch(flag, 1);
    }
  } else {
    if (t == 0) wait_for(flag);
    __syncthreads();
    y[t] = data[t];  // BUG
  }
}
__global__ void early_reader(int* data, int* flag, int* y, int good) {
  const int t = threadIdx.x;
  if (blockIdx.x == 0) {
    data[t] = t + 5;  // BUG
    __syncthreads();
    if (t == 0) {
      __threadfence();
      atomicExch(flag, 1);
    }
  } else {
    if (t == 0) wait_for(flag);
    if (good == 1) __syncthreads();
    y[t] = data[good == 2 ? 0 * t : t];  // BUG
  }
}
__global__ void by_warps(int* data, int* flag, int* y, int good) {
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;
  if (blockIdx.x == 0) {
    data[t] = t + 5;  // BUG
    if (good == 1) __syncwarp();
    if (good == 2) __threadfence();
    if (lane == 0) {
      __threadfence();
      atomicExch(&flag[warp], 1);
    }
  } else {
    if (lane == 0) wait_for(&flag[warp]);
    __syncwarp();
    y[t] = data[t];  // BUG
  }
}
__global__ void by_threads(int* data, int* flag, int* y, int good) {
  const int t = threadIdx.x;
  cuda::atomic_ref<int, cuda::thread_scope_device> mine(flag[t]);
  if (blockIdx.x == 0) {
    data[t] = t + 5;  // BUG
    mine.store(1, cuda::memory_order_release);
  } else {
    while (mine.load(cuda::memory_order_acquire) == 0) {
    }
    y[t] = data[good ? t : (t + 33) % 64];  // BUG
  }
}
__global__ void relayed(int* data, int* flag, int* y, int good) {
  const int t = threadIdx.x, b = blockIdx.x;
  if (b == 0 && t == 0) {
    *data = 5;  // BUG
    __threadfence();
    atomicExch(&flag[0], 1);
  }
  if (b == 1) {
    if (t == 0) wait_for(&flag[0]);
    if (good) __syncthreads();
    if (t == 40) {
      __threadfence();
      atomicExch(&flag[1], 1);
    }
  }
  if (b == 2 && t == 0) {
    wait_for(&flag[1]);
    y[0] = *data;  // BUG
  }
}
// The last block resets the counter by a plain store, for the next launch.
__global__ void last_resets(int* data, int* count, int* y, int good) {
  __shared__ bool last;
  const int t = threadIdx.x;
  if (good == 0 && blockIdx.x == 1 && t == 0) *count = 0;  // BUG
  if (t == 0) {
    data[blockIdx.x] = blockIdx.x + 1;
    __threadfence();
    last = atomicAdd(count, 1) == gridDim.x - 1;  // BUG
  }
  __syncthreads();
  if (last && t == (good == 2 ? 33 : 0)) {
    int sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += data[i];
    *y = sum;
    *count = 0;
  }
}
__global__ void last_thread_resets(int* data, int* count, int* y, int good) {
  const int t = threadIdx.x;
  const int total = gridDim.x * blockDim.x;
  if (good == 0 && blockIdx.x == 0 && t == 63) *count = 0;  // BUG
  if (atomicAdd(count, 1) == total - 1) {  // BUG
    *y = 1;
    *count = 0;
  }
}
// Within a block.
__global__ void neighbours(int* x, int* flag, int* y, int good) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] = i;  // BUG
  if (good) __syncthreads();
  y[i] = x[i ^ 33];  // BUG
}
__global__ void in_place(int* x, int* flag, int* y, int good) {
  const int t = threadIdx.x, first = blockIdx.x * blockDim.x;
  const int v = x[first + (t + 1) % 64];  // BUG
  if (good) __syncthreads();
  x[first + t] = v + 1;  // BUG
}
__global__ void scatter(int* x, int* flag, int* y, int good) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[good == 1 ? i : i / 2] = good == 2 ? i / 2 : i;  // BUG
}
__global__ void scatter_twice(int* x, int* flag, int* y, int good) {
  const int t = threadIdx.x, first = blockIdx.x * blockDim.x;
  if (t < 32) y[first + t] = t;  // BUG
  if (good) __syncthreads();
  if (t >= 32) y[first + t - 32] = t;  // BUG
}
__global__ void lanes(int* x, int* flag, int* y, int good) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] = i;  // BUG
  if (good) __syncwarp();
  y[i] = x[i ^ 1];  // BUG
}
__global__ void named(int* x, int* flag, int* y, int good) {
  const int t = threadIdx.x, first = blockIdx.x * blockDim.x;
  x[first + t] = t;  // BUG
  if (good) asm volatile("bar.sync 1, 64;" ::: "memory");
  y[first + t] = x[first + (t ^ 32)];  // BUG
}
__global__ void locked(int* x, int* lock, int* y, int good) {
  if (threadIdx.x % 32) return;
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  if (good == 1 || good == 2) __threadfence();
  *y += 1;  // BUG
  if (good == 1 || good == 3) __threadfence();
  atomicExch(lock, 0);
}
__global__ void exchanged(int* x, int* lock, int* y, int good) {
  if (threadIdx.x % 32) return;
  while (atomicExch(lock, 1) != 0) {
  }
  if (good == 1) __threadfence();
  *y += 1;  // BUG
  __threadfence();
  *(volatile int*)lock = 0;
}
__global__ void block_flag(int* x, int* flag, int* y, int good) {
  const int t = threadIdx.x;
  x[0] = 0;
  __syncthreads();
  if (t == 0) {
    x[0] = 5;  // BUG
    if (good) __threadfence_block();
    atomicExch(&flag[blockIdx.x], 1);
  }
  if (t == 32) {
    while (atomicAdd(&flag[blockIdx.x], 0) == 0) {
    }
    __threadfence_block();
    y[0] = x[0];  // BUG
  }
}
"""
# kernel, its blocks, the wrong forms, the correct forms
CASES = [
    ("early_flag", 2, (0,), (1, 2)),
    ("early_reader", 2, (0, 2), (1,)),
    ("by_warps", 2, (0,), (1, 2)),
    ("by_threads", 2, (0,), (1,)),
    ("relayed", 3, (0,), (1,)),
    ("last_resets", 7, (0,), (1, 2)),
    ("last_resets", 300, (0,), (1, 2)),
    ("last_thread_resets", 5, (0,), (1,)),
    ("last_thread_resets", 1, (0,), (1,)),
    ("neighbours", 1, (0,), (1,)),
    ("neighbours", 300, (0,), (1,)),
    ("in_place", 3, (0,), (1,)),
    ("scatter", 3, (0,), (1, 2)),
    ("scatter_twice", 2, (0,), (1,)),
    ("lanes", 2, (0,), (1,)),
    ("named", 2, (0,), (1,)),
    ("locked", 1, (0, 2, 3), (1,)),
    ("locked", 6, (0, 2, 3), (1,)),
    ("exchanged", 1, (0,), (1,)),
    ("exchanged", 3, (0,), (1,)),
    ("block_flag", 1, (0,), (1,)),
]
WRONG = [(name, grid, form) for name, grid, wrong, _ in CASES for form in wrong]
RIGHT = [(name, grid, form) for name, grid, _, right in CASES for form in right]


@pytest.fixture(scope="module")
def device():
    return SimDevice(SOURCE)


def run(device, name, grid, form):
    x, flags, y = (np.zeros(64 * grid, np.int32) for _ in range(3))
    device.launch(name, grid, 64, x, flags, y, form, checks=ALL_CHECKS)
    return x, flags, y


def marked(kernel):
    lines = SOURCE.splitlines()
    start = next(n for n, text in enumerate(lines, 1) if f"void {kernel}(" in text)
    end = next(n for n, text in enumerate(lines, 1) if n > start and text == "}")
    return {n for n in range(start, end) if lines[n - 1].endswith("// BUG")}


@pytest.mark.parametrize(("name", "grid", "form"), WRONG)
def test_unordered_accesses_are_reported_with_both_lines(device, name, grid, form):
    with pytest.raises(KernelFault) as caught:
        run(device, name, grid, form)
    report = caught.value.report
    assert report.kind == "global memory race", str(report)
    (other,) = report.others
    assert {report.line, other.places[0].line} <= marked(name), str(report)
    assert (report.block, report.thread) != (other.block, other.thread)


@pytest.mark.parametrize(("name", "grid", "form"), RIGHT)
def test_ordered_accesses_are_not(device, name, grid, form):
    _, flags, y = run(device, name, grid, form)
    t = np.arange(64)
    if name in ("early_flag", "early_reader", "by_warps", "by_threads"):
        assert (y[:64] == t + 5).all()
    if name == "last_resets":
        assert y[0] == grid * (grid + 1) // 2
        assert flags[0] == 0
    if name == "last_thread_resets":
        assert (y[0], flags[0]) == (1, 0)
    if name == "locked":
        assert y[0] == 2 * grid


def test_the_report_names_both_threads(device):
    with pytest.raises(KernelFault) as caught:
        run(device, "scatter_twice", 1, 0)
    report = caught.value.report
    assert "not synchronised with an access by another thread of the block" in report.detail
    assert (report.thread[0], report.others[0].thread[0]) in ((0, 32), (32, 0))
    assert report.notes == [
        "put __syncthreads() between the two accesses (__syncwarp() within one warp), or use atomics",
    ]
