"""cuBLAS's products of matrices: one, a batch a stride apart, or a batch of matrices anywhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit.driver.stream import Stream
from cudakit.libs import calls
from cudakit.libs.calls import CallPlan
from cudakit.libs.cublas import Cublas, Matrix, factors, matrix, run
from cudakit.libs.host_blas import (
    COMPUTE_16F,
    COMPUTE_32F,
    COMPUTE_64F,
    COMPUTE_FAST_TF32,
    TRANSPOSED,
    TYPES,
)
from cudakit.memory import array as memory
from cudakit.memory import makers
from cudakit.memory.array import DeviceArray

_DEFAULT_ALGORITHM = -1  # cublasGemmAlgo_t
# (dtype, compute=) and the cublasComputeType_t it means; None is what stands first for a dtype.
_COMPUTE = {
    ("float32", "float32"): COMPUTE_32F,
    ("float32", "tf32"): COMPUTE_FAST_TF32,
    ("float16", "float32"): COMPUTE_32F,
    ("float16", "float16"): COMPUTE_16F,
    ("bfloat16", "float32"): COMPUTE_32F,
    ("float64", "float64"): COMPUTE_64F,
    ("complex64", "complex64"): COMPUTE_32F,
    ("complex128", "complex128"): COMPUTE_64F,
}
_HALVES = ("float16", "bfloat16")


def gemm(
    a: Any,
    b: Any,
    out: Any = None,
    *,
    c: Any = None,
    alpha: complex = 1,
    beta: complex = 0,
    compute: str | None = None,
    conj_a: bool = False,
    conj_b: bool = False,
    stream: Any = None,
) -> Any:
    """alpha * a @ b + beta * c, by cuBLAS. Returns `out` without waiting.

    a: (m, k), b: (k, n), out: (m, n), all row by row or transposed views of such (a.T), with any leading dimension.
    (batch, m, k) and the like are one strided batch, in which a 2-D operand serves all; lists of 2-D arrays, of one
    shape and layout each, are a batch anywhere in memory. out: a new array (or list) unless given. c: of out's shape
    and dtype; out itself unless given, and not read where beta is 0. Operands are of one dtype, float32, float64,
    complex64, complex128, float16 or bfloat16, and so is out; for the latter two it may be float32.
    compute: what sums are kept in. float16 has "float32" (unless told otherwise) and "float16"; float32 has "tf32",
    which rounds the operands to 11 bits. conj_a, conj_b: conjugate an operand that is a transposed view: a.T with
    conj_a is a's adjoint. k = 0 gives beta * c. Raises ValueError, TypeError or DeviceMismatch before anything is
    queued, CudaError where cuBLAS fails.
    """
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        return _gemm_of_lists(a, b, out, c, (alpha, beta, compute, bool(conj_a), bool(conj_b)), stream)
    if out is None:
        if c is None and beta != 0:
            raise ValueError(f"beta is {beta}, and there is no c for it: give c=, or out= to add to")
        calls.expect_arrays(a, b)
        stream = calls.on_stream(a.context, stream)
        shape = product_shape(a.shape, b.shape)
        out = memory.empty(a.context, stream, shape, a.dtype if c is None else c.dtype)
    if c is not None and beta != 0 and c is not out:
        calls.expect_arrays(a, c, out)
        stream = calls.on_stream(a.context, stream)
        _check_c(c, out, (a, b))
        out.copy_from(c, stream)
    run(_gemm, (a, b, out), (alpha, beta, compute, conj_a, conj_b), stream)
    return out


def product_shape(a: Sequence[int], b: Sequence[int], names: tuple[str, str] = ("a", "b")) -> tuple[int, ...]:
    """The shape of a @ b; ValueError, with the operands' `names`, if they do not fit."""
    of_a, of_b = names
    if len(a) not in (2, 3) or len(b) not in (2, 3):
        raise ValueError(
            f"a product takes 2-D arrays, or 3-D ones for batches; {of_a} is {tuple(a)}, {of_b} is {tuple(b)}"
        )
    if a[-1] != b[-2]:
        raise ValueError(
            f"{of_a} is {tuple(a)} and {of_b} is {tuple(b)}: {of_a}'s columns, {a[-1]}, are not {of_b}'s rows, {b[-2]}"
        )
    if len(a) == len(b) == 3 and a[0] != b[0]:
        raise ValueError(
            f"{of_a} has {a[0]} batches and {of_b} has {b[0]}: give as many, or a 2-D array for all batches"
        )
    batches = (a[0],) if len(a) == 3 else (b[0],) if len(b) == 3 else ()
    return (*batches, a[-2], b[-1])


