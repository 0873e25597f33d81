"""The functions of cudakit's kernel families, and the families by name."""

from __future__ import annotations

from typing import Any

from cudakit.families.add import FAMILY as _ADD
from cudakit.families.add import add
from cudakit.families.add_broadcast import FAMILY as _ADD_BROADCAST
from cudakit.families.add_broadcast import add_broadcast
from cudakit.families.attention import FAMILY as _ATTENTION
from cudakit.families.attention import attention
from cudakit.families.blur import FAMILY as _BLUR
from cudakit.families.blur import blur
from cudakit.families.fft import FFT as _FFT
from cudakit.families.fft import IRFFT as _IRFFT
from cudakit.families.fft import RFFT as _RFFT
from cudakit.families.fft import fft, ifft, irfft, rfft
from cudakit.families.gemm import FAMILY as _GEMM
from cudakit.families.gemm import gemm
from cudakit.families.gemm_grouped import FAMILY as _GEMM_GROUPED
from cudakit.families.gemm_grouped import gemm_grouped
from cudakit.families.gemm_half import FAMILY as _GEMM_HALF
from cudakit.families.matrix_add import FAMILY as _MATRIX_ADD
from cudakit.families.matrix_add import matrix_add
from cudakit.families.random import NORMAL as _NORMAL
from cudakit.families.random import UNIFORM as _UNIFORM
from cudakit.families.random import normal, uniform
from cudakit.families.reduce import ARGMAX as _ARGMAX
from cudakit.families.reduce import MAX as _MAX
from cudakit.families.reduce import SUM as _SUM
from cudakit.families.reduce import argmax, max, sum
from cudakit.families.softmax import FAMILY as _SOFTMAX
from cudakit.families.softmax import softmax
from cudakit.families.softmax_backward import FAMILY as _SOFTMAX_BACKWARD
from cudakit.families.softmax_backward import softmax_backward
from cudakit.families.softmax_modes import FAMILY as _SOFTMAX_MODES
from cudakit.families.unary import CAST as _CAST
from cudakit.families.unary import FILL as _FILL
from cudakit.families.unary import SCALE as _SCALE
from cudakit.families.unary import THRESHOLD as _THRESHOLD
from cudakit.families.unary import cast, fill, scale, threshold
from cudakit.families.vector_add import FAMILY as _VECTOR_ADD
from cudakit.family import Family

__all__ = [
    "add", "add_broadcast", "argmax", "attention",
    "blur", "cast", "families", "fft", "fill", "gemm", "gemm_grouped", "ifft", "irfft", "matrix_add", "max", "normal",
    "rfft", "scale", "softmax", "softmax_backward", "sum", "threshold", "uniform",
]  # fmt: skip


def families() -> dict[str, Family[Any]]:
    """Return cudakit's families by name."""
    every: tuple[Family[Any], ...] = (
        _VECTOR_ADD,
        _MATRIX_ADD,
        _ADD_BROADCAST,
        _ADD,
        _SCALE,
        _THRESHOLD,
        _CAST,
        _FILL,
        _SUM,
        _MAX,
        _ARGMAX,
        _SOFTMAX,
        _SOFTMAX_MODES,
        _SOFTMAX_BACKWARD,
        _ATTENTION,
        _GEMM,
        _GEMM_HALF,
        _GEMM_GROUPED,
        _BLUR,
        _UNIFORM,
        _NORMAL,
        _FFT,
        _RFFT,
        _IRFFT,
    )
    return {family.name: family for family in every}
