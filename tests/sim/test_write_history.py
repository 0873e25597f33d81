"""The recording of writes to an array on the simulated device, and of the values from which kernels computed them."""

from __future__ import annotations

import numpy as np
import pytest

import cudakit
from cudakit.debugger import writes as writes_module
from cudakit.debugger.writes import trace_writes
from cudakit.sim.checks.write_history import Elements
from examples import hopper

SOURCE = """\
#include <cuda_fp16.h>
struct Scale { int skip; float factor; };
extern "C" __global__ void vectors(float4* y) { y[threadIdx.x] = make_float4(1, 2, 3, threadIdx.x); }
extern "C" __global__ void bytes(unsigned char* y) { y[5] = 7; }
extern "C" __global__ void total(int* y, int* old) { old[threadIdx.x] = atomicAdd(y + threadIdx.x / 20, 2); }
extern "C" __global__ void sum(const float* x, float* y, float by) { atomicAdd(y, x[threadIdx.x] * by); }
extern "C" __global__ void pairs_sum(const float2* x, float2* y) { atomicAdd(y + 1, x[threadIdx.x]); }
extern "C" __global__ void count(int* y) { atomicAdd(y, 3); }
extern "C" __global__ void low(const int* x, int* y) { if (threadIdx.x != 5) atomicMin(y, x[threadIdx.x]); }
extern "C" __global__ void high(const int* x, unsigned* y) { atomicMax(y, x[threadIdx.x]); }
extern "C" __global__ void put(const int* x, int* y) { atomicExch(y, x[threadIdx.x]); }
extern "C" __global__ void swap(const int* x, int* y, int* old) {
    old[threadIdx.x] = atomicCAS(y, threadIdx.x < 9 ? 1 : 0, x[threadIdx.x]);
}
extern "C" __global__ void tickets(int* y) { y[threadIdx.x + 1] = atomicAdd(y, 5); }
extern "C" __global__ void lowest(const int* x, int* y) {
    __shared__ int low;
    low = 1000;
    __syncthreads();
    atomicMin(&low, x[threadIdx.x]);
    __syncthreads();
    y[threadIdx.x] = low;
}
extern "C" __global__ void halves_sum(const __half2* x, __half2* y) { atomicAdd(y, x[threadIdx.x]); }
extern "C" __global__ void wide(const long long* x, unsigned long long* y) { atomicCAS(y, 0, x[threadIdx.x]); }
extern "C" __global__ void same(float* y) { if (threadIdx.x > 3) y[9] = threadIdx.x + 100 * blockIdx.x; }
extern "C" __global__ void add(float* y, float by) { y[threadIdx.x] += by; }
extern "C" __global__ void beyond(float* y) { y[2] = 5; y[threadIdx.x + 1000] = 1; }
extern "C" __global__ void racing(float* y) { y[2] = threadIdx.x; __syncthreads(); y[2] = 7 + threadIdx.x; }
extern "C" __global__ void bulk(float* y, int reduces) {
    __shared__ alignas(128) float tiles[160];
    float* tile = tiles + 128;
    tile[threadIdx.x] = threadIdx.x + 0.5f;
    asm volatile("fence.proxy.async.shared::cta;");
    __syncthreads();
    if (threadIdx.x == 3) {
        unsigned from = __cvta_generic_to_shared(tile);
        if (reduces)
            asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 128;"
                         :: "l"(y), "r"(from) : "memory");
        else
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;"
                         :: "l"(y), "r"(from) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

__device__ __noinline__ float square(float value, float more) { return value * value + more; }
__device__ __noinline__ float total_of(const float* x, int n) {
    float own = x[n];
    return n ? total_of(x, n - 1) + own : own;
}

extern "C" __global__ void called(const float* x, float* y) { y[threadIdx.x] = square(x[threadIdx.x + 1], x[0]); }
extern "C" __global__ void recursive(const float* x, float* y) { y[threadIdx.x] = total_of(x, 3); }
extern "C" __global__ void guarded(const float* x, float* y) {
    float value;
    asm("{.reg .pred low; setp.lt.u32 low, %1, 4; mov.f32 %0, %2; @low mov.f32 %0, %3;}"
        : "=f"(value) : "r"(threadIdx.x), "f"(x[threadIdx.x]), "f"(x[threadIdx.x + 20]));
    y[threadIdx.x] = value;
}
extern "C" __global__ void looped(const float* x, float* y, int n) {
    for (int row = 0; row < 3; row++) {
        float sum = 0;
#pragma unroll 1
        for (int k = 0; k < n; k++) sum += x[row * n + k];
        y[row] = sum;
    }
}
extern "C" __global__ void shuffled(const float* x, float* y) {
    y[threadIdx.x] = __shfl_down_sync(~0u, x[2 * threadIdx.x], 3);
}
extern "C" __global__ void chosen(const float* x, const float* z, float* y) {
    float a = x[threadIdx.x], b = z[threadIdx.x];
    y[threadIdx.x] = threadIdx.x % 2 ? a : b;
}
extern "C" __global__ void reversed(const float* x, float* y) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[31 - threadIdx.x];
}
extern "C" __global__ void asynchronous(const float4* x, float* y) {
    __shared__ float4 tile[8];
    if (threadIdx.x < 8) {
        unsigned to = __cvta_generic_to_shared(tile + threadIdx.x);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16; cp.async.wait_all;" :: "r"(to), "l"(x + threadIdx.x));
    }
    __syncthreads();
    y[threadIdx.x] = ((float*)tile)[threadIdx.x];
}
extern "C" __global__ void local(const float* x, float* y, int at) {
    float own[8];
    for (int k = 0; k < 8; k++) own[k] = x[k];
    y[threadIdx.x] = own[(at + threadIdx.x) % 8];
}
extern "C" __global__ void given(float* y, Scale scale) { y[threadIdx.x] = scale.factor; }
extern "C" __global__ void index(int* y) { y[threadIdx.x] = threadIdx.x * 10 + blockIdx.x; }
extern "C" __global__ void literal(float* y) { y[threadIdx.x] = 2.5f; }
extern "C" __global__ void halves(const __half* x, float* y) { y[threadIdx.x] = __half2float(x[threadIdx.x]); }
extern "C" __global__ void pairs(const float2* x, float2* y) {
    float2 v = x[threadIdx.x];
    y[threadIdx.x] = make_float2(v.y, v.x);
}
"""


