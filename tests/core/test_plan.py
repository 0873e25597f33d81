"""Plans: what the generated function packs is what the rules say, for any types and values."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cudakit
from cudakit.errors import LaunchError
from cudakit.launch.cxx import BUILTIN
from cudakit.launch.plan import Target, make_plan, struct_format
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
    st.sampled_from(["1", 1j, b"1234"]),
)


@pytest.fixture(scope="module")
def sim() -> Iterator[cudakit.Device]:
    with cudakit.Device("sim", fresh=True) as device:
        yield device


@pytest.fixture(scope="module")
def arrays(sim: cudakit.Device) -> list[Any]:
    stream = sim.default_stream
    made = [
        sim.zeros((8,), dtype, stream=stream) for dtype in (np.float32, np.float64, np.int8, np.uint8, np.complex64)
    ]
    frozen = made[0][:]
    frozen.readonly = True
    return [*made, made[0][1:], frozen, None, np.zeros(8, np.float32)]


@given(data=st.data())
def test_the_generated_function_packs_what_the_rules_say(
    sim: cudakit.Device, arrays: list[Any], data: st.DataObject
) -> None:
    codes = data.draw(st.lists(st.sampled_from([*SCALARS, *CLASSES, *POINTERS]), max_size=6))
    known = parameters_of(codes)
    pool = [st.sampled_from(arrays) if parameter.kind == "pointer" else numbers for parameter in known]
    sent: list[list[bytes]] = []
    unfit: list[Any] = []

    def bytes_at(pointers: int) -> list[bytes]:
        addresses = (ctypes.c_void_p * len(known)).from_address(pointers)
        return [ctypes.string_at(address, parameter.size) for address, parameter in zip(addresses, known, strict=True)]

    def send(stream: Any, pointers: int, extra: int) -> tuple[int]:
        sent.append(bytes_at(pointers))
        return (0,)

    target = Target("k", None, sim.context, known, {(1, 1, 0): send}, [], lambda *given: unfit.append(given))
    tries = [tuple(data.draw(strategy) for strategy in pool) for _ in range(4)]
    plans = []
    for values in tries:
        with contextlib.suppress(LaunchError):
            plans.append(make_plan(target, values))
    for plan, values in itertools.product(plans, tries):
        sent.clear()
        unfit.clear()
        try:
            plan.launch(sim.default_stream, grid=1, block=1, args=values)
        except LaunchError:
            assert not sent
            sent_bytes = None
        else:
            assert len(sent) + len(unfit) == 1
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


def test_a_plan_belongs_to_its_thread(sim: cudakit.Device, arrays: list[Any]) -> None:
    import threading

    unfit: list[Any] = []
    sent: list[Any] = []
    target = Target(
        "k", None, sim.context, parameters_of(["i"]), {(1, 1, 0): lambda *given: sent.append(given) or (0,)}, [],
        lambda *given: unfit.append(given),
    )  # fmt: skip
    plan = make_plan(target, (1,))
    plan.launch(sim.default_stream, grid=1, block=1, args=(2,))
    assert (len(sent), len(unfit)) == (1, 0)
    thread = threading.Thread(
        target=lambda: plan.launch(sim.default_stream, grid=1, block=1, args=(2,)),
    )
    thread.start()
    thread.join()
    assert (len(sent), len(unfit)) == (1, 1)
    for different in ({"grid": 2}, {"shared": 4}, {"cluster": 1}, {"cooperative": True}, {"args": [2]}, {"args": ()}):
        plan.launch(sim.default_stream, **{"grid": 1, "block": 1, "args": (2,), **different})
    assert (len(sent), len(unfit)) == (1, 7)
    target.retired.append(True)
    plan.launch(sim.default_stream, grid=1, block=1, args=(2,))
    assert (len(sent), len(unfit)) == (1, 8)
