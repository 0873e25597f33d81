"""One product on several GPUs: each device has some columns of B, and gets the other columns of C from the others.

Every device holds A and its own columns of B and computes its columns of C, one block of rows at a time; while the next
block is being multiplied, the block's columns are exchanged. At the end all devices hold all of C (an all-gather). The
rows of the report differ in the exchange:

- one device: the whole product, without an exchange;
- peer copies: each device copies the other devices' columns, with two streams per device and events;
- stores: `cudakit.parallel.column_product` in float32; its kernels store each tile on all devices;
- NCCL, one process: `cudakit.parallel.column_product` with a communicator per device;
- NCCL, processes: the same with one process per device.

All rows are measured in turns in three rounds; a row's time is the median of the rounds, and its speed-up is relative
to one device in the same run. Its bound is the time of the slower part alone: the local products without an exchange,
or the exchange, at the rate of bare peer copies, without products.

    python examples/tensor_parallel.py
    python examples/tensor_parallel.py --shapes 8192,16384x8192x4096 --dtype bfloat16
"""

import argparse
import itertools
import sys
import time
from dataclasses import dataclass, field

import numpy as np
from parallel_product.one_process import OneDevice, OneProcess, PeerCopies, Stores
from parallel_product.problem import Problem
from parallel_product.processes import Processes

from cudakit import ops, parallel
from cudakit.commands import cli, ladder
from cudakit.compare import within
from cudakit.errors import CudakitError, Refused
from cudakit.libs import nccl
from cudakit.measure.rows import BenchReport, Rates, Row, Subject
from cudakit.measure.timing import Spread
from cudakit.shapes import shape_text
from cudakit.show import outputs

ROUNDS, BUDGET_S, REST_S = 3, 0.5, 0.3
LARGEST_ON_HOST = 1e12  # multiplications; the host computes only the rows that are checked of a larger product
DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class ParallelRow(Row):
    """speedup: relative to one device, in this run. bound_ms: the larger of products_ms, the time of the local products
    alone, and exchange_ms, the bytes that a device gets over the rate of bare peer copies. of_bound: the bound over the
    time. rounds_ms: the time of each round."""

    speedup: float | None = None
    bound_ms: float | None = None
    products_ms: float | None = None
    exchange_ms: float | None = None
    of_bound: float | None = None
    rounds_ms: list[float] = field(default_factory=list)


def measured(run, count):
    """Milliseconds of `count` calls."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def ways(devices, problem):
    """The classes of the report's rows, and the reason why those with several devices, or with NCCL, are skipped."""
    ranked = [Stores, OneProcess, Processes] if problem.dtype == "float32" else [OneProcess, Processes]
    if problem.count == 1:
        return [OneDevice], [PeerCopies, *ranked], "this machine has only one GPU"
    if devices[0].kind == "gpu":
        try:
            nccl.unique_id("gpu")
        except CudakitError as error:
            return [OneDevice, PeerCopies], ranked, str(error)
    return [OneDevice, PeerCopies, *ranked], [], ""


