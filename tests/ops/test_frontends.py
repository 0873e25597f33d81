"""Kernels of Triton and cuTile, compiled ahead of time: typed launches, the cache, errors, and supported devices.

Most tests need neither compiler: they use compiled kernels from tests/data/triton and tests/data/cutile.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import TESTS

import cudakit
from cudakit.compile import cache
from cudakit.compile.compiler import Compiled
from cudakit.frontends import base, cubin, cutile, triton

DATA = TESTS / "data"

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def _has_cutile() -> bool:
    try:
        return importlib.util.find_spec("cuda.tile") is not None
    except ModuleNotFoundError:
        return False


def _has_tileiras() -> bool:
    try:
        importlib.metadata.version("nvidia-cuda-tileiras")
    except importlib.metadata.PackageNotFoundError:
        return shutil.which("tileiras") is not None
    return True


needs_cutile = pytest.mark.skipif(not _has_cutile(), reason="cuTile is not installed")
needs_tileiras = pytest.mark.skipif(
    not (_has_cutile() and _has_tileiras()), reason="cuTile or its assembler, tileiras, is not installed"
)

WIDE = "*fp32:16"
ADD = {"x": WIDE, "y": WIDE, "out": WIDE, "n": "i32"}


def _made(name: str, launch: dict[str, Any], *, ptx: str = "", machine_code: bytes = b"") -> Compiled:
    resources = base.resources(machine_code, launch["symbol"]) if machine_code else {}
    return Compiled(
        cubin=machine_code,
        ptx=ptx,
        lowered={},
        log="",
        options=(),
        resources=resources,
        arch="sm_90",
        nvrtc_version=(0, 0),
        name=name,
        source="",
        launch=launch,
    )


def triton_made(name: str, parameters: dict[str, str], arch: str = "sm_80", scratch: int = 2) -> Compiled:
    """Return a kernel of tests/data/triton, with `parameters` as its signature."""
    ptx = (DATA / "triton" / f"{name}.{arch}.ptx").read_text()
    said = re.search(r"(\d+) threads a block, (\d+) bytes of shared memory", ptx)
    assert said is not None
    launch = {
        "compiler": "Triton", "symbol": name, "block": [int(said[1]), 1, 1], "shared": int(said[2]),
        "parameters": [list(pair) for pair in parameters.items()], "constants": ["BLOCK"], "scratch": scratch,
    }  # fmt: skip
    return _made(f"{name}.ptx", launch, ptx=ptx)


def cutile_made(name: str) -> Compiled:
    """Return a kernel of tests/data/cutile."""
    path = DATA / "cutile" / f"{name}.sm_90.cubin"
    launch = json.loads(path.with_suffix(".json").read_text())
    return _made(path.name, launch, machine_code=path.read_bytes())


def numbers(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


def softmax(x: Any) -> Any:
    powers = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


# Triton, without Triton ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 1000, 4096])
def test_a_triton_kernel_is_launched_by_its_own_arguments(device: cudakit.Device, n: int) -> None:
    """The launch adds the block size, the shared memory and Triton's two scratch pointers."""
    add = triton.load(device, triton_made("vector_add", ADD))
    x, y = numbers(n), numbers(n, 1)[:, 0]
    with device.stream() as stream:
        out = device.full(n, np.nan, np.float32, stream=stream)
        args = (device.array(x, stream=stream), device.array(y, stream=stream), out, n)
        add.launch(stream, grid=-(-n // 1024), args=args)
        np.testing.assert_array_equal(out.numpy(stream), x + y)
        out.fill(0, stream)
        add.prepare(grid=-(-n // 1024), args=args).launch(stream)
        np.testing.assert_array_equal(out.numpy(stream), x + y)


def test_shared_memory_is_filled_in(device: cudakit.Device) -> None:
    signature = {"x": "*kfp32", "out": "*fp32", "stride_x": "i32", "stride_out": "i32", "columns": "i32"}
    rows = triton.load(device, triton_made("softmax", signature))
    assert rows.shared > 0
    x = numbers(5, 700)
    with device.stream() as stream:
        out = device.full((5, 700), np.nan, np.float32, stream=stream)
        rows.launch(stream, grid=5, args=(device.array(x, stream=stream), out, 700, 700, 700))
        np.testing.assert_allclose(out.numpy(stream), softmax(x), rtol=1e-5)


@pytest.fixture(scope="module")
def arrays(device: cudakit.Device) -> Any:
    return [device.zeros(100) for _ in range(3)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda x, y, out, n: (x, y, out),
            r"takes 4 arguments \(x, y, out, n\), got 3 \(constants, not passed: BLOCK",
        ),
        (lambda x, y, out, n: (x, y, out, n, 1024), "got 5"),
        (lambda x, y, out, n: (x[1:], y, out, n), "address 0x[0-9a-f]+ must be a multiple of 16"),
        (lambda x, y, out, n: (x, y.view(np.int32), out, n), "parameter 1 .* the dtype must be float32"),
        (lambda x, y, out, n: (x, np.zeros(9, np.float32), out, n), "pageable"),
        (lambda x, y, out, n: (x, y, out, 2.5), "parameter 3 .*is int"),
        (lambda x, y, out, n: (x, y, out, 2**31), "must be in"),
        (lambda x, y, out, n: x, "args is a DeviceArray"),
    ],
)
def test_what_triton_says_of_a_parameter_is_checked(device: Any, arrays: Any, change: Any, words: str) -> None:
    add = triton.load(device, triton_made("vector_add", ADD))
    with device.stream() as stream, pytest.raises(cudakit.LaunchError, match=words):
        add.launch(stream, grid=1, args=change(*arrays, 100))


def test_a_promised_number_is_kept(sim: cudakit.Device) -> None:
    add = triton.load(sim, triton_made("vector_add", {**ADD, "n": "i32:16"}))
    x = sim.zeros(100)
    with pytest.raises(cudakit.LaunchError, match=r"n must be a multiple of 16 .*got 100"):
        add.launch(sim.default_stream, grid=1, args=(x, x, sim.empty(100), 100))
    add.launch(sim.default_stream, grid=1, args=(x, x, sim.empty(96), 96))


@pytest.mark.parametrize(
    "made",
    [
        triton_made("vector_add", {**ADD, "n": "i64"}),
        triton_made("vector_add", ADD, scratch=1),
        triton_made("vector_add", {**ADD, "n": "fp16"}),
    ],
    ids=["too wide", "too few", "too narrow"],
)
def test_metadata_that_is_not_of_the_code_is_refused(sim: cudakit.Device, made: Compiled) -> None:
    with pytest.raises(cudakit.CudakitError, match="its code takes 6 parameters"):
        triton.load(sim, made)


def test_one_kernel_is_loaded_once_and_again_after_its_module_was_closed(sim: cudakit.Device) -> None:
    made = triton_made("vector_add", ADD)
    first = triton.load(sim, made)
    assert triton.load(sim, made) is first
    first.module.close()
    again = triton.load(sim, made)
    again.launch(sim.default_stream, grid=1, args=(None, None, None, 0))
    sim.synchronize()


@pytest.mark.parametrize(
    ("spelled", "text", "promised"),
    [
        ("*fp32", "float*", False),
        ("*kbf16", "const __nv_bfloat16*", False),
        ("*kfp16:16", "const __half* at a multiple of 16 bytes", True),
        ("*i8", "signed char*", False),
        ("i32:16", "int", True),
        ("i64", "long long", False),
        ("i1", "bool", False),
        ("fp64", "double", False),
    ],
)
def test_types_of_triton(spelled: str, text: str, promised: bool) -> None:
    kind, multiple = triton.parameter(spelled)
    assert (kind.text, multiple) == (text, promised)


@pytest.mark.parametrize("spelled", ["float", "*float32", "fp32:16", "*fp32:8", "i32 ", "", 16, "constexpr"])
def test_what_is_no_type_of_triton_is_refused(spelled: Any) -> None:
    with pytest.raises(ValueError, match=r"not the type of a Triton parameter|multiples of 16"):
        triton.parameter(spelled)


@pytest.mark.parametrize(
    ("signature", "constants", "words"),
    [
        ({"x": "*fp32"}, {"BLOCK": 8}, "n has no type"),
        ({"x": "*fp32", "n": "i32", "m": "i32"}, {"BLOCK": 8}, "no parameter 'm'; it has x, n, BLOCK"),
        ({"x": "*fp32", "n": "i32", "BLOCK": "i32"}, {"BLOCK": 8}, "BLOCK is in both signature and constants"),
        ("*fp32", {}, "signature is a str"),
    ],
)
def test_a_signature_names_each_parameter_once(signature: Any, constants: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        base.split("k", ["x", "n", "BLOCK"], signature, constants)


# cuTile, without cuTile ------------------------------------------------------------------------------------

# A kernel with cuTile's calling convention that the simulated device can run: one thread per tile.
_STANDS_IN = """
extern "C" __global__ void stands_in(const float* x, int n, int step, float* out, int rows, int columns,
                                     int row_step, int column_step, float factor) {
    for (int i = blockIdx.x; i < n; i += gridDim.x)
        out[i / columns * row_step + i % columns * column_step] = factor * x[i * step];
}
"""


def stand_in(device: cudakit.Device, x: str, out: str, **launch: Any) -> cutile.TileKernel:
    compiled = device.compile(source=_STANDS_IN, name="stand_in.cu").compiled
    said = {
        "compiler": "cuTile", "symbol": "stands_in", "block": [1, 1, 1], "shared": 0, "constants": ["TILE"],
        "parameters": [["x", x], ["out", out], ["factor", "float32"]], "may_overlap": False,
        "divisible_by": 1, **launch,
    }  # fmt: skip
    return cutile.TileKernel(device, dataclasses.replace(compiled, launch=said))


def test_an_array_is_passed_as_pointer_shape_and_strides(device: cudakit.Device) -> None:
    kernel = stand_in(device, "float32[:]", "float32[:, :]")
    x = numbers(24)
    with device.stream() as stream:
        out = device.full((4, 6), -1, np.float32, stream=stream)
        kernel.launch(stream, grid=3, args=(device.array(x, stream=stream)[::2], out[:, ::2], 2.0))
        expected = np.full((4, 6), -1, np.float32)
        expected[:, ::2] = 2 * x[::2].reshape(4, 3)
        np.testing.assert_array_equal(out.numpy(stream), expected)
        # the same arrays again, then one array of another shape with the same output
        source = device.array(x, stream=stream)
        kernel.launch(stream, grid=1, args=(source, out, 1.0))
        kernel.launch(stream, grid=1, args=(source, out, 3.0))
        np.testing.assert_array_equal(out.numpy(stream), 3 * x.reshape(4, 6))
        kernel.launch(stream, grid=1, args=(source[:12], out, 0.0))
        np.testing.assert_array_equal(out.numpy(stream), np.vstack([np.zeros((2, 6)), 3 * x.reshape(4, 6)[2:]]))


@pytest.mark.parametrize(
    ("x", "out", "words"),
    [
        (lambda a: a, lambda a: a[:64], "out has 1 dimensions, and the kernel was compiled for 2"),
        (lambda a: a[::2], lambda a: a[:64].reshape(8, 8), "x's last axis has a stride of 2 elements"),
        (lambda a: a[::-1], lambda a: a[:64].reshape(8, 8), "x's last axis has a stride of -1"),
        (lambda a: a, lambda a: a[:64].reshape(8, 8)[::-1], "out has a negative stride"),
        (lambda a: a, lambda a: a[1:65].reshape(8, 8), "must be a multiple of 16"),
        (lambda a: a, lambda a: a[:60].reshape(10, 6), "out's strides .* multiples of 16 bytes"),
        (lambda a: a.view(np.int32), lambda a: a[:64].reshape(8, 8), "dtype must be float32"),
        (lambda a: np.zeros(8, np.float32), lambda a: a[:64].reshape(8, 8), "x is a ndarray; pass a DeviceArray"),
    ],
)
def test_an_array_that_is_not_what_was_promised_is_refused(sim: Any, x: Any, out: Any, words: str) -> None:
    kernel = stand_in(sim, "float32[::1]", "float32[:, ::1]:16")
    with pytest.raises(cudakit.LaunchError, match=words):
        kernel.launch(sim.default_stream, grid=1, args=(x(sim.zeros(128)), out(sim.zeros(128)), 1.0))


def test_an_axis_has_the_multiple_of_elements_that_was_promised(sim: cudakit.Device) -> None:
    kernel = stand_in(sim, "float32[::1]", "float32[:, ::1]", divisible_by=16)
    array, out = sim.zeros(100), sim.zeros((4, 16))
    with pytest.raises(cudakit.LaunchError, match=r"x's last axis must be a multiple of 16 elements, got 100"):
        kernel.launch(sim.default_stream, grid=1, args=(array, out, 1.0))
    with pytest.raises(cudakit.LaunchError, match=r"out's last axis .*got 8"):
        kernel.launch(sim.default_stream, grid=1, args=(array[:32], out.reshape(8, 8), 1.0))
    kernel.launch(sim.default_stream, grid=1, args=(array[:32], out, 1.0))
    sim.synchronize()


def test_arrays_that_overlap_are_refused_unless_they_may(sim: cudakit.Device) -> None:
    array = sim.zeros(128)
    args = (array[:64], array[32:96].reshape(8, 8), 1.0)
    with pytest.raises(cudakit.LaunchError, match="x and out overlap"):
        stand_in(sim, "float32[:]", "float32[:, :]").launch(sim.default_stream, grid=1, args=args)
    stand_in(sim, "float32[:]", "float32[:, :]", may_overlap=True).launch(sim.default_stream, grid=1, args=args)
    sim.synchronize()


def test_cutile_is_refused_on_the_simulated_device(sim: cudakit.Device) -> None:
    with pytest.raises(cudakit.CudakitError, match=r"machine code for GPUs, and sim\S* runs PTX: use Device\('gpu'\)"):
        cutile.load(sim, cutile_made("vector_add_16"))
    with pytest.raises(cudakit.CudakitError, match=r"cutile\.build"):
        cutile.compile(sim, object(), {})


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        ("float32[:]", cutile.TileParameter("float32", 1)),
        ("float16[:, ::1]", cutile.TileParameter("float16", 2, contiguous=True)),
        ("bfloat16[:,:,::1]:16", cutile.TileParameter("bfloat16", 3, contiguous=True, aligned=True)),
        ("int64", cutile.TileParameter("int64")),
    ],
)
def test_types_of_cutile(spelled: str, expected: cutile.TileParameter) -> None:
    assert cutile.parameter(spelled) == expected
    assert len(expected.types) == (1 if expected.ndim is None else 1 + 2 * expected.ndim)


@pytest.mark.parametrize("spelled", ["float[:]", "float32[::1, :]", "float32[]", "float32:16", "float32[:]:8", 4])
def test_what_is_no_type_of_cutile_is_refused(spelled: Any) -> None:
    with pytest.raises(ValueError, match="not the type of a cuTile parameter"):
        cutile.parameter(spelled)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "tile"), [("vector_add_16", 16), ("vector_add_1024", 1024), ("vector_add_1024_of_16", 1024)]
)
@pytest.mark.parametrize("n", [4096, 1000, 5])
def test_cutile_adds_on_a_gpu(gpu: cudakit.Device, name: str, tile: int, n: int) -> None:
    add = cutile.load(gpu, cutile_made(name))
    if name.endswith("of_16"):
        n = -(-n // 16) * 16  # the kernel is compiled for multiples of 16
    x, y = numbers(n), numbers(n, 1)[:, 0]
    with gpu.stream() as stream:
        out = gpu.full(n, np.nan, np.float32, stream=stream)
        args = (gpu.array(x, stream=stream), gpu.array(y, stream=stream), out)
        add.launch(stream, grid=-(-n // tile), args=args)
        np.testing.assert_array_equal(out.numpy(stream), x + y)
        out.fill(0, stream)
        add.prepare(grid=-(-n // tile), args=args).launch(stream)
        np.testing.assert_array_equal(out.numpy(stream), x + y)


@pytest.mark.gpu
def test_cutile_rows_and_strides_on_a_gpu(gpu: cudakit.Device) -> None:
    rows, scale = cutile.load(gpu, cutile_made("softmax_1024")), cutile.load(gpu, cutile_made("scale_256"))
    x = numbers(7, 1000)
    with gpu.stream() as stream:
        source, out = gpu.array(x, stream=stream), gpu.full((7, 1000), np.nan, np.float32, stream=stream)
        rows.launch(stream, grid=7, args=(source[:, :900], out[:, :900]))
        np.testing.assert_allclose(out.numpy(stream)[:, :900], softmax(x[:, :900]), rtol=1e-5)
        assert np.isnan(out.numpy(stream)[:, 900:]).all()
        flat = gpu.full(2000, -1, np.float32, stream=stream)
        scale.launch(stream, grid=4, args=(source.reshape(7000)[:2000:2], flat[1::2], 2.5))
        got = flat.numpy(stream)
    np.testing.assert_array_equal(got[1::2], np.float32(2.5) * x.reshape(-1)[:2000:2])
    assert (got[::2] == -1).all()


# The machine code and the cache ------------------------------------------------------------------------------------


def test_registers_and_instructions_are_read_from_a_cubin(sim: cudakit.Device) -> None:
    module = sim.compile("softmax/05_tree_reduce.cu")
    read = cubin.kernels(module.cubin)
    for kernel in module.kernels:
        assert read[kernel.mangled].registers == kernel.registers > 0
        assert read[kernel.mangled].instructions > 50
    # in nvdisasm's format
    counted = {"vector_add_16": 90, "vector_add_1024": 400, "softmax_1024": 529, "scale_256": 103}
    counted["vector_add_1024_of_16"] = 128
    for name, instructions in counted.items():
        (found,) = cubin.kernels((DATA / "cutile" / f"{name}.sm_90.cubin").read_bytes()).values()
        assert (found.instructions, found.threads) == (instructions, 128)


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: b".version 8.0", lambda data: data[:3000]])
def test_what_is_no_whole_cubin_is_refused(damage: Any) -> None:
    data = (DATA / "cutile" / "vector_add_16.sm_90.cubin").read_bytes()
    with pytest.raises(ValueError, match=r"is not a cubin|cubin is incomplete"):
        cubin.kernels(damage(data))


def test_the_cache_keeps_what_other_compilers_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(tmp_path))
    made = triton_made("vector_add", ADD)
    runs = []

    def make() -> Compiled:
        runs.append(1)
        return made

    for _ in range(2):
        assert cache.compiled_by("k.py", "sm_90", ("Triton 3.9", "source", b"bytes"), make) == made
        cache.clear_memo()  # as in a new process
    assert cache.compiled_by("k.py", "sm_90", ("Triton 3.9", "source", b"bytes"), make) is not made  # in memory
    assert len(runs) == 1
    for name, arch, parts in (
        ("other.py", "sm_90", ("Triton 3.9", "source", b"bytes")),
        ("k.py", "sm_80", ("Triton 3.9", "source", b"bytes")),
        ("k.py", "sm_90", ("Triton 3.10", "source", b"bytes")),
        ("k.py", "sm_90", ("Triton 3.9", "sourceb", b"ytes")),
    ):
        before = len(runs)
        cache.compiled_by(name, arch, parts, make)
        assert len(runs) == before + 1, (name, arch, parts)
    monkeypatch.setenv("CUDAKIT_COMPILE", "never")
    assert cache.compiled_by("k.py", "sm_90", ("Triton 3.9", "source", b"bytes"), make) == made
    with pytest.raises(cudakit.CompileError, match=r"forbids compiling k.py for sm_90, but it is not in the cache"):
        cache.compiled_by("k.py", "sm_90", ("Triton 4.0",), make)


@pytest.mark.parametrize(
    ("frontend", "package", "extra"), [(triton, "triton", "triton"), (cutile, "cuda.tile", "tile")]
)
def test_a_missing_compiler_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, frontend: Any, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(cudakit.CudakitError, match=rf"not installed .*pip install 'cudakit\[{extra}\]'"):
        frontend.build("sm_90a", object(), {})


# With the compilers ------------------------------------------------------------------------------------


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Any:
    """Return the kernels of tests/data/<folder>/make.py by name."""
    return runpy.run_path(str(DATA / request.param / "make.py"))


def _explodes(*_: Any, **__: Any) -> None:
    raise AssertionError("it was compiled a second time")


@needs_triton
@pytest.mark.parametrize("kernels", ["triton"], indirect=True)
def test_triton_compiles_once_for_the_device_and_runs(
    device: cudakit.Device, kernels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton as compiler

    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(tmp_path))
    built = triton.compile(device, kernels["vector_add"], ADD, {"BLOCK": 256}, num_warps=2)
    assert built.block == (64, 1, 1)
    assert built.registers > 0
    assert built.instructions > 20
    cache.clear_memo()
    monkeypatch.setattr(compiler, "compile", _explodes)
    again = triton.compile(device, kernels["vector_add"], ADD, {"BLOCK": 256}, num_warps=2)
    x, y = numbers(1000), numbers(1000, 1)[:, 0]
    with device.stream() as stream:
        for kernel in (built, again):
            out = device.full(1000, np.nan, np.float32, stream=stream)
            args = (device.array(x, stream=stream), device.array(y, stream=stream), out, 1000)
            kernel.launch(stream, grid=4, args=args)
            np.testing.assert_array_equal(out.numpy(stream), x + y)
    with pytest.raises(cudakit.CompileError, match=r"AssertionError.*second time"):  # other constants compile again
        triton.compile(device, kernels["vector_add"], ADD, {"BLOCK": 128}, num_warps=2)


@needs_triton
@pytest.mark.parametrize("kernels", ["triton"], indirect=True)
@pytest.mark.parametrize(
    ("signature", "constants", "options", "words"),
    [
        (ADD, {"BLOCK": 1000}, {}, "power of 2"),
        ({**ADD, "BLOCK": "i32"}, {}, {}, "BLOCK is a tl.constexpr"),
        (ADD, {}, {}, "BLOCK has no type"),
        (ADD, {"BLOCK": 8}, {"num_warps": 3}, "num_warps must be .*got 3"),
        (ADD, {"BLOCK": 8}, {"num_stages": -1}, "num_stages must be .*got -1"),
    ],
)
def test_what_triton_cannot_compile_is_refused(
    kernels: Any, signature: Any, constants: Any, options: Any, words: str
) -> None:
    with pytest.raises((ValueError, cudakit.CompileError), match=words):
        triton.build("sm_90a", kernels["vector_add"], signature, constants, **options)
    with pytest.raises(ValueError, match=r"not a @triton.jit function"):
        triton.build("sm_90a", len, {})


@needs_tileiras
@pytest.mark.parametrize("kernels", ["cutile"], indirect=True)
def test_cutile_compiles_once_without_a_gpu(kernels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.tile import _compile

    monkeypatch.setenv("CUDAKIT_CACHE_DIR", str(tmp_path))
    kernel, signature, constants = kernels["MADE"]["vector_add_1024"]
    made = cutile.build("sm_90a", kernel, signature, constants)
    assert list(cubin.kernels(made.cubin)) == ["vector_add"]
    assert made.launch["parameters"] == [list(pair) for pair in signature.items()]
    cache.clear_memo()
    monkeypatch.setattr(_compile, "compile_cubin", _explodes)
    monkeypatch.setattr(_compile, "cache_lookup", lambda *_: None)  # bypass cuTile's own cache
    assert cutile.build("sm_90a", kernel, signature, constants) == made
    with pytest.raises(cudakit.CompileError, match="second time"):
        cutile.build("sm_90a", kernel, signature, constants, divisible_by=16)
    with pytest.raises(cudakit.CompileError, match="second time"):
        cutile.build("sm_90a", kernel, signature, {"TILE": 512})


@pytest.fixture
def assembler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """cuTile looks for its assembler before it checks a kernel. If it is not installed, a program that only fails is
    found instead."""
    if _has_tileiras():
        yield
        return
    from cuda.tile import _compile

    program = tmp_path / "tileiras"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    yield
    _compile._find_compiler_bin.cache_clear()
    _compile._get_max_supported_bytecode_version.cache_clear()


@needs_cutile
@pytest.mark.filterwarnings("ignore:Failed to detect the maximum supported TileIR bytecode version")
@pytest.mark.usefixtures("assembler")
@pytest.mark.parametrize("kernels", ["cutile"], indirect=True)
def test_what_cutile_cannot_compile_is_refused(kernels: Any) -> None:
    kernel, signature, _ = kernels["MADE"]["vector_add_1024"]
    with pytest.raises(cudakit.CompileError, match=r"(?s)power of two.*must be powers of two: round up"):
        cutile.build("sm_90a", kernel, signature, {"TILE": 1000})
    with pytest.raises(ValueError, match="TILE has no type"):
        cutile.build("sm_90a", kernel, signature)
    with pytest.raises(ValueError, match=r"divisible_by must be .*got 0"):
        cutile.build("sm_90a", kernel, signature, {"TILE": 16}, divisible_by=0)
    with pytest.raises(ValueError, match=r"not a @ct.kernel function"):
        cutile.build("sm_90a", len, {})


@needs_cutile
@pytest.mark.parametrize("kernels", ["cutile"], indirect=True)
def test_a_missing_assembler_says_what_to_install(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("'tileiras' compiler not found")

    monkeypatch.setattr("cuda.tile.compilation.export_kernel", missing)
    kernel, signature, constants = kernels["MADE"]["vector_add_1024"]
    with pytest.raises(cudakit.CudakitError, match=r"tileiras.* is not installed.*pip install 'cudakit\[tile\]'"):
        cutile.build("sm_90a", kernel, signature, constants)


@needs_tileiras
@pytest.mark.gpu
@pytest.mark.parametrize("kernels", ["cutile"], indirect=True)
def test_cutile_compiles_and_runs_on_a_gpu(gpu: cudakit.Device, kernels: Any) -> None:
    kernel, signature, constants = kernels["MADE"]["vector_add_1024"]
    add = cutile.compile(gpu, kernel, signature, constants)
    x = numbers(3000)
    with gpu.stream() as stream:
        out = gpu.full(3000, np.nan, np.float32, stream=stream)
        add.launch(stream, grid=3, args=(gpu.array(x, stream=stream), gpu.array(x, stream=stream), out))
        np.testing.assert_array_equal(out.numpy(stream), x + x)
