"""NVIDIA's libraries from Python: BLAS levels 1 to 3 checked against numpy, sgemm compared with our own kernels, and
the accuracy of half precision.

cuBLAS is column-major and reads a row-major array as its transpose. So D = A @ B is requested as D^T = B^T @ A^T: B is
the first argument, then A. With A first the result is B @ A, and for square matrices there is no error.
`blas.gemm(a, b)` orders the arguments itself, for any layout of its arrays.

Sums of float16 products can be float16, which loses digits in every addition, or float32, which rounds only at the end.
BLAS's amax is the index of the largest |x|, counted from 1, not of the largest x: a softmax that uses it as the maximum
overflows for rows with a large negative number.

On the simulated device numpy replaces cuBLAS, in the same precision.

    python examples/libraries.py
    python examples/libraries.py --shapes 1024,4096 --json -
"""

import argparse
import sys

import numpy as np

from cudakit import libs
from cudakit.commands import cli, ladder
from cudakit.compare import within
from cudakit.errors import Refused
from cudakit.families import gemm_half
from cudakit.families.gemm import FAMILY, gemm
from cudakit.libs import blas
from cudakit.libs.host_blas import solve
from cudakit.measure.ceilings import fp32_peak
from cudakit.measure.rows import BenchReport, Rates, Row, Subject
from cudakit.measure.timing import GpuTimer, wall_clock
from cudakit.memory.array import as_dtype
from cudakit.rounding import U, of_chain, of_products, of_tree
from cudakit.shapes import shape_text
from cudakit.show import outputs

SAMPLED = 16  # rows whose float16 sums are computed on the host
BATCH = 8


class Rows:
    """The rows of one table: each call is checked, then timed on a GPU."""

    def __init__(self, device, stream, family, shape, ceiling="cublas"):
        self.device, self.stream, self.family, self.shape, self.ceiling = device, stream, family, shape, ceiling
        self.library = libs.library(device)
        self.rows = []

    def cpu(self, idea, work, exact, rounding):
        """Add the row of numpy's `work`, which returns its result."""
        row = Row(Subject(self.family, "cpu", None, self.shape, "float32", idea=idea), Rates(ceiling=self.ceiling))
        row.judge(within(np.atleast_1d(work()), np.atleast_1d(exact), rounding))
        row.timed(wall_clock(work))
        self.rows.append(row)

    def call(
        self, name, idea, call, exact, rounding, *, rung=None, dtype="float32", flops=None, traffic=None, counted=False
    ):
        """Add a row for `call`, which queues work and returns the array with its result. exact: float64; rounding: each
        element's allowed error before its last rounding."""
        row = Row(Subject(self.family, name, rung, self.shape, dtype, idea=idea), Rates(ceiling=self.ceiling))
        self.rows.append(row)
        if counted and self.device.kind == "sim":
            with self.device.counters() as counters:
                out = call()
                self.stream.synchronize()
            (counts,) = counters.values()
            row.counters = counts.as_dict()
        else:
            out = call()
        got = out.numpy(self.stream)
        if got.dtype.kind == "c":  # real and imaginary parts are checked separately
            got, exact, rounding = (np.ascontiguousarray(part).view(part.real.dtype) for part in (got, exact, rounding))
        row.judge(within(np.atleast_1d(got), np.atleast_1d(exact), rounding))
        if self.device.kind == "gpu" and row.ok:
            row.timed(GpuTimer(self.device, self.stream).time([call]), traffic=traffic, flops=flops)
        return row


