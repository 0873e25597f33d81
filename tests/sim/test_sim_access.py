"""Memory accesses on the simulated device: reports of invalid ones, and their counters."""

import numpy as np
import pytest
from simdevice import CHECKS, SimDevice

from cudakit.sim.chips.properties import chip
from cudakit.sim.lockstep.access import MemoryAccess
from cudakit.sim.lockstep.lanes import Geometry, LaneSet
from cudakit.sim.lockstep.report import KernelFault, plain_name
from cudakit.sim.lockstep.sites import Site
from cudakit.sim.lockstep.traffic import Tally, count_same_word, wavefronts
from cudakit.sim.machine.launch import launch
from cudakit.sim.ptx.ir import Instruction

WRONG = r"""// a file of the user's own
__global__ void off_by_one(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = x[i];
}
__device__ float fetch(const float* p, int i) {
  return p[i];
}
__global__ void helper(const float* x, float* y, int n) {
  int i = threadIdx.x;
  y[i] = fetch(x, i - 1);
}
__global__ void misaligned(const float* x, float4* y) {
  y[threadIdx.x] = *(const float4*)(x + 4 * threadIdx.x + 1);
}
__global__ void misaligned_for_all(const char* x, float* y) {
  y[threadIdx.x] = *(const float*)(x + 6);
}
__global__ void shared_overrun(float* y, int k) {
  __shared__ float s[64];
  s[threadIdx.x + k] = 1; __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
__global__ void shared_misaligned(float* y, int k) {
  __shared__ float s[64]; s[threadIdx.x] = 0; __syncthreads();
  y[threadIdx.x] = *(float*)((char*)s + k);
}
__global__ void local_overrun(int* out, int k) {
  int a[8]; for (int i = 0; i < 8; i++) a[i] = i * out[i];
  out[threadIdx.x] = a[k + threadIdx.x];
}
__global__ void atomic_wild(int* x, int k) { atomicAdd(x + k, 1); }
__global__ void spread_pointers(float** rows, float* y) { y[threadIdx.x] = rows[threadIdx.x][2]; }
__global__ void hang(volatile int* flag) { while (*flag == 0) {} }
__global__ void forever(int* x) { for (;;) {} }
__global__ void half_barrier(int* x) {
  int t = threadIdx.x;
  if (t < 32) { asm volatile("bar.sync 1, 64;"); } else { asm volatile("bar.sync 2, 64;"); }
  x[t] = t;
}
__global__ void parted_barrier(int* x) {
  int t = threadIdx.x;
  if (x[t]) { x[t] = 3; __syncthreads(); x[t + 64] = 1; } else { x[t] = 4; __syncthreads(); x[t + 64] = 2; }
}
__global__ void own_barriers(int* x) {
  int t = threadIdx.x;
  if (x[t]) {
    x[t] = 5; __syncthreads(); x[t + 64] = 1;
  } else {
    x[t] = 6; __syncthreads(); x[t + 64] = 2;
  }
}
__global__ void waits_for_later(volatile int* flags) {
  if (threadIdx.x == 0) { if (blockIdx.x + 1 < gridDim.x) while (flags[blockIdx.x + 1] == 0) {}
    flags[blockIdx.x] = 1; }
}
"""


@pytest.fixture
def wrong():
    return SimDevice(WRONG, name="mine.cu")


def report_of(device, *args, **more):
    with pytest.raises(KernelFault) as caught:
        device.launch(*args, **more)
    report = caught.value.report
    assert str(report) == str(caught.value)
    return report


def line_of(text):
    return next(n for n, line in enumerate(WRONG.splitlines(), 1) if text in line)


