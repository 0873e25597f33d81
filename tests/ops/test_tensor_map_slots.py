"""Families whose kernels take tensor maps: TensorMapSlot in first calls, in repeated calls at other addresses, and in
every other use of a declaration."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import foreign
import numpy as np
import pytest

import cudakit
from cudakit import Family, Launch, TensorMap, TensorMapSlot, ceil_div, nvtx
from cudakit.errors import Closed, LaunchError, Refused
from cudakit.family import SCRATCH, readers, resolved
from cudakit.launch.module import Module
from cudakit.memory import libraries
from cudakit.memory.tensor_map import Encoding
from cudakit.testing import Case, Unsupported, Values, contiguous, run_case

Array = np.ndarray[Any, Any]

SOURCE = r"""
#include "hopper.cuh"

// Copies a box of 8 x 32 floats per block.
__device__ void box(const CUtensorMap* from, const CUtensorMap* to) {
    __shared__ alignas(128) float tile[8][32];
    __shared__ uint64 full;
    if (threadIdx.x == 0) {
        barrier_init(&full, 1);
        fence_barrier_init();
        barrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile, from, 32 * blockIdx.x, 8 * blockIdx.y, &full);
        barrier_wait(&full, 0);
        tensor_store(to, 32 * blockIdx.x, 8 * blockIdx.y, tile);
        bulk_commit();
        bulk_wait<0>();
    }
}
__global__ void boxes(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap out) { box(&x, &out); }
extern "C" __global__ void plain_boxes(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap out) {
    box(&x, &out);
}
// out = x + factor * row
__global__ void plus_row(float factor, const float* row, const __grid_constant__ CUtensorMap x, char unused,
                         const __grid_constant__ CUtensorMap out, int cols) {
    __shared__ alignas(128) float tile[8][32];
    __shared__ uint64 full;
    if (threadIdx.x == 0) {
        barrier_init(&full, 1);
        fence_barrier_init();
        barrier_arrive_expect(&full, sizeof(tile));
        tensor_load(tile, &x, 32 * blockIdx.x, 8 * blockIdx.y, &full);
    }
    __syncthreads();
    barrier_wait(&full, 0);
    const int column = blockIdx.x * 32 + threadIdx.x;
    for (int i = 0; i < 8; ++i) tile[i][threadIdx.x] += column < cols ? factor * row[column] : 0.0f;
    fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
        tensor_store(&out, 32 * blockIdx.x, 8 * blockIdx.y, tile);
        bulk_commit();
        bulk_wait<0>();
    }
}
__global__ void by_pointers(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x]; }
__global__ void ones(const __grid_constant__ CUtensorMap x, float* out, int n) {
    if (threadIdx.x < n) out[threadIdx.x] = 1.0f;
}
"""
SHAPE = (20, 72)  # not multiples of the box
FLOATS = {"x": "float32[rows, cols]"}
OUT = {"out": "float32[rows, cols]"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("slots") / "kernels.cu"
    file.write_text(SOURCE)
    return str(file)


@pytest.fixture(scope="module")
def device() -> Iterator[cudakit.Device]:
    with cudakit.Device("sim:sm_90a", fresh=True) as opened:
        yield opened


def grid(p: Any) -> tuple[int, int]:
    return ceil_div(p.cols, 32), ceil_div(p.rows, 8)


def direct(p: Any) -> Launch:
    return Launch(grid(p), 32, (TensorMapSlot(p.x, (8, 32)), TensorMapSlot(p.out, (8, 32))))


def through_scratch(p: Any) -> Any:
    """Two launches; the memory between them begins after 256 bytes of the scratch memory."""
    between = TensorMapSlot(SCRATCH.at(256, "float32"), (8, 32), dims=(p.rows, p.cols))
    return (
        Launch(grid(p), 32, (TensorMapSlot(p.x, (8, 32)), between), scratch=256 + 4 * p.rows * p.cols),
        Launch(grid(p), 32, (between, TensorMapSlot(p.out, (8, 32)))),
    )


Make = Callable[..., Family[Any]]


@pytest.fixture(scope="module")
def make(source: str) -> Make:
    """A family of one variant: make(entry, launch, **fields)."""

    def made(entry: str, launch: Callable[..., Any], **fields: Any) -> Family[Any]:
        fields = {"reference": lambda x: x, "inputs": FLOATS, "outputs": OUT, **fields}
        family: Family[Any] = Family("mine", **fields)

        def first(p: Any) -> Any:
            """the only one"""
            return launch(p)

        family.variant(source, entry=entry, since="sm_90", problems="aligned")(first)
        return family

    return made


def hosts(count: int, shape: tuple[int, ...] = SHAPE) -> list[Array]:
    rng = np.random.default_rng(count)
    return [rng.standard_normal(shape, dtype=np.float32) for _ in range(count)]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The addresses of all maps that are encoded during the test."""
    addresses: list[int] = []
    real = Encoding.at

    def at(self: Encoding, address: int) -> bytes:
        addresses.append(address)
        return real(self, address)

    monkeypatch.setattr(Encoding, "at", at)
    return addresses


