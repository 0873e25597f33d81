"""Shared by `products` and `levels`: cuBLAS's handle for a stream, and matrices in cuBLAS's terms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cudakit.device import Device
from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.libs import calls
from cudakit.libs.calls import MOST, Area, Handle
from cudakit.libs.host_blas import AS_IT_IS, CONJUGATED, DEVICE_SCALARS, HOST_SCALARS, TRANSPOSED
from cudakit.memory import array as memory
from cudakit.memory.array import DeviceArray


@dataclass
class Cublas(Handle):
    """cuBLAS for one stream.

    number: the handle for calls that read factors on the host. numbers: the handle for calls that write a number to
    device memory. The mode of a handle never changes, so threads may share them.
    """

    number: int = 0
    workspace: Area | None = None
    results: list[int] = field(default_factory=list)

    def numbers(self) -> int:
        if not self.results:
            self.results.append(self.make(DEVICE_SCALARS))
        return self.results[0]

    def make(self, mode: int) -> int:
        library = self.library
        made: int = library.create()
        self.context.adopt(self, calls.release, self.context, library.destroy, made)
        library.set_stream(made, self.stream)
        library.set_pointer_mode(made, mode)
        library.set_math_mode(made, 0)  # float32 stays float32; a call requests TF32 by compute=
        if self.workspace is not None and self.workspace.handle:
            library.set_workspace(made, self.workspace.handle, self.workspace.nbytes)
        return made


def _start(device: Device, library: Any, stream: Stream) -> Cublas:
    context = stream.context
    context.make_current()
    made = Cublas(context, library, int(stream))
    # One workspace per stream is enough, because calls on a stream run one after another. With it, calls allocate no
    # memory and can be captured in a graph. NVIDIA recommends 32 MiB from Hopper on, 4 MiB for earlier GPUs.
    made.workspace = Area(context, _workspace_bytes(context))
    made.number = made.make(HOST_SCALARS)
    return made


def _workspace_bytes(context: Context) -> int:
    if context.kind == "sim":
        return 0
    return (32 if context.compute_capability >= (9, 0) else 4) << 20


run: Callable[..., None] = functools.partial(calls.run, "cublas", _start)


def scaling(stream: Stream, array: DeviceArray, factor: float) -> list[Callable[[], Any]]:
    """Return the calls that multiply a contiguous array by a real factor; the caller checks the array and keeps it."""
    of = calls.handle("cublas", stream, _start)
    single = array.dtype.name in ("float32", "complex64")
    scale = np.array(factor, np.float32 if single else np.float64)
    call = of.library.sscal if single else of.library.dscal
    size, step = array.nbytes // scale.itemsize, MOST // 2

    def scaled(start: int, _held: Any = scale) -> Any:  # holds the factor, which is read at the call
        at = array_at + start * scale.itemsize
        return functools.partial(call, of.number, min(step, size - start), scale.ctypes.data, at, 1)

    array_at = array.pointer
    parts = [scaled(start) for start in range(0, size, step)]
    return [functools.partial(_in_turn, parts, scale)]


def _in_turn(parts: Sequence[Callable[[], Any]], _held: Any) -> None:
    for part in parts:
        part()


# Matrices as cuBLAS reads them ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """A matrix for cuBLAS, which is column-major.

    operation: AS_IT_IS if the matrix is column-major, TRANSPOSED if it is row-major, because cuBLAS then sees its
    transpose. leading: elements from one column (or row) to the next. batch: elements from one matrix of a batch to the
    next; 0 for a single matrix.
    """

    operation: int
    leading: int
    batch: int


def matrix(name: str, array: DeviceArray, *, turned: bool = False, conj: bool = False) -> Matrix:
    """Describe the last two axes of an array for cuBLAS. turned: of the transposed array. conj: conjugate it too.

    Raises ValueError for strides that cuBLAS does not support, and for a conjugation without transposition.
    """
    rows, cols = array.shape[-2:]
    *outer, row, col = array.strides_elements
    if turned:
        rows, cols, row, col = cols, rows, col, row
    batch = outer[0] if outer and array.shape[0] > 1 else 0
    if max(rows, cols, abs(row), abs(col)) > MOST:
        raise ValueError(f"{name} has a size or stride of more than 2^31 - 1 elements, the most cuBLAS supports")
    if batch >= 0:
        by_columns = (row == 1 or rows <= 1) and (cols <= 1 or col >= max(rows, 1))
        by_rows = (col == 1 or cols <= 1) and (rows <= 1 or row >= max(cols, 1))
        if by_columns and not (conj and by_rows):
            if conj:
                raise ValueError(
                    f"cuBLAS conjugates only a matrix that it also transposes, and {name} needs no transposition: pass "
                    "it in the other memory order (row-major or column-major), such as the .T of an array"
                )
            return Matrix(AS_IT_IS, max(rows, 1) if cols <= 1 else col, batch)
        if by_rows:
            return Matrix(CONJUGATED if conj else TRANSPOSED, max(cols, 1) if rows <= 1 else row, batch)
    raise ValueError(
        f"{name} has strides {array.strides_elements} (elements), and cuBLAS needs contiguous rows or contiguous "
        "columns that do not overlap: copy() it first"
    )


def factors(values: Sequence[Any], dtype: Any) -> np.ndarray[Any, Any]:
    """Return alpha, beta as an array that a call reads on the host. Raises TypeError if one is not such a number."""
    for value in values:
        if not isinstance(value, (int, float, complex, np.number)):
            raise TypeError(f"a factor must be a host number, got a {type(value).__name__}: pass a Python number")
        if isinstance(value, (complex, np.complexfloating)) and memory.as_dtype(dtype).kind != "c":
            raise TypeError(f"got the complex factor {value} for arrays of {memory.as_dtype(dtype)}: pass a real one")
    return np.array(values, dtype)
