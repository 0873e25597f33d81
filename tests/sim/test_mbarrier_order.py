"""The order by mbarriers and its limits: phases that other barriers or flags order too, relaxed operations, bytes that
no arrival expects, waits for another barrier or phase, the memory of an mbarrier, and reports of hangs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paths import ROOT
from simdevice import CheckedDevice
from test_bulk_edges import reported

from cudakit.sim.lockstep.report import KernelFault

SOURCE = r"""
#include "hopper.cuh"
__device__ __forceinline__ void start(uint64* barrier, int arrivals) {
    if (threadIdx.x == 0) { barrier_init(barrier, arrivals); fence_barrier_init(); }
}
__device__ __forceinline__ void fence() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }
__device__ __forceinline__ uint64 arrive(uint64* barrier) {
    uint64 state;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(shared_address(barrier)) : "memory");
    return state;
}
__device__ __forceinline__ bool tested(uint64* barrier, uint64 state) {
    int passed;
    asm volatile("{.reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p;}"
                 : "=r"(passed) : "r"(shared_address(barrier)), "l"(state) : "memory");
    return passed;
}
#define WAIT(form) \
    asm volatile("{.reg .pred p; WAIT: mbarrier." form ".shared::cta.b64 p, [%0], 0; @!p bra WAIT;}" \
                 :: "r"(shared_address(&ready)) : "memory")

// ---- order by something else ----
// warp 0 waits for every phase; warp 1 only for those in the mask `waits`, and learns of the others by `order`
enum { NOTHING, BLOCK, NAMED, FLAG, FLAG_UNFENCED };
__global__ void skipping(const int* x, int* y, int order, int waits) {
    __shared__ alignas(16) int tile[5][64];
    __shared__ uint64 full;
    __shared__ volatile int flag;
    start(&full, 1);
    if (threadIdx.x == 0) flag = -1;
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < 5; ++i) {
        if (threadIdx.x == 0) {
            barrier_arrive_expect(&full, 256);
            bulk_load(tile[i], x + 64 * i, 256, &full);
        }
        if (threadIdx.x < 32 || waits >> i & 1) {
            barrier_wait(&full, i & 1);  // skipped
            sum += tile[i][threadIdx.x];  // sum
        }
        if (order == BLOCK) __syncthreads();
        if (order == NAMED) named_sync(1, 64);
        if (order >= FLAG) {
            if (threadIdx.x == 0) {
                if (order == FLAG) __threadfence_block();
                flag = i;
            }
            if (threadIdx.x == 32) {
                while (flag < i) continue;
                if (order == FLAG) __threadfence_block();
            }
            __syncwarp();
            // only warp 0 waits here
            if (threadIdx.x < 32) named_sync(1, 64);
            else asm volatile("bar.arrive 1, 64;" ::: "memory");
        }
    }
    y[threadIdx.x] = sum;
}