# Calls ----------------------------------------------------------------------------------------------------------------

LADDER = pytest.mark.parametrize(
    ("entry", "launch"), [("boxes", direct), ("plain_boxes", direct), ("boxes", through_scratch)]
)


@LADDER
@pytest.mark.parametrize("new", [False, True], ids=["out given", "new output"])
def test_every_call_copies_its_own_arrays(
    make: Make, device: cudakit.Device, encoded: list[int], entry: str, launch: Any, new: bool
) -> None:
    """A repeated call encodes no map for an address that it has seen."""
    family, given = make(entry, launch), hosts(4)
    arrays = [device.array(host) for host in given]
    outs = [None if new else device.empty(SHAPE) for _ in arrays]
    for turn in range(3):
        for host, x, out in [*zip(given, arrays, outs, strict=True)] * 2:
            made = family(x, out=out)
            assert (made.numpy() == host).all()
            assert out is None or made is out
            made.fill(np.nan)
        if turn == 0:
            assert {array.pointer for array in arrays} <= set(encoded)
            encoded.clear()
    assert not {array.pointer for array in arrays} & set(encoded)
    assert new or encoded == []


def test_each_stream_has_its_own_scratch_memory(make: Make, device: cudakit.Device) -> None:
    family, (one, two) = make("boxes", through_scratch), hosts(2)
    with contextlib.closing(device.stream()) as first, contextlib.closing(device.stream()) as second:
        a, b = device.array(one, stream=first), device.array(two, stream=second)
        for _ in range(3):
            y, z = family(a, stream=first), family(b, stream=second)
            assert (y.numpy(first) == one).all()
            assert (z.numpy(second) == two).all()


def test_maps_among_pointers_and_numbers(make: Make, device: cudakit.Device) -> None:
    def launch(p: Any) -> Launch:
        x, out = (TensorMapSlot(array, (8, 32)) for array in (p.x, p.out))
        return Launch(grid(p), 32, (p.factor, p.row, x, 0, out, p.cols))

    family = make(
        "plus_row",
        launch,
        reference=lambda x, row, *, factor=2.0: x + factor * row,
        inputs={**FLOATS, "row": "float32[cols]"},
    )
    given = hosts(3)
    arrays = [(device.array(x), device.array(x[0])) for x in given]
    for _ in range(3):
        for host, (x, row) in zip(given, arrays, strict=True):
            for factor in (2.0, 0.5):
                assert (family(x, row, factor=factor).numpy() == host + np.float32(factor) * host[0]).all()


def test_several_outputs(make: Make, device: cudakit.Device) -> None:
    def launch(p: Any) -> tuple[Launch, ...]:
        x, first, second = (TensorMapSlot(array, (8, 32)) for array in (p.x, p.first, p.second))
        return Launch(grid(p), 32, (x, first)), Launch(grid(p), 32, (first, second))

    two = {"first": "float32[rows, cols]", "second": "float32[rows, cols]"}
    family = make("boxes", launch, reference=lambda x: (x, x), outputs=two)
    for host in hosts(2):
        assert all((out.numpy() == host).all() for out in family(device.array(host)))


