"""One process with all devices, and a Dask cluster of one worker process per device, on the same file.

Both blur a stack of images; the times are those of the whole call of `pipeline.run`, interleaved, and the cluster's row
is a fraction of the single process's. The sink keeps one row of each result, which is compared with the reference: all
results are copied to the host, but no file system sets the time, which would be about 4 GB/s for one file however many
processes write to it. The input is on a file system in memory, if there is one with enough room. Needs the dask extra.

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


def blur(chunk, images, out):
    ops.blur(images, out=out, stream=chunk.stream)


class OneRow(pipeline.Sink):
    """Keeps one row of each result in an `.npy` file: row `1 + 7 i % (rows - 2)` of result i, as `Items` compares."""

    private = ""
    forgets = "it keeps one row of each result"

    def __init__(self, path):
        self.path, self.rows = path, None

    def open(self, spec):
        self.size = spec.item.shape[0]
        self.rows = np.lib.format.open_memmap(self.path, "r+")
        return []

    def write(self, start, stop, items):
        number = np.arange(start, stop)
        self.rows[start:stop] = items[number - start, 1 + 7 * number % (self.size - 2)]

    def portion(self, attempt):
        return OneRow(self.path)

    def adopt(self, attempt, start, stop):
        """Each portion writes to its own rows."""

    def close(self):
        self.rows = None


def make_input(items, path, count):
    """Write the images to an `.npy` file."""
    images = np.lib.format.open_memmap(path, "w+", items.work.dtype, (count, *items.work.item))
    source, step = items.made(count)[0], max(1, (64 << 20) // items.work.nbytes)
    with ThreadPoolExecutor(THREADS) as pool:
        places = range(0, count, step)
        list(pool.map(lambda at: source.read(at, min(at + step, count), images[at : at + step]), places))


def judge(items, rows, row):
    """Compare the rows with the reference."""
    verdict = items.judge_taken(0, rows)
    if row.ok is not False:
        row.judge(verdict)


def measure(client, devices, folder, arguments, console):
    """The report: rows of both ways."""
    gpu = devices[0].kind == "gpu"
    report = BenchReport(devices[0].info() | {"count": len(devices)})
    size, count = arguments.size or (1024 if gpu else 24), arguments.count or (15360 if gpu else 37)
    chunk = arguments.chunk or (max(1, (64 << 20) // (4 * size * size)) if gpu else 3)
    work = numbered.Workload("blur stack", blur, 1, (size, size), BLUR.exact, BLUR.baseline_of, reach=1, terms=9)
    items, shape = numbered.Items.make(work, count, chunk), (count, size, size)
    report.rows.append(streamed.cpu_row(items, shape))
    console.print(f"writing {count * work.nbytes / 1e9:.1f} GB to {folder}")
    make_input(items, folder / "in.npy", count)
    rows_file = folder / "rows.npy"
    options = {
        "chunk": chunk, "streams": arguments.streams, "readers": arguments.readers, "writers": arguments.writers,
        "measure": False,
    }  # fmt: skip
    plural = "s" * (len(devices) > 1)
    ways = [
        (f"1 process, {len(devices)} device{plural}", {"devices": devices}),
        (f"{len(devices)} worker{plural}", {"on": client, "devices": None if gpu else devices[0].context.spec}),
    ]
    rows = [
        Row(Subject(work.name, name, rung, shape, "float32", idea="from a file; one row of each result is kept"))
        for rung, (name, _) in enumerate(ways, 1)
    ]
    times = [[] for _ in ways]
    rounds = arguments.rounds or (ROUNDS if gpu else 1)
    for number in range(1 + rounds):  # the first compiles and touches the memory
        for row, seconds, (_, way) in zip(rows, times, ways, strict=True):
            np.save(rows_file, np.full((count, size), np.nan, np.float32))
            with progress_bar(console) as tell:
                begin = time.perf_counter()
                done = pipeline.run(blur, folder / "in.npy", OneRow(rows_file), progress=tell, **options, **way)
                took = time.perf_counter() - begin
            console.print(f"{row.subject.variant}: {took:.2f} s, {done.seconds:.2f} s of them after the start")
            if number:
                seconds.append(1e3 * took)
            judge(items, np.load(rows_file), row)
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
    return IN_MEMORY if room > 1.5 * nbytes else Path(tempfile.gettempdir())


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
