"""Mean of an element and its neighbours. The last variant has a bug on purpose."""

import numpy as np

from cudakit import Family, Launch, ceil_div


def stencil(x):
    p = np.pad(x, 1)
    return (x + p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]) / 5


FAMILY = Family(
    "stencil",
    reference=stencil,
    inputs={"x": "float32[rows, cols]"},
    shapes=((32, 64), (19, 45)),
)


@FAMILY.variant("stencil.cu", tune={"wide": (16, 32, 64), "high": (2, 4, 8)})
def direct(p, wide=32, high=4):
    """one thread per element"""
    return Launch((ceil_div(p.cols, wide), ceil_div(p.rows, high)), (wide, high))


@FAMILY.variant("stencil.cu", tune={"high": (4, 8)})
def strips(p, high=8):
    """one thread per strip of a column"""
    grid = ceil_div(p.cols, 64), ceil_div(p.rows, high)
    return Launch(grid, 64, entry=f"strips<{high}>")
