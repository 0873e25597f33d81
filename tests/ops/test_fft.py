"""Fourier transforms: numpy's results, rounding errors beside torch's, plans, planted errors, rejected arguments."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudakit
from cudakit import ops
from cudakit.families.fft import FFT, IRFFT, RFFT
from cudakit.families.fft_plan import LONGEST, MOST_THREADS, Plan, largest_prime, plan_for
from cudakit.family import Variant
from cudakit.testing.case import Case, contiguous, run_case
from cudakit.testing.fft import Numbers

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels" / "fft"


def numbers(*shape: int, real: bool = False, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if real:
        return rng.standard_normal(shape, dtype=np.float32)
    return rng.standard_normal((*shape, 2), dtype=np.float32).view(np.complex64)[..., 0]


def errors(result: Any, exact: Any) -> tuple[float, float]:
    """Return the error relative to the result's size, and the largest error relative to the mean element."""
    difference, size = np.asarray(result, exact.dtype) - exact, np.linalg.norm(exact.ravel())
    return np.linalg.norm(difference.ravel()) / size, np.abs(difference).max() * np.sqrt(exact.size) / size


def close(result: Any, exact: Any) -> None:
    assert result.shape == exact.shape
    assert errors(result, exact)[1] < 1e-5


# Values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_every_function_equals_numpys(device: cudakit.Device, axes: int, norm: Any) -> None:
    last = tuple(range(-axes, 0))
    z, x = numbers(3, 4, 15), numbers(3, 4, 15, real=True)
    terms = np.fft.rfftn(x, axes=last, norm=norm)
    close(ops.fft(device.array(z), axes, norm=norm).numpy(), np.fft.fftn(z, axes=last, norm=norm))
    close(ops.ifft(device.array(z), axes, norm=norm).numpy(), np.fft.ifftn(z, axes=last, norm=norm))
    close(ops.rfft(device.array(x), axes, norm=norm).numpy(), terms)
    close(ops.irfft(device.array(terms.astype(np.complex64)), axes, n=15, norm=norm).numpy(), x)


def test_axes_by_number_of_a_transposed_view(device: cudakit.Device) -> None:
    z, x = numbers(5, 8, 6), numbers(5, 8, 6, real=True)
    close(ops.fft(device.array(z).transpose(2, 0, 1), (0,)).numpy(), np.fft.fft(z.transpose(2, 0, 1), axis=0))
    close(ops.rfft(device.array(x), (2, 0)).numpy(), np.fft.rfftn(x, axes=(2, 0)))
    close(ops.fft(device.array(z), [1]).numpy(), np.fft.fft(z, axis=1))


def test_in_place_and_a_norm_of_none(device: cudakit.Device) -> None:
    z = numbers(4, 6, 10)
    x = device.array(z)
    assert ops.fft(x, 2, out=x, norm=None) is x
    close(ops.ifft(x, 2, out=x, norm=None).numpy(), 60 * z)


