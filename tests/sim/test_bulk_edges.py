"""Edges of bulk copies, tensor maps and warpgroup products: empty copies, maps beside other memory, changes of a map in
any order, fences of one state space, and sources and accumulators that a copy or a product does not find ready."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from simdevice import CheckedDevice
from test_hopper_forms import gated
from test_warpgroup import launch

from cudakit.sim.lockstep.report import KernelFault
from cudakit.sim.lockstep.tensor_maps import TensorMap
from tests.mutants.verdicts import LOADED, REFUSED, judge, load, missing_ptxas

SOURCE = r"""
#include "hopper.cuh"
#define REPLACE(field, type, ...) \
    asm volatile("tensormap.replace.tile." field ".shared::cta.b1024." type " [%0], " __VA_ARGS__ ";" \
                 :: "r"(shared_address(map)) : "memory")
struct alignas(128) Map { unsigned words[32]; };
__device__ __forceinline__ void start(uint64* barrier) {
    if (threadIdx.x == 0) { barrier_init(barrier, 1); fence_barrier_init(); }
}
__device__ __forceinline__ void acquire(const Map* map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(map) : "memory");
}
template <int RANK> __device__ __forceinline__ void load_box(float* to, const Map* map, uint64* barrier) {
    if constexpr (RANK == 2)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {0, 0}], [%2];"
                     :: "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)) : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {0, 0, 0}], [%2];"
                     :: "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void publish(Map* to, const Map* map) {
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
                 "[%0], [%1], 128;" :: "l"(to), "r"(shared_address(map)) : "memory");
}

// ---- copies of `bytes` bytes, just past an array ----
__global__ void store(float* y, int n, int bytes) {
    __shared__ alignas(16) float tile[4];
    bulk_store(y + n, tile, bytes);  // store
    bulk_commit();
    bulk_wait<0>();
}
__global__ void reduce(float* y, int n, int bytes) {
    __shared__ alignas(16) float tile[4];
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"  // reduce
                 :: "l"(y + n), "r"(shared_address(tile)), "r"(bytes) : "memory");
    bulk_commit();
    bulk_wait<0>();
}
__global__ void load(float* x, int n, int bytes) {
    __shared__ alignas(16) float tile[4];
    __shared__ uint64 full;
    start(&full);
    barrier_arrive_expect(&full, bytes);
    bulk_load(tile, x + n, bytes, &full);  // load
    barrier_wait(&full, 0);
}
// to the other block of the cluster, which does not wait for the bytes
__global__ void __cluster_dims__(2) exchange(float* y, int n, int bytes) {
    __shared__ alignas(16) float tile[4];
    __shared__ alignas(16) float given[4];
    __shared__ uint64 full;
    start(&full);
    for (int i = 0; i < 4; ++i) tile[i] = 1, given[i] = 2;
    asm volatile("fence.proxy.async;" ::: "memory");
    cluster_sync();
    asm volatile("{.reg .b32 to, at; mapa.shared::cluster.u32 to, %0, %3; mapa.shared::cluster.u32 at, %1, %3;"
                 "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%2], %4, [at];}"
                 :: "r"(shared_address(tile)), "r"(shared_address(&full)), "r"(shared_address(given)),
                    "r"(1 - cluster_rank()), "r"(bytes) : "memory");
    y[blockIdx.x] = tile[0];  // exchange
    cluster_sync();
}

