"""One op in torch's library: its schema, its kernels for CUDA and CPU tensors, its fake kernel, and what it does to
gradients if it has none of its own.

Ops are defined with torch.library.Library and not with the wrapper torch.library.custom_op, whose calls take longer:
3.3 against 10.7 us without and 7.4 against 11.5 us with a gradient (a call that returns an empty tensor of 16 elements,
torch 2.13 on a CPU).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cudakit.errors import GradientError

# A Library removes its ops when it is dropped.
_libraries: dict[str, Any] = {}


def define(
    name: str, schema: str, *, cuda: Callable[..., Any], cpu: Callable[..., Any], fake: Callable[..., Any]
) -> Any:
    """Define the op `name` ("cudakit::scale") of `schema` ("(Tensor x, float factor) -> Tensor") and return it.

    cuda, cpu: the kernels for tensors of each kind. fake: a kernel that allocates the outputs and computes nothing. An
    op that writes to its arguments checks them with `expect_no_gradient` and reports them with `written`; another one
    has `add_gradient` or `add_no_gradient` called on its name.
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
    """Whether torch has an op of that name, of this process's or of another library's."""
    namespace, _, short = name.partition("::")
    return name in _libraries or hasattr(getattr(torch.ops, namespace), short)


def add_gradient(name: str, backward: Callable[..., Any], setup_context: Callable[..., Any] | None) -> None:
    """Give the op `name` a gradient, by functions as torch.library.register_autograd takes them."""
    torch.library.register_autograd(name, backward, setup_context=setup_context, lib=_libraries[name])


def add_no_gradient(name: str, advice: str) -> None:
    """Have a backward pass through the op `name` raise GradientError with `advice`."""

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any, keyword_only_inputs: Any = None) -> None:
        ctx.inputs = [(x.shape, x.dtype) if isinstance(x, torch.Tensor) else None for x in inputs]

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        grad = next(grad for grad in grads if grad is not None)
        # torch leaves out the arguments at the end that were not given.
        needed = zip(ctx.needs_input_grad, ctx.inputs, strict=False)
        what = f"{name} has no gradient"
        return tuple(missing(grad, like, what, advice) if wanted and like else None for wanted, like in needed)

    add_gradient(name, backward, setup_context)


def missing(grad: Any, like: tuple[Sequence[int], Any], what: str, advice: str) -> Any:
    """A gradient that does not exist, of the shape and dtype `like`: raises GradientError when it would be computed.

    It is an op, so that torch.compile, which traces every backward pass before any is run, traces this one too.
    """
    shape, dtype = like
    return torch.ops.cudakit.no_gradient(grad, list(shape), dtype, what, advice)


def expect_no_gradient(op: str, name: str, tensor: Any) -> None:
    """Refuse a tensor that records gradients in an op that writes to its arguments: they would be silently wrong."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise GradientError(
            f"{op} writes to its arguments, which has no gradient, and {name} records gradients: give {name}.detach(), "
            "or call it under torch.no_grad()"
        )


def written(tensor: Any) -> None:
    """Have autograd know that a tensor was written to, so that it refuses to use what it kept of it."""
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
