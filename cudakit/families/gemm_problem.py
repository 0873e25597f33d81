"""The problem that both families of matrix products take: D = alpha * A @ B + beta * C, any strides, batched or not.

A transposed operand is a view with its strides swapped. If the other operand is 3-D, a 2-D operand is used for every
batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cudakit.family import IN, OUT, Scalar, Slot, alignment, checks
from cudakit.libs.products import product_shape

_TWICE = (
    "the output of a product, {output.shape} with strides {output.strides_elements} (elements), may store two "
    "elements at one address, a data race: pass an output whose elements do not overlap"
)
_PARTLY = "C and the output overlap without being the same array: pass the same one, or a separate one"
_SHARED = "the output of a product overlaps {name}, which is read until the end: pass a separate one"


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

    def pieces(self, along: int, step: int, extent: int, batches: int, itemsize: int) -> bool:
        """Return whether an axis of stride `along` and `extent` elements consists of whole 16-byte pieces, at every
        step of the other axis (stride `step`) and in every batch."""
        width = 16 // itemsize
        whole = along == 1 and extent % width == 0 and step % width == 0 and self.alignment == 16
        return whole and (batches == 1 or self.batch % width == 0)


@dataclass(frozen=True)
class GemmProblem:
    """m x n = m x k times k x n, `batch` times. dtype: of A and B. result: the dtype of C and D. sms: the device's
    multiprocessors. shared: the bytes of shared memory that it allows per block. others: addresses of the same output
    on other devices; only the kernels of stream-K store there."""

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

    def __str__(self) -> str:
        batches = f"{self.batch} x " if self.batch > 1 else ""
        return (
            f"{batches}{self.m}x{self.n}x{self.k} {self.dtype} product, strides A {self.a.row, self.a.col}, "
            f"B {self.b.row, self.b.col}, D {self.d.row, self.d.col}"
        )

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
        return replace(self, m=self.n, n=self.m, a=a, b=b, c=c, d=d)


def problem(
    inputs: Sequence[Any], output: Any, alpha: float = 1.0, beta: float = 0.0, others: tuple[int, ...] = ()
) -> GemmProblem:
    """Return the problem of (A, B) or (A, B, C) and D. Raise ValueError for unsupported arrays."""
    a, b, *rest = inputs
    c, slot = (rest[0], IN[2]) if rest else (output, OUT)
    if a.dtype != b.dtype:
        raise ValueError(f"a product takes operands of one dtype, got A {a.dtype} and B {b.dtype}")
    if c.dtype != output.dtype:
        raise ValueError(
            f"C and the output of a product must have one dtype, got C {c.dtype} and output {output.dtype}"
        )
    shape = output_shape(a.shape, b.shape)
    for name, array in (("C", c), ("the output", output)):
        if tuple(array.shape) != shape:
            raise ValueError(
                f"A {tuple(a.shape)} times B {tuple(b.shape)} has shape {shape}, but {name} has {tuple(array.shape)}: "
                "pass one of that shape"
            )
    added = (("C", c),) if beta != 0 else ()
    checks.expect_output("a product", output, added, (("A", a), ("B", b)), twice=_TWICE, partly=_PARTLY, shared=_SHARED)
    m, n, k = shape[-2], shape[-1], a.shape[-1]
    batch = shape[0] if len(shape) == 3 else 1
    sms = int(output.context.attribute("MULTIPROCESSOR_COUNT"))
    shared = int(output.context.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"))
    of_a, of_b, of_c, of_d = map(_operand, (a, b, c, output), (*IN[:2], slot, OUT))
    dtypes = str(a.dtype), str(output.dtype)
    return GemmProblem(m, n, k, batch, of_a, of_b, of_c, of_d, float(alpha), float(beta), *dtypes, sms, shared, others)


#: The options of both families that are plain numbers. If beta is not 0, C is read and must not partly overlap the
#: output.
SCALARS = {"alpha": Scalar("alpha", float), "beta": Scalar("beta", float, kind=lambda beta: float(beta) != 0)}


def _operand(array: Any, slot: Slot) -> Operand:
    *batch, row, col = array.strides_elements
    return Operand(row, col, batch[0] if batch else 0, alignment(array), slot)


def output_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of A @ B. Raise ValueError if their shapes do not match."""
    return product_shape(a, b, names=("A", "B"))


def arguments(p: GemmProblem) -> tuple[Any, ...]:
    """Return the arguments that every kernel of both families takes."""
    operands = (p.a, p.b, p.c, p.d)
    strides = (stride for o in operands for stride in (o.row, o.col, o.batch))
    return (*(o.slot for o in operands), *strides, p.m, p.n, p.k, p.batch, p.alpha, p.beta)
