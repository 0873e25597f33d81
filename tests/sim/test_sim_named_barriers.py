"""Named barriers that groups of warps share: at once, which is reported, and one after another."""

import numpy as np
import pytest
from simdevice import ALL_CHECKS, CHECKS, SimDevice

from cudakit.sim.lockstep.report import KernelFault

SOURCE = r"""
__device__ void sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ void arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__global__ void pairs(int* y, int first, int second) {
  if (threadIdx.x < 64) {
    y[threadIdx.x] = 1;
    sync(first, 64);  // BUG
    y[threadIdx.x] = 2;
  } else {
    y[threadIdx.x] = 2;
    sync(second, 64);  // BUG
    y[threadIdx.x] = 4;
  }
}
__global__ void same_line(int* y, int first, int second) {
  sync(threadIdx.x < 64 ? first : second, 64);  // BUG
  y[threadIdx.x] = threadIdx.x < 64 ? 2 : 4;
}
// the second pair has a producer that only arrives
__global__ void with_arrivals(int* y, int first, int second) {
  const int warp = threadIdx.x / 32;
  if (warp == 2) arrive(second, 64);
  else sync(warp < 2 ? first : second, 64);  // BUG
  y[threadIdx.x] = warp < 2 ? 2 : 4;
}
// the halves of a warp wait at one barrier, or each half at its own: then nothing orders one half after the other
__global__ void halves(int* y, int other) {
  __shared__ int s[64];
  const int t = threadIdx.x;
  s[t] = t;
  if (t % 32 < 16) asm volatile("barrier.sync 1, %0;" ::"r"(other == 1 ? 64 : 32) : "memory");
  else asm volatile("barrier.sync %0, %1;" ::"r"(other), "r"(other == 1 ? 64 : 32) : "memory");
  y[t] = s[t ^ 16];
}
// the warps are at barrier 0 with and without a number of threads
__global__ void counted(int* y, int which) {
  if (threadIdx.x / 32 == which) asm volatile("bar.sync 0;" ::: "memory");
  else asm volatile("bar.sync 0, 64;" ::: "memory");
  y[threadIdx.x] = 1;
}
// warp 0 only arrives, with its own number of threads
__global__ void produced(int* y, int threads) {
  if (threadIdx.x < 32) arrive(1, threads);
  else sync(1, 64);
  y[threadIdx.x] = 1;
}
__global__ void any_count(int* y, int threads) {
  sync(1, threads);
  y[threadIdx.x] = 1;
}
// correct if lane 31 has not exited before the other lanes meet
__global__ void exited(int* y, int last) {
  __shared__ int s[32];
  const int t = threadIdx.x;
  s[t] = t;
  if (t == 31 && last) asm volatile("exit;" ::: "memory");
  __syncwarp(last ? 0x7fffffff : 0xffffffff);
  y[t] = s[31];
}
// correct if warp 1 waits for warp 0: it then publishes what warp 0 has stored to block 1, which reads it after
// __syncthreads()
__global__ void published(int* data, int* flag, int* y, int waits) {
  const int t = threadIdx.x;
  if (blockIdx.x == 0) {
    if (t < 32) data[t] = t + 1;
    if (t < 64 && waits) sync(1, 64);
    if (t == 32) {
      __threadfence();
      atomicExch(flag, 1);
    }
  } else if (t == 0) {
    while (atomicAdd(flag, 0) == 0) {}
    __threadfence();
  }
  __syncthreads();
  if (blockIdx.x == 1 && t == 0) y[0] = data[5];  // RACE
}
// correct: a thread count is of whole warps, also if the last warp of the block is partial
__global__ void partial_warp(int* y, int threads) {
  __shared__ int s[96];
  const int t = threadIdx.x;
  s[t] = t;
  if (t < 32) return;
  sync(1, threads);
  y[t] = s[t + 1 == blockDim.x ? 32 : t + 1];
}
// correct: the second pair uses the barrier after the first one has passed it
__global__ void in_turn(int* y, int way, int rounds) {
  const int pair = threadIdx.x / 64;
  for (int k = 0; k < rounds; ++k) {
    if (pair == 0) sync(1, 64);
    if (way == 0) __syncthreads();
    else if (pair == 0) arrive(2, 128);
    else sync(2, 128);
    if (pair == 1) sync(1, 64);
    if (way == 0) __syncthreads();
    else if (pair == 1) arrive(3, 128);
    else sync(3, 128);
  }
  y[threadIdx.x] = 2 * pair + 2;
}
// correct: the schedule of FlashAttention 3, in which each of three groups waits for the two others
__global__ void scheduled(int* y, int way, int rounds) {
  const int group = threadIdx.x / 32;
  if (group == 3) { y[threadIdx.x] = 4; return; }
  if (group > 0) arrive(1, 96);
  if (group > 1) arrive(2, 96);
  int sum = 0;
  for (int k = 0; k < rounds; ++k) {
    sync(1 + group, 96);
    sum += k;
    arrive(1 + (group + 1) % 3, 96);
    arrive(1 + (group + 2) % 3, 96);
  }
  y[threadIdx.x] = group < 2 ? 2 : 4;
}
"""
WANT = np.repeat([2, 4], 64)


