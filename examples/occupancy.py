"""A copy at many occupancies: unused shared memory limits the resident blocks; more loads per thread compensate.

Registers, threads and shared memory limit how many blocks a multiprocessor holds; here shared memory is varied, and the
kernel stays the same. Bandwidth depends on the bytes in flight: memory latency is some hundred nanoseconds, and the
data that memory delivers in that time must already be requested. If each thread requests one float4 and waits, many
threads are needed: 3.7 TB/s with 2,048 threads per multiprocessor, 3.0 with 512, 1.9 with 256 (H200, 2^25 floats). If
each thread requests eight at once, 256 threads reach the same 3.7, at an occupancy of 12 %: 32 KB are in flight in both
cases.

    python examples/occupancy.py
    python examples/occupancy.py --shapes 67108864 --blocks 128,512 --shared 0,32768 --loads 1,2 --json -
"""

import argparse
import sys

import numpy as np

import cudakit
from cudakit.commands import cli, ladder
from cudakit.compare import within
from cudakit.errors import Refused
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import GpuTimer, wall_clock
from cudakit.shapes import shape_text
from cudakit.show import outputs

SOURCE = """
// y = x, n float4s. A thread issues LOADS loads before it waits for the first. grid: any, 1-D
template <int LOADS>
__global__ void copy(const float4* x, float4* y, long long n) {
    const long long step = 1ll * gridDim.x * blockDim.x;
#pragma unroll 1
    for (long long i = 1ll * blockIdx.x * blockDim.x + threadIdx.x; i < n; i += LOADS * step) {
        float4 kept[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; ++k)
            if (i + k * step < n) kept[k] = x[i + k * step];
#pragma unroll
        for (int k = 0; k < LOADS; ++k)
            if (i + k * step < n) y[i + k * step] = kept[k];
    }
}
"""


def measure(device, stream, count, arguments):
    host = np.random.default_rng(0).standard_normal(count, np.float32)
    cpu = Row(Subject("occupancy", "cpu", None, (count,), "float32", idea="numpy on the host"))
    cpu.judge(within(host.copy(), host, 0.0))
    cpu.timed(wall_clock(host.copy))
    yield cpu
    x = device.array(host, stream=stream)
    names = tuple(f"copy<{loads}>" for loads in arguments.loads)
    module = device.compile(source=SOURCE, name="copy.cu", names=names)
    settings = [(block, shared, loads) for block in arguments.blocks for loads in arguments.loads
                for shared in arguments.shared]  # fmt: skip
    for rung, (block, shared, loads) in enumerate(settings, 1):
        row = Row(Subject("occupancy", f"{block} threads, {shared:,} B, {loads} loads", rung, (count,), "float32"))
        yield row
        kernel = module[f"copy<{loads}>"]
        y = device.full((count,), np.nan, np.float32, stream=stream)
        try:
            blocks = kernel.occupancy((block,), shared)
            grid = max(blocks, 1) * device.attribute("MULTIPROCESSOR_COUNT")  # all blocks are resident from the start
            launch = kernel.prepare(grid=grid, block=block, shared=shared, args=(x, y, count // 4)).launch
        except cudakit.LaunchError as refusal:
            row.skip(str(refusal).splitlines()[0])
            continue
        occupancy = blocks * block / device.attribute("MAX_THREADS_PER_MULTIPROCESSOR")
        row.launch = {
            "grid": grid,
            "block": block,
            "shared": shared,
            "registers": kernel.registers,
            "occupancy": occupancy,
        }
        limit = "threads" if occupancy == 1 else "registers"
        if blocks < kernel.occupancy((block,), 0):
            limit = "shared memory"
        row.subject.idea = f"resident blocks {blocks} ({limit}), {blocks * block * loads * 16 / 1024:g} KB in flight"
        if device.kind == "sim":
            with device.counters() as counters:
                launch(stream)
            (counted,) = counters.values()
            row.counters = {**counted.as_dict(), "bytes_per_element": counted.global_sector_bytes / count}
        else:
            launch(stream)
        row.judge(within(y.numpy(stream), host, 0.0))
        if device.kind == "gpu" and row.ok:
            row.timed(GpuTimer(device, stream).time([lambda launch=launch: launch(stream)]), traffic=8 * count)


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        report = BenchReport(device.info())
        for shape in arguments.shapes or [(1 << 25,) if device.kind == "gpu" else (1 << 14,)]:
            if len(shape) != 1 or not shape[0] or shape[0] % 4:
                raise Refused(f"{shape_text(shape)}: write one extent, a multiple of 4")
            report.rows += measure(device, stream, shape[0], arguments)
    return ladder.finish(report, arguments, table)


def numbers(text):
    values = [int(part) if part.strip().isdigit() else -1 for part in text.split(",")]
    if min(values) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: write whole numbers joined by commas")
    return values


def sizes(text):
    values = numbers(text)
    if not min(values):
        raise argparse.ArgumentTypeError(f"{text!r}: each must be at least 1")
    return values


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--shapes", type=cli.parse_shapes, metavar="N,...", help="floats to copy, a multiple of 4")
    parser.add_argument("--blocks", type=sizes, default=[256], metavar="T,...", help="threads per block (default: 256)")
    parser.add_argument(
        "--shared", type=numbers, default=[0, 50_000, 100_000, 200_000], metavar="B,...",
        help="bytes of shared memory per block (default: 0,50000,100000,200000)",
    )  # fmt: skip
    parser.add_argument("--loads", type=sizes, default=[1, 4, 8], metavar="L,...", help="loads in flight per thread")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
