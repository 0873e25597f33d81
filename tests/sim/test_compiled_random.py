"""Random sequences of accesses to shared and global memory: machine code (``sim/compiled``) runs none of those that the
interpreter reports, and has its results and counts for all others that it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiled_runs import run
from simdevice import SimDevice

from cudakit.sim.lockstep.report import KernelFault
from cudakit.sim.machine import engine

pytest.importorskip("llvmlite", reason="machine code needs llvmlite, of the extra 'compiled'")

SOURCE = r"""
#include <cuda_pipeline.h>
extern "C" __global__ void steps(const int* operations, const int* elements, const int* x, int* y, int count) {
    __shared__ int s[128];
    const int t = threadIdx.x;
    s[t] = t;
    s[t + 64] = 3 * t;
    __syncthreads();
    int v = t;
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
        const int operation = operations[k], i = elements[k * 64 + t];
        const bool on = i >= 0;
        if (operation == 0) {
            if (on) s[i] = v;
        } else if (operation == 1) {
            if (on) v += s[i];
        } else if (operation == 2) {
            if (on) atomicAdd(&s[i], v & 7);
        } else if (operation == 3) {
            __syncthreads();
        } else if (operation == 4) {
            if (on) __pipeline_memcpy_async(&s[i], &x[(i + k) & 127], 4);
            __pipeline_commit();
        } else if (operation == 5) {
            __pipeline_wait_prior(0);
        } else if (operation == 6) {
            __pipeline_wait_prior(1);
        } else if (operation == 7) {
            __syncwarp();
        } else if (operation == 8) {
            if (on) atomicMax(&y[64 + i], v);
        } else if (operation == 9) {
            if (on) y[64 + i] = v;
        } else if (operation == 10) {
            if (on) v ^= y[64 + i];
        }
    }
    if (blockIdx.x == 0) y[t] = v;
}
"""
BARRIER, OPERATIONS = 3, range(11)


def sequence(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random operations, and the element that each thread accesses at each; -1 if it does not take part."""
    count = int(rng.integers(1, 9))
    operations = rng.choice([*OPERATIONS, BARRIER, BARRIER], count).astype(np.int32)
    threads = np.arange(64)
    elements = np.empty((count, 64), np.int32)
    for row in elements:
        orders = (threads, threads[::-1], threads ^ 1, threads // 2, rng.integers(0, 128, 64), rng.integers(0, 128))
        row[:] = (orders[rng.integers(len(orders))] + 64 * rng.integers(2)) % 128
        if rng.integers(2):
            row[rng.integers(0, 64, 20)] = -1
        if rng.integers(3) == 0:
            row[rng.integers(0, 33) :] = -1
    return operations, elements


def outcome(monkeypatch: pytest.MonkeyPatch, device: SimDevice, how: str, blocks: int, *args: Any) -> Any:
    """The results and counts of a launch; None if it is reported."""
    try:
        results, counters = run(monkeypatch, device, how, "steps", blocks, 64, *args)
    except KernelFault:
        return None
    return results, counters.as_dict()


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("cases", [100, pytest.param(2000, marks=pytest.mark.long)])
def test_reports_and_results_are_the_interpreters(monkeypatch, blocks: int, cases: int) -> None:
    rng, device = np.random.default_rng(cases + blocks), SimDevice(SOURCE)
    one = engine.engine_of(device.kernel("steps"))
    reported = 0
    for _ in range(cases):
        operations, elements = sequence(rng)
        x = rng.integers(0, 100, 128).astype(np.int32)
        args = (operations, elements, x, np.zeros(192, np.int32), len(operations))
        expected = outcome(monkeypatch, device, "interpreter", blocks, *args)
        one.left, before = 0, one.compiled_launches
        found = outcome(monkeypatch, device, "compiled", blocks, *args)
        assert found == expected, operations
        if expected is None:
            reported += 1
            assert one.compiled_launches == before, operations
    assert not one.refusal
    assert reported > cases // 5
    assert one.compiled_launches > cases // 5
