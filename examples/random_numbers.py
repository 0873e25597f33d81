"""Random matrices generated on the device. Element i of a stream depends only on the seed and i, so a set far larger
than the device's memory is generated chunk by chunk in one buffer, and any chunk can be generated again separately.

    python examples/random_numbers.py
    python examples/random_numbers.py --count 100000 --size 1024
"""

import argparse
import sys
import time

import numpy as np

from cudakit import ops
from cudakit.commands import cli, ladder
from cudakit.families.random import UNIFORM
from cudakit.measure.rows import BenchReport, Row, Subject, Verdict
from cudakit.measure.timing import Spread
from cudakit.show import outputs

CHUNK_BYTES = 1 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--count", type=int, help="number of matrices (default: 2,000; 4 on the simulated device)")
    parser.add_argument("--size", type=int, help="rows and columns (default: 1,024; 64 on the simulated device)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    outputs.check_destination("--json", arguments.json)
    with cli.open_device(arguments.device) as device:
        gpu = device.kind == "gpu"
        count, size = arguments.count or (2000 if gpu else 4), arguments.size or (1024 if gpu else 64)
        each = size * size
        chunk = max(1, min(count, CHUNK_BYTES // (4 * each)))
        matrices = device.empty((chunk, size, size), np.float32)
        shape, idea = (count, size, size), f"{chunk} matrices per chunk"
        row = Row(Subject("uniform", "counter_per_thread", 2, shape, "float32", idea=idea))

        def make(first: int) -> int:
            """Generate the chunk that begins with matrix `first`; return its number of matrices."""
            here = min(chunk, count - first)
            ops.uniform(out=matrices[:here], seed=arguments.seed, offset=first * each)
            return here

        make(0)  # compiles
        device.synchronize()
        begin = time.perf_counter()
        for first in range(0, count, chunk):
            last = make(first)
        device.synchronize()
        seconds = time.perf_counter() - begin

        # the last matrix, generated separately and by numpy
        where = (count - 1) * each
        last_one = matrices[last - 1].numpy()
        expected = UNIFORM.baseline_of([last_one], seed=arguments.seed, offset=where)
        row.verdict.ok = last_one.tobytes() == expected.tobytes()
        row.verdict.max_abs_error = float(np.abs(last_one - expected).max())
        row.verdict.max_rel_error = 0.0 if row.ok else 1.0
        if gpu:
            row.timed(Spread.of([seconds * 1e3]), traffic=4 * each * count)
        cpu = Row(Subject("uniform", "cpu", None, (1, size, size), "float32", idea="numpy.random, one matrix"))
        cpu.verdict = Verdict(ok=True, max_abs_error=0.0, max_rel_error=0.0)
        begin = time.perf_counter()
        np.random.default_rng(1).random((size, size), np.float32)
        spent = time.perf_counter() - begin
        cpu.timed(Spread.of([spent * 1e3]), traffic=4 * each)
        report = BenchReport(device.info(), rows=[cpu, row])
        matrices.close()
    table, _ = cli.consoles(arguments)
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    sys.exit(cli.guarded(main))
