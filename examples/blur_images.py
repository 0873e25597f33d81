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
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cudakit import ops, pipeline
from cudakit.commands import cli, ladder, streamed
from cudakit.errors import Refused
from cudakit.families.blur import FAMILY
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.pipeline.direct import PAGE, DirectFile, measure_disk
from cudakit.pipeline.file_sinks import npy_header_bytes
from cudakit.shapes import shape_text


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
    with streamed.progress(console, count) as tell:
        done = pipeline.run(
            blur, names, folder / "out", devices=device, chunk=chunk, streams=arguments.streams,
            resume=arguments.resume, overwrite=arguments.anew, memory=arguments.memory,
            host_memory=arguments.host_memory, readers=arguments.readers, writers=arguments.writers, progress=tell,
        )  # fmt: skip
    row.streamed(done)
    judge = streamed.Judge(items, row, full=True)
    for number in range(count):
        judge(number, number + 1, np.load(folder / "out" / f"image_{number:06}.npy")[None])
    judge.finish(count)
    return row


def file_system(folder):
    """The type of the file system that holds a folder, such as ext4. Raises Refused if it is in memory."""
    folder, found = folder.resolve(), ("", "")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if folder.is_relative_to(place) and len(place) >= len(found[0]):
            found = place, kind
    if found[1] in ("tmpfs", "ramfs"):
        raise Refused(f"{folder} is on a {found[1]}, which is memory: name a folder on a disk with --disk")
    return found[1]


def save_stack(items, path, count, chunk, threads):
    """Write the images to one file with direct I/O."""
    (source,) = items.made(count)
    header = npy_header_bytes(count, source.item, length=PAGE)
    file = DirectFile(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def save(start):
        stop = min(start + chunk, count)
        block = np.empty((stop - start, *source.item.shape), source.item.dtype)
        source.read(start, stop, block)
        file.write(block, len(header) + start * source.item.nbytes)

    try:
        file.write(np.frombuffer(header, np.uint8), 0)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(save, range(0, count, chunk)))
        os.fsync(file.cached)
    finally:
        file.close()


def direct_row(items, device, folder, chunk, arguments, console):
    """Blur one file of images to another with direct I/O, each byte read and written once; the bound is the disk's own
    speed."""
    kind = file_system(folder)
    block = chunk * items.work.nbytes
    room = int(0.9 * shutil.disk_usage(folder).free)
    probe = min(2 << 30, room // 4)
    disk = measure_disk(folder, nbytes=probe, block=block, threads=arguments.readers)
    count = arguments.count or room // (2 * items.work.nbytes)
    if arguments.seconds is not None:  # to make the images, and to blur them
        count = min(count, int(arguments.seconds / (items.work.nbytes * (1 / disk.write + 1 / disk.both))))
    count = max(1, count)
    items = streamed.Items.make(items.work, count, chunk)
    subject = Subject(
        "blur images", "direct", 6, (count, *items.work.item), "float32",
        idea=f"one file each way on {kind}, no page cache: disk {disk.read / 1e9:.2f} GB/s read, "
        f"{disk.write / 1e9:.2f} written, {disk.both / 1e9:.2f} each way at once",
    )  # fmt: skip
    row, given, made = Row(subject), folder / "images.npy", folder / "blurred.npy"
    try:
        save_stack(items, given, count, chunk, arguments.writers)
        with streamed.progress(console, count) as tell:
            begin = time.perf_counter()
            done = pipeline.run(
                blur, pipeline.FromFile(given, direct=True), pipeline.ToFile(made, direct=True), devices=device,
                chunk=chunk, streams=arguments.streams, overwrite=True, memory=arguments.memory,
                host_memory=arguments.host_memory, readers=arguments.readers, writers=arguments.writers, progress=tell,
                measure=True,
            )  # fmt: skip
            done.seconds = time.perf_counter() - begin  # with the last sync
        done.bounds["disk"] = disk.seconds(done.bytes_in, done.bytes_out)
        row.streamed(done)
        results = np.load(made, mmap_mode="r")
        judge, whole = streamed.Judge(items, row), streamed.Judge(items, row, full=True)
        row.verdict.ok = True
        for number in range(count):  # one row of each image, and 32 whole images
            judge(number, number + 1, results[number : number + 1])
            if number % max(1, count // 32) == 0:
                whole(number, number + 1, results[number : number + 1])
        judge.finish(count)
    finally:
        for path in (given, made):
            path.unlink(missing_ok=True)
    return row


def run(arguments):
    streamed.check_arguments(arguments)
    if arguments.resume and not arguments.disk:
        raise Refused("--resume needs the folder of the earlier run: name it with --disk")
    if (arguments.direct or arguments.seconds is not None) and not arguments.disk:
        raise Refused("--direct and --seconds need a folder on a disk: name it with --disk")
    if arguments.seconds is not None and not arguments.direct:
        raise Refused("--seconds limits the images of --direct: pass it, too")
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
        items = streamed.Items.make(work, count, chunk)
        if arguments.direct:
            rows = [direct_row(items, device, Path(arguments.disk), chunk, arguments, progress)]
            return ladder.finish(BenchReport(device.info(), rows=rows), arguments, table)
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
        help="blur one file to another in --disk with direct I/O, without the other rows (default count: what fits)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds",
        type=cli.positive,
        metavar="N",
        help="with --direct: at most as many images as take about N seconds",
    )
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="continue an earlier run into --disk")
    again.add_argument("--anew", action="store_true", help="overwrite the results of an earlier run into --disk")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