def test_another_view_of_the_array(make: Make, device: cudakit.Device) -> None:
    """dims and strides select every second row, after the first row; and an array may have padded rows."""

    def launch(p: Any) -> Launch:
        some = TensorMapSlot(
            p.x.at(4 * p.x.strides[0], "float32"), (8, 32), dims=(p.out.shape[0], p.cols), strides=(8 * p.cols, 4)
        )
        return Launch((ceil_div(p.cols, 32), ceil_div(p.out.shape[0], 8)), 32, (some, TensorMapSlot(p.out, (8, 32))))

    family = make("boxes", launch, reference=lambda x: x[1::2], outputs={"out": "float32"})
    for host in hosts(3):
        x = device.array(host)
        for _ in range(2):
            assert (family(x).numpy() == host[1::2]).all()

    padded = make("boxes", direct, strided=True)
    for host in hosts(3):
        x = device.array(host)[:, :40]
        for _ in range(2):
            assert (padded(x).numpy() == host[:, :40]).all()


def test_options_of_the_map_are_those_of_a_tensor_map(make: Make, device: cudakit.Device) -> None:
    options = {
        "swizzle": "128B", "l2_promotion": "256B", "fill": "nan", "element_strides": (2, 1), "data_type": "tf32",
        "dims": (2, 64), "strides": (512, 4),
    }  # fmt: skip
    x = device.zeros((4, 64))
    slot = TensorMapSlot(cudakit.family.IN[0], (2, 32), **options)
    assert slot.among([x, None, None], 1, 1).data == TensorMap(x, (2, 32), **options).data


def test_more_addresses_than_are_remembered(make: Make, device: cudakit.Device, encoded: list[int]) -> None:
    family, out = make("boxes", direct), device.empty((8, 32))
    given = hosts(resolved.MOST_ADDRESSES + 20, (8, 32))
    arrays = [device.array(host) for host in given]
    for _ in range(2):
        for host, x in zip(given, arrays, strict=True):
            assert (family(x, out=out).numpy() == host).all()
    kept = [each for call in resolved.thread_calls(device).values() if call.family is family for each in call.maps[0]]
    assert len(kept) == 2
    assert all(0 < len(each) <= resolved.MOST_ADDRESSES for each in kept)


def test_threads_have_their_own_arguments(make: Make, device: cudakit.Device) -> None:
    family, given = make("boxes", through_scratch), hosts(4)

    def work(host: Array) -> bool:
        x = device.array(host)
        return all((family(x).numpy() == host).all() for _ in range(10))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, given))


def test_a_call_keeps_no_array_alive(make: Make, device: cudakit.Device) -> None:
    family = make("boxes", direct)
    x, out = device.array(hosts(1)[0]), device.empty(SHAPE)
    for _ in range(2):
        family(x, out=out)
    allocations = [weakref.ref(array.allocation) for array in (x, out)]
    del x, out
    gc.collect()
    assert [allocation() for allocation in allocations] == [None, None]


@pytest.mark.parametrize("new", [False, True])
def test_a_module_that_was_closed_is_refused(make: Make, new: bool) -> None:
    family = make("boxes", direct)
    with cudakit.Device("sim:sm_90a", fresh=True) as device:
        x, out = device.array(hosts(1)[0]), None if new else device.empty(SHAPE)
        for _ in range(2):
            family(x, out=out)
        for module in device.context.made():
            if isinstance(module, Module):
                module.close()
        with pytest.raises(Closed):
            family(x, out=out)


def test_ranges_around_the_launches(make: Make, device: cudakit.Device) -> None:
    family, given = make("boxes", through_scratch), hosts(3)
    arrays = [device.array(host) for host in given]
    family(arrays[0])
    with nvtx.trace() as ranges:
        made = [family(x) for x in arrays]
    assert [span.name for span in ranges.spans].count("mine.first") == 3
    for host, out in zip(given, made, strict=True):
        assert (out.numpy() == host).all()


# Captures -------------------------------------------------------------------------------------------------------------


@LADDER
def test_a_capture_has_the_maps_of_its_arrays(make: Make, device: cudakit.Device, entry: str, launch: Any) -> None:
    """The first call may be within the capture. Calls after it with other arrays do not change the graph."""
    family, (one, two, three) = make(entry, launch), hosts(3)
    with contextlib.closing(device.stream()) as stream:
        x, y, other = device.array(one, stream=stream), device.empty(SHAPE, stream=stream), device.array(two)
        device.synchronize()
        for _ in range(2):
            with stream.capture() as graph:
                family(x, out=y, stream=stream)
            assert (family(other, stream=stream).numpy(stream) == two).all()
            ready = graph.instantiate()
            for host in (one, three):
                x.copy_from(host, stream)
                y.fill(np.nan, stream)
                ready.launch(stream)
                assert (y.numpy(stream) == host).all()


