"""A hundred thousand images through a 3x3 Gaussian blur: one step after another, pipelined, and from disk to disk.

The blur takes a fiftieth of the time of the copies to the device and back, so reading, both copies, the blur and
writing must overlap, each on another chunk. Mistakes here are silent: refilling a pinned buffer during its copy,
waiting for the chunk that was just queued (nothing overlaps), or saving a result under the next chunk's name. Here a
buffer waits for its own copy, a result is written after its own event, and each image keeps its name. A run that was
stopped, by a full disk or by kill -9, continues with --resume.

    python examples/blur_images.py
    python examples/blur_images.py --disk /data/images --count 100000 --size 1024     # 400 GB in, 400 GB out
    python examples/blur_images.py --disk /data/images --count 100000 --resume
    python examples/blur_images.py --disk /data/images --direct --seconds 60          # one file each way, no page cache
    python examples/blur_images.py --disk /data/images --kvikio --seconds 60          # to device memory, without pinned
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import numpy as np

from cudakit import ops, pipeline
from cudakit.commands import cli, ladder, streamed
from cudakit.errors import Refused
from cudakit.families.blur import FAMILY
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.pipeline.bar import progress_bar
from cudakit.pipeline.direct import PAGE, Disk, DiskFile, file_system, measure_disk, why_unsupported
from cudakit.pipeline.file_sinks import npy_header_bytes
from cudakit.pipeline.kvikio_source import kvikio_package
from cudakit.shapes import shape_text

ROOM = 0.9  # of the disk's free space, for both files
MEMORY = ("tmpfs", "ramfs")
ROUNDS = 5  # of --kvikio
KVIKIO_THREADS = 16


def blur(chunk, images, out):
    ops.blur(images, out=out, stream=chunk.stream)


def save_images(items, folder, count):
    """Create the image set, one .npy file per image; complete files of an earlier run are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    mark, said = folder / "set.txt", f"{shape_text(items.work.item)} images out of {items.ring.period} random rows\n"
    if mark.exists() and mark.read_text() != said:
        raise Refused(f"{folder} has {mark.read_text().strip()}, but this run needs {said.strip()}: use another folder")
    mark.write_text(said)
    (source,) = items.made(count)
    one = np.empty((1, *items.work.item), np.float32)
    for number in range(count):
        path = folder / f"image_{number:06}.npy"
        if not path.exists():
            source.read(number, number + 1, one)
            aside = path.with_suffix(".part")
            with aside.open("wb") as file:
                np.save(file, one[0])
            aside.replace(path)


def disk_row(items, device, folder, count, chunk, arguments, console):
    """Blur the folder's images to files of the same names, then read all of them back and check every element."""
    subject = Subject(
        "blur images", "disk to disk", 5, (count, *items.work.item), "float32", idea="one file per image, both ways"
    )
    row = Row(subject)
    save_images(items, folder / "in", count)
    names = [folder / "in" / f"image_{number:06}.npy" for number in range(count)]
    if any((folder / "out").glob("*.npy")) and not (arguments.resume or arguments.anew):
        raise Refused(f"{folder / 'out'} already has results: continue with --resume, or overwrite with --anew")
    with progress_bar(console) as tell:
        done = pipeline.run(
            blur, names, folder / "out", devices=device, chunk=chunk, streams=arguments.streams,
            resume=arguments.resume, overwrite=arguments.anew, memory=arguments.memory,
            host_memory=arguments.host_memory, readers=arguments.readers, writers=arguments.writers, progress=tell,
        )  # fmt: skip
    row.streamed(done)
    judge = streamed.Judge(items, row, full=True)
    for number in range(count):
        judge.write(number, number + 1, np.load(folder / "out" / f"image_{number:06}.npy")[None])
    judge.settle(count)
    return row