def test_one_element_too_many(wrong):
    x, y = np.zeros(1000, np.float32), np.zeros(1000, np.float32)
    report = report_of(wrong, "off_by_one", 8, 128, x, y, 1000)
    assert report.kind == "out of bounds"
    assert "off_by_one" in report.kernel
    assert report.block == (7, 0, 0)
    assert report.thread == (1000 - 7 * 128, 0, 0)
    assert report.line == line_of("i <= n")
    assert report.file.endswith("mine.cu")
    assert report.text.strip() == "if (i <= n) y[i] = x[i];"
    assert report.allocation.size == 4000
    assert report.address == report.allocation.end
    assert report.size == 4
    assert report.lanes == 1
    text = str(report)
    for part in (
        "kernel off_by_one, block (7, 0, 0), thread (104, 0, 0)",
        "global load of 4 bytes",
        hex(report.address),
        "0 bytes past the end",
        "4000 bytes",
        "by the test",
    ):
        assert part in text
    assert f"mine.cu:{report.line}" in text
    assert "if (i <= n) y[i] = x[i];" in text


def test_inlined_line_and_its_caller(wrong):
    report = report_of(wrong, "helper", 1, 32, np.zeros(32, np.float32), np.zeros(32, np.float32), 32)
    assert report.line == line_of("return p[i]")
    assert report.thread == (0, 0, 0)
    assert [p.line for p in report.places] == [line_of("return p[i]"), line_of("fetch(x, i - 1)")]
    assert "4 bytes before" in report.detail


def test_misaligned_vector(wrong):
    report = report_of(wrong, "misaligned", 1, 32, np.zeros(200, np.float32), np.zeros((32, 4), np.float32))
    assert report.kind == "misaligned"
    assert report.size == 16
    assert report.lanes == 32
    assert report.line == line_of("*(const float4*)")


def test_misaligned_where_all_lanes_read_the_same(wrong):
    report = report_of(wrong, "misaligned_for_all", 1, 32, np.zeros(200, np.int8), np.zeros(32, np.float32))
    assert (report.kind, report.size, report.lanes) == ("misaligned", 4, 32)
    assert report.address % 4 == 2


def test_use_after_free(wrong):
    x = wrong.upload(np.zeros(64, np.float32))
    wrong.space.free(x.address, "at line 12")
    report = report_of(wrong, "helper", 1, 32, x.address + 4, np.zeros(32, np.float32), 32)
    assert report.kind == "use after free"
    assert "freed at line 12" in str(report)


def test_null_pointer(wrong):
    report = report_of(wrong, "off_by_one", 1, 32, 0, np.zeros(32, np.float32), 31)
    assert "null pointer" in report.detail
    assert report.lanes == 32


@pytest.mark.parametrize(
    ("k", "kind", "lanes"), [(1, "out of bounds", 1), (10, "out of bounds", 10), (-1, "out of bounds", 1)]
)
def test_shared_overrun(wrong, k, kind, lanes):
    report = report_of(wrong, "shared_overrun", 3, 64, np.zeros(64, np.float32), k)
    assert (report.kind, report.space, report.lanes) == (kind, "shared", 3 * lanes)
    assert report.line == line_of("s[threadIdx.x + k] = 1")
    assert "the block has 256 bytes" in report.detail


def test_shared_misaligned(wrong):
    report = report_of(wrong, "shared_misaligned", 1, 32, np.zeros(64, np.float32), 6)
    assert (report.kind, report.space) == ("misaligned", "shared")


def test_local_overrun(wrong):
    report = report_of(wrong, "local_overrun", 1, 32, np.zeros(64, np.int32), 5)
    assert (report.kind, report.space, report.thread) == ("out of bounds", "local", (3, 0, 0))
    assert report.line == line_of("a[k + threadIdx.x]")


def test_atomic_out_of_bounds(wrong):
    report = report_of(wrong, "atomic_wild", 1, 32, np.zeros(8, np.int32), 8)
    assert report.kind == "out of bounds"
    assert report.line == line_of("atomicAdd(x + k, 1)")


