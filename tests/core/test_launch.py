"""Typed launches: values that arrive, and every kind of invalid launch, which raises before anything runs."""

from __future__ import annotations

import ctypes
import enum
import re
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import foreign
import numpy as np
import pytest

import cudakit
from cudakit.errors import Closed, LaunchError
from cudakit.launch.arguments import Converter
from cudakit.launch.plan_source import launch_source

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>

struct Pair { int a; double b; };
enum Mode : short { A, B };

__global__ void scale(const float* x, float* y, float s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * s;
}

__global__ void echo(double* out, float f, double d, int i, unsigned u, long long l, signed char c, bool b, __half h,
                     __nv_bfloat16 w, Mode mode, Pair pair, float4 v) {
    out[0] = f; out[1] = d; out[2] = i; out[3] = u; out[4] = double(l); out[5] = c; out[6] = b;
    out[7] = __half2float(h); out[8] = __bfloat162float(w); out[9] = mode; out[10] = pair.a; out[11] = pair.b;
    out[12] = v.x; out[13] = v.y; out[14] = v.z; out[15] = v.w;
}

__global__ void bytes(unsigned long long* out, char* a, unsigned char* b, void* c, float4* d, float2* e, __half* f,
                      const Pair* g, bool* h) {
    out[0] = (unsigned long long)a; out[1] = (unsigned long long)b; out[2] = (unsigned long long)c;
    out[3] = (unsigned long long)d; out[4] = (unsigned long long)e; out[5] = (unsigned long long)f;
    out[6] = (unsigned long long)g; out[7] = (unsigned long long)h;
}

__global__ void where(int* out) {
    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {
        int at = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        out[3 * at] = blockIdx.x; out[3 * at + 1] = blockIdx.y; out[3 * at + 2] = blockDim.x * blockDim.y * blockDim.z;
    }
}

__global__ void __launch_bounds__(64) bounded(int* out) { out[0] = 1; }

__global__ void big(float* out, int n) {
    extern __shared__ float tile[];
    tile[threadIdx.x] = threadIdx.x;
    tile[n - 1] = 7;
    __syncthreads();
    out[0] = tile[n - 1] + tile[1];
}

