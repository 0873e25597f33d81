"""Gradients of cudakit's ops in torch, computed with torch ops, so that torch can trace and differentiate them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cudakit.torch import library

_OPS = torch.ops.cudakit
_ADVICE = "call it under torch.no_grad(), or on tensors that do not record gradients (x.detach())"

Setup = Callable[..., None]
Backward = Callable[..., Any]


def sum_to(grad: Any, shape: Sequence[int]) -> Any:
    """Sum a float32 `grad` over the axes along which an array of `shape` was broadcast."""
    padded = (1,) * (grad.dim() - len(shape)) + tuple(shape)
    repeated = [axis for axis, extent in enumerate(padded) if extent == 1 and grad.shape[axis] != 1]
    if repeated:
        kept = [axis for axis in range(grad.dim()) if axis not in repeated]
        extents = [grad.shape[axis] for axis in kept]
        count = math.prod(grad.shape[axis] for axis in repeated)
        if not kept:
            grad = _OPS.sum(grad.reshape(count))
        elif repeated[-1] < kept[0]:
            grad = _OPS.sum(grad.reshape(count, math.prod(extents)), 0)
        else:
            grad = _OPS.sum(grad.permute(*kept, *repeated).reshape(math.prod(extents), count), 1)
    return grad.reshape(shape)


# add, add_broadcast, matrix_add ---------------------------------------------------------------------------------------


def _save_shapes(ctx: Any, inputs: Sequence[Any], keyword_only_inputs: Any, output: Any) -> None:
    ctx.shapes = [x.shape for x in inputs]


def _add(ctx: Any, grad: Any) -> Any:
    needed = zip(ctx.needs_input_grad, ctx.shapes, strict=True)
    return tuple(sum_to(grad, shape) if wanted else None for wanted, shape in needed)


def _add_broadcast(ctx: Any, grad: Any) -> Any:
    volume, plane, line = ctx.needs_input_grad
    of_plane = sum_to(grad, (*grad.shape[:2], 1)).reshape(grad.shape[:2]) if plane or line else None
    of_line = sum_to(of_plane, (grad.shape[0], 1)).reshape(grad.shape[0]) if line else None
    return grad if volume else None, of_plane if plane else None, of_line


# scale, cast, blur ----------------------------------------------------------------------------------------------------


def _save_factor(ctx: Any, inputs: Sequence[Any], keyword_only_inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


def _scale(ctx: Any, grad: Any) -> Any:
    return _OPS.scale(grad, ctx.factor), None


def _save_dtype(ctx: Any, inputs: Sequence[Any], keyword_only_inputs: Any, output: Any) -> None:
    ctx.dtype = inputs[0].dtype


def _cast(ctx: Any, grad: Any) -> Any:
    return _OPS.cast(grad, ctx.dtype), None


def _save_border(ctx: Any, inputs: Sequence[Any], keyword_only_inputs: Any, output: Any) -> None:
    ctx.border = keyword_only_inputs["border"]
    ctx.like = inputs[0].shape, inputs[0].dtype


def _blur(ctx: Any, grad: Any) -> Any:
    """The gradient of a blur with zeros outside is a blur: the weight of x[i] in y[j] is that of x[j] in y[i]."""
    if ctx.border == "zero":
        return _OPS.blur(grad)
    return library.missing(grad, ctx.like, f"cudakit::blur has no gradient with border={ctx.border!r}", _ADVICE)


# sum ------------------------------------------------------------------------------------------------------------------


def _save_axis(ctx: Any, inputs: Sequence[Any], keyword_only_inputs: Any, output: Any) -> None:
    ctx.shape, ctx.axis = inputs[0].shape, inputs[1]


def _sum(ctx: Any, grad: Any) -> Any:
    kept = grad if ctx.axis is None else grad.unsqueeze(ctx.axis)
    return kept.expand(ctx.shape), None


# gemm -----------------------------------------------------------------------------------------------------------------


# The derivative of an activation, times the gradient of its result.
_ACTIVATIONS: dict[str, Backward] = {
    "relu": lambda grad, x: torch.ops.aten.threshold_backward(grad, x, 0),
    "gelu": torch.ops.aten.gelu_backward,
    "gelu_tanh": lambda grad, x: torch.ops.aten.gelu_backward(grad, x, approximate="tanh"),
    "silu": torch.ops.aten.silu_backward,
}


def _save_product(ctx: Any, inputs: Sequence[Any], keyword_only_inputs: Any, output: Any) -> None:
    a, b, c, bias, _ = inputs
    ctx.options = {name: keyword_only_inputs[name] for name in ("alpha", "beta", "activation", "scale")}
    ctx.like = [None if x is None else (x.shape, x.dtype) for x in inputs]
    wants_a, wants_b = ctx.needs_input_grad[:2]
    if ctx.options["activation"]:
        ctx.save_for_backward(a, b, c if ctx.options["beta"] else None, bias)
    else:
        ctx.save_for_backward(a if wants_b else None, b if wants_a else None, None, None)


def _gemm(ctx: Any, grad: Any) -> Any:
    """Without an activation: dA = scale alpha dD B^T, dB = scale alpha A^T dD, dC = scale beta dD, dbias = scale dD,
    dresidual = dD. An activation's argument is computed again, and scale dD is multiplied by its derivative.

    Sums are over the axes along which a bias was broadcast, and over the batches for an operand shared by all.
    """
    a, b, c, bias = ctx.saved_tensors
    scale, alpha, beta, activation = (ctx.options[name] for name in ("scale", "alpha", "beta", "activation"))
    # torch omits trailing arguments that were not passed.
    wants_a, wants_b, wants_c, wants_bias, wants_residual = [*ctx.needs_input_grad, *(False,) * 5][:5]
    (of_a, dtype), (of_b, _), of_c, of_bias, _ = ctx.like
    inner = grad  # the gradient of the product
    if activation and (wants_a or wants_b or wants_c or wants_bias):
        x = _OPS.gemm(a, b, None, bias, alpha=alpha, dtype=torch.float32)
        x = x if c is None else x + beta * c
        inner, scale = _ACTIVATIONS[activation](scale * _cast_to(grad, torch.float32), x), 1.0
    found: list[Any] = [None] * 5
    if wants_a or wants_b:
        rounded = _cast_to(inner, dtype)
        if wants_a:
            found[0] = _product(rounded, b.mT, scale * alpha, of_a)
        if wants_b:
            found[1] = _product(a.mT, rounded, scale * alpha, of_b)
    if wants_c:  # c is not read if beta is 0, and 0 times an infinite gradient would be NaN
        of_inner = _OPS.scale(inner, scale * beta) if beta else torch.zeros_like(inner)
        found[2] = _cast_to(of_inner, of_c[1])
    if wants_bias:
        total = sum_to(_cast_to(inner, torch.float32), of_bias[0])
        found[3] = _cast_to(_OPS.scale(total, scale), of_bias[1])
    if wants_residual:
        found[4] = grad
    return tuple(found)


def _cast_to(x: Any, dtype: Any) -> Any:
    return x if x.dtype == dtype else _OPS.cast(x, dtype)


def _product(a: Any, b: Any, alpha: float, shape: Sequence[int]) -> Any:
    """alpha * a @ b, summed over its batches if `shape` has no batch axis."""
    if len(shape) == max(a.dim(), b.dim()):
        return _OPS.gemm(a, b, alpha=alpha)
    batches = _OPS.gemm(a, b, alpha=alpha, dtype=torch.float32)
    total = _OPS.sum(batches.reshape(batches.shape[0], math.prod(shape)), 0).reshape(shape)
    return total if a.dtype == torch.float32 else _OPS.cast(total, a.dtype)


# softmax --------------------------------------------------------------------------------------------------------------


def _save_softmax(ctx: Any, inputs: Sequence[Any], keyword_only_inputs: Any, output: Any) -> None:
    mask = inputs[1]
    ctx.save_for_backward(output)
    ctx.mask = None if mask is None else (mask.shape, mask.dtype)
    ctx.options = {name: keyword_only_inputs[name] for name in ("log", "scale")}


def _softmax(ctx: Any, grad: Any) -> Any:
    (y,) = ctx.saved_tensors
    wants_x, *of_mask = ctx.needs_input_grad
    of_x = None
    if wants_x:
        of_x = _OPS.softmax_backward(grad, y, **ctx.options)
        if ctx.mask is not None and ctx.options["log"]:  # masked elements have y = -inf and a gradient of 0
            of_x = of_x.masked_fill(y == -math.inf, 0.0)
    what = "cudakit::softmax has no gradient for mask"
    return of_x, library.missing(grad, ctx.mask, what, _ADVICE) if any(of_mask) else None


# fft, ifft, rfft, irfft -----------------------------------------------------------------------------------------------

# The norm of the inverse transform with the same factor.
_MIRRORED = {"backward": "forward", "forward": "backward", "ortho": "ortho", None: None}


def _save_axes(ctx: Any, inputs: Sequence[Any], keyword_only_inputs: Any, output: Any) -> None:
    ctx.axes, ctx.norm = inputs[1], _MIRRORED[keyword_only_inputs["norm"]]
    real = output if len(inputs) > 2 else inputs[0]
    ctx.length, ctx.pairs = real.shape[-1], real.dtype == torch.float16


def _fft(ctx: Any, grad: Any) -> Any:
    return _OPS.ifft(grad, ctx.axes, norm=ctx.norm), None


def _ifft(ctx: Any, grad: Any) -> Any:
    return _OPS.fft(grad, ctx.axes, norm=ctx.norm), None


def _weighted(ctx: Any, terms: Any, weight: float) -> Any:
    """The terms that stand for two of a real array's transform, times `weight`; the others unchanged."""
    along = torch.arange(ctx.length // 2 + 1, device=terms.device)
    single = (along == 0) | (2 * along == ctx.length)
    factors = torch.where(single, 1.0, weight).to(torch.float16 if ctx.pairs else torch.float32)
    return terms * (factors.unsqueeze(-1) if ctx.pairs else factors)


def _rfft(ctx: Any, grad: Any) -> Any:
    return _OPS.irfft(_weighted(ctx, grad, 0.5), ctx.axes, ctx.length, norm=ctx.norm), None


def _irfft(ctx: Any, grad: Any) -> Any:
    return _weighted(ctx, _OPS.rfft(grad, ctx.axes, norm=ctx.norm), 2.0), None, None


GRADIENTS: dict[str, tuple[Setup, Backward]] = {
    "add": (_save_shapes, _add),
    "add_broadcast": (_save_shapes, _add_broadcast),
    "blur": (_save_border, _blur),
    "cast": (_save_dtype, _cast),
    "fft": (_save_axes, _fft),
    "gemm": (_save_product, _gemm),
    "ifft": (_save_axes, _ifft),
    "irfft": (_save_axes, _irfft),
    "matrix_add": (_save_shapes, _add),
    "rfft": (_save_axes, _rfft),
    "scale": (_save_factor, _scale),
    "softmax": (_save_softmax, _softmax),
    "sum": (_save_axis, _sum),
}


def register(names: Sequence[str]) -> None:
    """Register the gradients of the ops `names`; a backward pass through an op without one raises GradientError."""
    for name in names:
        if name in GRADIENTS:
            setup_context, backward = GRADIENTS[name]
            library.add_gradient(f"cudakit::{name}", backward, setup_context)
        else:
            library.add_no_gradient(f"cudakit::{name}", _ADVICE)