// ---- relaxed operations ----
// `before` and `after`: the number of threads with a fence before the arrival, and with one after the wait; `late`:
// they store after the fence
__global__ void relaxed(int* y, int arrival, int wait, int before, int after, int late) {
    __shared__ int values[64];
    __shared__ uint64 ready;
    start(&ready, 64);
    __syncthreads();
    if (!late) values[threadIdx.x] = threadIdx.x;
    if (threadIdx.x < before) fence();
    if (late) values[threadIdx.x] = threadIdx.x;
    if (arrival)
        asm volatile("mbarrier.arrive.relaxed.cta.shared.b64 _, [%0];" :: "r"(shared_address(&ready)) : "memory");
    else
        arrive(&ready);
    if (wait == 0) WAIT("try_wait.parity");
    if (wait == 1) WAIT("try_wait.parity.relaxed.cta");
    if (wait == 2) WAIT("test_wait.parity");
    if (wait == 3) WAIT("test_wait.parity.relaxed.cta");
    if (threadIdx.x < after) fence();
    y[threadIdx.x] = values[63 - threadIdx.x];  // relaxed
}
// Threads fence at different places, or only some do; `from`: the number of those whose values are read.
enum { BY_WARP, BY_LANE, ONE_WARP };
__global__ void fenced_apart(int* y, int how, int from) {
    __shared__ int values[64];
    __shared__ uint64 ready;
    start(&ready, 64);
    __syncthreads();
    const int role = how == BY_LANE ? threadIdx.x % 2 : threadIdx.x / 32;
    if (role == 0) {
        values[threadIdx.x] = threadIdx.x;
        fence();
    } else {
        values[threadIdx.x] = -threadIdx.x;
        if (how != ONE_WARP) fence();
    }
    asm volatile("mbarrier.arrive.relaxed.cta.shared.b64 _, [%0];" :: "r"(shared_address(&ready)) : "memory");
    barrier_wait(&ready, 0);
    y[threadIdx.x] = values[from - 1 - threadIdx.x % from];  // apart
}
// `fences`: the number of threads of each block with a fence; `from`: the number of those whose values are read;
// `late`: they store after the fence
__global__ void __cluster_dims__(2) relaxed_cluster(int* y, int release, int fences, int from, int late) {
    __shared__ int values[64];
    __shared__ uint64 ready;
    start(&ready, 128);
    // enough for the mbarrier, with its own fence
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
    barrier_arrive_at<true>(&ready, 0);
    barrier_arrive_at<true>(&ready, 1);
    barrier_wait<true>(&ready, 0);
    if (!late) values[threadIdx.x] = threadIdx.x;
    if (threadIdx.x < fences) fence();
    if (late) values[threadIdx.x] = threadIdx.x;
    if (release) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    else asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    int value;
    asm volatile("{.reg .b32 at; mapa.shared::cluster.u32 at, %1, %2; ld.shared::cluster.u32 %0, [at];}"  // far
                 : "=r"(value)
                 : "r"(shared_address(values + (threadIdx.x ^ 33) % from)), "r"(cluster_rank() ^ 1) : "memory");
    y[64 * blockIdx.x + threadIdx.x] = value;
    cluster_sync();
}

// ---- bytes, and waits for another barrier ----
// two copies of 256 bytes per phase, of which the phases expect `first` and `second` bytes
__global__ void expects(const int* x, int* y, int first, int second, int sync) {
    __shared__ alignas(16) int tile[2][128];
    __shared__ uint64 full;
    start(&full, 1);
    __syncthreads();
    for (int i = 0; i < 2; ++i) {
        if (threadIdx.x == 0) {
            barrier_arrive_expect(&full, i ? second : first);  // expects
            for (int j = 0; j < 128; j += 64) bulk_load(tile[i] + j, x + 128 * i + j, 256, &full);
        }
        barrier_wait(&full, i);
        if (sync) __syncthreads();
        y[128 * i + threadIdx.x] = tile[i][127 - threadIdx.x];
    }
}
// Copies to a and b complete at different mbarriers. Warp 1 waits for a, warp 2 uses both.
enum { WAITS, ONLY_B, NAMED_BARRIER, LATE_BARRIER, MBARRIER, ISSUER, ONE_LANE, ONE_LANE_SYNC, STORES };
__global__ void two_barriers(const int* x, int* y, int how) {
    __shared__ alignas(16) int a[32], b[32];
    __shared__ uint64 full_a, full_b, ready;
    start(&full_a, 1);
    start(&full_b, 1);
    start(&ready, 32);
    __syncthreads();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        barrier_arrive_expect(&full_a, 128);
        bulk_load(a, x, 128, &full_a);
        if (how == ISSUER) barrier_wait(&full_a, 0);
        barrier_arrive_expect(&full_b, 128);
        bulk_load(b, x + 32, 128, &full_b);
    }
    if (warp == 1) {
        barrier_wait(&full_a, 0);
        y[lane] = a[lane];
        if (how == NAMED_BARRIER || how == LATE_BARRIER) named_sync(1, 64);
        if (how == MBARRIER) barrier_arrive(&ready);
    }
    if (warp == 2) {
        barrier_wait(&full_b, 0);
        if (how == WAITS) barrier_wait(&full_a, 0);
        if (how == NAMED_BARRIER) named_sync(1, 64);
        if (how == MBARRIER) barrier_wait(&ready, 0);
        if ((how == ONE_LANE || how == ONE_LANE_SYNC) && lane == 5) barrier_wait(&full_a, 0);
        if (how == ONE_LANE_SYNC) __syncwarp();
        if (how == STORES) a[lane] = 0;  // overwrites
        y[32 + lane] = a[lane] + b[lane];  // reads
        if (how == LATE_BARRIER) named_sync(1, 64);
    }
}
// a try without a loop, whose result counts if USED
enum { ONCE, USED, LOOP };
__global__ void tries(const int* x, int* y, int how) {
    __shared__ alignas(16) int tile[64];
    __shared__ uint64 full;
    start(&full, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_arrive_expect(&full, 256);
        bulk_load(tile, x, 256, &full);
    }
    bool passed = false;
    if (how != LOOP) passed = barrier_passed(&full, 0);
    if (how != ONCE && !passed) barrier_wait(&full, 0);
    y[threadIdx.x] = tile[63 - threadIdx.x];  // once
}

