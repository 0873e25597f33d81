"""Random matrices generated on the device: 100,000 of 1024x1024, 419 GB in all, through a ring of buffers, in three
ways: only generated; each reduced to its sum and its sum of squares; and multiplied in pairs, in float16 with float32
sums, by cuBLAS.

Element i of a stream of numbers depends only on the seed and i, so a set far larger than the device's memory is
generated chunk by chunk, and any chunk can be generated again separately. Each buffer of the ring has its own stream,
so that the steps of different chunks can overlap. Sums of all matrices and of all products are compared with the values
expected of the uniform distribution; the first, the middle and the last product are computed again by numpy.

    python examples/random_numbers.py
    python examples/random_numbers.py --count 2000 --size 512 --buffers 2 --chunk 100
"""

import argparse
import contextlib
import math
import sys
from dataclasses import dataclass

import numpy as np

from cudakit import libs, ops
from cudakit.commands import cli, ladder
from cudakit.compare import within
from cudakit.families import gemm_half
from cudakit.families.random import UNIFORM
from cudakit.libs import blas
from cudakit.measure.ceilings import large_copy_ceiling
from cudakit.measure.rows import BenchReport, Rates, Row, Subject, Verdict
from cudakit.measure.timing import GpuTimer, wall_clock
from cudakit.show import outputs

CHUNK_BYTES = 1 << 30  # of float32 matrices

PARTS = 16  # blocks that share a matrix in moments

SOURCE = """
// sums[2 * i], sums[2 * i + 1]: the sum, and the sum of squares, of the share of block i, of PARTS blocks per matrix of
// `each` floats. grid: matrices * PARTS, block: 256
template <int PARTS>
__global__ void __launch_bounds__(256) moments(const float* x, double* sums, long long each) {
    constexpr int kWarps = 8;
    __shared__ double partial[2][kWarps];
    x += blockIdx.x / PARTS * each;
    const int first = blockIdx.x % PARTS * 256 + threadIdx.x;
    float sum = 0.0f, squares = 0.0f;
    const auto add = [&](float value) { sum += value, squares = fmaf(value, value, squares); };
    const long long fours = each % 4 ? 0 : each / 4;  // matrices are 16-byte aligned if `each` is a multiple of 4
#pragma unroll 4
    for (long long i = first; i < fours; i += 256 * PARTS) {
        const float4 four = reinterpret_cast<const float4*>(x)[i];
        add(four.x), add(four.y), add(four.z), add(four.w);
    }
    for (long long i = 4 * fours + first; i < each; i += 256 * PARTS) add(x[i]);
    double both[2] = {sum, squares};
    for (int k = 0; k < 2; ++k) {
        for (int step = 16; step > 0; step /= 2) both[k] += __shfl_down_sync(0xffffffff, both[k], step);
        if (threadIdx.x % 32 == 0) partial[k][threadIdx.x / 32] = both[k];
    }
    __syncthreads();
    if (threadIdx.x < 2) {
        double whole = 0.0;
        for (int warp = 0; warp < kWarps; ++warp) whole += partial[threadIdx.x][warp];
        sums[2 * blockIdx.x + threadIdx.x] = whole;
    }
}
"""


@dataclass
class StagedRow(Row):
    """A row with the milliseconds of each stage alone, for all chunks, and the statistics of the results: for each sum
    the mean and the variance of its standard scores (0 and 1 are expected), and the largest one."""

    stages_ms: dict | None = None
    statistics: dict | None = None