// ---- tensor maps ----
// changes the box of a map at byte `at` of shared memory, of which only the words that fit are filled
__global__ void shared_map(const Map* from, Map* to, float* y, int at, int bytes) {
    alignas(1024) extern __shared__ char memory[];
    Map* const map = reinterpret_cast<Map*>(memory + at);
    float* const tile = reinterpret_cast<float*>(memory + 128);
    uint64* const full = reinterpret_cast<uint64*>(memory + 192);
    to += blockIdx.x;
    if (at + 4 * threadIdx.x < bytes)
        reinterpret_cast<unsigned*>(memory + at)[threadIdx.x] = from->words[threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 0) REPLACE("box_dim", "b32", "1, 2");  // replace
    start(full);
    __syncwarp();
    publish(to, map);
    acquire(to);
    if (threadIdx.x == 0) {
        barrier_arrive_expect(full, 64);
        load_box<2>(tile, to, full);
    }
    barrier_wait(full, 0);
    if (threadIdx.x < 16) y[16 * blockIdx.x + threadIdx.x] = tile[threadIdx.x];
}
__global__ void global_map(const Map* from, unsigned* to) {
    to[threadIdx.x] = from->words[threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 0)
        asm volatile("tensormap.replace.tile.box_dim.global.b1024.b32 [%0], 1, 2;" :: "l"(to) : "memory");
}
__global__ void discard(unsigned* x) {
    asm volatile("discard.global.L2 [%0], 128;" :: "l"(x) : "memory");  // discard
}
// changes a map in a given order, and loads the box at the origin
template <int RANK> __device__ void edit(const Map* from, Map* to, float* y, const int* order, int n, int bytes) {
    __shared__ Map shared;
    __shared__ alignas(128) float tile[64];
    __shared__ uint64 full;
    Map* const map = &shared;
    start(&full);
    map->words[threadIdx.x] = from->words[threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 0)
        for (int i = 0; i < n; ++i) switch (order[i]) {
            case 0: REPLACE("rank", "b32", "0"); break;
            case 1: REPLACE("rank", "b32", "1"); break;
            case 2: REPLACE("rank", "b32", "2"); break;
            case 3: REPLACE("global_dim", "b32", "2, 2"); break;
            case 4: REPLACE("global_stride", "b64", "1, 256"); break;
            case 5: REPLACE("box_dim", "b32", "2, 2"); break;
            case 6: REPLACE("element_stride", "b32", "2, 1"); break;
            case 7: REPLACE("box_dim", "b32", "1, 2"); break;
            case 8: REPLACE("global_stride", "b64", "1, 24"); break;
            case 9: asm volatile("tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], %1;"  // rank
                                 :: "r"(shared_address(map)), "r"(5) : "memory");
        }
    __syncwarp();
    publish(to, map);
    acquire(to);
    if (threadIdx.x == 0) {
        barrier_arrive_expect(&full, bytes);
        load_box<RANK>(tile, to, &full);  // box
    }
    barrier_wait(&full, 0);
    for (int i = threadIdx.x; i < bytes / 4; i += 32) y[i] = tile[i];
}
__global__ void edit_2(const Map* from, Map* to, float* y, const int* order, int n, int bytes) {
    edit<2>(from, to, y, order, n, bytes);
}
__global__ void edit_3(const Map* from, Map* to, float* y, const int* order, int n, int bytes) {
    edit<3>(from, to, y, order, n, bytes);
}
// each block publishes a map of its own rows, at `to` or, with a step, beside it
__global__ void published(const Map* from, Map* to, const float* x, int step) {
    __shared__ Map map;
    map.words[threadIdx.x] = from->words[threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 0)
        asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;"
                     :: "r"(shared_address(&map)), "l"(x + 32 * blockIdx.x) : "memory");
    __syncwarp();
    publish(to + step * blockIdx.x, &map);  // publish
}

// stores the box of 4 rows of 8 floats at (x, y), of which `columns` of the first `rows` are written; REDUCE: adds it
template <bool REDUCE> __device__ void box(const Map* map, int x, int y, int rows, int columns) {
    alignas(128) __shared__ float tile[4][8];
    const int row = threadIdx.x / 8, column = threadIdx.x % 8;
    if (row < rows && column < columns) tile[row][column] = threadIdx.x + 1;
    fence_async_shared();
    __syncwarp();
    if (threadIdx.x == 0) {
        if (REDUCE)
            asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group "  // add_box
                         "[%0, {%2, %3}], [%1];"
                         :: "l"(map), "r"(shared_address(tile)), "r"(x), "r"(y) : "memory");
        else
            asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group "  // store_box
                         "[%0, {%2, %3}], [%1];"
                         :: "l"(map), "r"(shared_address(tile)), "r"(x), "r"(y) : "memory");
        bulk_commit();
        bulk_wait<0>();
    }
}
__global__ void store_box(const Map* map, int x, int y, int rows, int columns) { box<false>(map, x, y, rows, columns); }
__global__ void add_box(const Map* map, int x, int y, int rows, int columns) { box<true>(map, x, y, rows, columns); }

