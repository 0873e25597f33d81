"""The problem that both families of matrix products take: D = alpha * A @ B + beta * C, any strides, batched or not.

For 16-bit operands it has a fused epilogue: D = scale * activation(alpha * A @ B + beta * C + bias) + residual.

A transposed operand is a view with its strides swapped. If the other operand is 3-D, a 2-D operand is used for every
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cudakit.family import CPP, IN, OUT, Scalar, Slot, alignment, checks
from cudakit.libs.products import product_shape
from cudakit.memory import array as memory
from cudakit.names import hint

_TWICE = (
    "the output of a product, {output.shape} with strides {output.strides_elements} (elements), may store two "
    "elements at one address, a data race: pass an output whose elements do not overlap"
)
_PARTLY = "{name} and the output overlap without being the same array: pass the same one, or a separate one"
_SHARED = "the output of a product overlaps {name}, which is read until the end: pass a separate one"

#: The arrays that may follow A and B among the inputs, by the names of the option `added`, and their names in messages.
ADDED = {"c": "C", "bias": "the bias", "residual": "the residual"}
#: The activations by name, and their names in kernels/gemm_half/epilogue.cuh.
ACTIVATIONS = {"": "kNoActivation", "relu": "kRelu", "gelu": "kGelu", "gelu_tanh": "kGeluTanh", "silu": "kSilu"}
NO_EPILOGUE = ACTIVATIONS[""], "kNoArray", "kNoBias", "kNoArray"  # epilogue_constants after the type of the bias


@dataclass(frozen=True)
class Operand:
    """Strides of a row, a column and a batch, in elements; the alignment of the first element, in bytes (at most 16);
    and the array's slot in a kernel's arguments."""

    row: int
    col: int
    batch: int
    alignment: int
    slot: Slot

    @property
    def turned(self) -> Operand:
        """The transposed operand."""
        return replace(self, row=self.col, col=self.row)

    def pieces(self, along: int, step: int, extent: int, batches: int, itemsize: int, piece: int = 16) -> bool:
        """Return whether an axis of stride `along` and `extent` elements consists of whole pieces of `piece` bytes, at
        every step of the other axis (stride `step`) and in every batch."""
        width = piece // itemsize
        whole = along == 1 and extent % width == 0 and step % width == 0 and self.alignment % piece == 0
        return whole and (batches == 1 or self.batch % width == 0)


@dataclass(frozen=True)
class GemmProblem:
    """m x n = m x k times k x n, `batch` times. dtype: of A and B. result: the dtype of C and D. sms: the device's
    multiprocessors. shared: the bytes of shared memory that it allows per block. others: addresses of the same output
    on other devices; only the kernels of stream-K store there. bias: its strides are 0 along the axes on which it is
    broadcast. activation: one of ACTIVATIONS."""

    m: int
    n: int
    k: int
    batch: int
    a: Operand
    b: Operand
    c: Operand
    d: Operand
    alpha: float
    beta: float
    dtype: str
    result: str
    sms: int
    shared: int
    others: tuple[int, ...] = ()
    bias: Operand | None = None
    bias_dtype: str = ""
    residual: Operand | None = None
    activation: str = ""
    scale: float = 1.0

    def __str__(self) -> str:
        batches = f"{self.batch} x " if self.batch > 1 else ""
        return (
            f"{batches}{self.m}x{self.n}x{self.k} {self.dtype} product, strides A {self.a.row, self.a.col}, "
            f"B {self.b.row, self.b.col}, D {self.d.row, self.d.col}{self._epilogue}"
        )

    @property
    def _epilogue(self) -> str:
        scale = f"scale {float(self.scale):g}" if self.scale != 1 else ""
        parts = ("bias" if self.bias else "", self.activation, scale, "residual" if self.residual else "")
        return f", with {', '.join(filter(None, parts))}" if self.fused else ""

    @property
    def fused(self) -> bool:
        """Whether there is more to compute than alpha * A @ B + beta * C."""
        return bool(self.bias or self.residual or self.activation or self.scale != 1)

    @property
    def empty(self) -> bool:
        """Whether the output has no elements."""
        return not (self.m and self.n and self.batch)

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def turned(self) -> GemmProblem:
        """The same problem as a product of the transposed operands: D^T = B^T * A^T."""
        a, b, c, d = (operand.turned for operand in (self.b, self.a, self.c, self.d))
        bias, residual = (operand and operand.turned for operand in (self.bias, self.residual))
        return replace(self, m=self.n, n=self.m, a=a, b=b, c=c, d=d, bias=bias, residual=residual)


def named(rest: Sequence[Any], added: str) -> dict[str, Any]:
    """Return the arrays that follow A and B by the names in the option `added`, separated by blanks. C is optional if
    it is the only name. Raise ValueError if names and arrays do not match."""
    names = added.split()
    if len(set(names)) != len(names) or not set(names) <= ADDED.keys():
        raise ValueError(f"added={added!r} must name each array once, of {', '.join(ADDED)}")
    if len(rest) != len(names) and (rest or names != ["c"]):
        raise ValueError(f"added={added!r} names {len(names)} arrays after A and B, got {len(rest)}")
    return dict(zip(names, rest, strict=False))


def problem(
    inputs: Sequence[Any],
    output: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
    others: tuple[int, ...] = (),
    added: str = "c",
    activation: str = "",
    scale: float = 1.0,
) -> GemmProblem:
    """Return the problem of A, B, the arrays that `added` names, and D. Raise ValueError for unsupported arrays."""
    a, b, *rest = inputs
    given = named(rest, added)
    slots = dict(zip(given, IN[2:], strict=False))
    c, slot = given.get("c", output), slots.get("c", OUT)
    bias, residual = given.get("bias"), given.get("residual")
    if a.dtype != b.dtype:
        raise ValueError(f"a product takes operands of one dtype, got A {a.dtype} and B {b.dtype}")
    if c.dtype != output.dtype:
        raise ValueError(
            f"C and the output of a product must have one dtype, got C {c.dtype} and output {output.dtype}"
        )
    shape = output_shape(a.shape, b.shape)
    bias_if_any = () if bias is None else (("the bias", bias),)
    residual_if_any = () if residual is None else (("the residual", residual),)
    for name, array in (("C", c), ("the output", output), *residual_if_any):
        if tuple(array.shape) != shape:
            raise ValueError(
                f"A {tuple(a.shape)} times B {tuple(b.shape)} has shape {shape}, but {name} has {tuple(array.shape)}: "
                "pass one of that shape"
            )
    if residual is not None and residual.dtype != output.dtype:
        raise ValueError(
            f"the residual and the output of a product must have one dtype, got residual {residual.dtype} and output "
            f"{output.dtype}"
        )
    expect_activation(activation)
    of_bias = None if bias is None else _bias(bias, a.dtype, shape, slots["bias"])
    also = (*((("C", c),) if beta != 0 else ()), *residual_if_any)
    separate = (("A", a), ("B", b), *bias_if_any)
    checks.expect_output("a product", output, also, separate, twice=_TWICE, partly=_PARTLY, shared=_SHARED)
    m, n, k = shape[-2], shape[-1], a.shape[-1]
    batch = shape[0] if len(shape) == 3 else 1
    sms = int(output.context.attribute("MULTIPROCESSOR_COUNT"))
    shared = int(output.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))
    of_a, of_b, of_c, of_d = map(operand_of, (a, b, c, output), (*IN[:2], slot, OUT))
    dtypes = str(a.dtype), str(output.dtype)
    return GemmProblem(
        m, n, k, batch, of_a, of_b, of_c, of_d, float(alpha), float(beta), *dtypes, sms, shared, others,
        bias=of_bias,
        bias_dtype="" if bias is None else str(bias.dtype),
        residual=None if residual is None else operand_of(residual, slots["residual"]),
        activation=activation,
        scale=float(scale),
    )  # fmt: skip


#: The options of both families that are plain numbers. If beta is not 0, C is read and must not partly overlap the
#: output. If scale is not 1, the variant must support fused epilogues.
SCALARS = {
    "alpha": Scalar("alpha", float),
    "beta": Scalar("beta", float, kind=lambda beta: float(beta) != 0),
    "scale": Scalar("scale", float, kind=lambda scale: float(scale) != 1),
}


def expect_activation(activation: Any) -> None:
    """Raise ValueError for an unknown activation."""
    if activation not in ACTIVATIONS:
        known = ", ".join(map(repr, filter(None, ACTIVATIONS)))
        meant = hint(str(activation), ACTIVATIONS)
        raise ValueError(f"activation must be None or one of {known}, got {activation!r}{meant}")


def operand_of(array: Any, slot: Slot) -> Operand:
    """Return an array's strides and alignment."""
    *batch, row, col = array.strides_elements
    return Operand(row, col, batch[0] if batch else 0, alignment(array), slot)


