"""Kernels on arrays of more than 2^32 elements. A launch has millions of blocks, so only the last block runs.

The simulated device reserves the array's addresses without touching the memory. The kernel's source is compiled with
`blockIdx` and `gridDim` of the last block, so an index computed in 32 bits selects the wrong element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from paths import ROOT

import cudakit
from cudakit import ops
from cudakit.memory import makers

COUNT = 2**32 + 1000
FIXED_GRIDS = ("vector_add_grid_stride", "strided")  # grid-stride loops
TAIL = 8  # elements that are compared; each last block has more


@pytest.fixture(scope="module")
def large() -> Iterator[cudakit.Device]:
    """Yield a simulated device with more memory than any GPU. Checks whose tables would be as large are off."""
    with cudakit.Device("sim", memory=1 << 40, checks=("barrier", "warp")) as device:
        yield device


@pytest.fixture(scope="module")
def far(large: cudakit.Device) -> cudakit.DeviceArray:
    """Return an array of COUNT floats."""
    try:
        return large.empty((COUNT,))
    except cudakit.OutOfMemory:
        pytest.skip("16 GiB of address space cannot be reserved")


@pytest.fixture
def tail(far: cudakit.DeviceArray) -> cudakit.DeviceArray:
    """Return the last TAIL elements, set to 1, 2, 3 and so on."""
    return far[-TAIL:].copy_from(np.arange(1, TAIL + 1, dtype=np.float32))


def run_last_block(device: cudakit.Device, file: str, entry: str, grid: int, block: int, args: Sequence[Any]) -> None:
    """Run the last block of a 1-D grid of `grid` blocks."""
    path = ROOT / "kernels" / file
    text = (
        "struct FarBlock { unsigned x, y, z; };\n"
        f"#define blockIdx (FarBlock{{{grid - 1}u, 0u, 0u}})\n#define gridDim (FarBlock{{{grid}u, 1u, 1u}})\n"
    ) + path.read_text(encoding="utf-8")
    names = (entry,) if "<" in entry else ()
    kernel = device.compile(source=text, name=str(path), names=names)[entry]
    # families pass strides as parameters
    given = [cudakit.strided(arg) if isinstance(arg, cudakit.DeviceArray) else arg for arg in args]
    kernel.launch(device.default_stream, grid=1, block=block, args=given)
    device.synchronize()


def run_variant(
    device: cudakit.Device, family: str, variant: str, inputs: Sequence[Any], out: Any, **options: Any
) -> None:
    """Run the last block of a family's variant."""
    found = {family.name: family for family in ops.families().values()}[family]
    rung = found[variant]
    problem = found.problem_of(inputs, out, **options)
    assert rung.refusal(problem, device.arch) is None
    (launch,) = rung.launches(problem)
    kernel = found.kernel(device, rung, launch)
    args = found.keywords(launch, kernel, problem, inputs, out, None)["args"]
    source, entry, _ = rung.entry_of(launch)
    grid = launch.grid
    if variant in FIXED_GRIDS:  # one thread per element, or the last block would process the whole array
        grid = -(-COUNT // launch.block)
    run_last_block(device, source, entry, grid, launch.block, args)


NUMBERS = np.arange(1, TAIL + 1, dtype=np.float32)


@pytest.mark.parametrize(
    ("family", "variant"),
    [
        ("vector_add", "vector_add"),
        ("vector_add", "vector_add_grid_stride"),
        ("vector_add", "vector_add_vec4"),
        ("vector_add", "vector_add_streamed"),
        ("add", "flat"),
        ("add", "streamed"),
        ("add", "strided"),
    ],
)
def test_sums(
    large: cudakit.Device, far: cudakit.DeviceArray, tail: cudakit.DeviceArray, family: str, variant: str
) -> None:
    run_variant(large, family, variant, (far, far), far)
    np.testing.assert_array_equal(tail.numpy(), NUMBERS * 2)


@pytest.mark.parametrize("family", ["add", "add_broadcast"])
def test_rows_as_one_run(
    large: cudakit.Device, far: cudakit.DeviceArray, tail: cudakit.DeviceArray, family: str
) -> None:
    rows = far.reshape(-1, TAIL) if family == "add" else far.reshape(-1, 1, TAIL)
    row, one = large.array(NUMBERS), large.array(np.ones(1, np.float32))
    others = [row] if family == "add" else [repeated(one, rows.shape[:2]), repeated(one, rows.shape[:1])]
    run_variant(large, family, "dense", (rows, *others), rows)
    np.testing.assert_array_equal(tail.numpy(), NUMBERS * 2 if family == "add" else NUMBERS + 2)


def repeated(one: cudakit.DeviceArray, shape: tuple[int, ...]) -> cudakit.DeviceArray:
    """Return one element as an array of any shape, with strides of 0."""
    return makers.over(one.context, one.stream, one.pointer, shape, one.dtype, strides=(0,) * len(shape), owner=one)


@pytest.mark.parametrize("variant", ["strided", "vectors"])
def test_maps(large: cudakit.Device, far: cudakit.DeviceArray, tail: cudakit.DeviceArray, variant: str) -> None:
    run_variant(large, "scale", variant, (far,), far, factor=3.0)
    np.testing.assert_array_equal(tail.numpy(), NUMBERS * 3)


@pytest.mark.parametrize("variant", ["strided", "vectors"])
def test_fills(large: cudakit.Device, far: cudakit.DeviceArray, tail: cudakit.DeviceArray, variant: str) -> None:
    """The last block writes the last whole vectors; the first block writes elements that do not fill 16 bytes."""
    run_variant(large, "fill", variant, (far,), far, value=7.0)
    np.testing.assert_array_equal(tail.numpy(), np.full(TAIL, 7, np.float32))


@pytest.mark.parametrize("family", ["uniform", "normal"])
@pytest.mark.parametrize("variant", ["word_per_thread", "counter_per_thread"])
def test_random_numbers(
    large: cudakit.Device, far: cudakit.DeviceArray, tail: cudakit.DeviceArray, family: str, variant: str
) -> None:
    run_variant(large, family, variant, (), far, seed=3)
    expected = getattr(ops, family)(TAIL, seed=3, offset=COUNT - TAIL, device=large)
    np.testing.assert_array_equal(tail.numpy(), expected.numpy())


def test_steps_around_transforms(large: cudakit.Device, far: cudakit.DeviceArray) -> None:
    """The kernels of the hybrid filter and of ptychography, on more than 2^31 complex numbers."""
    count = COUNT // 2
    images, spectra = far[:count], far.view(np.complex64)
    one, grid = large.array(np.ones(1, np.complex64)), -(-count // 256)

    def run(file: str, entry: str, *args: Any) -> None:
        run_last_block(large, file, entry, grid, 256, (*args, count))

    end, ends = images[-4:], spectra[-4:]
    end.copy_from(np.array([1, 2, 3, 4], np.float32))
    run("hybrid/filter.cu", "threshold_to_complex", images, spectra, 2.5)
    np.testing.assert_array_equal(ends.numpy(), [0, 0, 3, 4])
    run("hybrid/filter.cu", "low_pass", spectra, 0.5, 1, 2)
    np.testing.assert_array_equal(ends.numpy(), [0, 0, 3, 2])
    run("hybrid/filter.cu", "normalize", spectra, images, 2.0)
    np.testing.assert_array_equal(end.numpy(), [0, 0, 6, 4])
    run("ptychography/separate.cu", "scale", spectra, 3.0)
    np.testing.assert_array_equal(ends.numpy(), [0, 0, 9, 6])
    run("ptychography/fused.cu", "illuminate", spectra, one, spectra, 1)
    np.testing.assert_array_equal(ends.numpy(), [0, 0, 9, 6])


def apart(far: cudakit.DeviceArray, shape: tuple[int, int], dtype: str, *, elements: bool) -> cudakit.DeviceArray:
    """Return an array whose rows (or elements of a row, which then has two) are more than 2^31 elements apart."""
    size = np.dtype(dtype).itemsize
    distance, near = (COUNT * 4 // size - 500) * size, size
    strides = (near, distance) if elements else (distance, near)
    return makers.over(far.context, far.stream, far.pointer, shape, dtype, strides=strides, owner=far)


@pytest.mark.parametrize("elements", [False, True])
@pytest.mark.parametrize("variant", [one.name for one in ops.families()["fft"]])
def test_transforms_of_rows_and_of_elements_far_apart(
    large: cudakit.Device, far: cudakit.DeviceArray, variant: str, elements: bool
) -> None:
    if elements and variant in ("planes", "long_rows", "registers"):
        return  # their rows are contiguous, or longer than two elements
    shape, axes = (64, 2) if elements else (2, 64), 2 if variant == "planes" else 1
    x = apart(far, shape, "complex64", elements=elements)
    host = (np.arange(x.size) + 1j).reshape(shape).astype(np.complex64)
    x.copy_from(host)
    result = ops.fft(x, axes, variant=variant).numpy()
    np.testing.assert_allclose(result, np.fft.fftn(host, axes=range(-axes, 0)), rtol=1e-5, atol=1e-2)
    ops.fft(x, axes, out=x, variant=variant)
    np.testing.assert_array_equal(x.numpy(), result)


@pytest.mark.parametrize("elements", [False, True])
def test_real_transforms_of_rows_and_of_elements_far_apart(
    large: cudakit.Device, far: cudakit.DeviceArray, elements: bool
) -> None:
    shape = (64, 2) if elements else (2, 64)
    x = apart(far, shape, "float32", elements=elements)
    host = np.arange(x.size, dtype=np.float32).reshape(shape)
    x.copy_from(host)
    terms = ops.rfft(x)
    np.testing.assert_allclose(terms.numpy(), np.fft.rfft(host), rtol=1e-5, atol=1e-2)
    ops.irfft(terms, out=x)
    np.testing.assert_allclose(x.numpy(), host, atol=1e-4)