// ---- sources and fences ----
// stores of two threads, of which the first `waits` wait; READ: until the sources have been read
template <bool READ> __device__ void overwrite(int* y, int waits) {
    __shared__ alignas(16) int tile[2][32];
    tile[0][threadIdx.x] = tile[1][threadIdx.x] = threadIdx.x;
    fence_async_shared();
    __syncwarp();
    if (threadIdx.x < 2) {
        bulk_store(y + 32 * threadIdx.x, tile[threadIdx.x], 128);
        bulk_commit();
    }
    if (threadIdx.x < waits) {
        if (READ) bulk_wait_read<0>(); else bulk_wait<0>();
    }
    for (int i = 0; i < 16; ++i) __syncwarp();
    tile[1][threadIdx.x] = -1;  // other thread
}
__global__ void overwritten(int* y, int waits) { overwrite<false>(y, waits); }
__global__ void overwritten_once_read(int* y, int waits) { overwrite<true>(y, waits); }
// two groups of a thread that waits for the older one
__global__ void older(int* y, int which) {
    __shared__ alignas(16) int tile[2][32];
    tile[0][threadIdx.x] = tile[1][threadIdx.x] = threadIdx.x;
    fence_async_shared();
    __syncwarp();
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            bulk_store(y + 32 * i, tile[i], 128);
            bulk_commit();
        }
        bulk_wait_read<1>();
    }
    for (int i = 0; i < 16; ++i) __syncwarp();
    tile[which][threadIdx.x] = -1;  // newer
}
__device__ __forceinline__ void fence(int space) {
    if (space & 1) asm volatile("fence.proxy.async;" ::: "memory");
    if (space & 2) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (space & 4) asm volatile("fence.proxy.async.shared::cluster;" ::: "memory");
    if (space & 8) asm volatile("fence.proxy.async.global;" ::: "memory");
}
__global__ void from_shared(int* y, int space) {
    __shared__ alignas(16) int tile[32];
    tile[threadIdx.x] = threadIdx.x + 7;
    fence(space);
    __syncthreads();
    if (threadIdx.x == 0) {
        bulk_store(y, tile, 128);  // from shared
        bulk_commit();
        bulk_wait<0>();
    }
}
__global__ void from_global(int* x, int space) {
    __shared__ alignas(16) int tile[32];
    __shared__ uint64 full;
    x[threadIdx.x] = threadIdx.x + 7;
    fence(space);
    start(&full);
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_arrive_expect(&full, 128);
        bulk_load(tile, x, 128, &full);  // from global
    }
    barrier_wait(&full, 0);
    x[threadIdx.x] = tile[threadIdx.x];
}
"""
MOMENTS = (None, 0, 1, 2)
F32 = 7
ROWS = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)


@pytest.fixture(scope="module")
def device() -> CheckedDevice:
    return CheckedDevice(SOURCE, options=(f"-I{ROOT / 'kernels' / 'common'}",))


def reported(device: CheckedDevice, mark: str, *launch: Any, **options: Any) -> Any:
    """The report of a launch, which must be at the line that ends with the comment ``mark``."""
    with pytest.raises(KernelFault) as raised:
        device.launch(*launch, **options)
    return at_line(raised.value.report, mark)


def at_line(report: Any, mark: str) -> Any:
    assert any(str(place.text).endswith(f"// {mark}") for place in report.places), str(report)
    return report


# Empty copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["store", "reduce", "load", "exchange"])
def test_a_copy_of_no_bytes_accesses_nothing(device: CheckedDevice, kernel: str) -> None:
    blocks = 2 if kernel == "exchange" else 1
    for moments in MOMENTS:
        array = np.full(4, 3, np.float32)
        device.launch(kernel, blocks, 1, array, 4, 0, draw=moments)
        assert array.tolist() == ([1, 1, 3, 3] if kernel == "exchange" else [3] * 4)
        report = reported(device, kernel, kernel, blocks, 1, array, 4, 16, draw=moments)
        assert report.kind == ("read before mbarrier wait" if kernel == "exchange" else "out of bounds")


# Tensor maps in memory ------------------------------------------------------------------------------------------------


@pytest.fixture
def plain(device: CheckedDevice) -> np.ndarray:
    """The bytes of a map of ROWS, in boxes of 4 rows and 8 columns."""
    rows = device.upload(ROWS)
    return np.frombuffer(TensorMap(F32, rows.address, (32, 16), (128,), (8, 4), (1, 1)).encode(), np.uint32).copy()


@pytest.mark.parametrize("shared", [200, 224, 256, 264])
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_map_is_changed_beside_any_shared_memory(
    device: CheckedDevice, plain: np.ndarray, shared: int, blocks: int
) -> None:
    to, y = np.zeros((blocks, 32), np.uint32), np.zeros((blocks, 2, 8), np.float32)
    device.launch("shared_map", blocks, 32, plain, to, y, 0, shared, shared=shared)
    assert np.array_equal(y, [ROWS[:2, :8]] * blocks)
    for at, kind in ((8, "misaligned"), (shared // 128 * 128, "out of bounds")):
        call = "shared_map", blocks, 32, plain, to, y, at, shared
        report = reported(device, "replace", *call, shared=shared)
        assert (report.kind, report.thread) == (kind, (0, 0, 0))


@pytest.mark.parametrize("size", [128, 160, 288])
def test_128_bytes_are_accessed_in_allocations_of_any_size(device: CheckedDevice, plain: np.ndarray, size: int) -> None:
    array = np.zeros(size // 4, np.uint32)
    device.launch("global_map", 1, 32, plain, array)
    assert TensorMap.decode(array[:32].tobytes()).box == (8, 2)
    device.launch("discard", 1, 1, array)
    assert reported(device, "discard", "discard", 1, 1, np.zeros(31, np.uint32)).kind == "out of bounds"


SOLID = np.stack([ROWS[:4, :8], ROWS[2:6, :8]])
RANK_1, RANK_2, RANK_3, SIZE, STRIDE, BOX, STEP, ROWS_OF_BOX, BAD_STRIDE, RANK_6 = range(10)


def edited(plain: np.ndarray, rank: int, order: tuple[int, ...], size: int) -> tuple[Any, ...]:
    to, y = np.zeros(32, np.uint32), np.zeros(size, np.float32)
    return f"edit_{rank}", 1, 32, plain, to, y, np.array(order, np.int32), len(order), 4 * size


def test_the_fields_of_a_new_dimension_are_set_in_any_order(device: CheckedDevice, plain: np.ndarray) -> None:
    for order in itertools.permutations((RANK_3, SIZE, STRIDE, BOX)):
        call = edited(plain, 3, (*order, STEP), 64)
        device.launch(*call)
        assert np.array_equal(call[5], SOLID.ravel()), order


def test_a_rank_may_be_lowered_and_raised_again(device: CheckedDevice, plain: np.ndarray) -> None:
    for order, want in (
        ((RANK_1, RANK_2), ROWS[:4, :8]),
        ((RANK_1, ROWS_OF_BOX, RANK_2), ROWS[:2, :8]),
        ((RANK_3, SIZE, BOX, STRIDE, RANK_1, RANK_2), ROWS[:4, :8]),
    ):
        call = edited(plain, 2, order, want.size)
        device.launch(*call)
        assert np.array_equal(call[5], want.ravel()), order
    call = edited(plain, 3, (RANK_3, SIZE, BOX, STRIDE, RANK_1, RANK_3), 64)
    device.launch(*call)
    assert np.array_equal(call[5], SOLID.ravel())


def test_a_changed_map_must_be_that_of_its_copy(device: CheckedDevice, plain: np.ndarray) -> None:
    for mark, rank, order in (
        ("box", 2, (SIZE, STRIDE, BOX, RANK_3)),
        ("box", 3, (SIZE, STRIDE, BOX)),
        ("box", 3, (SIZE, BAD_STRIDE, BOX, RANK_3)),
        ("rank", 2, (RANK_6,)),
    ):
        report = reported(device, mark, *edited(plain, rank, order, 64))
        assert (report.kind, report.thread) == ("invalid tensor map", (0, 0, 0))


@pytest.mark.parametrize("kernel", ["store_box", "add_box"])
@pytest.mark.parametrize(
    ("corner", "rows", "columns"),
    [((0, 0), 4, 8), ((0, 13), 3, 8), ((28, 0), 4, 4), ((28, 14), 2, 4), ((0, 16), 0, 0), ((32, 3), 0, 0)],
)
def test_a_store_does_not_read_the_part_of_its_box_outside_the_tensor(
    device: CheckedDevice, kernel: str, corner: tuple[int, int], rows: int, columns: int
) -> None:
    """`rows` and `columns` of the box are inside of it. A row or a column less is uninitialised memory that is read."""
    for moments in MOMENTS:
        array = device.upload(np.zeros((16, 32), np.float32))
        plain = np.frombuffer(
            TensorMap(F32, array.address, (32, 16), (128,), (8, 4), (1, 1)).encode(), np.uint32
        ).copy()
        device.launch(kernel, 1, 32, plain, *corner, rows, columns, draw=moments)
        want = np.zeros((19, 40), np.float32)
        want[corner[1] : corner[1] + rows, corner[0] : corner[0] + columns] = np.arange(1, 33).reshape(4, 8)[
            :rows, :columns
        ]
        assert np.array_equal(array.data[: 4 * 16 * 32].view(np.float32).reshape(16, 32), want[:16, :32])
        for fewer in ((rows - 1, columns), (rows, columns - 4)) if rows else ():
            report = reported(device, kernel, kernel, 1, 32, plain, *corner, *fewer, draw=moments)
            assert report.kind == "uninitialised read"


def test_two_blocks_may_not_publish_their_maps_at_one_place(device: CheckedDevice, plain: np.ndarray) -> None:
    x = device.upload(np.zeros(64, np.float32))
    for moments in MOMENTS:
        to = np.zeros((2, 32), np.uint32)
        device.launch("published", 2, 32, plain, to, x.address, 1, draw=moments)
        assert [TensorMap.decode(one.tobytes()).address for one in to] == [x.address, x.address + 128]
        report = reported(device, "publish", "published", 2, 32, plain, to, x.address, 0, draw=moments)
        assert report.kind == "global memory race"


# Sources and fences ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["overwritten", "overwritten_once_read"])
def test_a_source_is_in_flight_until_its_own_thread_waits(device: CheckedDevice, kernel: str) -> None:
    for moments in (None, *range(10)):
        y = np.zeros((2, 32), np.int32)
        device.launch(kernel, 1, 32, y, 2, draw=moments)
        assert np.array_equal(y, [np.arange(32)] * 2)
        report = reported(device, "other thread", kernel, 1, 32, y, 1, draw=moments)
        assert report.kind == "shared memory overwritten in flight"
        assert report.others[0].thread == (1, 0, 0)


def test_a_wait_for_older_groups_releases_their_sources_only(device: CheckedDevice) -> None:
    for moments in (None, *range(10)):
        y = np.zeros((2, 32), np.int32)
        device.launch("older", 1, 32, y, 0, draw=moments)
        assert np.array_equal(y, [np.arange(32)] * 2)
        report = reported(device, "newer", "older", 1, 32, y, 1, draw=moments)
        assert report.kind == "shared memory overwritten in flight"


EVERY, CTA, CLUSTER, GLOBAL = 1, 2, 4, 8


@pytest.mark.parametrize(
    ("memory", "right", "wrong"),
    [
        ("shared", (EVERY, CTA, CLUSTER, GLOBAL | CTA), (0, GLOBAL)),
        ("global", (EVERY, GLOBAL, GLOBAL | CTA), (0, CTA, CLUSTER)),
    ],
)
def test_a_proxy_fence_counts_for_its_state_space(
    device: CheckedDevice, memory: str, right: tuple[int, ...], wrong: tuple[int, ...]
) -> None:
    for space in right:
        array = np.zeros(32, np.int32)
        device.launch(f"from_{memory}", 1, 32, array, space)
        assert np.array_equal(array, np.arange(32) + 7)
    for space in wrong:
        report = reported(device, f"from {memory}", f"from_{memory}", 1, 32, np.zeros(32, np.int32), space)
        assert (report.kind, report.space) == ("missing proxy fence", memory)


# Forms ----------------------------------------------------------------------------------------------------------------

RANKS = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry ranks(.param .u64 out)
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    .shared .align 16 .b8 buffer[32];
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %cluster_ctarank;
    mad.wide.u32 %rd1, %r1, 12, %rd1;
    getctarank.shared::cluster.u32 %r2, buffer+16;
    getctarank.shared::cluster.u32 %r3, buffer;
    mapa.shared::cluster.u32 %r4, buffer+16, 1;
    getctarank.shared::cluster.u32 %r5, %r4;
    st.global.u32 [%rd1], %r2;
    st.global.u32 [%rd1+4], %r3;
    st.global.u32 [%rd1+8], %r5;
    ret;
}
"""


