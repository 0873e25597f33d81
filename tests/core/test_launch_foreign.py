"""Launches with arrays of torch and CuPy: read by the plan, checked by the rules, with the same messages."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import foreign
import numpy as np
import pytest

import cudakit
from cudakit.errors import LaunchError
from cudakit.launch.arguments import Converter
from cudakit.launch.plan import Target, make_plan
from cudakit.launch.plan_source import launch_source
from cudakit.memory import libraries

SOURCE = """
#include <cuda_fp16.h>
__global__ void scale(const float* x, float* y, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
__global__ void fours(float4* x) {}
__global__ void pairs(float2* x) {}
__global__ void any(void* x) {}
"""
N = 64


@pytest.fixture
def sim() -> Iterator[cudakit.Device]:
    with foreign.stand_ins(), cudakit.Device("sim", fresh=True) as device:
        yield device


class Kind:
    """How to make arrays of a library from numpy memory."""

    def __init__(self, name: str) -> None:
        self.torch = pytest.importorskip("torch", reason="torch is not installed") if name == "torch" else None

    def __call__(self, host: np.ndarray[Any, Any]) -> Any:
        return self.torch.from_numpy(host) if self.torch is not None else foreign.ndarray(host)


@pytest.fixture(params=["torch", "cupy"])
def of(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


def pinned(sim: cudakit.Device, *hosts: np.ndarray[Any, Any]) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    for host in hosts:
        stack.enter_context(foreign.registered(sim, host.ctypes.data, host.nbytes))
    return stack


def test_kernels_read_and_write_the_memory_of_the_call(sim: cudakit.Device, of: Kind) -> None:
    """New arrays, and the same object with other memory, at later calls."""
    scale = sim.compile(source=SOURCE, name="foreign.cu")["scale"]
    rng = np.random.default_rng(0)
    hosts = [rng.standard_normal(N).astype(np.float32) for _ in range(4)]
    with pinned(sim, *hosts):
        x, y, other = of(hosts[0]), of(hosts[1]), of(hosts[2])
        for source, host in ((x, hosts[0]), (x, hosts[0]), (other, hosts[2])):
            hosts[1][:] = 0
            scale.launch(sim.default_stream, 1, N, args=(source, y, 2.0, N))
            sim.synchronize()
            np.testing.assert_array_equal(hosts[1], 2 * host)
        if of.torch is not None:
            y.set_(of(hosts[3]))
        else:
            y.data.ptr = hosts[3].ctypes.data
        scale.launch(sim.default_stream, 1, N, args=(other, y, 3.0, N))
        sim.synchronize()
        np.testing.assert_array_equal(hosts[3], 3 * hosts[2])


def test_a_plan_takes_them_and_the_arrays_beside_them(sim: cudakit.Device, of: Kind) -> None:
    """The plan bypasses the rules, each of which costs more than the whole launch."""
    sent: list[int] = []

    def send(stream: Any, pointers: int, extra: int) -> tuple[int]:
        sent.append(pointers)
        return (0,)

    kernel = sim.compile(source=SOURCE, name="foreign.cu")["scale"]
    target = Target("scale", sim.context, kernel.parameters, {(1, 1, 0): send}, [])
    x, y = of(np.zeros(N, np.float32)), of(np.zeros(N, np.float32))
    ours = sim.zeros((N,))
    for arguments, other in (((x, y, 1.0, N), (y, x, 2.0, N)), ((ours, y, 1.0, N), (ours, x, 1.0, N))):
        plan = make_plan(target, arguments)
        for values in (arguments, arguments, other):
            assert plan.launch(sim.default_stream, 1, 1, 0, values)
    assert len(sent) == 6


def test_the_text_for_a_tensor_is_the_documented_one(sim: cudakit.Device) -> None:
    """Its own attributes are read in the text of the plan, and no converter is called."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    kernel = sim.compile(source=SOURCE, name="foreign.cu")["fours"]
    text = launch_source([Converter("fours", kernel.parameters[0], sim.context)], (torch.zeros(4),))
    _, _, documented = str(launch_source.__doc__).partition("for a torch tensor:\n\n")
    documented, _, _ = documented.partition("\n\n")
    # the stand-in counts CPU tensors as device 0
    shown = textwrap.dedent(documented).replace("arg0.get_device() if arg0.is_cuda else -1", "arg0.get_device() + 1")
    assert textwrap.indent(shown, " " * 8) in text
    assert "convert" not in text


def refusals(of: Kind) -> dict[str, tuple[str, Any, Any, str]]:
    """Return, by error: the kernel, a valid array, an invalid one of the same type, and the message."""
    host = np.zeros(N, np.float32)
    taken, pair = of(host), of(host.view(np.complex64))
    wrong = {
        "dtype": ("fours", taken, of(host.astype(np.float64)), "the dtype must be float32; convert the tensor"),
        "alignment": ("fours", taken, of(host[1:]), "must be a multiple of 16"),
    }
    if of.torch is None:
        elsewhere = of(host)
        elsewhere.data.device_id = 1
        return {**wrong, "device": ("fours", taken, elsewhere, "the kernel runs on sim:sm_90a; copy it there first")}
    torch = of.torch
    return {
        **wrong,
        "negated": ("fours", taken, torch._neg_view(taken), "negated or conjugated view.*resolve_neg"),
        "imaginary": ("fours", taken, pair.conj().imag, "negated or conjugated view"),
        "conjugated": ("pairs", pair, pair.conj(), "negated or conjugated view.*resolve_conj"),
        "any": ("any", taken, pair.conj(), "negated or conjugated view"),
        "sparse": ("fours", taken, taken.to_sparse(), "it has no address.*pass a dense tensor"),
    }


CASES = [("cupy", what) for what in ("dtype", "alignment", "device")]
CASES += [("torch", what) for what in ("dtype", "alignment", "negated", "imaginary", "conjugated", "any", "sparse")]


@pytest.mark.parametrize(("library", "what"), CASES)
def test_what_does_not_fit_is_refused_at_each_call(sim: cudakit.Device, library: str, what: str) -> None:
    """The message is the same in the first launch and after a valid one."""
    kernel_name, fits, wrong, message = refusals(Kind(library))[what]
    said = []
    for first in (wrong, fits):
        kernel = sim.compile(source=f"// {library} {what} {len(said)}\n{SOURCE}", name="foreign.cu")[kernel_name]
        if first is fits:
            kernel.launch(sim.default_stream, 1, 1, args=(fits,))
        with pytest.raises(LaunchError, match=message) as refused:
            kernel.launch(sim.default_stream, 1, 1, args=(wrong,))
        said.append(str(refused.value))
        kernel.launch(sim.default_stream, 1, 1, args=(fits,))
    assert said[0] == said[1]


def test_a_tensor_of_another_type_takes_its_own_plan(sim: cudakit.Device) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Subclass(torch.Tensor):  # type: ignore[misc, name-defined]
        pass

    kernel = sim.compile(source=SOURCE, name="foreign.cu")["fours"]
    x = torch.zeros(N)
    for value in (x, torch.nn.Parameter(x), x.as_subclass(Subclass)) * 2:
        kernel.launch(sim.default_stream, 1, 1, args=(value,))


def test_launches_do_not_keep_foreign_arrays(sim: cudakit.Device, of: Kind) -> None:
    kernel = sim.compile(source=SOURCE, name="foreign.cu")["fours"]
    value = of(np.zeros(N, np.float32))
    before = sys.getrefcount(value)
    for _ in range(3):
        kernel.launch(sim.default_stream, 1, 1, args=(value,))
    assert sys.getrefcount(value) == before


def test_a_cpu_tensor_is_refused(of: Kind) -> None:
    """Without the stand-ins."""
    if of.torch is None:
        pytest.skip("CuPy's arrays are on GPUs")
    with cudakit.Device("sim", fresh=True) as device, pytest.MonkeyPatch.context() as patch:
        patch.setattr(libraries, "more", [])
        kernel = device.compile(source=SOURCE, name="foreign.cu")["fours"]
        with pytest.raises(LaunchError, match="a torch tensor of float32 on cpu: it is in host memory"):
            kernel.launch(device.default_stream, 1, 1, args=(of(np.zeros(N, np.float32)),))


# On a GPU -------------------------------------------------------------------------------------------------------------


def torch_of_gpu() -> Any:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this torch is a build for CPUs")
    return torch


def current_stream_of(gpu: cudakit.Device, name: str) -> cudakit.Stream:
    """Return a library's current stream."""
    library = libraries.named(name)
    return cudakit.Stream(gpu.context, handle=library.current_stream(gpu.context.ordinal), owner=library)


@pytest.mark.gpu
def test_cuda_tensors_are_read_and_refused(gpu: cudakit.Device) -> None:
    torch = torch_of_gpu()
    module = gpu.compile(source=SOURCE, name="foreign.cu")
    stream = current_stream_of(gpu, "torch")
    scale, x, y = module["scale"], torch.arange(N, device="cuda", dtype=torch.float32), torch.zeros(N, device="cuda")
    for source, factor in ((x, 2.0), (torch.nn.Parameter(x + 1), 2.0), (x[8:], 3.0)):
        y.zero_()
        for _ in range(2):
            scale.launch(stream, 1, N, args=(source, y, factor, len(source)))
        assert torch.equal(y[: len(source)], factor * source.detach())
    other = torch.zeros(N, device="cuda")
    y.set_(other)
    scale.launch(stream, 1, N, args=(x, y, 5.0, N))
    assert torch.equal(other, 5 * x)
    pair = torch.zeros(N, dtype=torch.complex64, device="cuda")
    for name, fits, wrong, message in (
        ("fours", x, x.double(), "a torch tensor of float64 on cuda:0: the dtype must be float32"),
        ("fours", x, x[1:], "must be a multiple of 16"),
        ("fours", x, x.cpu(), "it is in host memory; move it to the GPU first"),
        ("fours", x, pair.conj().imag, "negated or conjugated view"),
        ("fours", x, x.to_sparse(), "it has no address"),
        ("pairs", pair, pair.conj(), "negated or conjugated view"),
    ):
        for given in (wrong, fits, wrong):
            if given is fits:
                module[name].launch(stream, 1, 1, args=(fits,))
            else:
                with pytest.raises(LaunchError, match=message):
                    module[name].launch(stream, 1, 1, args=(wrong,))


@pytest.mark.gpu
def test_cupy_arrays_are_read_and_refused(gpu: cudakit.Device) -> None:
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    module = gpu.compile(source=SOURCE, name="foreign.cu")
    x, y = cupy.arange(N, dtype=cupy.float32), cupy.zeros(N, cupy.float32)
    stream = current_stream_of(gpu, "cupy")
    for source, factor in ((x, 2.0), (x, 2.0), (x[8:], 3.0), (x + 1, 4.0)):
        module["scale"].launch(stream, 1, N, args=(source, y, factor, len(source)))
        assert (y[: len(source)] == factor * source).all()
    for wrong, message in ((x.astype(cupy.float64), "the dtype must be float32"), (x[1:], "must be a multiple of 16")):
        for _ in range(2):
            with pytest.raises(LaunchError, match=message):
                module["fours"].launch(stream, 1, 1, args=(wrong,))
            module["fours"].launch(stream, 1, 1, args=(x,))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_torch_graph_captures_a_first_launch(gpu: cudakit.Device, mode: str) -> None:
    torch = torch_of_gpu()
    x, y = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
    ours = gpu.array(np.ones(N, np.float32))
    dropped = [gpu.zeros((N,)), gpu.pinned((N,)), gpu.compile(source=f"// dropped {mode}\n{SOURCE}", name="foreign.cu")]
    gpu.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        scale = gpu.compile(source=f"// {mode}\n{SOURCE}", name="foreign.cu")["scale"]  # loaded in the capture
        stream = current_stream_of(gpu, "torch")
        for _ in range(2):
            scale.launch(stream, 1, N, args=(x, y, 2.0, N))
        made = y + 1  # in the graph's own memory
        scale.launch(stream, 1, N, args=(made, ours, 10.0, N))
        prepared = scale.prepare(grid=1, block=N, args=(made, made, 3.0, N))
        prepared.launch(stream)
        dropped.clear()
    for seed in range(3):
        torch.manual_seed(seed)
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        np.testing.assert_allclose(y.cpu(), 2 * x.cpu(), rtol=1e-6)
        np.testing.assert_allclose(ours.numpy(), 10 * (2 * x + 1).cpu(), rtol=1e-6)
        np.testing.assert_allclose(made.cpu(), 3 * (2 * x + 1).cpu(), rtol=1e-6)


@pytest.mark.gpu
def test_a_cupy_capture_takes_a_first_launch(gpu: cudakit.Device) -> None:
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    x, y = cupy.zeros(N, cupy.float32), cupy.zeros(N, cupy.float32)
    with cupy.cuda.Stream(non_blocking=True) as theirs:
        theirs.begin_capture()
        scale = gpu.compile(source=f"// cupy\n{SOURCE}", name="foreign.cu")["scale"]
        stream = cudakit.Stream(gpu.context, handle=theirs.ptr, owner=theirs)
        for _ in range(2):
            scale.launch(stream, 1, N, args=(x, y, 2.0, N))
        graph = theirs.end_capture()
        for seed in range(3):
            x[...] = cupy.asarray(np.random.default_rng(seed).standard_normal(N).astype(np.float32))
            graph.launch(theirs)
            theirs.synchronize()
            np.testing.assert_array_equal(y.get(), 2 * x.get())


# The libraries themselves ---------------------------------------------------------------------------------------------


def test_arrays_are_read(sim: cudakit.Device, of: Kind) -> None:
    host = np.zeros((5, 4), np.float32)[1:, ::2]
    array = of(host)
    library = libraries.of(type(array))
    assert library is not None
    assert library.read(library.pointer)(array) == host.ctypes.data
    assert library.strides_of(array) == host.strides
    assert tuple(library.read(library.shape)(array)) == host.shape
    assert library.dtype_name(library.read(library.dtype)(array)) == "float32"
    assert library.read(library.device)(array) == 0
    assert not library.unresolved(array)


def test_nothing_imports_the_libraries() -> None:
    code = (
        "import sys, numpy, cudakit; from cudakit.memory import libraries;"
        "assert libraries.of(numpy.ndarray) is None and not {'torch', 'cupy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
