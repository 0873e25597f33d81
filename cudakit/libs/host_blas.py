"""cuBLAS for the simulated device: the functions of nvmath.bindings.cublas, computed by numpy.

Names, arguments and the column-major order are those of the bindings, and a wrong leading dimension has the same
effect.

Precision is as in cuBLAS: float32 sums are float32, TF32 rounds the operands to 11 bits, and a float16 sum is rounded
to float16 after every 16 products, the number that a tensor core adds at once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cudakit.driver.context import Context
from cudakit.libs.host import Array, DeviceOperand, enqueue, scalar
from cudakit.memory.array import as_dtype

#: cudaDataType by dtype.
TYPES = {"float32": 0, "float64": 1, "float16": 2, "complex64": 4, "complex128": 5, "bfloat16": 14}
#: Dtypes by their letter in the names of functions.
LETTERS = {"s": "float32", "d": "float64", "c": "complex64", "z": "complex128"}
#: Letters in the names of functions that reduce complex vectors to a real number.
MEASURED = {"c": "sc", "z": "dz"}
#: cublasComputeType_t.
COMPUTE_16F, COMPUTE_32F, COMPUTE_64F, COMPUTE_FAST_TF32 = 64, 68, 70, 77
AS_IT_IS, TRANSPOSED, CONJUGATED = 0, 1, 2  # cublasOperation_t
LOWER, UPPER = 0, 1  # cublasFillMode_t
LEFT, RIGHT = 0, 1  # cublasSideMode_t
HOST_SCALARS, DEVICE_SCALARS = 0, 1  # cublasPointerMode_t

_DTYPES = {number: as_dtype(name) for name, number in TYPES.items()}
_SUMS_AT_ONCE = 16


class Blas:
    """The functions of nvmath.bindings.cublas that cudakit calls, for one simulated device."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._streams: dict[int, int] = {}
        self._handles = itertools.count(1)
        for letter, dtype in LETTERS.items():
            for name, does in self._of_dtype(letter).items():
                setattr(self, name, functools.partial(does, f"cublas{name.capitalize()}", dtype))

    def _of_dtype(self, letter: str) -> dict[str, Callable[..., None]]:
        """Return the functions whose names have the letter of a dtype."""
        complex_ = letter in "cz"
        measured = MEASURED.get(letter, letter)
        return {
            f"{measured}asum": self._asum,
            f"{measured}nrm2": self._nrm2,
            f"i{letter}amax": self._amax,
            f"{letter}scal": self._scal,
            f"{letter}axpy": self._axpy,
            **({f"{letter}dotu": self._dot, f"{letter}dotc": self._dotc} if complex_ else {f"{letter}dot": self._dot}),
            **({f"{letter}geru": self._ger, f"{letter}gerc": self._gerc} if complex_ else {f"{letter}ger": self._ger}),
            f"{letter}gemv": self._gemv,
            f"{letter}trsm": self._trsm,
            f"{letter}syrk": self._syrk,
        }

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"cuBLAS on the simulated device has no {name}")

    # Handles ----------------------------------------------------------------------------------------------------------

    def create(self) -> int:
        handle = next(self._handles)
        self._streams[handle] = 0
        return handle

    def destroy(self, handle: int) -> None:
        del self._streams[handle]

    def set_stream(self, handle: int, stream_id: int) -> None:
        self._streams[handle] = stream_id

    def set_pointer_mode(self, handle: int, mode: int) -> None:
        """Ignored: reductions always write to device memory, and factors are always read on the host."""

    def set_math_mode(self, handle: int, mode: int) -> None:
        """Ignored: float32 is always float32."""

    def set_workspace(self, handle: int, workspace: int, workspace_size_in_bytes: int) -> None:
        """Ignored: numpy needs no workspace."""

    # Places -----------------------------------------------------------------------------------------------------------

    def _queue(
        self,
        handle: int,
        name: str,
        work: Callable[[], None],
        reads: Sequence[DeviceOperand],
        writes: Sequence[DeviceOperand],
    ) -> None:
        enqueue(self._context, self._streams[handle], name, work, reads, writes)

    def _matrix(
        self, pointer: int, dtype: Any, rows: int, cols: int, ld: int, batch: int = 0, step: int = 0
    ) -> DeviceOperand:
        """A column-major matrix of rows x cols elements; `batch` of them unless that is 0."""
        size = as_dtype(dtype).itemsize
        if ld < max(rows, 1):
            raise ValueError(f"the leading dimension must be at least {max(rows, 1)}, the rows, got {ld}")
        if not batch:
            return DeviceOperand(self._context, pointer, dtype, (rows, cols), (size, ld * size))
        return DeviceOperand(self._context, pointer, dtype, (batch, rows, cols), (step * size, size, ld * size))

    def _vector(self, pointer: int, dtype: Any, count: int, increment: int) -> DeviceOperand:
        """A vector of `count` elements; with a negative increment from the end, as in BLAS."""
        size = as_dtype(dtype).itemsize
        first = pointer - (count - 1) * increment * size if increment < 0 else pointer
        return DeviceOperand(self._context, first, dtype, (count,), (increment * size,))

    # Products ---------------------------------------------------------------------------------------------------------

    def gemm_ex(
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, a: int, atype: int, lda: int,
        b: int, btype: int, ldb: int, beta: int, c: int, ctype: int, ldc: int, compute_type: int, algo: int,
    ) -> None:  # fmt: skip
        """C = alpha * op(A) @ op(B) + beta * C."""
        self._product(
            handle, "cublasGemmEx", transa, transb, m, n, k, alpha, (a, atype, lda, 0), (b, btype, ldb, 0), beta,
            (c, ctype, ldc, 0), 0, compute_type,
        )  # fmt: skip

    def gemm_strided_batched_ex(
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, a: int, atype: int, lda: int,
        stride_a: int, b: int, btype: int, ldb: int, stride_b: int, beta: int, c: int, ctype: int, ldc: int,
        stride_c: int, batch_count: int, compute_type: int, algo: int,
    ) -> None:  # fmt: skip
        """`gemm_ex` for `batch_count` matrices at constant strides."""
        self._product(
            handle, "cublasGemmStridedBatchedEx", transa, transb, m, n, k, alpha, (a, atype, lda, stride_a),
            (b, btype, ldb, stride_b), beta, (c, ctype, ldc, stride_c), batch_count, compute_type,
        )  # fmt: skip

    def gemm_batched_ex(
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, aarray: int, atype: int,
        lda: int, barray: int, btype: int, ldb: int, beta: int, carray: int, ctype: int, ldc: int, batch_count: int,
        compute_type: int, algo: int, pointers: Sequence[Sequence[int]] = (),
    ) -> None:  # fmt: skip
        """`gemm_ex` for matrices whose addresses are in device memory.

        pointers: the same addresses, as three host lists. The bindings do not have this argument; it is needed because
        the copy of the addresses to the device may still be queued.
        """
        tables = [
            DeviceOperand(self._context, table, np.uint64, (batch_count,), (8,)) for table in (aarray, barray, carray)
        ]
        for index, each in enumerate(zip(*pointers, strict=True)):
            at_a, at_b, at_c = each
            self._product(
                handle, "cublasGemmBatchedEx", transa, transb, m, n, k, alpha, (at_a, atype, lda, 0),
                (at_b, btype, ldb, 0), beta, (at_c, ctype, ldc, 0), 0, compute_type, tables, index,
            )  # fmt: skip

    def _product(
        self, handle: int, name: str, transa: int, transb: int, m: int, n: int, k: int, alpha: int,
        a: tuple[int, ...], b: tuple[int, ...], beta: int, c: tuple[int, ...], batch: int, compute: int,
        tables: Sequence[DeviceOperand] = (), index: int = 0,
    ) -> None:  # fmt: skip
        of_a, of_b, of_c = _DTYPES[a[1]], _DTYPES[b[1]], _DTYPES[c[1]]
        factors = _factor_dtype(of_a, compute)
        by, add = scalar(alpha, factors), scalar(beta, factors)
        at_a = self._matrix(a[0], of_a, *((k, m) if transa else (m, k)), a[2], batch, a[3])
        at_b = self._matrix(b[0], of_b, *((n, k) if transb else (k, n)), b[2], batch, b[3])
        at_c = self._matrix(c[0], of_c, m, n, c[2], batch, c[3])
        read = [] if by == 0 or k == 0 else [at_a, at_b]

        def work() -> None:
            for which, table in enumerate(tables):
                if int(table.view()[index]) != (a, b, c)[which][0]:
                    raise ValueError(f"{name}: the addresses in device memory differ from those in `pointers`")
            out = at_c.view()
            if read:
                left, right = _operation(at_a.view(), transa), _operation(at_b.view(), transb)
                total = by * multiply(left, right, compute)
            else:
                total = np.zeros(out.shape, factors)
            if add:
                total = total + add * out.astype(factors)
            out[...] = total.astype(out.dtype)

        self._queue(handle, name, work, [*tables, *read, *([at_c] if add else [])], [at_c])

    # Vectors ----------------------------------------------------------------------------------------------------------

    def _reduce(
        self,
        name: str,
        handle: int,
        operands: Sequence[DeviceOperand],
        result: int,
        kind: Any,
        reduce: Callable[..., Any],
    ) -> None:
        at = DeviceOperand(self._context, result, kind, (), ())
        empty = operands[0].shape[0] <= 0

        def work() -> None:
            at.view()[...] = 0 if empty else reduce(*(operand.view() for operand in operands))

        self._queue(handle, name, work, [] if empty else operands, [at])

    def _asum(self, name: str, dtype: Any, handle: int, n: int, x: int, incx: int, result: int) -> None:
        operands = [self._vector(x, dtype, n, incx)]
        self._reduce(name, handle, operands, result, _real(dtype), lambda v: np.sum(_sizes(v)))

    def _nrm2(self, name: str, dtype: Any, handle: int, n: int, x: int, incx: int, result: int) -> None:
        self._reduce(name, handle, [self._vector(x, dtype, n, incx)], result, _real(dtype), norm)

    def _amax(self, name: str, dtype: Any, handle: int, n: int, x: int, incx: int, result: int) -> None:
        operands = [self._vector(x, dtype, n, incx)]
        self._reduce(name, handle, operands, result, np.int32, lambda v: np.argmax(_sizes(v)) + 1)

    def _dot(self, name: str, dtype: Any, handle: int, *rest: int, conjugate: bool = False) -> None:
        n, x, incx, y, incy, result = rest
        operands = [self._vector(x, dtype, n, incx), self._vector(y, dtype, n, incy)]
        self._reduce(name, handle, operands, result, dtype, np.vdot if conjugate else np.dot)

    def _dotc(self, name: str, dtype: Any, handle: int, *rest: int) -> None:
        self._dot(name, dtype, handle, *rest, conjugate=True)

    def _scal(self, name: str, dtype: Any, handle: int, n: int, alpha: int, x: int, incx: int) -> None:
        by, at = scalar(alpha, dtype), self._vector(x, dtype, n, incx)

        def work() -> None:
            at.view()[...] *= by

        self._queue(handle, name, work, [at], [at])

    def _axpy(self, name: str, dtype: Any, handle: int, *rest: int) -> None:
        n, alpha, x, incx, y, incy = rest
        by, at_x, at_y = scalar(alpha, dtype), self._vector(x, dtype, n, incx), self._vector(y, dtype, n, incy)

        def work() -> None:
            at_y.view()[...] += by * at_x.view()

        if by != 0:
            self._queue(handle, name, work, [at_x, at_y], [at_y])

    # A matrix with vectors, triangles ---------------------------------------------------------------------------------

    def _ger(self, name: str, dtype: Any, handle: int, *rest: int, conjugate: bool = False) -> None:
        m, n, alpha, x, incx, y, incy, a, lda = rest
        by = scalar(alpha, dtype)
        at_x, at_y = self._vector(x, dtype, m, incx), self._vector(y, dtype, n, incy)
        at_a = self._matrix(a, dtype, m, n, lda)

        def work() -> None:
            right = at_y.view()
            at_a.view()[...] += by * np.multiply.outer(at_x.view(), right.conj() if conjugate else right)

        if by != 0:
            self._queue(handle, name, work, [at_x, at_y, at_a], [at_a])

    def _gerc(self, name: str, dtype: Any, handle: int, *rest: int) -> None:
        self._ger(name, dtype, handle, *rest, conjugate=True)

    def _gemv(self, name: str, dtype: Any, handle: int, *rest: int) -> None:
        trans, m, n, alpha, a, lda, x, incx, beta, y, incy = rest
        by, add = scalar(alpha, dtype), scalar(beta, dtype)
        inner, outer = (m, n) if trans else (n, m)
        at_a, at_x = self._matrix(a, dtype, m, n, lda), self._vector(x, dtype, inner, incx)
        at_y = self._vector(y, dtype, outer, incy)
        read = [] if by == 0 or inner == 0 else [at_a, at_x]

        def work() -> None:
            out = at_y.view()
            total = by * (_operation(at_a.view(), trans) @ at_x.view()) if read else np.zeros(out.shape, out.dtype)
            out[...] = total + add * out if add else total

        self._queue(handle, name, work, [*read, *([at_y] if add else [])], [at_y])

    def _trsm(self, name: str, dtype: Any, handle: int, *rest: int) -> None:
        side, uplo, trans, diag, m, n, alpha, a, lda, b, ldb = rest
        by, order = scalar(alpha, dtype), m if side == LEFT else n
        at_a, at_b = self._matrix(a, dtype, order, order, lda), self._matrix(b, dtype, m, n, ldb)

        def work() -> None:
            stored = at_a.view()
            triangle = np.tril(stored) if uplo == LOWER else np.triu(stored)
            if diag:
                np.fill_diagonal(triangle, 1)
            triangle, out = _operation(triangle, trans), at_b.view()
            if side == LEFT:
                out[...] = solve(triangle, by * out, lower=(uplo == LOWER) == (trans == AS_IT_IS))
            else:
                out[...] = solve(triangle.T, (by * out).T, lower=(uplo == UPPER) == (trans == AS_IT_IS)).T

        self._queue(handle, name, work, [*self._triangle(at_a, uplo, bool(diag)), at_b], [at_b])

    def _syrk(self, name: str, dtype: Any, handle: int, *rest: int) -> None:
        uplo, trans, n, k, alpha, a, lda, beta, c, ldc = rest
        by, add = scalar(alpha, dtype), scalar(beta, dtype)
        at_a = self._matrix(a, dtype, *((k, n) if trans else (n, k)), lda)
        at_c = self._matrix(c, dtype, n, n, ldc)
        read = [] if by == 0 or k == 0 else [at_a]

        def work() -> None:
            out = at_c.view()
            total = np.zeros((n, n), out.dtype)
            if read:
                rows = _operation(at_a.view(), trans)
                total = by * (rows @ rows.T)
            if add:
                total = total + add * out
            lower = np.tri(n, dtype=bool)
            np.copyto(out, total, where=lower if uplo == LOWER else lower.T)

        half = self._triangle(at_c, uplo, False)
        self._queue(handle, name, work, [*read, *(half if add else [])], half)

    def _triangle(self, matrix: DeviceOperand, uplo: int, unit: bool) -> list[DeviceOperand]:
        """Return the columns of one triangle of a square matrix; without the diagonal if it is taken as ones."""
        n, (size, column) = matrix.shape[0], matrix.steps
        places = []
        for j in range(n):
            first, last = (j + unit, n) if uplo == LOWER else (0, j + 1 - unit)
            if last > first:
                start = matrix.pointer + j * column + first * size
                places.append(DeviceOperand(self._context, start, matrix.dtype, (last - first,), (size,)))
        return places


