"""ex2, rcp and div with .approx and .full: the bits of an H200 for operands of all magnitudes, in both engines."""

from __future__ import annotations

import numpy as np
import pytest
from approximations import CASES, SOURCE
from paths import ROOT

import cudakit
from cudakit.sim.values import measured

RECORDED = ROOT / "tests" / "data" / "approximations_h200.npz"


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
def test_results_have_the_bits_of_an_h200(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAKIT_SIM_ENGINE", engine)
    recorded = np.load(RECORDED)
    x, z = recorded["x"], recorded["z"]
    names = [f"approximate<{number}>" for number in range(len(CASES))]
    with cudakit.Device("sim", fresh=True) as device:
        module = device.compile(source=SOURCE, name="approximations.cu", names=names)
        a, b = device.array(x), device.array(z)
        for name, case in zip(names, CASES, strict=True):
            y = device.empty_like(a)
            blocks = -(-x.size // 256)
            module[name].launch(device.default_stream, grid=blocks, block=256, args=(a, b, y, x.size))
            different = np.flatnonzero(y.numpy().view(np.uint32) != recorded[case])
            assert not len(different), (case, x[different[:5]], z[different[:5]], y.numpy()[different[:5]])


def test_tables_stay_within_the_error_bounds_of_the_ptx_isa() -> None:
    """At most 2 ulp for ex2 and 1 for rcp, for every fraction."""
    fractions = np.arange(1 << measured.BITS) / (1 << measured.BITS)
    for name, exact, most in (("ex2", np.exp2(fractions), 2), ("rcp", 1 / (1 + fractions), 1)):
        nearest = exact.astype(np.float32).view(np.int32).astype(np.int64)
        assert np.abs(measured.table(name).astype(np.int64) - nearest).max() <= most


UNIFORM = r"""
extern "C" __global__ void uniform(float* y, float x) {
    float r;
    asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    asm("rcp.approx.f32 %0, %1;" : "=f"(x) : "f"(r));
    y[threadIdx.x] = r * x;
}
"""


@pytest.mark.parametrize("engine", ["interpreter", "compiled"])
@pytest.mark.parametrize("x", [-126.5, -1.25, 3.0, float("nan")])
def test_values_that_all_lanes_share(engine: str, x: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAKIT_SIM_ENGINE", engine)
    with cudakit.Device("sim", fresh=True) as device:
        y = device.empty(32)
        kernel = device.compile(source=UNIFORM, name="uniform.cu")["uniform"]
        kernel.launch(device.default_stream, grid=1, block=32, args=(y, x))
        np.testing.assert_allclose(y.numpy(), np.full(32, np.float32(x) * 0 + 1), rtol=1e-5 if x > -126 else 0.01)
