"""Kernels, values and launches shared by the tests of graphs."""

from __future__ import annotations

import numpy as np

N = 300
SOURCE = """
// y[i] = factor * x[i]
__global__ void scale(const float* x, float* y, float factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}

// y[i] += x[i]
__global__ void add(const float* x, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}

// y[i] = the sum of the block's x, by dynamic shared memory
__global__ void block_sum(const float* x, float* y, int n) {
    extern __shared__ float part[];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    float sum = 0.0f;
    for (int k = 0; k < blockDim.x; ++k) sum += part[k];
    if (i < n) y[i] = sum;
}
"""
GRID, BLOCK = 3, 128


def module(device):
    return device.compile(source=SOURCE, name="graph.cu")


def numbers(seed=0, n=N):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def scale(device, stream, x, y, factor):
    module(device)["scale"].launch(stream, GRID, BLOCK, args=(x, y, factor, N))


def add(device, stream, x, y):
    module(device)["add"].launch(stream, GRID, BLOCK, args=(x, y, N))
