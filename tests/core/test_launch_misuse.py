"""2,000 random invalid launches in one process: each raises cudakit's own error, and nothing is launched.

A seeded generator draws a kernel, a correct launch of it, and one error in it: an argument, their
count, the grid, block, shared memory, stream or another keyword. Right launches come between, so that misuses meet the
plans of other types, of the same types, and the very objects of the launch before.
"""

from __future__ import annotations

import contextlib
import ctypes
import decimal
import fractions
import random
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import foreign
import numpy as np
from foreign import Says

import cudakit
from cudakit.errors import Closed, LaunchError

MISUSES, SEED = 2000, 16
N = 32

SOURCE = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
struct Pair { float a, b; };
enum Mode : short { A, B };
__global__ void scale(const float* x, float* y, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
__global__ void numbers(double* out, signed char c, unsigned short s, unsigned u, long long l, unsigned long long m,
                        double d, bool b, __half h, __nv_bfloat16 w, Mode mode) {
    out[0] = c; out[1] = s; out[2] = u; out[3] = l; out[4] = m; out[5] = d; out[6] = b;
    out[7] = __half2float(h); out[8] = __bfloat162float(w); out[9] = mode;
}
__global__ void values(float* out, Pair p, float4 v, int2 i) {
    out[0] = p.a; out[1] = p.b; out[2] = v.x; out[3] = v.w; out[4] = i.x; out[5] = i.y;
}
__global__ void vectors(const float4* x, float2* y, const int* k, const char* c, Pair* p) {
    y[0] = make_float2(x[0].x + k[0] + c[0], p[0].a);
}
extern "C" __global__ void plain(const float* x, float* y, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
"""
PAIR = np.dtype([("a", np.float32), ("b", np.float32)])


class World:
    """The device, its arrays, and every kind of thing that a launch does not take."""

    def __init__(self, device: cudakit.Device, other: cudakit.Device, draw: random.Random) -> None:
        self.device, self.draw = device, draw
        self.module = device.compile(source=SOURCE, name="misuse.cu")
        closing = device.compile(source="// to be closed\n" + SOURCE, name="misuse.cu")
        self.closed_kernels = {name: closing[name] for name in ("scale", "numbers", "values", "vectors", "plain")}
        closing.close()
        self.stream, self.second = device.stream(), device.stream()
        self.closed_stream = device.stream()
        self.closed_stream.close()
        self.elsewhere = SimpleNamespace(stream=other.stream(), array=other.zeros((N,)))
        on = {"stream": self.stream}
        self.arrays = {
            name: [device.array(np.arange(N).astype(name), **on) for _ in range(2)]
            for name in ("float32", "float64", "float16", "int32", "int8", "uint8", "int64", "complex64", "bool")
        }
        self.arrays["pair"] = [device.array(np.zeros(N, PAIR), **on)]
        self.closed_array = device.zeros((N,), **on)
        self.closed_array.close()
        self.readonly = self.arrays["float32"][0][:]
        self.readonly.readonly = True
        self.pinned = device.pinned((N,))
        self.pinned[:] = 1
        self.stream.synchronize()
        self.good: dict[str, Callable[[], list[Any]]] = {
            "scale": self._scale, "plain": self._scale, "numbers": self._numbers, "values": self._values,
            "vectors": self._vectors,
        }  # fmt: skip

    # Correct launches ------------------------------------------------------------------------------------------------

    def _scale(self) -> list[Any]:
        x, y = self.arrays["float32"]
        first = self.draw.choice([x, self.readonly, x[4:], self.pinned, cudakit.strided(x[::2])])
        return [
            first,
            y,
            self.draw.choice([2.0, 3, np.float32(0.5), np.float64(4)]),
            self.draw.choice([8, np.int64(4)]),
        ]

    def _numbers(self) -> list[Any]:
        return [self.arrays["float64"][1], -3, 4, np.uint32(5), -6, 7, 0.5, True, np.float16(1), 2.0, 1]

    def _values(self) -> list[Any]:
        pair = self.draw.choice([np.zeros((), PAIR)[()], bytes(8)])
        return [self.arrays["float32"][1], pair, self.draw.choice([(1, 2, 3, 4), np.ones(4, np.float32)]), (1, -2)]

    def _vectors(self) -> list[Any]:
        a = self.arrays
        return [a["float32"][0], a["complex64"][1], a["int32"][0], a["uint8"][0], a["pair"][0]]

    # Errors -----------------------------------------------------------------------------------------------------------

    def layouts(self, array: Any) -> list[Any]:
        array = array if array.size == N and array.is_contiguous else self.arrays["float32"][0]
        rows = array.reshape(4, N // 4)
        steps = (4 * array.itemsize, 0)
        broadcast = cudakit.DeviceArray(array.allocation, array.pointer, (4, 4), steps, array.dtype)
        random_step = array[self.draw.randrange(3) :: self.draw.randrange(2, 5)]
        return [random_step, array[::-1], rows.T, rows[:, 1:], rows[1:, 2], rows[::2], broadcast]

    def pointer(self, parameter: Any, given: Any) -> Any:
        """Something that a pointer parameter does not take. given: an array that it takes."""
        draw, target = self.draw, parameter.type.target
        array = given.array if isinstance(given, type(cudakit.strided(None))) else given
        wrong: list[Callable[[], Any]] = [
            lambda: draw.choice([4096, 0, -1, 2**70, np.int64(5), True]) if parameter.kind == "pointer" else "text",
            lambda: draw.choice([1.5, "x", b"12345678", object(), [1.0], {}, np.float32(1), 1j, Ellipsis, int, self]),
            lambda: draw.choice([np.zeros(N, np.float32), np.float64(3), np.zeros(()), np.ma.zeros(3)]),
            lambda: self.closed_array,
            lambda: cudakit.strided(draw.choice([self.closed_array, self.elsewhere.array, 5, "x", np.zeros(N)])),
            lambda: self.elsewhere.array,
            lambda: draw.choice(self.foreign),
            lambda: self.pinned[::2],
        ]
        if isinstance(array, cudakit.DeviceArray):
            wrong += [lambda: draw.choice(self.layouts(array))] * 4
        if parameter.kind == "pointer":
            others = [
                name for name in ("float64", "float16", "int64", "bool") if target is None or name != target.dtype
            ]
            wrong += [lambda: draw.choice(self.arrays[draw.choice(others)])] * 2
            wrong.append(lambda: self.pinned.view(np.dtype(np.float32).newbyteorder()))
            if target is not None and not target.const:
                wrong.append(lambda: self.readonly)
            if target is not None and target.kind == "vector":
                wrong.append(lambda: self.arrays["float32"][0][1:])
        return draw.choice(wrong)()

    def number(self, parameter: Any, given: Any) -> Any:
        """Something that an int, float or bool parameter does not take."""
        draw, kind = self.draw, parameter.type
        wrong: list[Any] = [
            None, "1", b"1", 1j, np.complex64(1), [1], (1,), object(), self.arrays["float32"][0], np.array(1),
            np.zeros(3), np.datetime64(1, "s"), np.timedelta64(1, "s"), np.timedelta64(1), np.str_("1"), np.void(b"1"),
            decimal.Decimal(1), fractions.Fraction(1, 2), ctypes.c_int(1), ctypes.c_void_p(1), cudakit.strided(1),
        ]  # fmt: skip
        if kind.kind in ("int", "enum"):
            bits = 8 * parameter.size
            low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if kind.signed else (-1, 2**bits)
            low = -(2 ** (bits - 1)) if kind.signed is None else 0 if kind.signed is False else low
            wrong += [1.0, float("nan"), float("inf"), np.float32(2), 1e30]
            wrong += [high, low - 1, draw.randrange(high, 2**80), -draw.randrange(1 - low, 2**80)] * 4
        elif kind.kind == "bool":
            wrong += [0, 1, 2, np.int8(1), 1.0]
        else:
            wrong += [True, np.bool_(True), np.int32(1), np.longdouble("1e4000"), -np.longdouble("1e310"), 10**400] * 2
            top = {"float16": 65520.0, "float64": None}.get(kind.dtype or "", 3.5e38)
            if top is not None:
                wrong += [top, -top, np.float64(top), draw.uniform(top, 1e300), int(top) * 10] * 3
        return draw.choice(wrong)

    def value(self, parameter: Any, given: Any) -> Any:
        """Something that a struct or a vector does not take."""
        size, lanes = parameter.size, parameter.type.lanes
        wrong = [
            None, 1, 1.5, "12345678", object(), True, np.float32(1), np.float64(1), np.int64(1), np.uint64(2), 2**70,
            np.complex128(1), np.longdouble(1), np.datetime64(1, "s"), np.timedelta64(1, "s"), np.str_("ab"),
            np.array(1.5), np.zeros(()), memoryview(np.zeros(size // 8)), (ctypes.c_double * (size // 8))(),
            bytes(size - 1), bytes(size + 1), bytearray(size * 2), np.zeros((), "V3")[()], np.zeros(lanes + 1, "f4"),
            (1.0,) * (lanes + 1), [1] * (lanes + 2), ("1",) * lanes, (None,) * max(lanes, 1), {1: 2}, {1, 2},
            np.zeros(max(lanes, 1), "M8[s]"), self.arrays["float32"][0], 1 + 2j,
        ]  # fmt: skip
        if "int" in parameter.text:
            wrong += [(1.5, 2), (2**31, 0), (0, -(2**31) - 1), np.array([1.0, 2.0]), (0, 2**63)]
        if "float" in parameter.text:
            wrong += [(1e39, 0, 0, 0), np.full(4, 1e39), (0, True, 0, 0), (10**400, 0, 0, 0), np.zeros(4, bool)]
        return self.draw.choice(wrong)

    def size(self) -> Any:
        draw = self.draw
        return draw.choice([
            0, -1, -draw.randrange(1, 2**70), 1.0, 1.5, "1", None, True, False, b"\1\1", bytearray(b"\1"), {1, 2},
            {1: 1}, frozenset({1}), (), (1, 1, 1, 1), (1, 0), (1, -1), (1, 1.0), (1, None), (1, "1"), (True, 1),
            [[1]], [(1,)], ((1, 1),), range(1, 3), iter([1]), np.float64(1), np.array([1.0]), np.ones((1, 1), int),
            np.bool_(True), 1j, np.timedelta64(1), np.array([]), np.array([True]), object(), int, lambda: 1, 2**31,
            2**70, (1, 2**16), (1, 1, 2**16), self.arrays["int32"][0], decimal.Decimal(1), float("nan"), Ellipsis,
            slice(1), self.stream,
        ])  # fmt: skip

    def shared(self) -> Any:
        return self.draw.choice(
            [-1, 1.0, "1", None, True, (1,), [1], b"1", 2**20, 2**70, -(2**70), np.float64(0), {}, np.timedelta64(1)]
        )

    def nowhere(self) -> Any:
        """Return an object that is not a usable stream of this device."""
        return self.draw.choice([
            None, 0, 1, 2**40, "stream", b"", object(), self.arrays["float32"][0], self.closed_stream, self.device,
            self.elsewhere.stream, Says(None), Says(5), Says("01"), Says(()), Says((0,)), Says((0, 1, 2)), Says((1, 1)),
            Says((0, None)), Says((0, "1")), Says((0, 1.5)), Says((0, -1)), Says((0, 2**64)), Says((0, 12345)),
            Says((0, True)), Says({0: 1, 1: 2}), Says({0, 1}), Says(RuntimeError("boom")), Says(KeyError(0)),
            Says((None, 1)), Says((0, self.stream.record)), int, [], (0, 1), np.int64(1), 1.5,
        ])  # fmt: skip

    def misuse(self) -> tuple[str, Any, Any, dict[str, Any]]:
        """(what is wrong, the kernel, its stream, the launch's keywords)."""
        draw = self.draw
        name = draw.choice(["scale", "scale", "numbers", "values", "vectors", "plain"])
        kernel, args = self.module[name], self.good[name]()
        options: dict[str, Any] = {"grid": 1, "block": N, "args": args}
        stream: Any = draw.choice([self.stream, self.stream, self.second])
        what = draw.choice(
            ["argument"] * 12 + ["count", "args", "grid", "block", "shared", "stream", "stream", "other"]
        )
        if what == "argument":
            index = draw.randrange(len(args))
            parameter = kernel.parameters[index]
            by_kind = {"pointer": self.pointer, "bits": self.pointer, "struct": self.value, "vector": self.value}
            what = f"argument {index}"
            args[index] = by_kind.get(parameter.kind, self.number)(parameter, args[index])
        elif what == "count":
            if draw.random() < 0.5:
                del args[draw.randrange(len(args))]
            else:
                args.insert(draw.randrange(len(args) + 1), draw.choice([args[0], 1, None, 1.0]))
        elif what == "args":
            options["args"] = draw.choice(
                [None, args[0], {}, set(), "abcd", b"abcd", 4, iter(args), dict.fromkeys("ab")]
            )
        elif what in ("grid", "block"):
            options[what] = self.size()
        elif what == "shared":
            options[what] = self.shared()
        elif what == "stream":
            stream = self.nowhere()
        else:
            what = draw.choice(["closed", "cluster", "cooperative", "programmatic", "priority"])
            if what == "closed":
                kernel = self.closed_kernels[name]
            elif what == "cluster":
                options[what] = draw.choice([0, 2, "2", b"\2", {2}, True, 1.0, (1, 2), (2, 2, 2, 2), -1])
            elif what == "programmatic":
                options[what] = draw.choice(["no", [1], 1.5, b"\1", {1: 1}])
            elif what == "priority":
                options[what] = draw.choice([1, -6, 2**40, "0", 0.0, True, [0], b"\0"])
            else:
                options.update(cooperative=draw.choice([True, 1, "no", [1], 1.5]), grid=2**20)
        options["args"] = tuple(args) if options["args"] is args and draw.random() < 0.9 else options["args"]
        return what, kernel, stream, options

    def right(self) -> None:
        """Make a correct launch, with arrays of its own kernel."""
        name = self.draw.choice(list(self.good))
        self.module[name].launch(self.stream, grid=1, block=N, args=tuple(self.good[name]()))


@contextlib.contextmanager
def _world() -> Iterator[World]:
    draw = random.Random(SEED)
    with foreign.stand_ins(), cudakit.Device("sim", fresh=True) as device, cudakit.Device("sim", fresh=True) as other:
        world = World(device, other, draw)
        host = np.arange(N, dtype=np.float32)
        with foreign.registered(device, host.ctypes.data, host.nbytes):
            grid = host.reshape(4, N // 4)
            views = (
                host[::2],
                host[::-1],
                grid.T,
                grid[:, 1:],
                np.broadcast_to(host[:1], (N,)),
                host.astype(np.float64),
            )
            world.foreign = [foreign.ndarray(view) for view in views[:5]]
            world.foreign.append(foreign.ndarray(host, device=1))
            with contextlib.suppress(ImportError):
                import torch

                x = torch.from_numpy(host)
                world.foreign += [x[::2], x.reshape(4, -1).T, x[0].expand(4, 4), torch._neg_view(x), x.to_sparse()]
                world.foreign += [torch.zeros(N, dtype=torch.complex64).conj(), x.reshape(4, -1)[:, 1:]]
            yield world
            world.foreign.clear()


def contents(world: World) -> list[bytes]:
    world.device.synchronize()
    arrays = [array for arrays in world.arrays.values() for array in arrays]
    return [*(array.numpy().tobytes() for array in arrays), world.pinned.tobytes()]


def test_2000_random_misuses_are_refused_and_launch_nothing() -> None:
    with _world() as world:
        driver, tried, right = world.device.context.driver, Counter[str](), 0
        count, before = driver.simCount(), contents(world)
        for number in range(MISUSES):
            if number % 40 == 0:
                assert contents(world) == before, f"one of the 40 misuses before {number} wrote to an array"
                for _ in range(8):
                    world.right()
                right += 8
                before = contents(world)
            what, kernel, stream, options = world.misuse()
            said = f"misuse {number}, {what}: {kernel.name} on {stream!r} with {options!r}"
            error: Exception | None = None
            try:
                if number % 5 == 0 and what != "stream":
                    kernel.prepare(**options)
                else:
                    kernel.launch(stream, **options)
            except Exception as raised:
                error = raised
            assert isinstance(error, (LaunchError, Closed)), f"{said}\n{error!r}"
            assert str(error).startswith(kernel.name), f"{said}\n{error}"
            if what.startswith("argument"):
                assert f"parameter {what.split()[1]} " in str(error), f"{said}\n{error}"
            tried[what.split()[0]] += 1
        assert contents(world) == before
        assert min(tried[what] for what in ("argument", "count", "args", "grid", "block", "shared", "stream")) >= 50
        x, y = world.arrays["float32"]
        for name in ("scale", "plain"):
            y.fill(0, world.stream)
            world.module[name].launch(world.stream, grid=1, block=N, args=(x, y, 3.0, N))
            np.testing.assert_array_equal(y.numpy(world.stream), 3 * x.numpy(world.stream))
        driver.simEndCount(count)
        assert len(count.records) == right + 2
