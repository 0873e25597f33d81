"""CuPy as a peer: what its user would write for the same work, on our arrays, without a copy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cupy

if TYPE_CHECKING:
    from cudakit.driver.stream import Stream
    from cudakit.measure.peers.peer import ArraySet, Call, Cost

# work(inputs, output, **options) returns the call as a user of CuPy writes it, on arrays it already has; made once per
# set of arrays, it queues the whole job on CuPy's current stream and writes the output.
Work = Callable[..., "Call"]


def sees(ordinal: int) -> bool:
    """Whether this CuPy finds that GPU."""
    try:
        return ordinal < int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:  # no driver, or one that it does not know
        return False


@dataclass(frozen=True)
class CupyPeer:
    """One way of CuPy's; its `work` writes the output in place."""

    idea: str
    work: Work
    ordinal: int
    options: Mapping[str, Any]
    name: str = "peer:cupy"
    rung: int | None = None
    arrays: str = "cupy"

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        if self.options.get("to") == "int32":
            return "CuPy casts to int32 towards zero"
        return "CuPy has no bfloat16" if dtype == "bfloat16" or self.options.get("to") == "bfloat16" else None

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        with cupy.cuda.Device(self.ordinal), cupy.cuda.ExternalStream(int(stream.handle), self.ordinal):
            yield

    def call(self, arrays: ArraySet, stream: Stream) -> Call:
        inputs, output = arrays
        return self.work([cupy.asarray(array) for array in inputs], cupy.asarray(output), **self.options)

    def bind(self, sets: Sequence[ArraySet], stream: Stream, cost: Cost) -> list[Call]:
        return [self.call(arrays, stream) for arrays in sets]


def _softmax(inputs: Sequence[Any], output: Any) -> Call:
    (x,) = inputs

    def call() -> None:
        exponentials = cupy.exp(x - x.max(axis=-1, keepdims=True))
        cupy.divide(exponentials, exponentials.sum(axis=-1, keepdims=True), out=output)

    return call


def _add(inputs: Sequence[Any], output: Any, operand: str = "row") -> Call:
    a, b = inputs
    return lambda: cupy.add(a, b, out=output)


def _scale(inputs: Sequence[Any], output: Any, factor: float = 0.7) -> Call:
    (x,) = inputs
    number = x.dtype.type(factor)
    return lambda: cupy.multiply(x, number, out=output)


def _cast(inputs: Sequence[Any], output: Any, to: str = "float16") -> Call:
    (x,) = inputs

    def call() -> None:
        output[...] = x

    return call


def _fill(inputs: Sequence[Any], output: Any, value: Any = 1.0) -> Call:
    return lambda: output.fill(value)


def _reduced(function: Any, inputs: Sequence[Any], output: Any, axis: int | None = -1) -> Call:
    (x,) = inputs
    return lambda: function(x, axis=axis, out=output)


def _matmul(inputs: Sequence[Any], output: Any) -> Call:
    a, b = inputs
    return lambda: cupy.matmul(a, b, out=output)


_WORK: dict[str, tuple[str, Work]] = {
    "softmax": ("max, subtract, exp, sum, divide as CuPy operations", _softmax),
    "vector_add": ("cupy.add(out=)", _add),
    "matrix_add": ("cupy.add(out=)", _add),
    "add": ("cupy.add(out=)", _add),
    "scale": ("cupy.multiply(out=)", _scale),
    "cast": ("assignment", _cast),
    "fill": ("ndarray.fill", _fill),
    "sum": ("cupy.sum(out=)", functools.partial(_reduced, cupy.sum)),
    "max": ("cupy.max(out=)", functools.partial(_reduced, cupy.max)),
    "argmax": ("cupy.argmax(out=)", functools.partial(_reduced, cupy.argmax)),
    "gemm": ("cupy.matmul(out=)", _matmul),
    "gemm_half": ("cupy.matmul(out=)", _matmul),
}


def peers(family: str, ordinal: int, options: Mapping[str, Any]) -> list[CupyPeer]:
    """CuPy's way of doing `family` at its `options`."""
    idea_and_work = _WORK.get(family)
    return [CupyPeer(*idea_and_work, ordinal, options)] if idea_and_work else []
