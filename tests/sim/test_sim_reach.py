"""The parameters and variables through which a kernel may store to global memory, and those that it loads through the
read-only cache: for copies, reductions and tensor maps."""

from __future__ import annotations

import numpy as np
import pytest
from simdevice import ALL_CHECKS, SimDevice

from cudakit.sim.checks.reach import Reach
from cudakit.sim.lockstep.memory import AddressSpace
from cudakit.sim.lockstep.report import KernelFault
from cudakit.sim.machine.loading import LoadedModule

HEAD = """.version 8.8
.target sm_90a
.address_size 64
.global .align 128 .b8 table[256];
.visible .entry k(.param .u64 one, .param .u64 two, .param .align 64 .b8 map[128])
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<8>;
    .shared .align 128 .b8 buffer[256];
    ld.param.u64 %rd1, [one];
    ld.param.u64 %rd2, [two];
    cvta.to.global.u64 %rd2, %rd2;
    mov.b64 %rd3, map;
    cvta.param.u64 %rd3, %rd3;
    LINE
    ret;
}
"""
ONE, TWO = 0, 8
ANY = None
BYTES = "mbarrier::complete_tx::bytes"
TENSOR, REDUCE_TENSOR = "cp.async.bulk.tensor.1d", "cp.reduce.async.bulk.tensor.1d"
COPY_FENCE = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"


def reach_of(line: str) -> Reach:
    reach = LoadedModule(HEAD.replace("LINE", line), AddressSpace()).functions["k"].reach
    assert isinstance(reach, Reach)
    return reach


@pytest.mark.parametrize(
    ("line", "params", "symbols"),
    [
        ("cp.async.bulk.global.shared::cta.bulk_group [%rd2], [buffer], 16;", {TWO}, set()),
        ("add.u64 %rd4, %rd2, 64;\n cp.async.bulk.global.shared::cta.bulk_group [%rd4], [%rd1], 16;", {TWO}, set()),
        ("cp.async.bulk.global.shared::cta.bulk_group [table+16], [buffer], 16;", set(), {"table"}),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd2], [buffer], 16;", {TWO}, set()),
        # the map says which allocation is written
        (f"{TENSOR}.global.shared::cta.bulk_group [%rd3, {{%r1}}], [buffer];", ANY, set()),
        (f"{TENSOR}.global.shared::cta.bulk_group [table, {{%r1}}], [buffer];", ANY, set()),
        (f"{REDUCE_TENSOR}.global.shared::cta.add.bulk_group [%rd2, {{%r1}}], [buffer];", ANY, set()),
        # these write maps
        (f"{COPY_FENCE} [%rd2], [buffer], 128;", {TWO}, set()),
        ("tensormap.replace.tile.rank.global.b1024.b32 [%rd2], 1;", {TWO}, set()),
        ("tensormap.replace.tile.rank.b1024.b32 [%rd1], 1;", {ONE}, set()),
        ("tensormap.replace.tile.rank.global.b1024.b32 [table], 1;", set(), {"table"}),
        # and these only shared memory
        ("tensormap.replace.tile.rank.shared::cta.b1024.b32 [%rd1], 1;", set(), set()),
        (f"cp.async.bulk.shared::cta.global.{BYTES} [%rd1], [%rd2], 16, [buffer];", set(), set()),
        (f"cp.async.bulk.shared::cluster.shared::cta.{BYTES} [%rd1], [buffer], 16, [buffer];", set(), set()),
        (f"{TENSOR}.shared::cluster.global.{BYTES} [%rd1], [%rd3, {{%r1}}], [buffer];", set(), set()),
        (f"st.async.{BYTES}.u32 [%rd1], %r1, [buffer];", set(), set()),
        (f"red.async.relaxed.cluster.{BYTES}.add.u32 [%rd1], %r1, [buffer];", set(), set()),
        ("cp.async.bulk.prefetch.L2.global [%rd2], 16;", set(), set()),
        ("mbarrier.init.b64 [%rd1], 1;", set(), set()),
    ],
)
def test_stores_are_found(line: str, params: set[int] | None, symbols: set[str]) -> None:
    reach = reach_of(line)
    assert reach.params == params
    assert reach.symbols == symbols
    # bulk and tensor loads are coherent, so they are not loads through the read-only cache
    assert reach.cached_params == set()
    assert reach.cached_symbols == set()


def test_bulk_stores_and_read_only_loads_are_told_apart() -> None:
    reach = reach_of(
        "cp.async.bulk.global.shared::cta.bulk_group [%rd2], [buffer], 16;\n ld.global.nc.u32 %r1, [%rd1];"
    )
    assert (reach.params, reach.cached_params) == ({TWO}, {ONE})


@pytest.mark.parametrize(("size", "granule"), [("u8", 1), ("u32", 4)])
def test_asynchronous_stores_do_not_make_other_accesses_smaller(size: str, granule: int) -> None:
    reach = reach_of(f"st.async.{BYTES}.u32 [%rd1], %r1, [buffer];\n ld.shared.{size} %r1, [buffer];")
    assert (reach.shared_granule, reach.global_granule) == (granule, 4)


RACE = r"""
__global__ void k(int* out, int* other) {
    __shared__ alignas(16) int tile[4];
    if (threadIdx.x < 4) tile[threadIdx.x] = threadIdx.x;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 32) other[0] = out[0];
    SYNC
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;\n"
                     "cp.async.bulk.commit_group;\n"
                     "cp.async.bulk.wait_group 0;" ::"l"(__cvta_generic_to_global(out)),
                     "r"((unsigned)__cvta_generic_to_shared(tile)) : "memory");
    }
}
"""


def test_a_bulk_store_races_with_an_earlier_load() -> None:
    """Loads are recorded only if the launch may store to their allocation."""
    out, other = np.zeros(4, np.int32), np.zeros(1, np.int32)
    SimDevice(RACE.replace("SYNC", "__syncthreads();")).launch("k", 1, 64, out, other, checks=ALL_CHECKS)
    assert out.tolist() == [0, 1, 2, 3]
    with pytest.raises(KernelFault) as caught:
        SimDevice(RACE.replace("SYNC", "")).launch("k", 1, 64, out, other, checks=ALL_CHECKS)
    assert caught.value.report.kind == "global memory race"
