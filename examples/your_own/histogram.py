"""A histogram, added to the output. The last variant has a bug on purpose."""

import numpy as np

from cudakit import Family, Input, Launch, ceil_div


def histogram(x, *, bins=64):
    return np.bincount(x, minlength=bins)


FAMILY = Family(
    "histogram",
    reference=histogram,
    inputs={"x": Input("int32[n]", low=0, high=64)},
    outputs={"counts": "uint32[bins]"},
    initial=0,  # the kernels add to what is there
    shapes=((1000,), (4096,)),
)


@FAMILY.variant("histogram.cu")
def global_atomics(p):
    """one atomic in global memory per value"""
    return Launch(ceil_div(p.n, 256), 256)


@FAMILY.variant("histogram.cu", tune={"block": (64, 128, 256), "blocks": (2, 4, 8)})
def per_block(p, block=128, blocks=4):
    """one histogram per block in shared memory"""
    return Launch(min(blocks, ceil_div(p.n, block)), block, shared=4 * p.bins)


@FAMILY.variant("histogram.cu", tune={"items": (2, 4)})
def per_block_items(p, items=4):
    """several values per thread"""
    grid = ceil_div(p.n, 128 * items)
    return Launch(grid, 128, shared=4 * p.bins, entry=f"per_block_items<{items}>")