class Buffers:
    """The buffers of one chunk, and their stream."""

    def __init__(self, device, chunk, size, stream):
        self.stream = stream
        self.matrices = device.empty((chunk, size, size), np.float32, stream=stream)
        self.halves = device.empty((chunk, size, size), np.float16, stream=stream)
        self.products = device.empty((max(chunk // 2, 1), size, size), np.float32, stream=stream)


class Job:
    """`count` matrices of size x size in chunks, which use the buffers of the ring in turns."""

    def __init__(self, device, streams, count, size, chunk, seed):
        self.device, self.count, self.size, self.chunk, self.seed = device, count, size, chunk, seed
        self.each, self.pairs = size * size, count // 2
        self.ring = [Buffers(device, chunk, size, stream) for stream in streams]
        self.sums = device.full((count, PARTS, 2), np.nan, np.float64)
        self.product_sums = device.full((max(self.pairs, 1), PARTS, 2), np.nan, np.float64)
        self.samples = sorted({0, self.pairs // 2, self.pairs - 1}) if self.pairs else []
        self.kept = device.full((max(len(self.samples), 1), size, size), np.nan, np.float32)
        entry = f"moments<{PARTS}>"
        self.kernel = device.compile(source=SOURCE, name="moments.cu", names=[entry])[entry]
        device.synchronize()  # the fills are on another stream

    def chunks(self):
        """Yield the first matrix of each chunk, the number of its matrices, and its buffers."""
        for number, first in enumerate(range(0, self.count, self.chunk)):
            yield first, min(self.chunk, self.count - first), self.ring[number % len(self.ring)]

    def generate(self, first, here, buffers):
        ops.uniform(out=buffers.matrices[:here], seed=self.seed, offset=first * self.each, stream=buffers.stream)

    def reduce(self, first, here, buffers):
        args = (buffers.matrices, self.sums[first:], self.each)
        self.kernel.launch(buffers.stream, grid=here * PARTS, block=256, args=args)

    def cast(self, first, here, buffers):
        ops.cast(buffers.matrices[:here], "float16", out=buffers.halves[:here], stream=buffers.stream)

    def multiply(self, first, here, buffers):
        """Multiply matrices 2 i and 2 i + 1 of the chunk."""
        pairs = here // 2
        if pairs:
            halves = buffers.halves[: 2 * pairs]
            blas.gemm(halves[0::2], halves[1::2], buffers.products[:pairs], stream=buffers.stream)

    def reduce_products(self, first, here, buffers):
        """Reduce each product, and keep a copy of the samples among them."""
        pairs, before = here // 2, first // 2
        if pairs:
            args = (buffers.products, self.product_sums[before:], self.each)
            self.kernel.launch(buffers.stream, grid=pairs * PARTS, block=256, args=args)
        for place, sample in enumerate(self.samples):
            if before <= sample < before + pairs:
                self.kept[place].copy_from(buffers.products[sample - before], buffers.stream)

    def run(self, *stages):
        """Run the stages on every chunk, and wait for the results."""
        for chunk in self.chunks():
            for stage in stages:
                stage(*chunk)
        for buffers in self.ring:
            buffers.stream.synchronize()

    def matrix(self, number):
        """Return a matrix, generated by numpy."""
        like = np.empty((self.size, self.size), np.float32)
        return UNIFORM.baseline_of([like], seed=self.seed, offset=number * self.each)

    def alone(self, *stages):
        """Return milliseconds for all chunks of each stage on one chunk, timed alone."""
        buffers, here = self.ring[0], min(self.chunk, self.count)
        timer = GpuTimer(self.device, buffers.stream)
        return {
            stage.__name__: timer.time([lambda stage=stage: stage(0, here, buffers)]).median * self.count / here
            for stage in stages
        }


def scores(sums, mean, deviation):
    """Return the statistics of sums with this expected mean and standard deviation, and what is wrong with them."""
    z = (sums - mean) / deviation
    found = {"mean": float(z.mean()), "variance": float((z * z).mean()), "largest": float(np.abs(z).max())}
    wrong = []
    if not abs(found["mean"]) * math.sqrt(z.size) < 6:
        wrong.append(f"the mean score of {z.size} sums is {found['mean']:.3g}, expected 0")
    if z.size >= 100 and not abs(found["variance"] - 1) < 6 * math.sqrt(2 / z.size):
        wrong.append(f"the variance of the scores of {z.size} sums is {found['variance']:.3g}, expected 1")
    if not found["largest"] < 7.5:
        wrong.append(f"a sum is {found['largest']:.3g} standard deviations from its expected value")
    return found, wrong


def check_last(job, row):
    """Compare the last matrix with numpy's."""
    *_, (first, here, buffers) = job.chunks()
    got, expected = buffers.matrices[here - 1].numpy(buffers.stream), job.matrix(first + here - 1)
    same = got.tobytes() == expected.tobytes()
    row.verdict = Verdict(
        ok=same, max_abs_error=float(np.abs(got - expected).max()), max_rel_error=0.0 if same else 1.0
    )


def check_sums(job, row):
    """Compare the sums of all matrices with the distribution, and those of the last one with numpy's."""
    sums, n = job.sums.numpy().sum(axis=1), job.each
    of_sums, wrong = scores(sums[:, 0], n / 2, math.sqrt(n / 12))
    of_squares, more = scores(sums[:, 1], n / 3, math.sqrt(4 * n / 45))
    row.statistics = {"sums": of_sums, "squares": of_squares}
    last = job.matrix(job.count - 1).astype(np.float64)
    row.judge(within(sums[-1], np.array([last.sum(), (last * last).sum()]), 1e-5 * n))
    if wrong or more:
        row.fail("; ".join(wrong + more))


def check_products(job, row):
    """Compare the samples with numpy's products, and the sums of all products with the distribution."""
    n = job.size
    worst = None
    for place, sample in enumerate(job.samples):
        hosts = [job.matrix(2 * sample + side).astype(np.float16) for side in range(2)]
        exact = hosts[0].astype(np.float64) @ hosts[1].astype(np.float64)
        verdict = within(job.kept[place].numpy(), exact, gemm_half.FAMILY.allowed(exact, hosts))
        if worst is None or (verdict.ok, -verdict.max_abs_error) < (worst.ok, -worst.max_abs_error):
            worst = verdict
    row.judge(worst)
    # a sum over k of products of a column's sum and a row's sum, each of n uniform numbers
    of_line = n / 2, n / 12  # mean and variance
    variance = n * (2 * of_line[0] ** 2 * of_line[1] + of_line[1] ** 2)
    found, wrong = scores(job.product_sums.numpy().sum(axis=1)[:, 0], n**3 / 4, math.sqrt(variance))
    row.statistics = {"sums": found}
    if wrong:
        row.fail("; ".join(wrong))


def measure(job, ceilings):
    """Yield the rows of the three ways."""
    gpu = job.device.kind == "gpu"
    of_all = 4 * job.each * job.count  # bytes
    shape, ring = (job.count, job.size, job.size), f"{job.chunk} matrices per chunk, {len(job.ring)} buffers"
    generated = Row(Subject("uniform", "counter_per_thread", 2, shape, "float32", idea=f"only generated, {ring}"))
    idea = f"each matrix generated and reduced to two sums, {ring}"
    reduced = StagedRow(Subject("uniform", "reduced", 3, shape, "float32", idea=idea))
    idea = f"generated, cast, multiplied in pairs ({libs.library(job.device)}), each product reduced, {ring}"
    rates = Rates(ceiling="cublas")
    multiplied = StagedRow(Subject("uniform", "multiplied", 4, shape, "float16", idea=idea), rates)
    products = (job.generate, job.cast, job.multiply, job.reduce_products)
    if not job.pairs:
        multiplied.skip("a product needs two matrices, got 1: pass --count 2 or more")
    for row, check, stages, traffic, flops in (
        (generated, check_last, (job.generate,), of_all, None),
        (reduced, check_sums, (job.generate, job.reduce), 2 * of_all, None),
        (multiplied, check_products, products, None, 2 * job.size**3 * job.pairs),
    ):
        yield row
        if row.verdict.skipped:
            continue
        job.run(*stages)
        check(job, row)
        if gpu and row.ok:
            row.timed(wall_clock(lambda stages=stages: job.run(*stages), most=5, least=3), traffic=traffic, flops=flops)
            if row is not generated:
                row.stages_ms = job.alone(*stages)
            if row is multiplied:
                row.hold_against(row.stages_ms["multiply"])
                ceilings["cublas_tflops"] = flops / row.stages_ms["multiply"] / 1e9
            else:
                row.hold_against(traffic / ceilings["copy_large"]["gbps"] / 1e6)


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    with contextlib.ExitStack() as held:
        device = held.enter_context(cli.open_device(arguments.device))
        gpu = device.kind == "gpu"
        count, size = arguments.count or (100_000 if gpu else 4), arguments.size or (1024 if gpu else 64)
        each = size * size
        chunk = min(count, arguments.chunk or max(2, CHUNK_BYTES // (4 * each)))
        chunk += chunk % 2  # whole pairs
        streams = [held.enter_context(device.stream()) for _ in range(arguments.buffers)]
        ceilings = {}
        if gpu:
            ceilings["copy_large"] = large_copy_ceiling(device, GpuTimer(device, streams[0]))
        cpu = Row(Subject("uniform", "cpu", None, (1, size, size), "float32", idea="numpy.random, one matrix"))
        cpu.verdict = Verdict(ok=True, max_abs_error=0.0, max_rel_error=0.0)
        host = np.random.default_rng(1)
        cpu.timed(wall_clock(lambda: host.random((size, size), np.float32), least=5), traffic=4 * each)
        report = BenchReport(device.info(), ceilings=ceilings, rows=[cpu])
        report.rows += measure(Job(device, streams, count, size, chunk, arguments.seed), ceilings)
    table, _ = cli.consoles(arguments)
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--count", type=cli.positive, help="matrices (default: 100,000; 4 on the simulated device)")
    parser.add_argument(
        "--size", type=cli.positive, help="rows and columns (default: 1,024; 64 on the simulated device)"
    )
    parser.add_argument("--chunk", type=cli.positive, help="matrices per chunk (default: 1 GiB of them)")
    parser.add_argument("--buffers", type=cli.positive, default=3, help="buffers of the ring (default: 3)")
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
