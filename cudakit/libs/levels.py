"""cuBLAS's calls on vectors, on a matrix and vectors, and on triangles: BLAS levels 1 to 3 except the product.

Vectors are 1-D arrays of any stride; matrices are 2-D arrays with contiguous rows or contiguous columns. All arrays of
a call have the same dtype: float32, float64, complex64 or complex128. Factors are host numbers. A call that computes a
number writes it to a device array of shape (), in stream order, and does not wait.

All calls raise ValueError, TypeError or DeviceMismatch before anything is queued, and CudaError if cuBLAS fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cudakit.libs import calls
from cudakit.libs.calls import MOST, REAL, CallPlan
from cudakit.libs.cublas import Cublas, Matrix, factors, matrix, run
from cudakit.libs.host_blas import AS_IT_IS, CONJUGATED, LEFT, LETTERS, LOWER, MEASURED, RIGHT, TRANSPOSED, UPPER
from cudakit.memory import array as memory
from cudakit.memory.array import DeviceArray

_LETTER = {dtype: letter for letter, dtype in LETTERS.items()}


def _letter(*arrays: DeviceArray) -> str:
    """Return the letter of the arrays' dtype in the names of cuBLAS's functions. Raises TypeError if dtypes differ."""
    first = arrays[0].dtype
    if any(array.dtype != first for array in arrays):
        raise TypeError(
            f"all arrays of a call must have the same dtype, got {', '.join(str(array.dtype) for array in arrays)}: "
            "convert them"
        )
    if first.name not in _LETTER:
        raise TypeError(f"the dtype must be one of {', '.join(_LETTER)}, got {first}: only gemm supports others")
    return _LETTER[first.name]


class _Vector:
    """A vector for cuBLAS. `at` returns its lowest address, which cuBLAS expects for negative strides too."""

    def __init__(self, name: str, array: DeviceArray, *, any_order: bool = False) -> None:
        if array.ndim != 1:
            raise ValueError(f"{name} must be a vector, got shape {array.shape}: reshape(-1) it, or pass one row")
        (self.count,), (step,) = array.shape, array.strides_elements
        if max(self.count, abs(step)) > MOST:
            raise ValueError(
                f"{name} has {self.count} elements at a stride of {step}: cuBLAS supports at most 2^31 - 1 of each"
            )
        if self.count <= 1:
            step = 1
        if step == 0:
            raise ValueError(f"{name} repeats one element (its stride is 0), which BLAS does not support: copy() it")
        self.step = abs(step) if any_order else step
        self._back = min(0, (self.count - 1) * step) * array.itemsize

    def at(self, pointer: int) -> int:
        return pointer + self._back


def _like(name: str, array: DeviceArray, shape: tuple[int, ...], dtype: Any) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} must be {memory.as_dtype(dtype)} {shape}, got {array.dtype} {array.shape}")


def _number(x: Any, out: Any, stream: Any, dtype: Any) -> Any:
    """Return (out, stream) for a result of shape (); a new `out` has the dtype `dtype(name of x's dtype)`."""
    if out is not None:
        return out, stream
    calls.expect_arrays(x)
    stream = calls.on_stream(x.context, stream)
    return memory.empty(x.context, stream, (), dtype(x.dtype.name)), stream


# Level 1: vectors -----------------------------------------------------------------------------------------------------


def asum(x: Any, out: Any = None, *, stream: Any = None) -> Any:
    """Compute the sum of |x|, or of |real| + |imaginary| for complex x.

    Args:
        x: A vector.
        out: Array of shape () for the result, of x's dtype or its real part's; a new array if None.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `out`; the call does not wait.
    """
    out, stream = _number(x, out, stream, lambda name: REAL.get(name, name))
    run(_measure, (x, out), ("asum",), stream)
    return out


def nrm2(x: Any, out: Any = None, *, stream: Any = None) -> Any:
    """Compute the Euclidean norm of x. Intermediate squares do not overflow.

    Args:
        x: A vector.
        out: Array of shape () for the result, of x's dtype or its real part's; a new array if None.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `out`; the call does not wait.
    """
    out, stream = _number(x, out, stream, lambda name: REAL.get(name, name))
    run(_measure, (x, out), ("nrm2",), stream)
    return out


def amax(x: Any, out: Any = None, *, stream: Any = None) -> Any:
    """Find the index of the element with the largest |x| (|real| + |imaginary| for complex x), counted from 1.

    The first of several equal elements counts; the index is 0 if x is empty. It is not the index of the maximum: for
    [1, -100] it is 2, so a softmax must not subtract x[amax - 1].

    Args:
        x: A vector.
        out: int32 array of shape () for the result; a new array if None.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `out`; the call does not wait.
    """
    out, stream = _number(x, out, stream, lambda name: "int32")
    run(_measure, (x, out), ("amax",), stream)
    return out


def _measure(of: Cublas, arrays: Sequence[DeviceArray], name: str) -> CallPlan:
    x, out = arrays
    letter = _letter(x)
    # Only amax, which finds the first of equal elements, depends on the order of the elements.
    vector = _Vector("x", x, any_order=name != "amax")
    if vector.step < 0:
        raise ValueError("x has a negative stride, which amax does not support: pass x[::-1], and count from the end")
    _like("out", out, (), np.int32 if name == "amax" else REAL.get(x.dtype.name, x.dtype))
    full = f"i{letter}amax" if name == "amax" else f"{MEASURED.get(letter, letter)}{name}"
    call = functools.partial(getattr(of.library, full), of.numbers(), vector.count)

    def bind(of: Cublas, pointers: Sequence[int]) -> Callable[[], Any]:
        return functools.partial(call, vector.at(pointers[0]), vector.step, pointers[1])

    return CallPlan(bind, frozenset((1,)))


def dot(x: Any, y: Any, out: Any = None, *, conj: bool = False, stream: Any = None) -> Any:
    """Compute the sum of x * y.

    Args:
        x, y: Vectors of the same length and dtype.
        out: Array of shape () for the result, of x's dtype; a new array if None.
        conj: Compute the sum of conj(x) * y (BLAS's dotc).
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `out`; the call does not wait.
    """
    out, stream = _number(x, out, stream, lambda name: name)
    run(_dot, (x, y, out), (bool(conj),), stream)
    return out


def _dot(of: Cublas, arrays: Sequence[DeviceArray], conj: bool) -> CallPlan:
    x, y, out = arrays
    letter = _letter(x, y)
    left, right = _Vector("x", x), _Vector("y", y)
    _like("y", y, x.shape, x.dtype)
    _like("out", out, (), x.dtype)
    ending = "" if letter in "sd" else "c" if conj else "u"
    call = functools.partial(getattr(of.library, f"{letter}dot{ending}"), of.numbers(), left.count)

    def bind(of: Cublas, pointers: Sequence[int]) -> Callable[[], Any]:
        at_x, at_y, result = pointers
        return functools.partial(call, left.at(at_x), left.step, right.at(at_y), right.step, result)

    return CallPlan(bind, frozenset((2,)))


def scal(x: Any, alpha: complex, *, stream: Any = None) -> Any:
    """Compute x = alpha * x in place.

    Args:
        x: A vector.
        alpha: The factor, a host number.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `x`; the call does not wait.
    """
    run(_scal, (x,), (alpha,), stream)
    return x


def _scal(of: Cublas, arrays: Sequence[DeviceArray], alpha: Any) -> CallPlan:
    (x,) = arrays
    letter, vector, scale = _letter(x), _Vector("x", x, any_order=True), factors((alpha,), x.dtype)
    call = functools.partial(getattr(of.library, f"{letter}scal"), of.number, vector.count, scale.ctypes.data)

    def bind(of: Cublas, pointers: Sequence[int]) -> Callable[[], Any] | None:
        return functools.partial(call, vector.at(pointers[0]), vector.step) if vector.count else None

    return CallPlan(bind, frozenset((0,)), kept=scale)


def axpy(x: Any, y: Any, alpha: complex = 1, *, stream: Any = None) -> Any:
    """Compute y = alpha * x + y in place.

    Args:
        x, y: Vectors of the same length and dtype.
        alpha: The factor, a host number.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `y`; the call does not wait.
    """
    run(_axpy, (x, y), (alpha,), stream)
    return y


def _axpy(of: Cublas, arrays: Sequence[DeviceArray], alpha: Any) -> CallPlan:
    x, y = arrays
    letter, left, right, scale = _letter(x, y), _Vector("x", x), _Vector("y", y), factors((alpha,), x.dtype)
    _like("y", y, x.shape, x.dtype)
    call = functools.partial(getattr(of.library, f"{letter}axpy"), of.number, left.count, scale.ctypes.data)

    def bind(of: Cublas, pointers: Sequence[int]) -> Callable[[], Any] | None:
        if not left.count:
            return None
        return functools.partial(call, left.at(pointers[0]), left.step, right.at(pointers[1]), right.step)

    return CallPlan(bind, frozenset((1,)), kept=scale)


# Level 2: a matrix and vectors ----------------------------------------------------------------------------------------


def gemv(
    a: Any, x: Any, out: Any = None, *, alpha: complex = 1, beta: complex = 0, conj: bool = False, stream: Any = None
) -> Any:
    """Compute out = alpha * a @ x + beta * out. If n is 0, the result is beta * out.

    Args:
        a: A matrix (m, n).
        x: A vector (n,).
        out: A vector (m,) for the result; a new array if None.
        alpha, beta: Factors, host numbers.
        conj: Use the conjugate of a; a must be row-major.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `out`; the call does not wait.
    """
    calls.expect_arrays(a, x)
    if out is None:
        if beta != 0:
            raise ValueError(f"beta is {beta}, but there is no out to add to: pass out=")
        if a.ndim != 2:
            raise ValueError(f"a must be a matrix, got shape {a.shape}")
        stream = calls.on_stream(a.context, stream)
        out = memory.empty(a.context, stream, a.shape[:1], a.dtype)
    run(_gemv, (a, x, out), (alpha, beta, bool(conj)), stream)
    if a.shape[1] == 0 and out.size and beta != 1:  # BLAS would leave out unchanged
        out.fill(0, stream) if beta == 0 else scal(out, beta, stream=stream)
    return out


def _gemv(of: Cublas, arrays: Sequence[DeviceArray], alpha: Any, beta: Any, conj: bool) -> CallPlan:
    a, x, out = arrays
    letter, scale = _letter(a, x, out), factors((alpha, beta), a.dtype)
    lies = _matrix("a", a, conj=conj and letter in "cz")
    m, n = a.shape
    _like("x", x, (n,), a.dtype)
    _like("out", out, (m,), a.dtype)
    right, result = _Vector("x", x), _Vector("out", out)
    sizes = (m, n) if lies.operation == AS_IT_IS else (n, m)
    call = functools.partial(getattr(of.library, f"{letter}gemv"), of.number, lies.operation, *sizes, scale.ctypes.data)

    def bind(of: Cublas, pointers: Sequence[int]) -> Callable[[], Any] | None:
        if 0 in (m, n):
            return None
        at_a, at_x, at_out = pointers
        return functools.partial(
            call, at_a, lies.leading, right.at(at_x), right.step, scale.ctypes.data + scale.itemsize,
            result.at(at_out), result.step,
        )  # fmt: skip

    return CallPlan(bind, frozenset((2,)), kept=scale)


def ger(x: Any, y: Any, a: Any, *, alpha: complex = 1, conj: bool = False, stream: Any = None) -> Any:
    """Compute a = alpha * outer(x, y) + a in place.

    Args:
        x: A vector (m,).
        y: A vector (n,).
        a: A matrix (m, n).
        alpha: The factor, a host number.
        conj: Use the conjugate of y (BLAS's gerc); a must be column-major, such as a transposed view.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `a`; the call does not wait.
    """
    run(_ger, (x, y, a), (alpha, bool(conj)), stream)
    return a


def _ger(of: Cublas, arrays: Sequence[DeviceArray], alpha: Any, conj: bool) -> CallPlan:
    x, y, a = arrays
    letter, scale = _letter(x, y, a), factors((alpha,), a.dtype)
    lies = _matrix("a", a)
    m, n = a.shape
    _like("x", x, (m,), a.dtype)
    _like("y", y, (n,), a.dtype)
    # cuBLAS sees a row-major matrix as its transpose, which is outer(y, x).
    swapped = lies.operation == TRANSPOSED
    if swapped and conj and letter in "cz":
        raise ValueError(
            "conj=True needs a column-major a, such as the .T of a contiguous array: for a row-major a, cuBLAS would "
            "conjugate x instead of y"
        )
    first, second = (_Vector("y", y), _Vector("x", x)) if swapped else (_Vector("x", x), _Vector("y", y))
    ending = "" if letter in "sd" else "c" if conj else "u"
    sizes = (n, m) if swapped else (m, n)
    call = functools.partial(getattr(of.library, f"{letter}ger{ending}"), of.number, *sizes, scale.ctypes.data)

    def bind(of: Cublas, pointers: Sequence[int]) -> Callable[[], Any] | None:
        if 0 in (m, n):
            return None
        at_first, at_second = (pointers[1], pointers[0]) if swapped else pointers[:2]
        return functools.partial(
            call, first.at(at_first), first.step, second.at(at_second), second.step, pointers[2], lies.leading
        )

    return CallPlan(bind, frozenset((2,)), kept=scale)


# Level 3: triangles ---------------------------------------------------------------------------------------------------


def trsm(
    a: Any, b: Any, *, alpha: complex = 1, lower: bool = True, right: bool = False, unit: bool = False,
    conj: bool = False, stream: Any = None,
) -> Any:  # fmt: skip
    """Solve a @ x = alpha * b for x in place of b; a is a triangle.

    Args:
        a: A matrix (m, m), of which one triangle is read; (n, n) with `right`.
        b: A matrix (m, n), which is overwritten by x.
        alpha: The factor, a host number.
        lower: Read the lower triangle of a; otherwise the upper one.
        right: Solve x @ a = alpha * b instead.
        unit: Take the diagonal of a as ones and do not read it.
        conj: Use the conjugate of a; one of a and b must be row-major, the other column-major.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `b`; the call does not wait.
    """
    run(_trsm, (a, b), (alpha, bool(lower), bool(right), bool(unit), bool(conj)), stream)
    return b


def _trsm(
    of: Cublas, arrays: Sequence[DeviceArray], alpha: Any, lower: bool, right: bool, unit: bool, conj: bool
) -> CallPlan:
    a, b = arrays
    letter, scale = _letter(a, b), factors((alpha,), a.dtype)
    of_a, of_b = _matrix("a", a), _matrix("b", b)
    m, n = b.shape
    _like("a", a, (n, n) if right else (m, m), a.dtype)
    # A row-major b is solved as its transpose: x^T @ a^T = b^T, from the other side.
    swapped = of_b.operation == TRANSPOSED
    operation = TRANSPOSED if (of_a.operation == TRANSPOSED) != swapped else AS_IT_IS
    if conj and letter in "cz":
        if operation == AS_IT_IS:
            raise ValueError(
                "conj=True needs an a in the other memory order than b (row-major or column-major), got both in one "
                "order: pass a copy of a in the other"
            )
        operation = CONJUGATED
    triangle = LOWER if lower == (of_a.operation == AS_IT_IS) else UPPER
    side = RIGHT if right != swapped else LEFT
    sizes = (n, m) if swapped else (m, n)
    function = getattr(of.library, f"{letter}trsm")
    call = functools.partial(function, of.number, side, triangle, operation, int(unit), *sizes, scale.ctypes.data)

    def bind(of: Cublas, pointers: Sequence[int]) -> Callable[[], Any] | None:
        return functools.partial(call, pointers[0], of_a.leading, pointers[1], of_b.leading) if m and n else None

    return CallPlan(bind, frozenset((1,)), kept=scale)


def syrk(a: Any, out: Any, *, alpha: complex = 1, beta: complex = 0, lower: bool = True, stream: Any = None) -> Any:
    """Compute one triangle of out = alpha * a @ a.T + beta * out, with half the work of a product.

    Complex numbers are not conjugated. If k is 0, the result is beta * out.

    Args:
        a: A matrix (n, k).
        out: A matrix (n, n), of which one triangle is written; the other one is unchanged.
        alpha, beta: Factors, host numbers.
        lower: Write the lower triangle; otherwise the upper one.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `out`; the call does not wait.
    """
    run(_syrk, (a, out), (alpha, beta, bool(lower)), stream)
    return out


def _syrk(of: Cublas, arrays: Sequence[DeviceArray], alpha: Any, beta: Any, lower: bool) -> CallPlan:
    a, out = arrays
    letter, scale = _letter(a, out), factors((alpha, beta), a.dtype)
    of_a, of_out = _matrix("a", a), _matrix("out", out)
    n, k = a.shape
    _like("out", out, (n, n), a.dtype)
    triangle = LOWER if lower == (of_out.operation == AS_IT_IS) else UPPER
    function = getattr(of.library, f"{letter}syrk")
    call = functools.partial(function, of.number, triangle, of_a.operation, n, k, scale.ctypes.data)

    def bind(of: Cublas, pointers: Sequence[int]) -> Callable[[], Any] | None:
        if not n:
            return None
        at_a = pointers[0] or pointers[1]  # with k = 0 the address of a may be 0; any other will do, as it is not read
        return functools.partial(
            call, at_a, of_a.leading, scale.ctypes.data + scale.itemsize, pointers[1], of_out.leading
        )

    return CallPlan(bind, frozenset((1,)), kept=scale)


def _matrix(name: str, array: DeviceArray, *, conj: bool = False) -> Matrix:
    if array.ndim != 2:
        raise ValueError(f"{name} must be a matrix, got shape {array.shape}")
    return matrix(name, array, conj=conj)
