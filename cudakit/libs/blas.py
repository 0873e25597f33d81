"""cuBLAS on cudakit's arrays and streams.

    from cudakit.libs import blas
    y = blas.gemm(a, b)                     # float32, float64, complex, float16 and bfloat16; one product or a batch
    z = blas.gemm(h, g, compute="float16")  # half precision throughout; sums are float32 by default
    length = blas.nrm2(x)                   # a device array of shape (); the call does not wait

Matrices are row-major as in numpy, or transposed views: `gemm(a.T, b)` is the product with the transposed matrix.
Calls queue their work on a stream and return without waiting. On the simulated device numpy computes the results.
"""

from __future__ import annotations

from cudakit.libs.levels import amax, asum, axpy, dot, gemv, ger, nrm2, scal, syrk, trsm
from cudakit.libs.products import gemm

__all__ = ["amax", "asum", "axpy", "dot", "gemm", "gemv", "ger", "nrm2", "scal", "syrk", "trsm"]