def test_irfft_ignores_imaginary_parts_that_must_be_zero_and_keeps_its_input(device: cudakit.Device) -> None:
    for n in (8, 9):
        z = numbers(3, n // 2 + 1)
        x = device.array(z)
        close(ops.irfft(x, n=n).numpy(), np.fft.irfft(z, n))
        np.testing.assert_array_equal(x.numpy(), z)
        out = device.empty((3, n), np.float32)
        close(ops.irfft(x, out=out).numpy(), np.fft.irfft(z, n))
    assert ops.irfft(device.array(numbers(3, 5))).shape == (3, 8)


def test_lengths_of_every_kind(device: cudakit.Device) -> None:
    """One, primes, a large prime, products, and rows too long for a block: with an even half, an odd half, and odd."""
    for n in (1, 2, 13, 17, 97, 210, 1001, 2 * 97, 2 * LONGEST + 4096, 2 * 3**9, 3**9):
        rows = 1 if n > LONGEST else 2
        z, x = numbers(rows, n), numbers(rows, n, real=True)
        close(ops.fft(device.array(z)).numpy(), np.fft.fft(z))
        terms = np.fft.rfft(x)
        close(ops.rfft(device.array(x)).numpy(), terms)
        close(ops.irfft(device.array(terms.astype(np.complex64)), n=n).numpy(), x)


def test_no_rows(device: cudakit.Device) -> None:
    assert ops.fft(device.empty((0, 8), np.complex64)).shape == (0, 8)
    assert ops.rfft(device.empty((0, 8), np.float32), 1).shape == (0, 5)
    assert ops.irfft(device.empty((2, 0, 5), np.complex64)).shape == (2, 0, 8)


def test_repeated_calls_take_new_arrays_and_options(device: cudakit.Device) -> None:
    """Calls that differ only in an option are not confused."""
    x, y = numbers(2, 12), numbers(2, 12, seed=1)
    for host in (x, y, x):
        array = device.array(host)
        for _ in range(2):
            close(ops.fft(array).numpy(), np.fft.fft(host))
            close(ops.ifft(array).numpy(), np.fft.ifft(host))
            close(ops.fft(array, norm="ortho").numpy(), np.fft.fft(host, norm="ortho"))
            close(ops.fft(array, (0,)).numpy(), np.fft.fft(host, axis=0))
            close(ops.fft(array, (1,)).numpy(), np.fft.fft(host, axis=1))


# Rounding errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [256, 1000, 1024, 1536, 4096, 32768])
def test_errors_are_at_most_half_as_large_again_as_torchs(device: cudakit.Device, n: int) -> None:
    torch = pytest.importorskip("torch")
    rows = 65536 // n
    z, x = numbers(rows, n), numbers(rows, n, real=True)
    terms = np.fft.rfft(x.astype(np.float64)).astype(np.complex64)
    given, real, half = (torch.from_numpy(array) for array in (z, x, terms))
    pairs = [
        (ops.fft(device.array(z)), torch.fft.fft(given), np.fft.fft(z.astype(np.complex128))),
        (ops.ifft(device.array(z)), torch.fft.ifft(given), np.fft.ifft(z.astype(np.complex128))),
        (ops.rfft(device.array(x)), torch.fft.rfft(real), np.fft.rfft(x.astype(np.float64))),
        (ops.irfft(device.array(terms), n=n), torch.fft.irfft(half, n), np.fft.irfft(terms.astype(np.complex128), n)),
    ]
    for ours, theirs, exact in pairs:
        for own, their in zip(errors(ours.numpy(), exact), errors(theirs.numpy(), exact), strict=True):
            assert own <= 1.5 * their


@pytest.mark.parametrize("n", [256, 1000])
def test_errors_of_float16_storage_are_those_of_rounding_input_and_output(device: cudakit.Device, n: int) -> None:
    z = numbers(8, n)
    exact = np.fft.fft(z.astype(np.complex128), norm="ortho")

    def stored(values: Any) -> Any:
        return values.astype(np.complex64)[..., None].view(np.float32).astype(np.float16)

    def read(pairs: Any) -> Any:
        return pairs.astype(np.float64).view(np.complex128)[..., 0]

    rounded = read(stored(np.fft.fft(read(stored(z)), norm="ortho")))
    ours = read(ops.fft(device.array(stored(z)), norm="ortho").numpy())
    for own, least in zip(errors(ours, exact), errors(rounded, exact), strict=True):
        assert own <= 1.5 * least


def test_the_bound_finds_one_wrong_factor() -> None:
    """One term of a row with a factor of its neighbour, or without its sign."""
    n = 4096
    z = numbers(1, n)
    exact = np.fft.fft(z.astype(np.complex128))
    assert FFT.judge(exact.astype(np.complex64), (z,)).ok
    k, j = 1234, 77
    for wrong in (np.exp(-2j * np.pi * (j * k + 1) / n), np.exp(2j * np.pi * j * k / n)):
        result = exact.copy()
        result[0, k] += z[0, j] * (wrong - np.exp(-2j * np.pi * j * k / n))
        assert not FFT.judge(result.astype(np.complex64), (z,)).ok


# Plans ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [64 * 1024, 99 * 1024, 227 * 1024])
def test_every_product_of_small_primes_has_a_plan_that_fits(shared: int) -> None:
    for n in range(1, LONGEST + 1):
        if largest_prime(n) > 13:
            continue
        for columns in (False, True):
            plan = plan_for(n, 1000, columns, shared)
            if 8 * n * 19 > shared * 16:  # the gaps between banks take up to 3/16 of the row
                continue
            assert isinstance(plan, Plan), (n, plan)
            assert int(np.prod(plan.radices)) == n
            assert plan.block <= MOST_THREADS
            assert plan.shared <= shared


# Planted errors -------------------------------------------------------------------------------------------------------

# A file of kernels/fft, its line, the line with an error; and the variants and lengths that it affects.
PLANTED = [
    ("turns.cuh", "return {c, -s};", "return {c, s};", "rows", 256),
    ("passes.cuh", "if constexpr (PASS > 0) twiddle<SPAN, R>(x[e], j % SPAN);", "", "rows", 256),
    ("passes.cuh", "    if constexpr (PASS > 0 && (!LAST || REUSED)) group.sync();\n", "", "rows", 4096),
    ("passes.cuh", "    if constexpr (!LAST) {\n        group.sync();", "    if constexpr (!LAST) {", "rows", 1024),
    ("06_rows.cu", "inside = inner < inner_rows;", "inside = true;", "rows", 256),
    ("06_rows.cu", "inside = inner < inner_rows;", "inside = inner < inner_rows - 1;", "rows", 256),
    ("02_steps.cu", "number >= rows", "number >= rows - 1", "steps", 64),
    ("steps.cuh", "const int k = i % span;", "const int k = i % (2 * span);", "shared", 64),
    ("03_shared.cu", "        __syncthreads();\n        for", "        for", "shared", 1024),
    ("04_radix4.cu", "4 * span <= n", "2 * span <= n", "radix4", 128),
    ("05_registers.cu", "const bool upper = threadIdx.x & L;", "const bool upper = false;", "registers", 64),
    ("05_registers.cu", "own * B::THREADS + rest", "own * B::THREADS + thread", "registers", 4096),
    ("07_long_rows.cu", "turn_of(k * column, A * B)", "turn_of(k, A * B)", "long_rows", 1000),
    ("01_direct.cu", "INVERSE ? sine : -sine", "sine", "direct", 12),
]  # fmt: skip


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    shutil.copytree(KERNELS, tmp_path / "fft")
    return tmp_path / "fft"


def judged(variant: Variant[Any], n: int) -> str:
    """Return the error of a variant on an odd number of rows, or "" if it is correct."""
    place = contiguous((11, n), 0, "complex64")
    case = Case((place,), Numbers(1, 1.0, complex=True), place, {"axes": 1})
    with cudakit.Device("sim") as device:
        try:
            found: Any = run_case(device, FFT, variant, case)
        except cudakit.CudakitError as error:
            return str(error)
    return "" if found.ok else str(found.why)


@pytest.mark.parametrize(("file", "line", "wrong", "name", "n"), PLANTED)
def test_a_planted_error_is_found(planted: Path, file: str, line: str, wrong: str, name: str, n: int) -> None:
    source = FFT[name].source
    variant = dataclasses.replace(FFT[name], source=str(planted / source.partition("/")[2]))
    text = (planted / file).read_text(encoding="utf-8")
    assert text.count(line) >= 1
    assert judged(FFT[name], n) == ""
    (planted / file).write_text(text.replace(line, wrong, 1), encoding="utf-8")
    assert judged(variant, n)


# Errors ---------------------------------------------------------------------------------------------------------------


def test_rejected_arguments(sim: cudakit.Device) -> None:
    z, x = sim.array(numbers(4, 8)), sim.array(numbers(4, 8, real=True))
    for call, message in (
        (lambda: ops.fft(x), "takes complex64, or float16 with pairs"),
        (lambda: ops.rfft(z), "takes real numbers in float32 or float16"),
        (lambda: ops.fft(z, 3), "count of last axes from 1 to 2"),
        (lambda: ops.fft(z, (0, 0)), "different axes"),
        (lambda: ops.fft(z, norm="other"), "norm must be"),
        (lambda: ops.irfft(z, n=10), "n=14 or n=15, got n=10"),
        (lambda: ops.fft(sim.empty((4, 0), np.complex64)), "no elements"),
        (lambda: ops.fft(z, out=sim.empty((4, 9), np.complex64)), r"has a result of \(4, 8\)"),
        (lambda: ops.fft(z[:, :4], out=z[:, 1:5]), "overlap"),
        (lambda: ops.fft(sim.empty((8, 3), np.float16)), "pairs"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_axes_that_do_not_merge_are_rejected_with_advice(sim: cudakit.Device) -> None:
    x = sim.array(numbers(4, 6, 8, 10))[:, 1:, 1:]
    with pytest.raises(ValueError, match=r"leaves 3: copy\(\) the arrays"):
        ops.fft(x)


def test_unsupported_lengths_name_the_prime(sim: cudakit.Device) -> None:
    for family, x in ((FFT, numbers(2, 34)), (RFFT, numbers(2, 34, real=True)), (IRFFT, numbers(2, 18))):
        with pytest.raises(cudakit.UnsupportedVariant, match=r"factors up to 13 supported, the length .* has 17"):
            family(sim.array(x), variant="rows")