def _check_c(c: DeviceArray, out: DeviceArray, operands: Sequence[DeviceArray]) -> None:
    if c.shape != out.shape or c.dtype != out.dtype:
        raise ValueError(f"c is {c.dtype} {c.shape}, and the output is {out.dtype} {out.shape}: they must be the same")
    if memory.touch(c, out) and not calls.same(c, out):
        raise ValueError("c and out overlap without being the same array: give the same one, or a separate one")
    for operand in operands:
        if memory.touch(operand, out):
            raise ValueError("out overlaps an operand, which is read throughout: give a separate one")


def _compute_type(dtype: str, compute: str | None) -> int:
    choices = [choice for known, choice in _COMPUTE if known == dtype]
    if not choices:
        raise TypeError(f"cuBLAS multiplies {', '.join(TYPES)}, not {dtype}: convert the operands")
    chosen = choices[0] if compute is None else compute
    if chosen not in choices:
        raise ValueError(f"a product of {dtype} has compute={' or '.join(map(repr, choices))}, not {compute!r}")
    return _COMPUTE[dtype, chosen]


@dataclass(frozen=True)
class GemmArguments:
    """The arguments of one product that do not depend on where its arrays lie, for column-major D = first @ second.

    swapped: whether the first is b, as it is where D lies row by row.
    """

    swapped: bool
    m: int
    n: int
    k: int
    first: Matrix
    second: Matrix
    result: Matrix
    factors: np.ndarray[Any, Any]
    types: tuple[int, int]
    compute: int


def _product(
    a: DeviceArray, b: DeviceArray, out: DeviceArray, alpha: Any, beta: Any, compute: Any, conj_a: bool, conj_b: bool
) -> GemmArguments:
    """Check a product and turn it into cuBLAS's terms.

    cuBLAS reads columns, and a row-major array is its own transposed one column by column. So D = A @ B of row-major
    arrays is asked for as D^T = B^T @ A^T: B goes first, with the rows' strides as they are. A first, in the order of
    the text, is B @ A: without an error message for square matrices, and wrong.
    """
    if a.dtype != b.dtype:
        raise TypeError(f"a is {a.dtype} and b is {b.dtype}: convert one, a product takes operands of one dtype")
    of_inputs, of_out = a.dtype.name, out.dtype.name
    kind = _compute_type(of_inputs, compute)
    if of_out != of_inputs and not (of_inputs in _HALVES and of_out == "float32" and kind == COMPUTE_32F):
        raise TypeError(
            f"a product of {of_inputs} gives {of_inputs}"
            + (" or float32 (with float32 sums)" if of_inputs in _HALVES else "")
            + f"; out is {of_out}"
        )
    shape = product_shape(a.shape, b.shape)
    if out.shape != shape:
        raise ValueError(f"a {a.shape} times b {b.shape} is {shape}, and out is {out.shape}: give one of that shape")
    sums = np.float16 if kind == COMPUTE_16F else a.dtype if of_inputs not in _HALVES else np.float32
    scale = factors((alpha, beta), sums)
    (m, k), n = a.shape[-2:], b.shape[-1]
    result = matrix("out", out)
    swapped = result.operation == TRANSPOSED
    if a.dtype.kind != "c":
        conj_a = conj_b = False
    if swapped:
        m, n, result = n, m, matrix("out", out, turned=True)
        first, second = matrix("b", b, turned=True, conj=conj_b), matrix("a", a, turned=True, conj=conj_a)
    else:
        first, second = matrix("a", a, conj=conj_a), matrix("b", b, conj=conj_b)
    return GemmArguments(swapped, m, n, k, first, second, result, scale, (TYPES[of_inputs], TYPES[of_out]), kind)