@pytest.fixture(scope="module")
def device():
    with cudakit.Device("sim", fresh=True) as opened:
        yield opened


@pytest.fixture(scope="module", params=[(), ("-G",)], ids=["optimised", "debug"])
def module(request, device):
    return device.compile(source=SOURCE, name="writes.cu", options=request.param)


@pytest.fixture(scope="module")
def plain(device):
    return device.compile(source=SOURCE, name="writes.cu")


def launch(module, name, *args, grid=1, block=32):
    module[name].launch(cudakit.Device.of(module.context).default_stream, grid=grid, block=block, args=args)


def facts(history):
    return [(w.kind, w.index, w.before, w.after) for w in history.writes]


# ---- every kind of write ----


def test_writes_of_host_and_kernels_are_in_order_with_their_values(device, plain):
    y = device.empty(32)
    with trace_writes(y, -2) as history:
        y.fill(1)
        launch(plain, "add", y, 2.0)
        y.copy_from(np.full(32, 8, np.float32))
        launch(plain, "add", y, 0.5)
        y[1:].copy_from(device.array(np.arange(31, dtype=np.float32)))
        launch(plain, "add", y[:8], 0.5, block=8)  # another part
    at = (30,)
    assert facts(history) == [
        ("fill", at, None, 1),
        ("kernel store", at, 1, 3),
        ("copy from host", at, 3, 8),
        ("kernel store", at, 8, 8.5),
        ("copy from device", at, 8.5, 29),
    ]
    first, second, copy, third, _ = history.writes
    line = test_writes_of_host_and_kernels_are_in_order_with_their_values.__code__.co_firstlineno
    assert first.uninitialised
    assert (first.places[0].line, first.places[0].text) == (line + 3, "y.fill(1)")
    assert (second.kernel, second.launch, second.block, second.thread) == ("add", 1, (0, 0, 0), (30, 0, 0))
    assert second.places[0].text.startswith('extern "C" __global__ void add')
    assert "st.global" in second.instruction
    assert second.launched == f"{__file__}:{launch.__code__.co_firstlineno + 1}"
    assert (copy.call, third.launch) == ("cuMemcpyHtoDAsync", 2)
    assert [w.number for w in history.writes] == [1, 2, 3, 4, 5]
    assert history.last(30).after == 29
    assert history.last(-2) == history.writes[-1]


