"""The chunked add with 1, 2, 3, 4, 8 and 16 streams: time, memory, and the fraction of the link's bound.

With one stream each chunk's copy in waits for the copy out of the previous chunk. With two streams the directions
overlap, and with three or four there is always a copy queued after the current one. More streams add buffers, not
speed: there is one copy engine per direction and one link. With two inputs and one output, the bound is about 1.5 times
the speed of one stream. Pinning the whole data set, as is often done, would need all of it in host memory.

A common rule requests 2 C/T + 1 streams, for C seconds of kernels and T seconds of copies per chunk. Each row has the
rule's number for its own C and T. --repeat N launches the kernel N times per chunk, to try the rule with long kernels.

    python examples/streams.py
    python examples/streams.py --count 20000 --repeat 150
    python examples/streams.py --study 1,2,3,4 --plot timeline.png
"""

import argparse
import sys

from cudakit import ops
from cudakit.commands import cli, ladder, streamed
from cudakit.measure.rows import BenchReport


def repeated(repeat):
    def add(chunk, a, b, out):
        for _ in range(repeat):
            ops.matrix_add(a, b, out=out, stream=chunk.stream)

    return add


def measure(device, arguments, progress):
    """The rows of each number of streams, and the report of the last run."""
    gpu = device.kind == "gpu"
    size = arguments.size or (256 if gpu else 12)
    count = arguments.count or (100_000 if gpu else 60)
    chunk = arguments.chunk or (1000 if gpu else 3)
    shape = (count, size, size)
    work = streamed.Workload(
        "streams",
        repeated(arguments.repeat),
        2,
        (size, size),
        lambda x: x[0].astype("float64") + x[1],
        lambda x: x[0] + x[1],
        reach=0,
    )
    items = streamed.Items.make(work, count, chunk)
    report = BenchReport(device.info(), rows=[streamed.cpu_row(items, shape)])
    sources = items.resident(device, count)
    for rung, streams in enumerate(arguments.study, 1):
        row, done = streamed.pipelined_row(
            items, [device], sources, shape, arguments, name=f"{streams} stream{'s' * (streams > 1)}", rung=rung,
            idea="", streams=streams, chunk=chunk, console=progress, timeline=bool(arguments.plot),
        )  # fmt: skip
        if done.compute_share is not None and done.streams_by_rule is not None:
            row.subject.idea = f"kernels {done.compute_share:.1%} of the time; 2 C/T + 1 = {done.streams_by_rule:.2f}"
        report.rows.append(row)
        report.ceilings |= streamed.link_ceiling(done)
    return report, done


def run(arguments):
    streamed.check_arguments(arguments)
    table, progress = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device:
        report, done = measure(device, arguments, progress)
    streamed.draw(done, arguments, f"{arguments.study[-1]} streams on {report.device['name']}")
    return ladder.finish(report, arguments, table)


def study(text):
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers of streams: write for example 1,2,4")
    return numbers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    streamed.add_arguments(
        parser, count="default: 100,000; 60 on the simulated device", size="default: 256; 12",
        chunk="default: 1,000; 3",
    )  # fmt: skip
    parser.add_argument(
        "--study", type=study, default=[1, 2, 3, 4, 8, 16], metavar="N,...", help="default: 1,2,3,4,8,16"
    )
    parser.add_argument("--repeat", type=cli.positive, default=1, metavar="N", help="launches per chunk (default: 1)")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
