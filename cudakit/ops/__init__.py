"""Kernel families: each module is one ladder of variants, its float64 reference and its front function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudakit.ops.add_broadcast import FAMILY as _ADD_BROADCAST
from cudakit.ops.add_broadcast import add_broadcast
from cudakit.ops.attention import FAMILY as _ATTENTION
from cudakit.ops.attention import attention
from cudakit.ops.blur import FAMILY as _BLUR
from cudakit.ops.blur import blur
from cudakit.ops.broadcast import FAMILY as _BROADCAST_ADD
from cudakit.ops.broadcast import add
from cudakit.ops.elementwise import FAMILY as _VECTOR_ADD
from cudakit.ops.gemm import FAMILY as _GEMM
from cudakit.ops.gemm import gemm
from cudakit.ops.gemm_half import FAMILY as _GEMM_HALF
from cudakit.ops.matrix_add import FAMILY as _MATRIX_ADD
from cudakit.ops.matrix_add import matrix_add
from cudakit.ops.random import NORMAL as _NORMAL
from cudakit.ops.random import UNIFORM as _UNIFORM
from cudakit.ops.random import normal, uniform
from cudakit.ops.reduce import ARGMAX as _ARGMAX
from cudakit.ops.reduce import MAX as _MAX
from cudakit.ops.reduce import SUM as _SUM
from cudakit.ops.reduce import argmax, max, sum
from cudakit.ops.softmax import FAMILY as _SOFTMAX
from cudakit.ops.softmax_modes import FAMILY as _SOFTMAX_MODES
from cudakit.ops.softmax_modes import softmax
from cudakit.ops.unary import CAST as _CAST
from cudakit.ops.unary import FILL as _FILL
from cudakit.ops.unary import SCALE as _SCALE
from cudakit.ops.unary import THRESHOLD as _THRESHOLD
from cudakit.ops.unary import cast, fill, scale, threshold

if TYPE_CHECKING:
    from cudakit.ops.variant import Family

__all__ = [
    "add", "add_broadcast", "argmax", "attention",
    "blur", "cast", "families", "fill", "gemm", "matrix_add", "max", "normal", "scale",
    "softmax", "sum", "threshold", "uniform",
]  # fmt: skip


def families() -> dict[str, Family[Any]]:
    """Every family by name."""
    return {
        family.name: family
        for family in (
            _VECTOR_ADD,
            _MATRIX_ADD,
            _ADD_BROADCAST,
            _BROADCAST_ADD,
            _SCALE,
            _THRESHOLD,
            _CAST,
            _FILL,
            _SUM,
            _MAX,
            _ARGMAX,
            _SOFTMAX,
            _SOFTMAX_MODES,
            _ATTENTION,
            _GEMM,
            _GEMM_HALF,
            _BLUR,
            _UNIFORM,
            _NORMAL,
        )
    }