def _factor_dtype(operands: np.dtype[Any], compute: int) -> Any:
    """The dtype of alpha, beta and the sums."""
    if compute == COMPUTE_16F:
        return np.dtype(np.float16)
    return operands if operands.kind == "c" or compute == COMPUTE_64F else np.dtype(np.float32)


def _operation(stored: Array, operation: int) -> Array:
    """Return a matrix, or a batch of them, unchanged, transposed, or transposed and conjugated."""
    if operation == AS_IT_IS:
        return stored
    turned = np.swapaxes(stored, -1, -2)
    return turned.conj() if operation == CONJUGATED else turned


def multiply(left: Array, right: Array, compute: int) -> Array:
    """Return left @ right, with sums in the precision of `compute`, a cublasComputeType_t."""
    if compute == COMPUTE_16F:
        shape = (*left.shape[:-1], right.shape[-1])
        sums = np.zeros(shape, np.float16)
        left, right = left.astype(np.float32), right.astype(np.float32)
        for start in range(0, left.shape[-1], _SUMS_AT_ONCE):
            part = slice(start, start + _SUMS_AT_ONCE)
            sums = (sums.astype(np.float32) + left[..., part] @ right[..., part, :]).astype(np.float16)
        return sums
    if left.dtype.kind != "c" and left.dtype != np.float64:
        left, right = left.astype(np.float32), right.astype(np.float32)
        if compute == COMPUTE_FAST_TF32:
            left, right = tf32(left), tf32(right)
    product: Array = left @ right
    return product