def vectors(device, stream, n):
    """Level 1: calls on vectors, which are memory-bound."""
    count = n * n
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal(count, dtype=np.float32) for _ in range(2))
    x[count // 2] = -100.0  # the largest |x|, and the smallest x
    a, b = (device.array(host, stream=stream) for host in (x, y))
    rows = Rows(device, stream, "level 1", (count,), "copy")
    wide = x.astype(np.float64)
    dots = np.dot(wide, y), of_products(wide * y)
    # the order in which numpy's BLAS adds is unknown
    in_order = of_chain(count) * max(np.linalg.norm(wide * y), abs(dots[0]))
    rows.cpu("numpy's dot on the host", lambda: np.dot(x, y), dots[0], in_order)
    on = {"stream": stream}
    real, whole = device.empty((), np.float32, stream=stream), device.empty((), np.int32, stream=stream)
    library, of_x, sizes = rows.library, 4 * count, np.abs(wide)
    sums = sizes.sum(), of_tree(sizes)
    rows.call("asum", f"sum of |x|, {library}", lambda: blas.asum(a, real, **on), *sums, traffic=of_x)
    length = np.linalg.norm(wide)
    lengths = length, of_products(wide * wide) / (2 * length) + U * length
    rows.call("nrm2", "length of x", lambda: blas.nrm2(a, real, **on), *lengths, traffic=of_x)
    place = np.int64(np.argmax(np.abs(x)) + 1)
    idea = f"largest |x| is {x[place - 1]:g}, at {place} from 1; largest x is {x.max():.3g}"
    rows.call("amax", idea, lambda: blas.amax(a, whole, **on), place, 0, traffic=of_x)
    rows.call("dot", "sum of x * y", lambda: blas.dot(a, b, real, **on), *dots, traffic=2 * of_x)
    exact = wide * 2 + y
    rows.call("axpy", "y = 2 * x + y", lambda: blas.axpy(a, b, 2, **on), exact, 0, traffic=3 * of_x)
    rows.call("scal", "x = -x", lambda: blas.scal(a, -1, **on), -wide, 0, traffic=2 * of_x)
    return rows.rows


def matrices(device, stream, n):
    """Levels 2 and 3, except the product: a matrix and vectors, then triangles."""
    rng = np.random.default_rng(2)
    a, c = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    x, y = (rng.standard_normal(n, dtype=np.float32) for _ in range(2))
    triangle = np.tril(a) / np.float32(2 * np.sqrt(n)) + 2 * np.eye(n, dtype=np.float32)
    matrix, other, left, right, half = (device.array(host, stream=stream) for host in (a, c, x, y, triangle))
    wide_a, wide_x = a.astype(np.float64), x.astype(np.float64)
    on = {"stream": stream}

    rows = Rows(device, stream, "level 2", (n, n), "copy")
    exact = wide_a @ wide_x
    rounding = FAMILY.allowed(exact[:, None], (a, x[:, None]))[:, 0]
    rows.cpu("numpy's matrix times vector on the host", lambda: a @ x, exact, rounding)
    out = device.full((n,), np.nan, np.float32, stream=stream)
    work = {"traffic": 4 * n * n}
    rows.call("gemv", f"y = A x, {rows.library}", lambda: blas.gemv(matrix, left, out, **on), exact, rounding, **work)
    added = 2 * np.outer(y.astype(np.float64), wide_x)
    exact, rounding = c + added, U * np.abs(added)
    work = {"traffic": 8 * n * n}
    rows.call("ger", "C = C + 2 y x^T", lambda: blas.ger(right, left, other, alpha=2, **on), exact, rounding, **work)
    yield from rows.rows

    rows = Rows(device, stream, "level 3", (n, n))
    exact = wide_a @ wide_a.T
    rounding = FAMILY.allowed(exact, (a, a.T))
    rows.cpu("numpy's A A^T on the host", lambda: a @ a.T, exact, rounding)
    square, work = device.zeros((n, n), stream=stream), {"flops": n * n * (n + 1)}
    lower = np.tril(exact), np.tril(rounding)
    rows.call("syrk", f"lower half of A A^T, {rows.library}", lambda: blas.syrk(matrix, square, **on), *lower, **work)
    exact = solve(triangle.astype(np.float64), wide_a, lower=True)
    # the inverse of L propagates the error of each sum down its column
    carried = np.abs(solve(triangle.astype(np.float64), np.eye(n), lower=True)) @ np.abs(triangle) @ np.abs(exact)
    rounding = of_chain(n) * carried
    rows.call("trsm", "the X of L X = A", lambda: blas.trsm(half, matrix, **on), exact, rounding, flops=n * n * n)
    yield from rows.rows


def products(device, stream, n):
    """sgemm and our own kernels: naive, tiled, and the variant picked by "auto"."""
    hosts = FAMILY.inputs_for((n, n, n), np.float32, np.random.default_rng(3))
    exact = FAMILY.exact(hosts)
    rounding = FAMILY.allowed(exact, hosts)
    a, b = (device.array(host, stream=stream) for host in hosts)
    rows = Rows(device, stream, "sgemm", (n, n, n))
    rows.cpu("numpy on the host", lambda: FAMILY.baseline_of(hosts), exact, rounding)
    out = device.full((n, n), np.nan, np.float32, stream=stream)
    work = {"flops": 2 * n**3}
    library = rows.call(
        "cublas",
        f"{rows.library}, B first",
        lambda: blas.gemm(a, b, out, stream=stream),
        exact,
        rounding,
        rung=0,
        **work,
    )
    ideas = {"naive": "one thread per output", "tiled32": "tiles in shared memory", "auto": "our best variant"}
    for rung, (variant, idea) in enumerate(ideas.items(), 1):
        out.fill(np.nan, stream)
        row = rows.call(
            variant, idea, lambda variant=variant: gemm(a, b, out, variant=variant, stream=stream), exact, rounding,
            rung=rung, counted=True, **work,
        )  # fmt: skip
        if row.rates.tflops and library.rates.tflops:
            row.rates.of_ceiling = row.rates.tflops / library.rates.tflops
    if library.rates.tflops:
        library.rates.of_ceiling = 1.0
    return rows.rows


def mixed(device, stream, n):
    """Mixed precision: float16 with float16 and float32 sums, bfloat16, TF32, float32."""
    rng = np.random.default_rng(4)
    k = 4 * n
    wide_a, wide_b = rng.uniform(0, 1, (n, k)), rng.uniform(0, 1, (k, n))  # all positive: rounding errors cannot cancel
    rows = Rows(device, stream, "mixed precision", (n, n, k))
    single = wide_a.astype(np.float32), wide_b.astype(np.float32)
    exact = single[0].astype(np.float64) @ single[1].astype(np.float64)
    rows.cpu("numpy in float32", lambda: single[0] @ single[1], exact, FAMILY.allowed(exact, single))
    for name, dtype, compute, result in (
        ("float16, float16 sums", "float16", "float16", "float16"),
        ("float16, float32 sums", "float16", "float32", "float16"),
        ("float16 to float32", "float16", "float32", "float32"),
        ("bfloat16 to float32", "bfloat16", "float32", "float32"),
        ("tf32", "float32", "tf32", "float32"),
        ("float32", "float32", "float32", "float32"),
    ):
        kind = as_dtype(dtype)
        hosts = wide_a.astype(kind), wide_b.astype(kind)
        exact = hosts[0].astype(np.float64) @ hosts[1].astype(np.float64)
        a, b = (device.array(host, stream=stream) for host in hosts)
        out = device.full((n, n), np.nan, result, stream=stream)
        row = rows.call(
            name, "",
            lambda a=a, b=b, out=out, compute=compute: blas.gemm(a, b, out, compute=compute, stream=stream),
            exact, rounding_of(hosts, exact, compute), dtype=dtype, flops=2 * n * n * k,
        )  # fmt: skip
        row.subject.idea = f"relative error {row.verdict.max_rel_error:.1e} against float64"
    return rows.rows


def rounding_of(hosts, exact, compute):
    """The allowed rounding of sums in `compute`; for float16, the largest error of some rows."""
    if compute == "float16":
        sums = np.zeros((min(SAMPLED, len(exact)), exact.shape[1]), np.float16)
        for a, b in zip(hosts[0][: len(sums)].T, hosts[1], strict=True):
            sums += np.multiply.outer(a, b)
        return 2 * np.abs(sums - exact[: len(sums)]).max()
    if hosts[0].dtype != np.float32:
        return gemm_half.FAMILY.allowed(exact, hosts)
    rounding = FAMILY.allowed(exact, hosts)
    # TF32 operands have 11 bits: a product has two errors of half a unit in the last place, twice that if truncated
    return rounding + 2.0**-10 * np.abs(exact) if compute == "tf32" else rounding


def batches(device, stream, n):
    """Many small products in one call: at a fixed stride, anywhere in memory, complex."""
    rng = np.random.default_rng(5)
    size = max(n // 8, 4)
    shape = (BATCH, size, size)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for _ in range(2))
    exact = FAMILY.exact((a, b))
    rounding = FAMILY.allowed(exact, (a, b))
    left, right = device.array(a, stream=stream), device.array(b, stream=stream)
    rows = Rows(device, stream, "batched", (*shape, size))
    rows.cpu("numpy on the host", lambda: a @ b, exact, rounding)
    out = device.full(shape, np.nan, np.float32, stream=stream)
    work = {"flops": 2 * BATCH * size**3}
    name = f"at a fixed stride, {rows.library}"
    rows.call("strided", name, lambda: blas.gemm(left, right, out, stream=stream), exact, rounding, **work)
    out.fill(np.nan, stream)
    lists = [[array[i] for i in reversed(range(BATCH))] for array in (left, right, out)]

    def scattered():
        blas.gemm(*lists, stream=stream)
        return out

    rows.call("list", "by a table of addresses", scattered, exact, rounding, **work)
    turned = rng.standard_normal((2, *shape), dtype=np.float32)
    c, d = a + 1j * turned[0], b + 1j * turned[1]
    parts = (
        (np.concatenate((c.real, -c.imag), -1), np.concatenate((d.real, d.imag), -2)),
        (np.concatenate((c.real, c.imag), -1), np.concatenate((d.imag, d.real), -2)),
    )
    real, imaginary = (FAMILY.allowed(FAMILY.exact(part), part) for part in parts)
    rounding = real + 1j * imaginary
    exact = c.astype(np.complex128) @ d.astype(np.complex128)
    first, second = device.array(c, stream=stream), device.array(d, stream=stream)
    result = device.full(shape, np.nan, np.complex64, stream=stream)
    rows.call(
        "complex", "complex64, 8 bytes per element", lambda: blas.gemm(first, second, result, stream=stream), exact,
        rounding, dtype="complex64", flops=8 * BATCH * size**3,
    )  # fmt: skip
    return rows.rows


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        report = BenchReport(device.info(), ceilings={"library": libs.library(device)})
        if device.kind == "gpu":
            report.ceilings["fp32_tflops"] = fp32_peak(device)
        for shape in arguments.shapes or [(1024,) if device.kind == "gpu" else (64,)]:
            if len(shape) != 1 or shape[0] < 2:
                raise Refused(f"{shape_text(shape)}: write N, at least 2, the size of square matrices")
            for part in (vectors, matrices, products, mixed, batches):
                report.rows += part(device, stream, *shape)
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--shapes", type=cli.parse_shapes, metavar="N,...", help="sizes of square matrices")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
