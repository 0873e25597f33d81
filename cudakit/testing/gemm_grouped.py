"""Problems of the gemm_grouped family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cudakit.families.gemm_half import DTYPES
from cudakit.families.gemm_problem import ACTIVATIONS
from cudakit.testing.case import Case, Layout, aligned_rows, contiguous, extents, layouts
from cudakit.testing.gemm import gemm_values


@dataclass(frozen=True)
class Sizes:
    """A filler of offsets (masked: of numbers of rows) for `rows` rows. Half of the groups of some fillers are empty.
    wild: some numbers are out of bounds, and offsets decrease."""

    seed: int
    rows: int
    masked: bool
    wild: bool = False

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        rng = np.random.default_rng(self.seed)
        most = self.rows + (40 if self.wild else 0)
        drawn = rng.integers(-40 if self.wild else 0, most + 1, shape)
        if rng.integers(0, 2):
            drawn[rng.random(shape) < 0.5] = 0 if self.masked else drawn[0]
        return drawn if self.masked or self.wild else np.sort(drawn)


@st.composite
def gemm_grouped_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Draw problems whose arrays have at most about `elements` elements each: both forms, empty groups, groups that end
    anywhere, sizes out of bounds, B of any strides, aligned or not, with a bias and an activation or without."""
    dtype = draw(st.sampled_from(DTYPES))
    result = draw(st.sampled_from((dtype, dtype, dtype, "float32")))
    masked = draw(st.booleans())
    groups = draw(st.sampled_from((1, 2, 3, 5, 40)))
    shared = max(1, elements // groups)  # elements per group
    n = draw(extents(min(shared, 300)))
    k = draw(extents(min(shared // max(n, 1), 300)))
    if draw(st.booleans()):
        n, k = (-(-extent // 8) * 8 for extent in (n, k))
    rows = draw(extents(min((shared if masked else elements) // max(n, k, 1), 600)))
    batch = (groups,) if masked else ()
    of_a, of_b = (*batch, rows, k), (groups, k, n)
    inputs = [
        _rows(draw, of_a, dtype),
        _rows(draw, of_b, dtype) if draw(st.booleans()) else draw(layouts(of_b, dtype=dtype)),
        contiguous((groups if masked else groups + 1,), draw(st.integers(0, 3)), "int32"),
    ]
    seed = draw(st.integers(0, 2**32 - 1))
    sizes = Sizes(seed, rows, masked, draw(st.sampled_from((False, False, False, True))))
    fill: list[Any] = [draw(gemm_values(dtype)), draw(gemm_values(dtype)), sizes]
    if draw(st.booleans()):
        inputs.append(draw(layouts((groups, n), dtype=draw(st.sampled_from((dtype, "float32"))))))
        fill.append(draw(gemm_values(dtype)))
    options: dict[str, Any] = {
        "alpha": draw(st.sampled_from((1.0, 1.0, -0.5, 0.0))),
        "activation": draw(st.sampled_from(("", "", *ACTIVATIONS))),
    }
    if result != dtype:
        options["dtype"] = result
    shape = (*batch, rows, n)
    output = _rows(draw, shape, result) if draw(st.booleans()) else draw(layouts(shape, output=True, dtype=result))
    return Case(tuple(inputs), tuple(fill), output, options)


def _rows(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> Layout:
    """Draw a layout in C order: aligned rows, or contiguous from any element on."""
    if shape[-1] % 8 == 0 and draw(st.integers(0, 3)):
        return aligned_rows(draw, shape, dtype)
    return contiguous(shape, draw(st.integers(0, 9)), dtype)
