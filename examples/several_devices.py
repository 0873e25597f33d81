"""A pipeline over all GPUs of one process, and the copies between them.

Each chunk goes to the device with the fewest queued chunks. The speed-up of two devices depends on the transfers: each
device has its own link, but both directions of both links share the host's memory, so a pipeline that copies images in
and out gains less than one that copies only sums out. The bound of each row is the rate of bare copies of the same size
with all its devices at once, in the memory that the row uses, right before and after it; the rows take turns.

    python examples/several_devices.py
    python examples/several_devices.py --devices 2 --count 20000 --plot timeline.png
"""

import argparse
import itertools
import sys
import time

import numpy as np

from cudakit import ops, pipeline
from cudakit.commands import cli, ladder, streamed
from cudakit.families.blur import FAMILY as BLUR
from cudakit.measure.rows import BenchReport, Row, Subject, Verdict
from cudakit.measure.timing import Spread

ROUNDS = 3  # on GPUs


def blur(chunk, images, out):
    ops.blur(images, out=out, stream=chunk.stream)


def totals(chunk, images, out):
    ops.sum(images.reshape(len(chunk), -1), axis=1, out=out, stream=chunk.stream)


def peer_rows(devices, nbytes):
    """The rows of copies from the first device to the second, and in both directions at once."""
    one, other = devices[:2]
    streams = [one.stream(), other.stream()]
    there = [
        device.array(np.arange(nbytes // 4, dtype=np.uint32) * (2 * i + 1)) for i, device in enumerate(devices[:2])
    ]
    landed = [
        device.empty(nbytes // 4, np.uint32, stream=stream) for device, stream in zip(devices, streams, strict=False)
    ]
    for device in devices[:2]:
        device.synchronize()
    for name, pairs in (("peer copy", [(1, 0)]), ("peer copies both ways", [(1, 0), (0, 1)])):
        subject = Subject(
            "several devices", name, len(pairs), (nbytes,), "uint8", idea="from device memory to device memory"
        )
        row = Row(subject)

        def queue(pairs=pairs):
            for to, source in pairs:
                landed[to].copy_from(there[source], streams[to])

        queue()
        for stream in streams:
            stream.synchronize()
        ok = all(np.array_equal(landed[to].numpy(streams[to]), there[source].numpy()) for to, source in pairs)
        row.verdict = Verdict(ok, max_abs_error=0.0 if ok else 1.0, max_rel_error=0.0 if ok else 1.0)
        if one.kind == "gpu":
            times = []
            for _ in range(5):
                begin = time.perf_counter()
                for _ in range(20):
                    queue()
                for stream in streams:
                    stream.synchronize()
                times.append((time.perf_counter() - begin) / 20 * 1e3)
            spread = Spread(float(np.median(times)), min(times), max(times), len(times))
            row.timed(spread, traffic=len(pairs) * nbytes)
        yield row


def sums_row(devices, source, exact, count, arguments, rung):
    """The row of a pipeline with images in and only sums out."""
    shape = (count, *source.item.shape)
    name = f"sums, {len(devices)} device{'s' * (len(devices) > 1)}"
    row = Row(Subject("one-way pipeline", name, rung, shape, "float32", idea="only a sum of each image comes back"))
    sums = np.full(count, np.nan, np.float32)
    for items in (min(count, 2 * arguments.chunk * len(devices)), count):  # the first compiles
        done = pipeline.run(
            totals, source, sums[:items], devices=list(devices), chunk=arguments.chunk, count=items,
            streams=arguments.streams, memory=arguments.memory, host_memory=arguments.host_memory,
        )  # fmt: skip
    error = np.abs(sums - exact)
    allowed = 64 * np.finfo(np.float32).eps * np.sqrt(np.prod(source.item.shape))
    row.verdict.max_abs_error, row.verdict.max_rel_error = float(error.max()), float(error.max() / np.abs(exact).max())
    row.verdict.ok = bool(error.max() <= allowed)
    if not row.ok:
        row.fail(f"the sum of image {int(error.argmax())} is off by {error.max():.3g}, over {allowed:.3g}")
    row.streamed(done)
    return row


def measure(devices, arguments, progress):
    """The report, and the report of the pipeline with images in and out on all devices."""
    for one, other in itertools.permutations(devices, 2):
        one.enable_peer(other)
    gpu = devices[0].kind == "gpu"
    report = BenchReport(devices[0].info() | {"count": len(devices)})
    size, count = arguments.size or (1024 if gpu else 24), arguments.count or (15360 if gpu else 17)
    arguments.chunk = arguments.chunk or (max(1, (64 << 20) // (4 * size * size)) if gpu else 3)
    if len(devices) > 1:
        report.rows += peer_rows(devices, (1 << 28) if gpu else 4096)
    work = streamed.Workload("both-way pipeline", blur, 1, (size, size), BLUR.exact, BLUR.baseline_of, reach=1, terms=9)
    items = streamed.Items.make(work, count, arguments.chunk)
    shape = (count, size, size)
    report.rows.append(streamed.cpu_row(items, shape))
    sources = items.resident(devices[0], count)
    rows = items.inputs[0].sum(-1, dtype=np.float64)
    exact = np.array([rows[place : place + size].sum() for place in items.ring.place(np.arange(count))])
    numbers = sorted({1, len(devices)})
    both_ways, one_way = {number: [] for number in numbers}, {number: [] for number in numbers}
    done = {}
    for _ in range(arguments.rounds or (ROUNDS if gpu else 1)):
        for rung, number in enumerate(numbers, 1):
            row, done[number] = streamed.pipelined_row(
                items, devices[:number], sources, shape, arguments, name=f"{number} device{'s' * (number > 1)}",
                rung=rung, idea=f"{arguments.streams} streams each", streams=arguments.streams, chunk=arguments.chunk,
                console=progress, timeline=bool(arguments.plot),
            )  # fmt: skip
            both_ways[number].append(row)
            one_way[number].append(sums_row(devices[:number], sources[0], exact, count, arguments, rung))
    report.ceilings |= streamed.link_ceiling(done[numbers[-1]])
    report.rows += [median_of(rows) for rows in (*both_ways.values(), *one_way.values())]
    return report, done[numbers[-1]]


def median_of(rows):
    """The row of the median time, or one that failed; with the spread of the times and the median fraction of the
    bound, which was measured before and after each run."""
    failed = [row for row in rows if not row.ok]
    if failed or rows[0].times.device is None:
        return failed[0] if failed else rows[0]
    times = [row.times.device.median for row in rows]
    row = sorted(rows, key=lambda row: row.times.device.median)[len(rows) // 2]
    shares = [row.rates.of_ceiling for row in rows if row.rates.of_ceiling is not None]  # None after a very short run
    row.timed(Spread.of(times), traffic=row.pipeline.bytes_in + row.pipeline.bytes_out)
    row.rates.of_ceiling = float(np.median(shares)) if shares else None
    return row


def run(arguments):
    streamed.check_arguments(arguments)
    table, progress = cli.consoles(arguments)
    devices = cli.open_devices(arguments.device, arguments.devices)
    try:
        report, done = measure(devices, arguments, progress)
    finally:
        for device in reversed(devices):
            device.close()
    streamed.draw(done, arguments, f"{len(devices)} of {report.device['name']}")
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    streamed.add_arguments(
        parser, count="default: 15,360; 17 on the simulated device", size="default: 1,024; 24",
        chunk="default: 64 MiB of them; 3",
    )  # fmt: skip
    parser.add_argument(
        "--rounds", type=cli.positive, metavar="N", help=f"runs of each row, interleaved (default: {ROUNDS} on GPUs)"
    )
    parser.add_argument("--devices", type=cli.positive, metavar="N", help="devices (default: all; 2 simulated ones)")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
