"""Counters of the simulated device per kernel and line: mix, coalescing, bank conflicts, atomics, occupancy."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from cudakit.sim.chips.occupancy import active_blocks
from cudakit.sim.chips.properties import chip
from cudakit.sim.lockstep.counters import Counters, LineCounters
from cudakit.sim.lockstep.lanes import Geometry, LaneSet
from cudakit.sim.lockstep.tensor_maps import TensorMap
from cudakit.sim.lockstep.traffic import Tally, count_contention
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.ptx.mix import CLASSES, class_of, multiply_adds
from cudakit.sim.ptx.parser import parse
from tests.simdevice import SimDevice, compile_ptx

SOURCE = r"""
#include <cuda_fp16.h>
__device__ float twice(float v) {
    return v + v;
}
__global__ void column(const float* x, float* y) {
    float c = x[threadIdx.x * 32];
    y[threadIdx.x] = c;
}
__global__ void wide(const float4* x, float4* y) {
    y[threadIdx.x] = x[threadIdx.x];
}
__global__ void banks(float* y) {
    __shared__ float s[1024];
    s[threadIdx.x * 32] = 1;
    s[threadIdx.x] = 2;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x ^ 1];
}
__global__ void histogram(int* bins, int spread) {
    atomicAdd(&bins[threadIdx.x / spread], 1);
    __shared__ int near;
    if (threadIdx.x == 0) near = 0;
    __syncthreads();
    atomicAdd(&near, 1);
}
__global__ void diverge(float* y, int n) {
    float v = 1;
    if (threadIdx.x % 2 < n)
        v = sinf(y[threadIdx.x]);
    y[threadIdx.x] = v;
}
__global__ void through_headers(float* y) {
    __half2 h = __hadd2(__float2half2_rn(y[threadIdx.x]), __float2half2_rn(2));
    y[threadIdx.x] = twice(__low2float(h));
}
__global__ void local(float* y, int n) {
    float kept[16];
    for (int k = 0; k < 16; k++) kept[(k * n) % 16] = y[k];
    y[threadIdx.x] = kept[n];
}
__global__ void warp_sum(unsigned* y) {
    y[threadIdx.x] = __reduce_add_sync(~0u, y[threadIdx.x]);
}
__global__ void shared_by_pointer(float* y, int pick) {
    __shared__ float s[2048];
    float* p = pick ? s : y;
    p[threadIdx.x * 32] = 1;
    __syncthreads();
}
__global__ void one_per_block(const float* x, float* y) {
    const float v = x[blockIdx.x];
    y[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
"""


HOPPER = r"""
struct alignas(64) Map {
    unsigned long long opaque[16];
};
using u32 = unsigned;
using Barrier = unsigned long long;

__device__ u32 to_shared(const void* p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}
__device__ u32 in_block(u32 address, u32 rank) {
    u32 found;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(address), "r"(rank));
    return found;
}
__device__ void init(Barrier& bar, u32 count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(to_shared(&bar)), "r"(count) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ void expect(Barrier& bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(to_shared(&bar)), "r"(bytes) : "memory");
}
__device__ void wait(Barrier& bar, u32 parity) {
    asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra AGAIN; }"
        ::"r"(to_shared(&bar)), "r"(parity) : "memory");
}
__device__ bool passed(Barrier& bar, u32 parity) {
    u32 yes;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(yes) : "r"(to_shared(&bar)), "r"(parity) : "memory");
    return yes;
}
__device__ void finish_stores() {
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}
__device__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive; barrier.cluster.wait;" ::: "memory");
}
__device__ u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// copies the boxes of 8 x 32 floats that begin at multiples of (step_y, step_x)
__global__ void boxes(const __grid_constant__ Map x, const __grid_constant__ Map y, int rows, int cols) {
    __shared__ alignas(128) float tile[8 * 32];
    __shared__ Barrier bar;
    if (threadIdx.x) return;
    init(bar, 1);
    wait(bar, 1);
    u32 parity = 0;
    for (int row = 0; row < rows; row += 8)
        for (int col = 0; col < cols; col += 32, parity ^= 1) {
            expect(bar, sizeof(tile));
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                "[%0], [%1, {%2, %3}], [%4];"
                ::"r"(to_shared(tile)), "l"(&x), "r"(col), "r"(row), "r"(to_shared(&bar)) : "memory");
            wait(bar, parity);
            asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                ::"l"(&y), "r"(col), "r"(row), "r"(to_shared(tile)) : "memory");
            finish_stores();
        }
}