def rows_for(devices, problem, progress):
    """The rows of one product."""
    m, n, k = problem.shape
    gpu = devices[0].kind == "gpu"

    def new(name, rung, idea):
        subject = Subject("tensor parallel", name, rung, problem.shape, problem.dtype, idea=idea)
        return ParallelRow(subject, Rates(ceiling="one device"))

    a, b = problem.operands()
    wide, whole = [x.astype(np.float32, copy=False) for x in (a, b)], m * n * k <= LARGEST_ON_HOST
    begin = time.perf_counter()
    plain = (wide[0] @ wide[1])[problem.sample] if whole else wide[0][problem.sample] @ wide[1]
    took = (time.perf_counter() - begin) * 1e3
    columns = problem.sampled_columns
    some = a[problem.sample], np.ascontiguousarray(b[:, columns])
    exact = some[0].astype(np.float64) @ some[1].astype(np.float64)
    family = ops.families()["gemm" if problem.dtype == "float32" else "gemm_half"]
    rounding = family.allowed(exact, some)
    cpu = new("cpu", None, "numpy on the host" + ("" if problem.dtype == "float32" else ", in float32"))
    cpu.judge(within(plain[:, columns].astype(a.dtype, copy=False), exact, rounding))
    if whole:
        cpu.timed(Spread.of([took]))
    del plain, wide, some
    kinds, skipped, why = ways(devices, problem)
    rows, made, working, times = [cpu], [], [], {}
    try:
        for kind in kinds:
            progress.print(f"{shape_text(problem.shape)} {problem.dtype}: {kind.idea}", highlight=False)
            rows.append(row := new(kind.name_for(problem.count), 1 if kind is OneDevice else 2, kind.idea))
            try:
                made.append(way := kind(problem, devices, a, b))
                way.poison()
                way.run()
                samples = way.samples()
            except CudakitError as error:
                row.fail(str(error))
                continue
            for sample in samples:
                if row.ok is not False:
                    row.judge(within(sample[:, columns], exact, rounding))
            working.append(way)
        del a, b
        for _ in range(ROUNDS if gpu else 0):
            for way in working:
                time.sleep(REST_S)
                way.run()
                count = max(2, min(20, int(BUDGET_S * 1e3 / min(measured(way.run, 2)))))
                taken = way.times(count) if isinstance(way, Processes) else measured(way.run, count)
                times.setdefault(way.name_for(problem.count), []).append(float(np.median(taken)))
        if gpu and problem.count > 1:
            copies = next(way for way in made if isinstance(way, PeerCopies))
            parts = [float(np.median(measured(part, 6)[1:])) for part in (copies.products, copies.exchange)]
        for row in rows[1:] if gpu else ():
            if row.ok:
                row.rounds_ms = times[row.subject.variant]
                row.timed(Spread.of(row.rounds_ms), flops=2 * m * n * k)
                row.speedup = float(np.median(times["1 device"])) / row.times.device.median
                if row.subject.rung == 2:
                    row.products_ms, row.exchange_ms = parts
                    row.bound_ms = max(parts)
                    row.of_bound = row.bound_ms / row.times.device.median
                    row.subject.idea += f"; {row.speedup:.2f} times one device, {row.of_bound:.0%} of the bound"
    finally:
        for way in made:
            way.close()
    for kind in skipped:
        rows.append(new(kind.name_for(max(problem.count, 2)), 2, kind.idea))
        rows[-1].skip(why)
    return rows


def problem_of(shape, devices, arguments):
    if len(shape) not in (1, 3) or 0 in shape:
        raise Refused(f"{shape_text(shape)} is not a product: write N or MxNxK")
    m, n, k = shape * 3 if len(shape) == 1 else shape
    if n < len(devices):
        raise Refused(f"{shape_text(shape)} has fewer columns than there are devices, {len(devices)}")
    blocks = parallel.row_blocks(m, arguments.blocks)
    return Problem(
        (m, n, k), arguments.dtype, len(devices), blocks, arguments.variant, arguments.max_ctas, arguments.zero_ctas
    )


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, progress = cli.consoles(arguments)
    devices = cli.open_devices(arguments.device, arguments.devices)
    try:
        for one, other in itertools.permutations(devices, 2):
            one.enable_peer(other)
        report = BenchReport(devices[0].info() | {"count": len(devices)})
        gpu = devices[0].kind == "gpu"
        for shape in arguments.shapes or [(8192,) if gpu else (24, 20, 16)]:
            report.rows += rows_for(devices, problem_of(shape, devices, arguments), progress)
    finally:
        for device in reversed(devices):
            device.close()
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument(
        "--shapes", type=cli.parse_shapes, metavar="S,...", help="products, such as 8192 or 4096x8192x512"
    )
    parser.add_argument("--devices", type=cli.positive, metavar="N", help="devices (default: all; 2 simulated ones)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="dtype of the operands and the result")
    parser.add_argument(
        "--blocks",
        type=cli.positive,
        default=parallel.BLOCKS,
        metavar="N",
        help="blocks of rows (default: %(default)s)",
    )
    parser.add_argument("--variant", default="auto", help="the variant of ops.gemm (default: %(default)s)")
    parser.add_argument("--max-ctas", type=cli.positive, metavar="N", help="thread blocks per call of NCCL, at most")
    parser.add_argument("--zero-ctas", action="store_true", help="let the copy engines do NCCL's all-gather")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
