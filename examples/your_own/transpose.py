"""A transpose. The last variant has a bug on purpose, at ragged edges only."""

from cudakit import Family, Launch, ceil_div

FAMILY = Family(
    "transpose",
    reference=lambda x: x.T,
    inputs={"x": "float32[rows, cols]"},
    shapes=((64, 64), (37, 101)),
)


@FAMILY.peer("torch")
def torch(x, out):
    """a copy of the transposed view"""
    out.copy_(x.T)


@FAMILY.variant("transpose.cu")
def naive(p):
    """one thread per element"""
    return Launch((ceil_div(p.cols, 32), ceil_div(p.rows, 8)), (32, 8))


@FAMILY.variant("transpose.cu", tune={"tile": (16, 32), "rows": (4, 8), "pad": (0, 1)})
def tiled(p, tile=32, rows=8, pad=1):
    """a tile in shared memory"""
    grid = ceil_div(p.cols, tile), ceil_div(p.rows, tile)
    return Launch(grid, (tile, rows), entry=f"tiled<{tile}, {rows}, {pad}>")


@FAMILY.variant("transpose.cu", tune={"rows": (4, 8)})
def swizzled(p, rows=8):
    """the tile swizzled instead of padded"""
    grid = ceil_div(p.cols, 32), ceil_div(p.rows, 32)
    return Launch(grid, (32, rows), entry=f"swizzled<32, {rows}>")