// the first four threads load 16, 32, 48 and 64 bytes
__global__ void ranges(const float* x, float* y) {
    __shared__ alignas(128) float tile[4][16];
    __shared__ Barrier bar;
    const u32 t = threadIdx.x, bytes = 16 * (t + 1);
    if (t == 0) {
        init(bar, 1);
        expect(bar, 160);
    }
    __syncthreads();
    if (t < 4)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
            ::"r"(to_shared(tile[t])), "l"(x + t * 16), "r"(bytes), "r"(to_shared(&bar)) : "memory");
    wait(bar, 0);
    if (t == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 64;"
            ::"l"(y), "r"(to_shared(tile[3])) : "memory");
        finish_stores();
    }
}

// each block of a pair sends to the other one: 512 bytes in bulk, 8 by each thread, and 4 as a sum
__global__ void __cluster_dims__(2) pair(const float* x) {
    __shared__ alignas(128) float from[128], to[128], words[64];
    __shared__ u32 sum;
    __shared__ Barrier bar;
    const u32 t = threadIdx.x, other = cluster_rank() ^ 1;
    if (t == 0) {
        sum = 0;
        init(bar, 1);
        expect(bar, 512 + 512 + 32 * 8 + 32 * 4);
    }
    cluster_sync();
    const u32 signal = in_block(to_shared(&bar), other);
    if (t == 0 && other)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1], 512, [%2], %3;"
            ::"r"(to_shared(from)), "l"(x), "r"(to_shared(&bar)), "h"(short(3)) : "memory");
    if (t == 0)
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];"
            ::"r"(in_block(to_shared(to), other)), "r"(to_shared(to)), "r"(signal) : "memory");
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %1}, [%2];"
        ::"r"(in_block(to_shared(words + 2 * t), other)), "f"(1.0f), "r"(signal) : "memory");
    asm volatile("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0], %1, [%2];"
        ::"r"(in_block(to_shared(&sum), other)), "r"(t), "r"(signal) : "memory");
    wait(bar, 0);
    cluster_sync();
}

__global__ void polls(int* y) {
    __shared__ Barrier bar;
    if (threadIdx.x == 0) init(bar, blockDim.x);
    __syncthreads();
    const bool before = passed(bar, 0);
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(to_shared(&bar)) : "memory");
    __syncthreads();
    y[threadIdx.x] = 2 * before + passed(bar, 0);
}