// ---- the memory of an mbarrier ----
// uses it for mbarriers and for other data in turn; `without`: the __syncthreads() that is left out
__global__ void reused(const int* x, int* y, int without) {
    alignas(16) extern __shared__ int memory[];
    uint64* const full = reinterpret_cast<uint64*>(memory + 64);
    int* const scratch = memory + 64;
    for (int i = 0; i < 2; ++i) {
        start(full, 1);  // init
        __syncthreads();
        if (threadIdx.x == 0) {
            barrier_arrive_expect(full, 256);
            bulk_load(memory, x + 64 * i, 256, full);
        }
        barrier_wait(full, 0);
        y[64 * i + threadIdx.x] = memory[63 - threadIdx.x];
        if (without != 1) __syncthreads();
        if (threadIdx.x == 0) barrier_invalidate(full);  // inval
        if (without != 2) __syncthreads();
        if (threadIdx.x < 2) scratch[threadIdx.x] = i;  // store
        __syncthreads();
        y[128 + threadIdx.x] = scratch[threadIdx.x % 2];
        if (without != 3) __syncthreads();
    }
}
// the last thread ends one mbarrier when all have arrived at the other one: after their waits, or before
__global__ void ended(const int* x, int* y, int early) {
    __shared__ alignas(16) int tile[64];
    __shared__ uint64 full, done;
    start(&full, 1);
    start(&done, 64);
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_arrive_expect(&full, 256);
        bulk_load(tile, x, 256, &full);
    }
    if (early) barrier_arrive(&done);
    barrier_wait(&full, 0);
    y[threadIdx.x] = tile[threadIdx.x];
    if (!early) barrier_arrive(&done);
    if (threadIdx.x == 63) {
        barrier_wait(&done, 0);
        barrier_invalidate(&full);  // ended
    }
}

// ---- states ----
// waits with the state of the arrival at phase `which`, when the current one is 2
__global__ void states(int* y, int which) {
    __shared__ int values[64];
    __shared__ uint64 ready;
    start(&ready, 64);
    __syncthreads();
    const uint64 first = arrive(&ready);
    while (!tested(&ready, first)) continue;
    const uint64 second = arrive(&ready);
    while (!tested(&ready, second)) continue;
    values[threadIdx.x] = threadIdx.x;
    const uint64 third = arrive(&ready);
    while (!tested(&ready, which == 0 ? first : which == 1 ? second : third)) continue;  // state
    y[threadIdx.x] = values[63 - threadIdx.x];
}

// ---- hangs ----
// warp 0 loads two tiles through one buffer; `how`: what warps 1 and 2 do before they hand it back
enum { RIGHT, COUNT, WHOLE_BLOCK, CLUSTER };
__global__ void __cluster_dims__(2) hangs(const int* x, int* y, int how) {
    __shared__ alignas(16) int tile[64];
    __shared__ uint64 full, empty;
    start(&full, 1);
    start(&empty, 1);
    cluster_sync();
    if (threadIdx.x < 32) {
        for (int i = 0; i < 2; ++i) {
            barrier_wait(&empty, i & 1 ^ 1);  // producer
            if (threadIdx.x == 0) {
                barrier_arrive_expect(&full, 256);
                bulk_load(tile, x + 64 * i, 256, &full);
            }
        }
    } else {
        for (int i = 0; i < 2; ++i) {
            barrier_wait(&full, i);
            y[128 * blockIdx.x + 64 * i + threadIdx.x - 32] = tile[threadIdx.x - 32];
            if (how == RIGHT) named_sync(1, 64);
            if (how == COUNT) named_sync(1, 96);  // count
            if (how == WHOLE_BLOCK) __syncthreads();  // block
            if (how == CLUSTER) cluster_sync();  // cluster
            if (threadIdx.x == 32) barrier_arrive(&empty);
        }
    }
    cluster_sync();
}

