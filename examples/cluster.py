"""One process with all devices, and a Dask cluster of one worker process per device, on the same files.

Both blur a stack of images from one `.npy` file to another; the times are those of the whole call of `pipeline.run`,
interleaved, and the cluster's row is a fraction of the single process's. The files are on a file system in memory if
there is one with enough room, so that a disk does not set the time. Needs the dask extra.

    python examples/cluster.py
    python examples/cluster.py --devices 2 --count 15360 --readers 8 --writers 8
"""

import argparse
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cudakit import ops, pipeline
from cudakit.commands import cli, ladder, numbered, streamed
from cudakit.errors import Refused
from cudakit.families.blur import FAMILY as BLUR
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import Spread
from cudakit.pipeline.bar import progress_bar
from cudakit.show import outputs

IN_MEMORY = Path("/dev/shm")
ROUNDS = 3  # on GPUs
THREADS = 16  # that write the images
CHECKED = 64  # results that are compared together


def blur(chunk, images, out):
    ops.blur(images, out=out, stream=chunk.stream)


def in_parts(work, count, nbytes):
    """Call work(start, stop) for all items, in several threads."""
    step = max(1, (64 << 20) // nbytes)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda at: work(at, min(at + step, count)), range(0, count, step)))


def make_files(items, folder, count):
    """Write the images to in.npy, and a stack of the same size to out.npy. Returns that stack, as a memory map: every
    run writes to the same memory."""
    images, results = (
        np.lib.format.open_memmap(folder / name, "w+", items.work.dtype, (count, *items.work.item))
        for name in ("in.npy", "out.npy")
    )
    source = items.made(count)[0]

    def fill(start, stop):
        source.read(start, stop, images[start:stop])
        results[start:stop] = np.nan

    in_parts(fill, count, items.work.nbytes)
    return results


def judge(items, stack, row):
    """Compare one row of each result with the reference, then overwrite these rows for the next run."""
    check = streamed.Judge(items, row)
    for start in range(0, len(stack), CHECKED):
        stop = min(start + CHECKED, len(stack))
        check.write(start, stop, stack[start:stop])
        stack[np.arange(start, stop), items.checked(start, stop - start)] = np.nan
    check.settle(len(stack))


def measure(client, devices, folder, arguments, console):
    """The report: rows of both ways."""
    gpu = devices[0].kind == "gpu"
    report = BenchReport(devices[0].info() | {"count": len(devices)})
    size, count = arguments.size or (1024 if gpu else 24), arguments.count or (15360 if gpu else 37)
    chunk = arguments.chunk or (max(1, (64 << 20) // (4 * size * size)) if gpu else 3)
    work = numbered.Workload("blur stack", blur, 1, (size, size), BLUR.exact, BLUR.baseline_of, reach=1, terms=9)
    items, shape = numbered.Items.make(work, count, chunk), (count, size, size)
    report.rows.append(streamed.cpu_row(items, shape))
    console.print(f"writing {2 * count * work.nbytes / 1e9:.1f} GB of files to {folder}")
    stack = make_files(items, folder, count)
    options = {
        "chunk": chunk, "streams": arguments.streams, "readers": arguments.readers, "writers": arguments.writers,
        "overwrite": True, "measure": False,
    }  # fmt: skip
    plural = "s" * (len(devices) > 1)
    ways = [
        (f"1 process, {len(devices)} device{plural}", {"devices": devices}),
        (f"{len(devices)} worker{plural}", {"on": client, "devices": None if gpu else devices[0].context.spec}),
    ]
    rows = [
        Row(Subject(work.name, name, rung, shape, "float32", idea="from file to file"))
        for rung, (name, _) in enumerate(ways, 1)
    ]
    times = [[] for _ in ways]
    rounds = arguments.rounds or (ROUNDS if gpu else 1)
    for number in range(1 + rounds):  # the first compiles and touches the memory
        for row, seconds, (_, way) in zip(rows, times, ways, strict=True):
            with progress_bar(console) as tell:
                begin = time.perf_counter()
                done = pipeline.run(blur, folder / "in.npy", stack, progress=tell, **options, **way)
                took = time.perf_counter() - begin
            console.print(f"{row.subject.variant}: {took:.2f} s, {done.seconds:.2f} s of them after the start")
            if number:
                seconds.append(1e3 * took)
            judge(items, stack, row)
            row.pipeline = done
    for row, seconds in zip(rows, times, strict=True):
        row.rates.ceiling = ways[0][0]
        if gpu:
            row.timed(Spread.of(seconds), traffic=row.pipeline.bytes_in + row.pipeline.bytes_out)
    if gpu:
        rows[1].hold_against(rows[0].times.device.median)
    report.rows += rows
    return report


def place_for(arguments, nbytes):
    """The parent of the folder for the files: --folder, or a file system in memory, or that for temporary files."""
    if arguments.folder:
        return Path(arguments.folder)
    room = shutil.disk_usage(IN_MEMORY).free if IN_MEMORY.is_dir() else 0
    return IN_MEMORY if room > 2.5 * nbytes else Path(tempfile.gettempdir())


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise Refused("this example needs Dask: pip install 'cudakit[dask]'") from None
    table, progress = cli.consoles(arguments)
    devices = cli.open_devices(arguments.device, arguments.devices)
    gpu = devices[0].kind == "gpu"
    count, size = arguments.count or 15360, arguments.size or 1024
    try:
        with (
            tempfile.TemporaryDirectory(dir=place_for(arguments, 4 * count * size**2 if gpu else 0)) as folder,
            LocalCluster(n_workers=len(devices), threads_per_worker=1, dashboard_address=":0") as cluster,
            Client(cluster) as client,
        ):
            report = measure(client, devices, Path(folder), arguments, progress)
    finally:
        for device in reversed(devices):
            device.close()
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    streamed.add_arguments(
        parser, count="default: 15,360; 37 on the simulated device", size="default: 1,024; 24",
        chunk="default: 64 MiB of them; 3",
    )  # fmt: skip
    parser.add_argument("--writers", type=cli.positive, default=4, metavar="N", help="writing threads (default: 4)")
    parser.add_argument("--devices", type=cli.positive, metavar="N", help="devices (default: all; 2 simulated ones)")
    parser.add_argument("--folder", metavar="FOLDER", help="folder for the files (default: one in memory)")
    parser.add_argument(
        "--rounds", type=cli.positive, metavar="N", help=f"runs of each row, interleaved (default: {ROUNDS} on GPUs)"
    )
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