def test_parts_of_vectors_and_bytes_of_elements_count(device, plain):
    y = device.zeros(64)
    device.synchronize()
    with trace_writes(y, slice(5, 8)) as history:
        launch(plain, "vectors", y, block=16)
    assert facts(history) == [("kernel store", (i,), 0, v) for i, v in ((5, 2), (6, 3), (7, 1))]
    assert {w.thread for w in history.writes} == {(1, 0, 0)}
    with trace_writes(y, 1) as history:
        launch(plain, "bytes", y.view(np.uint8), block=1)
    assert facts(history) == [("kernel store", (1,), 2, np.uint32(0x40000700).view(np.float32))]
    pairs = y.view(np.complex64)
    with trace_writes(pairs, 0) as history:
        launch(plain, "add", y, 1.0)
    assert [w.after for w in history.writes] == [2 + history.writes[0].after.imag * 1j]


def test_an_atomic_of_many_lanes_is_one_write(device, plain):
    y, old = device.array(np.array([10, 20], np.int32)), device.empty(32, np.int32)
    with trace_writes(y) as history:
        launch(plain, "total", y, old)
    sums = [(w.kind, w.index, w.before, w.after, w.lanes) for w in history.writes if w.kind == "atomic"]
    assert sums == [("atomic", (0,), 10, 50, 20), ("atomic", (1,), 20, 44, 12)]
    last = history.last(0)
    assert last.thread == (19, 0, 0)
    assert len(last.others) == 8
    assert last.notes == ()
    with trace_writes(y, 0) as history:
        launch(plain, "low", device.zeros(32, np.int32), y)
    assert history.last().notes == ("31 threads executed it: reads=True finds the one whose value remains",)
    assert "19 more threads executed the atomic too" in str(last)


def test_the_last_of_several_lanes_wins_and_the_others_are_named():
    with cudakit.Device("sim", checks=()) as device:  # the race would be reported
        y = device.zeros(16)
        with trace_writes(y, 9) as history:
            launch(device.compile(source=SOURCE, name="writes.cu"), "same", y, block=8)
    write = history.writes[-1]
    assert (write.after, write.thread, write.lanes) == (7, (7, 0, 0), 4)
    assert write.others == tuple(((0, 0, 0), (t, 0, 0)) for t in (6, 5, 4))
    assert "3 more threads stored to it in the same instruction, and lost" in str(write)


def test_bulk_copies_and_reductions(device, plain):
    y = device.zeros(32)
    device.synchronize()
    with trace_writes(y, 6, reads=True) as history:
        launch(plain, "bulk", y, 0)
        launch(plain, "bulk", y, 1)
    assert facts(history) == [("bulk copy (TMA)", (6,), 0, 6.5), ("bulk reduction (TMA)", (6,), 6.5, 13)]
    assert {w.thread for w in history.writes} == {(3, 0, 0)}
    [shared] = history.writes[1].reads
    assert (shared.address, shared.value, shared.stored.thread) == (4 * 134, 6.5, (6, 0, 0))
    assert ("%tid.x", 6) in read(shared.stored)


def test_fills_and_copies_of_strided_views(device):
    y = device.zeros((6, 8), np.float16)
    device.synchronize()
    view = y[1::2, ::-3]
    with trace_writes(view) as history:
        y[:, 1].fill(3)  # a column of the view
        y[3].copy_from(np.arange(8, dtype=np.float16))
    assert facts(history) == [
        *(("fill", (row, 2), 0, 3) for row in range(3)),
        *(("copy from host", (1, column), old, new) for column, old, new in ((2, 3, 1), (1, 0, 4), (0, 0, 7))),
    ]


