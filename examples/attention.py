"""Attention five ways: from three kernels that store every score to FlashAttention-2's algorithm on tensor cores.

A shape is BATCHxHEADSxKEY_HEADSxQUERIESxKEYSxD; fewer key heads than heads are shared (grouped queries). The mode
"causal" lets query i see the keys up to i + keys - queries. On a GPU torch's three kernels (FlashAttention-2, cuDNN,
memory-efficient) stand in the same table, and the first of them is 100 %.

    python examples/attention.py
    python examples/attention.py --shapes 2x16x16x8192x8192x128 --dtypes bfloat16,float16 --modes causal
    python examples/attention.py --shapes 1x4x2x37x61x64 --device sim --dtypes float32
"""

import sys

from cudakit.commands import ladder

if __name__ == "__main__":
    sys.exit(ladder.main(__doc__, "attention"))
