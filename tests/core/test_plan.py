"""Plans: what the generated function packs is what the rules say, for any types and values."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import struct
import threading
from collections.abc import Iterator
from typing import Any

import foreign
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudakit
from cudakit.errors import LaunchError
from cudakit.launch.buffer import struct_format
from cudakit.launch.cxx import BUILTIN
from cudakit.launch.plan import Target, make_plan
from cudakit.launch.signature import Parameter, parameters

SCALARS = "bcahstijlmxyfd"
SIZES = {code: BUILTIN[code].size for code in SCALARS}
CLASSES = {"6__half": 2, "13__nv_bfloat16": 2, "4Mode": 4}
POINTERS = ("Pf", "PKf", "Pv", "Pc", "P6float4", "PKd")


def layout_of(sizes: list[int]) -> list[tuple[int, int]]:
    """Offsets as the driver lays parameters out: each at a multiple of its own size."""
    found, position = [], 0
    for size in sizes:
        position = -(-position // size) * size
        found.append((position, size))
        position += size
    return found


def parameters_of(codes: list[str]) -> tuple[Parameter, ...]:
    sizes = [SIZES.get(code, CLASSES.get(code, 8)) for code in codes]
    found = parameters("_Z1k" + "".join(codes), layout_of(sizes))
    assert "bits" not in [parameter.kind for parameter in found]
    return found


integers = st.integers(-(2**65), 2**65) | st.integers(-200, 200)
numbers = st.one_of(
    integers,
    st.booleans(),
    st.floats(),
    st.sampled_from([1e39, -1e39, 65504.0, 65520.0, 3.4e38, 2**24 + 1]),
    st.floats(width=32).map(np.float32),
    st.floats(width=16).map(np.float16),
    st.floats().map(np.float64),
    st.integers(-128, 127).map(np.int8),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.booleans().map(np.bool_),
    st.none(),
    st.sampled_from(["1", 1j, b"1234", np.timedelta64(5, "s"), np.longdouble(2)]),
    st.just(5).map(np.timedelta64),
    st.sampled_from([np.longdouble("1e400"), np.longdouble("-1e310"), np.datetime64(1, "s"), np.complex64(1)]),
)


@pytest.fixture(scope="module")
def sim() -> Iterator[cudakit.Device]:
    with cudakit.Device("sim", fresh=True) as device:
        yield device


@pytest.fixture(scope="module")
def arrays(sim: cudakit.Device) -> Iterator[list[Any]]:
    stream = sim.default_stream
    made = [
        sim.zeros((8,), dtype, stream=stream) for dtype in (np.float32, np.float64, np.int8, np.uint8, np.complex64)
    ]
    frozen = made[0][:]
    frozen.readonly = True
    with foreign.stand_ins():
        views = [made[0][1:], made[0][::2], frozen, *foreign_arrays()]
        yield [*made, *views, *map(cudakit.strided, [made[0], *views]), None, np.zeros(8, np.float32)]


def foreign_arrays() -> list[Any]:
    """Arrays of torch and CuPy: of several dtypes, at odd addresses, negated, conjugated, without memory, elsewhere."""
    host = np.zeros(8, np.float32)
    made: list[Any] = [
        foreign.ndarray(host), foreign.ndarray(host[1:]), foreign.ndarray(host.view(np.complex64)),
        foreign.ndarray(host.astype(np.float64)), foreign.ndarray(host, device=1), foreign.ndarray(host[::2]),
    ]  # fmt: skip
    with contextlib.suppress(ImportError):
        import torch

        x, z = torch.zeros(8), torch.zeros(8, dtype=torch.complex64)
        made += [x, x[1:], x.double(), x.to(torch.int8), z, z.conj(), z.conj().imag, torch.nn.Parameter(x)]
        made += [x.to_sparse(), torch._neg_view(x), x[::2], x.reshape(2, 4).T]
    return made


@given(data=st.data())
def test_the_generated_function_packs_what_the_rules_say(
    sim: cudakit.Device, arrays: list[Any], data: st.DataObject
) -> None:
    codes = data.draw(st.lists(st.sampled_from([*SCALARS, *CLASSES, *POINTERS]), max_size=6))
    known = parameters_of(codes)
    pool = [st.sampled_from(arrays) if parameter.kind == "pointer" else numbers for parameter in known]
    sent: list[list[bytes]] = []

    def bytes_at(pointers: int) -> list[bytes]:
        addresses = (ctypes.c_void_p * len(known)).from_address(pointers)
        return [ctypes.string_at(address, parameter.size) for address, parameter in zip(addresses, known, strict=True)]

    def send(stream: Any, pointers: int, extra: int) -> tuple[int]:
        sent.append(bytes_at(pointers))
        return (0,)

    target = Target("k", sim.context, known, {(1, 1, 0): send}, [])
    tries = [tuple(data.draw(strategy) for strategy in pool) for _ in range(4)]
    plans = []
    for values in tries:
        with contextlib.suppress(LaunchError):
            plans.append(make_plan(target, values))
    for plan, values in itertools.product(plans, tries):
        sent.clear()
        try:
            launched = plan.launch(sim.default_stream, 1, 1, 0, values)
        except LaunchError:
            assert not sent
            sent_bytes = None
        else:
            assert len(sent) == launched
            sent_bytes = sent[0] if sent else None
        try:
            plan.convert(values)
        except LaunchError:
            assert sent_bytes is None, "the generated function sent what the rules refuse"
        else:
            assert sent_bytes in (None, bytes_at(plan.pointers))


def test_struct_formats_follow_the_layout() -> None:
    known = parameters_of(["c", "d", "s", "i", "Pf", "6__half"])
    codes = ["b", "d", "h", "i", "Q", "e"]
    assert struct_format(known, codes) == "<b7xdh2xiQe"
    assert struct.calcsize(struct_format(known, codes)) == known[-1].offset + known[-1].size


def test_a_plan_takes_what_it_was_made_for(sim: cudakit.Device, arrays: list[Any]) -> None:
    sent: list[Any] = []
    target = Target(
        "k", sim.context, parameters_of(["i"]), {(1, 1, 0): lambda *given: sent.append(given) or (0,)}, []
    )  # fmt: skip
    plan = make_plan(target, (1,))
    fitting: dict[str, Any] = {"stream": sim.default_stream, "grid": 1, "block": 1, "shared": 0, "args": (2,)}
    assert plan.launch(**fitting)
    assert len(sent) == 1
    for different in ({"grid": 2}, {"shared": 4}, {"args": [2]}, {"args": ()}, {"args": (2.0,)}, {"stream": None}):
        assert not plan.launch(**{**fitting, **different})
    assert len(sent) == 1
    assert plan.launch(**fitting)
    target.retired.append(True)
    assert not plan.launch(**fitting)
    assert len(sent) == 2


def test_a_plan_belongs_to_its_thread(sim: cudakit.Device) -> None:
    """Each thread packs into a buffer of its own."""
    kernel = sim.compile(source="__global__ void k(int n) {}", name="k.cu")["k"]
    kernel.launch(sim.default_stream, grid=1, block=1, args=(1,))
    mine = kernel._plans.by_types[(int,)]
    theirs: list[Any] = []

    def launch() -> None:
        assert not kernel._plans.by_types
        for value in (2, 3):
            kernel.launch(sim.default_stream, grid=1, block=1, args=(value,))
        theirs.append(kernel._plans.by_types[(int,)])

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert theirs[0].pointers != mine.pointers
    assert kernel._plans.by_types[(int,)] is mine


def test_other_launches_do_not_go_by_the_last_plan(sim: cudakit.Device) -> None:
    """A cluster or a cooperative grid is not what a plan launches."""
    kernel = sim.compile(source="__global__ void k(int n) {}", name="k.cu")["k"]
    calls: list[Any] = []
    kernel._plans.last_launch = lambda *given: not calls.append(given)
    kernel.launch(sim.default_stream, grid=1, block=1, args=(1,))
    assert calls == [(sim.default_stream, 1, 1, 0, (1,))]
    for different in ({"cluster": 1}, {"cooperative": True}):
        kernel.launch(sim.default_stream, **{"grid": 1, "block": 1, "args": (2,), **different})
    assert len(calls) == 1