def test_pinned_memory_is_copied_from_and_graphs_launch_again(device, plain):
    y, pinned, stream = device.zeros(32), device.pinned(32, np.float32), device.stream()
    device.synchronize()
    pinned[:] = 4
    with trace_writes(y, 0) as history:
        y.copy_from(pinned, stream)
        with device.capture(stream) as graph:
            plain["add"].launch(stream, grid=1, block=32, args=(y, 1.0))
        executable = graph.instantiate()
        for _ in range(2):
            executable.launch(stream)
    assert facts(history) == [("copy from pinned memory", (0,), 0, 4)] + [
        ("kernel store", (0,), 4 + n, 5 + n) for n in range(2)
    ]
    assert [w.launch for w in history.writes] == [0, 1, 2]


def test_a_fault_keeps_the_writes_before_it_and_a_store_that_fails_its_check_is_none(sim):
    module, y = sim.compile(source=SOURCE, name="writes.cu"), sim.zeros(16)
    with pytest.raises(cudakit.DeviceFault), trace_writes(y, 2) as history:
        launch(module, "beyond", y)
    assert facts(history)[1:] == [("kernel store", (2,), 0, 5)]
    assert history.all_notes() == ["the memory was freed with its context, which was lost, which ended the history"]


def test_a_store_that_is_reported_as_a_race_did_not_write(sim):
    module, y = sim.compile(source=SOURCE, name="writes.cu"), sim.zeros(16)
    with pytest.raises(cudakit.DeviceFault, match="data race"), trace_writes(y, 2) as history:
        launch(module, "racing", y)
    assert [w.kind for w in history.writes] == ["fill"]


def test_the_oldest_writes_are_dropped_with_a_note(device, plain, monkeypatch):
    monkeypatch.setattr(writes_module, "MOST_WRITES", 70)
    y = device.zeros(32)
    with trace_writes(y) as history:
        for _ in range(4):
            launch(plain, "add", y, 1.0)
    assert [w.number for w in history.writes] == list(range(97, 161))
    assert len(history) == 64
    assert history.writes[0].after == 3
    assert history.last().number == 160
    assert history.all_notes()[0].startswith("the first 96 writes were dropped")


def test_a_free_ends_the_history(device, plain):
    y, other = device.zeros(32), device.zeros(32)
    history = trace_writes(y, 0)
    launch(plain, "add", y, 1.0)
    y.close()
    launch(plain, "add", device.zeros(32), 1.0)
    launch(plain, "add", other, 1.0)
    history.end()
    assert [w.after for w in history.writes] == [0, 1]
    assert history.all_notes()[0].startswith(f"the memory was freed at {__file__}:")


@pytest.mark.parametrize(
    ("shape", "strides", "chosen"),
    [((4, 6), (24, 4), None), ((4, 6), (24, 4), [3, 9, 10, 23]), ((3, 5), (-48, 8), None), ((3, 4), (0, 4), None)],
)
def test_elements_are_hit_by_the_accesses_that_share_a_byte_with_them(shape, strides, chosen):
    rng = np.random.default_rng(1)
    elements = Elements(1000, shape, strides, np.dtype("f4"), chosen)
    places = rng.integers(850, 1150, 200)
    for size in (1, 4, 16):
        hits, numbers = elements.hit(places, size)
        starts = elements.at(np.arange(elements.count))
        table = (starts < places[:, None] + size) & (places[:, None] < starts + 4)
        assert list(zip(hits, numbers, strict=True)) == list(zip(*np.nonzero(table), strict=True))
    for number in range(elements.count):
        index = elements.index(number)
        address = 1000 + sum(i * s for i, s in zip(index, strides, strict=True))
        assert address == elements.at(number)


# ---- the values that a store was computed from ----


def trace(module, name, out, at, *args, block=32):
    """The last write to an element by one launch, with its reads."""
    with trace_writes(out, at, reads=True, name="y") as history:
        launch(module, name, *args, block=block)
    return history.last()


def read(write):
    return [(r.name, r.value) for r in write.reads]


@pytest.fixture(scope="module")
def x(device):
    return device.array(np.arange(64, dtype=np.float32) + 0.5)


def test_reads_of_a_function_that_is_called(device, module, x):
    write = trace(module, "called", y := device.zeros(32), 7, x, y)
    assert sorted(read(write)) == [("x[0]", 0.5), ("x[8]", 8.5)]
    assert {r.places[0].text[:30] for r in write.reads} == {'extern "C" __global__ void cal'}
    assert write.after == 8.5 * 8.5 + 0.5


