"""Records the results of ex2.approx and rcp.approx on an H200, for `cudakit.sim.values.measured`.

`python -m tests.approximations FOLDER` writes h200_ex2.zlib and h200_rcp.zlib, which belong next to that module, and
approximations_h200.npz with the results for other operands, which belongs in tests/data.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import cudakit
from cudakit.show import terminal
from cudakit.sim.values import measured

SOURCE = r"""
template <int CASE>
__global__ void approximate(const float* x, const float* z, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float r;
    if (CASE == 0) asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x[i]));
    if (CASE == 1) asm volatile("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(x[i]));
    if (CASE == 2) asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x[i]));
    if (CASE == 3) asm volatile("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x[i]));
    if (CASE == 4) asm volatile("div.approx.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(x[i]), "f"(z[i]));
    if (CASE == 5) asm volatile("div.approx.f32 %0, %1, %2;" : "=f"(r) : "f"(x[i]), "f"(z[i]));
    if (CASE == 6) asm volatile("div.full.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(x[i]), "f"(z[i]));
    if (CASE == 7) asm volatile("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(x[i]), "f"(z[i]));
    y[i] = r;
}
"""
CASES = ("ex2.ftz", "ex2", "rcp.ftz", "rcp", "div.ftz", "div", "div.full.ftz", "div.full")


def encoded(bits: np.ndarray[Any, Any]) -> bytes:
    """The file of a table."""
    rows = bits.view(np.int32).astype(np.int64).reshape(measured.INTERVALS, -1)
    count = rows.shape[1]
    places = np.arange(count, dtype=np.int64)
    coefficients, differences = [], []
    for row in rows:
        first = int(row[0])
        smooth = [*np.polyfit(places / count, (row - first).astype(np.float64), 2)[::-1]]
        smooth[0] += 0.5
        constant, slope, curve = (round(float(c) / count**power * 2**measured.SHIFT) for power, c in enumerate(smooth))
        coefficients.append([first, constant, slope, curve])
        differences.append(row - first - ((constant + (slope + curve * places) * places) >> measured.SHIFT))
    rest = np.array(differences)
    assert np.abs(rest).max() < 128, f"the quadratics are off by up to {np.abs(rest).max()}"
    return zlib.compress(json.dumps(coefficients).encode() + b"\n" + rest.astype(np.int8).tobytes(), 9)


def operands() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Operands of all exponents, exact integers, subnormals and special values; and divisors."""
    rng = np.random.default_rng(0)
    any_bits = rng.integers(0, 1 << 32, (2, 1 << 11), dtype=np.uint32).view(np.float32)
    usual = (rng.random((2, 1 << 11)) * 320 - 160).astype(np.float32)
    whole = np.arange(-200, 200, 0.25, dtype=np.float32)
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 2.0**127, -(2.0**126), 1.5 * 2.0**127], np.float32
    )
    few = np.concatenate([whole, special])
    return np.concatenate([any_bits[0], usual[0], few]), np.concatenate([any_bits[1], usual[1], rng.permutation(few)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    with cudakit.Device("gpu") as device:
        module = device.compile(source=SOURCE, name="approximations.cu", names=[f"approximate<{n}>" for n in range(8)])

        def run(case: int, x: Any, z: Any = None) -> Any:
            out = device.empty_like(given := device.array(x))
            args = (given, given if z is None else device.array(z), out, x.size)
            module[f"approximate<{case}>"].launch(device.default_stream, grid=-(-x.size // 256), block=256, args=args)
            return out.numpy().view(np.uint32)

        fractions = np.arange(1 << measured.BITS, dtype=np.uint32)
        tables = {
            "ex2": run(0, (fractions / (1 << measured.BITS)).astype(np.float32)),
            "rcp": run(2, (fractions | np.uint32(127 << measured.BITS)).view(np.float32)),
        }
        for name, bits in tables.items():
            data = encoded(bits)
            (folder / f"h200_{name}.zlib").write_bytes(data)
            terminal.say(f"{name}: {len(data)} bytes")
        x, z = operands()
        results = {name: run(case, x, z) for case, name in enumerate(CASES)}
    np.savez_compressed(folder / "approximations_h200.npz", x=x, z=z, **results)


if __name__ == "__main__":
    main()
