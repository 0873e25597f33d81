"""Products and softmax over several devices, with NCCL's collectives between them.

    from cudakit import parallel
    from cudakit.libs import nccl

    ranks = nccl.communicators(devices)
    c = parallel.column_product(streams, ranks, a, b)   # b: some columns of B on each device; c: all of C on each

`ranks` are the communicators of this process: all of them, or one per process. Each other argument is a list with one
entry per communicator. All ranks of all processes must make the same calls in the same order, with equal shapes.

Calls queue their work and return without waiting; the results are complete in the order of `streams`. Collectives run
on the side streams of the communicators, so that they overlap with products.
"""

from __future__ import annotations

from cudakit.parallel.products import BLOCKS, column_product, row_blocks, row_product
from cudakit.parallel.row_softmax import softmax

__all__ = ["BLOCKS", "column_product", "row_blocks", "row_product", "softmax"]
