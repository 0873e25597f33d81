"""The ops of `cudakit.ops` in torch's dispatcher: schemas, the shapes and dtypes of outputs, and the kernels.

Each function here has the parameters of its op's schema, and `out`. CUDA tensors are passed to the function of
`cudakit.ops` unchanged, CPU tensors as arrays of the simulated device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from cudakit import ops
from cudakit.families import add, gemm_grouped, gemm_problem, reduce_problem
from cudakit.torch import library, simulated

# Returns (shape, dtype) of an op's output, from its arguments, which may be fake tensors.
Like = Callable[..., tuple[Any, Any]]


@dataclass(frozen=True)
class Op:
    """An op that returns a new tensor.

    schema: without the op's name. call: takes the schema's parameters and `out`. like: takes the schema's parameters.
    """

    schema: str
    call: Callable[..., Any]
    like: Like


# Adapters -------------------------------------------------------------------------------------------------------------


def _softmax(x: Any, mask: Any = None, *, out: Any = None, **options: Any) -> Any:
    return ops.softmax(x, out, mask=mask, **options)


def _gemm(
    a: Any,
    b: Any,
    c: Any = None,
    bias: Any = None,
    residual: Any = None,
    *,
    dtype: Any = None,
    out: Any = None,
    **options: Any,
) -> Any:
    given = {"c": c, "bias": bias, "residual": residual, "dtype": None if dtype is None else _name(dtype)}
    return ops.gemm(a, b, out, **given, **options)


def _gemm_grouped(
    a: Any,
    b: Any,
    offsets: Any = None,
    rows: Any = None,
    bias: Any = None,
    *,
    dtype: Any = None,
    out: Any = None,
    **options: Any,
) -> Any:
    given = {"offsets": offsets, "rows": rows, "bias": bias, "dtype": None if dtype is None else _name(dtype)}
    return ops.gemm_grouped(a, b, out, **given, **options)


def _attention(q: Any, k: Any, v: Any, lengths: Any = None, *, out: Any = None, **options: Any) -> Any:
    return ops.attention(q, k, v, out, lengths=lengths, **options)


def _cast(x: Any, to: Any, *, out: Any = None, **options: Any) -> Any:
    return ops.cast(x, _name(to), out, **options)


def _irfft(x: Any, axes: int = 1, n: int | None = None, *, out: Any = None, **options: Any) -> Any:
    return ops.irfft(x, axes, out, n=n, **options)


def _transformed(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, axes: int = 1, *, out: Any = None, **options: Any) -> Any:
        return function(x, axes, out, **options)

    return call


def _name(dtype: Any) -> str:
    """The name of a torch dtype in numpy and ml_dtypes."""
    return str(dtype).removeprefix("torch.")


# Shapes and dtypes ----------------------------------------------------------------------------------------------------


def _like_first(x: Any, *_: Any, **options: Any) -> tuple[Any, Any]:
    return x.shape, x.dtype


def _like_sum(a: Any, b: Any, **options: Any) -> tuple[Any, Any]:
    try:
        return torch.broadcast_shapes(a.shape, b.shape), a.dtype  # supports symbolic extents
    except RuntimeError:
        return add.result_shape(a, b), a.dtype  # raises a more detailed error


def _like_cast(x: Any, to: Any, **options: Any) -> tuple[Any, Any]:
    return x.shape, to


def _like_product(
    a: Any,
    b: Any,
    c: Any = None,
    bias: Any = None,
    residual: Any = None,
    *,
    beta: float = 0.0,
    dtype: Any = None,
    **options: Any,
) -> tuple[Any, Any]:
    if beta and c is None:
        raise ValueError(f"beta is {beta}, but there is nothing to add: pass c")
    return gemm_problem.output_shape(a.shape, b.shape), a.dtype if dtype is None else dtype


def _like_grouped(a: Any, b: Any, *_: Any, dtype: Any = None, **options: Any) -> tuple[Any, Any]:
    return gemm_grouped.output_shape(a.shape, b.shape), a.dtype if dtype is None else dtype


def _like_reduced(what: str) -> Like:
    dtype = getattr(torch, reduce_problem.result_dtype(what).name)

    def like(x: Any, axis: int | None = None, **options: Any) -> tuple[Any, Any]:
        return reduce_problem.result_shape(what, x.shape, axis), dtype

    return like


def _like_rfft(x: Any, axes: int = 1, **options: Any) -> tuple[Any, Any]:
    terms = (*x.shape[:-1], x.shape[-1] // 2 + 1)
    return ((*terms, 2), x.dtype) if x.dtype == torch.float16 else (terms, torch.complex64)


def _like_irfft(x: Any, axes: int = 1, n: int | None = None, **options: Any) -> tuple[Any, Any]:
    is_half = x.dtype == torch.float16
    *batch, terms = x.shape[:-1] if is_half else x.shape
    return (*batch, 2 * (terms - 1) if n is None else n), torch.float16 if is_half else torch.float32


# The ops --------------------------------------------------------------------------------------------------------------

_VARIANT = 'str variant="auto"'
_TRANSFORM = f'(Tensor x, int axes=1, *, str? norm="backward", {_VARIANT}) -> Tensor'
_REDUCTION = f"(Tensor x, int? axis=None, *, {_VARIANT}) -> Tensor"

OPS: dict[str, Op] = {
    "add": Op(f"(Tensor a, Tensor b, *, {_VARIANT}) -> Tensor", ops.add, _like_sum),
    "add_broadcast": Op(
        f"(Tensor volume, Tensor plane, Tensor line, *, {_VARIANT}) -> Tensor", ops.add_broadcast, _like_first
    ),
    "argmax": Op(_REDUCTION, ops.argmax, _like_reduced("argmax")),
    "attention": Op(
        "(Tensor q, Tensor k, Tensor v, Tensor? lengths=None, *, bool causal=False, float? scale=None, "
        f"{_VARIANT}) -> Tensor",
        _attention,
        _like_first,
    ),
    "blur": Op(f'(Tensor images, *, str border="zero", {_VARIANT}) -> Tensor', ops.blur, _like_first),
    "cast": Op(f"(Tensor x, ScalarType to, *, {_VARIANT}) -> Tensor", _cast, _like_cast),
    "fft": Op(_TRANSFORM, _transformed(ops.fft), _like_first),
    "gemm": Op(
        "(Tensor a, Tensor b, Tensor? c=None, Tensor? bias=None, Tensor? residual=None, *, float alpha=1.0, "
        f"float beta=0.0, str? activation=None, float scale=1.0, ScalarType? dtype=None, {_VARIANT}) -> Tensor",
        _gemm,
        _like_product,
    ),
    "gemm_grouped": Op(
        "(Tensor a, Tensor b, Tensor? offsets=None, Tensor? rows=None, Tensor? bias=None, *, float alpha=1.0, "
        f"str? activation=None, ScalarType? dtype=None, {_VARIANT}) -> Tensor",
        _gemm_grouped,
        _like_grouped,
    ),
    "ifft": Op(_TRANSFORM, _transformed(ops.ifft), _like_first),
    "irfft": Op(
        f'(Tensor x, int axes=1, int? n=None, *, str? norm="backward", {_VARIANT}) -> Tensor', _irfft, _like_irfft
    ),
    "matrix_add": Op(f"(Tensor a, Tensor b, *, {_VARIANT}) -> Tensor", ops.matrix_add, _like_first),
    "max": Op(_REDUCTION, ops.max, _like_reduced("max")),
    "rfft": Op(_TRANSFORM, _transformed(ops.rfft), _like_rfft),
    "scale": Op(f"(Tensor x, float factor, *, {_VARIANT}) -> Tensor", ops.scale, _like_first),
    "softmax": Op(
        f"(Tensor x, Tensor? mask=None, *, bool log=False, float scale=1.0, {_VARIANT}) -> Tensor",
        _softmax,
        _like_first,
    ),
    "softmax_backward": Op(
        f"(Tensor grad, Tensor y, *, bool log=False, float scale=1.0, {_VARIANT}) -> Tensor",
        ops.softmax_backward,
        _like_first,
    ),
    "sum": Op(_REDUCTION, ops.sum, _like_reduced("sum")),
    "threshold": Op(f"(Tensor x, float limit, *, {_VARIANT}) -> Tensor", ops.threshold, _like_first),
}


def _simulated(op: Op, *arguments: Any, **options: Any) -> Any:
    """Run an op on CPU tensors."""
    shape, dtype = op.like(*arguments, **options)
    out = torch.empty(shape, dtype=dtype)
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]

    def work(device: Any, arrays: Any) -> None:
        *inputs, output = arrays
        given = iter(inputs)
        op.call(*(next(given) if isinstance(x, torch.Tensor) else x for x in arguments), out=output, **options)

    simulated.run([*tensors, out], work)
    return out


def _fake(op: Op, *arguments: Any, **options: Any) -> Any:
    shape, dtype = op.like(*arguments, **options)
    return arguments[0].new_empty(shape, dtype=dtype)


# The ops that write to their argument ---------------------------------------------------------------------------------


def _fill(x: Any, value: Any, *, variant: str = "auto") -> Any:
    return ops.fill(x, value, variant)


def _random(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(out: Any, **options: Any) -> Any:
        return function(out=out, **options)

    return call


_RANDOM = f"(Tensor(a!) out, *, int seed=0, int offset=0, {_VARIANT}) -> ()"

# Schema, name of the argument that is written, call.
WRITING: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "fill": (f"(Tensor(a!) x, Scalar value, *, {_VARIANT}) -> ()", "x", _fill),
    "normal": (_RANDOM, "out", _random(ops.normal)),
    "uniform": (_RANDOM, "out", _random(ops.uniform)),
}


def _written(op: str, name: str, call: Callable[..., Any], tensor: Any, *arguments: Any, **options: Any) -> None:
    library.expect_no_gradient(op, name, tensor)
    call(tensor, *arguments, **options)
    library.written(tensor)


def _on_simulated(call: Callable[..., Any], tensor: Any, *arguments: Any, **options: Any) -> None:
    simulated.run([tensor], lambda device, arrays: call(arrays[0], *arguments, **options))


def _nothing(tensor: Any, *arguments: Any, **options: Any) -> None:
    """Write to a fake tensor: nothing to do."""


def register() -> None:
    """Define `torch.ops.cudakit.NAME` for every function of `cudakit.ops`."""
    for name, op in OPS.items():
        simulate, fake = functools.partial(_simulated, op), functools.partial(_fake, op)
        library.define(f"cudakit::{name}", op.schema, cuda=op.call, cpu=simulate, fake=fake)
    for name, (schema, written, call) in WRITING.items():
        kernels = (call, functools.partial(_on_simulated, call), _nothing)
        cuda, cpu, fake = (functools.partial(_written, f"cudakit::{name}", written, kernel) for kernel in kernels)
        library.define(f"cudakit::{name}", schema, cuda=cuda, cpu=cpu, fake=fake)
