"""cuBLAS as version 0 of the matrix products: `cudakit.libs.blas.gemm`, through nvmath-python's bindings (the extra
`libs`), without torch.

fp32 products use the default math mode, which is fp32 throughout (TF32 must be requested); 16-bit products accumulate
in fp32.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudakit.families.gemm_problem import problem
from cudakit.family import Ladder
from cudakit.libs import blas

if TYPE_CHECKING:
    from cudakit.driver.stream import Stream
    from cudakit.measure.peers.peer import ArraySet, Call, Cost


@dataclass(frozen=True)
class CublasPeer:
    """cuBLAS's product with a family's options."""

    options: Mapping[str, Any]
    name: str = "cublas"
    idea: str = "NVIDIA's library"
    rung: int | None = 0
    arrays: str = "cudakit"

    def refusal(self, shape: tuple[int, ...], dtype: str) -> str | None:
        if importlib.util.find_spec("nvmath") is None:
            return "nvmath-python is not installed: pip install 'cudakit[libs]'"
        return None

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        yield

    def bind(self, sets: Sequence[ArraySet], stream: Stream, cost: Cost) -> list[Call]:
        return [self.call(arrays, stream) for arrays in sets]

    def call(self, arrays: ArraySet, stream: Stream) -> Call:
        inputs, output = arrays
        p = problem(inputs, output, **self.options)
        if p.beta and len(inputs) == 3 and inputs[2].pointer != output.pointer:
            raise ValueError("cuBLAS adds to its output: C and the output must be the same array")
        a, b = inputs[:2]
        return functools.partial(blas.gemm, a, b, output, alpha=p.alpha, beta=p.beta, stream=stream)


def peers(family: Ladder[Any], options: Mapping[str, Any]) -> list[CublasPeer]:
    """Return cuBLAS as a peer, if the family is a matrix product."""
    return [CublasPeer(options)] if family.ceiling == "cublas" else []
