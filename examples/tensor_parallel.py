"""One product on several GPUs: each device has some columns of B, and sends its part of C to the others.

Every device holds A and its own columns of B and computes its columns of C. It copies the other devices' columns, one
block of rows at a time, while the next block is being multiplied; at the end all devices hold all of C (an all-gather).
If the devices have a direct link, the copies use it, without the host. Each device has two streams, one for products
and one for copies; events order them, and the host waits once.

    python examples/tensor_parallel.py
    python examples/tensor_parallel.py --shapes 8192,16384x8192x4096 --devices 4
"""

import argparse
import itertools
import sys

import numpy as np

from cudakit import ops
from cudakit.commands import cli, ladder
from cudakit.compare import within
from cudakit.errors import Refused
from cudakit.families.gemm import FAMILY
from cudakit.measure.rows import BenchReport, Rates, Row, Subject
from cudakit.measure.timing import wall_clock
from cudakit.shapes import shape_text
from cudakit.show import outputs

BLOCKS = 4  # blocks of rows: the copies of one overlap the product of the next


class Shard:
    """One device, with its columns of the product and memory for all of the product."""

    def __init__(self, device, a, b, columns):
        self.columns, self.device = columns, device
        self.work, self.take = device.stream(), device.stream()
        self.a, self.b = device.array(a, stream=self.work), device.array(b[:, columns], stream=self.work)
        self.own = device.empty((len(a), self.b.shape[1]), np.float32, self.work)
        self.whole = device.full((len(a), b.shape[1]), np.nan, np.float32, stream=self.work)
        self.work.synchronize()


def step(shards, blocks):
    """Queue the product on all devices, and the copies of each part to all other devices."""
    for rows in blocks:
        for shard in shards:
            ops.gemm(shard.a[rows], shard.b, shard.own[rows], stream=shard.work)
            done = shard.work.record(timing=False)
            for other in shards:
                other.take.wait(done)
        for shard, other in itertools.product(shards, shards):
            other.whole[rows, shard.columns].copy_from(shard.own[rows], other.take)
    for shard, other in itertools.product(shards, shards):
        shard.work.wait(other.take)  # the next product must not overwrite data that is still being copied


def finish(shards):
    for shard in shards:
        shard.work.synchronize()


def rows_for(devices, shape):
    """The rows of the CPU and of each number of devices."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32)
    plain = a @ b
    # A sample of rows in float64: all of a large product would take minutes on the host.
    sample = np.unique(np.linspace(0, m - 1, 64).astype(int))
    exact = a[sample].astype(np.float64) @ b.astype(np.float64)
    cpu = Row(Subject("tensor parallel", "cpu", None, shape, "float32", idea="numpy on the host"))
    rounding = FAMILY.allowed(exact, (a[sample], b))
    cpu.judge(within(plain[sample], exact, rounding))
    cpu.timed(wall_clock(lambda: a @ b, most=2))
    yield cpu
    block = -(-m // BLOCKS)
    blocks = [slice(first, min(first + block, m)) for first in range(0, m, block)]
    for count in range(1, len(devices) + 1):
        used = devices[:count]
        cuts = [n * i // count for i in range(count + 1)]
        shards = [Shard(d, a, b, slice(*ends)) for d, ends in zip(used, itertools.pairwise(cuts), strict=True)]
        idea = "the whole product" if count == 1 else f"{count} shards of columns, gathered on every device"
        name = f"{count} device{'s' * (count > 1)}"
        row = Row(Subject("tensor parallel", name, count, shape, "float32", idea=idea), Rates(ceiling="one device"))
        step(shards, blocks)
        for shard in shards:
            verdict = within(shard.whole.numpy(shard.work)[sample], exact, rounding)
            if row.ok is not False:
                row.judge(verdict)
        if used[0].kind == "gpu" and row.ok:
            spread = wall_clock(lambda s=shards: (step(s, blocks), finish(s)), budget_s=1.0, most=30)
            row.timed(spread, flops=2 * m * n * k)
        yield row


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    devices = cli.open_devices(arguments.device, arguments.devices)
    try:
        for one, other in itertools.permutations(devices, 2):
            one.enable_peer(other)
        report = BenchReport(devices[0].info() | {"count": len(devices)})
        gpu = devices[0].kind == "gpu"
        for shape in arguments.shapes or [(8192,) if gpu else (24, 20, 16)]:
            if len(shape) not in (1, 3) or 0 in shape:
                raise Refused(f"{shape_text(shape)} is not a product: write N or MxNxK")
            report.rows += rows_for(devices, shape * 3 if len(shape) == 1 else shape)
        if gpu and len(devices) == 1:
            row = Row(Subject("tensor parallel", "2 devices", 2, report.rows[-1].subject.shape, "float32"))
            row.skip("this machine has only one GPU")
            report.rows.append(row)
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
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
