"""c = a + b over a volume, with blocks of the same size and different shapes: 1024x1x1, 16x8x8, 1x16x64, ...

The block's shape does not change arithmetic or occupancy, only which elements a warp of 32 threads has, and so the
number of sectors (32 bytes) per request: 4 if x covers whole runs of eight floats or more, 32 if every lane is in its
own row. A block longer than a row does not help: 1024x1x1 over rows of 200 leaves four of five threads idle. Occupancy
is the same for all shapes and does not show the difference.

    python examples/block_shapes.py
    python examples/block_shapes.py --shapes 200x250x200 --blocks 256x1x1,32x8x1 --json -
"""

import argparse
import math
import sys

import numpy as np

from cudakit.commands import cli, ladder
from cudakit.compare import within
from cudakit.errors import Refused
from cudakit.families.vector_add import FAMILY
from cudakit.family import MAX_GRID_YZ
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import GpuTimer, wall_clock
from cudakit.shapes import shape_text
from cudakit.show import outputs

BLOCKS = "1024x1x1,256x1x1,32x8x4,16x8x8,8x8x16,4x16x16,1x16x64"


def measure(device, stream, shape, blocks):
    hosts = FAMILY.inputs_for(shape, np.float32, np.random.default_rng(0))
    exact = FAMILY.exact(hosts)
    rounding = FAMILY.allowed(exact, hosts)
    cpu = Row(Subject("block_shapes", "cpu", None, shape, "float32", idea="numpy on the host"))
    cpu.judge(within(FAMILY.baseline_of(hosts), exact, rounding))
    cpu.timed(wall_clock(lambda: FAMILY.baseline_of(hosts)))
    yield cpu
    kernel = device.compile("vector_add/02_vector_add_3d.cu")["vector_add_3d"]
    a, b = (device.array(host, stream=stream) for host in hosts)
    for rung, block in enumerate(blocks, 1):
        c = device.full(shape, np.nan, np.float32, stream=stream)
        row = Row(Subject("block_shapes", shape_text(block), rung, shape, "float32"))
        extents = FAMILY.problem_of((a, b), c).volume
        x, y, z = (-(-n // along) for n, along in zip(extents, block, strict=True))
        grid = x, min(y, MAX_GRID_YZ), min(z, MAX_GRID_YZ)
        resident = kernel.occupancy(block, 0) * math.prod(block)
        occupancy = resident / device.attribute("MAX_THREADS_PER_MULTIPROCESSOR")
        row.subject.idea = f"grid {shape_text(grid)}"
        row.launch = {"grid": grid, "block": block, "shared": 0, "registers": kernel.registers, "occupancy": occupancy}
        launch = kernel.prepare(grid=grid, block=block, args=(a, b, c, *extents)).launch
        if device.kind == "sim":
            with device.counters() as counters:
                launch(stream)
            (counted,) = counters.values()
            row.counters = {**counted.as_dict(), "bytes_per_element": counted.global_sector_bytes / c.size}
        else:
            launch(stream)
        row.judge(within(c.numpy(stream), exact, rounding))
        if device.kind == "gpu" and row.ok:
            row.timed(GpuTimer(device, stream).time([lambda launch=launch: launch(stream)]), traffic=12 * c.size)
        yield row


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        report = BenchReport(device.info())
        for shape in arguments.shapes or [(200, 250, 200) if device.kind == "gpu" else (16, 32, 64)]:
            if 0 in shape:
                raise Refused(f"{shape_text(shape)} has no elements")
            report.rows += measure(device, stream, shape, arguments.blocks)
    return ladder.finish(report, arguments, table)


def blocks_of(text):
    blocks = cli.parse_shapes(text)
    if any(len(block) != 3 for block in blocks):
        raise argparse.ArgumentTypeError(f"{text!r}: write blocks as XxYxZ, such as 16x8x8")
    return blocks


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--shapes", type=cli.parse_shapes, metavar="S,...", help="volumes, such as 200x250x200")
    parser.add_argument("--blocks", type=blocks_of, default=blocks_of(BLOCKS), metavar="B,...", help="XxYxZ threads")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