template <int PITCH>
__device__ void store_matrices() {
    __shared__ alignas(128) char tile[32 * 256];
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %1, %1, %1};"
        ::"r"(to_shared(tile) + threadIdx.x % 32 * PITCH), "r"(1) : "memory");
}
__global__ void rows_of_16() { store_matrices<16>(); }
__global__ void rows_of_32() { store_matrices<32>(); }
__global__ void rows_of_128() { store_matrices<128>(); }
__global__ void rows_of_144() { store_matrices<144>(); }
__global__ void swizzled_rows() {
    __shared__ alignas(1024) char tile[32 * 128];
    const u32 row = threadIdx.x % 32;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %1, %1, %1};"
        ::"r"(to_shared(tile) + row * 128 + (row % 8 ^ 3) * 16), "r"(1) : "memory");
}
__global__ void two_matrices() {
    __shared__ alignas(128) char tile[16 * 128];
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %1};"
        ::"r"(to_shared(tile) + threadIdx.x % 16 * 128), "r"(1) : "memory");
}
"""


@pytest.fixture(scope="module")
def counted():
    return SimDevice(SOURCE)


@pytest.fixture(scope="module")
def hopper():
    return SimDevice(HOPPER)


def line_of(text, source=SOURCE):
    """Return the number of the only line of a source that contains `text`."""
    found = [number for number, line in enumerate(source.splitlines(), 1) if text in line]
    assert len(found) == 1, f"{text!r} is in lines {found}"
    return found[0]


def at(counters, text, source=SOURCE):
    """Return the counters of the line of a source that contains `text`."""
    found = [share for (file, line), share in counters.per_line.items() if line == line_of(text, source)]
    assert len(found) == 1
    assert all(file.endswith("/test.cu") for file, _ in counters.per_line)
    return found[0]


def test_an_uncoalesced_load_shows_on_its_line(counted):
    counters = counted.launch("column", 1, 64, np.zeros(2048, np.float32), np.zeros(64, np.float32))
    load, store = at(counters, "x[threadIdx.x * 32]"), at(counters, "y[threadIdx.x] = c;")
    assert (load.global_load_requests, load.global_load_sectors, load.global_load_ideal_sectors) == (2, 64, 8)
    assert load.global_store_requests == 0
    assert (store.global_store_sectors, store.global_store_ideal_sectors) == (8, 8)


def test_the_ideal_goes_by_the_width_and_the_lanes_that_are_there(counted):
    x = np.zeros(200, np.float32)
    full = at(counted.launch("wide", 1, 32, x, x.copy()), "y[threadIdx.x] = x[threadIdx.x]")
    assert (full.global_load_sectors, full.global_load_ideal_sectors) == (16, 16)
    part = at(counted.launch("wide", 1, 37, x, x.copy()), "y[threadIdx.x] = x[threadIdx.x]")
    assert (part.global_load_sectors, part.global_load_ideal_sectors) == (19, 16 + 3)


@pytest.mark.parametrize("blocks", [1, 3])
def test_the_ideal_of_one_element_is_one_sector(counted, blocks: int):
    """However many blocks run at once."""
    counters = counted.launch("one_per_block", blocks, 64, np.zeros(3, np.float32), np.zeros(192, np.float32))
    load = at(counters, "v = x[blockIdx.x]")
    assert (load.global_load_sectors, load.global_load_ideal_sectors) == (2 * blocks, 2 * blocks)


def test_a_bank_conflict_shows_on_its_line(counted):
    counters = counted.launch("banks", 3, 32, np.zeros(32, np.float32))
    column, row = at(counters, "s[threadIdx.x * 32]"), at(counters, "s[threadIdx.x] = 2")
    assert (column.worst_bank_conflict, column.mean_bank_conflict, column.bank_conflicts) == (32, 32, 3 * 31)
    assert (row.worst_bank_conflict, row.mean_bank_conflict, row.bank_conflicts) == (1, 1, 0)
    assert counters.worst_bank_conflict == 32
    assert counters.barriers == at(counters, "s[threadIdx.x ^ 1]").barriers + 3
    assert counters.shared_bytes == 3 * 3 * 128


@pytest.mark.parametrize(("spread", "depth"), [(1, 1), (4, 4), (64, 32)])
def test_contention_is_the_lanes_at_one_address(counted, spread, depth):
    counters = counted.launch("histogram", 2, 64, np.zeros(64, np.int32), spread)
    line = at(counters, "atomicAdd(&bins")
    assert (line.atomics, line.atomic_depth, line.worst_contention) == (4, 4 * depth, depth)
    assert line.mean_contention == depth
    assert (line.global_atomic_requests, line.shared_atomic_requests) == (4, 0)
    near = at(counters, "atomicAdd(&near")
    assert (near.shared_atomic_requests, near.atomic_depth, near.worst_contention) == (4, 4 * 32, 32)
    assert counters.atomics == 8
    assert counters.worst_contention == 32


def test_contention_of_any_addresses_by_hand():
    rng = np.random.default_rng(0)
    geometry = Geometry(2, (70, 1, 1))
    for _ in range(50):
        picked = np.sort(rng.choice(140, rng.integers(1, 140), replace=False))
        address = rng.integers(0, 6, len(picked)).astype(np.uint64)
        tally, lanes = Tally(), LaneSet(geometry, picked, len(picked))
        count_contention(tally, lanes, address)
        depths = [np.bincount(address[lanes.warp == warp].astype(int)).max() for warp in np.unique(lanes.warp)]
        assert (tally.depth, tally.worst_depth) == (sum(depths), max(depths))


def test_divergence_shows_on_the_branch_and_on_what_it_guards(counted):
    counters = counted.launch("diverge", 2, 64, np.ones(64, np.float32), 1)
    branch = at(counters, "if (threadIdx.x % 2 < n)")
    assert (branch.branches, branch.divergent_branches) == (4, 4)
    assert at(counters, "sinf").lanes_per_instruction == 16
    together = counted.launch("diverge", 2, 64, np.ones(64, np.float32), 2)
    assert at(together, "if (threadIdx.x % 2 < n)").divergent_branches == 0


SWITCH = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry pick(.param .u64 which) {
    .reg .b32 %r<4>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [which];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r2, [%rd3];
    ways: .branchtargets one, two, three;
    brx.idx %r2, ways;
one: st.global.u32 [%rd3], 1;
two: st.global.u32 [%rd3], 2;
three: ret;
}
"""


