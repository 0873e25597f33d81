"""cuBLAS as version 0 of the matrix products: `cudakit.libs.blas.gemm`, through nvmath-python's bindings (the extra
`libs`), without torch.

fp32 products use the default math mode, which is fp32 throughout (TF32 must be requested); 16-bit products accumulate
in fp32.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudakit.families.gemm_problem import problem
from cudakit.family import Ladder
from cudakit.libs import blas
from cudakit.measure.peers.vendor import VendorPeer

if TYPE_CHECKING:
    from cudakit.driver.stream import Stream
    from cudakit.measure.peers.peer import ArraySet, Call


@dataclass(frozen=True)
class CublasPeer(VendorPeer):
    """cuBLAS's product with a family's options."""

    name: str = "cublas"

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
