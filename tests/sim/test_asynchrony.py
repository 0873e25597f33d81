"""Asynchronous copies and mbarriers on the simulated device: when copies complete, what waits order, and hangs."""

from __future__ import annotations

import numpy as np
import pytest
from simdevice import CheckedDevice

from cudakit.sim.lockstep.report import KernelFault

SOURCE = r"""
using u64 = unsigned long long;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ unsigned map(const void* p, unsigned r) {
    unsigned m; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(m) : "r"(at(p)), "r"(r)); return m;
}
__device__ void init(u64* b, int n) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n\tfence.mbarrier_init.release.cluster;" :: "r"(at(b)), "r"(n));
}
__device__ u64 arrive(u64* b) {
    u64 s; asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(s) : "r"(at(b)) : "memory"); return s;
}
__device__ void arrive_far(unsigned b) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(b) : "memory");
}
__device__ void expect(u64* b, int n) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(at(b)), "r"(n) : "memory");
}
__device__ bool tried(u64* b, int parity) {
    int ok;
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p;}"
                 : "=r"(ok) : "r"(at(b)), "r"(parity) : "memory");
    return ok;
}
__device__ bool tested(u64* b, int parity) {
    int ok;
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p;}"
                 : "=r"(ok) : "r"(at(b)), "r"(parity) : "memory");
    return ok;
}
__device__ void wait(u64* b, int parity) { while (!tried(b, parity)) {} }
__device__ void load(void* to, const void* from, int n, u64* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(at(to)), "l"(from), "r"(n), "r"(at(b)) : "memory");
}
__device__ void store(void* to, const void* from, int n) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n\tcp.async.bulk.commit_group;"
                 :: "l"(to), "r"(at(from)), "r"(n) : "memory");
}
__device__ void proxy_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

// what a thread sees before its wait and after it
__global__ void early(const int* x, int* y) {
    __shared__ alignas(16) int tile[32];
    __shared__ u64 full;
    tile[threadIdx.x] = -1;
    if (threadIdx.x == 0) init(&full, 1);
    proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) { expect(&full, 128); load(tile, x, 128, &full); }
    for (int i = 0; i < 8; ++i) __syncwarp();
    y[threadIdx.x] = tile[threadIdx.x];
    wait(&full, 0);
    y[32 + threadIdx.x] = tile[threadIdx.x];
}
// a source overwritten before its bulk store has read it; SAFE waits first
template <bool SAFE> __device__ void overwritten_if(int* y) {
    __shared__ alignas(16) int tile[32];
    tile[threadIdx.x] = threadIdx.x;
    proxy_fence();
    __syncwarp();
    if (threadIdx.x == 0) {
        store(y, tile, 128);
        if (SAFE) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    __syncwarp();
    tile[threadIdx.x] = -1;
}
__global__ void overwritten_right(int* y) { overwritten_if<true>(y); }
__global__ void overwritten_wrong(int* y) { overwritten_if<false>(y); }
// a wait without a loop
__global__ void once(const int* x, int* y) {
    __shared__ alignas(16) int tile[32];
    __shared__ u64 full;
    if (threadIdx.x == 0) { init(&full, 1); expect(&full, 128); load(tile, x, 128, &full); }
    __syncwarp();
    y[threadIdx.x] = tried(&full, 0);
    wait(&full, 0);
}
// a test instead of a try, so that no wait parks
__global__ void polled(const int* x, int* y) {
    __shared__ alignas(16) int tile[32];
    __shared__ u64 full;
    if (threadIdx.x == 0) { init(&full, 1); expect(&full, 128); load(tile, x, 128, &full); }
    __syncwarp();
    while (!tested(&full, 0)) {}
    y[threadIdx.x] = tile[threadIdx.x];
}
// states that arrivals return, and what their phases did
__global__ void states(unsigned* y) {
    __shared__ u64 b;
    init(&b, 2);
    for (int i = 0; i < 5; ++i) {
        u64 s = arrive(&b);
        unsigned n; int passed;
        asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(n) : "l"(s));
        asm volatile("{.reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.s32 %0, 1, 0, p;}"
                     : "=r"(passed) : "r"(at(&b)), "l"(s) : "memory");
        y[3 * i] = n; y[3 * i + 1] = passed; y[3 * i + 2] = tested(&b, 0);
    }
}
// bytes that arrive before they are expected
__global__ void credit(const int* x, int* y) {
    __shared__ alignas(16) int tile[32];
    __shared__ u64 full;
    if (threadIdx.x == 0) { init(&full, 1); load(tile, x, 128, &full); expect(&full, 128); }
    __syncwarp();
    wait(&full, 0);
    y[threadIdx.x] = tile[threadIdx.x];
}
// never enough arrivals, nor bytes
__global__ void stuck(const int* x) {
    __shared__ alignas(16) int tile[32];
    __shared__ u64 full, empty;
    if (threadIdx.x == 0) { init(&full, 1); init(&empty, 3); }
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) arrive(&empty);
        __syncwarp();
        wait(&empty, 0);
        if (threadIdx.x == 0) { expect(&full, 128); load(tile, x, 128, &full); }
    } else {
        wait(&full, 0);
    }
}
// fewer bytes than expected
__global__ void short_of(const int* x) {
    __shared__ alignas(16) int tile[32];
    __shared__ u64 full;
    if (threadIdx.x == 0) { init(&full, 1); expect(&full, 256); load(tile, x, 128, &full); }
    __syncwarp();
    wait(&full, 0);
}
// a ring: warp 0 loads, warps 1 and 2 consume
__global__ void ring(const int* x, int* y, int n) {
    __shared__ alignas(16) int tile[2][64];
    __shared__ u64 full[2], empty[2];
    if (threadIdx.x == 0) for (int s = 0; s < 2; ++s) { init(&full[s], 1); init(&empty[s], 2); }
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < n; ++i) {
        const int s = i % 2, p = i / 2 & 1;
        if (threadIdx.x == 0) {
            wait(&empty[s], p ^ 1);
            expect(&full[s], 256);
            load(tile[s], x + 64 * i, 256, &full[s]);
        } else if (threadIdx.x >= 32) {
            wait(&full[s], p);
            sum += tile[s][threadIdx.x - 32];
            __syncwarp();
            if (threadIdx.x % 32 == 0) arrive(&empty[s]);
        }
    }
    if (threadIdx.x >= 32) y[threadIdx.x - 32] = sum;
}
// loaded data stored again by the same proxy, without an ordinary store in between
__global__ void through(const int* x, int* y) {
    __shared__ alignas(16) int tile[32];
    __shared__ u64 full;
    if (threadIdx.x == 0) {
        init(&full, 1);
        expect(&full, 128);
        load(tile, x, 128, &full);
        wait(&full, 0);
        store(y, tile, 128);
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
// global memory that this kernel stores to, and then loads asynchronously
template <bool FENCE> __device__ void handed_over_if(int* x, int* y) {
    __shared__ alignas(16) int tile[32];
    __shared__ u64 full;
    x[threadIdx.x] = threadIdx.x + 7;
    if (FENCE) proxy_fence();
    if (threadIdx.x == 0) init(&full, 1);
    __syncthreads();
    if (threadIdx.x == 0) { expect(&full, 128); load(tile, x, 128, &full); }
    wait(&full, 0);
    y[threadIdx.x] = tile[threadIdx.x];
}
__global__ void handed_over_right(int* x, int* y) { handed_over_if<true>(x, y); }
__global__ void handed_over_wrong(int* x, int* y) { handed_over_if<false>(x, y); }
// a block that exits while a copy into it is in flight
__global__ void leaves(const int* x) {
    __shared__ alignas(16) int tile[32];
    __shared__ u64 full;
    if (threadIdx.x == 0) { init(&full, 1); expect(&full, 128); load(tile, x, 128, &full); }
}
// block 0 stores to block 1 and arrives there; warp 0 of block 1 waits, a barrier hands on to warp 1
template <bool SYNC> __device__ void relayed_if(int* y) {
    __shared__ int value;
    __shared__ u64 ready;
    if (threadIdx.x == 0) { init(&ready, 1); value = 0; }
    asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
    if (rank() == 0) {
        if (threadIdx.x == 0) {
            asm volatile("st.shared::cluster.u32 [%0], 42;" :: "r"(map(&value, 1)) : "memory");
            arrive_far(map(&ready, 1));
        }
    } else {
        if (threadIdx.x < 32) wait(&ready, 0);
        if (SYNC) __syncthreads();
        if (threadIdx.x >= 32) y[threadIdx.x - 32] = value;
    }
    asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
}
__global__ void __cluster_dims__(2) relayed_right(int* y) { relayed_if<true>(y); }
__global__ void __cluster_dims__(2) relayed_wrong(int* y) { relayed_if<false>(y); }
"""
X = np.arange(1, 33, dtype=np.int32)