def test_lanes_may_point_everywhere(wrong):
    rows = [wrong.upload(np.arange(4, dtype=np.float32) + 10 * k) for k in range(40)]
    host = np.array([7, 8, 9], np.float32)
    pointers = np.array([r.address for r in rows] + [wrong.space.register_host(host).address], np.uint64)
    y = np.zeros(41, np.float32)
    counters = wrong.launch("spread_pointers", 1, 41, pointers, y)
    assert y.tolist() == [10 * k + 2 for k in range(40)] + [9]
    # 41 pointers of 8 bytes fill 11 sectors; each row is one sector
    assert counters.global_load_sectors == 11 + 41
    pointers[17] += 1 << 20
    report = report_of(wrong, "spread_pointers", 1, 41, pointers, y)
    assert report.thread == (17, 0, 0)
    assert report.lanes == 1


@pytest.mark.parametrize("name", ["hang", "forever"])
def test_hanging_kernels_are_reported(wrong, name):
    report = report_of(wrong, name, 2, 64, np.zeros(1, np.int32))
    assert report.kind == "hang"
    assert report.line in (line_of("while (*flag == 0)"), line_of("for (;;)"))


def test_deadlock_is_reported(wrong):
    report = report_of(wrong, "half_barrier", 2, 64, np.zeros(64, np.int32))
    assert report.kind == "deadlock"
    assert any("32 threads" in note for note in report.notes)


def test_barrier_in_a_parted_warp(wrong):
    x = np.zeros(128, np.int32)
    x[:64] = np.arange(64) % 2
    report = report_of(wrong, "parted_barrier", 1, 64, x.copy())
    assert report.kind == "divergent barrier"
    assert report.line == line_of("if (x[t]) { x[t] = 3")
    # hardware allows whole warps on both sides
    x[:64] = np.arange(64) >= 32
    wrong.launch("parted_barrier", 1, 64, x)
    assert x[64:].tolist() == [2] * 32 + [1] * 32


def test_a_barrier_per_branch(wrong):
    x = np.zeros(128, np.int32)
    x[:64] = np.arange(64) >= 32
    report = report_of(wrong, "own_barriers", 1, 64, x.copy())
    assert report.kind == "divergent barrier"
    assert "undefined in CUDA C++, but defined in PTX" in report.detail
    assert report.notes == ["checks= without 'syncthreads' does not report it"]
    lines = {line_of("x[t] = 5; __sync"), line_of("x[t] = 6; __sync")}
    assert {report.line, report.others[0].places[0].line} == lines
    wrong.launch("own_barriers", 1, 64, x, checks=CHECKS - {"syncthreads"})
    assert x[64:].tolist() == [2] * 32 + [1] * 32
    # lanes of one warp are reported without "syncthreads" too
    x[:64] = np.arange(64) % 2
    with pytest.raises(KernelFault, match="lanes of one warp"):
        wrong.launch("own_barriers", 1, 64, x, checks=CHECKS - {"syncthreads"})


def test_waiting_for_a_block_that_has_not_started(wrong):
    flags = np.zeros(3000, np.int32)
    wrong.launch("waits_for_later", 3000, 32, flags)
    assert flags.all()
    report = report_of(wrong, "waits_for_later", 20_000, 32, np.zeros(20_000, np.int32))
    assert report.kind == "hang"
    assert any("cooperative launch" in note for note in report.notes)


def test_a_failed_launch_leaves_the_module_usable(wrong):
    report_of(wrong, "off_by_one", 1, 32, 0, np.zeros(32, np.float32), 31)
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    wrong.launch("off_by_one", 1, 32, x, y, 7)
    assert np.array_equal(x, y)


# ---- counters ----

