"""C[m] = A[m] + B[m] for a hundred thousand matrices, more than fit the device, in chunks.

The bottleneck is the link between host and device: two inputs in, one result out. If chunks run one after another, each
direction idles while the other works. A pipeline with a few streams keeps both directions busy, so that only the copies
take time; the table's percentages are of this bound. Three common mistakes: sizes exceed 2^31, the last chunk is
shorter than the others, and a check that reads no results finds no errors (this one counts the elements it has
checked).

    python examples/chunked_add.py
    python examples/chunked_add.py --count 100000 --size 1024 --chunk 16
    python examples/chunked_add.py --plot timeline.png
"""

import argparse
import sys

from cudakit import ops
from cudakit.commands import cli, ladder, streamed
from cudakit.measure.rows import BenchReport


def add(chunk, a, b, out):
    ops.matrix_add(a, b, out=out, stream=chunk.stream)


def run(arguments):
    streamed.check_arguments(arguments)
    table, progress = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device:
        gpu = device.kind == "gpu"
        size = arguments.size or (256 if gpu else 12)
        count = arguments.count or (100_000 if gpu else 50)
        chunk = arguments.chunk or (1000 if gpu else 7)
        shape = (count, size, size)
        work = streamed.Workload("chunked add", add, 2, (size, size), _exact, _plain, reach=0)
        items = streamed.Items.make(work, count, chunk)
        rows, done = streamed.ways(items, device, shape, chunk, arguments, progress)
        report = BenchReport(device.info(), ceilings=streamed.link_ceiling(done), rows=rows)
    streamed.draw(done, arguments, f"chunked add on {report.device['name']}")
    return ladder.finish(report, arguments, table)


def _exact(blocks):
    return blocks[0].astype("float64") + blocks[1]


def _plain(blocks):
    return blocks[0] + blocks[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    streamed.add_arguments(
        parser, count="default: 100,000; 50 on the simulated device", size="default: 256; 12",
        chunk="default: 1,000; 7",
    )  # fmt: skip
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