// ---- counts and predicates ----
__global__ void counts(int arrivals, int adds) {
    __shared__ uint64 ready;
    if (threadIdx.x == 0) {
        barrier_init(&ready, arrivals);
        const unsigned at = shared_address(&ready);
        if (adds) asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" :: "r"(at) : "memory");  // adds
        else asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(at) : "memory");
    }
}
// a try by the first n threads, by a guard or in a branch, whose result all threads use
__global__ void guarded(int* y, int n, int branch, int arrivals) {
    __shared__ uint64 ready;
    start(&ready, 1);
    __syncthreads();
    if (threadIdx.x < arrivals) barrier_arrive(&ready);
    __syncthreads();
    int passed;
    const unsigned at = shared_address(&ready), thread = threadIdx.x;
    if (branch)
        asm volatile("{.reg .pred p, q; setp.ge.u32 q, %2, %3; @q bra OVER;"
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], 0; OVER: selp.s32 %0, 1, 0, p;}"
                     : "=r"(passed) : "r"(at), "r"(thread), "r"(n) : "memory");
    else
        asm volatile("{.reg .pred p, q; setp.lt.u32 q, %2, %3;"
                     "@q mbarrier.try_wait.parity.shared.b64 p, [%1], 0; selp.s32 %0, 1, 0, p;}"
                     : "=r"(passed) : "r"(at), "r"(thread), "r"(n) : "memory");
    y[threadIdx.x] = passed;  // result
}
"""
MOMENTS = (None, 0, 1, 2)
X = np.arange(1, 321, dtype=np.int32)


@pytest.fixture(scope="module")
def device() -> CheckedDevice:
    return CheckedDevice(SOURCE, options=(f"-I{ROOT / 'kernels' / 'common'}",))


def result(device: CheckedDevice, size: int, name: str, grid: int, block: int, *args: Any, **options: Any) -> Any:
    """The array of zeros that a kernel has filled: its first parameter after X, if it takes X."""
    y = np.zeros(size, np.int32)
    arrays = (X, y) if len(device.kernel(name).params) > len(args) + 1 else (y,)
    device.launch(name, grid, block, *arrays, *args, **options)
    return y


# Order by something else ----------------------------------------------------------------------------------------------

NOTHING, BLOCK, NAMED, FLAG, FLAG_UNFENCED = range(5)


@pytest.mark.parametrize("waits", [0b01001, 0b10011], ids=["0 and 3", "0, 1 and 4"])
def test_a_warp_may_skip_phases_that_it_knows_to_be_over(device: CheckedDevice, waits: int) -> None:
    rows = X.reshape(5, 64)
    seen = [i for i in range(5) if waits >> i & 1]
    want = [*rows[:, :32].sum(0), *rows[seen, 32:].sum(0)]
    for moments in MOMENTS:
        for order in (BLOCK, NAMED, FLAG):
            assert result(device, 64, "skipping", 1, 64, order, waits, draw=moments).tolist() == want
        y = np.zeros(64, np.int32)
        report = reported(device, "skipped", "skipping", 1, 64, X, y, FLAG_UNFENCED, waits, draw=moments)
        assert (report.kind, report.thread) == ("mbarrier phase missed", (32, 0, 0))
        # its second or third wait returns for an older phase
        report = reported(device, "sum", "skipping", 1, 64, X, y, NOTHING, waits, draw=moments)
        assert (report.kind, report.thread) == ("uninitialised read", (32, 0, 0))


# Relaxed operations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrival", [0, 1], ids=["release", "relaxed"])
@pytest.mark.parametrize("wait", range(4), ids=["try", "relaxed try", "test", "relaxed test"])
def test_relaxed_operations_need_fences_of_the_threads_themselves(
    device: CheckedDevice, arrival: int, wait: int
) -> None:
    for before, after, late in ((0, 0, 0), (64, 64, 0), (0, 64, 0), (64, 0, 0), (1, 64, 0), (64, 64, 1)):
        call = ("relaxed", 1, 64, arrival, wait, before, after, late)
        if (not arrival or (before == 64 and not late)) and (not wait % 2 or after):
            assert result(device, 64, *call).tolist() == [*range(63, -1, -1)]
        else:
            report = reported(device, "relaxed", *call[:3], np.zeros(64, np.int32), *call[3:])
            assert (report.kind, report.thread) == ("shared memory race", (0, 0, 0))


@pytest.mark.parametrize("how", range(3), ids=["by warp", "by lane", "one warp"])
def test_each_relaxed_arrival_goes_by_the_fence_of_its_own_threads(device: CheckedDevice, how: int) -> None:
    for moments in MOMENTS:
        y = result(device, 64, "fenced_apart", 1, 64, how, 32 if how == 2 else 64, draw=moments)
        assert y[:2].tolist() == [[-63, -62], [-63, 62], [31, 30]][how]
    if how == 2:
        report = reported(device, "apart", "fenced_apart", 1, 64, np.zeros(64, np.int32), how, 64)
        assert (report.kind, report.thread) == ("shared memory race", (0, 0, 0))


@pytest.mark.parametrize("blocks", [2, 4])
def test_a_relaxed_arrival_at_the_cluster_publishes_by_the_threads_own_fences(
    device: CheckedDevice, blocks: int
) -> None:
    thread = np.arange(64)
    for moments in MOMENTS:
        for release, fences, start in ((1, 0, 64), (0, 64, 64), (0, 32, 32), (0, 1, 1)):
            y = result(device, 64 * blocks, "relaxed_cluster", blocks, 64, release, fences, start, 0, draw=moments)
            assert np.array_equal(y, np.tile((thread ^ 33) % start, blocks))
        for fences, late in ((0, 0), (1, 0), (32, 0), (64, 1)):
            y = np.zeros(64 * blocks, np.int32)
            report = reported(device, "far", "relaxed_cluster", blocks, 64, y, 0, fences, 64, late, draw=moments)
            assert (report.kind, report.thread) == ("shared memory race", (0, 0, 0))


# Bytes, and waits for another barrier ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [0, 1])
def test_a_phase_that_expects_fewer_bytes_than_its_copies_have_is_reported(device: CheckedDevice, sync: int) -> None:
    want = X[:256].reshape(2, 128)[:, ::-1].ravel()
    for moments in MOMENTS:
        assert np.array_equal(result(device, 256, "expects", 1, 128, 512, 512, sync, draw=moments), want)
    # also if the next phase expects the rest
    for second in (256, 512, 768):
        y = np.zeros(256, np.int32)
        report = reported(device, "expects", "expects", 1, 128, X, y, 256, second, sync)
        assert (report.kind, report.thread) == ("mbarrier bytes differ", (0, 0, 0))
        for moments in range(3):
            with pytest.raises(KernelFault) as raised:
                device.launch("expects", 1, 128, X, y, 256, second, sync, draw=moments)
            assert raised.value.report.kind in ("mbarrier bytes differ", "read before mbarrier wait")


WAITS, ONLY_B, NAMED_BARRIER, LATE_BARRIER, MBARRIER, ISSUER, ONE_LANE, ONE_LANE_SYNC, STORES = range(9)


@pytest.mark.parametrize("draw", MOMENTS)
def test_only_what_follows_a_wait_for_the_copy_may_use_its_data(device: CheckedDevice, draw: int | None) -> None:
    want = [*X[:32], *(X[:32] + X[32:64])]
    for how in (WAITS, NAMED_BARRIER, MBARRIER, ISSUER, ONE_LANE_SYNC):
        assert result(device, 64, "two_barriers", 1, 96, how, draw=draw).tolist() == want, how
    for how, mark in ((ONLY_B, "reads"), (LATE_BARRIER, "reads"), (ONE_LANE, "reads"), (STORES, "overwrites")):
        report = reported(device, mark, "two_barriers", 1, 96, X, np.zeros(64, np.int32), how, draw=draw)
        assert (report.kind, report.thread) == ("read before mbarrier wait", (64, 0, 0)), how
        assert report.others[0].thread == (0, 0, 0)


ONCE, USED, LOOP = range(3)


def test_a_try_without_a_loop_is_no_wait(device: CheckedDevice) -> None:
    for moments in (None, *range(10)):
        for how in (USED, LOOP):
            assert np.array_equal(result(device, 64, "tries", 1, 64, how, draw=moments), X[63::-1])
    report = reported(device, "once", "tries", 1, 64, X, np.zeros(64, np.int32), ONCE)
    assert (report.kind, report.thread) == ("read before mbarrier wait", (0, 0, 0))
    kinds = set()
    for moments in range(10):
        try:
            result(device, 64, "tries", 1, 64, ONCE, draw=moments)
        except KernelFault as fault:
            kinds.add(fault.report.kind)
    assert kinds == {"read before mbarrier wait"}


# The memory of an mbarrier --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", MOMENTS)
def test_initialising_and_invalidating_an_mbarrier_are_stores(device: CheckedDevice, draw: int | None) -> None:
    y = result(device, 192, "reused", 1, 64, 0, shared=272, draw=draw)
    assert np.array_equal(y, [*X[63::-1], *X[127:63:-1], *(1,) * 64])
    for without, mark, thread in ((1, "inval", 0), (2, "store", 1), (3, "init", 0)):
        report = reported(device, mark, "reused", 1, 64, X, y, without, shared=272, draw=draw)
        assert (report.kind, report.thread) == ("shared memory race", (thread, 0, 0))


@pytest.mark.parametrize("draw", MOMENTS)
def test_another_mbarrier_orders_the_end_of_one(device: CheckedDevice, draw: int | None) -> None:
    assert np.array_equal(result(device, 64, "ended", 1, 64, 0, draw=draw), X[:64])
    report = reported(device, "ended", "ended", 1, 64, X, np.zeros(64, np.int32), 1, draw=draw)
    assert (report.kind, report.thread) == ("shared memory race", (63, 0, 0))


# States, hangs, counts and predicates ---------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", MOMENTS)
def test_a_state_is_that_of_the_current_phase_or_the_one_before(device: CheckedDevice, draw: int | None) -> None:
    assert result(device, 64, "states", 1, 64, 2, draw=draw).tolist() == [*range(63, -1, -1)]
    for which in (0, 1):
        report = reported(device, "state", "states", 1, 64, np.zeros(64, np.int32), which, draw=draw)
        assert (report.kind, report.thread) == ("mbarrier phase missed", (0, 0, 0))


RIGHT, COUNT, WHOLE_BLOCK, CLUSTER = range(4)


@pytest.mark.parametrize(
    ("how", "mark", "what"),
    [
        (COUNT, "count", "barrier 1, at which 64 of 96 threads have arrived"),
        (WHOLE_BLOCK, "block", "barrier 0, at which 64 of 96 threads have arrived"),
        (CLUSTER, "cluster", "the barrier of the cluster"),
    ],
)
def test_a_hang_lists_the_waits_at_other_barriers_too(device: CheckedDevice, how: int, mark: str, what: str) -> None:
    y = result(device, 256, "hangs", 2, 96, RIGHT)
    assert np.array_equal(y, np.tile(X[:128], 2))
    report = reported(device, "producer", "hangs", 2, 96, X, y, how)
    assert report.kind == "deadlock"
    line = next(n for n, text in enumerate(SOURCE.splitlines(), 1) if text.endswith(f"// {mark}"))
    for block in range(2):
        (found,) = (note for note in report.notes if note.startswith(f"warps 1 to 2 of block ({block}, 0, 0) at "))
        assert found.endswith(f"test.cu:{line}: {what}")
        assert any(note.startswith(f"warp 0 of block ({block}, 0, 0) at ") for note in report.notes)


def test_a_late_arrival_may_not_exceed_the_count_of_an_mbarrier(device: CheckedDevice) -> None:
    most = 2**20 - 1
    for arrivals, adds in ((most, 0), (most - 1, 1), (1, 1)):
        device.launch("counts", 1, 32, arrivals, adds)
    report = reported(device, "adds", "counts", 1, 32, most, 1)
    assert (report.kind, report.thread) == ("mbarrier count", (0, 0, 0))


@pytest.mark.parametrize("branch", [0, 1], ids=["guard", "branch"])
def test_the_result_of_a_try_is_defined_in_the_threads_that_try(device: CheckedDevice, branch: int) -> None:
    for moments in MOMENTS:
        for arrivals in (0, 1):
            y = result(device, 32, "guarded", 1, 32, 32, branch, arrivals, draw=moments)
            assert y.tolist() == [arrivals] * 32
            report = reported(device, "result", "guarded", 1, 32, y, 16, branch, arrivals, draw=moments)
            assert (report.kind, report.thread) == ("uninitialised read", (16, 0, 0))
