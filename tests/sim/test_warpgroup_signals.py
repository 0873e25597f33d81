"""Any thread of a warpgroup may signal, after its own wait for a product, that the product's operands may be
overwritten: a group of wgmma belongs to the whole warpgroup."""

from __future__ import annotations

import numpy as np
import pytest
from ml_dtypes import bfloat16
from paths import TESTS

import cudakit
from cudakit.errors import DeviceFault

SOURCE = """
#include "small.cuh"

// One warpgroup multiplies; then a fifth warp, or the signalling thread itself, overwrites B.
template <int SIGNALS, bool ITSELF, bool WAITS>
__global__ void __launch_bounds__(160) product(const Element* a, const Element* b, float* y) {
    __shared__ Operands operands;
    __shared__ uint64 empty;
    start(&empty, 1);
    put_operands(operands, a, b);
    if (threadIdx.x >= 128) {
        if (threadIdx.x == 128 && !ITSELF) {
            barrier_wait(&empty, 0);
            operands.b[0] = a[0];
        }
        return;
    }
    float sums[4] = {};
    wgmma_fence();
    multiply(sums, wgmma_operand(operands.a), wgmma_operand(operands.b));
    wgmma_commit();
    if (WAITS) wgmma_wait<0>();
    if (threadIdx.x == SIGNALS) {
        if (ITSELF)
            operands.b[0] = a[0];
        else
            barrier_arrive(&empty);
    }
    if (!WAITS) wgmma_wait<0>();
    wgmma_result(sums);
    store_sums(y, sums);
}
"""


def run(device: cudakit.Device, signals: int, itself: bool, waits: bool) -> None:
    name = f"product<{signals}, {str(itself).lower()}, {str(waits).lower()}>"
    module = device.compile(source=SOURCE, names=[name], include=[TESTS / "planted" / "hopper"])
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, size).astype(bfloat16) for size in ((64, 64), (8, 64)))
    y = device.empty((64, 8), np.float32)
    module[name].launch(device.default_stream, grid=1, block=160, args=(device.array(a), device.array(b), y))
    np.testing.assert_array_equal(y.numpy(), a.astype(np.float32) @ b.astype(np.float32).T)


@pytest.mark.parametrize("itself", [False, True], ids=["other warp", "same thread"])
@pytest.mark.parametrize("signals", [0, 8, 40, 127])
def test_a_thread_that_has_waited_may_signal_for_its_warpgroup(signals: int, itself: bool, sim: cudakit.Device) -> None:
    run(sim, signals, itself, waits=True)


@pytest.mark.parametrize("itself", [False, True], ids=["other warp", "same thread"])
@pytest.mark.parametrize("signals", [0, 8, 40, 127])
def test_a_thread_that_has_not_waited_may_not(signals: int, itself: bool, sim: cudakit.Device) -> None:
    with pytest.raises(DeviceFault, match=r"overwritten in flight|data race"):
        run(sim, signals, itself, waits=False)


ORDINARY = """
#include "small.cuh"

// The first warp of a warpgroup stores, and another one reads, with nothing but a product in between.
__global__ void __launch_bounds__(128) ordinary(const Element* a, const Element* b, float* y) {
    __shared__ Operands operands;
    __shared__ float shared[32];
    put_operands(operands, a, b);
    if (threadIdx.x < 32) shared[threadIdx.x] = threadIdx.x;
    float sums[4] = {};
    wgmma_fence();
    multiply(sums, wgmma_operand(operands.a), wgmma_operand(operands.b));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_result(sums);
    if (threadIdx.x >= 96) sums[0] += shared[threadIdx.x - 96];
    store_sums(y, sums);
}
"""


def test_a_product_orders_no_ordinary_accesses(sim: cudakit.Device) -> None:
    module = sim.compile(source=ORDINARY, include=[TESTS / "planted" / "hopper"])
    a, b, y = sim.zeros((64, 64), bfloat16), sim.zeros((8, 64), bfloat16), sim.empty((64, 8), np.float32)
    module["ordinary"].launch(sim.default_stream, grid=1, block=128, args=(a, b, y))
    with pytest.raises(DeviceFault, match="data race"):
        y.numpy()
