"""The five steps of a CUDA program, c = a + b: allocate, copy in, launch, copy out, free.

The grid is n / block rounded up, and the kernel's guard `if (i < n)` stops the last block's threads past the end. A
single block computes at most 1,024 elements and reports no error for the rest: only a comparison of every element finds
the mistake. Without the guard, the simulated device reports an out-of-bounds access and its source line.

    python examples/add_1d.py
    python examples/add_1d.py --n 10000000 --device gpu
"""

import argparse
import sys

import numpy as np

import cudakit
from cudakit.commands import cli
from cudakit.compare import within
from cudakit.errors import Refused
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import GpuTimer, wall_clock
from cudakit.show import outputs, tables, terminal

BLOCK = 1024
UNGUARDED = """
__global__ void add(const float* a, const float* b, float* c) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    c[i] = a[i] + b[i];
}
"""


def five_steps(kernel, stream, grid, x, y):
    """Compute x + y on the device. Elements that are not written stay NaN."""
    device, n = cudakit.Device.of(stream.context), len(x)
    with device.empty(n, stream=stream) as a, device.empty(n, stream=stream) as b, device.empty(n, stream=stream) as c:
        a.copy_from(x, stream)
        b.copy_from(y, stream)
        c.fill(np.nan, stream)
        kernel.launch(stream, grid=grid, block=BLOCK, args=(a, b, c, n))
        return c.numpy(stream)  # waits, and the three arrays are freed


def without_guard(n):
    """Return the simulated device's report for a kernel without the guard."""
    with cudakit.Device("sim", fresh=True) as device:
        a, b, c = (device.zeros(n) for _ in range(3))
        device.compile(source=UNGUARDED, name="unguarded.cu")["add"].launch(
            device.default_stream, grid=-(-n // BLOCK), block=BLOCK, args=(a, b, c)
        )
        try:
            device.synchronize()
        except cudakit.DeviceFault as fault:
            return str(fault)
    return "nothing: n is a multiple of the block"


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    if arguments.n < 1:
        raise Refused(f"--n must be at least 1, got {arguments.n}")
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        report, n = BenchReport(device.info()), arguments.n
        x, y = np.random.default_rng(0).standard_normal((2, n), dtype=np.float32)
        exact, blocks = x.astype(np.float64) + y, -(-n // BLOCK)
        kernel = device.compile("vector_add/01_vector_add.cu")["vector_add"]
        cpu = Row(Subject("add_1d", "cpu", None, (n,), "float32", idea="numpy on the host"))
        cpu.judge(within(x + y, exact, 0.0))
        cpu.timed(wall_clock(lambda: x + y))
        report.rows.append(cpu)
        for rung, (name, grid) in enumerate((("one_block", 1), ("many_blocks", blocks)), 1):
            row = Row(Subject("add_1d", name, rung, (n,), "float32", idea=f"grid {grid:,}, block {BLOCK:,}"))
            result = five_steps(kernel, stream, grid, x, y)
            missing = int(np.isnan(result).sum())
            if grid < blocks:
                row.skip(f"{missing:,} of {n:,} elements were not written, and no call failed")
            else:
                row.judge(within(result, exact, 0.0))
            if device.kind == "gpu" and row.ok:
                a, b = device.array(x, stream=stream), device.array(y, stream=stream)
                plan = kernel.prepare(grid=grid, block=BLOCK, args=(a, b, device.empty_like(a, stream=stream), n))
                row.timed(GpuTimer(device, stream).time([lambda plan=plan: plan.launch(stream)]), traffic=12 * n)
                row.times.end_to_end = wall_clock(lambda grid=grid: five_steps(kernel, stream, grid, x, y)).median
            report.rows.append(row)
    result = report.as_dict()
    if not arguments.quiet:
        tables.show(result, table)
        stopped = f"of {blocks * BLOCK:,} threads the guard stops {blocks * BLOCK - n:,}; without it:"
        terminal.show_text(table, stopped, style="bold")
        terminal.show_text(table, without_guard(n))
    if arguments.json:
        outputs.write_json(result, arguments.json)
    return cli.verdict(report)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--n", type=int, default=100_003, help="elements (default: 100,003)")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