def test_the_rank_of_a_variable_is_that_of_the_block_itself() -> None:
    out = np.zeros((2, 3), np.int32)
    CheckedDevice(RANKS, ptx=True).launch("ranks", 2, 1, out, cluster=(2, 1, 1))
    assert out.tolist() == [[0, 0, 1], [1, 1, 1]]


EIGHT = "{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}"


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        (f"ld.global.v8.b32 {EIGHT}, [%rd1];", "ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%rd1];"),
        ("st.global.v4.f64 [%rd1], {%fd0, %fd1, %fd2, %fd3};", "st.global.v2.f64 [%rd1], {%fd0, %fd1};"),
        (f"ld.global.L2::evict_last.v8.b32 {EIGHT}, [%rd1];", "ld.global.L1::evict_last.b32 %r1, [%rd1];"),
        (
            "st.global.L1::no_allocate.L2::evict_first.v4.b64 [%rd1], {%rd0, %rd1, %rd2, %rd3};",
            "st.global.L1::no_allocate.L2::cache_hint.v4.b32 [%rd1], {%r0, %r1, %r2, %r3}, %rd2;",
        ),
    ],
)
def test_accesses_of_256_bits_and_their_priorities_need_sm_100(newer: str, older: str) -> None:
    verdict, message = load(gated(newer, "sm_90a", "8.8"))
    assert verdict == REFUSED
    assert "needs sm_100, the module is for sm_90" in message
    assert load(gated(newer, "sm_100", "8.8")) == (LOADED, "")
    assert load(gated(older, "sm_90a", "8.8")) == (LOADED, "")
    if not missing_ptxas():
        verdicts = [judge(gated(*one, "8.8"))[0] for one in ((newer, "sm_90a"), (newer, "sm_100"), (older, "sm_90a"))]
        assert verdicts == [False, True, True]