@pytest.fixture(scope="module")
def device():
    return SimDevice(SOURCE)


def run(device, name, *args, checks=ALL_CHECKS, grid=1):
    y = np.zeros(128, np.int32)
    device.launch(name, grid, 128, y, *args, checks=checks)
    return y


def lines_of(name):
    lines = SOURCE.splitlines()
    start = next(n for n, text in enumerate(lines, 1) if f"void {name}(" in text)
    end = next(n for n in range(start, len(lines)) if lines[n] == "}")
    return {n for n in range(start, end + 1) if lines[n - 1].endswith("// BUG")} | {2}


@pytest.mark.parametrize("name", ["pairs", "same_line", "with_arrivals"])
def test_two_groups_at_one_barrier_at_once_are_reported(device, name):
    with pytest.raises(KernelFault, match="128 threads of the block are at barrier 1 at once") as caught:
        run(device, name, 1, 1)
    report = caught.value.report
    assert (report.kind, report.title) == ("divergent barrier", "divergent barrier")
    assert {place.line for place in report.places} & lines_of(name)
    assert np.array_equal(run(device, name, 1, 2), WANT)


def test_the_check_can_be_left_out(device):
    assert np.array_equal(run(device, "pairs", 1, 1, checks=CHECKS - {"barrier"}), WANT)


@pytest.mark.parametrize("way", [0, 1])
def test_groups_may_use_a_barrier_in_turn(device, way):
    assert np.array_equal(run(device, "in_turn", way, 3), WANT)


def test_arrivals_of_a_schedule_of_three_groups_are_correct(device):
    assert np.array_equal(run(device, "scheduled", 0, 5), WANT)


def test_a_partial_warp_counts_as_a_whole_one() -> None:
    """On an H100 the two warps with the threads 32 to 79 meet at a barrier of 64 threads."""
    y = np.zeros(96, np.int32)
    SimDevice(SOURCE).launch("partial_warp", 1, 80, y, 64, checks=ALL_CHECKS)
    assert y[32:80].tolist() == [*range(33, 80), 32]
    with pytest.raises(KernelFault, match="deadlock"):
        SimDevice(SOURCE).launch("partial_warp", 1, 80, y, 96, checks=ALL_CHECKS)


def test_a_named_barrier_is_part_of_a_chain_to_another_block() -> None:
    def launch(waits: int) -> np.ndarray:
        y = np.zeros(1, np.int32)
        data, flag = np.zeros(32, np.int32), np.zeros(1, np.int32)
        SimDevice(SOURCE).launch("published", 2, 96, data, flag, y, waits, checks=ALL_CHECKS)
        return y

    assert launch(1) == 6
    with pytest.raises(KernelFault, match="data race: global load of 4 bytes"):
        launch(0)


def test_barriers_of_the_halves_of_a_warp_order_only_the_half_that_waits_there() -> None:
    y = np.zeros(64, np.int32)
    SimDevice(SOURCE).launch("halves", 1, 64, y, 1, checks=ALL_CHECKS)
    assert y.tolist() == [t ^ 16 for t in range(64)]
    with pytest.raises(KernelFault, match="data race: shared load of 4 bytes"):
        SimDevice(SOURCE).launch("halves", 1, 64, y, 2, checks=ALL_CHECKS)


@pytest.mark.parametrize(
    ("kernel", "argument", "valid"),
    [
        *(("counted", warp, False) for warp in (0, 1)),
        *(("produced", threads, threads == 64) for threads in (64, 96)),
    ],
)
@pytest.mark.parametrize("block", [40, 64])
def test_different_counts_at_one_barrier_are_reported(kernel: str, argument: int, valid: bool, block: int) -> None:
    """On an H200 they are an illegal instruction."""
    y = np.zeros(block, np.int32)
    if valid:
        SimDevice(SOURCE).launch(kernel, 1, block, y, argument, checks=ALL_CHECKS)
        assert y.all()
    else:
        with pytest.raises(KernelFault, match=r"barrier . with .*, but other threads of the block are there with "):
            SimDevice(SOURCE).launch(kernel, 1, block, y, argument, checks=ALL_CHECKS)


def test_a_count_that_is_not_of_whole_warps_is_reported() -> None:
    y = np.zeros(40, np.int32)
    with pytest.raises(KernelFault, match="barrier 1 with 40 threads: a barrier counts whole warps"):
        SimDevice(SOURCE).launch("any_count", 1, 40, y, 40, checks=ALL_CHECKS)
    SimDevice(SOURCE).launch("any_count", 1, 40, y, 64, checks=ALL_CHECKS)
    assert y.all()


def test_a_warp_does_not_wait_for_lanes_that_have_exited() -> None:
    y = np.zeros(32, np.int32)
    SimDevice(SOURCE).launch("exited", 1, 32, y, 0, checks=ALL_CHECKS)
    assert (y == 31).all()
    with pytest.raises(KernelFault, match="data race: shared load of 4 bytes"):
        SimDevice(SOURCE).launch("exited", 1, 32, y, 1, checks=ALL_CHECKS)
