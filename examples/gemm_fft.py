"""Two libraries on one stream: complex products by cuBLAS, then a 2-D Fourier transform of each by cuFFT, in chunks.

The stream orders the two: the transform starts after the products, without a wait on the host. Every stream has its own
plan, because a plan has a work area that two simultaneous transforms would both write; plans are reused for the same
shape.

A complex number has 8 bytes, twice a float's: 100,000 pairs of 256x256 are 105 GB, and of 1024x1024 1.7 TB. The pairs
are therefore windows into pinned random numbers, which are copied to the device again and again; no two chunks are the
same. The first results are compared in full, and one row of each later result.

    python examples/gemm_fft.py
    python examples/gemm_fft.py --count 100000 --size 256 --chunk 500
    python examples/gemm_fft.py --size 1024 --seconds 10 --rungs 2
"""

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from cudakit import graph
from cudakit.commands import cli, ladder, streamed
from cudakit.libs import blas, fft, library
from cudakit.measure.rows import BenchReport


def product_and_transform(chunk, a, b, out):
    blas.gemm(a, b, out, stream=chunk.stream)
    fft.fft(out, axes=2, out=out, stream=chunk.stream)


def transformed(products):
    """numpy's transform of each matrix, on all cores (numpy releases the interpreter's lock)."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.stack(list(pool.map(np.fft.fft2, products)))


def exact(blocks):
    a, b = (block.astype(np.complex128) for block in blocks)
    return transformed(a @ b)


def plain(blocks):
    """Products and transforms in complex64; numpy's transform of complex64 works in that precision. (Two products with
    the transform's matrix would be less accurate.)"""
    return transformed(blocks[0] @ blocks[1]).astype(np.complex64)


def run(arguments):
    streamed.check_arguments(arguments)
    table, progress = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device:
        gpu = device.kind == "gpu"
        size, chunk = arguments.size or (256 if gpu else 8), arguments.chunk or (500 if gpu else 4)
        work = streamed.Workload(
            "gemm + fft", product_and_transform, 2, (size, size), exact, plain, "complex64", terms=size
        )
        count = streamed.count_of(
            work, device, arguments, usual=100_000 if gpu else 14, chunk=chunk, streams=arguments.streams
        )
        shape = (count, size, size)
        items = streamed.Items.make(work, count, chunk)
        sources = items.resident(device, count)
        libraries = {name: library(device, name) for name in ("cublas", "cufft")}
        report = BenchReport(device.info() | {"libraries": libraries}, rows=[streamed.cpu_row(items, shape)])
        plural = f"{arguments.streams} stream{'s' * (arguments.streams > 1)}"
        ways = (
            ("1 stream", 1, False, "the library calls of a chunk in one stream's order"),
            (plural, arguments.streams, False, "a plan and a handle per stream"),
            (f"{plural}, graphs", arguments.streams, True, "the calls captured once per stream, then replayed"),
        )
        for rung, (name, streams, captured, idea) in streamed.chosen(ways, arguments):
            function = graph.captured(product_and_transform) if captured else product_and_transform
            work = streamed.Workload("gemm + fft", function, 2, (size, size), exact, plain, "complex64", terms=size)
            row, done = streamed.pipelined_row(
                items.doing(work), [device], sources, shape, arguments, rung=rung, name=name,
                idea=idea, streams=streams, chunk=chunk, console=progress, timeline=bool(arguments.plot),
            )  # fmt: skip
            report.rows.append(row)
            report.ceilings |= streamed.link_ceiling(done)
            if captured:
                function.close()
    streamed.draw(done, arguments, f"products and transforms on {report.device['name']}")
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    streamed.add_arguments(
        parser, count="default: 100,000; 14 on the simulated device", size="default: 256; 8", chunk="default: 500; 4"
    )
    streamed.add_budget_arguments(parser)
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