@pytest.fixture(scope="module")
def device() -> CheckedDevice:
    return CheckedDevice(SOURCE)


def fault(device: CheckedDevice, *launch: object, **options: object):
    with pytest.raises(KernelFault) as raised:
        device.launch(*launch, **options)
    return raised.value.report


def test_a_copy_completes_only_once_it_is_waited_for(device: CheckedDevice) -> None:
    y = np.zeros(64, np.int32)
    device.launch("early", 1, 32, X, y, checks=frozenset())
    assert (y[:32] == -1).all()
    assert np.array_equal(y[32:], X)
    assert fault(device, "early", 1, 32, X, y).kind == "read before mbarrier wait"


def test_the_drawn_moments_differ_by_seed_and_are_repeatable(device: CheckedDevice) -> None:
    seen = []
    for seed in [*range(40), *range(40)]:
        y = np.zeros(64, np.int32)
        device.launch("early", 1, 32, X, y, checks=frozenset(), draw=seed)
        assert np.array_equal(y[32:], X)
        seen.append(bool(y[0] == X[0]))
    assert seen[:40] == seen[40:]
    assert {*seen} == {False, True}


def test_a_source_is_read_as_late_as_allowed(device: CheckedDevice) -> None:
    y = np.zeros(32, np.int32)
    device.launch("overwritten_wrong", 1, 32, y, checks=frozenset())
    assert (y == -1).all()
    device.launch("overwritten_right", 1, 32, y)
    assert np.array_equal(y, np.arange(32))
    report = fault(device, "overwritten_wrong", 1, 32, y)
    assert report.kind == "shared memory overwritten in flight"
    assert report.access == "shared store"


