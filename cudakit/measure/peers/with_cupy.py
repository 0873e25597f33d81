"""CuPy as a peer: code that a CuPy user would write for the same work, on our arrays, without a copy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cupy
import cupyx.scipy.fft

from cudakit import ops
from cudakit.family import Ladder, several
from cudakit.measure.peers.peer import call_of_work

if TYPE_CHECKING:
    from cudakit.driver.stream import Stream
    from cudakit.measure.peers.peer import ArraySet, Call, Cost

# work(*inputs, output, **options) on CuPy's arrays: see call_of_work.
Work = Callable[..., Any]


def _peer(family: str, idea: str) -> Callable[[Work], Work]:
    """Add the decorated function as a peer of one of cudakit's families."""
    return ops.families()[family].peer("cupy", idea)


def sees(ordinal: int) -> bool:
    """Return whether CuPy finds GPU number `ordinal`."""
    try:
        return ordinal < int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:  # no driver, or an unsupported one
        return False


@dataclass(frozen=True)
class CupyPeer:
    """One CuPy implementation; `work` writes into the output."""

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
        if dtype == "float16" and self.work in (_fft, _rfft):
            return "CuPy has no FFT of pairs of float16"
        return "CuPy has no bfloat16" if dtype == "bfloat16" or self.options.get("to") == "bfloat16" else None

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        with cupy.cuda.Device(self.ordinal), cupy.cuda.ExternalStream(int(stream.handle), self.ordinal):
            yield

    def call(self, arrays: ArraySet, stream: Stream) -> Call:
        inputs, output = arrays
        return call_of_work(self.work, [cupy.asarray(array) for array in (*inputs, *several(output))], self.options)

    def bind(self, sets: Sequence[ArraySet], stream: Stream, cost: Cost) -> list[Call]:
        return [self.call(arrays, stream) for arrays in sets]


@_peer("softmax", "max, subtract, exp, sum, divide as CuPy operations")
def _softmax(x: Any, output: Any) -> Call:

    def call() -> None:
        exponentials = cupy.exp(x - x.max(axis=-1, keepdims=True))
        cupy.divide(exponentials, exponentials.sum(axis=-1, keepdims=True), out=output)

    return call


@_peer("vector_add", "cupy.add(out=)")
@_peer("matrix_add", "cupy.add(out=)")
@_peer("add", "cupy.add(out=)")
def _add(a: Any, b: Any, output: Any, operand: str = "row") -> Call:
    return lambda: cupy.add(a, b, out=output)


@_peer("scale", "cupy.multiply(out=)")
def _scale(x: Any, output: Any, factor: float = 0.7) -> Call:
    number = x.dtype.type(factor)
    return lambda: cupy.multiply(x, number, out=output)


@_peer("cast", "assignment")
def _cast(x: Any, output: Any, to: str = "float16") -> Call:

    def call() -> None:
        output[...] = x

    return call


@_peer("fill", "ndarray.fill")
def _fill(x: Any, output: Any, value: Any = 1.0) -> Call:
    return lambda: output.fill(value)


def _reduced(function: Any, x: Any, output: Any, axis: int | None = -1) -> Call:
    return lambda: function(x, axis=axis, out=output)


for _name, _function in (("sum", cupy.sum), ("max", cupy.max), ("argmax", cupy.argmax)):
    _peer(_name, f"cupy.{_name}(out=)")(functools.partial(_reduced, _function))


@_peer("gemm", "cupy.matmul(out=)")
@_peer("gemm_half", "cupy.matmul(out=)")
def _matmul(a: Any, b: Any, output: Any) -> Call:
    return lambda: cupy.matmul(a, b, out=output)


def _axes(axes: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(range(-axes, 0)) if isinstance(axes, int) else tuple(axes)


@_peer("fft", "cupyx.scipy.fft.fftn, plan made beforehand")
def _fft(
    x: Any, output: Any, axes: int | Sequence[int] = 1, norm: str | None = "backward", inverse: bool = False
) -> Call:
    plan = cupyx.scipy.fft.get_fft_plan(x, axes=_axes(axes))
    function = cupyx.scipy.fft.ifftn if inverse else cupyx.scipy.fft.fftn
    norm = norm or ("forward" if inverse else "backward")
    return _then_copied(lambda: function(x, axes=_axes(axes), norm=norm, plan=plan), output)


@_peer("rfft", "cupyx.scipy.fft.rfftn, plan made beforehand")
def _rfft(x: Any, output: Any, axes: int | Sequence[int] = 1, norm: str | None = "backward") -> Call:
    plan = cupyx.scipy.fft.get_fft_plan(x, axes=_axes(axes), value_type="R2C")
    return _then_copied(lambda: cupyx.scipy.fft.rfftn(x, axes=_axes(axes), norm=norm or "backward", plan=plan), output)


def _then_copied(transform: Callable[[], Any], output: Any) -> Call:
    """Return a call that copies the first result to the output, for the check; later results, which are timed, are not
    copied, as CuPy's transforms cannot write into an existing array."""
    unchecked = [output]

    def call() -> None:
        result = transform()
        while unchecked:
            unchecked.pop()[...] = result

    return call


def peers(family: Ladder[Any], ordinal: int, options: Mapping[str, Any]) -> list[CupyPeer]:
    """Return CuPy's implementations of the family with its `options`."""
    return [
        CupyPeer(each.idea, each.work, ordinal, options, each.name) for each in family.peers if each.package == "cupy"
    ]