@pytest.mark.parametrize(("which", "parted"), [([2] * 64, 0), ([0, 1, 2, 1] * 16, 2), ([0] * 32 + [0, 2] * 16, 1)])
def test_a_switch_parts_a_warp_once_whatever_ways_it_goes(which, parted):
    counters = SimDevice(SWITCH, ptx=True).launch("pick", 1, 64, np.array(which, np.int32))
    assert (counters.branches, counters.divergent_branches) == (2, parted)


def test_code_of_cudas_headers_belongs_to_the_line_that_calls_it(counted):
    counters = counted.launch("through_headers", 1, 32, np.zeros(32, np.float32))
    assert at(counters, "__hadd2").mix["fp16"] > 0
    assert at(counters, "return v + v").mix["fp32"] == 1, "a function of one's own keeps its line"
    callers = {line: count for (_, line), count in counters.inlined.items()}
    assert callers == {line_of("twice(__low2float(h))"): 1}


def test_local_memory_is_counted_in_bytes(counted):
    counters = counted.launch("local", 1, 64, np.zeros(64, np.float32), 3)
    assert at(counters, "kept[(k * n) % 16]").local_store_bytes == 16 * 64 * 4
    assert at(counters, "y[threadIdx.x] = kept[n]").local_load_requests == 2


def test_a_reduction_over_a_warp_is_no_atomic(counted):
    counters = counted.launch("warp_sum", 1, 64, np.ones(64, np.uint32))
    assert counters.atomics == 0
    assert counters.mix["warp"] == 2


@pytest.mark.parametrize("pick", [0, 1])
def test_a_generic_access_counts_where_it_went(counted, pick):
    line = at(counted.launch("shared_by_pointer", 1, 32, np.zeros(2048, np.float32), pick), "p[threadIdx.x * 32] = 1")
    assert (line.shared_store_requests, line.global_store_requests) == (pick, 1 - pick)
    assert (line.worst_bank_conflict, line.global_store_sectors) == (32 * pick, 32 * (1 - pick))


@functools.cache
def _everything():
    device = SimDevice(SOURCE)
    y = np.ones(2048, np.float32)
    runs = [device.launch("column", 2, 40, y, y.copy()), device.launch("banks", 3, 32, y.copy())]
    runs += [device.launch("histogram", 2, 64, np.zeros(64, np.int32), 4), device.launch("diverge", 2, 64, y, 1)]
    device = SimDevice(HOPPER)
    return [*runs, _boxes(device, (10, 40), 10, 40)[0], device.launch("pair", 4, 32, np.zeros(128, np.float32))]


@pytest.mark.parametrize("number", range(6))
def test_lines_add_up_to_the_kernel(number):
    counters = _everything()[number]
    total = LineCounters()
    for share in counters.per_line.values():
        total.add(share)
    for field in dataclasses.fields(LineCounters):
        assert getattr(total, field.name) == getattr(counters, field.name), field.name
    assert sum(counters.mix.values()) == counters.instructions
    assert set(counters.mix) <= set(CLASSES)


def test_counters_merge():
    a, b = _everything()[1], _everything()[2]
    total = Counters()
    total.merge(a)
    total.merge(b)
    total.merge(b)
    assert total.instructions == a.instructions + 2 * b.instructions
    assert total.worst_contention == b.worst_contention
    assert total.mix["atomic"] == 2 * b.mix["atomic"]
    assert sum(share.instructions for share in total.per_line.values()) == total.instructions
    assert total.as_dict()["instructions_atomic"] == total.mix["atomic"]


# ---- asynchronous copies, mbarriers, matrices ----


def _boxes(device, shape, rows, cols):
    """Copy boxes of 8 x 32 floats; return the counters and the copy."""
    x = np.arange(1, 1 + shape[0] * shape[1], dtype=np.float32).reshape(shape)
    places = [device.upload(x), device.upload(np.zeros_like(x))]
    float32, size = 7, (shape[1], shape[0])
    maps = [TensorMap(float32, p.address, size, (4 * shape[1],), (32, 8), (1, 1)).encode() for p in places]
    counters = device.launch("boxes", 1, 32, *maps, rows, cols)
    return counters, x, places[1].data[: x.nbytes].view(np.float32).reshape(shape)


