"""cuBLAS as rung 0 of the matrix products: through nvmath-python's bindings (the extra `libs`), without torch.

cuBLAS reads columns. A row-major array is its own transpose column by column, so D = A @ B is asked for as
D^T = B^T @ A^T: B goes first, then A, and the leading dimensions are the rows' strides as they are. A first, with m and
n in the order of the text, is B @ A: for square matrices a product without an error message, and the wrong one.

fp32 products are sgemm in the default math mode, which has fp32's precision throughout (TF32 has to be asked for);
half ones are gemmEx with fp32 sums.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit.ops.gemm_problem import Operand, problem

if TYPE_CHECKING:
    from cudakit.memory import DeviceArray
    from cudakit.stream import Stream
    from cudakit.timing import GpuTimer, Launch

FAMILIES = ("gemm", "gemm_half")
# cudaDataType, cublasComputeType_t and cublasGemmAlgo_t of cuBLAS's headers
_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
_COMPUTE_32F = 68
_DEFAULT_ALGORITHM = -1
_AS_IT_IS, _TRANSPOSED = 0, 1


@dataclass(frozen=True)
class CublasPeer:
    """cuBLAS's product at a family's options."""

    ordinal: int
    options: Mapping[str, Any]
    name: str = "cublas"
    idea: str = "NVIDIA's library"
    rung: int | None = 0

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        if importlib.util.find_spec("nvmath") is None:
            return "nvmath-python is not installed: pip install cudakit[libs]"
        return None

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        from nvmath.bindings import cublas

        stream.context.make_current()
        cublas.set_stream(_handle(self.ordinal), int(stream))
        yield

    def bind(self, sets: Sequence[tuple[list[DeviceArray], DeviceArray]], timer: GpuTimer) -> list[Launch]:
        return [self._launch(inputs, output) for inputs, output in sets]

    def _launch(self, inputs: Sequence[DeviceArray], output: DeviceArray) -> Launch:
        from nvmath.bindings import cublas

        p = problem(inputs, output, **self.options)
        if p.beta and len(inputs) == 3 and inputs[2].pointer != output.pointer:
            raise ValueError("cuBLAS adds to the array it writes: C and the output are one there")
        factors = np.array([p.alpha, p.beta], np.float32)
        alpha, beta = factors.ctypes.data, factors.ctypes.data + 4
        d_turned, d_leading = _column_major(_turned(p.d), p.n, p.m)
        if d_turned:
            raise ValueError(f"cuBLAS writes rows of neighbours, {p} has none")
        b_turned, b_leading = _column_major(_turned(p.b), p.n, p.k)
        a_turned, a_leading = _column_major(_turned(p.a), p.k, p.m)
        a, b = inputs[0].pointer, inputs[1].pointer
        of_inputs, of_d, half = _TYPES[p.dtype], _TYPES[str(output.dtype)], p.dtype != "float32"
        call: list[Any] = [_handle(self.ordinal), b_turned, a_turned, p.n, p.m, p.k, alpha]
        for pointer, leading, step, kind in (
            (b, b_leading, p.b.batch, of_inputs),
            (a, a_leading, p.a.batch, of_inputs),
            (output.pointer, d_leading, p.d.batch, of_d),
        ):
            if pointer == output.pointer:
                call.append(beta)
            call += [pointer, *([kind] if half else []), leading, *([step] if p.batch > 1 else [])]
        call += [p.batch] if p.batch > 1 else []
        call += [_COMPUTE_32F, _DEFAULT_ALGORITHM] if half else []
        if half:
            run = cublas.gemm_ex if p.batch == 1 else cublas.gemm_strided_batched_ex
        else:
            run = cublas.sgemm if p.batch == 1 else cublas.sgemm_strided_batched

        def launch(_held: Any = factors) -> None:  # the factors are read at the call
            run(*call)

        return launch


def _turned(operand: Operand) -> Operand:
    return Operand(operand.col, operand.row, operand.batch, operand.alignment)


def _column_major(operand: Operand, rows: int, cols: int) -> tuple[int, int]:
    """Whether cuBLAS must transpose rows x cols elements with these strides, and their leading dimension."""
    if operand.row == 1 and (operand.col >= max(rows, 1) or cols <= 1):
        return _AS_IT_IS, max(operand.col, rows, 1)
    if operand.col == 1 and (operand.row >= max(cols, 1) or rows <= 1):
        return _TRANSPOSED, max(operand.row, cols, 1)
    raise ValueError(f"cuBLAS has no leading dimension for strides of {operand.row} and {operand.col}")


@functools.cache
def _handle(ordinal: int) -> int:
    """cuBLAS's handle of a GPU whose context is current, kept for as long as the process."""
    from nvmath.bindings import cublas

    handle: int = cublas.create()
    cublas.set_math_mode(handle, cublas.Math.DEFAULT_MATH)
    return handle


def peers(family: str, ordinal: int, options: Mapping[str, Any]) -> list[CublasPeer]:
    """cuBLAS, where `family` is one of its products."""
    return [CublasPeer(ordinal, options)] if family in FAMILIES else []
