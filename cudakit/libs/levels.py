"""cuBLAS's calls on vectors, on a matrix and vectors, and on triangles: BLAS levels 1 to 3 without the product.

Vectors are 1-D arrays of any stride, matrices 2-D ones whose rows or columns lie without gaps between their elements.
All are float32, float64, complex64 or complex128, and those of one call are of one dtype. Factors are numbers of the
host. A number that a call gives is a device array of shape (), written in stream order: nothing is waited for.

Everything here raises ValueError, TypeError or DeviceMismatch before anything is queued, CudaError where cuBLAS fails.
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
    """The letter of the arrays' one dtype in the names of cuBLAS's functions."""
    first = arrays[0].dtype
    if any(array.dtype != first for array in arrays):
        raise TypeError(
            f"the arrays of one call are of one dtype, not {', '.join(str(array.dtype) for array in arrays)}"
        )
    if first.name not in _LETTER:
        raise TypeError(f"this takes {', '.join(_LETTER)}, not {first}: only gemm takes others")
    return _LETTER[first.name]


class _Vector:
    """A vector for cuBLAS, which names it by its lowest address: `at` gives that."""

    def __init__(self, name: str, array: DeviceArray, *, any_order: bool = False) -> None:
        if array.ndim != 1:
            raise ValueError(f"{name} has shape {array.shape}, and a vector is wanted: reshape(-1) it, or take a row")
        (self.count,), (step,) = array.shape, array.strides_elements
        if max(self.count, abs(step)) > MOST:
            raise ValueError(f"{name} has {self.count} elements, {step} apart: cuBLAS counts to 2^31 - 1")
        if self.count <= 1:
            step = 1
        if step == 0:
            raise ValueError(
                f"{name} is one element many times over (its stride is 0), which BLAS does not take: copy() it"
            )
        self.step = abs(step) if any_order else step
        self._back = min(0, (self.count - 1) * step) * array.itemsize

    def at(self, pointer: int) -> int:
        return pointer + self._back


def _like(name: str, array: DeviceArray, shape: tuple[int, ...], dtype: Any) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} is {array.dtype} {array.shape}, and {memory.as_dtype(dtype)} {shape} is wanted")


def _number(x: Any, out: Any, stream: Any, dtype: Any) -> Any:
    """(out, stream): where a number is to be written, `dtype` by that of x."""
    if out is not None:
        return out, stream
    calls.expect_arrays(x)
    stream = calls.on_stream(x.context, stream)
    return memory.empty(x.context, stream, (), dtype(x.dtype.name)), stream


# Level 1: vectors -----------------------------------------------------------------------------------------------------


def asum(x: Any, out: Any = None, *, stream: Any = None) -> Any:
    """The sum of |x|, or of |real| + |imaginary| for complex x, into `out` of shape () and the real dtype."""
    out, stream = _number(x, out, stream, lambda name: REAL.get(name, name))
    run(_measure, (x, out), ("asum",), stream)
    return out


def nrm2(x: Any, out: Any = None, *, stream: Any = None) -> Any:
    """The Euclidean length of x, into `out` of shape () and the real dtype; no square overflows on the way."""
    out, stream = _number(x, out, stream, lambda name: REAL.get(name, name))
    run(_measure, (x, out), ("nrm2",), stream)
    return out


def amax(x: Any, out: Any = None, *, stream: Any = None) -> Any:
    """Where the element of largest |x| is (|real| + |imaginary| for complex x), into `out`, int32 of shape ().

    Counted from 1, as BLAS does, the first where several are equal, 0 of an empty x. It is the largest size, not the
    largest number: of [1, -100] it is 2. A softmax that subtracts x[amax - 1] for the maximum overflows there.
    """
    out, stream = _number(x, out, stream, lambda name: "int32")
    run(_measure, (x, out), ("amax",), stream)
    return out


def _measure(of: Cublas, arrays: Sequence[DeviceArray], name: str) -> CallPlan:
    x, out = arrays
    letter = _letter(x)
    # The order of the elements matters to the first largest alone.
    vector = _Vector("x", x, any_order=name != "amax")
    if vector.step < 0:
        raise ValueError("x runs backwards, and cuBLAS counts only forwards: give x[::-1], and count from the end")
    _like("out", out, (), np.int32 if name == "amax" else REAL.get(x.dtype.name, x.dtype))
    full = f"i{letter}amax" if name == "amax" else f"{MEASURED.get(letter, letter)}{name}"
    call = functools.partial(getattr(of.library, full), of.numbers(), vector.count)

    def bind(of: Cublas, pointers: Sequence[int]) -> Callable[[], Any]:
        return functools.partial(call, vector.at(pointers[0]), vector.step, pointers[1])

    return CallPlan(bind, frozenset((1,)))


def dot(x: Any, y: Any, out: Any = None, *, conj: bool = False, stream: Any = None) -> Any:
    """The sum of x * y, of conj(x) * y with `conj` (BLAS's dotc), into `out` of shape ()."""
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
    """x = alpha * x. Returns x."""
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
    """y = alpha * x + y. Returns y."""
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
    """alpha * a @ x + beta * out, a (m, n), x (n,), out (m,), a new array unless given. Returns out.

    conj: a's conjugate in its place, for an a that lies row by row. n = 0 gives beta * out.
    """
    calls.expect_arrays(a, x)
    if out is None:
        if beta != 0:
            raise ValueError(f"beta is {beta}, and there is no out to add to: give out=")
        if a.ndim != 2:
            raise ValueError(f"a has shape {a.shape}, and a matrix is wanted")
        stream = calls.on_stream(a.context, stream)
        out = memory.empty(a.context, stream, a.shape[:1], a.dtype)
    run(_gemv, (a, x, out), (alpha, beta, bool(conj)), stream)
    if a.shape[1] == 0 and out.size and beta != 1:  # BLAS leaves out as it is
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
    """a = alpha * outer(x, y) + a, x (m,), y (n,), a (m, n). Returns a.

    conj: y's conjugate in its place (BLAS's gerc), for an a that lies column by column: a transposed view.
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
    # Of a matrix that lies row by row, cuBLAS sees the transposed one: outer(y, x).
    swapped = lies.operation == TRANSPOSED
    if swapped and conj and letter in "cz":
        raise ValueError(
            "cuBLAS conjugates the vector along the columns, which of an a that lies row by row is x: give an a that "
            "lies column by column (the .T of a contiguous array)"
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
    """The x of a @ x = alpha * b in the place of b, (m, n), which is returned; a is a triangle, (m, m).

    lower: which one; the other half of a is not read. right: x @ a = alpha * b instead, a (n, n). unit: the diagonal
    is taken for ones and not read. conj: a's conjugate in its place, where b lies in the other order than a.
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
    # A b that lies row by row is solved as its transposed one: x^T @ a^T = b^T, from the other side.
    swapped = of_b.operation == TRANSPOSED
    operation = TRANSPOSED if (of_a.operation == TRANSPOSED) != swapped else AS_IT_IS
    if conj and letter in "cz":
        if operation == AS_IT_IS:
            raise ValueError(
                "cuBLAS conjugates only what it transposes, and a and b lie in one order: give an a that lies in the "
                "other"
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
    """alpha * a @ a.T + beta * out for one triangle of out, a (n, k), out (n, n): half the work of a product.

    lower: which one; the other half of out stays as it is. Complex numbers are not conjugated. k = 0 gives beta * out.
    Returns out.
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
        at_a = pointers[0] or pointers[1]  # with k = 0 there is none, and none is read
        return functools.partial(
            call, at_a, of_a.leading, scale.ctypes.data + scale.itemsize, pointers[1], of_out.leading
        )

    return CallPlan(bind, frozenset((1,)), kept=scale)


def _matrix(name: str, array: DeviceArray, *, conj: bool = False) -> Matrix:
    if array.ndim != 2:
        raise ValueError(f"{name} has shape {array.shape}, and a matrix is wanted")
    return matrix(name, array, conj=conj)