COUNTED = r"""
__global__ void strided(const float* x, float* y, int step) { int t = blockIdx.x * blockDim.x + threadIdx.x;
    y[t] = x[t * step]; }
__global__ void permuted(const float* x, const int* p, float* y) {
    int t = blockIdx.x * blockDim.x + threadIdx.x; y[t] = x[p[t]]; }
template <typename T> __device__ void banks(float* out, int step) {
  extern __shared__ char raw[]; T* s = (T*)raw; int t = threadIdx.x;
  s[t * step] = T(); __syncthreads();
  out[t] = (float)*(const unsigned char*)&s[t * step];
}
__global__ void store4(float* out, int step) { extern __shared__ float s[]; s[threadIdx.x * step] = 1; }
__global__ void store8(float* out, int step) { extern __shared__ double d[]; d[threadIdx.x * step] = 1; }
__global__ void store16(float* out, int step) { extern __shared__ float4 q[];
    q[threadIdx.x * step] = make_float4(1, 2, 3, 4); }
__global__ void store1(float* out, int step) { extern __shared__ char c[]; c[threadIdx.x * step] = 1; }
__global__ void column(float* out, int pad) { extern __shared__ float s[];
    s[threadIdx.x * (32 + pad) + threadIdx.y] = 1; }
__global__ void part(float* y, int n) {
  int t = threadIdx.x; if (t < n) y[t] = 1;
}
__global__ void lines(float* x, int n) {
  int t = threadIdx.x;
  if (t < n)
    x[t] += 1;
  x[2 * t] = 3;
}
"""


@pytest.fixture(scope="module")
def counted():
    return SimDevice(COUNTED)


def test_dynamic_shared_memory_that_the_launch_does_not_have(counted):
    report = report_of(counted, "store4", 1, 32, np.zeros(1, np.float32), 1)
    assert report.kind == "out of bounds"
    expected = (
        "shared store of 4 bytes at byte 0 of shared memory; the block has 0 bytes: launch the kernel with shared="
    )
    assert expected in str(report)


def launch_on(device, name, grid, block, *args, **more):
    """Launch on arrays at a chosen offset: (array, bytes to skip)."""
    params = []
    for value, (_, size) in zip(args, device.kernel(name).params, strict=True):
        if isinstance(value, tuple):
            array, skip = value
            value = device.upload(np.zeros(array.nbytes + 64, np.uint8)).address + skip
        params.append(int(value).to_bytes(size, "little"))
    grid, block = ((*v, 1, 1)[:3] if isinstance(v, tuple) else (v, 1, 1) for v in (grid, block))
    return launch(device.kernel(name), grid, block, more.get("shared", 0), params, chip=chip("sm_90"))


