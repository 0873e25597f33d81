"""Problems of the gemm_half family."""

from __future__ import annotations

from hypothesis import strategies as st

from cudakit.families.gemm_half import DTYPES
from cudakit.testing.case import Case
from cudakit.testing.gemm import gemm_cases


def gemm_half_cases(elements: int = 20_000, kind: str = "") -> st.SearchStrategy[Case]:
    """Return the strategy of the products on tensor cores: the problems of gemm in 16-bit dtypes."""
    return gemm_cases(elements, kind, DTYPES)
