"""Machine code (``sim/compiled``) and the interpreter have the same results, counts and reports."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from compiled_runs import both
from simdevice import ALL_CHECKS, SimDevice

import cudakit
from cudakit import ops
from cudakit.sim.compiled import kept_code
from cudakit.sim.lockstep.report import KernelFault
from cudakit.sim.machine import engine

pytest.importorskip("llvmlite", reason="machine code needs llvmlite, of the extra 'compiled'")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch) -> None:
    """No machine code of earlier processes, or of other tests."""
    monkeypatch.setattr(kept_code, "_store", None)


SOURCE = r"""
extern "C" __global__ void halves(const unsigned short* x, unsigned char* y, short* z, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = x[i] >> 3;
    z[i] = (short)(x[i] * 5) - y[i / 2 * 2 == i ? i : i];
}
extern "C" __global__ void reverse(float* y, const float* x, int n) {
    __shared__ float s[256];
    const int t = threadIdx.x;
    s[t] = x[blockIdx.x * 256 + t];
    __syncthreads();
    if (t < n) y[blockIdx.x * 256 + t] = s[255 - t] * (t % 3 ? 0.5f : rsqrtf(fabsf(s[t])));
}
extern "C" __global__ void bytes(const unsigned char* x, unsigned char* y) {
    __shared__ unsigned char s[64];
    const int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    y[t] = s[(t * 7 + 1) % 64];
}
extern "C" __global__ void divergent(const int* x, int* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int a = x[i], steps = 0;
    while (a != 1 && steps < 50) {
        a = a % 2 ? 3 * a + 1 : a / 2;
        ++steps;
    }
    const unsigned active = __activemask();
    y[i] = steps * 64 + __popc(active);
}
extern "C" __global__ void warp_sum(const float* x, float* y) {
    const int t = threadIdx.x;
    float v = x[blockIdx.x * 64 + t];
    for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d);
    const unsigned odd = __ballot_sync(~0u, t & 1);
    if (t % 32 == 0) y[blockIdx.x * 2 + t / 32] = v + (odd == 0xAAAAAAAAu);
}
extern "C" __global__ void some_rows(const float* x, float* y, int n) {
    if (threadIdx.x >= 3) return;
    float s = 0;
#pragma unroll 1
    for (int i = 0; i < n; ++i) s += x[i % 64];
    y[threadIdx.x] = s;
}
extern "C" __global__ void guarded(const unsigned* x, unsigned* y, int n) {
    unsigned v = x[threadIdx.x];
    asm("{ .reg .pred p; setp.lt.s32 p, %1, %2; @p add.f32 %0, %0, 0f3F800000; }" : "+r"(v) : "r"(threadIdx.x), "r"(n));
    y[threadIdx.x] = v;
}
extern "C" __global__ void sparse(float* x, int n) { if (threadIdx.x % n == 6) x[threadIdx.x] += 1; }
extern "C" __global__ void increment(float* x, int rounds) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i];
    for (int k = 0; k < rounds; ++k) v += 1.0f;
    x[i] = v;
}
"""

WRONG = r"""
extern "C" __global__ void past_end(float* y, int n) { y[blockIdx.x * blockDim.x + threadIdx.x] = n; }
extern "C" __global__ void last_block(float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = y[i] + 1;
    if (blockIdx.x == 7) y[i + n] = 1;
}
extern "C" __global__ void neighbour(float* y, int n) {
    __shared__ float s[64];
    s[threadIdx.x] = y[threadIdx.x];
    y[threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void write_late(float* y, int n) {
    __shared__ float s[64];
    s[threadIdx.x] = y[threadIdx.x];
    __syncthreads();
    const float v = s[(threadIdx.x + 40) % 64];
    s[threadIdx.x] = v;
    y[threadIdx.x] = v;
}
extern "C" __global__ void blocks_meet(float* y, int n) { y[threadIdx.x] = blockIdx.x; }
extern "C" __global__ void blocks_read(float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = y[(i + 64) % n] + 1;
}
extern "C" __global__ void not_set(float* y, int n) {
    __shared__ float s[64];
    if (threadIdx.x < 40) s[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void half_word(float* y, int n) {
    __shared__ short s[64];
    if (threadIdx.x % 2) s[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void crooked(float* y, int n) {
    y[threadIdx.x] = ((float2*)(y + 1))[threadIdx.x].x;
}
extern "C" __global__ void some_wait(float* y, int n) {
    if (threadIdx.x < 16) __syncthreads();
    y[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] += y[63 - threadIdx.x];
}
extern "C" __global__ void absent(float* y, int n) {
    if (threadIdx.x % 32 < 16) y[threadIdx.x] = __shfl_sync(~0u, y[threadIdx.x], 20);
}
extern "C" __global__ void endless(float* y, int n) {
    for (int i = 0; i < n; ) y[threadIdx.x] = i;
}
"""


@pytest.fixture(scope="module")
def kernels() -> SimDevice:
    return SimDevice(SOURCE)


@pytest.mark.parametrize("n", [1, 33, 250, 256])
def test_narrow_integers_and_early_returns(monkeypatch, kernels, n: int) -> None:
    x = np.random.default_rng(n).integers(0, 1 << 16, 256).astype(np.uint16)
    both(monkeypatch, kernels, "halves", 2, 128, x, np.zeros(256, np.uint8), np.zeros(256, np.int16), n)


@pytest.mark.parametrize("n", [0, 1, 100, 256])
def test_shared_memory_and_branches(monkeypatch, kernels, n: int) -> None:
    x = np.random.default_rng(n).standard_normal(1024).astype(np.float32)
    x[:3] = np.inf, np.nan, 0
    both(monkeypatch, kernels, "reverse", 4, 256, np.zeros(1024, np.float32), x, n)


def test_shared_bytes(monkeypatch, kernels) -> None:
    both(monkeypatch, kernels, "bytes", 1, 64, np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8))


@pytest.mark.parametrize("block", [32, 50, 96])
def test_loops_that_lanes_leave_one_by_one(monkeypatch, kernels, block: int) -> None:
    x = np.arange(1, 201, dtype=np.int32)
    both(monkeypatch, kernels, "divergent", -(-200 // block), block, x, np.zeros(200, np.int32), 200)


@pytest.mark.parametrize("n", [7, 9, 20])
def test_sectors_of_lanes_that_are_far_apart(monkeypatch, kernels, n: int) -> None:
    both(monkeypatch, kernels, "sparse", 1, 64, np.zeros(64, np.float32), n)


def test_shuffles_and_votes(monkeypatch, kernels) -> None:
    x = np.random.default_rng(0).standard_normal(256).astype(np.float32)
    both(monkeypatch, kernels, "warp_sum", 4, 64, x, np.zeros(8, np.float32))


@pytest.mark.parametrize("counters", [True, False])
def test_counts_of_long_loops_are_the_interpreters(monkeypatch, kernels, counters: bool) -> None:
    """The interpreter runs lanes that wait for a long loop on their own after a while, so their exit counts twice."""
    outcomes = []
    for how in ("interpreter", "compiled"):
        monkeypatch.setenv("CUDAKIT_SIM_ENGINE", how)
        y = np.zeros(3, np.float32)
        counts = kernels.launch("some_rows", 1, 32, np.ones(64, np.float32), y, 5000, counters=counters)
        outcomes.append((y.tobytes(), repr(counts) if counters else ""))
    assert outcomes[0] == outcomes[1]
    one = engine.engine_of(kernels.kernel("some_rows"))
    assert (one.left, one.compiled_launches) == ((1, 0) if counters else (0, 1))


def test_a_guarded_result_keeps_the_payload_of_a_nan_in_other_lanes(monkeypatch, kernels) -> None:
    x = np.array([0xFFC00005, 0x7F800001, 0x3F800000, 0x7FC00000] * 8, np.uint32)
    both(monkeypatch, kernels, "guarded", 1, 32, x, np.zeros(32, np.uint32), 14)


GEMM = ("naive", "tiled16", "tiled32", "register_1d", "register_2d", "vec4", "warp_tile")
SOFTMAX = ("tree_reduce", "online_fused", "thread_per_row", "serial_block", "span")


@pytest.mark.parametrize(
    "variant",
    [pytest.param(v, marks=[] if v in ("tiled16", "tree_reduce") else [pytest.mark.long]) for v in GEMM + SOFTMAX],
)
def test_kernels_of_the_ladder(monkeypatch, variant: str) -> None:
    rng = np.random.default_rng(1)
    outcomes = []
    with cudakit.Device("sim", fresh=True) as device:
        a, b = (device.array(rng.standard_normal((70, 66)).astype(np.float32)) for _ in "ab")
        for how in ("interpreter", "compiled"):
            monkeypatch.setenv("CUDAKIT_SIM_ENGINE", how)
            out = device.zeros((70, 70) if variant in GEMM else (70, 66), np.float32)
            with device.counters() as counters:
                if variant in GEMM:
                    ops.gemm(a, b.reshape(66, 70), out=out, variant=variant)
                else:
                    ops.softmax(a, out, variant=variant)
                device.synchronize()
            outcomes.append((out.numpy().tobytes(), repr(counters)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("name", "grid", "n"),
    [
        ("past_end", 9, 1), ("last_block", 8, 1), ("neighbour", 1, 1), ("write_late", 1, 1), ("blocks_meet", 8, 1),
        ("blocks_read", 8, 512), ("not_set", 1, 1), ("half_word", 1, 1), ("crooked", 1, 1), ("some_wait", 1, 1),
        ("absent", 1, 1), ("endless", 1, 4),
    ],
)  # fmt: skip
def test_reports_are_the_interpreters(monkeypatch, name: str, grid: int, n: int) -> None:
    reports = []
    for how in ("interpreter", "compiled"):
        monkeypatch.setenv("CUDAKIT_SIM_ENGINE", how)
        device = SimDevice(WRONG)
        with pytest.raises(KernelFault) as caught:
            device.launch(name, grid, 64, np.zeros(512, np.float32), n, checks=ALL_CHECKS, step_limit=1000)
        reports.append(str(caught.value))
        if how == "compiled":
            one = engine.engine_of(device.kernel(name))
            assert one.left == 1, one.refusal
    assert reports[0] == reports[1]


def test_a_slow_kernel_is_compiled_before_its_next_launch(monkeypatch) -> None:
    monkeypatch.setenv("CUDAKIT_SIM_ENGINE", "auto")
    monkeypatch.setattr(engine, "_PATIENCE", 1e-9)
    monkeypatch.setattr("cudakit.sim.compiled.launch._SECONDS_PER_LINE", 0.0)
    device = SimDevice(SOURCE)
    x = np.zeros(64, np.float32)
    for launch in range(3):
        device.launch("increment", 1, 64, x, 5, checks=ALL_CHECKS)
        assert engine.engine_of(device.kernel("increment")).compiled_launches == launch
    assert (x == 15).all()


def test_a_long_launch_starts_again_in_machine_code(monkeypatch) -> None:
    """The blocks that the interpreter has run already are not run twice."""
    monkeypatch.setenv("CUDAKIT_SIM_ENGINE", "auto")
    monkeypatch.setattr(engine, "_PATIENCE", 0.0)
    monkeypatch.setattr(engine, "_WORTH", 0.0)
    device = SimDevice(SOURCE)
    x = np.zeros(1 << 16, np.float32)
    counters = device.launch("increment", 256, 256, x, 5, checks=ALL_CHECKS)
    assert engine.engine_of(device.kernel("increment")).compiled_launches == 1
    assert (x == 5).all()
    monkeypatch.setenv("CUDAKIT_SIM_ENGINE", "interpreter")
    assert repr(device.launch("increment", 256, 256, x, 5, checks=ALL_CHECKS)) == repr(counters)


@pytest.mark.parametrize("how", ["interpreter", "compiled"])
def test_a_dropped_module_is_freed(monkeypatch, how: str) -> None:
    """The records of its kernels do not keep it alive, nor the memory of its device."""
    monkeypatch.setenv("CUDAKIT_SIM_ENGINE", how)
    device = SimDevice(SOURCE)
    device.launch("increment", 1, 64, np.zeros(64, np.float32), 1, checks=ALL_CHECKS)
    assert engine.engine_of(device.kernel("increment")).compiled_launches == (how == "compiled")
    module = weakref.ref(device.module)
    del device
    gc.collect()
    assert module() is None


def test_an_unknown_engine_is_refused(monkeypatch, kernels) -> None:
    monkeypatch.setenv("CUDAKIT_SIM_ENGINE", "fast")
    with pytest.raises(ValueError, match="CUDAKIT_SIM_ENGINE='fast' is unknown; it may be auto, interpreter, compiled"):
        kernels.launch("increment", 1, 64, np.zeros(64, np.float32), 1)


def test_an_old_llvmlite_counts_as_none(monkeypatch) -> None:
    monkeypatch.setattr(engine, "_llvmlite", lambda: "0.43.0")
    engine._installed.cache_clear()
    try:
        monkeypatch.delenv("CUDAKIT_SIM_ENGINE", raising=False)
        assert engine.mode() == "interpreter"
    finally:
        engine._installed.cache_clear()


def test_without_llvmlite_the_interpreter_runs(monkeypatch, kernels) -> None:
    monkeypatch.setattr(engine, "_installed", lambda: False)
    monkeypatch.delenv("CUDAKIT_SIM_ENGINE", raising=False)
    assert engine.mode() == "interpreter"
    monkeypatch.setenv("CUDAKIT_SIM_ENGINE", "compiled")
    with pytest.raises(ValueError, match="needs llvmlite"):
        kernels.launch("increment", 1, 64, np.zeros(64, np.float32), 1)
