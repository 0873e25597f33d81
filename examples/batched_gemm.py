"""Batches of matrix products by cuBLAS, C[m] = A[m] @ B[m], in chunks on a few streams.

One strided-batched call multiplies a whole chunk. cuBLAS is column-major and reads a row-major matrix as its transpose,
so the call requests C^T = B^T @ A^T: B is the first argument. With A first the result is B @ A, which for square
matrices is silently wrong. Each stream has its own handle. A product of 256x256 matrices has 43 operations per byte of
transfer, so on a fast chip the link is the bottleneck: look at the pipeline's fraction of its bound.

    python examples/batched_gemm.py
    python examples/batched_gemm.py --count 100000 --size 256 --chunk 1000
    python examples/batched_gemm.py --size 1024 --seconds 10 --rungs 2
"""

import argparse
import sys

import numpy as np

from cudakit import ops
from cudakit.commands import cli, ladder, streamed
from cudakit.libs import blas, library
from cudakit.measure.rows import BenchReport


def by_cublas(chunk, a, b, out):
    blas.gemm(a, b, out, stream=chunk.stream)


def by_ours(chunk, a, b, out):
    ops.gemm(a, b, out, stream=chunk.stream)


def one_by_one(chunk, a, b, out):
    for m in range(len(chunk)):
        blas.gemm(a[m], b[m], out[m], stream=chunk.stream)


def exact(blocks):
    return blocks[0].astype(np.float64) @ blocks[1].astype(np.float64)


def run(arguments):
    streamed.check_arguments(arguments)
    table, progress = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device:
        gpu = device.kind == "gpu"
        size, chunk = arguments.size or (256 if gpu else 12), arguments.chunk or (1000 if gpu else 6)
        report = BenchReport(device.info() | {"libraries": {"cublas": library(device)}})
        ways = (
            ("one_by_one", one_by_one, "one call per matrix"),
            ("strided_batched", by_cublas, "one call per chunk"),
            ("ours", by_ours, "one ops.gemm per chunk, without the library"),
        )

        def work(function):
            return streamed.Workload(
                "batched gemm", function, 2, (size, size), exact, lambda blocks: blocks[0] @ blocks[1], terms=size
            )

        count = streamed.count_of(
            work(by_cublas), device, arguments, usual=100_000 if gpu else 20, chunk=chunk, streams=arguments.streams
        )
        shape = (count, size, size)
        items = streamed.Items.make(work(by_cublas), count, chunk)
        report.rows.append(streamed.cpu_row(items, shape))
        sources = items.resident(device, count)
        for rung, (name, function, idea) in streamed.chosen(ways, arguments):
            row, done = streamed.pipelined_row(
                items.doing(work(function)), [device], sources, shape, arguments, name=name,
                rung=rung, idea=idea, streams=arguments.streams, chunk=chunk, console=progress,
                timeline=bool(arguments.plot),
            )  # fmt: skip
            row.rates.tflops = 2 * size**3 * count / done.seconds / 1e12 if gpu else None
            report.rows.append(row)
            report.ceilings |= streamed.link_ceiling(done)
    streamed.draw(done, arguments, f"batched products on {report.device['name']}")
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    streamed.add_arguments(
        parser, count="default: 100,000; 20 on the simulated device", size="default: 256; 12",
        chunk="default: 1,000; 6",
    )  # fmt: skip
    streamed.add_budget_arguments(parser)
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