@pytest.mark.parametrize(
    ("shape", "rows", "cols", "boxes"),
    [((16, 64), 16, 64, 4), ((10, 40), 10, 40, 4), ((1, 4), 1, 4, 1), ((8, 32), 24, 32, 3)],
)
def test_a_box_counts_as_a_whole_and_what_is_outside_of_the_tensor_is_clipped(hopper, shape, rows, cols, boxes):
    counters, x, copied = _boxes(hopper, shape, rows, cols)
    assert (copied == x).all()
    load = at(counters, "cp.async.bulk.tensor.2d.shared::cluster.global", HOPPER)
    store = at(counters, "cp.async.bulk.tensor.2d.global.shared::cta", HOPPER)
    clipped = boxes * 1024 - x.nbytes
    assert (load.bulk_requests, load.bulk_load_bytes, load.bulk_clipped_bytes) == (boxes, 1024 * boxes, clipped)
    assert (store.bulk_requests, store.bulk_store_bytes, store.bulk_clipped_bytes) == (boxes, 1024 * boxes, clipped)
    assert load.bulk_store_bytes == store.bulk_load_bytes == counters.bulk_distributed_bytes == 0
    assert counters.bulk_bytes == counters.as_dict()["bulk_bytes"] == 2048 * boxes
    assert counters.global_sector_bytes == counters.shared_bytes == 0, "no thread accesses memory itself"
    assert counters.global_traffic_bytes == 2 * x.nbytes


def test_a_wait_of_a_fresh_barrier_is_ready_and_one_for_a_copy_is_not(hopper):
    """A copy completes as late as the rules allow. The first try_wait of an instruction that has to wait gives up, here
    of two."""
    counters, *_ = _boxes(hopper, (16, 64), 16, 64)
    wait = at(counters, "mbarrier.try_wait", HOPPER)
    assert (wait.mbarrier_waits, wait.mbarrier_waits_ready) == (7, 1)
    assert (counters.mbarrier_waits, counters.barriers) == (7, 0)


def test_each_thread_of_a_bulk_copy_is_a_request(hopper):
    y = np.ones(16, np.float32)
    counters = hopper.launch("ranges", 1, 64, np.arange(64, dtype=np.float32), y)
    assert (y == 1 + np.arange(48, 64)).all()
    load = at(counters, "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [", HOPPER)
    assert (load.bulk_requests, load.bulk_load_bytes, load.bulk_clipped_bytes) == (4, 16 + 32 + 48 + 64, 0)
    reduction = at(counters, "cp.reduce.async.bulk", HOPPER)
    assert (reduction.bulk_requests, reduction.bulk_store_bytes) == (1, 64)
    assert counters.mbarrier_waits == 4, "both warps wait, the first time in vain"


def test_copies_to_blocks_of_the_cluster_are_counted_where_they_are_issued(hopper):
    counters = hopper.launch("pair", 4, 32, np.zeros(128, np.float32))
    multicast = at(counters, "multicast::cluster", HOPPER)
    assert (multicast.bulk_requests, multicast.bulk_load_bytes) == (2, 2 * 512), "once, not per destination"
    sent = at(counters, "cp.async.bulk.shared::cluster.shared::cta", HOPPER)
    assert (sent.bulk_requests, sent.bulk_distributed_bytes, sent.bulk_load_bytes) == (4, 4 * 512, 0)
    stores, sums = at(counters, "st.async", HOPPER), at(counters, "red.async", HOPPER)
    assert (stores.async_store_requests, stores.async_store_bytes) == (4, 4 * 32 * 8)
    assert (sums.async_store_requests, sums.async_store_bytes) == (4, 4 * 32 * 4)
    assert stores.distributed_requests == sums.distributed_requests == 4
    assert counters.atomics == counters.global_store_requests == counters.shared_atomic_requests == 0


def test_a_poll_counts_as_a_wait_of_each_warp(hopper):
    y = np.zeros(64, np.int32)
    counters = hopper.launch("polls", 1, 64, y)
    assert (y == 1).all()
    assert (counters.mbarrier_waits, counters.mbarrier_waits_ready) == (4, 2)


