"""Ops in torch's library: schema, kernels for CUDA and CPU tensors, fake kernel, and the gradient or its absence.

Ops are defined with torch.library.Library because its calls are faster than those of torch.library.custom_op: 3.3
instead of 10.7 us without a gradient and 7.4 instead of 11.5 us with one (a call that returns an empty tensor of 16
elements, torch 2.13 on a CPU).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cudakit.errors import GradientError

# Kept because a Library removes its ops when it is garbage-collected.
_libraries: dict[str, Any] = {}


def define(
    name: str, schema: str, *, cuda: Callable[..., Any], cpu: Callable[..., Any], fake: Callable[..., Any]
) -> Any:
    """Define the op `name` ("cudakit::scale") with `schema` ("(Tensor x, float factor) -> Tensor") and return it.

    cuda, cpu: the kernels for tensors of each kind. fake: a kernel that only allocates the outputs. An op that writes
    to its arguments must check them with `expect_no_gradient` and report them with `written`. For any other op call
    `add_gradient` or `add_no_gradient`.
    """
    namespace, _, short = name.partition("::")
    library = torch.library.Library(namespace, "FRAGMENT")
    library.define(short + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _libraries[name] = library
    library.impl(short, cuda, "CUDA")
    library.impl(short, cpu, "CPU")
    torch.library.register_fake(name, fake, lib=library)
    return getattr(getattr(torch.ops, namespace), short).default


def is_defined(name: str) -> bool:
    """Whether torch has an op of that name, defined here or by another library."""
    namespace, _, short = name.partition("::")
    return name in _libraries or hasattr(getattr(torch.ops, namespace), short)


def add_gradient(name: str, backward: Callable[..., Any], setup_context: Callable[..., Any] | None) -> None:
    """Register the gradient of the op `name`; the functions are as for torch.library.register_autograd."""
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=_libraries[name])


def add_no_gradient(name: str, advice: str) -> None:
    """Make a backward pass through the op `name` raise GradientError with `advice`."""

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any, keyword_only_inputs: Any = None) -> None:
        ctx.inputs = [(x.shape, x.dtype) if isinstance(x, torch.Tensor) else None for x in inputs]

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        grad = next(grad for grad in grads if grad is not None)
        # torch omits trailing arguments that were not passed.
        needed = zip(ctx.needs_input_grad, ctx.inputs, strict=False)
        what = f"{name} has no gradient"
        return tuple(missing(grad, like, what, advice) if wanted and like else None for wanted, like in needed)

    add_gradient(name, backward, setup_context)


def missing(grad: Any, like: tuple[Sequence[int], Any], what: str, advice: str) -> Any:
    """Return a missing gradient of the shape and dtype `like`, which raises GradientError when it is computed.

    It is an op because torch.compile traces every backward pass beforehand, and tracing must not raise.
    """
    shape, dtype = like
    return torch.ops.cudakit.no_gradient(grad, list(shape), dtype, what, advice)


def expect_no_gradient(op: str, name: str, tensor: Any) -> None:
    """Raise GradientError if an op writes to a tensor that records gradients: they would be silently wrong."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise GradientError(
            f"{op} writes to its arguments and has no gradient, but {name} records gradients: pass {name}.detach(), or "
            "call it under torch.no_grad()"
        )


def written(tensor: Any) -> None:
    """Report to autograd that a tensor was written to, so that a backward pass rejects values it saved before."""
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def _raise(grad: Any, shape: Sequence[int], dtype: Any, what: str, advice: str) -> Any:
    raise GradientError(f"{what}: {advice}")


def _traced(grad: Any, shape: Sequence[int], dtype: Any, what: str, advice: str) -> Any:
    return grad.new_empty(shape, dtype=dtype)


define(
    "cudakit::no_gradient",
    "(Tensor grad, SymInt[] shape, ScalarType dtype, str what, str advice) -> Tensor",
    cuda=_raise,
    cpu=_raise,
    fake=_traced,
)
