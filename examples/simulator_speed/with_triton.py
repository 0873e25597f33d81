"""The same work in Triton's interpreter; prints one line of JSON. simulator_speed.py runs it in its own process.

TRITON_INTERPRET=1 python with_triton.py softmax 256x512
"""

import json
import sys
import time

import numpy as np
import torch
import triton
import triton.language as tl

TILE = 16
BLOCK = 1024


@triton.jit
def softmax(x, y, stride, columns, BLOCK: tl.constexpr):
    """One program per row."""
    i = tl.arange(0, BLOCK)
    row, inside = tl.program_id(0) * stride, i < columns
    values = tl.load(x + row + i, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row + i, powers / tl.sum(powers, axis=0), mask=inside)


@triton.jit
def matmul(a, b, c, n, TILE: tl.constexpr):
    """One program per tile."""
    rows = tl.program_id(1) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(0) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for start in range(0, n, TILE):
        k = start + tl.arange(0, TILE)
        left = tl.load(a + rows[:, None] * n + k[None, :], mask=(rows[:, None] < n) & (k[None, :] < n), other=0.0)
        right = tl.load(
            b + k[:, None] * n + columns[None, :], mask=(k[:, None] < n) & (columns[None, :] < n), other=0.0
        )
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total, mask=(rows[:, None] < n) & (columns[None, :] < n))


@triton.jit
def vector_add(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(z + i, tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


def main():
    family, shape = sys.argv[1], tuple(int(extent) for extent in sys.argv[2].split("x"))
    torch.manual_seed(0)
    if family == "softmax":
        x = torch.randn(shape)
        expected, out = torch.softmax(x.double(), dim=1), torch.full(shape, float("nan"))
        block = max(16, triton.next_power_of_2(shape[1]))
        launch = lambda: softmax[(shape[0],)](x, out, shape[1], shape[1], BLOCK=block)  # noqa: E731
    elif family == "matmul":
        n = shape[0]
        a, b, out = torch.randn(n, n), torch.randn(n, n), torch.full((n, n), float("nan"))
        expected, blocks = a.double() @ b.double(), -(-n // TILE)
        launch = lambda: matmul[(blocks, blocks)](a, b, out, n, TILE=TILE)  # noqa: E731
    else:
        x, y, out = torch.randn(shape), torch.randn(shape), torch.full(shape, float("nan"))
        expected, n = x + y, x.numel()
        launch = lambda: vector_add[(-(-n // BLOCK),)](x, y, out, n, BLOCK=BLOCK)  # noqa: E731
    launch()  # the first call is slower
    seconds = []
    while len(seconds) < 3 or (sum(seconds) < 1 and len(seconds) < 20):
        begin = time.perf_counter()
        launch()
        seconds.append(time.perf_counter() - begin)
    right = bool(np.allclose(out.numpy(), expected.numpy(), rtol=1e-3, atol=1e-4))
    print(json.dumps({"seconds": seconds, "ok": right}))


if __name__ == "__main__":
    main()
