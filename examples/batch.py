"""A batch of matrices, C[m] = A[m] + B[m]: one launch per matrix, compared with one launch for the batch.

A matrix of 256x256 keeps a large chip busy for about as long as its launch takes, so a thousand launches are limited by
the host. The single launch maps matrices to the grid's z axis. Large batches reach two limits: a grid has at most
65,535 blocks along z, so a block loops over every 65,535th matrix; and 32,768 matrices have 2^31 elements, so offsets
are 64-bit.

    python examples/batch.py
    python examples/batch.py --shapes 1000x256x256,70000x16x16 --json -
"""

import argparse
import functools
import sys

import numpy as np

from cudakit.commands import cli, ladder
from cudakit.compare import within
from cudakit.errors import Refused
from cudakit.families.matrix_add import FAMILY
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import GpuTimer, wall_clock
from cudakit.shapes import shape_text
from cudakit.show import outputs


def prepared(device, name, a, b, c):
    """Prepare the launches of variant `name` for the batch: one, or one per matrix if the variant takes single
    matrices."""
    variant = FAMILY[name]
    parts = [(a, b, c)]
    if variant.refusal(FAMILY.problem_of((a, b), c), device.arch) is not None:
        parts = [(a[m], b[m], c[m]) for m in range(len(c))]
    plans = []
    for x, y, z in parts:
        problem = FAMILY.problem_of((x, y), z)
        (launch,) = variant.launches(problem)
        kernel = FAMILY.kernel(device, variant, launch)
        plans.append(kernel.prepare(**FAMILY.keywords(launch, kernel, problem, (x, y), z, None)))
    return plans


def launch_all(plans, stream):
    for plan in plans:
        plan.launch(stream)


def measure(device, stream, shape):
    rng = np.random.default_rng(0)
    hosts = FAMILY.inputs_for(shape, np.float32, rng)
    exact = FAMILY.exact(hosts)
    rounding = FAMILY.allowed(exact, hosts)
    cpu = Row(Subject("batch", "cpu", None, shape, "float32", idea="numpy on the host"))
    cpu.judge(within(FAMILY.baseline_of(hosts), exact, rounding))
    cpu.timed(wall_clock(lambda: FAMILY.baseline_of(hosts)))
    yield cpu
    a, b = (device.array(host, stream=stream) for host in hosts)
    for rung, (name, idea) in enumerate(
        (
            ("many_blocks", f"{shape[0]:,} launches, one per matrix"),
            ("batched", "one launch, z of the grid is the matrix"),
            ("flat_vec4", "one launch, the batch as one vector"),
        ),
        1,
    ):
        row = Row(Subject("batch", name, rung, shape, "float32", idea=idea))
        c = device.full(shape, np.nan, np.float32, stream=stream)
        work = functools.partial(launch_all, prepared(device, name, a, b, c), stream)
        if device.kind == "sim":
            with device.counters() as counters:
                work()
            (counted,) = counters.values()
            row.counters = counted.as_dict()
        else:
            work()
        row.judge(within(c.numpy(stream), exact, rounding))
        if device.kind == "gpu" and row.ok:
            # A thousand launches fill the queue, so the GPU waits for the host: measured with the host's clock.
            host = wall_clock(lambda work=work: (work(), stream.synchronize()))
            spread = host if name == "many_blocks" else GpuTimer(device, stream).time([work])
            row.timed(spread, traffic=12 * c.size)
            row.times.end_to_end = host.median
        yield row


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        report = BenchReport(device.info())
        for shape in arguments.shapes or ([(1000, 256, 256)] if device.kind == "gpu" else [(50, 32, 32)]):
            if len(shape) != 3 or 0 in shape:
                raise Refused(f"{shape_text(shape)} is not a batch: write MATRICESxROWSxCOLS")
            report.rows += measure(device, stream, shape)
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--shapes", type=cli.parse_shapes, metavar="S,...", help="batches, such as 1000x256x256")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
