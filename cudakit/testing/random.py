"""Problems of the random-number families."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from cudakit.testing.case import Case, contiguous, extents


@st.composite
def random_cases(draw: st.DrawFn, elements: int = 20_000) -> Case:
    """Draw arrays of any length and alignment, any seed, and offsets that are mostly not multiples of four."""
    place = contiguous((draw(extents(elements)),), draw(st.integers(0, 4)))
    seed = draw(st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)))
    offset = draw(st.one_of(st.integers(0, 9), st.integers(0, 2**40), st.just(2**34 - 2)))
    return Case((place,), (np.zeros,), None, {"seed": seed, "offset": offset})
