"""Both devices in one process: the same kernel with the same arguments, and their results compared.

Kernels without approximate functions, compiled with fmad off, must agree bit for bit. For other kernels the
suite's rule applies: both are within the tolerance of the float64 reference.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import ROOT
from planted import CASES
from planted.catalogue import Case
from planted.catalogue import run_case as run_planted

import cudakit
from cudakit import ops
from cudakit.family import Variant
from cudakit.testing import Unsupported, cases, run_case

pytestmark = pytest.mark.gpu

EXACT = r"""
__global__ void mix(const float* a, const int* b, float* out, unsigned* bits, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float x = a[i], y = a[n - 1 - i];
    float v = x * y + y / (x * x + 1.0f) - sqrtf(fabsf(x));
    for (int k = 0; k < (b[i] & 7); ++k) v = fmaf(v, 0.5f, x);
    out[i] = fminf(v, __int2float_rz(b[i])) + static_cast<float>(static_cast<double>(y) * 3.0);
    unsigned u = __brev(static_cast<unsigned>(b[i])) ^ __popc(b[i]) * 2654435761u;
    unsigned w = __byte_perm(u, b[i], 0x2143) + static_cast<unsigned>(b[i] / 7 % 13);
    bits[i] = __funnelshift_l(u, u, b[i]) + __clz(b[i]) + w;
}
"""


@pytest.mark.parametrize("seed", range(3))
def test_exact_arithmetic_agrees_bit_for_bit(gpu: cudakit.Device, sim: cudakit.Device, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 10_000
    a = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)  # every kind of float
    b = rng.integers(-(2**31), 2**31, n, dtype=np.int64).astype(np.int32)
    results = []
    for device in (gpu, sim):
        kernel = device.compile(source=EXACT, name="mix.cu", fmad=False)["mix"]
        out, bits = device.empty(n, np.float32), device.empty(n, np.uint32)
        arguments = (device.array(a), device.array(b), out, bits, n)
        kernel.launch(device.default_stream, grid=-(-n // 128), block=128, args=arguments)
        results.append((out.numpy().view(np.uint32), bits.numpy()))
    np.testing.assert_array_equal(results[0][1], results[1][1])
    np.testing.assert_array_equal(results[0][0], results[1][0])


TILED = ROOT / "examples" / "simulator_speed" / "tiled_matmul.cu"


@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.launch is not None], ids=lambda case: case.name
)
def test_correct_kernels_agree_bit_for_bit(gpu: cudakit.Device, sim: cudakit.Device, case: Case) -> None:
    here, there = (run_planted(case, device, False, fmad=False) for device in (sim, gpu))
    for number, found in here.items():
        np.testing.assert_array_equal(found.view(np.uint8), there[number].view(np.uint8), f"argument {number}")


@pytest.mark.parametrize("variant", ops.families()["vector_add"].variants, ids=lambda variant: variant.name)
def test_vector_add_agrees_bit_for_bit(gpu: cudakit.Device, sim: cudakit.Device, variant: Variant) -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.integers(0, 2**32, 1001, dtype=np.uint32).view(np.float32) for _ in range(2))
    results = [
        ops.add(device.array(x), device.array(y), variant=variant.name).numpy().view(np.uint32) for device in (gpu, sim)
    ]
    np.testing.assert_array_equal(*results)


def test_a_tiled_product_agrees_bit_for_bit(gpu: cudakit.Device, sim: cudakit.Device) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    results = []
    for device in (gpu, sim):
        c = device.empty((64, 64), np.float32)
        kernel = device.compile(TILED, fmad=False)["tiled_matmul"]
        kernel.launch(
            device.default_stream, grid=(4, 4), block=(16, 16), args=(device.array(a), device.array(b), c, 64)
        )
        results.append(c.numpy().view(np.uint32))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("family", ops.families().values(), ids=lambda family: family.name)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # all examples share the GPU on purpose
@given(data=st.data())
def test_both_devices_are_right_on_one_problem(gpu: cudakit.Device, family, data) -> None:
    variant = data.draw(st.sampled_from(family.variants))
    case = data.draw(cases(family.name, 4_000))
    with cudakit.Device("sim") as simulated:
        for device in (gpu, simulated):
            verdict = run_case(device, family, variant, case)
            assert isinstance(verdict, Unsupported) or verdict.ok, f"{device.kind}: {verdict.why}"
