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
from cudakit.sim.lockstep.traffic import Tally, count_contention
from cudakit.sim.ptx.ir import Instruction
from cudakit.sim.ptx.mix import CLASSES, class_of
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


@pytest.fixture(scope="module")
def counted():
    return SimDevice(SOURCE)


def line_of(text):
    """Return the number of the only line of SOURCE that contains `text`."""
    found = [number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line]
    assert len(found) == 1, f"{text!r} is in lines {found}"
    return found[0]


def at(counters, text):
    """Return the counters of the line of SOURCE that contains `text`."""
    found = [share for (file, line), share in counters.per_line.items() if line == line_of(text)]
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
    return runs


@pytest.mark.parametrize("number", range(4))
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