def tf32(values: Array) -> Array:
    """Round float32 values to TF32's 11 bits, ties away from zero, as for a tensor core."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    finite = (bits & 0x7F800000) != 0x7F800000
    rounded = np.where(finite, (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000), bits)
    return rounded.astype(np.uint32).view(np.float32).reshape(values.shape)


def solve(triangle: Array, right: Array, *, lower: bool) -> Array:
    """Solve triangle @ x = right for x, row by row, in the operands' precision."""
    x = np.array(right)
    n = len(triangle)
    for i in range(n) if lower else range(n - 1, -1, -1):
        known = slice(0, i) if lower else slice(i + 1, n)
        x[i] = (x[i] - triangle[i, known] @ x[known]) / triangle[i, i]
    return x


def norm(x: Array) -> Any:
    """The Euclidean norm of a vector, scaled so that no square overflows."""
    size = np.abs(x)
    largest = size.max()
    if largest == 0 or not np.isfinite(largest):
        return largest
    return largest * np.sqrt(np.sum(np.square(size / largest)))


def _sizes(x: Array) -> Array:
    """|x|; for complex numbers |real| + |imaginary|, as in BLAS."""
    return np.abs(x.real) + np.abs(x.imag) if x.dtype.kind == "c" else np.abs(x)


def _real(dtype: Any) -> np.dtype[Any]:
    return np.empty(0, dtype).real.dtype