# Arrays of other libraries --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["torch", "cupy"])
@LADDER
@pytest.mark.parametrize("new", [False, True], ids=["out given", "new output"])
def test_arrays_of_another_library(
    make: Make,
    sim: cudakit.Device,
    monkeypatch: pytest.MonkeyPatch,
    encoded: list[int],
    library: str,
    entry: str,
    launch: Any,
    new: bool,
) -> None:
    """Arrays in memory that the simulated device reads; one object gets new memory between calls, too."""
    if library == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    family, given = make(entry, launch), hosts(3)
    memory = np.zeros((8, 8192), np.uint8)
    start = -memory.ctypes.data % 256
    places = [row[: 4 * SHAPE[0] * SHAPE[1]].view(np.float32).reshape(SHAPE) for row in _from(memory, start)]
    fresh = iter(range(10**6))
    made_of: Callable[[Array], Any] = foreign.ndarray
    if library == "torch":
        import torch

        made_of = torch.from_numpy

    def maker(shape: Any, dtype: str, number: int) -> Callable[[], Any]:
        return lambda: made_of(places[3 + next(fresh) % 3])

    with foreign.stand_ins(), foreign.registered(sim, memory.ctypes.data, memory.nbytes):
        known = next(each for each in libraries.more if each.name == library)
        known = replace(known, current_stream=lambda number: int(sim.default_stream), stream_owner=None, maker=maker)
        monkeypatch.setattr(libraries, "more", [known])
        monkeypatch.setattr(readers, "device_of", {"sim": lambda number: sim})
        monkeypatch.setattr(readers, "_readers", {})
        arrays = [made_of(place) for place in places[:3]]
        for turn in range(3):
            for number, x in enumerate([*arrays, *arrays]):
                places[number % 3][:] = given[number % 3] + turn
                target = places[3 + number % 3]
                out = None if new else made_of(target)
                made = family(x, out=out)
                sim.synchronize()
                assert (np.asarray(made.host if library == "cupy" else made) == places[number % 3]).all()
            if turn == 1:
                assert {place.ctypes.data for place in places[:6]} <= set(encoded)
                encoded.clear()
        assert encoded == []


def _from(memory: Array, start: int) -> list[Array]:
    flat = memory.reshape(-1)[start:]
    return [flat[number * 6144 :][:6144] for number in range(6)]


# Commands -------------------------------------------------------------------------------------------------------------


