"""The time of one product C = A @ B by NVTX ranges, from creating the context to the result on the host.

The ranges: Matrix Multiplication, and within it Memory Allocation, Memory Copy H2D, Kernel Execution, Memory Copy D2H
and Memory Deallocation. Three more ranges separate costs that would be hidden in these: Context Creation (otherwise
part of the first call), Input Generation and Kernel Compilation. Each phase waits for the device before it ends;
otherwise it would only show the time to queue the work. Every call is checked: in published tables, a copy of megabytes
in 110 ns or three frees in 140 ns were calls that had failed unnoticed.

The table is collected within the process and needs no tool; an attached tool (nsys, ncu) shows the same ranges in the
domain "cudakit". Time % counts nested time once: the rows add up to 100 %. --depth 4 shows cudakit's own ranges within
the phases. The times are the host's. On the simulated device they are the CPU's simulation time, unrelated to a GPU.

    python examples/nvtx_matmul.py
    python examples/nvtx_matmul.py --depth 4
    python examples/nvtx_matmul.py --shapes 1000x900x1100 --picture ranges.png --trace ranges.json
    nsys profile -t cuda,nvtx -o matmul python examples/nvtx_matmul.py
"""

import argparse
import sys

import numpy as np

from cudakit import nvtx
from cudakit.commands import cli
from cudakit.compare import within
from cudakit.errors import Refused
from cudakit.families.gemm import FAMILY
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import wall_clock
from cudakit.shapes import shape_text
from cudakit.show import digits, outputs, plots, tables, terminal

TILE = 16
ENTRY = f"tiled<{TILE}>"


@nvtx.range("Matrix Multiplication")
def multiply(spec, shape):
    """Compute C = A @ B on the device that `spec` names; also return A and B, and the device's description of
    itself."""
    with nvtx.range("Context Creation"):
        device = cli.open_device(spec)
        stream = device.stream()
    with device, stream:
        with nvtx.range("Input Generation"):
            m, n, k = shape or FAMILY.read_shape((1024 if device.kind == "gpu" else 48,))
            hosts = FAMILY.inputs_for((m, n, k), np.float32, np.random.default_rng(0))
        with nvtx.range("Kernel Compilation"):
            kernel = device.compile("gemm/03_tiled.cu", names=(ENTRY,))[ENTRY]
        with nvtx.range("Memory Allocation"):
            a, b, c = (device.empty(extents, np.float32, stream=stream) for extents in ((m, k), (k, n), (m, n)))
            stream.synchronize()
        with nvtx.range("Memory Copy H2D"):
            a.copy_from(hosts[0], stream)
            b.copy_from(hosts[1], stream)
            stream.synchronize()
        with nvtx.range("Kernel Execution"):
            # strides of a row, a column and a batch for A, B, C (not read: beta is 0) and D
            args = (a, b, c, c, k, 1, 0, n, 1, 0, n, 1, 0, n, 1, 0, m, n, k, 1, 1.0, 0.0)
            kernel.launch(stream, grid=-(-m // TILE) * -(-n // TILE), block=(TILE, TILE), args=args)
            stream.synchronize()
        with nvtx.range("Memory Copy D2H"):
            found = np.empty((m, n), np.float32)
            c.copy_to(found, stream)
            stream.synchronize()
        with nvtx.range("Memory Deallocation"):
            for array in (a, b, c):
                array.close()
            stream.synchronize()
        return hosts, found, device.info()


def check(hosts, found):
    """A row for numpy and one for the product."""
    exact = FAMILY.exact(hosts)
    rounding = FAMILY.allowed(exact, hosts)
    shape = (*found.shape, hosts[0].shape[1])
    cpu = Row(Subject("nvtx_matmul", "cpu", None, shape, "float32", idea="numpy on the host"))
    cpu.judge(within(FAMILY.baseline_of(hosts), exact, rounding))
    cpu.timed(wall_clock(lambda: FAMILY.baseline_of(hosts)))
    subject = Subject("nvtx_matmul", "tiled", 1, shape, "float32", idea="run once, with transfers")
    row = Row(subject)
    row.judge(within(found, exact, rounding))
    return [cpu, row]


def show(result, trace, depth, console):
    for row in result["rows"]:
        error = digits.number(row["max_abs_error"], 2)
        verdict = f"correct, worst error {error}" if row["ok"] else f"wrong: {row['why']}"
        terminal.show_text(console, f"{shape_text(row['shape'])} {row['variant']} ({row['idea']}): {verdict}")
    terminal.show_text(console, f"\n{trace.table(depth)}\n")
    if result["device"]["kind"] == "sim":
        terminal.show_text(console, "simulated: times of this machine's CPU, unrelated to a GPU's")
    terminal.show_text(console, tables.device_line(result))


def run(arguments):
    for flag in ("json", "trace"):
        outputs.check_destination(f"--{flag}", getattr(arguments, flag))
    if arguments.picture:
        plots.check(arguments.picture, "--picture")
    shapes = [FAMILY.read_shape(shape) for shape in arguments.shapes or ()]
    for shape in shapes:
        if len(shape) != 3 or 0 in shape:
            raise Refused(f"{shape_text(shape)}: write N or MxNxK, each at least 1")
    table, _ = cli.consoles(arguments)
    with nvtx.trace() as trace:
        done = [multiply(arguments.device, shape) for shape in shapes or [None]]
    info = done[0][2]
    rows = [row for hosts, found, _ in done for row in check(hosts, found)]
    result = {**BenchReport(info, rows=rows).as_dict(), "ranges": trace.as_dict()}
    if not arguments.quiet:
        show(result, trace, arguments.depth, table)
    if arguments.json:
        outputs.write_json(result, arguments.json)
    if arguments.trace:
        trace.chrome(arguments.trace)
    if arguments.picture:
        kind = "simulated: the CPU's times" if info["kind"] == "sim" else "host times"
        title = f"C = A @ B, {shape_text(rows[-1].subject.shape)}, {info['name']} ({kind})"
        plots.ranges(trace, arguments.picture, title)
    return cli.EXIT_OK if all(row.ok is not False for row in rows) else cli.EXIT_FALSE


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--shapes", type=cli.parse_shapes, metavar="S,...", help="N or MxNxK (default: 1024 on a GPU)")
    parser.add_argument("--depth", type=cli.positive, default=2, help="levels of nesting in the table (default: 2)")
    parser.add_argument("--picture", metavar="FILE.png", help="draw the ranges over time; needs the plot extra")
    parser.add_argument("--trace", metavar="FILE.json", help="write the ranges for Perfetto or chrome://tracing")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