@dataclass
class Place:
    """A folder on a disk. direct: whether its file system has direct I/O; if not, files are dropped from the page cache
    before they are read, and synced after they are written. room: bytes that may be used. probe: bytes per file that is
    written to measure the disk."""

    folder: Path
    kind: str
    direct: bool
    room: int
    probe: int

    @classmethod
    def of(cls, folder, probe):
        folder.mkdir(parents=True, exist_ok=True)
        kind = file_system(folder)
        if kind in MEMORY:
            raise Refused(f"{folder} is on a {kind}, which is memory: name a folder on a disk with --disk")
        room = int(ROOM * shutil.disk_usage(folder).free)
        return cls(folder, kind, not why_unsupported(folder), room, min(probe, room // 4))

    def __str__(self):
        return f"{self.kind}, " + ("direct I/O" if self.direct else "page cache dropped before and synced after")

    def measure(self, block, threads):
        """The disk's rates, for blocks of about `block` bytes."""
        return measure_disk(self.folder, nbytes=self.probe, block=block, threads=threads, direct=self.direct)

    def count_of(self, nbytes, disk, arguments, most_by_default):
        """The number of images of `nbytes`: that of --count, or at most `most_by_default` that fit twice and
        take at most --seconds to be made and blurred."""
        most = self.room // (2 * nbytes)
        count = arguments.count or min(most, most_by_default)
        if not 0 < count <= most:
            raise Refused(
                f"{max(count, 1):,} images need {2 * max(count, 1) * nbytes:,} bytes in {self.folder}, and "
                f"{self.room:,} may be used there, {ROOM:.0%} of the free space: pass a smaller --count or another disk"
            )
        if arguments.seconds is not None and arguments.count is None:
            count = min(count, int(arguments.seconds / (nbytes * (1 / disk.write + 1 / disk.both))))
        return max(count, 1)

    def save(self, items, path, count, chunk, threads):
        """Write the images to one .npy file, whose data starts on a page. No page of it remains in the page cache."""
        (source,) = items.made(count)
        header = npy_header_bytes(count, source.item, length=PAGE)
        file = DiskFile(path, os.O_RDWR | os.O_CREAT, direct=self.direct)

        def save(start):
            stop = min(start + chunk, count)
            block = np.empty((stop - start, *source.item.shape), source.item.dtype)
            source.read(start, stop, block)
            file.write(block, len(header) + start * source.item.nbytes)

        try:
            file.write(np.frombuffer(header, np.uint8), 0)
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(save, range(0, count, chunk)))
            file.drop()
        finally:
            file.close()


@dataclass(repr=False)
class DiskRow(Row):
    """A row with the disk's file system and rates in bytes per second, measured before and after the run."""

    disk: dict | None = None


def direct_row(work, device, place, most_by_default, chunk, arguments, console):
    """Blur one file of images to another, each byte read and written once; the bound is the disk's own speed. Every
    result is compared in one row, and 32 images in full."""
    block, readers, writers = chunk * work.nbytes, arguments.readers, arguments.writers
    before = place.measure(block, readers)
    console.print(f"{place}: {rates(before)}")
    count = place.count_of(work.nbytes, before, arguments, most_by_default)
    items = streamed.Items.make(work, count, chunk)
    subject = Subject("blur images", "direct", 6, (count, *work.item), "float32", idea=f"one file each way, {place}")
    row = DiskRow(subject)
    few = min(count, chunk)
    pipeline.run(blur, tuple(items.made(few)), None, devices=device, chunk=few, measure=False)  # compiles
    with tempfile.TemporaryDirectory(dir=place.folder, prefix="blur_") as own:
        given, made = Path(own) / "images.npy", Path(own) / "blurred.npy"
        begin = time.perf_counter()
        place.save(items, given, count, chunk, writers)
        console.print(
            f"{count:,} images, {given.stat().st_size / 1e9:.1f} GB, made in {time.perf_counter() - begin:.1f} s"
        )
        with progress_bar(console) as tell:
            done = pipeline.run(
                blur, pipeline.FromFile(given, direct=place.direct), pipeline.ToFile(made, direct=place.direct),
                devices=device, chunk=chunk, streams=arguments.streams, memory=arguments.memory,
                host_memory=arguments.host_memory, readers=readers, writers=writers, progress=tell, measure=True,
            )  # fmt: skip
        console.print(f"blurred in {done.seconds:.1f} s")
        results = np.load(made, mmap_mode="r")
        judge, whole = streamed.Judge(items, row), streamed.Judge(items, row, full=True)
        for number in range(count):
            judge.write(number, number + 1, results[number : number + 1])
            if number % max(1, count // 32) == 0:
                whole.write(number, number + 1, results[number : number + 1])
        judge.settle(count)
        del results
    after = place.measure(block, readers)
    console.print(f"after the run: {rates(after)}")
    # Reading and writing wait for the same disk, so their rates in the run say nothing about the bound.
    best = Disk(*map(max, zip(astuple(before), astuple(after), strict=True)))
    done.bounds = {stage: done.bounds[stage] for stage in ("link", "compute") if stage in done.bounds}
    done.bounds["disk"] = best.seconds(done.bytes_in, done.bytes_out)
    row.streamed(done)
    subject.idea += f": {rates(best)}"
    row.disk = {"file_system": place.kind, "direct": place.direct, "block": block, "threads": readers}
    row.disk |= {"before": asdict(before), "after": asdict(after)}
    return row


def kvikio_rows(work, device, place, most_by_default, chunk, arguments, console):
    """Blur one file of images that is read in two ways in turn: by direct I/O into pinned memory, and by KvikIO into
    device memory. The results are copied to the host, compared in one row of each, and dropped. A row has its median
    run; the bound is the disk's speed of reading. No page of the file is in the page cache before a run."""
    readers = arguments.readers
    before = place.measure(chunk * work.nbytes, readers)
    console.print(f"{place}: {rates(before)}")
    count = place.count_of(work.nbytes, before, arguments, most_by_default)
    items = streamed.Items.make(work, count, chunk)
    subjects = [
        Subject("blur images", "pinned direct", 7, (count, *work.item), "float32", idea=f"one file, {place}"),
        Subject("blur images", "kvikio", 8, (count, *work.item), "float32", idea=f"one file, {kvikio_note(device)}"),
    ]
    rows = [DiskRow(subject) for subject in subjects]
    with tempfile.TemporaryDirectory(dir=place.folder, prefix="blur_") as own:
        given = Path(own) / "images.npy"
        place.save(items, given, count, chunk, arguments.writers)
        threads = max(readers, KVIKIO_THREADS)
        sources = [pipeline.FromFile(given, direct=place.direct), pipeline.FromKvikIO(given, threads=threads)]
        options = {
            "devices": device, "chunk": chunk, "streams": arguments.streams, "memory": arguments.memory,
            "host_memory": arguments.host_memory, "readers": readers, "measure": True,
        }  # fmt: skip
        for source in sources:  # compiles, and opens KvikIO
            pipeline.run(blur, source, None, count=min(count, chunk), **options | {"measure": False})
        runs = [[], []]
        for _ in range(ROUNDS):
            for row, source, done in zip(rows, sources, runs, strict=True):
                drop(given)
                judge = streamed.Judge(items, row)
                done.append(pipeline.run(blur, source, judge, **options))
                judge.settle(count)
    after = place.measure(chunk * work.nbytes, readers)
    best = Disk(*map(max, zip(astuple(before), astuple(after), strict=True)))
    for row, done in zip(rows, runs, strict=True):
        done.sort(key=lambda one: one.seconds)
        median = done[len(done) // 2]
        median.bounds = {stage: median.bounds[stage] for stage in ("link", "compute") if stage in median.bounds}
        median.bounds["disk"] = median.bytes_in / best.read
        row.streamed(median)
        row.disk = {"file_system": place.kind, "direct": place.direct, "block": chunk * work.nbytes, "threads": readers}
        row.disk |= {"before": asdict(before), "after": asdict(after), "seconds": [one.seconds for one in done]}
    return rows


def drop(path):
    """Remove a file from the page cache."""
    file = DiskFile(path, os.O_RDWR, direct=False)
    file.drop()
    file.close()


def kvikio_note(device):
    """The mode of KvikIO, in words."""
    kvikio = kvikio_package(device.context)
    if kvikio is None:
        return "to the host and copied, as the simulated device has no KvikIO"
    said = {name: kvikio.defaults.get(name) for name in ("compat_mode", "auto_direct_io_read", "task_size")}
    settings = ", ".join(f"{name} {getattr(value, 'name', value)}" for name, value in said.items())
    mode = "compatibility mode" if kvikio.defaults.is_compat_mode_preferred() else "GPUDirect Storage"
    return f"KvikIO {kvikio.__version__} in {mode} ({settings})"


def rates(disk):
    """The rates of a disk, in words."""
    return f"{disk.read / 1e9:.2f} GB/s read, {disk.write / 1e9:.2f} written, {disk.both / 1e9:.2f} each way at once"


def run(arguments):
    streamed.check_arguments(arguments)
    if arguments.resume and not arguments.disk:
        raise Refused("--resume needs the folder of the earlier run: name it with --disk")
    one_file = arguments.direct or arguments.kvikio
    if (one_file or arguments.seconds is not None) and not arguments.disk:
        raise Refused("--direct, --kvikio and --seconds need a folder on a disk: name it with --disk")
    if arguments.seconds is not None and not one_file:
        raise Refused("--seconds limits the images of --direct or --kvikio: pass it, too")
    table, progress = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device:
        gpu = device.kind == "gpu"
        size = arguments.size or (1024 if gpu else 32)
        count = arguments.count or (7680 if gpu else 14)
        chunk = arguments.chunk or (max(1, (64 << 20) // (4 * size * size)) if gpu else 3)
        shape = (count, size, size)
        work = streamed.Workload(
            "blur images", blur, 1, (size, size), FAMILY.exact, FAMILY.baseline_of, reach=1, terms=9
        )
        if one_file:
            place = Place.of(Path(arguments.disk), 4 << 30 if gpu else 8 << 20)
            # The simulated device is slower than the disk.
            most = sys.maxsize if gpu else count
            rows = []
            if arguments.direct:
                rows.append(direct_row(work, device, place, most, chunk, arguments, progress))
            if arguments.kvikio:
                rows += kvikio_rows(work, device, place, most, chunk, arguments, progress)
            return ladder.finish(BenchReport(device.info(), rows=rows), arguments, table)
        items = streamed.Items.make(work, count, chunk)
        rows, done = streamed.ways(items, device, shape, chunk, arguments, progress)
        report = BenchReport(device.info(), ceilings=streamed.link_ceiling(done), rows=rows)
        if arguments.disk:
            folder = Path(arguments.disk)
            report.rows.append(disk_row(items, device, folder, count, chunk, arguments, progress))
        else:
            with tempfile.TemporaryDirectory() as folder:
                few = min(count, 256)
                report.rows.append(disk_row(items, device, Path(folder), few, chunk, arguments, progress))
    streamed.draw(done, arguments, f"blur on {report.device['name']}")
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    streamed.add_arguments(
        parser, count="default: 7,680; 14 on the simulated device", size="default: 1,024; 32",
        chunk="default: 64 MiB of them; 3",
    )  # fmt: skip
    parser.add_argument("--writers", type=cli.positive, default=4, metavar="N", help="writing threads (default: 4)")
    parser.add_argument(
        "--disk", metavar="FOLDER", help="blur all images from FOLDER/in to FOLDER/out (default: 256, temporary folder)"
    )
    parser.add_argument(
        "--direct", action="store_true",
        help="blur one file to another in --disk, without the page cache and without the other rows; the default count "
        "is what fits on the disk; at most 14 on the simulated device",
    )  # fmt: skip
    parser.add_argument(
        "--kvikio", action="store_true",
        help="read one file in --disk in two ways in turn, five times: direct I/O into pinned memory, and KvikIO into "
        "device memory (needs the kvikio extra); the default count is as for --direct",
    )  # fmt: skip
    parser.add_argument(
        "--seconds",
        type=cli.positive,
        metavar="N",
        help="with --direct or --kvikio: at most as many images as take about N seconds to make and to blur",
    )
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="continue an earlier run into --disk")
    again.add_argument("--anew", action="store_true", help="overwrite the results of an earlier run into --disk")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
