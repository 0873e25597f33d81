"""Raw launches with arrays that are not C-contiguous: they raise, unless declared for a kernel with strides."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import foreign
import numpy as np
import pytest

import cudakit
from cudakit.errors import LaunchError

SOURCE = """
__global__ void copy(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}
__global__ void stepped(const float* x, float* y, int step, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i * step];
}
extern "C" __global__ void plain(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];
}
"""
N = 24


@pytest.fixture(scope="module")
def module(device: cudakit.Device) -> cudakit.Module:
    return device.compile(source=SOURCE, name="strides.cu")


def views(x: Any, broadcast: Any) -> dict[str, Any]:
    """Views of 24 elements; each differs in elements or order from the memory that begins at its first element."""
    rows = x.reshape(4, 6)
    return {
        "step": x[::2],
        "reversed": x[::-1],
        "transposed": rows.T,
        "columns": rows[:, :5],
        "one column": rows[:, 2],
        "axes of length 1": rows[:, None, 1:2],
        "broadcast": broadcast,
    }


def broadcast_of(device: cudakit.Device, x: Any) -> Any:
    """The first element in each of 24 places."""
    return cudakit.DeviceArray(x.allocation, x.pointer, (N,), (0,), x.dtype)


# Contiguous: strides of axes of length 1, and of empty arrays, do not matter.
def dense(x: Any) -> list[Any]:
    rows = x.reshape(4, 6)
    return [
        x,
        x[4:8],
        x[5:6:7],
        rows[1:3],
        rows[2],
        rows[:1].T,
        rows[2:3, 1:2][::-1],
        rows[None, :, None],
        x[:0:-1][:0],
    ]


@pytest.mark.parametrize("name", ["copy", "plain"])
def test_a_view_with_gaps_or_another_order_is_refused(device: cudakit.Device, module: Any, name: str) -> None:
    """By launch and prepare, at the first launch and after one that fits; nothing is written."""
    stream, kernel = device.default_stream, module[name]
    x, y = device.array(np.arange(N, dtype=np.float32)), device.zeros((N,))
    wrong = views(x, broadcast_of(device, x))
    for _ in range(2):
        for view in wrong.values():
            for index, args in ((0, (view, y, 1)), (1, (x, view, 1))):
                with pytest.raises(LaunchError, match=rf"^{name}: parameter {index} ") as error:
                    kernel.launch(stream, 1, N, args=args)
                said = str(error.value)
                assert f"shape {view.shape}, strides {view.strides}" in said
                assert "copy()" in said
                assert "cudakit.strided" in said
                with pytest.raises(LaunchError, match=r"cudakit.strided"):
                    kernel.prepare(grid=1, block=N, args=args)
        kernel.launch(stream, 1, N, args=(x, y, N))  # makes the plan that the second round goes by
        np.testing.assert_array_equal(y.numpy(), x.numpy())
        y.fill(0)
    np.testing.assert_array_equal(x.numpy(), np.arange(N, dtype=np.float32))


def test_axes_of_length_1_and_empty_arrays_have_any_strides(device: cudakit.Device, module: Any) -> None:
    x, y = device.array(np.arange(N, dtype=np.float32)), device.zeros((N,))
    for view in dense(x):
        y.fill(-1)
        module["copy"].launch(device.default_stream, 1, N, args=(view, y, view.size))
        np.testing.assert_array_equal(y.numpy()[: view.size], view.numpy().reshape(-1))


def test_a_declared_view_is_taken_everywhere(device: cudakit.Device, module: Any) -> None:
    """By launch (three times: the rules, the plan, the plan with the same objects), prepare, captures and updates."""
    stream, kernel = device.default_stream, module["stepped"]
    x, y = device.array(np.arange(N, dtype=np.float32)), device.zeros((12,))
    declared, expected = cudakit.strided(x[::2]), np.arange(0, N, 2, dtype=np.float32)

    def check() -> None:
        np.testing.assert_array_equal(y.numpy(), expected)
        y.fill(0)

    for _ in range(3):
        kernel.launch(stream, 1, N, args=(declared, y, 2, 12))
        check()
    kernel.launch(stream, 1, N, args=(cudakit.strided(x[1::2]), y, 2, 12))
    np.testing.assert_array_equal(y.numpy(), expected + 1)
    kernel.prepare(grid=1, block=N, args=(declared, y, 2, 12)).launch(stream)
    check()
    with device.stream() as other:
        other.wait(stream)
        with other.capture() as graph:
            kernel.launch(other, 1, N, args=(x, y, 1, 12))
        with graph.instantiate() as ready:
            ready.update(0, args=(declared, y, 2, 12))
            ready.launch(other)
            other.synchronize()
            check()
        step = cudakit.graph.captured(lambda on, a, b: kernel.launch(on, 1, N, args=(a, b, 2, 12)))
        for _ in range(2):
            other.wait(stream)
            step(other, declared, y)
            other.synchronize()
            check()
        assert len(step) == 1
        step.close()
    with pytest.raises(LaunchError, match=r"parameter 1 .*is float.*, got a DeviceArray of float32"):
        kernel.launch(stream, 1, N, args=(x, y[::2], 2, 12))  # the other array was not declared


def test_a_declaration_opens_no_other_door(device: cudakit.Device, sim: cudakit.Device, module: Any) -> None:
    """dtype, device, read-only, closed and non-array arguments are checked as always, also by the plan."""
    stream, kernel = device.default_stream, module["stepped"]
    x, y = device.zeros((N,)), device.zeros((N,))
    frozen = y[::2]
    frozen.readonly = True
    closed = device.zeros((N,))[::2]
    closed.close()
    kernel.launch(stream, 1, N, args=(cudakit.strided(x), cudakit.strided(y), 1, N))
    for args, match in (
        ((device.zeros((N,), np.float64)[::2], y), "parameter 0 .*must be float32"),
        ((sim.zeros((N,)), y), "parameter 0 .*it is on sim"),
        ((x, frozen), "parameter 1 .*read-only"),
        ((closed, y), "parameter 0 .*closed"),
        ((5, y), "parameter 0 .*an int is not accepted as an address"),
        ((np.zeros(N, np.float32), y), "parameter 0 .*pageable"),
    ):
        with pytest.raises(LaunchError, match=match):
            kernel.launch(stream, 1, N, args=(*map(cudakit.strided, args), 1, N))
    with pytest.raises(LaunchError, match=r"parameter 3 .*is int, .*declared"):
        kernel.launch(stream, 1, N, args=(x, y, 1, cudakit.strided(N)))

    class Holder:
        array = x

    kernel.launch(stream, 1, N, args=(cudakit.strided(x), y, 1, N))
    with pytest.raises(LaunchError, match="got a Holder"):
        kernel.launch(stream, 1, N, args=(Holder(), y, 1, N))


def test_a_declared_array_outlives_a_launch_on_another_stream(device: cudakit.Device, module: Any) -> None:
    """Its free is ordered after each stream that it was launched on, by the rules and by the plan."""
    for name, declare in (("stepped", cudakit.strided), ("plain", lambda array: array)):
        x, y = device.zeros((N,)), device.zeros((N,))
        numbers = (1, 1) if name == "stepped" else (1,)
        device.synchronize()
        with device.stream() as first, device.stream() as second:
            for stream in (first, second, first):
                module[name].launch(stream, 1, 1, args=(declare(x), y, *numbers))
            assert {int(stream) for stream in x.allocation.uses.others} == {int(first), int(second)}
            first.synchronize()
            second.synchronize()


def test_pinned_views(device: cudakit.Device, module: Any) -> None:
    x, y = device.pinned((N,)), device.pinned((N,))
    x[:], y[:] = np.arange(N), 0
    stream = device.default_stream
    for _ in range(2):
        for view in (x[::2], x[::-1], x.reshape(4, 6).T, x[1::3]):
            with pytest.raises(LaunchError, match=r"parameter 0 .*strides.*contiguous pinned copy"):
                module["copy"].launch(stream, 1, N, args=(view, y, 1))
        module["copy"].launch(stream, 1, N, args=(x[4:], y, 20))
    module["stepped"].launch(stream, 1, N, args=(cudakit.strided(x[::2]), y, 2, 12))
    module["copy"].launch(stream, 1, N, args=(x[:0], device.pinned((0,)), 0))
    stream.synchronize()
    np.testing.assert_array_equal(y[:12], x[::2])
    swapped = x.view(x.dtype.newbyteorder())
    with pytest.raises(LaunchError, match=r"parameter 0 .*native byte order"):
        module["copy"].launch(stream, 1, N, args=(swapped, y, N))


# Other libraries ------------------------------------------------------------------------------------------------------


@pytest.fixture
def stand_ins() -> Iterator[cudakit.Device]:
    with foreign.stand_ins(), cudakit.Device("sim", fresh=True) as device:
        yield device


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_views_of_other_libraries(stand_ins: cudakit.Device, library: str) -> None:
    host, out = np.arange(N, dtype=np.float32), np.zeros(N, np.float32)
    of: Any = foreign.ndarray
    if library == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        of = torch.from_numpy
        rows = of(host).reshape(4, 6)
        wrong = [of(host)[::2], rows.T, rows[:, :5], rows[:, 2], rows[0].expand(4, 6), of(host)[0].expand(N)]
        fits = [of(host), of(host)[5:6], rows[:1].T, rows[1:3], of(host)[:0]]
    else:
        grid = host.reshape(4, 6)
        wrong = [of(view) for view in (host[::2], host[::-1], grid.T, grid[:, :5], np.broadcast_to(host[:1], (N,)))]
        fits = [of(host), of(host[5:6:3]), of(grid[:1].T), of(host[:0])]
    module = stand_ins.compile(source=SOURCE, name="strides.cu")
    stream = stand_ins.default_stream
    with contextlib.ExitStack() as stack:
        for memory in (host, out):
            stack.enter_context(foreign.registered(stand_ins, memory.ctypes.data, memory.nbytes))
        y = of(out)
        for _ in range(2):
            for view in wrong:
                for args in ((view, y, 1), (y, view, 1)):
                    with pytest.raises(LaunchError, match=r"^copy: parameter \d .*is .*strides .*contiguous.*strided"):
                        module["copy"].launch(stream, 1, N, args=args)
            for view in fits:
                module["copy"].launch(stream, 1, N, args=(view, y, 0))
        for _ in range(3):
            module["stepped"].launch(stream, 1, N, args=(cudakit.strided(wrong[0]), y, 2, 12))
            stand_ins.synchronize()
            np.testing.assert_array_equal(out[:12], host[::2])
            out[:] = 0
        if library == "torch":
            # the very object of the launch before, which now has other strides
            x = of(host).reshape(4, 6)
            for _ in range(2):
                module["copy"].launch(stream, 1, N, args=(x, y, 1))
            for change in (lambda: x.t_(), lambda: x.as_strided_((4, 3), (6, 2))):
                change()
                with pytest.raises(LaunchError, match=r"parameter 0 .*strides"):
                    module["copy"].launch(stream, 1, N, args=(x, y, 1))


class Exporter:
    """An object with a `__cuda_array_interface__` of its own."""

    def __init__(self, **entries: Any) -> None:
        self.__cuda_array_interface__ = entries


@pytest.mark.gpu
def test_views_of_exporters_and_libraries_on_a_gpu(gpu: cudakit.Device) -> None:
    module = gpu.compile(source=SOURCE, name="strides.cu")
    x, y = gpu.array(np.arange(N, dtype=np.float32)), gpu.zeros((N,))
    about = {"typestr": "<f4", "data": (x.pointer, False), "version": 3}
    stream = gpu.default_stream
    module["copy"].launch(stream, 1, N, args=(Exporter(**about, shape=(N,)), y, N))
    module["copy"].launch(stream, 1, N, args=(Exporter(**about, shape=(N,), strides=(4,)), y, N))
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    halves = Exporter(**about, shape=(12,), strides=(8,))
    with pytest.raises(LaunchError, match=r"parameter 0 .*strides"):
        module["copy"].launch(stream, 1, N, args=(halves, y, 1))
    module["stepped"].launch(stream, 1, N, args=(cudakit.strided(halves), y, 2, 12))
    np.testing.assert_array_equal(y.numpy()[:12], np.arange(0, N, 2))
    for entries in ({"shape": (-1,)}, {"shape": None}, {"shape": (N,), "typestr": "x"}, {"shape": (N,), "data": None}):
        with pytest.raises(LaunchError, match=r"^copy: parameter 0 .*__cuda_array_interface__"):
            module["copy"].launch(stream, 1, N, args=(Exporter(**{**about, **entries}), y, 1))
    for name in ("torch", "cupy"):
        with contextlib.suppress(ImportError):
            library = __import__(name)
            if name == "torch" and not library.cuda.is_available():
                continue
            made = library.asarray(np.arange(N, dtype=np.float32))
            made = made.cuda() if name == "torch" else made
            target = made * 0
            library.cuda.synchronize() if name == "torch" else library.cuda.Device().synchronize()
            for view in (made[::2], made.reshape(4, 6).T, library.broadcast_to(made[:1], (N,))):
                for _ in range(2):
                    with pytest.raises(LaunchError, match=r"parameter 0 .*strides"):
                        module["copy"].launch(stream, 1, N, args=(view, target, 1))
                    module["copy"].launch(stream, 1, N, args=(made, target, N))
            for _ in range(2):
                module["stepped"].launch(stream, 1, N, args=(cudakit.strided(made[::2]), target, 2, 12))
            gpu.synchronize()
            assert [float(value) for value in target[:12]] == list(range(0, N, 2))
