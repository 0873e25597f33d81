"""C = A @ B with tiles in shared memory of 8, 16, 32 and 64: memory traffic, speed and occupancy by size.

A block loads a tile of A and one of B, waits (first barrier), multiplies, and waits again before the next tile (second
barrier); past the edges it loads zeros. A tile of T x T takes T * T threads and uses every float T times, so each
doubling of T halves the global bytes per element of C. The largest tile is 32 x 32: a block is limited to 1,024
threads, and a launch with 64 x 64 raises LaunchError. Faster kernels compute several outputs per thread
(examples/gemm.py). Occupancy does not show the difference: all three sizes keep all 2,048 threads of a multiprocessor
active, and reach 4.9, 7.7 and 8.0 TFLOP/s (H200, 1024).

    python examples/tiled_matmul.py
    python examples/tiled_matmul.py --shapes 1000x900x1100 --json -
"""

import argparse
import sys

import numpy as np

import cudakit
from cudakit.commands import cli, ladder
from cudakit.compare import within
from cudakit.errors import Refused
from cudakit.families.gemm import FAMILY
from cudakit.measure.ceilings import fp32_peak
from cudakit.measure.rows import BenchReport, Rates, Row, Subject
from cudakit.measure.timing import GpuTimer, wall_clock
from cudakit.shapes import shape_text
from cudakit.show import outputs

TILES = (8, 16, 32, 64)


def measure(device, stream, shape):
    m, n, k = shape
    hosts = FAMILY.inputs_for(shape, np.float32, np.random.default_rng(0))
    exact = FAMILY.exact(hosts)
    rounding = FAMILY.allowed(exact, hosts)
    cpu = Row(Subject("tiled_matmul", "cpu", None, shape, "float32", idea="numpy on the host"), Rates(ceiling="peak"))
    cpu.judge(within(FAMILY.baseline_of(hosts), exact, rounding))
    cpu.timed(wall_clock(lambda: FAMILY.baseline_of(hosts)))
    yield cpu
    a, b = (device.array(host, stream=stream) for host in hosts)
    entries = {tile: f"tiled<{tile}>" for tile in TILES}
    module = device.compile("gemm/03_tiled.cu", names=tuple(entries.values()))
    for rung, (tile, entry) in enumerate(entries.items(), 1):
        row = Row(Subject("tiled_matmul", f"{tile}x{tile}", rung, shape, "float32"), Rates(ceiling="peak"))
        yield row
        c = device.full((m, n), np.nan, np.float32, stream=stream)
        grid, block = -(-m // tile) * -(-n // tile), (tile, tile)
        row.subject.idea = f"{grid:,} blocks of {tile * tile:,} threads, {2 * tile * tile * 4:,} bytes shared"
        # strides of a row, a column and a batch for A, B, C (not read: beta is 0) and D
        args = (a, b, c, c, k, 1, 0, n, 1, 0, n, 1, 0, n, 1, 0, m, n, k, 1, 1.0, 0.0)
        kernel = module[entry]
        try:
            launch = kernel.prepare(grid=grid, block=block, args=args).launch
        except cudakit.LaunchError as refusal:
            if tile * tile <= kernel.max_threads:
                raise
            row.skip(str(refusal).splitlines()[0])
            continue
        resident = kernel.occupancy(block, 0) * tile * tile
        occupancy = resident / device.attribute("MAX_THREADS_PER_MULTIPROCESSOR")
        row.launch = {"grid": grid, "block": block, "registers": kernel.registers, "occupancy": occupancy}
        if device.kind == "sim":
            with device.counters() as counters:
                launch(stream)
                stream.synchronize()
            (counted,) = counters.values()
            row.counters = {**counted.as_dict(), "bytes_per_element": counted.global_sector_bytes / c.size}
        else:
            launch(stream)
        row.judge(within(c.numpy(stream), exact, rounding))
        if device.kind == "gpu" and row.ok:
            row.timed(GpuTimer(device, stream).time([lambda launch=launch: launch(stream)]), flops=2 * m * n * k)


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        report = BenchReport(device.info(), ceilings={"fp32_tflops": fp32_peak(device)} if device.kind == "gpu" else {})
        for shape in arguments.shapes or [(1024,) if device.kind == "gpu" else (64,)]:
            shape = FAMILY.read_shape(shape)
            if len(shape) != 3 or 0 in shape:
                raise Refused(f"{shape_text(shape)}: write N or MxNxK, each at least 1")
            report.rows += measure(device, stream, shape)
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--shapes", type=cli.parse_shapes, metavar="S,...", help="N or MxNxK (default: 1024 on a GPU)")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