@pytest.mark.parametrize(
    ("kernel", "matrices", "ways"),
    [
        ("rows_of_16", 4, 1),
        ("rows_of_32", 4, 2),  # a row's 16 bytes in every other four banks
        ("rows_of_128", 4, 8),  # all rows in the same four banks
        ("rows_of_144", 4, 1),
        ("swizzled_rows", 4, 1),
        ("two_matrices", 2, 8),
    ],
)
def test_stmatrix_needs_a_wavefront_per_matrix_unless_rows_share_banks(hopper, kernel, matrices, ways):
    counters = hopper.launch(kernel, 1, 64)
    assert counters.shared_store_requests == 2
    assert counters.shared_store_ideal_wavefronts == 2 * matrices
    assert counters.shared_store_wavefronts == 2 * matrices * ways
    assert counters.bank_conflicts == 2 * matrices * (ways - 1)
    assert (counters.worst_bank_conflict, counters.mean_bank_conflict) == (ways, ways)
    assert counters.shared_bytes == 2 * matrices * 128


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [
        ("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", "bf16", 16 * 256 * 16),
        ("wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e5m2", "e4m3", 16 * 8 * 32),
        ("wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8", "u8", 16 * 16 * 32),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "f16", 16 * 8 * 16),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "tf32", 16 * 8 * 8),
        ("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc", "b1", 16 * 8 * 256),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", "f16", 16 * 16 * 16),
        ("wmma.mma.sync.aligned.row.col.m8n32k16.s32.s8.s8.s32", "s8", 8 * 32 * 16),
    ],
)
def test_multiply_adds_of_a_product_are_those_of_each_warp_by_type(text, kind, count):
    opcode, *modifiers = text.split(".")
    assert multiply_adds(Instruction(opcode, tuple(modifiers), ())) == (kind, count)


# ---- instruction mix ----


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("fma.rn.f32", "fp32"),
        ("add.f64", "fp64"),
        ("fma.rn.f16x2", "fp16"),
        ("setp.lt.and.f32", "fp32"),
        ("set.lt.u32.f32", "fp32"),
        ("setp.ge.s32", "integer"),
        ("mad.lo.s32", "integer"),
        ("selp.b32", "integer"),
        ("ex2.approx.ftz.f32", "special"),
        ("cvt.rn.f32.s32", "conversion"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "tensor"),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", "tensor"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.shared.f16", "shared_load"),
        ("ld.global.nc.v4.f32", "global_load"),
        ("ld.param.u64", "constant_load"),
        ("ld.f32", "generic_load"),
        ("st.shared::cluster.f32", "shared_store"),
        ("st.param.b32", "move"),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "shared_load"),
        ("cp.async.ca.shared.global", "async_copy"),
        ("bar.sync", "barrier"),
        ("bar.warp.sync", "warp"),
        ("shfl.sync.bfly.b32", "warp"),
        ("red.global.add.f32", "atomic"),
        ("membar.gl", "fence"),
        ("bra.uni", "control"),
    ],
)
def test_the_class_of_an_instruction(text, name):
    opcode, *modifiers = text.split(".")
    assert class_of(Instruction(opcode, tuple(modifiers), ())) == name


def test_every_instruction_of_a_kernel_has_a_class():
    module = parse(compile_ptx(SOURCE, "test.cu"))
    unknown = {i.name for f in module.functions.values() for i in f.instructions if class_of(i) == "other"}
    assert not unknown


# ---- occupancy ----


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks", "limit", "percent"),
    [
        # from NVIDIA's occupancy calculator
        ("sm_90", 1024, 64, 0, 1, "registers", 50),
        ("sm_90", 1024, 32, 0, 2, "threads", 100),
        ("sm_90", 256, 32, 0, 8, "threads", 100),
        ("sm_90", 256, 255, 0, 1, "registers", 12.5),
        ("sm_90", 32, 200, 0, 8, "registers", 12.5),
        ("sm_90", 32, 16, 0, 32, "blocks", 50),
        ("sm_90", 128, 32, 100 * 1024, 2, "shared memory", 12.5),
        ("sm_80", 256, 40, 48 * 1024, 3, "shared memory", 37.5),
        ("sm_86", 1024, 32, 0, 1, "threads", 100 * 32 / 48),
        ("sm_75", 512, 64, 0, 2, "threads", 100),
    ],
)
def test_occupancy_and_what_limits_it(arch, threads, registers, shared, blocks, limit, percent):
    found = active_blocks(chip(arch), threads, registers, shared)
    assert (found.blocks, found.limit) == (blocks, limit)
    assert 100 * found.fraction == pytest.approx(percent)
