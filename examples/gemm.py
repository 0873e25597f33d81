"""C = A @ B in fp32, from one thread per output to faster than cuBLAS, with one new idea per variant.

A shape is N, MxNxK or BATCHxMxNxK. On a GPU each variant is compared with cuBLAS (100 %), the chip's fp32 peak and the
previous variant; the simulated device shows counters instead. Under Nsight Compute, or with --once, each variant is
launched once per shape, in its own NVTX range gemm.VARIANT, and nothing else runs (default shapes are then 1024 and
2048: a full profile repeats each launch some 40 times):

    python examples/gemm.py
    python examples/gemm.py --shapes 1024,4095x4097x1023 --json -
    ncu --set full python examples/gemm.py

ncu shows NVTX ranges only if configured; config.ncu-cfg in this project's root does that for commands run there.
"""

import sys

from cudakit.commands import ladder

if __name__ == "__main__":
    sys.exit(ladder.main(__doc__, "gemm"))