def test_a_wait_may_return_early_in_the_drawn_mode(device: CheckedDevice) -> None:
    results = set()
    for seed in range(40):
        y = np.zeros(32, np.int32)
        device.launch("once", 1, 32, X, y, draw=seed)
        results.add(int(y[0]))
    assert results == {0, 1}


@pytest.mark.parametrize("draw", [None, 1, 2])
def test_a_poll_makes_progress(device: CheckedDevice, draw: int | None) -> None:
    y = np.zeros(32, np.int32)
    device.launch("polled", 1, 32, X, y, draw=draw)
    assert np.array_equal(y, X)


def test_states_and_parities_are_those_of_hardware(device: CheckedDevice) -> None:
    """As measured on an H100: the state before each arrival, and the parity of the last complete phase."""
    y = np.zeros(15, np.uint32)
    device.launch("states", 1, 1, y)
    pending, passed, even = y.reshape(5, 3).T
    assert pending.tolist() == [2, 1, 2, 1, 2]
    assert passed.tolist() == [0, 1, 0, 1, 0]
    assert even.tolist() == [0, 1, 1, 0, 0]


def test_bytes_may_arrive_before_they_are_expected(device: CheckedDevice) -> None:
    for draw in (None, *range(10)):
        y = np.zeros(32, np.int32)
        device.launch("credit", 1, 32, X, y, draw=draw)
        assert np.array_equal(y, X)