@pytest.mark.parametrize("block", [32, 64, 48, 7])
@pytest.mark.parametrize("skip", [0, 4, 20, 32])
@pytest.mark.parametrize("step", [1, 2, 3, 8, 32])
def test_sectors_against_counting_by_hand(counted, block, skip, step):
    grid = 3
    x, y = np.zeros(grid * block * step + 8, np.float32), np.zeros(grid * block, np.float32)
    counters = launch_on(counted, "strided", grid, block, (x, skip), (y, 0), step)
    sectors = requests = 0
    for b in range(grid):
        for first in range(0, block, 32):
            lanes = b * block + np.arange(first, min(first + 32, block))
            sectors += len(np.unique((lanes * step * 4 + skip) // 32))
            requests += 1
    assert counters.global_load_requests == counters.global_store_requests == requests
    assert counters.global_load_sectors == sectors
    assert counters.global_load_bytes == 4 * grid * block
    assert counters.threads == grid * block


@pytest.mark.parametrize("block", [64, 50])
def test_sectors_of_random_gathers(counted, block):
    n = 4 * block
    p = np.random.default_rng(block).integers(0, n, n).astype(np.int32)
    x, y = np.random.default_rng(1).random(n, np.float32), np.zeros(n, np.float32)
    counters = counted.launch("permuted", 4, block, x, p, y)
    assert np.array_equal(y, x[p])
    rows = p.reshape(4, block)
    by_hand = sum(len(np.unique(row[w : w + 32] // 8)) for row in rows for w in range(0, block, 32))
    index = np.arange(n, dtype=np.int64).reshape(4, block)
    by_hand += sum(len(np.unique(row[w : w + 32] // 8)) for row in index for w in range(0, block, 32))
    assert counters.global_load_sectors == by_hand


@pytest.mark.parametrize(
    ("name", "step", "wavefronts", "conflicts"),
    [
        ("store4", 0, 1, 0),
        ("store4", 1, 1, 0),
        ("store4", 2, 2, 1),
        ("store4", 3, 1, 0),
        ("store4", 8, 8, 7),
        ("store4", 32, 32, 31),
        ("store4", 33, 1, 0),
        ("store8", 1, 2, 0),
        ("store8", 2, 4, 2),
        ("store8", 16, 32, 30),
        ("store16", 1, 4, 0),
        ("store16", 2, 8, 4),
        ("store1", 1, 1, 0),
        ("store1", 4, 1, 0),
        ("store1", 128, 32, 31),
    ],
)
@pytest.mark.parametrize("grid", [1, 5])
def test_shared_wavefronts(counted, name, step, wavefronts, conflicts, grid):
    counters = counted.launch(name, grid, 32, 0, step, shared=20_000)
    assert counters.shared_store_requests == grid
    assert counters.shared_store_wavefronts == wavefronts * grid
    assert counters.bank_conflicts == conflicts * grid


@pytest.mark.parametrize("pad", [0, 1])
def test_padding_a_tile_removes_conflicts(counted, pad):
    counters = counted.launch("column", 2, (32, 8), 0, pad, shared=4 * 32 * 33)
    assert counters.bank_conflicts == (0 if pad else 31 * 8 * 2)


def _passes(lane_offsets, size):
    """Return the passes of lanes that access together: the number of words in the busiest bank."""
    offsets = np.array([offset for offset in lane_offsets if offset is not None])
    words = np.unique((offsets[:, None] // 4 + np.arange(size // 4)).ravel()) if len(offsets) else np.array([0])
    return int(np.bincount(words % 32).max()) if len(offsets) else 0


def _neighbours_share(row):
    lanes = range(len(row))
    pairs = [[(row[lane], row[lane ^ step]) for lane in lanes] for step in (1, 2)]
    return any(all(a is None or b is None or a == b for a, b in step) for step in pairs)


@pytest.mark.parametrize("load", [False, True])
def test_wavefronts_of_partial_warps_by_hand(load):
    rng = np.random.default_rng(0)
    geometry = Geometry(1, (100, 1, 1))
    for size, group in ((4, 32), (8, 16), (16, 8)):
        for _ in range(40):
            lanes = np.sort(rng.choice(100, rng.integers(1, 100), replace=False))
            shared = rng.integers(0, 8, 100)[np.arange(100) // 4 * 2 + np.arange(100) % 2]  # by every second lane
            offsets = (shared if rng.random() < 0.5 else rng.integers(0, 200, 100)) * size
            place = [int(offsets[lane]) if lane in lanes else None for lane in range(128)]
            expected = fewest = worst = 0
            for warp in range(0, 128, 32):
                passes = 0
                for first in range(warp, warp + 32, 2 * group):
                    both = place[first : min(first + 2 * group, warp + 32)]
                    parts = [_passes(both[at : at + group], size) for at in range(0, len(both), group)]
                    worst = max(worst, *parts)
                    together = load and size > 4 and _passes(both, size) <= 1 and _neighbours_share(both)
                    passes += max(parts) if together else sum(parts)
                expected += passes
                fewest += min(passes, -(-sum(at is not None for at in place[warp : warp + 32]) * size // 128))
            found = wavefronts(LaneSet(geometry, lanes, len(lanes)), offsets[lanes], size, load)
            assert found == (expected, fewest, worst)


@pytest.mark.parametrize("load", [False, True])
@pytest.mark.parametrize("size", [1, 4, 8, 16])
def test_lanes_at_one_address_count_as_any_others(size, load):
    """They have their own code path, whose counts must be the same."""
    rng = np.random.default_rng(0)
    for threads in (32, 48, 64):
        for count in (1, threads // 3, threads - 1, threads):
            lanes = np.sort(rng.choice(threads, count, replace=False))
            here = LaneSet(Geometry(1, (threads, 1, 1)), lanes if count < threads else None, count)
            tally = Tally()
            count_same_word(tally, here, size, load)
            expected = wavefronts(here, np.zeros(count, np.int64), size, load)
            assert (tally.wavefronts, tally.ideal_wavefronts, tally.worst_ways) == expected


def test_branches(counted):
    y = np.zeros(128, np.float32)
    counters = counted.launch("part", 3, 128, y, 40)
    assert counters.branches == 12
    assert counters.divergent_branches == 3
    assert counters.branch_efficiency == 0.75
    assert counters.global_store_requests == 6
    assert counters.instructions * 32 > counters.lane_instructions


def test_counters_by_line(counted):
    x = np.zeros(256, np.float32)
    counters = counted.launch("lines", 2, 64, x, 32)
    lines = COUNTED.splitlines()
    by_text = {
        lines[n - 1].strip(): share for (file, n), share in counters.per_line.items() if file.endswith("test.cu")
    }
    assert by_text["x[t] += 1;"].global_load_requests == 2
    assert by_text["x[2 * t] = 3;"].global_store_sectors == 2 * 2 * 8
    assert by_text["if (t < n)"].branches == 4
    assert sum(share.instructions for share in counters.per_line.values()) == counters.instructions


def test_counters_add_up_and_can_be_left_out(counted):
    x = np.zeros(256, np.float32)
    total = counted.launch("lines", 2, 64, x, 32)
    once = total.as_dict()
    total.merge(counted.launch("lines", 2, 64, x, 32))
    twice = total.as_dict()
    for name in ("launches", "blocks", "threads", "instructions", "global_load_sectors", "branches"):
        assert twice[name] == 2 * once[name] > 0
    assert twice["sectors_per_request"] == once["sectors_per_request"]
    assert sum(share.instructions for share in total.per_line.values()) == total.instructions
    bare = counted.launch("lines", 2, 64, x, 32, counters=False)
    assert bare.instructions == once["instructions"]
    assert bare.global_load_requests == 0


def test_access_knows_its_shape():
    access = MemoryAccess(Site(0, Instruction("ld", ("global", "v4", "u32"), ()), "load"), "global", 8, 4, 4)
    assert (access.size, 1 << access.shift, access.dtype) == (16, 16, np.uint32)


@pytest.mark.parametrize(
    ("mangled", "plain"),
    [
        ("_Z10off_by_onePKfPfi", "off_by_one"),
        ("_ZN3foo3barEPi", "foo::bar"),
        ("_Z1kILi256EEvPKfPf", "k"),
        ("_ZN12_GLOBAL__N_11kEv", "k"),
        ("plain_c", "plain_c"),
    ],
)
def test_names_in_reports(mangled, plain):
    assert plain_name(mangled) == plain


WRAPPED = r"""
__global__ void negative(const int* index, float* y) {
  __shared__ float s[1024];
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) s[i] = i;
  __syncthreads();
  y[threadIdx.x] = s[index[threadIdx.x] + 600];
}
__global__ void one(int index, float* y) {
  __shared__ float s[1024];
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) s[i] = i;
  __syncthreads();
  if (index < 0) y[threadIdx.x] = s[index + 600];
}
__global__ void wide(const int* index, float4* y) {
  __shared__ float4 s[256];
  s[threadIdx.x] = make_float4(threadIdx.x, 1, 2, 3);
  __syncthreads();
  s[index[threadIdx.x] + 200].y += 1;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
"""


@pytest.fixture(scope="module")
def wrapped():
    return SimDevice(WRAPPED)


def test_shared_addresses_wrap_at_32_bits(wrapped):
    index = np.arange(-600, -536, dtype=np.int32)
    y = np.zeros(64, np.float32)
    wrapped.launch("negative", 1, 64, index, y)
    assert y.tolist() == list(range(64))
    index[3:50] += 900
    counters = wrapped.launch("negative", 1, 64, index, y)
    assert y.tolist() == (index + 600).tolist()
    assert counters is not None
    wrapped.launch("one", 1, 64, -599, y)
    assert (y == 1).all()
    z = np.zeros((256, 4), np.float32)
    wrapped.launch("wide", 1, 256, np.arange(-200, 56, dtype=np.int32), z)
    assert (z == np.stack([np.arange(256), *np.ones((3, 256)) * [[2], [2], [3]]], axis=1)).all()


def test_a_wrapped_address_out_of_bounds_is_named_by_its_byte(wrapped):
    index = np.arange(-600, -536, dtype=np.int32)
    index[7] = -700
    with pytest.raises(KernelFault, match="byte -400 of shared memory; the block has 4096 bytes"):
        wrapped.launch("negative", 1, 64, index, np.zeros(64, np.float32))
    index[7] = 500
    with pytest.raises(KernelFault, match="byte 4400 of shared memory"):
        wrapped.launch("negative", 1, 64, index, np.zeros(64, np.float32))


NAMED = """.version 8.8
.target sm_90a
.address_size 64
.shared .align 16 .b8 module[64];
.visible .entry k(.param .u64 p)
{
    .reg .b32 %r<6>;
    .reg .b64 %rd<2>;
    .shared .align 16 .b8 own[64];
    .local .align 16 .b8 mine[32];
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, %tid.x;
    st.v2MODULE.u32 [module+8], {40, 41};
    stOWN.u32 [own+4], 5;
    stMINE.u32 [mine+4], %r1;
    red.addMODULE.u32 [module+8], 2;
    atom.addOWN.u32 %r2, [own+4], 3;
    ldMODULE.u32 %r3, [module+8];
    ld.volatileOWN.u32 %r4, [own+4];
    ldMINE.u32 %r5, [mine+4];
    st.global.v4.u32 [%rd1], {%r2, %r3, %r4, %r5};
    LAST
    ret;
}
"""


def named(last="", **spaces):
    spaces = spaces or {"MODULE": "", "OWN": "", "MINE": ""}
    text = NAMED.replace("LAST", last)
    for word, space in spaces.items():
        text = text.replace(word, space)
    return SimDevice(text, ptx=True)


def test_an_access_by_name_is_to_the_state_space_of_the_variable():
    plain, explicit = named(), named(MODULE=".shared", OWN=".shared", MINE=".local")
    counted = []
    for device in (plain, explicit):
        out = np.zeros(4, np.uint32)
        counters = device.launch("k", 1, 1, out)
        assert out.tolist() == [5, 42, 8, 0]
        counted.append({key: value for key, value in counters.as_dict().items() if "line" not in key})
    assert counted[0] == counted[1]


@pytest.mark.parametrize(
    ("last", "text"),
    [
        ("ld.u32 %r3, [own+256];", "shared"),
        ("st.u32 [mine+64], %r3;", "local"),
        ("atom.add.u32 %r3, [module+256], 1;", "shared"),
        ("ld.v2.u32 {%r3, %r4}, [own+4];", "shared"),
    ],
)
def test_a_wrong_access_by_name_is_reported_in_the_space_of_the_variable(last, text):
    with pytest.raises(KernelFault) as caught:
        named(last).launch("k", 1, 1, np.zeros(4, np.uint32))
    report = caught.value.report
    assert report.space == text
    assert report.kind == ("misaligned" if "v2" in last else "out of bounds")


def test_accesses_by_name_race():
    with pytest.raises(KernelFault, match=r"data race: .* of shared memory") as caught:
        named().launch("k", 1, 64, np.zeros(4, np.uint32), checks=frozenset({"race"}))
    assert "red.add.u32 [module+8], 2;" in str(caught.value)