@LADDER
def test_it_is_checked_like_any_family(make: Make, device: cudakit.Device, entry: str, launch: Any) -> None:
    """Benches and fuzz tests, and Family.launch, make the maps of their own arrays."""
    family = make(entry, launch, shapes=((16, 64), (20, 72)))
    report = cudakit.bench(family, device=device)
    rows = [row for row in report.rows if row.subject.rung]
    assert [row.ok for row in rows] == [True, True]
    x, out = device.array(hosts(1)[0]), device.empty(SHAPE)
    family.launch(device, family["first"], [x], out, device.default_stream)
    assert (out.numpy() == x.numpy()).all()
    for lead in (0, 4):
        place = contiguous(SHAPE, lead)
        verdict = run_case(device, family, family["first"], Case((place,), (Values(lead, 1.0),), place))
        assert not isinstance(verdict, Unsupported)
        assert verdict.ok, verdict.why


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "args", "said"),
    [
        (
            "boxes",
            lambda p: (TensorMapSlot(p.x, (8, 320)), TensorMapSlot(p.out, (8, 32))),
            r"mine: boxes\(CUtensorMap, CUtensorMap\): the tensor map for parameter 0 \(`x`\) cannot be made: axis 1: "
            "the box must be 1 to 256 elements, got 320",
        ),
        (
            "boxes",
            lambda p: (TensorMapSlot(p.x, (8, 32)), TensorMapSlot(p.out, (8, 32), data_type="float16")),
            r"parameter 1 \(`out`\) cannot be made: data_type 'float16' has 2 bytes",
        ),
        (
            "boxes",
            lambda p: (TensorMapSlot(p.x, (8, 32), dims=(21, 72)), TensorMapSlot(p.out, (8, 32))),
            r"parameter 0 \(`x`\) cannot be made: the tensor is bytes 0 to 6048 of the array, which has bytes 0 to "
            "5760; pass smaller dims",
        ),
        (
            "boxes",
            lambda p: (TensorMapSlot(p.x, (8, 32)), TensorMapSlot(SCRATCH, 32)),
            r"parameter 1 \(`out`\) cannot be made: it is in scratch memory, but no launch requests any; pass scratch=",
        ),
        ("boxes", lambda p: (TensorMapSlot(p.x, (8, 32)),), "takes 2 arguments"),
        (
            "boxes",
            lambda p: (p.x, p.out),
            r"parameter 0 \(`x`\) is CUtensorMap, got a DeviceArray of float32: pass .* in a family's Launch "
            r"cudakit.TensorMapSlot\(p.x, box=...\)",
        ),
        ("boxes", lambda p: None, r"parameter 0 \(`x`\) is CUtensorMap, got a DeviceArray of float32: pass"),
        (
            "by_pointers",
            lambda p: (TensorMapSlot(p.x, (8, 32)), p.out),
            r"parameter 0 \(`x`\) is const float\*, got a TensorMap: declare the parameter `const __grid_constant__ "
            "CUtensorMap`, or pass the array",
        ),
        (
            "ones",
            lambda p: (TensorMapSlot(p.x, (8, 32)), p.out, TensorMapSlot(p.x, (8, 32))),
            r"parameter 2 \(`n`\) is int, got a TensorMap: pass an integer",
        ),
    ],
)
def test_what_is_refused(make: Make, device: cudakit.Device, entry: str, args: Callable[..., Any], said: str) -> None:
    """By calls, and by the launches of benches and fuzz tests."""
    family = make(entry, lambda p: Launch(1, 32, args(p)))
    x, out = device.zeros((30, 72))[:20], device.empty(SHAPE)
    with pytest.raises(LaunchError, match=said):
        family(x)
    with pytest.raises(LaunchError, match=said):
        family.launch(device, family["first"], [x], out, device.default_stream)


def test_a_map_of_an_array_that_the_call_does_not_have(make: Make, device: cudakit.Device) -> None:
    own = TensorMap(device.zeros(SHAPE), (8, 32))
    family = make("boxes", lambda p: Launch(grid(p), 32, (own, TensorMapSlot(p.out, (8, 32)))))
    with pytest.raises(
        LaunchError, match=r"parameter 0 \(`x`\) is passed the tensor map of an array that is neither an"
    ):
        family(device.zeros(SHAPE))


@pytest.mark.parametrize("new", [False, True])
def test_an_address_that_breaks_a_rule(make: Make, device: cudakit.Device, new: bool) -> None:
    """Slices of 32 bytes need a multiple of 32, which only the address itself shows. Later calls work again."""
    family = make(
        "ones",
        lambda p: Launch(1, 32, (TensorMapSlot(p.x, (1, 1, 4), interleave="32B"), p.out, 4)),
        reference=lambda x: np.ones(4),
        inputs={"x": "float32[n, h, w, 8]"},
        outputs={"out": "float32[4]"},
    )
    memory, out = device.zeros(64 + 4), None if new else device.empty(4)
    good, bad = memory[:64].reshape(2, 2, 2, 8), memory[4:].reshape(2, 2, 2, 8)
    for _ in range(3):
        for _ in range(2):
            assert (family(good, out=out).numpy() == 1).all()
        for _ in range(2):
            with pytest.raises(LaunchError, match=r"parameter 0 \(`x`\) cannot be made: the address .* multiple of 32"):
                family(bad, out=out)


def test_a_slot_is_needed(device: cudakit.Device) -> None:
    with pytest.raises(TypeError, match=r"made over a Slot .* got DeviceArray; for an array itself, launch with"):
        TensorMapSlot(device.zeros(SHAPE), (8, 32))  # type: ignore[arg-type]


def test_a_map_shows_no_dtype(make: Make, device: cudakit.Device) -> None:
    with pytest.raises(Refused, match=r'the dtype of out is not declared, .* declare outputs=\{"out"'):
        make("boxes", direct, outputs={})(device.zeros(SHAPE))
