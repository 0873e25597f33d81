"""Declare a kernel, or a ladder of kernels, in one file: a numpy reference, and the `.cu` file and launch of each
variant.

    FAMILY = Family("transpose", reference=lambda x: x.T, inputs={"x": "float32[rows, cols]"})

    @FAMILY.variant("transpose.cu")
    def naive(p):
        return Launch((ceil_div(p.cols, 32), ceil_div(p.rows, 8)), (32, 8))

Call it as `FAMILY(x)`; bench, fuzz, check, tune and export it by its name: `cudakit bench mine.py:FAMILY`. The families
of `cudakit.ops` are declared in the same way.
"""

from cudakit.family import checks
from cudakit.family.declaration import (
    CPP,
    IN,
    MAX_GRID_X,
    MAX_GRID_YZ,
    OUT,
    SCRATCH,
    Dim,
    Launch,
    Slot,
    TensorMapSlot,
    Variant,
    alignment,
    ceil_div,
    cpp_bool,
    one_or_all,
    several,
    variant,
)
from cudakit.family.declared import PeerWork
from cudakit.family.family import Family
from cudakit.family.front import apply
from cudakit.family.ladder import Ladder
from cudakit.family.problem import ArrayFacts, ArraySpec, Input, Problem
from cudakit.family.scalars import Scalar

__all__ = [
    "CPP", "IN", "MAX_GRID_X", "MAX_GRID_YZ", "OUT", "SCRATCH",
    "ArrayFacts", "ArraySpec", "Dim", "Family", "Input", "Ladder", "Launch", "PeerWork", "Problem", "Scalar", "Slot",
    "TensorMapSlot", "Variant", "alignment", "apply", "ceil_div", "checks", "cpp_bool", "one_or_all", "several",
    "variant",
]  # fmt: skip
