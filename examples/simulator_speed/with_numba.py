"""The same kernels on Numba's CUDA simulator; prints one line of JSON. simulator_speed.py runs it in its own process.

NUMBA_ENABLE_CUDASIM=1 python with_numba.py softmax 8x512
"""

import json
import math
import sys
import time

import numpy as np
from numba import cuda, float32

THREADS = 256
TILE = 16


@cuda.jit
def softmax(x, y):
    """One block per row: maximum and sum combined by a tree in shared memory."""
    scratch = cuda.shared.array(THREADS, float32)
    row, t, cols = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    best = float32(-math.inf)
    for i in range(t, cols, THREADS):
        best = max(best, x[row, i])
    scratch[t] = best
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            scratch[t] = max(scratch[t], scratch[t + half])
        cuda.syncthreads()
        half //= 2
    best = scratch[0]
    cuda.syncthreads()
    total = float32(0)
    for i in range(t, cols, THREADS):
        total += math.exp(x[row, i] - best)
    scratch[t] = total
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            scratch[t] += scratch[t + half]
        cuda.syncthreads()
        half //= 2
    total = scratch[0]
    for i in range(t, cols, THREADS):
        y[row, i] = math.exp(x[row, i] - best) / total


@cuda.jit
def matmul(a, b, c, n):
    """One thread per result, 16x16 tiles in shared memory."""
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    ty, tx = cuda.threadIdx.y, cuda.threadIdx.x
    row, col = cuda.blockIdx.y * TILE + ty, cuda.blockIdx.x * TILE + tx
    total = float32(0)
    for start in range(0, n, TILE):
        left[ty, tx] = a[row, start + tx] if row < n and start + tx < n else 0
        right[ty, tx] = b[start + ty, col] if start + ty < n and col < n else 0
        cuda.syncthreads()
        for k in range(TILE):
            total += left[ty, k] * right[k, tx]
        cuda.syncthreads()
    if row < n and col < n:
        c[row, col] = total


@cuda.jit
def vector_add(x, y, z):
    i = cuda.grid(1)
    if i < x.size:
        z[i] = x[i] + y[i]


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def main():
    family, shape = sys.argv[1], tuple(int(extent) for extent in sys.argv[2].split("x"))
    if family == "softmax":
        x = numbers(*shape)
        powers = np.exp((x - x.max(axis=1, keepdims=True)).astype(np.float64))
        expected, out = powers / powers.sum(axis=1, keepdims=True), np.full(shape, np.nan, np.float32)
        launch = lambda: softmax[shape[0], THREADS](x, out)  # noqa: E731
    elif family == "matmul":
        n = shape[0]
        a, b = numbers(n, n), numbers(n + 1, n)[1:]
        expected, out, blocks = a.astype(np.float64) @ b, np.full((n, n), np.nan, np.float32), -(-n // TILE)
        launch = lambda: matmul[(blocks, blocks), (TILE, TILE)](a, b, out, n)  # noqa: E731
    else:
        x, y = numbers(*shape), numbers(*shape)
        expected, out = x + y, np.full(shape, np.nan, np.float32)
        launch = lambda: vector_add[-(-x.size // THREADS), THREADS](x, y, out)  # noqa: E731
    begin = time.perf_counter()
    launch()
    seconds = time.perf_counter() - begin
    right = bool(np.allclose(out, expected, rtol=1e-3, atol=1e-4))
    print(json.dumps({"seconds": [seconds], "ok": right}))


if __name__ == "__main__":
    main()