def test_a_hang_lists_each_warp_its_phase_and_what_is_missing(device: CheckedDevice) -> None:
    report = fault(device, "stuck", 1, 96, X)
    assert report.kind == "deadlock"
    text = "\n".join(report.notes)
    assert "warp 0 of block (0, 0, 0)" in text
    assert "phase 0 waits for 2 of 3 arrivals" in text
    assert "warps 1 to 2 of block (0, 0, 0)" in text
    assert "phase 0 waits for 1 of 1 arrivals" in text


def test_missing_bytes_are_reported_at_the_line_that_expects_them(device: CheckedDevice) -> None:
    report = fault(device, "short_of", 1, 32, X)
    assert report.kind == "mbarrier bytes differ"
    assert "expects 256 bytes, but 128 bytes have arrived" in report.detail
    assert "expect" in report.places[-1].text


@pytest.mark.parametrize("draw", [None, *range(25)])
def test_a_ring_of_buffers_needs_no_other_synchronisation(device: CheckedDevice, draw: int | None) -> None:
    x = np.arange(9 * 64, dtype=np.int32)
    y = np.zeros(64, np.int32)
    device.launch("ring", 1, 96, x, y, 9, draw=draw)
    assert np.array_equal(y, x.reshape(9, 64).sum(0))


def test_one_proxy_needs_no_fence(device: CheckedDevice) -> None:
    y = np.zeros(32, np.int32)
    device.launch("through", 1, 32, X, y)
    assert np.array_equal(y, X)


def test_global_memory_stored_in_the_kernel_needs_a_fence_too(device: CheckedDevice) -> None:
    y = np.zeros(32, np.int32)
    device.launch("handed_over_right", 1, 32, np.zeros(32, np.int32), y)
    assert np.array_equal(y, np.arange(32) + 7)
    report = fault(device, "handed_over_wrong", 1, 32, np.zeros(32, np.int32), y)
    assert report.kind == "missing proxy fence"
    assert report.space == "global"


def test_a_block_may_not_exit_before_a_copy_into_it_is_complete(device: CheckedDevice) -> None:
    report = fault(device, "leaves", 1, 32, X)
    assert report.kind == "use after free"
    assert "its own block" in report.detail


def test_an_order_from_another_block_is_handed_on_by_a_barrier(device: CheckedDevice) -> None:
    y = np.zeros(32, np.int32)
    device.launch("relayed_right", 2, 64, y)
    assert (y == 42).all()
    assert fault(device, "relayed_wrong", 2, 64, y).kind == "shared memory race"


INITIALISED = r"""
using u64 = unsigned long long;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
template <bool SYNC> __device__ void load(const int* x, int* y) {
    __shared__ alignas(16) int tile[32];
    __shared__ u64 full;
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at(&full)) : "memory");
    if (SYNC) __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 128;\n\t"
                     "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%2], 128, [%0];"
                     :: "r"(at(&full)), "r"(at(tile)), "l"(x) : "memory");
    __syncthreads();
    asm volatile("{.reg .pred p; WAIT: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra WAIT;}"
                 :: "r"(at(&full)) : "memory");
    y[threadIdx.x] = tile[threadIdx.x];
}
__global__ void right(const int* x, int* y) { load<true>(x, y); }
__global__ void wrong(const int* x, int* y) { load<false>(x, y); }
"""


def test_a_barrier_of_the_block_shows_its_own_mbarriers_to_copies() -> None:
    device, y = CheckedDevice(INITIALISED), np.zeros(32, np.int32)
    device.launch("right", 1, 32, X, y)
    assert np.array_equal(y, X)
    report = fault(device, "wrong", 1, 32, X, y)
    assert report.kind == "mbarrier not initialised"
    assert "no fence" in report.detail