# Products -------------------------------------------------------------------------------------------------------------

# results that are lost, or of which the checks of uninitialised reads keep no trace
USES = {
    "nothing": "",
    "an ordinary store": "d[0] = f[0];",
    "stmatrix": """
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
    :: "r"((unsigned)__cvta_generic_to_shared(t.a[0] + threadIdx.x * 8)), "r"(packed(f[0], f[1])),
       "r"(packed(f[2], f[3])) : "memory");
  __syncthreads();
  d[0] = float(t.a[0][threadIdx.x]) * 0;
""",
    "a bulk store": """
  reinterpret_cast<float*>(t.a)[threadIdx.x] = f[0];
  PROXY;
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;\\ncp.async.bulk.commit_group;\\n"
      "cp.async.bulk.wait_group 0;" :: "l"(out), "r"((unsigned)__cvta_generic_to_shared(t.a)) : "memory");
  __syncthreads();
""",
}


def stopped(body: str, mark: str, **options: Any) -> Any:
    with pytest.raises(KernelFault) as raised:
        launch(body, **options)
    return at_line(raised.value.report, mark)


@pytest.mark.parametrize("use", USES)
def test_an_accumulator_that_was_never_set_is_reported_at_the_product(use: str) -> None:
    body = "  float f[4];\n  FENCE;\n  mma(f, a, b, n);  // added\n  COMMIT; WAIT(0); keep(f);\n" + USES[use]
    report = stopped(body, "added")
    assert (report.kind, report.thread) == ("uninitialised read", (0, 0, 0))
    assert "the accumulator of a product" in report.detail
    launch(body, n=0)
    launch(body.replace("float f[4];", "float f[4] = {};"))


