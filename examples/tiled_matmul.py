"""C = A @ B without tiles, and with tiles in shared memory of 8, 16, 32 and 64: memory traffic, speed and occupancy.

A block loads a tile of A and one of B, waits (first barrier), multiplies, and waits again before the next tile (second
barrier); past the edges it loads zeros. A tile of T x T uses every float T times, so each doubling of T halves the
number of loads from global memory. With one thread per output the largest tile is 32 x 32: a block is limited to 1,024
threads, and a launch with 64 x 64 raises LaunchError. Tiles of 64 need several outputs per thread, here 4, 8 and 16.
More outputs per thread mean fewer threads and a lower occupancy, and fewer reads of shared memory per multiply-add;
examples/gemm.py continues from there.

Under Nsight Compute, or with --once, each kernel is launched once, in its own NVTX range tiled_matmul.KERNEL.

    python examples/tiled_matmul.py
    python examples/tiled_matmul.py --shapes 1000x900x1100 --json -
    python -m cudakit profile --set row examples/tiled_matmul.py --shapes 1024
"""

import argparse
import math
import sys
from dataclasses import dataclass

import numpy as np

import cudakit
from cudakit import nvtx
from cudakit.commands import cli, ladder
from cudakit.compare import within
from cudakit.errors import Refused
from cudakit.families.gemm import FAMILY
from cudakit.measure.ceilings import fp32_peak
from cudakit.measure.rows import BenchReport, Rates, Row, Subject
from cudakit.measure.timing import GpuTimer, wall_clock
from cudakit.shapes import shape_text
from cudakit.show import outputs


@dataclass(frozen=True)
class Kernel:
    """A kernel of kernels/gemm: its file, its name there, its block, and the side of the block's tile of outputs."""

    source: str
    entry: str
    block: tuple[int, ...]
    tile: int
    idea: str = ""


KERNELS = {
    "naive_uncoalesced": Kernel("01_naive_uncoalesced", "naive_uncoalesced<16>", (16, 16), 16, "lanes down the rows"),
    "naive": Kernel("02_naive", "naive<16>", (16, 16), 16, "lanes along the columns"),
    **{f"{tile}x{tile}": Kernel("03_tiled", f"tiled<{tile}>", (tile, tile), tile) for tile in (8, 16, 32, 64)},
    "64x64_4_outputs": Kernel("05_register_1d", "register_1d<64, 64, 16, 4>", (1024,), 64, "4 outputs per thread"),
    "64x64_8_outputs": Kernel("05_register_1d", "register_1d<64, 64, 8, 8>", (512,), 64, "8 outputs per thread"),
    "64x64_16_outputs": Kernel("06_register_2d", "register_2d<64, 64, 16, 4, 4>", (256,), 64, "16 outputs per thread"),
}


def measure(device, stream, shape, once):
    m, n, k = shape
    hosts = FAMILY.inputs_for(shape, np.float32, np.random.default_rng(0))
    exact = FAMILY.exact(hosts)
    rounding = FAMILY.allowed(exact, hosts)
    if not once:
        idea = "numpy on the host"
        cpu = Row(Subject("tiled_matmul", "cpu", None, shape, "float32", idea=idea), Rates(ceiling="peak"))
        cpu.judge(within(FAMILY.baseline_of(hosts), exact, rounding))
        cpu.timed(wall_clock(lambda: FAMILY.baseline_of(hosts)))
        yield cpu
    a, b = (device.array(host, stream=stream) for host in hosts)
    c = device.empty((m, n), stream=stream)
    # strides of a row, a column and a batch for A, B, C (not read: beta is 0) and D
    args = (a, b, c, c, k, 1, 0, n, 1, 0, n, 1, 0, n, 1, 0, m, n, k, 1, 1.0, 0.0)
    for rung, (name, chosen) in enumerate(KERNELS.items(), 1):
        row = Row(Subject("tiled_matmul", name, rung, shape, "float32"), Rates(ceiling="peak"))
        yield row
        c.fill(np.nan, stream)
        tile, threads = chosen.tile, math.prod(chosen.block)
        grid = -(-m // tile) * -(-n // tile)
        kernel = device.compile(f"gemm/{chosen.source}.cu", names=[chosen.entry])[chosen.entry]
        facts = f"{grid:,} blocks of {threads:,} threads, {kernel.static_shared:,} bytes shared"
        row.subject.idea = "; ".join(filter(None, (chosen.idea, facts)))
        try:
            launch = kernel.prepare(grid=grid, block=chosen.block, args=args).launch
        except cudakit.LaunchError as refusal:
            if threads <= kernel.max_threads:
                raise
            row.skip(str(refusal).splitlines()[0])
            continue
        resident = kernel.occupancy(chosen.block, 0) * threads
        occupancy = resident / device.attribute("MAX_THREADS_PER_MULTIPROCESSOR")
        row.launch = {
            "grid": grid,
            "block": chosen.block,
            "shared": kernel.static_shared,
            "registers": kernel.registers,
            "occupancy": occupancy,
        }
        if device.kind == "sim":
            with device.counters() as counters:
                launch(stream)
                stream.synchronize()
            (counted,) = counters.values()
            row.counters = {**counted.as_dict(), "bytes_per_element": counted.global_sector_bytes / c.size}
        else:
            with nvtx.range(f"tiled_matmul.{name}"):
                launch(stream)
        row.judge(within(c.numpy(stream), exact, rounding))
        if device.kind == "gpu" and row.ok and not once:
            row.timed(GpuTimer(device, stream).time([lambda launch=launch: launch(stream)]), flops=2 * m * n * k)


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    once = arguments.once or cli.under_profiler()
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        report = BenchReport(device.info(), ceilings={"fp32_tflops": fp32_peak(device)} if device.kind == "gpu" else {})
        for shape in arguments.shapes or [(1024,) if device.kind == "gpu" else (64,)]:
            shape = FAMILY.read_shape(shape)
            if len(shape) != 3 or 0 in shape:
                raise Refused(f"{shape_text(shape)}: write N or MxNxK, each at least 1")
            report.rows += measure(device, stream, shape, once)
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--shapes", type=cli.parse_shapes, metavar="S,...", help="N or MxNxK (default: 1024 on a GPU)")
    parser.add_argument("--once", action="store_true", help="launch each kernel once: checked, not timed")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