def test_reads_of_a_function_that_calls_itself(device, module, x):
    write = trace(module, "recursive", y := device.zeros(32), 2, x, y)
    assert sorted(read(write)) == [(f"x[{k}]", k + 0.5) for k in range(4)]


def test_a_guard_decides_which_definition_a_lane_has(device, module, x):
    for at, name in ((3, "x[23]"), (4, "x[4]")):
        write = trace(module, "guarded", y := device.zeros(32), at, x, y)
        assert [r[0] for r in read(write)] == [name]


def test_reads_of_a_loop_are_those_of_its_last_run(device, module):
    x = device.array(np.arange(12, dtype=np.float32).reshape(3, 4))
    write = trace(module, "looped", y := device.zeros(3), 1, x, y, 4, block=1)
    assert (read(write), write.after) == ([(f"x[1, {k}]", 4.0 + k) for k in range(4)], 22)


def test_a_long_loop_lists_its_last_reads(device, plain):
    x = device.array(np.ones(3 * 200, np.float32))
    write = trace(plain, "looped", y := device.zeros(3), 2, x, y, 200, block=1)
    assert [name for name, _ in read(write)] == [f"x[{k}]" for k in range(568, 600)]
    assert write.notes == ("computed from earlier values too, of which the last 32 are listed",)


def test_a_shuffle_is_followed_to_the_lane_that_it_reads(device, module, x):
    write = trace(module, "shuffled", y := device.zeros(32), 4, x, y)
    assert read(write) == [("x[14]", 14.5)]
    assert write.reads[0].thread == (7, 0, 0)


def test_only_the_chosen_value_is_a_source(device, module, x):
    z = device.array(np.full(64, 9, np.float32))
    for at, name, value in ((5, "x[5]", 5.5), (6, "z[6]", 9)):
        write = trace(module, "chosen", y := device.zeros(32), at, x, z, y)
        assert read(write) == [(name, value)]


@pytest.mark.parametrize("name", ["reversed", "asynchronous"])
def test_shared_memory_names_the_store_and_its_own_reads(device, module, x, name):
    write = trace(module, name, y := device.zeros(32), 2, x, y)
    [shared] = write.reads
    source = 29 if name == "reversed" else 2
    assert (shared.space, shared.value, shared.address) == ("shared", source + 0.5, 4 * source)
    assert shared.stored.thread == ((29 if name == "reversed" else 0), 0, 0)
    assert [r.value for r in shared.stored.reads] == [source + 0.5]
    assert shared.stored.reads[0].address == x.pointer + 4 * source


def test_tensor_copies_are_followed_from_the_result_to_the_operand(device):
    rows = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    x, y = device.array(rows), device.empty((64, 64))
    with trace_writes(y, (7, 9), reads=True) as history:
        hopper.copy_ring(device, x, y, 2.0, 1.0).launch(device.default_stream)
    [stored] = history.last().reads
    assert (history.last().kind, stored.space, stored.value) == ("bulk copy (TMA)", "shared", 2 * 457 + 1)
    loaded = stored.stored.reads[-1].stored
    assert (loaded.kind, read(loaded)) == ("tensor copy", [("x[7, 9]", 457)])


def test_local_arrays_are_followed_to_the_value_in_them(device, module, x):
    write = trace(module, "local", y := device.zeros(32), 4, x, y, 3)
    assert read(write) == [("x[7]", 7.5)]


def test_parameters_indices_and_literals(device, module):
    scale = np.zeros((), [("skip", "i4"), ("factor", "f4")])
    scale["factor"] = 1.5
    write = trace(module, "given", y := device.zeros(32), 4, y, scale[()])
    assert read(write) == [("parameter 1 (`scale`) (byte 4)", 1.5)]
    write = trace(module, "index", z := device.zeros(32, np.int32), 4, z)
    assert sorted(read(write)) == [("%ctaid.x", 0), ("%tid.x", 4)]
    write = trace(module, "literal", y, 4, y)
    assert read(write) == [("", 2.5)]


