"""Each op captured in a graph and replayed with new data: with cudakit's own capture, torch's and CuPy's."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import foreign
import numpy as np
import pytest

import cudakit
from cudakit import ops
from cudakit.family import Family, Variant, readers
from cudakit.memory import array as memory
from cudakit.memory import libraries

Hosts = tuple[np.ndarray, ...]

# Shapes for variants that need larger ones than the default.
SHAPES = {
    "split_row": (5, 4096),
    "two_launches": (2, 12000),
    "on_chip": (3, 8192),
    "stream_k": (70, 65, 300),
    "packed": (33, 47, 65),
    "two_step": (2, 20000),
}


@dataclass(frozen=True)
class Call:
    """A call of one op: variant, dtype, shape and mode."""

    family: Family[Any]
    variant: Variant[Any]
    dtype: str
    shape: tuple[int, ...]
    mode: str

    def __str__(self) -> str:
        return f"{self.family.name}/{self.variant.name} {self.dtype} {self.shape} {self.mode}"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.family.modes[self.mode])

    def hosts(self, seed: int) -> Hosts:
        return self.family.inputs_for(
            self.shape, memory.as_dtype(self.dtype), np.random.default_rng(seed), **self.options
        )


def calls(device: cudakit.Device, dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")) -> Iterator[Call]:
    """Yield each supported variant that does not wait for the device, in the usual dtype and mode; the last variant of
    a family in its other dtypes and modes too."""
    for family in ops.families().values():
        for dtype in family.usual_dtypes:
            for mode in family.modes:
                for variant in family:
                    usual = dtype == family.usual_dtypes[0] and mode == next(iter(family.modes))
                    if dtype not in dtypes or variant.run is not None or not (usual or variant is family.variants[-1]):
                        continue
                    shape = family.read_shape(SHAPES.get(variant.name, family.shapes["sim"][0]))
                    call = Call(family, variant, dtype, shape, mode)
                    hosts = call.hosts(0)
                    arrays = [device.array(host) for host in hosts]
                    output = device.empty(*family.outputs_like(hosts, **call.options)[0])
                    problem = family.problem_of(arrays, output, **call.options)
                    reached = family.call_of(variant, arrays, output, **call.options) is not None
                    if reached and variant.refusal(problem, device.arch) is None:
                        yield call


class Cudakit:
    """Arrays and graph capture of cudakit."""

    def __init__(self, device: cudakit.Device) -> None:
        self.device = device
        self.stream = device.stream()

    def array(self, host: np.ndarray) -> Any:
        return self.device.array(host, stream=self.stream)

    def fill(self, array: Any, host: np.ndarray) -> None:
        array.copy_from(host, self.stream)

    def numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array.numpy(self.stream))

    def capture(self, work: Callable[[Any], None]) -> Callable[[], None]:
        with self.stream.capture() as graph:
            work(self.stream)
        ready = graph.instantiate()
        return lambda: ready.launch(self.stream)

    def eager(self, work: Callable[[Any], None]) -> None:
        work(self.stream)


class Torch:
    """Arrays and graph capture of torch."""

    dtypes = ("float32", "float16", "bfloat16")

    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch", reason="torch is not installed")

    def array(self, host: np.ndarray) -> Any:
        made = self.torch.empty(host.shape, dtype=getattr(self.torch, host.dtype.name), device="cuda")
        self.fill(made, host)
        return made

    def fill(self, array: Any, host: np.ndarray) -> None:
        bits = self.torch.from_numpy(np.ascontiguousarray(host).reshape(-1).view(np.uint8))
        array.reshape(-1).view(self.torch.uint8).copy_(bits)

    def numpy(self, array: Any) -> np.ndarray:
        raw = array.reshape(-1).view(self.torch.uint8).cpu().numpy()
        name = str(array.dtype).removeprefix("torch.")
        return raw.view(memory.as_dtype(name)).reshape(tuple(array.shape))

    def capture(self, work: Callable[[Any], None]) -> Callable[[], None]:
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            work(None)
        return lambda: graph.replay()

    def eager(self, work: Callable[[Any], None]) -> None:
        work(None)


class CuPy:
    """Arrays and graph capture of CuPy."""

    dtypes = ("float32", "float16")

    def __init__(self) -> None:
        self.cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
        self.stream = self.cupy.cuda.Stream(non_blocking=True)

    def array(self, host: np.ndarray) -> Any:
        with self.stream:
            return self.cupy.asarray(host)

    def fill(self, array: Any, host: np.ndarray) -> None:
        with self.stream:
            array.set(np.ascontiguousarray(host))

    def numpy(self, array: Any) -> np.ndarray:
        with self.stream:
            return np.asarray(array.get())

    def capture(self, work: Callable[[Any], None]) -> Callable[[], None]:
        with self.stream:
            self.stream.begin_capture()
            work(None)
            graph = self.stream.end_capture()
        return lambda: graph.launch(self.stream)

    def eager(self, work: Callable[[Any], None]) -> None:
        with self.stream:
            work(None)


def replay_all(side: Any, chosen: list[Call], replays: int) -> None:
    """Capture all calls in one graph; compare each replay with the same calls made one by one."""
    captured, eager = [], []
    for made in (captured, eager):
        for call in chosen:
            hosts = call.hosts(1)
            inputs = [side.array(host) for host in hosts]
            out = side.array(np.zeros(*call.family.outputs_like(hosts, **call.options)[0]))
            made.append((inputs, out))

    def work(places: list[Any]) -> Callable[[Any], None]:
        def run(stream: Any) -> None:
            for call, (inputs, out) in zip(chosen, places, strict=True):
                made = call.family.call_of(call.variant, inputs, out, stream, **call.options)
                assert made is not None
                made()

        return run

    replay = side.capture(work(captured))  # usually the first call: not yet compiled, loaded or allocated
    for number in range(replays):
        data = [call.hosts(100 + number) for call in chosen]
        for places in (captured, eager):
            for hosts, (inputs, _) in zip(data, places, strict=True):
                for host, array in zip(hosts, inputs, strict=True):
                    side.fill(array, host)
        replay()
        side.eager(work(eager))
        for call, hosts, (_, got), (_, want) in zip(chosen, data, captured, eager, strict=True):
            result = side.numpy(got)
            assert result.tobytes() == side.numpy(want).tobytes(), f"{call}: replay {number}"
            if number == 0:
                comparison = call.family.judge(result, hosts, **call.options)
                assert comparison.ok, f"{call}: {comparison}"


def of_every_family(device: cudakit.Device) -> list[Call]:
    """Return one variant per family, and each variant that uses scratch memory or several launches."""
    chosen: dict[str, Call] = {}
    for call in calls(device):
        if call.family.name not in chosen or call.variant.name in SHAPES:
            chosen[call.family.name if call.family.name not in chosen else str(call)] = call
    return list(chosen.values())


@pytest.mark.long
def test_cudakit_captures_every_family_and_all_scratch(device: cudakit.Device) -> None:
    chosen = of_every_family(device)
    with contextlib.closing(device.stream()):
        replay_all(Cudakit(device), chosen, replays=2)


def test_cudakit_captures_arrays_of_another_library_on_a_stream_that_is_named(
    sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's current stream is neither captured nor waited for; the graph keeps the arrays alive."""
    memory = np.zeros(1024 + 256, np.uint8)
    start = -memory.ctypes.data % 256
    x, y = memory[start:][:1024].view(np.float32).reshape(2, 8, 16)
    x[:] = np.random.default_rng(0).standard_normal(x.shape, dtype=np.float32)
    current, stream = sim.stream(), sim.stream()
    with foreign.stand_ins(), foreign.registered(sim, x.ctypes.data, 1024):
        (cupy,) = (known for known in libraries.more if known.name == "cupy")
        known = replace(cupy, current_stream=lambda number: int(current), stream_owner=None)
        monkeypatch.setattr(libraries, "more", [known])
        monkeypatch.setattr(readers, "device_of", {"sim": lambda number: sim})
        monkeypatch.setattr(readers, "_readers", {})
        given = [foreign.ndarray(x), foreign.ndarray(y)]
        references = [weakref.ref(array) for array in given]
        with sim.capture(stream) as graph:
            for _ in range(2):
                ops.softmax(*given, stream=stream)
        del given
        assert len(graph.nodes) == 2
        assert all(reference() is not None for reference in references)
        with graph, contextlib.closing(graph.instantiate()) as ready:
            ready.launch(stream)
            stream.synchronize()
            exponents = np.exp(x)
            np.testing.assert_allclose(y, exponents / exponents.sum(1, keepdims=True), rtol=1e-5)
        del graph, ready
        stream.synchronize()
        gc.collect()
        assert all(reference() is None for reference in references)


@pytest.mark.gpu
def test_torch_captures_every_rung(gpu: cudakit.Device) -> None:
    side = Torch()
    chosen = list(calls(gpu))
    assert len(chosen) >= 64
    assert {"stream_k", "packed", "two_launches", "on_chip", "two_step"} <= {call.variant.name for call in chosen}
    replay_all(side, chosen, replays=100)


@pytest.mark.gpu
def test_cupy_captures_every_rung(gpu: cudakit.Device) -> None:
    side = CuPy()
    replay_all(side, list(calls(gpu, side.dtypes)), replays=3)
