"""Attention in five variants: from three kernels that store every score to FlashAttention-2's algorithm on tensor
cores.

A shape is BATCHxHEADSxKEY_HEADSxQUERIESxKEYSxD; with fewer key heads than heads, query heads share them (grouped
queries). In mode "causal" query i sees the keys up to i + keys - queries. In mode "lengths" each entry of the batch has
its own number of queries and keys. On a GPU the table also has torch's backends (FlashAttention-2, cuDNN,
memory-efficient, math); the fastest that supports the problem is 100 %.

    python examples/attention.py
    python examples/attention.py --shapes 2x16x16x8192x8192x128 --dtypes bfloat16,float16 --modes causal
    python examples/attention.py --shapes 8x32x8x2048x2048x128 --modes ,causal,lengths,causal-lengths
    python examples/attention.py --shapes 1x4x2x37x61x64 --device sim --dtypes float32
"""

import sys

from cudakit.commands import ladder

if __name__ == "__main__":
    sys.exit(ladder.main(__doc__, "attention"))
