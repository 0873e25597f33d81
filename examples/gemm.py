"""C = A @ B in fp32, from one thread an output to past cuBLAS, one idea a rung.

A shape is N, MxNxK or BATCHxMxNxK. On a GPU each rung is set against cuBLAS (100 %), against the chip's fp32 peak and
against the rung before it; on the simulated device the same ladder is told in counters. Under Nsight Compute, or with
--once, every rung is launched once for each shape, in its own NVTX range gemm.RUNG, and nothing else runs (the shapes
are then 1024 and 2048 unless given: a full profile goes over each launch some 40 times):

    python examples/gemm.py
    python examples/gemm.py --shapes 1024,4095x4097x1023 --json -
    ncu --set full python examples/gemm.py

ncu shows NVTX ranges where it is told to; config.ncu-cfg in this project's root does that for commands given there.
"""

import sys

from cudakit.commands import ladder

if __name__ == "__main__":
    sys.exit(ladder.main(__doc__, "gemm"))
