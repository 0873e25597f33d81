"""PTX compiled by Triton runs with correct results: vector add, softmax and tl.dot (tests/data/triton/make.py)."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import TESTS

import cudakit

FOLDER = TESTS / "data" / "triton"
ARCHES = ("sm_80", "sm_90")
TILE = 64
K_TILE = 32


class Loaded:
    """A Triton kernel, launched on numpy arrays; each gets an allocation of exactly its size."""

    def __init__(self, device: cudakit.Device, name: str, arch: str) -> None:
        path = FOLDER / f"{name}.{arch}.ptx"
        text = path.read_text()
        target = re.search(r"^\.target (\S+)", text, re.MULTILINE)
        if target is not None and target[1].endswith("a") and target[1] != device.arch:
            pytest.skip(f"{path.name} is for {target[1]} only, and the device is {device.arch}")
        said = re.search(r"(\d+) threads a block, (\d+) bytes of shared memory", text)
        if said is None:
            raise ValueError(f"{path} does not say how it is launched: make it again with make.py")
        self.device = device
        self.threads, self.shared = int(said[1]), int(said[2])
        self.module = device.load(path)
        self.kernel = self.module[name]

    def __call__(self, grid: Any, out: Any, *arguments: Any) -> Any:
        """Launch with `out` after the other arrays, and return its new contents. The two scratch pointers are null."""
        with self.device.stream() as stream:
            taken = [self.device.array(a, stream=stream) if isinstance(a, np.ndarray) else a for a in arguments]
            made = self.device.array(out, stream=stream)
            arrays = sum(isinstance(a, np.ndarray) for a in arguments)
            self.kernel.launch(
                stream,
                grid=grid,
                block=self.threads,
                shared=self.shared,
                args=(*taken[:arrays], made, *taken[arrays:], None, None),
            )
            return made.numpy(stream=stream)


@pytest.fixture
def loaded(device: cudakit.Device, request: pytest.FixtureRequest) -> Iterator[Loaded]:
    name, arch = request.param
    made = Loaded(device, name, arch)
    with made.module:
        yield made


def kernels(name: str) -> Any:
    """Run the test with the kernel `name`, compiled for each architecture."""
    return pytest.mark.parametrize("loaded", [(name, arch) for arch in ARCHES], indirect=True, ids=ARCHES)


def _numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


@kernels("vector_add")
@pytest.mark.parametrize("n", [1, 31, 1000, 1024, 1025, 5000])
def test_vector_add(loaded: Loaded, n: int) -> None:
    x, y = _numbers(n), _numbers(n + 1)[:n]
    got = loaded(-(-n // 1024), np.full(n, np.nan, np.float32), x, y, n)
    np.testing.assert_array_equal(got, x + y)


@kernels("softmax")
@pytest.mark.parametrize(("rows", "columns", "gap"), [(1, 1, 0), (3, 7, 2), (5, 1000, 0), (2, 1024, 3), (40, 129, 1)])
def test_softmax(loaded: Loaded, rows: int, columns: int, gap: int) -> None:
    """Rows of several lengths; the gaps between them must stay unchanged."""
    x = 10 * _numbers(rows, columns + gap)
    got = loaded(rows, np.full((rows, columns + gap), -7, np.float32), x, columns + gap, columns + gap, columns)
    wide = x[:, :columns].astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    # ex2.approx has an error of 2^-22, and its argument, up to 64, of half a bit
    np.testing.assert_allclose(got[:, :columns], expected, rtol=2**-16, atol=1e-30)
    assert (got[:, columns:] == -7).all()


FAR = 1 << 30  # floats between rows: the offset of row 3 exceeds 2^31


def _launch_on_far_rows(device: cudakit.Device, name: str, stream: cudakit.Stream, host: Any) -> tuple[Any, Any]:
    columns = host.shape[1]
    x, out = (device.empty((len(host), FAR), stream=stream) for _ in range(2))
    x[:, :columns].copy_from(host, stream=stream)
    loaded = Loaded(device, name, "sm_80")
    args = (x, out, FAR, FAR, columns, None, None)
    loaded.kernel.launch(stream, grid=len(host), block=loaded.threads, shared=loaded.shared, args=args)
    return x, out


def test_rows_past_31_bits(roomy: cudakit.Device) -> None:
    if roomy.memory_info()[0] < 2 * 4 * 4 * FAR:
        pytest.skip("the GPU has too little free memory for rows 4 GiB apart")
    host = _numbers(4, 7)
    powers = np.exp(host - host.max(axis=1, keepdims=True))
    with roomy.stream() as stream:
        _, out = _launch_on_far_rows(roomy, "softmax", stream, host)
        got = out[:, : host.shape[1]].numpy(stream)
    np.testing.assert_allclose(got, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)


def test_rows_past_31_bits_with_offsets_of_32_bits() -> None:
    """The offset of row 2 is negative, so the kernel reads before its array."""
    with cudakit.Device("sim", fresh=True, memory=1 << 40, checks=("barrier", "warp")) as device:
        stream = device.default_stream
        arrays = _launch_on_far_rows(device, "softmax_32_bit", stream, _numbers(4, 7))
        with pytest.raises(cudakit.DeviceFault, match=r"out-of-bounds access: global load of 4 bytes at"):
            stream.synchronize()
        del arrays


def _check_product(loaded: Loaded, m: int, n: int, k: int, gaps: tuple[int, int, int] = (0, 0, 0)) -> None:
    a, b = _numbers(m, k + gaps[0], dtype=np.float16), _numbers(k, n + gaps[1], dtype=np.float16)
    grid = (-(-m // TILE), -(-n // TILE))
    strides = (k + gaps[0], n + gaps[1], n + gaps[2])
    got = loaded(grid, np.full((m, n + gaps[2]), np.nan, np.float32), a, b, m, n, k, *strides)
    x, y = a[:, :k].astype(np.float64), b[:, :n].astype(np.float64)
    # products are exact; each addition may lose one bit of the partial sum
    bound = (k + 2) * 2.0**-23 * (np.abs(x) @ np.abs(y))
    assert (np.abs(got[:, :n] - x @ y) <= bound).all()
    assert np.isnan(got[:, n:]).all()


@kernels("matmul")
@pytest.mark.parametrize(
    ("m", "n", "k"), [(64, 64, 32), (1, 1, 1), (65, 63, 33), (7, 100, 50), (100, 30, 200), (64, 64, 31)]
)
def test_dot_with_masks(loaded: Loaded, m: int, n: int, k: int) -> None:
    _check_product(loaded, m, n, k)


@kernels("matmul")
def test_dot_of_strided_rows(loaded: Loaded) -> None:
    _check_product(loaded, 70, 40, 40, gaps=(3, 5, 1))


@kernels("matmul_aligned")
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 32), (128, 64, 96), (64, 192, 160)])
def test_pipelined_dot(loaded: Loaded, m: int, n: int, k: int) -> None:
    _check_product(loaded, m, n, k)


def test_a_mistake_is_named_by_the_line_of_triton(sim: cudakit.Device) -> None:
    """A length past the array's end: the report names the line in Triton's source."""
    add = Loaded(sim, "vector_add", "sm_80")
    with pytest.raises(cudakit.DeviceFault) as caught:
        add(1, np.zeros(100, np.float32), _numbers(100), _numbers(100), 101)
    lines = (FOLDER / "make.py").read_text().splitlines()
    report = caught.value.report
    assert report.kind == "out of bounds"
    assert Path(report.file).name == "make.py"
    assert "tl.load(x + i, mask=inside)" in lines[report.line - 1]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_ptx_is_what_the_script_makes(tmp_path: Path) -> None:
    """With the Triton version that made the files, the script writes the same files; with another version, files of the
    same names."""
    shutil.copy(FOLDER / "make.py", tmp_path)
    runpy.run_path(str(tmp_path / "make.py"), run_name="__main__")
    # debug information after the code depends on the folder's name
    made = {path.name: path.read_text().partition(".section")[0] for path in tmp_path.glob("*.ptx")}
    kept = {path.name: path.read_text().partition(".section")[0] for path in FOLDER.glob("*.ptx")}
    assert set(made) == set(kept)
    version = importlib.metadata.version("triton")
    if all(f"with Triton {version}:" in text for text in kept.values()):
        assert made == kept