def _bias(bias: Any, dtype: Any, shape: tuple[int, ...], slot: Slot) -> Operand:
    """Return the bias of an output of `shape`; its strides are 0 along the axes on which it is broadcast."""
    if bias.dtype not in (dtype, np.float32):
        raise ValueError(f"the bias of a product of {dtype} must be {dtype} or float32, got {bias.dtype}")
    missing = len(shape) - bias.ndim
    extents = (*(1,) * missing, *bias.shape)
    if missing < 0 or any(own not in (1, whole) for own, whole in zip(extents, shape, strict=True)):
        raise ValueError(
            f"the bias has shape {tuple(bias.shape)}, which does not broadcast to the output's shape {shape}: pass "
            f"({shape[-1]},) for a number per column, or ({shape[-2]}, 1) for a number per row"
        )
    strides = (*(0,) * missing, *bias.strides_elements)
    *batch, row, col = (0 if own == 1 else stride for own, stride in zip(extents, strides, strict=True))
    return Operand(row, col, batch[0] if batch else 0, alignment(bias), slot)


def output_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of A @ B. Raise ValueError if their shapes do not match."""
    return product_shape(a, b, names=("A", "B"))


def arguments(p: GemmProblem) -> tuple[Any, ...]:
    """Return the arguments that every kernel of both families takes."""
    operands = (p.a, p.b, p.c, p.d)
    strides = (stride for o in operands for stride in (o.row, o.col, o.batch))
    return (*(o.slot for o in operands), *strides, p.m, p.n, p.k, p.batch, p.alpha, p.beta)


def output_arguments(p: GemmProblem) -> tuple[Any, ...]:
    """Return the first arguments of every kernel that adds up partial sums: C and D, and their strides."""
    return (p.c.slot, p.d.slot, *(stride for o in (p.c, p.d) for stride in (o.row, o.col, o.batch)))


def epilogue_arguments(p: GemmProblem) -> tuple[Any, ...]:
    """Return the arguments of a fused epilogue, which follow those of `arguments`: the bias and its strides, the
    residual and its strides, and scale. An array that is not read replaces a missing one."""
    bias = p.bias or replace(p.c, row=0, col=0, batch=0)
    residual = p.residual or replace(p.d, row=0, col=0, batch=0)
    operands = ((o.slot, o.row, o.col, o.batch) for o in (bias, residual))
    return (*(value for operand in operands for value in operand), p.scale)


def epilogue_constants(p: GemmProblem) -> tuple[str, ...]:
    """Return the template arguments of an epilogue after the output's type: the type of the bias, the activation and
    whether its result is scaled, and the kinds of C, of the bias and of the residual."""
    activation = ACTIVATIONS[p.activation] + (" + kScaled" if p.scale != 1 else "")
    added = (_array_constant(p, p.c if p.beta != 0 else None), bias_constant(p), _array_constant(p, p.residual))
    return CPP[p.bias_dtype or p.result], activation, *added


def _array_constant(p: GemmProblem, array: Operand | None) -> str:
    """Return the template argument for the kind of C or of the residual."""
    if array is None:
        return "kNoArray"
    if _in_pairs(p, array, p.result):
        return "kColumnPairs"
    if array.col == 1:
        return "kAdjacentColumns"
    return "kAdjacentRows" if array.row == 1 else "kAnyArray"


def _in_pairs(p: GemmProblem, array: Operand, dtype: str) -> bool:
    """Return whether columns 2 * i and 2 * i + 1 of an array can be loaded together."""
    item = memory.as_dtype(dtype).itemsize
    return array.pieces(array.col, array.row, p.n, p.batch, item, 2 * item)


def bias_constant(p: GemmProblem) -> str:
    """Return the template argument for the kind of bias."""
    if p.bias is None:
        return "kNoBias"
    if not p.bias.col:
        return "kBiasPerRow"
    if (p.bias.row, p.bias.col) != (0, 1):
        return "kAnyBias"
    return "kBiasPairs" if _in_pairs(p, p.bias, p.bias_dtype) else "kBiasPerColumn"