def _gemm(
    of: Cublas, arrays: Sequence[DeviceArray], alpha: Any, beta: Any, compute: Any, conj_a: bool, conj_b: bool
) -> CallPlan:
    a, b, out = arrays
    p = _product(a, b, out, alpha, beta, compute, conj_a, conj_b)
    batch = out.shape[0] if out.ndim == 3 else 1
    by, add = p.factors.ctypes.data, p.factors.ctypes.data + p.factors.itemsize
    head = (of.number, p.first.operation, p.second.operation, p.m, p.n, p.k)

    def bind(of: Cublas, pointers: Sequence[int]) -> Callable[[], Any] | None:
        if 0 in out_shape or (p.k == 0 and p.factors[1] == 1):
            return None
        at_a, at_b, at_out = pointers
        if p.k == 0:
            at_a = at_b = at_out  # which are not read, and must not be null
        first, second = (at_b, at_a) if p.swapped else (at_a, at_b)
        if batch == 1:
            return functools.partial(
                of.library.gemm_ex, *head, by, first, p.types[0], p.first.leading, second, p.types[0],
                p.second.leading, add, at_out, p.types[1], p.result.leading, p.compute, _DEFAULT_ALGORITHM,
            )  # fmt: skip
        return functools.partial(
            of.library.gemm_strided_batched_ex, *head, by, first, p.types[0], p.first.leading, p.first.batch, second,
            p.types[0], p.second.leading, p.second.batch, add, at_out, p.types[1], p.result.leading, p.result.batch,
            batch, p.compute, _DEFAULT_ALGORITHM,
        )  # fmt: skip

    out_shape = out.shape
    return CallPlan(bind, frozenset((2,)), kept=p.factors)


def _gemm_of_lists(a: Any, b: Any, out: Any, c: Any, options: tuple[Any, ...], stream: Any) -> list[DeviceArray]:
    """A batch of products whose matrices lie anywhere: cuBLAS is given their addresses in device memory."""
    lists = [list(each) if isinstance(each, (list, tuple)) else None for each in (a, b, out)]
    counts = {len(each) for each in lists if each is not None}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"lists of {sorted(counts)} matrices: give as many of each, and at least one")
    (count,) = counts
    many_a, many_b, many_out = (
        each if each is not None else [given] * count for each, given in zip(lists, (a, b, out), strict=True)
    )
    calls.expect_arrays(*many_a, *many_b)
    context = many_a[0].context
    stream = calls.on_stream(context, stream)
    if c is not None or (options[1] != 0 and out is None):
        raise ValueError("a batch of lists adds to out, not to c: copy c into out first")
    if out is None:
        shape = product_shape(many_a[0].shape, many_b[0].shape)
        whole = memory.empty(context, stream, (count, *shape), many_a[0].dtype)
        many_out = [whole[i] for i in range(count)]
    elif lists[2] is None:
        raise ValueError("a batch of lists writes a list of arrays: give out as one")
    calls.expect_arrays(*many_out)
    run(_gemm_batch, (*many_a, *many_b, *many_out), (count, *options), stream)
    return many_out


def _gemm_batch(of: Cublas, arrays: Sequence[DeviceArray], count: int, *options: Any) -> CallPlan:
    for name, first in zip(("a", "b", "out"), range(0, 3 * count, count), strict=True):
        kinds = {(array.shape, array.strides, array.dtype) for array in arrays[first : first + count]}
        if len(kinds) > 1:
            raise ValueError(f"the matrices of {name} differ in shape, strides or dtype: those of one list must not")
    a, b, out = arrays[0], arrays[count], arrays[2 * count]
    if out.ndim != 2:
        raise ValueError(f"a list holds 2-D arrays, not such as {out.shape}: a 3-D array is a batch by itself")
    p = _product(a, b, out, *options)
    by, add = p.factors.ctypes.data, p.factors.ctypes.data + p.factors.itemsize
    nothing = 0 in out.shape or (p.k == 0 and p.factors[1] == 1)

    def bind(of: Cublas, pointers: Sequence[int]) -> Callable[[], Any] | None:
        if nothing:
            return None
        at_a, at_b, at_out = (list(pointers[first : first + count]) for first in range(0, 3 * count, count))
        if p.k == 0:
            at_a = at_b = at_out
        each = (at_b, at_a, at_out) if p.swapped else (at_a, at_b, at_out)
        stream = Stream(of.context, handle=of.stream)
        table = makers.array(of.context, stream, np.array(each, np.uint64))
        first, second, third = (table.pointer + 8 * count * i for i in range(3))
        more = {"pointers": each} if of.context.kind == "sim" else {}

        def call() -> None:
            of.library.gemm_batched_ex(
                of.number, p.first.operation, p.second.operation, p.m, p.n, p.k, by, first, p.types[0],
                p.first.leading, second, p.types[0], p.second.leading, add, third, p.types[1], p.result.leading,
                count, p.compute, _DEFAULT_ALGORITHM, **more,
            )  # fmt: skip
            table.close()  # in stream order

        return call

    return CallPlan(bind, frozenset(range(2 * count, 3 * count)), kept=p.factors, again=False)