def test_a_sum_has_the_values_of_all_threads_that_added(device, module, x):
    write = trace(module, "sum", y := device.zeros(1), 0, x, y, 2.0, block=20)
    assert write.after == 400
    assert sorted(read(write)) == sorted([*((f"x[{k}]", k + 0.5) for k in range(20)), ("parameter 2 (`by`)", 2)])
    assert [(r.name, r.thread) for r in write.reads if r.name in ("x[4]", "x[19]")] == [
        ("x[4]", (4, 0, 0)), ("x[19]", None),
    ]  # fmt: skip
    write = trace(module, "sum", y, 0, x, y, 2.0, block=64)
    assert [name for name, _ in read(write) if name.startswith("x")] == [f"x[{k}]" for k in range(33, 64)]
    assert write.notes == ("the values of 33 more threads are not listed",)
    write = trace(module, "pairs_sum", z := device.zeros(4), 3, x, z, block=3)
    assert sorted(read(write)) == [(f"x[{k}]", k + 0.5) for k in (1, 3, 5)], "only the element of the vector"
    halves = device.array(np.arange(6, dtype=np.float16))
    write = trace(module, "halves_sum", z := device.zeros(2, np.float16), 1, halves, z, block=3)
    assert sorted(read(write)) == [("x[0]", (0, 1)), ("x[2]", (2, 3)), ("x[4]", (4, 5))]
    write = trace(module, "count", z := device.zeros(1, np.int32), 0, z)
    assert read(write) == [("", 3)]
    assert "  3, " not in str(write), "a literal is read by no thread"


@pytest.mark.parametrize(
    ("name", "begin", "lane", "after"),
    [
        ("low", 40, 7, -5),
        ("low", -5, None, -5),
        ("high", 3, 7, 2**32 - 5),
        ("put", 3, 31, 131),
        ("swap", 0, 9, 109),
        ("swap", 1, 0, 100),
        ("swap", 3, None, 3),
        ("wide", 0, 0, 100),
    ],
)
def test_an_atomic_that_keeps_one_operand_names_its_thread(device, module, name, begin, lane, after):
    types = {"high": (np.int32, np.uint32), "wide": (np.int64, np.uint64)}.get(name, (np.int32, np.int32))
    values = np.arange(100, 132)
    values[[5, 7]] = -90, -5
    x, y = device.array(values.astype(types[0])), device.array(np.array([begin], types[1]))
    arguments = (x, y, device.empty(32, np.int32)) if name == "swap" else (x, y)
    write = trace(module, name, y, 0, *arguments)
    assert write.after == after
    if lane is None:
        assert (read(write), write.notes) == ([], ("the old value remains: no thread's operand replaced it",))
    else:
        assert (write.thread, [r.name for r in write.reads]) == ((lane, 0, 0), [f"x[{lane}]"])
        assert (lane, 0, 0) not in [thread for _, thread in write.others]


def test_the_value_that_an_atomic_returned_is_known_for_the_first_thread_of_several(device, module):
    y = device.zeros(33, np.int32)
    for at, value in ((1, 0), (2, None)):
        y.fill(0)
        write = trace(module, "tickets", y, at, y)
        assert read(write) == [("y[0]", value)]


def test_an_atomic_in_shared_memory_is_not_followed(device, module):
    x, y = device.array(np.arange(32, dtype=np.int32)), device.empty(32, np.int32)
    write = trace(module, "lowest", y, 4, x, y)
    [shared] = write.reads
    assert (shared.value, shared.stored.kind) in ((0, "atomic"), (0, "reduction"))
    assert "last updated by an atomic of block (0, 0, 0), thread (31, 0, 0)" in str(write)
    assert str(write).endswith("whose values are not followed")


def test_values_have_the_type_of_the_array_they_were_read_from(device, module):
    x = device.array(np.array([1.5] * 32, np.float16))
    write = trace(module, "halves", y := device.zeros(32), 3, x, y)
    assert read(write) == [("x[3]", 1.5)]
    x = device.array(np.arange(64, dtype=np.float32))
    write = trace(module, "pairs", y := device.zeros(64), 10, x, y)
    assert read(write) == [("x[11]", 11)], "only the stored element of a vector"
