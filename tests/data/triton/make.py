"""Makes the PTX in this folder with Triton, ahead of time: neither a GPU nor torch is needed.

    python tests/data/triton/make.py            # writes vector_add.sm_80.ptx and so on beside itself

A kernel's launch takes the arguments in the order of the PTX's parameters: the kernel's own, without the constexpr
ones, then two pointers for scratch memory, which may be null. `num_warps * 32` threads a block; the shared memory that
a block needs, which is dynamic, is in the first line of each file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HERE = Path(__file__).resolve().parent
PTX_VERSION = 86  # what drivers from CUDA 12.8 on load


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    """out[i] = x[i] + y[i] for i < n; one program for BLOCK elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out + i, tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, stride_x, stride_out, columns, BLOCK: tl.constexpr):
    """Softmax of each row of at most BLOCK columns; one program a row."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    values = tl.load(x + row * stride_x + i, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride_out + i, powers / tl.sum(powers, axis=0), mask=inside)


@triton.jit
def matmul(a, b, c, m, n, k, stride_a, stride_b, stride_c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """c (float32, m x n) = a (float16, m x k) @ b (float16, k x n); one program for M x N results; row strides."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        inner = start + tl.arange(0, K)
        left = tl.load(
            a + rows[:, None] * stride_a + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0
        )
        right = tl.load(
            b + inner[:, None] * stride_b + columns[None, :],
            mask=(inner[:, None] < k) & (columns[None, :] < n),
            other=0.0,
        )
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * stride_c + columns[None, :], total, mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def matmul_aligned(a, b, c, m, n, k, stride_a, stride_b, stride_c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """The same for sizes that are multiples of the tile's: loads without masks, pipelined with cp.async."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    left = a + rows[:, None] * stride_a + inner[None, :]
    right = b + inner[:, None] * stride_b + columns[None, :]
    total = tl.zeros((M, N), dtype=tl.float32)
    for _ in range(0, k, K):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += K
        right += K * stride_b
    tl.store(c + rows[:, None] * stride_c + columns[None, :], total)


@triton.jit
def softmax_32_bit(x, out, stride_x, stride_out, columns, BLOCK: tl.constexpr):
    """A common mistake: `softmax` with row * stride in 32 bits, which overflows."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    values = tl.load(x + row * stride_x + i, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride_out + i, powers / tl.sum(powers, axis=0), mask=inside)


def _signature(pointers: dict[str, str], integers: tuple[str, ...], constants: dict[str, int]) -> dict[str, str]:
    return {**pointers, **dict.fromkeys(integers, "i32"), **dict.fromkeys(constants, "constexpr")}


def build(kernel: Any, signature: dict[str, str], constants: dict[str, int], arch: int, **options: int) -> str:
    """The PTX of a kernel for sm_<arch>, with a first line that says how to launch it."""
    names = list(signature)
    divisible = [name for name, kind in signature.items() if kind.startswith("*") or name.startswith("stride")]
    if kernel is matmul_aligned:
        divisible += ["k"]
    else:
        divisible = [name for name in divisible if name.startswith("*")]
    attrs = {(names.index(name),): [["tt.divisibility", 16]] for name in divisible}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, attrs)
    options["ptx_version"] = PTX_VERSION
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    shared, threads = compiled.metadata.shared, 32 * compiled.metadata.num_warps
    said = f"{threads} threads a block, {shared} bytes of shared memory"
    return f"// made by make.py with Triton {triton.__version__}: {said}\n{portable(compiled.asm['ptx'])}"


def portable(ptx: str) -> str:
    """PTX without this machine's folders: in the names of files, and in the bytes of the debug information."""
    ptx = re.sub(r'"[^"]*/(triton/[^"]*)"', r'"\1"', ptx.replace(f'"{HERE}/', '"'))
    folder = re.search(r"\.b8 \d+ +// DW_AT_comp_dir\n(?:\.b8 \d+\n)*?\.b8 0\n", ptx)
    if folder is None:
        return ptx
    slashes = re.sub(r"\.b8 [1-9]\d*", ".b8 47", folder[0])
    return ptx.replace(folder[0], slashes)


def main() -> None:
    tile = {"M": 64, "N": 64, "K": 32}
    sizes = ("m", "n", "k", "stride_a", "stride_b", "stride_c")
    matrices = {"a": "*fp16", "b": "*fp16", "c": "*fp32"}
    for arch in (80, 90):
        made = {
            "vector_add": build(
                vector_add,
                _signature({"x": "*fp32", "y": "*fp32", "out": "*fp32"}, ("n",), {"BLOCK": 1024}),
                {"BLOCK": 1024},
                arch,
            ),
        }
        for kernel in (softmax, softmax_32_bit):
            made[kernel.__name__] = build(
                kernel,
                _signature({"x": "*fp32", "out": "*fp32"}, ("stride_x", "stride_out", "columns"), {"BLOCK": 1024}),
                {"BLOCK": 1024},
                arch,
            )
        # four warps would make sm_90's dot a wgmma
        warps = 4 if arch == 80 else 2
        made["matmul"] = build(matmul, _signature(matrices, sizes, tile), tile, arch, num_warps=warps)
        made["matmul_aligned"] = build(
            matmul_aligned, _signature(matrices, sizes, tile), tile, arch, num_warps=warps, num_stages=3
        )
        for name, text in made.items():
            (HERE / f"{name}.sm_{arch}.ptx").write_text(text)


if __name__ == "__main__":
    main()
