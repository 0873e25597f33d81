"""A hundred thousand images through a 3x3 Gaussian blur: one step after another, pipelined, and from disk to disk.

The blur takes a fiftieth of the time of the copies to the device and back, so reading, both copies, the blur and
writing must overlap, each on another chunk. Mistakes here are silent: refilling a pinned buffer during its copy,
waiting for the chunk that was just queued (nothing overlaps), or saving a result under the next chunk's name. Here a
buffer waits for its own copy, a result is written after its own event, and each image keeps its name. A run that was
stopped, by a full disk or by kill -9, continues with --resume.

    python examples/blur_images.py
    python examples/blur_images.py --disk /data/images --count 100000 --size 1024     # 400 GB in, 400 GB out
    python examples/blur_images.py --disk /data/images --count 100000 --resume
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from cudakit import ops, pipeline
from cudakit.commands import cli, ladder, streamed
from cudakit.errors import Refused
from cudakit.families.blur import FAMILY
from cudakit.measure.rows import BenchReport, Row, Subject
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


def run(arguments):
    streamed.check_arguments(arguments)
    if arguments.resume and not arguments.disk:
        raise Refused("--resume needs the folder of the earlier run: name it with --disk")
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
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="continue an earlier run into --disk")
    again.add_argument("--anew", action="store_true", help="overwrite the results of an earlier run into --disk")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
