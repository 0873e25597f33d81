"""Large grids run in bounded memory: the simulated device runs one batch of blocks at a time."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import cudakit

SOURCE = """
__global__ void halves(const unsigned char* x, unsigned char* y) {
    __shared__ unsigned char all[32];
    all[threadIdx.x] = x[blockIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = all[31] / 2;
}
"""
BLOCKS = 1 << 20
LIMIT = 256 << 20  # bytes; one register of every lane of the grid would take 128 MB


@pytest.mark.long
@pytest.mark.parametrize("checks", [True, False], ids=["all checks", "no checks"])
def test_a_million_blocks(checks: bool) -> None:
    host = np.arange(BLOCKS, dtype=np.uint32).astype(np.uint8)
    options = {} if checks else {"checks": ()}
    with cudakit.Device("sim", fresh=True, **options) as device:
        x, y = device.array(host), device.zeros((BLOCKS,), np.uint8)
        kernel = device.compile(source=SOURCE, name="halves.cu")["halves"]
        device.synchronize()
        tracemalloc.start()
        try:
            kernel.launch(device.default_stream, grid=BLOCKS, block=32, args=(x, y))
            device.synchronize()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        np.testing.assert_array_equal(y.numpy(), host // 2)
    assert peak < LIMIT, f"{peak >> 20} MB at most during the launch"