__global__ void fixed(float* out) {
    __shared__ float tile[4096];
    tile[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[0] = tile[1];
}

__global__ void nothing() {}

extern "C" __global__ void plain(float* out, int i, float f, unsigned long long u, double d) {
    out[0] = i; out[1] = f; out[2] = u; out[3] = d;
}
"""


@pytest.fixture(scope="module")
def module(device: cudakit.Device) -> cudakit.Module:
    return device.compile(source=SOURCE, name="launch.cu")


@pytest.fixture
def stream(device: cudakit.Device) -> Iterator[cudakit.Stream]:
    with device.stream() as made:
        yield made


@pytest.fixture
def x(device: cudakit.Device, stream: cudakit.Stream) -> cudakit.DeviceArray:
    return device.array(np.arange(100, dtype=np.float32), stream=stream)


@pytest.fixture
def y(device: cudakit.Device, stream: cudakit.Stream) -> cudakit.DeviceArray:
    return device.full((100,), -1, np.float32, stream=stream)


def refused(kernel: cudakit.Kernel, stream: Any, match: str, **options: Any) -> str:
    """Launch and prepare; both must raise, and nothing may run. Returns the message."""
    options = {"grid": 1, "block": 128, **options}
    with pytest.raises(LaunchError, match=match) as caught:
        kernel.launch(stream, **options)
    with pytest.raises(LaunchError, match=match):
        kernel.prepare(**options)
    assert str(caught.value).startswith(kernel.name)
    return str(caught.value)


# Values that arrive ---------------------------------------------------------------------------------------------------


def test_a_launch(module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any) -> None:
    module["scale"].launch(stream, grid=1, block=128, args=(x, y, 2.5, 100))
    np.testing.assert_array_equal(y.numpy(stream), np.arange(100, dtype=np.float32) * 2.5)


def test_prepared_launches(
    device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any
) -> None:
    prepared = module["scale"].prepare(grid=1, block=128, args=(x, y, 3.0, 100))
    prepared.launch(stream)
    np.testing.assert_array_equal(y.numpy(stream), np.arange(100, dtype=np.float32) * 3)
    x.fill(2, stream)
    prepared.launch(stream)
    np.testing.assert_array_equal(y.numpy(stream), np.full(100, 6, np.float32))
    with device.stream() as other:
        other.wait(stream)
        x.fill(1, other)
        prepared.launch(other)
        np.testing.assert_array_equal(y.numpy(other), np.full(100, 3, np.float32))


class Colour(enum.IntEnum):
    RED = 1


class PairStruct(ctypes.Structure):
    _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_double)]


PAIR = np.dtype([("a", np.int32), ("b", np.float64)], align=True)


def test_every_kind_of_number_arrives(device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream) -> None:
    out = device.zeros((16,), np.float64, stream=stream)
    kernel = module["echo"]
    import ml_dtypes

    pair = np.array((7, 0.125), PAIR)[()]
    rows: list[tuple[tuple[Any, ...], list[float]]] = [
        ((0.1, 0.1, -5, 2**32 - 1, -(2**40), -128, True, 1.5, 2.5, 1, pair, (1, 2.0, np.float32(3), 4)),
         [float(np.float32(0.1)), 0.1, -5, 2**32 - 1, -(2**40), -128, 1, 1.5, 2.5, 1, 7, 0.125, 1, 2, 3, 4]),
        ((np.float32(0.5), np.float32(0.5), np.int8(-5), np.uint64(7), np.int32(3), True, np.bool_(False),
          np.float16(0.1), ml_dtypes.bfloat16(3.0), Colour.RED, PairStruct(-1, 2.0), np.arange(4, dtype=np.float32)),
         [0.5, 0.5, -5, 7, 3, 1, 0, float(np.float16(0.1)), 3, 1, -1, 2, 0, 1, 2, 3]),
        ((1, np.float64(1e300), np.bool_(True), 0, 2**63 - 1, 127, False, np.float64(-2), 1e-3, -3,
          bytes(pair.tobytes()), np.arange(4, dtype=np.float32).tobytes()),
         [1, 1e300, 1, 0, float(2**63 - 1), 127, 0, -2, float(ml_dtypes.bfloat16(1e-3)), -3, 7, 0.125, 0, 1, 2, 3]),
        ((float("inf"), float("nan"), 0, 0, 0, 0, False, float("-inf"), float("inf"), 0, pair, (0, 0, 0, 0)),
         [np.inf, np.nan, 0, 0, 0, 0, 0, -np.inf, np.inf, 0, 7, 0.125, 0, 0, 0, 0]),
    ]  # fmt: skip
    for values, expected in rows:
        for _ in range(2):  # the first makes the plan, the second uses it
            out.fill(-1.0, stream)
            kernel.launch(stream, grid=1, block=1, args=(out, *values))
            np.testing.assert_array_equal(out.numpy(stream), expected)


def test_pointers_of_every_kind(device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream) -> None:
    out = device.zeros((8,), np.uint64, stream=stream)
    arrays = [
        device.zeros((16,), kind, stream=stream)
        for kind in (np.int8, np.uint8, np.int32, np.float32, np.complex64, np.float16, PAIR, np.bool_)
    ]
    for _ in range(2):
        module["bytes"].launch(stream, grid=1, block=1, args=(out, *arrays))
        assert list(out.numpy(stream)) == [array.pointer for array in arrays]
    other = [device.zeros((16,), kind, stream=stream) for kind in (np.uint8, np.uint8, PAIR, np.float32, np.float32)]
    module["bytes"].launch(stream, grid=1, block=1, args=(out, *other, None, ctypes.c_void_p(64), None))
    assert list(out.numpy(stream)) == [*(array.pointer for array in other), 0, 64, 0]


def test_a_view_passes_its_first_element(module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any) -> None:
    module["scale"].launch(stream, grid=1, block=128, args=(x[40:], cudakit.strided(y[::2]), 1.0, 3))
    assert list(y.numpy(stream)[:4]) == [40, 41, 42, -1]


def test_dimensions(device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream) -> None:
    for grid, block, threads in (
        ((3, 2), (4, 2, 2), 16), (np.int64(2), [8], 8), ([2, 2, 2], np.array([4, 4]), 16), ((5,), 32, 32),
    ):  # fmt: skip
        blocks = int(np.prod(grid))
        out = device.zeros((blocks, 3), np.int32, stream=stream)
        module["where"].launch(stream, grid=grid, block=block, args=(out,))
        assert (out.numpy(stream)[:, 2] == threads).all()


def test_no_arguments(module: cudakit.Module, stream: cudakit.Stream) -> None:
    for _ in range(2):
        module["nothing"].launch(stream, grid=1, block=1)
    refused(module["nothing"], stream, r"takes 0 arguments \(\), got 1", args=(1,))


def test_extern_c_takes_widths(device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream) -> None:
    out = device.zeros((4,), np.float32, stream=stream)
    kernel = module["plain"]
    assert [parameter.kind for parameter in kernel.parameters] == ["bits", "int", "float", "bits", "float"]
    for _ in range(2):
        kernel.launch(stream, grid=1, block=1, args=(out, -3, 0.5, 9, 4.0))
        assert list(out.numpy(stream)) == [-3, 0.5, 9, 4]
    refused(
        kernel,
        stream,
        "parameter 0 .*is 64 bits .*, got float 1.0: pass an integer",
        args=(1.0, 1, 1.0, 1, 1.0),
    )
    refused(kernel, stream, "must be in -2147483648..4294967295", args=(out, 2**32, 1.0, 1, 1.0))
    refused(kernel, stream, "must fit 64 bits", args=(out, 1, 1.0, 2**64, 1.0))


def test_pinned_memory_is_a_pointer(device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream) -> None:
    source, target = device.pinned((100,), np.float32), device.pinned((100,), np.float32)
    source[:] = 3
    target[:] = 0
    module["scale"].launch(stream, grid=1, block=128, args=(source, target, 2.0, 100))
    stream.synchronize()
    assert (target == 6).all()


def test_large_shared_memory_is_opted_in_to(
    device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream
) -> None:
    kernel = module["big"]
    out = device.zeros((1,), np.float32, stream=stream)
    for count in (1000, kernel.max_dynamic_shared // 4):
        kernel.launch(stream, grid=1, block=32, shared=4 * count, args=(out, count))
        assert out.numpy(stream)[0] == 8


def test_shared_opt_in_happens_once(sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = sim.context.call
    monkeypatch.setattr(sim.context, "call", lambda name, *given: calls.append(name) or real(name, *given))
    kernel = sim.compile(source=SOURCE, name="launch.cu")["big"]
    out = sim.zeros((1,), np.float32)
    for count in (1000, 20000, 30000, 20000):
        kernel.launch(sim.default_stream, grid=1, block=32, shared=4 * count, args=(out, count))
    assert calls.count("cuFuncSetAttribute") == 1


def test_threads_launch_on_their_own_streams(device: cudakit.Device, module: cudakit.Module) -> None:
    kernel = module["scale"]
    failures: list[BaseException] = []

    def work(factor: int) -> None:
        try:
            with device.stream() as stream:
                x = device.array(np.arange(64, dtype=np.float32), stream=stream)
                y = device.empty_like(x, stream=stream)
                for step in range(20):
                    kernel.launch(stream, grid=1, block=64, args=(x, y, float(factor * step), 64))
                    np.testing.assert_array_equal(y.numpy(stream), np.arange(64, dtype=np.float32) * factor * step)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(factor,)) for factor in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


# Invalid arguments ----------------------------------------------------------------------------------------------------


def test_refused_wrong_count(module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any) -> None:
    match = r"takes 4 arguments \(const float\*, float\*, float, int\), got 3"
    refused(module["scale"], stream, match, args=(x, y, 1.0))
    refused(module["scale"], stream, "takes 4 arguments.*got 5", args=(x, y, 1.0, 1, 1))


def test_refused_args_that_are_no_tuple(module: cudakit.Module, stream: cudakit.Stream, x: Any) -> None:
    refused(module["where"], stream, r"args must be a tuple, got DeviceArray; write args=\(x,\)", args=x)


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [(np.float64, "float64"), (np.int32, "int32"), (np.float16, "float16"), (np.complex64, "complex64")],
)
def test_refused_dtype(
    device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream, y: Any, dtype: Any, wrong: str
) -> None:
    bad = device.zeros((100,), dtype, stream=stream)
    match = rf"parameter 0 .*is const float\*, got a DeviceArray of {wrong}: the dtype must be float32"
    refused(module["scale"], stream, match, args=(bad, y, 1.0, 100))


def test_refused_dtype_after_a_plan_was_made(
    device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any
) -> None:
    module["scale"].launch(stream, grid=1, block=128, args=(x, y, 1.0, 100))
    bad = device.zeros((100,), np.float64, stream=stream)
    refused(module["scale"], stream, "a DeviceArray of float64", args=(bad, y, 1.0, 100))
    np.testing.assert_array_equal(y.numpy(stream), x.numpy(stream))


@pytest.mark.parametrize("index", range(1, 9))
def test_refused_dtype_for_each_pointer(
    device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream, index: int
) -> None:
    out = device.zeros((8,), np.uint64, stream=stream)
    args: list[Any] = [out, *[None] * 8]
    args[index] = device.zeros((8,), np.int64, stream=stream)
    if index == 3:
        module["bytes"].launch(stream, grid=1, block=1, args=tuple(args))  # void* takes any
        assert out.numpy(stream)[2] == args[index].pointer
    else:
        refused(module["bytes"], stream, rf"parameter {index} .*is .*\*, got a DeviceArray of int64", args=tuple(args))


def test_refused_unaligned_vector_pointer(
    device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream, x: Any
) -> None:
    out = device.zeros((8,), np.uint64, stream=stream)
    args = [out, None, None, None, x, None, None, None, None]
    module["bytes"].launch(stream, grid=1, block=1, args=tuple(args))
    for start in (1, 2, 3):
        args[4] = x[start:]
        match = r"parameter 4 .*is float4\*.*its address 0x[0-9a-f]+ must be a multiple of 16"
        refused(module["bytes"], stream, match, args=tuple(args))
    args[4] = x[4:]
    module["bytes"].launch(stream, grid=1, block=1, args=tuple(args))


def test_refused_pageable_memory(module: cudakit.Module, stream: cudakit.Stream, y: Any) -> None:
    host = np.zeros(100, np.float32)
    refused(
        module["scale"],
        stream,
        "a numpy array of float32: it is in pageable host memory",
        args=(host, y, 1.0, 1),
    )


def test_refused_pinned_memory_of_another_dtype(
    device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream, y: Any
) -> None:
    host = device.pinned((100,), np.float64)
    refused(module["scale"], stream, "a numpy array of float64: the dtype must be float32", args=(host, y, 1.0, 1))


def test_refused_read_only_memory(
    device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any
) -> None:
    host = device.pinned((100,), np.float32)
    host.flags.writeable = False
    module["scale"].launch(stream, grid=1, block=1, args=(host, y, 1.0, 1))
    refused(module["scale"], stream, "parameter 1 .* read-only", args=(x, host, 1.0, 1))
    frozen = y[:]
    frozen.readonly = True
    module["scale"].launch(stream, grid=1, block=1, args=(frozen, y, 1.0, 1))
    refused(module["scale"], stream, "parameter 1 .* read-only", args=(x, frozen, 1.0, 1))


@pytest.mark.parametrize("value", [4096, np.int64(4096)])
def test_refused_int_as_pointer(module: cudakit.Module, stream: cudakit.Stream, y: Any, value: Any) -> None:
    match = r"parameter 0 .*is const float\*, got int(64)? .*: an int is not accepted as an address"
    refused(module["scale"], stream, match, args=(value, y, 1.0, 1))


@pytest.mark.parametrize("value", ["x", b"1234", 1.0, object(), [1.0, 2.0]])
def test_refused_nonsense_as_pointer(module: cudakit.Module, stream: cudakit.Stream, y: Any, value: Any) -> None:
    refused(module["scale"], stream, "parameter 0 .*is const float.*: pass a DeviceArray", args=(value, y, 1.0, 1))


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, np.int64(2**40)])
def test_refused_int_out_of_range(module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any, value: Any) -> None:
    module["scale"].launch(stream, grid=1, block=1, args=(x, y, 1.0, type(value)(1)))
    match = r"parameter 3 .*is int, got int(64)? .*: it must be in -2147483648..2147483647"
    refused(module["scale"], stream, match, args=(x, y, 1.0, value))


def _echo(out: Any) -> list[Any]:
    return [out, 1.0, 1.0, 1, 1, 1, 1, True, 1.0, 1.0, 0, np.array((1, 1.0), PAIR)[()], (0, 0, 0, 0)]


REFUSED_VALUES = [
    (1, 1e39, "too large for float"), (1, True, "pass a float"), (1, np.int32(1), "pass a float, converted explicitly"),
    (1, "1", "pass a float"), (1, 1j, "pass a float"), (1, None, "pass a float"), (1, 10**400, "too large"),
    (1, np.array(1.0, np.float32), r"array.item\(\)"), (2, np.bool_(True), "pass a float"),
    (3, 1.0, r"parameter 3 .*is int, got float 1.0: pass an integer, such as int\(x\) if rounding is intended"),
    (3, np.float32(1), "pass an integer"), (3, None, "pass an integer"), (3, "3", "pass an integer"),
    (3, np.array(1), r"array.item\(\)"),
    (4, -1, r"must be in 0..4294967295"), (5, 2**63, "must be in"), (6, 128, "must be in -128..127"),
    (7, 1, "pass True or False"), (7, np.int8(1), "pass True or False"), (7, None, "pass True or False"),
    (8, 1e6, "too large for __half"), (8, 65520.0, "too large for __half"),
    (9, 3.4e38 * 1.005, "too large for __nv_bfloat16"),
    (10, 1.0, "pass an integer"), (10, 2**16, r"parameter 10 .*is Mode, .*must be in -32768..65535"),
    (11, b"short", "got 5 bytes, the parameter needs 16"), (11, (1, 2.0), "numpy structured scalar"),
    (11, np.float32(1), "numpy structured scalar"), (11, 3, "of exactly 16 bytes"),
    (12, (1, 2, 3), "4 values are needed, got 3"), (12, (1, 2, 3, "4"), "pass a float"),
    (12, 1.0, "of exactly 16 bytes"),
    (12, np.zeros(5), "4 values are needed, got 5"), (12, bytes(12), "12 bytes"),
    # of the parameter's size, and numbers of another kind
    (11, np.complex128(1), "structured scalar"), (11, np.zeros((), np.complex128), "structured scalar"),
    (11, np.str_("abcd"), "structured scalar"), (11, memoryview(np.zeros(2)), "structured scalar"),
    (11, (ctypes.c_double * 2)(), "structured scalar"), (11, np.zeros(2), "structured scalar"),
    (12, np.complex128(1), "pass 4 numbers, a numpy structured scalar"), (12, np.longdouble(1), "pass 4 numbers"),
    (12, memoryview(np.zeros(2)), "pass 4 numbers"), (12, (ctypes.c_double * 2)(), "4 values are needed, got 2"),
    (12, np.zeros(4, "M8[s]"), "parameter 12 .*is float, got datetime64"), (12, np.zeros(4, np.int64), "pass a float"),
    (12, (1.0, 1e39, 0.0, 0.0), "too large for float"), (12, np.zeros(4, bool), "pass a float"),
    (1, np.longdouble("1e400"), "too large for float"), (2, np.longdouble("1e400"), "too large for double"),
    (2, -np.longdouble("1e400"), "too large for double"), (8, np.longdouble("1e400"), "too large for __half"),
    (3, np.timedelta64(5), "pass an integer"), (3, np.timedelta64(5, "s"), "pass an integer"),
    (3, np.timedelta64("NaT"), "pass an integer"), (3, np.datetime64(5, "s"), "pass an integer"),
    (1, np.timedelta64(5), "pass a float"), (3, float("nan"), "pass an integer"), (3, float("inf"), "pass an integer"),
    (10, np.timedelta64(1), "pass an integer"), (4, np.int8(-1), "must be in 0"),
    (4, np.int64(2**32), "must be in 0"), (1, np.complex64(1), "pass a float"), (3, 1j, "pass an integer"),
    (9, np.float64(1e39), "too large for __nv_bfl"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("index", "value", "match"), REFUSED_VALUES, ids=lambda value: repr(value).partition(" at 0x")[0][:20]
)
def test_refused_values(
    device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream, index: int, value: Any, match: str
) -> None:
    out = device.full((16,), -1.0, np.float64, stream=stream)
    args = _echo(out)
    args[index] = value
    sentence = refused(module["echo"], stream, match, args=tuple(args), block=1)
    assert f"parameter {index} (`" in sentence or index == 12
    # A plan that was made for these types does not let it pass either.
    good = _echo(out)
    if type(good[index]) is type(value):
        module["echo"].launch(stream, grid=1, block=1, args=tuple(good))
        refused(module["echo"], stream, match, args=tuple(args), block=1)
    else:
        assert (out.numpy(stream) == -1).all()


def test_refused_array_for_a_number(module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any) -> None:
    refused(module["scale"], stream, "parameter 3 .*is int, .*arrays go to pointer parameters", args=(x, y, 1.0, x))
    refused(module["scale"], stream, "parameter 2 .*is float, .*arrays go to pointer parameters", args=(x, y, x, 1))


def test_refused_closed_array(device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream, x: Any) -> None:
    y = device.zeros((100,), np.float32, stream=stream)
    kernel = module["scale"]
    kernel.launch(stream, grid=1, block=128, args=(x, y, 1.0, 100))
    fresh, used = (kernel.prepare(grid=1, block=128, args=(x, y, 1.0, 100)) for _ in range(2))
    used.launch(stream)
    y.close()
    refused(kernel, stream, "parameter 1 .*it was closed", args=(x, y, 1.0, 100))
    for prepared in (fresh, used):
        with pytest.raises(LaunchError, match="an array of this prepared launch was closed"):
            prepared.launch(stream)


def test_refused_array_of_another_device(device: cudakit.Device, sim: cudakit.Device, module: cudakit.Module) -> None:
    with device.stream() as stream:
        mine = device.zeros((100,), np.float32, stream=stream)
        theirs = sim.zeros((100,), np.float32)
        kernel = module["scale"]
        kernel.launch(stream, grid=1, block=1, args=(mine, mine, 1.0, 1))
        refused(
            kernel, stream, r"parameter 1 .*: it is on sim:sm_90a, but the kernel is on", args=(mine, theirs, 1.0, 1)
        )


def test_arrays_of_the_same_device_opened_twice(module: cudakit.Module, device: cudakit.Device, x: Any, y: Any) -> None:
    if device.kind == "sim":
        pytest.skip("each fixture's simulated device is its own")
    again = cudakit.Device("gpu")
    z = again.zeros((100,), np.float32)
    module["scale"].launch(device.default_stream, grid=1, block=128, args=(x, z, 1.0, 100))
    again.close()


class FakeInterface:
    """An object with a __cuda_array_interface__ of its own."""

    def __init__(self, pointer: int, typestr: str = "<f4", read_only: bool = False, **more: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (100,), "typestr": typestr, "data": (pointer, read_only), "version": 3, **more,
        }  # fmt: skip


def test_arrays_of_other_libraries(
    device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any
) -> None:
    kernel = module["scale"]
    exported = FakeInterface(x.pointer)
    if device.kind == "sim":
        refused(kernel, stream, "it is in GPU memory, but the kernel runs on sim", args=(exported, y, 1.0, 1))
        return
    kernel.launch(stream, grid=1, block=128, args=(exported, y, 2.0, 100))
    np.testing.assert_array_equal(y.numpy(stream), x.numpy(stream) * 2)
    refused(kernel, stream, "the dtype must be float32", args=(FakeInterface(x.pointer, "<f8"), y, 1.0, 1))
    refused(kernel, stream, "read-only", args=(x, FakeInterface(y.pointer, read_only=True), 1.0, 1))
    refused(kernel, stream, "masked", args=(FakeInterface(x.pointer, mask=x), y, 1.0, 1))


@pytest.mark.gpu
def test_torch_tensors(gpu: cudakit.Device) -> None:
    torch = pytest.importorskip("torch")
    kernel = gpu.compile(source=SOURCE, name="launch.cu")["scale"]
    x = torch.arange(100, dtype=torch.float32, device="cuda")
    y = torch.zeros_like(x)
    stream = cudakit.Stream(gpu.context, handle=torch.cuda.current_stream().cuda_stream)
    for _ in range(3):
        kernel.launch(stream, grid=1, block=128, args=(x, y, 2.0, 100))
    assert torch.equal(y, 2 * x)
    refused(kernel, stream, "a torch tensor of float64 on cuda:0", args=(x.double(), y, 1.0, 1))
    refused(kernel, stream, "it is in host memory", args=(x.cpu(), y, 1.0, 1))


# Invalid configurations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"grid": 0}, "grid must be at least 1 in each dimension, got 0; skip the launch"),
        ({"grid": (4, 0)}, "at least 1 in each dimension"),
        ({"block": (32, 0, 1)}, "block must be at least 1"),
        ({"grid": -1}, "at least 1 in each dimension"),
        ({"grid": ()}, r"grid must have one to three dimensions, got \(\)"),
        ({"grid": (1, 1, 1, 1)}, r"grid must have one to three dimensions, got \(1, 1, 1, 1\)"),
        ({"grid": 1.5}, "grid must be an int or a tuple .*got 1.5"),
        ({"grid": "4"}, "grid must be an int or a tuple .*got '4'"),
        ({"grid": None}, "grid must be an int or a tuple .*got None"),
        ({"grid": b"\1\1"}, r"grid must be an int or a tuple .*got b'\\x01\\x01'"),
        ({"grid": {1, 2}}, r"grid must be an int or a tuple .*got \{1, 2\}"),
        ({"grid": {1: 2}}, r"grid must be an int or a tuple .*got \{1: 2\}"),
        ({"grid": True}, "grid must be an int or a tuple .*got True"),
        ({"block": (32, True)}, r"block must be an int .*got \(32, True\)"),
        ({"grid": np.ones((1, 1), np.int64)}, "grid must be an int"),
        ({"block": (32, 1.0)}, "block must be an int"),
        ({"grid": 2**31}, r"grid\.x must be at most 2147483647 on .*, got 2147483648"),
        ({"grid": (1, 65536)}, r"grid\.y must be at most 65535 on .*, got 65536"),
        ({"grid": (1, 1, 65536)}, r"grid\.z must be at most 65535 on .*, got 65536"),
        ({"block": 1025}, r"block\.x must be at most 1024 on .*, got 1025"),
        ({"block": (1, 1, 65)}, r"block\.z must be at most 64 on .*, got 65"),
        ({"block": (32, 33)}, r"a block of 32x33x1 has 1056 threads, but .* supports at most 1024"),
        ({"shared": -1}, "shared must be 0 or more, got -1"),
        ({"shared": 1.5}, "shared must be a number of bytes, got 1.5"),
        ({"shared": True}, "shared must be a number of bytes, got True"),
        ({"shared": 232449}, "232449 bytes of dynamic shared memory were requested, but at most 232448 are available"),
    ],
    ids=repr,
)
def test_refused_configurations(
    module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any, options: dict[str, Any], match: str
) -> None:
    refused(module["scale"], stream, match, args=(x, y, 1.0, 100), **options)
    assert (y.numpy(stream) == -1).all()


def test_refused_block_over_the_launch_bounds(
    device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream
) -> None:
    kernel = module["bounded"]
    assert kernel.max_threads == 64
    out = device.zeros((1,), np.int32, stream=stream)
    kernel.launch(stream, grid=1, block=64, args=(out,))
    assert out.numpy(stream)[0] == 1
    refused(
        kernel,
        stream,
        r"has 65 threads, but this kernel supports at most 64 \(its __launch_bounds__",
        block=65,
        args=(out,),
    )


def test_static_shared_memory_counts(device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream) -> None:
    kernel = module["fixed"]
    out = device.zeros((1,), np.float32, stream=stream)
    assert kernel.static_shared == 16384
    kernel.launch(stream, grid=1, block=32, shared=kernel.max_dynamic_shared, args=(out,))
    assert out.numpy(stream)[0] == 1
    over = kernel.max_dynamic_shared + 1
    refused(kernel, stream, f"{over} bytes .* 16384 of them static", shared=over, args=(out,))


def test_refused_streams(device: cudakit.Device, sim: cudakit.Device, module: cudakit.Module, x: Any, y: Any) -> None:
    kernel = module["scale"]
    prepared = kernel.prepare(grid=1, block=1, args=(x, y, 1.0, 1))
    with sim.stream() as other:
        for wrong in (0, None, x, "stream", other):
            with pytest.raises(LaunchError, match=r"^scale: .*stream"):
                kernel.launch(wrong, grid=1, block=1, args=(x, y, 1.0, 1))
            with pytest.raises(LaunchError, match=r"^scale: .*stream"):
                prepared.launch(wrong)
    closed = device.stream()
    closed.wait(x.stream)
    kernel.launch(closed, grid=1, block=1, args=(x, y, 1.0, 1))
    prepared.launch(closed)
    closed.close()
    with pytest.raises(Closed, match="scale: the stream was closed"):
        kernel.launch(closed, grid=1, block=1, args=(x, y, 1.0, 1))
    with pytest.raises(Closed, match="scale: the stream was closed"):
        prepared.launch(closed)


def test_arguments_known_again_are_tested_for_what_can_change(
    module: cudakit.Module, device: cudakit.Device, stream: cudakit.Stream
) -> None:
    kernel = module["scale"]
    one, two = (device.full((100,), value, np.float32, stream=stream) for value in (1.0, 2.0))
    out = device.zeros((100,), np.float32, stream=stream)

    def result(source: Any, factor: Any, **more: Any) -> float:
        out.fill(0, stream)
        kernel.launch(stream, grid=1, block=128, args=(source, out, factor, 100), **more)
        return float(out.numpy(stream)[99])

    factor = 3.0
    for _ in range(3):
        assert result(one, factor) == 3
    # Others come between: by the same plan, by the rules (a cooperative launch packs there), and by another type.
    assert [result(two, factor), result(one, factor), result(one, 4.0), result(one, factor)] == [6, 3, 4, 3]
    if device.attribute("COOPERATIVE_LAUNCH"):
        assert [result(two, factor, cooperative=True), result(one, factor)] == [6, 3]
    assert [result(two, np.float64(5.0)), result(one, factor)] == [10, 3]
    with pytest.raises(LaunchError, match="must be in"):
        kernel.launch(stream, grid=1, block=128, args=(one, out, factor, 2**40))
    assert result(one, factor) == 3
    # An array that died leaves its place in memory to another: the launch must not take one for the other.
    for value in range(20):
        fresh = device.full((100,), float(value), np.float32, stream=stream)
        assert result(fresh, factor) == 3 * value
        del fresh
    assert result(one, factor) == 3
    one.close()
    with pytest.raises((LaunchError, Closed), match="closed"):
        kernel.launch(stream, grid=1, block=128, args=(one, out, factor, 100))


def test_a_prepared_launch_finds_its_context_on_a_new_thread(
    module: cudakit.Module, device: cudakit.Device, stream: cudakit.Stream
) -> None:
    x, y = device.full((100,), 2.0, np.float32, stream=stream), device.zeros((100,), np.float32, stream=stream)
    prepared = module["scale"].prepare(grid=1, block=128, args=(x, y, 4.0, 100))
    prepared.launch(stream)
    y.fill(0, stream)
    failures: list[BaseException] = []

    def launch() -> None:
        try:
            prepared.launch(stream)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert not failures
    assert (y.numpy(stream) == 8).all()


def test_a_struct_changed_in_place_arrives_changed(
    module: cudakit.Module, device: cudakit.Device, stream: cudakit.Stream
) -> None:
    source = "struct P { int a; int b; }; __global__ void put(int* out, P p) { out[0] = p.a; out[1] = p.b; }"
    kernel = device.compile(source=source, name="put.cu")["put"]
    out = device.zeros((2,), np.int32, stream=stream)
    value = np.zeros(1, [("a", np.int32), ("b", np.int32)])[0]
    for a in (6, 7, 8):
        value["a"] = a
        kernel.launch(stream, grid=1, block=1, args=(out, value))
        assert out.numpy(stream).tolist() == [a, 0]


@pytest.mark.parametrize(("what", "size"), [("grid", 1.0), ("block", (32.0,)), ("shared", 0.0)])
def test_a_size_that_only_equals_a_known_one_is_refused(
    module: cudakit.Module, stream: cudakit.Stream, what: str, size: Any
) -> None:
    sizes: dict[str, Any] = {"grid": 1, "block": (32,), "shared": 0}
    kernel = module["nothing"]
    kernel.launch(stream, **sizes)
    kernel.launch(stream, **sizes)
    with pytest.raises(LaunchError, match=f"{what} must be .*got {re.escape(repr(size))}"):
        kernel.launch(stream, **{**sizes, what: size})


def test_a_stream_of_another_device_with_a_known_handle_is_refused() -> None:
    with cudakit.Device("sim", fresh=True) as own, cudakit.Device("sim", fresh=True) as other:
        kernel = own.compile(source=SOURCE, name="launch.cu")["nothing"]
        for _ in range(2):
            kernel.launch(cudakit.Stream(own.context, handle=1), grid=1, block=1)
        with pytest.raises(LaunchError, match="stream"):
            kernel.launch(cudakit.Stream(other.context, handle=1), grid=1, block=1)


def test_a_prepared_launch_of_a_closed_device_is_refused() -> None:
    with cudakit.Device("sim", fresh=True) as own:
        kernel = own.compile(source=SOURCE, name="launch.cu")["nothing"]
        prepared, stream = kernel.prepare(grid=1, block=1), own.stream()
        prepared.launch(stream)
    with pytest.raises(Closed):
        prepared.launch(stream)


def test_a_launch_keeps_no_array_alive(module: cudakit.Module, device: cudakit.Device, stream: cudakit.Stream) -> None:
    kernel = module["scale"]
    x, y = device.zeros((100,), np.float32, stream=stream), device.zeros((100,), np.float32, stream=stream)
    for _ in range(3):
        kernel.launch(stream, grid=1, block=128, args=(x, y, 1.0, 100))
    gone = weakref.ref(x)
    del x
    assert gone() is None


class ForeignStream:
    """Another library's stream, a new object each time, as torch's are."""

    def __init__(self, stream: cudakit.Stream) -> None:
        self.stream = stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return self.stream.__cuda_stream__()


def test_foreign_streams(module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any) -> None:
    kernel = module["scale"]
    prepared = kernel.prepare(grid=1, block=128, args=(x, y, 4.0, 100))
    for _ in range(3):
        kernel.launch(ForeignStream(stream), grid=1, block=128, args=(x, y, 3.0, 100))
    np.testing.assert_array_equal(y.numpy(stream), x.numpy(stream) * 3)
    prepared.launch(ForeignStream(stream))
    np.testing.assert_array_equal(y.numpy(stream), x.numpy(stream) * 4)
    assert len(x.allocation.uses.others) <= 1


def test_refused_after_the_module_was_closed(device: cudakit.Device) -> None:
    module = device.compile(source=SOURCE, name="closing.cu")
    kernel, untouched = module["where"], module["nothing"]
    out = device.zeros((3,), np.int32)
    kernel.launch(device.default_stream, grid=1, block=1, args=(out,))
    prepared = kernel.prepare(grid=1, block=1, args=(out,))
    module.close()
    module.close()
    for launch in (
        lambda: kernel.launch(device.default_stream, grid=1, block=1, args=(out,)),
        lambda: prepared.launch(device.default_stream),
        lambda: kernel.prepare(grid=1, block=1, args=(out,)),
        lambda: untouched.launch(device.default_stream, grid=1, block=1),
        lambda: kernel.occupancy(32),
        lambda: kernel.max_cluster(kernel.config(1, 1, 0)),
        lambda: module["bounded"],
        lambda: module.variable("x"),
    ):
        with pytest.raises(Closed, match=r"closing\.cu.* was closed"):
            launch()
    assert device.compile(source=SOURCE, name="closing.cu")["where"] is not kernel


# Cooperative grids and clusters ---------------------------------------------------------------------------------------

COOPERATIVE = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void sum(int* partial, int* out, int blocks) {
    partial[blockIdx.x] = blockIdx.x + 1;
    cg::this_grid().sync();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        int s = 0;
        for (int i = 0; i < blocks; ++i) s += partial[i];
        out[0] = s;
    }
}
"""

CLUSTER = r"""
__global__ void ranks(unsigned* out) {
    unsigned rank, size;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    out[2 * blockIdx.x] = rank; out[2 * blockIdx.x + 1] = size;
}
__global__ void __cluster_dims__(2, 1, 1) pairs(unsigned* out) {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    out[blockIdx.x] = rank;
}
"""


def test_cooperative_launch(device: cudakit.Device, stream: cudakit.Stream) -> None:
    kernel = device.compile(source=COOPERATIVE, name="cooperative.cu")["sum"]
    partial, out = device.zeros((64,), np.int32, stream=stream), device.zeros((1,), np.int32, stream=stream)
    kernel.launch(stream, grid=64, block=32, args=(partial, out, 64), cooperative=True)
    assert out.numpy(stream)[0] == 64 * 65 // 2
    out.fill(0, stream)
    kernel.prepare(grid=64, block=32, args=(partial, out, 64), cooperative=True).launch(stream)
    assert out.numpy(stream)[0] == 64 * 65 // 2
    fits = kernel.occupancy(32) * device.multiprocessors
    match = f"a cooperative grid must fit on the device at once, which holds {fits} blocks .*, got {fits + 1}"
    refused(kernel, stream, match, grid=fits + 1, block=32, args=(partial, out, 1), cooperative=True)


def test_cluster_launch(device: cudakit.Device, stream: cudakit.Stream) -> None:
    if not device.attribute("CLUSTER_LAUNCH"):
        pytest.skip("the device has no clusters")
    module = device.compile(source=CLUSTER, name="cluster.cu")
    out = device.zeros((16,), np.uint32, stream=stream)
    kernel = module["ranks"]
    kernel.launch(stream, grid=8, block=32, args=(out,), cluster=4)
    assert list(out.numpy(stream)) == [0, 4, 1, 4, 2, 4, 3, 4] * 2
    kernel.prepare(grid=8, block=32, args=(out,), cluster=(2, 1)).launch(stream)
    assert list(out.numpy(stream)) == [0, 2, 1, 2] * 4
    refused(kernel, stream, r"grid\.x must be a multiple of cluster\.x, 3, got 8", grid=8, args=(out,), cluster=3)
    refused(kernel, stream, r"grid\.y must be a multiple of cluster\.y, 2, got 1", grid=8, args=(out,), cluster=(1, 2))
    refused(kernel, stream, r"supports clusters of at most \d+ blocks, got 32", grid=32, args=(out,), cluster=32)
    refused(kernel, stream, "cluster must be at least 1 in each dimension, got 0", grid=32, args=(out,), cluster=0)


def test_compiled_cluster(device: cudakit.Device, stream: cudakit.Stream) -> None:
    if not device.attribute("CLUSTER_LAUNCH"):
        pytest.skip("the device has no clusters")
    kernel = device.compile(source=CLUSTER, name="cluster.cu")["pairs"]
    out = device.zeros((4,), np.uint32, stream=stream)
    assert kernel.required_cluster == (2, 1, 1)
    kernel.launch(stream, grid=4, block=32, args=(out,))
    assert list(out.numpy(stream)) == [0, 1, 0, 1]
    refused(kernel, stream, r"grid\.x must be a multiple of 2, the cluster .* got 3", grid=3, args=(out,))
    refused(kernel, stream, r"cluster must be \(2, 1, 1\)", grid=4, args=(out,), cluster=4)


DEPENDENT = r"""
__global__ void first(int* x) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    x[threadIdx.x] = 2 * threadIdx.x;
}
__global__ void second(const int* x, int* y) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    y[threadIdx.x] = x[threadIdx.x] + 1;
}
"""


BEFORE_WAIT = r"""
#define WAIT asm volatile("griddepcontrol.wait;" ::: "memory")
__global__ void first(int* x, int* done) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    x[threadIdx.x] = done[threadIdx.x + 64] + 2;
    atomicAdd(done, 1);
}
__global__ void waits(int* x, const int* own, int* y) {
    const int before = own[threadIdx.x];
    WAIT;
    y[threadIdx.x] = x[threadIdx.x] + before;
}
__global__ void one_waits(int* x, const int* own, int* y) {
    if (threadIdx.x == 40) WAIT;
    __syncthreads();
    y[threadIdx.x] = x[threadIdx.x] + own[threadIdx.x];
}
__global__ void flag(int* x, const int* own, int* y) {
    __shared__ int ready;
    if (threadIdx.x == 0) ready = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        WAIT;
        asm volatile("st.release.cta.s32 [%0], 1;" ::"l"(&ready) : "memory");
    }
    int seen = 0;
    while (!seen) asm volatile("ld.acquire.cta.s32 %0, [%1];" : "=r"(seen) : "l"(&ready) : "memory");
    y[threadIdx.x] = x[threadIdx.x] + own[threadIdx.x];
}
__global__ void cluster_waits(int* x, const int* own, int* y) {
    if (blockIdx.x == 1) WAIT;
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    y[threadIdx.x + 64 * blockIdx.x] = x[threadIdx.x] + own[threadIdx.x];
}
__global__ void cluster_flag(int* x, const int* own, int* y) {
    __shared__ int ready;
    if (threadIdx.x == 0) ready = 0;
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    if (blockIdx.x == 1 && threadIdx.x == 33) {
        WAIT;
        asm volatile("{ .reg .b64 a; mapa.u64 a, %0, 0; st.release.cluster.s32 [a], 1; }" ::"l"(&ready) : "memory");
    }
    if (blockIdx.x == 0) {
        int seen = 0;
        while (!seen) asm volatile("ld.acquire.cluster.s32 %0, [%1];" : "=r"(seen) : "l"(&ready) : "memory");
        y[threadIdx.x] = x[threadIdx.x] + own[threadIdx.x];
    }
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__global__ void others_do_not(int* x, const int* own, int* y) {
    if (threadIdx.x < 32) WAIT;
    y[threadIdx.x] = x[threadIdx.x] + own[threadIdx.x];  // BAD
}
__global__ void reads(int* x, const int* own, int* y) {
    const int early = x[threadIdx.x];  // BAD
    WAIT;
    y[threadIdx.x] = early + own[threadIdx.x];
}
__global__ void overwrites(int* x, const int* own, int* y) {
    x[threadIdx.x] = own[threadIdx.x];  // BAD
    WAIT;
}
__global__ void overwrites_input(int* done, const int* own, int* y) {
    done[threadIdx.x + 64] = own[threadIdx.x];  // BAD
    WAIT;
}
__global__ void never(int* x, const int* own, int* y) {
    y[threadIdx.x] = x[threadIdx.x] + own[threadIdx.x];  // BAD
}
__global__ void counts(int* done, const int* own, int* y) {
    atomicAdd(done, own[threadIdx.x]);
    WAIT;
}
"""


def queue_dependent(device: cudakit.Device, name: str, captured: bool, **how: Any) -> None:
    """Queue a kernel, and a launch of `name` that may start before its end."""
    module = device.compile(source=BEFORE_WAIT, name="before.cu")
    stream = device.stream()
    x, done, own, y = (device.zeros((128,), np.int32, stream=stream) for _ in range(4))
    stream.synchronize()

    def queue() -> None:
        module["first"].launch(stream, grid=1, block=64, args=(x, done))
        memory = done if name in ("overwrites_input", "counts") else x
        module[name].launch(stream, block=64, args=(memory, own, y), **{"programmatic": True, "grid": 1, **how})

    if captured:
        with stream.capture() as graph:
            queue()
        with graph.instantiate() as ready:
            ready.launch(stream)
            stream.synchronize()
    else:
        queue()
        stream.synchronize()


@pytest.mark.parametrize("captured", [False, True], ids=["queued", "captured"])
@pytest.mark.parametrize("name", ["others_do_not", "reads", "overwrites", "overwrites_input", "never"])
def test_an_access_before_the_wait_for_the_predecessor_is_reported(
    sim: cudakit.Device, name: str, captured: bool
) -> None:
    with pytest.raises(cudakit.CudaError, match=r"access before griddepcontrol\.wait") as caught:
        queue_dependent(sim, name, captured)
    lines = BEFORE_WAIT.splitlines()
    kernel = next(k for k, line in enumerate(lines) if f" {name}(" in line)
    bad = next(k for k, line in enumerate(lines) if k > kernel and "BAD" in line) + 1
    assert f"of kernel {name} at before.cu:{bad}\n" in str(caught.value)
    assert "kernel first" in str(caught.value)
    # of bytes that both only store, those that change
    count = {"others_do_not": 128, "overwrites": 64}.get(name, 256)
    assert f"both access {count} bytes" in str(caught.value)


@pytest.mark.parametrize("captured", [False, True], ids=["queued", "captured"])
@pytest.mark.parametrize("name", ["waits", "one_waits", "flag", "cluster_waits", "cluster_flag", "counts"])
def test_an_access_after_the_wait_or_by_atomics_is_right(sim: cudakit.Device, name: str, captured: bool) -> None:
    queue_dependent(sim, name, captured, **({"cluster": 2, "grid": 2} if "cluster" in name else {}))


def test_a_launch_that_is_not_programmatic_needs_no_wait(sim: cudakit.Device) -> None:
    queue_dependent(sim, "never", False, programmatic=False)


def test_a_programmatic_dependent_launch_waits_for_its_predecessor(
    device: cudakit.Device, stream: cudakit.Stream
) -> None:
    if device.context.compute_capability < (9, 0):
        pytest.skip("programmatic dependent launches need sm_90")
    module = device.compile(source=DEPENDENT, name="dependent.cu")
    first, second = module["first"], module["second"]
    x, y = device.zeros((64,), np.int32, stream=stream), device.zeros((64,), np.int32, stream=stream)

    def chain() -> None:
        first.launch(stream, grid=1, block=64, args=(x,))
        second.launch(stream, grid=1, block=64, args=(x, y), programmatic=True)

    for queue in (chain, second.prepare(grid=1, block=64, args=(x, y), programmatic=True, cluster=1).launch):
        y.fill(0, stream)
        queue() if queue is chain else queue(stream)
        assert list(y.numpy(stream)) == list(range(1, 129, 2))
    y.fill(0, stream)
    with stream.capture() as graph:
        chain()
    with graph.instantiate() as ready:
        ready.launch(stream)
        assert list(y.numpy(stream)) == list(range(1, 129, 2))
    refused(second, stream, "programmatic must be True or False, got 'yes'", args=(x, y), programmatic="yes")
    with cudakit.Device("sim:sm_89", fresh=True) as old:
        kernel = old.compile(source=SOURCE, name="launch.cu")["nothing"]
        refused(kernel, old.default_stream, "sim:sm_89 does not support programmatic dependent", programmatic=True)


def test_a_launch_can_have_a_priority(device: cudakit.Device, stream: cudakit.Stream) -> None:
    kernel = device.compile(source=SOURCE, name="launch.cu")["nothing"]
    least, greatest = device.context.stream_priorities()
    for priority in (least, greatest, np.int32(greatest)):
        kernel.launch(stream, grid=1, block=1, priority=priority)
    kernel.prepare(grid=1, block=1, priority=greatest).launch(stream)
    stream.synchronize()
    said = rf"priority must be {greatest} \(runs first\) to {least} on {device.context.spec}, got"
    for wrong in (least + 1, greatest - 1):
        refused(kernel, stream, f"{said} {wrong}", priority=wrong)
    for odd in (1.0, "high", True, (0,)):
        refused(kernel, stream, "priority must be an int or None, got", priority=odd)


def test_refused_clusters_before_sm_90() -> None:
    with cudakit.Device("sim:sm_80") as old:
        kernel = old.compile(source=SOURCE, name="launch.cu")["nothing"]
        with pytest.raises(LaunchError, match="does not support thread block clusters"):
            kernel.launch(old.default_stream, grid=2, block=1, cluster=2)


def test_cluster_refusals_need_no_cluster_hardware(sim: cudakit.Device) -> None:
    """The rules are the same on every device; this one is made to report support for clusters."""
    sim.context._attributes["CLUSTER_LAUNCH"] = 1
    kernel = sim.compile(source=SOURCE, name="launch.cu")["nothing"]
    stream = sim.default_stream
    refused(kernel, stream, r"grid\.x must be a multiple of cluster\.x, 3, got 8; round", grid=8, cluster=3)
    refused(kernel, stream, r"grid\.z must be a multiple of cluster\.z, 2, got 1", grid=8, cluster=(1, 1, 2))
    refused(kernel, stream, "supports clusters of at most 16 blocks, got 32", grid=64, cluster=32)
    refused(kernel, stream, "cluster must be an int .*got '2'", grid=8, cluster="2")
    kernel.launch(stream, grid=8, block=32, cluster=1)
    kernel.required_cluster = (2, 1, 1)
    refused(kernel, stream, r"grid\.x must be a multiple of 2, the cluster .* got 3", grid=3)
    refused(
        kernel,
        stream,
        r"cluster must be \(2, 1, 1\), which the kernel is compiled for, got \(4, 1, 1\)",
        grid=8,
        cluster=4,
    )


# Plans ----------------------------------------------------------------------------------------------------------------


def test_an_array_outlives_a_launch_on_another_stream(device: cudakit.Device, module: cudakit.Module) -> None:
    """Its free is queued on its own stream, after what the other stream does with it."""
    with device.stream() as home, device.stream() as other:
        x = device.array(np.arange(100, dtype=np.float32), stream=home)
        y = device.zeros((100,), np.float32, stream=other)
        other.wait(home)
        for _ in range(2):
            module["scale"].launch(other, grid=1, block=128, args=(x, y, 2.0, 100))
        assert x.allocation.uses.others == (other,)
        del x
        np.testing.assert_array_equal(y.numpy(other), np.arange(100, dtype=np.float32) * 2)
        z = device.zeros((100,), np.float32, stream=home)
        module["scale"].prepare(grid=1, block=128, args=(y, z, 2.0, 100)).launch(home)
        assert y.allocation.uses.others == (home,)
        del y
        np.testing.assert_array_equal(z.numpy(home), np.arange(100, dtype=np.float32) * 4)


def test_the_fast_path_is_taken(
    device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any
) -> None:
    kernel = module["scale"]
    kernel.launch(stream, grid=1, block=128, args=(x, y, 1.0, 100))
    plan = kernel._plans.by_types[tuple(map(type, (x, y, 1.0, 100)))]

    def launch(args: Any) -> bool:
        return plan.launch(stream, 1, 128, 0, args)

    assert launch((x, y, 5.0, 100))
    np.testing.assert_array_equal(y.numpy(stream), x.numpy(stream) * 5)
    for args in ((x, y, 1.0), (x, y, 1, 100), (y, x, 1.0, 2**40), [x, y, 1.0, 100], (x, x.numpy(stream), 1.0, 1)):
        assert not launch(args)
    np.testing.assert_array_equal(y.numpy(stream), x.numpy(stream) * 5)


def test_a_launch_is_two_python_calls_and_a_prepared_one_is_one(sim: cudakit.Device) -> None:
    """On each thread, with the same arguments or others: a Python call costs as much as a test of each argument."""
    kernel = sim.compile(source=SOURCE, name="launch.cu")["scale"]
    stream = sim.default_stream
    x, y = sim.zeros((100,), np.float32), sim.zeros((100,), np.float32)
    prepared = kernel.prepare(grid=1, block=128, args=(x, y, 1.0, 100))
    launches = {
        "plans": lambda args: kernel.launch(stream, grid=1, block=128, args=args),
        "prepared": lambda args: prepared.launch(stream),
    }
    calls: list[tuple[str, str]] = []

    def note(frame: Any, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and "cudakit" in file.parts and "sim" not in file.parts:
            calls.append((file.name, frame.f_code.co_name))

    def calls_of(launch: Any, args: Any) -> list[tuple[str, str]]:
        calls.clear()
        sys.setprofile(note)
        try:
            launch(args)
        finally:
            sys.setprofile(None)
        return calls[:]

    def check() -> None:
        for launch in (*launches.values(), *launches.values()):  # the first makes the plan
            launch((x, y, 1.0, 100))
        generated = ("plan.py:launch", "launch")
        for args in ((x, y, 1.0, 100), (y, x, 2.0, 99)):
            assert calls_of(launches["plans"], args) == [("kernel.py", "launch"), generated]
            assert calls_of(launches["prepared"], args) == [generated]

    check()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(check).result()


def test_bytes_of_a_struct_are_packed_once(sim: cudakit.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """`bytes` cannot change: the very object that passed the tests makes a launch without them, as a number does."""
    kernel = sim.compile(source="struct S { long long a, b; }; __global__ void k(long long* x, S s) { x[0] = s.b; }",
                         name="struct.cu")["k"]  # fmt: skip
    stream, x = sim.default_stream, sim.zeros((1,), np.int64)
    convert, converted = Converter.__call__, []

    def note(converter: Converter, value: Any) -> Any:
        converted.append(value)
        return convert(converter, value)

    monkeypatch.setattr(Converter, "__call__", note)

    def launch(value: bytes) -> int:
        converted.clear()
        kernel.launch(stream, grid=1, block=1, args=(x, value))
        return int(x.numpy(stream)[0])

    first, second = (np.array([0, number], np.int64).tobytes() for number in (5, 6))
    assert launch(first) == 5  # makes the plan
    assert launch(first) == 5  # the plan's first launch
    assert launch(first) == 5
    assert converted == []
    assert launch(second) == 6
    assert converted == [second]
    assert launch(second) == 6
    assert converted == []
    for _ in range(2):
        refused(kernel, stream, "got 15 bytes, the parameter needs 16", args=(x, second[1:]))
        assert launch(second) == 6


def test_the_example_of_a_plan_is_a_plan(
    device: cudakit.Device, module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any
) -> None:
    """The docstring of `launch_source` shows the text that it returns for this kernel."""
    kernel = module["scale"]
    assert kernel.signature == "scale(const float*, float*, float, int)"
    converters = [Converter("scale", parameter, device.context) for parameter in kernel.parameters]
    _, _, example = str(launch_source.__doc__).partition("it is:\n")
    assert textwrap.dedent(example).strip() == launch_source(converters, (x, y, 1.0, 1)).strip()


def test_each_types_have_their_own_plan(device: cudakit.Device, stream: cudakit.Stream, x: Any, y: Any) -> None:
    """A plan made for pinned memory does not take a DeviceArray, whose stream it would not note."""
    kernel = device.compile(source=SOURCE, name="own_plans.cu")["scale"]
    pinned = device.pinned((100,), np.float32)
    pinned[:] = 1
    for source in (x, pinned, x, pinned):
        kernel.launch(stream, grid=1, block=128, args=(source, y, 2.0, 100))
        kernel.launch(stream, grid=1, block=128, args=(source, y, 2.0, 100))
        plan = kernel._plans.by_types[(type(source), type(y), float, int)]
        assert kernel._plans.last_launch is plan.launch
    with device.stream() as other:
        other.wait(stream)
        kernel.launch(other, grid=1, block=128, args=(x, y, 2.0, 100))
        assert other in x.allocation.uses.others
        other.synchronize()


def test_types_may_alternate(module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any) -> None:
    for factor in (1.0, 2, np.float32(3), np.float64(4), 5.0, 6, np.float16(7)):
        module["scale"].launch(stream, grid=1, block=128, args=(x, y, factor, 100))
        np.testing.assert_array_equal(y.numpy(stream), np.arange(100, dtype=np.float32) * float(factor))


def test_a_refusal_leaves_nothing_behind(module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any) -> None:
    kernel = module["scale"]
    for _ in range(2):
        with pytest.raises(LaunchError):
            kernel.launch(stream, grid=1, block=128, args=(x, y, 2.0, 2**31))
        kernel.launch(stream, grid=1, block=128, args=(x, y, 2.0, 100))
    np.testing.assert_array_equal(y.numpy(stream), np.arange(100, dtype=np.float32) * 2)


# Numbers and structs --------------------------------------------------------------------------------------------------

BY_VALUE = """
struct Pair { float a, b; };
__global__ void pair(float* out, Pair p) { out[0] = p.a; out[1] = p.b; }
__global__ void pair_of_ints(int* out, int2 p) { out[0] = p.x; out[1] = p.y; }
__global__ void pair_of_floats(float* out, float2 p) { out[0] = p.x; out[1] = p.y; }
"""


def test_a_number_is_not_a_struct_of_its_size(device: cudakit.Device, stream: cudakit.Stream) -> None:
    """np.float64 has the bytes of two floats; void scalars, ctypes structures and bytes are taken for a struct."""
    module = device.compile(source=BY_VALUE, name="by_value.cu")
    floats, ints = device.zeros((2,), np.float32, stream=stream), device.zeros((2,), np.int32, stream=stream)
    numbers = [
        np.float64(1.5), np.int64(3), np.uint64(3), np.datetime64(3, "s"), np.timedelta64(3, "s"),
        np.array(1.5), np.array(3, "M8[s]"), np.str_("ab"), 1.5, 3, "12345678", np.longdouble(1),
    ]  # fmt: skip
    for value in (*numbers, np.complex64(1 + 2j), 1 + 2j, np.float32(1)):
        refused(module["pair"], stream, r"parameter 1 .*is Pair, .*structured scalar, a ctypes", args=(floats, value))
    for value in numbers:
        refused(module["pair_of_ints"], stream, "parameter 1 .*is int2, .*pass 2 numbers", args=(ints, value))
        refused(module["pair_of_floats"], stream, "parameter 1 .*is float2, .*pass 2 numbers", args=(floats, value))
    for value in (np.complex64(1), 1j):  # two floats, not two ints
        refused(module["pair_of_ints"], stream, "parameter 1 .*is int, .*pass an integer", args=(ints, value))

    class Floats(ctypes.Structure):
        _fields_ = [("a", ctypes.c_float), ("b", ctypes.c_float)]

    class Either(ctypes.Union):
        _fields_ = [("both", Floats), ("bits", ctypes.c_uint64)]

    class Within(ctypes.BigEndianStructure if sys.byteorder == "little" else ctypes.LittleEndianStructure):
        _fields_ = (("ab", ctypes.c_float * 2),)

    record = np.array((1, 2), [("a", np.float32), ("b", np.float32)])
    swapped = record.astype(record.dtype.newbyteorder())
    for value in (swapped, swapped[()], Within((1, 2))):
        refused(module["pair"], stream, "parameter 1 .*native byte order", args=(floats, value))
    two = np.array([1, 2], np.float32)
    structures = [
        record[()], record, Floats(1, 2), Either(Floats(1, 2)), two.tobytes(), bytearray(two),
        memoryview(two).cast("B"), memoryview(record), (ctypes.c_ubyte * 8)(*two.tobytes()),
    ]  # fmt: skip
    for name, more in (("pair", []), ("pair_of_floats", [(1, 2), two, 1 + 2j, np.complex128(1 + 2j)])):
        for value in (*structures, *more, *([(ctypes.c_double * 2)(1, 2)] if more else [])):
            floats.fill(0, stream)
            module[name].launch(stream, grid=1, block=1, args=(floats, value))
            assert floats.numpy(stream).tolist() == [1, 2], value


def test_refused_nonsense_from_other_streams(module: cudakit.Module, stream: cudakit.Stream, x: Any, y: Any) -> None:
    """With the kernel's name, also after a launch on a stream that exists."""
    kernel = module["scale"]
    prepared = kernel.prepare(grid=1, block=1, args=(x, y, 1.0, 1))
    stream.synchronize()
    kernel.launch(foreign.Says((0, 1)), grid=1, block=1, args=(x, y, -1.0, 1))
    kernel.context.device_object.synchronize()
    nonsense = [
        None, 5, "01", (), (0,), (0, 1, 2), {0: 1, 1: 2}, {0, 1}, (0, None), (0, "1"), (0, 1.5), (0, True), (0, -5),
        (0, 2**64), (1, 1), (None, 1), ("0", 1), RuntimeError("boom"), AttributeError("gone"),
    ]  # fmt: skip
    for said in nonsense:
        for launch in (lambda on: kernel.launch(on, grid=1, block=1, args=(x, y, 1.0, 1)), prepared.launch):
            with pytest.raises(LaunchError, match=r"^scale: Says\.__cuda_stream__"):
                launch(foreign.Says(said))
    if kernel.context.kind == "sim":  # a GPU's driver may look at memory there
        with pytest.raises(LaunchError, match=r"^scale: the Says has the handle 0x3039, which is not a stream of"):
            kernel.launch(foreign.Says((0, 12345)), grid=1, block=1, args=(x, y, 1.0, 1))
    closed = cudakit.Stream(kernel.context)
    closed.close()
    with pytest.raises(Closed, match=r"^scale: .*was closed"):
        kernel.launch(ForeignStream(closed), grid=1, block=1, args=(x, y, 1.0, 1))


def test_occupancy_refuses_what_is_no_size(module: cudakit.Module) -> None:
    kernel = module["scale"]
    for shared, match in (
        ("1", "shared must be a number of bytes, got '1'"),
        (-1, "shared must be 0 or more, got -1"),
        (1.5, "shared must be a number of bytes, got 1.5"),
    ):
        with pytest.raises(LaunchError, match=f"^scale: {match}"):
            kernel.occupancy(32, shared)
    with pytest.raises(LaunchError, match=r"^scale: block must be an int"):
        kernel.occupancy({32})
    assert kernel.occupancy(2048) == kernel.occupancy(32, 2**70) == 0


def test_a_plan_for_long_doubles_does_not_make_one_infinite(device: cudakit.Device, stream: cudakit.Stream) -> None:
    source = "__global__ void k(double* out, double d) { out[0] = d; }"
    kernel, out = device.compile(source=source, name="wide.cu")["k"], device.zeros((1,), np.float64, stream=stream)
    for _ in range(3):
        kernel.launch(stream, grid=1, block=1, args=(out, np.longdouble(0.5)))
        refused(kernel, stream, "parameter 1 .*too large for double", args=(out, np.longdouble("1e400")))
    kernel.launch(stream, grid=1, block=1, args=(out, np.longdouble("inf")))
    assert out.numpy(stream)[0] == np.inf