def test_one_accumulator_that_was_never_set_is_enough() -> None:
    body = """
  float f[4];
  f[0] = f[1] = f[3] = 0;
  FENCE;
  mma(f, a, b, n);  // added
  COMMIT; WAIT(0);
"""
    assert stopped(body, "added").kind == "uninitialised read"
    launch(body.replace("f[3] = 0", "f[2] = f[3] = 0"))


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_warpgroup_may_wait_without_a_product(n: int) -> None:
    """Before the first product of a pipeline, and after a loop of no steps."""
    body = """
  for (int k = 0; k < n; ++k) {
    WAIT(1);
    FENCE; mma(d, a, b); COMMIT;
  }
  WAIT(0); keep(d);
"""
    assert (launch(body, n=n) == 16 * n).all()
    assert (launch(body, n=n, threads=256, blocks=2) == 16 * n).all()


def test_a_product_that_is_not_committed_is_reported_after_a_wait_without_one() -> None:
    body = """
  WAIT(1);
  FENCE; mma(d, a, b);
  WAIT(0);  // wait
  keep(d);
"""
    assert stopped(body, "wait").kind == "missing wgmma.commit_group"
    launch(body.replace("FENCE; mma(d, a, b);", "FENCE; mma(d, a, b); COMMIT;"))
