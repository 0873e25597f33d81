"""cuBLAS's matrix products: of single matrices, of strided batches, and of lists of matrices."""

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
# cublasComputeType_t by (dtype, compute=); the first entry of a dtype is its default.
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
    """Compute alpha * a @ b + beta * c with cuBLAS, without waiting. If k is 0, the result is beta * c.

    Matrices are row-major or transposed views (a.T), with any leading dimension. 3-D arrays (batch, m, k) are a strided
    batch; a 2-D operand is then used for all of it. Lists of 2-D arrays, with the same shape and layout within each
    list, are a batch anywhere in memory. a, b and out have the same dtype, float32, float64, complex64, complex128,
    float16 or bfloat16; for the last two out may be float32.

    Args:
        a: (m, k), a batch, or a list.
        b: (k, n), a batch, or a list.
        out: (m, n), a batch, or a list; new if None.
        c: Array of out's shape and dtype; `out` if None. Not read if beta is 0.
        alpha, beta: Factors, host numbers.
        compute: Precision of the sums: "float32" (default) or "float16" for float16; "float32" (default) or "tf32",
            which rounds the operands to 11 bits, for float32.
        conj_a, conj_b: Conjugate an operand that is a transposed view: a.T with conj_a is the adjoint of a.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `out`.

    Raises:
        ValueError: If shapes, strides or options do not fit; nothing was queued.
        TypeError: If dtypes do not fit, or an operand is not a device array; nothing was queued.
        DeviceMismatch: If an operand is on another device; nothing was queued.
        CudaError: If cuBLAS fails.
    """
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):
        return _gemm_of_lists(a, b, out, c, (alpha, beta, compute, bool(conj_a), bool(conj_b)), stream)
    if out is None:
        if c is None and beta != 0:
            raise ValueError(f"beta is {beta}, but there is no c to add: pass c=, or out= to add to")
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
    """Return the shape of a @ b. Raises ValueError, with the operands' `names`, if the shapes do not fit."""
    of_a, of_b = names
    if len(a) not in (2, 3) or len(b) not in (2, 3):
        raise ValueError(
            f"a product needs 2-D arrays, or 3-D arrays for batches; {of_a} is {tuple(a)}, {of_b} is {tuple(b)}"
        )
    if a[-1] != b[-2]:
        raise ValueError(
            f"{of_a} is {tuple(a)} and {of_b} is {tuple(b)}: {of_a}'s columns, {a[-1]}, are not {of_b}'s rows, {b[-2]}"
        )
    if len(a) == len(b) == 3 and a[0] != b[0]:
        raise ValueError(
            f"{of_a} has {a[0]} batches and {of_b} has {b[0]}: pass equal numbers, or a 2-D array for all batches"
        )
    batches = (a[0],) if len(a) == 3 else (b[0],) if len(b) == 3 else ()
    return (*batches, a[-2], b[-1])


def _check_c(c: DeviceArray, out: DeviceArray, operands: Sequence[DeviceArray]) -> None:
    if c.shape != out.shape or c.dtype != out.dtype:
        raise ValueError(f"c must have the output's dtype and shape, {out.dtype} {out.shape}, got {c.dtype} {c.shape}")
    if memory.touch(c, out) and not calls.same(c, out):
        raise ValueError("c and out overlap but are not the same array: pass the same array, or separate ones")
    for operand in operands:
        if memory.touch(operand, out):
            raise ValueError("out overlaps an operand: pass a separate array as out")


def _compute_type(dtype: str, compute: str | None) -> int:
    choices = [choice for known, choice in _COMPUTE if known == dtype]
    if not choices:
        raise TypeError(f"cuBLAS supports {', '.join(TYPES)}, not {dtype}: convert the operands")
    chosen = choices[0] if compute is None else compute
    if chosen not in choices:
        raise ValueError(f"compute must be {' or '.join(map(repr, choices))} for {dtype}, got {compute!r}")
    return _COMPUTE[dtype, chosen]


@dataclass(frozen=True)
class GemmArguments:
    """The arguments of one product, except addresses, for a column-major D = first @ second.

    swapped: whether `first` is b, which is the case if D is row-major.
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
    """Check a product and return it in cuBLAS's terms.

    cuBLAS is column-major, and sees a row-major array as its transpose. So D = A @ B of row-major arrays is requested
    as D^T = B^T @ A^T: B is passed first, with the row strides unchanged. Passing A first would compute B @ A, which
    for square matrices raises no error.
    """
    if a.dtype != b.dtype:
        raise TypeError(f"a is {a.dtype} and b is {b.dtype}: convert one, operands must have the same dtype")
    of_inputs, of_out = a.dtype.name, out.dtype.name
    kind = _compute_type(of_inputs, compute)
    if of_out != of_inputs and not (of_inputs in _HALVES and of_out == "float32" and kind == COMPUTE_32F):
        raise TypeError(
            f"out must be {of_inputs}"
            + (" or float32 (with float32 sums)" if of_inputs in _HALVES else "")
            + f" for operands of {of_inputs}, got {of_out}"
        )
    shape = product_shape(a.shape, b.shape)
    if out.shape != shape:
        raise ValueError(f"out must have shape {shape}, for a {a.shape} times b {b.shape}, got {out.shape}")
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
            at_a = at_b = at_out  # they are not read, but must not be null
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
    """Queue a batch of products for lists of matrices, whose addresses are passed to cuBLAS in device memory."""
    lists = [list(each) if isinstance(each, (list, tuple)) else None for each in (a, b, out)]
    counts = {len(each) for each in lists if each is not None}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"lists must have as many matrices each, and at least one, got {sorted(counts)}")
    (count,) = counts
    many_a, many_b, many_out = (
        each if each is not None else [given] * count for each, given in zip(lists, (a, b, out), strict=True)
    )
    calls.expect_arrays(*many_a, *many_b)
    context = many_a[0].context
    stream = calls.on_stream(context, stream)
    if c is not None or (options[1] != 0 and out is None):
        raise ValueError("a product of lists can only add to out=: copy c into out, and pass out without c")
    if out is None:
        shape = product_shape(many_a[0].shape, many_b[0].shape)
        whole = memory.empty(context, stream, (count, *shape), many_a[0].dtype)
        many_out = [whole[i] for i in range(count)]
    elif lists[2] is None:
        raise ValueError("out must be a list of arrays if a or b is a list")
    calls.expect_arrays(*many_out)
    run(_gemm_batch, (*many_a, *many_b, *many_out), (count, *options), stream)
    return many_out


def _gemm_batch(of: Cublas, arrays: Sequence[DeviceArray], count: int, *options: Any) -> CallPlan:
    for name, first in zip(("a", "b", "out"), range(0, 3 * count, count), strict=True):
        kinds = {(array.shape, array.strides, array.dtype) for array in arrays[first : first + count]}
        if len(kinds) > 1:
            raise ValueError(
                f"the matrices in list {name} must have one shape, strides and dtype, got {len(kinds)} kinds"
            )
    a, b, out = arrays[0], arrays[count], arrays[2 * count]
    if out.ndim != 2:
        raise ValueError(f"a list must hold 2-D arrays, got shape {out.shape}: pass a 3-D array without a list")
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
