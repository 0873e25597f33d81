"""Two libraries on one stream: complex products by cuBLAS, then a 2-D Fourier transform of each by cuFFT, in chunks.

The stream orders the two: the transform starts after the products, without a wait on the host. Every stream has its own
plan, because a plan has a work area that two simultaneous transforms would both write; plans are reused for the same
shape. A complex number has 8 bytes, so everything is twice the size of the real case.

    python examples/gemm_fft.py
    python examples/gemm_fft.py --count 20000 --size 256 --chunk 500
"""

import argparse
import sys

import numpy as np

from cudakit import graph
from cudakit.commands import cli, ladder, streamed
from cudakit.libs import blas, fft, library
from cudakit.measure.rows import BenchReport


def product_and_transform(chunk, a, b, out):
    blas.gemm(a, b, out, stream=chunk.stream)
    fft.fft(out, axes=2, out=out, stream=chunk.stream)


def exact(blocks):
    a, b = (block.astype(np.complex128) for block in blocks)
    return np.fft.fft2(a @ b)


def plain(blocks):
    """Products and transforms in complex64; numpy's transform of complex64 works in that precision. (Two products with
    the transform's matrix would be less accurate.)"""
    return np.fft.fft2(blocks[0] @ blocks[1]).astype(np.complex64)


def run(arguments):
    streamed.check_arguments(arguments)
    table, progress = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device:
        gpu = device.kind == "gpu"
        size, count = arguments.size or (256 if gpu else 8), arguments.count or (20_000 if gpu else 14)
        chunk = arguments.chunk or (500 if gpu else 4)
        shape = (count, size, size)
        work = streamed.Workload(
            "gemm + fft", product_and_transform, 2, (size, size), exact, plain, "complex64", terms=size
        )
        items = streamed.Items.make(work, count, chunk)
        libraries = {name: library(device, name) for name in ("cublas", "cufft")}
        report = BenchReport(device.info() | {"libraries": libraries}, rows=[streamed.cpu_row(items, shape)])
        plural = f"{arguments.streams} stream{'s' * (arguments.streams > 1)}"
        for rung, (name, streams, captured, idea) in enumerate(
            (
                ("1 stream", 1, False, "the library calls of a chunk in one stream's order"),
                (plural, arguments.streams, False, "a plan and a handle per stream"),
                (f"{plural}, graphs", arguments.streams, True, "the calls captured once per stream, then replayed"),
            ),
            1,
        ):
            function = graph.captured(product_and_transform) if captured else product_and_transform
            work = streamed.Workload("gemm + fft", function, 2, (size, size), exact, plain, "complex64", terms=size)
            row, done = streamed.pipelined_row(
                items.doing(work), [device], items.resident(device, count), shape, arguments, rung=rung, name=name,
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
        parser, count="default: 20,000; 14 on the simulated device", size="default: 256; 8", chunk="default: 500; 4"
    )
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
