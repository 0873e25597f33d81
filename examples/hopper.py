"""Three kernels for Hopper, in CUDA C++ with inline PTX: a copy ring, a matrix product, a softmax over clusters.

copy_ring is y = 2 x + 1: one warp loads tiles by tensor copies into a ring of buffers, with two barriers (mbarrier)
per buffer; the other warps compute, and write by tensor stores. wgmma_product is C = A B^T in bfloat16: one warpgroup
loads, two multiply by wgmma, and each block of a pair loads half of B into both. In split_softmax the blocks of a
cluster share a row, and exchange the maximum and the sum by asynchronous stores.

The kernels are in kernels/hopper, and their instructions in kernels/common/hopper.cuh. They need an sm_90a: a Hopper
GPU, or the simulated device, which reports data that is used before it has arrived, missing fences, and the other
mistakes that are easy to make here.

    python examples/hopper.py
    python examples/hopper.py --kernels wgmma_product --shapes 4096,8192x8192x1024 --json -
"""

import argparse
import math
import sys
from dataclasses import dataclass

import numpy as np
from ml_dtypes import bfloat16

from cudakit import TensorMap
from cudakit.commands import cli, ladder
from cudakit.compare import within
from cudakit.errors import Refused
from cudakit.families.gemm_half import FAMILY as PRODUCT
from cudakit.families.softmax import FAMILY as SOFTMAX
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import GpuTimer, wall_clock
from cudakit.shapes import shape_text
from cudakit.show import outputs

RING_TILE = (16, 128)
ROWS, DEPTH = 128, 64  # of wgmma_product's tiles


def round_up(number, step):
    return -(-number // step) * step


def multiprocessors(device):
    return int(device.attribute("MULTIPROCESSOR_COUNT"))


def copy_ring(device, x, y, a, b, *, tile=RING_TILE, stages=4, warps=4, blocks=None):
    """Prepare y = a * x + b for float32 arrays (rows, cols). blocks: by default four per multiprocessor."""
    entry = f"copy_ring<{tile[0]}, {tile[1]}, {stages}, {warps}>"
    kernel = device.compile("hopper/01_copy_ring.cu", names=[entry])[entry]
    tiles = math.prod(-(-size // side) for size, side in zip(x.shape, tile, strict=True))
    return kernel.prepare(
        grid=min(tiles, blocks or 4 * multiprocessors(device)),
        block=32 * (1 + warps),
        shared=(stages + 2) * math.prod(tile) * 4 + stages * 16,
        args=(TensorMap(x, box=tile), TensorMap(y, box=tile), a, b, *x.shape),
    )


def wgmma_product(device, a, b, c, *, columns=256, stages=3, blocks=None):
    """Prepare c = a @ b.T for bfloat16 arrays (m, k), (n, k) and (m, n). columns: of a block's tile, 128 or 256.
    blocks: by default one per multiprocessor; they work in pairs."""
    (m, k), n = a.shape, b.shape[0]
    entry = f"wgmma_product<{columns}, {stages}>"
    kernel = device.compile("hopper/02_wgmma_product.cu", names=[entry])[entry]
    pairs = -(-m // (2 * ROWS)) * -(-n // columns)
    maps = (
        TensorMap(a, box=(ROWS, DEPTH), swizzle="128B", l2_promotion="256B"),
        TensorMap(b, box=(columns // 2, DEPTH), swizzle="128B", l2_promotion="256B"),
        TensorMap(c, box=(64, 64), swizzle="128B"),
    )
    return kernel.prepare(
        grid=2 * min(pairs, (blocks or multiprocessors(device)) // 2),
        block=384,
        cluster=2,
        shared=stages * (ROWS + columns) * DEPTH * 2 + ROWS * columns * 2 + stages * 16,
        args=(*maps, m, n, k),
    )


def split_softmax(device, x, y, *, cluster=None, threads=512, blocks=None):
    """Prepare the softmax of each row of float32 arrays (rows, cols). cluster: blocks per row, 2 to 8; by default as
    few as leave room for two on a multiprocessor. blocks: by default two per multiprocessor."""
    rows, cols = x.shape
    if cluster is None:
        cluster = next((size for size in (2, 4) if cols <= size * 24576), 8)
    chunks = 4
    chunk = max(32, round_up(-(-round_up(-(-cols // cluster), 4) // chunks), 32))
    entry = f"split_softmax<{cluster}, {threads}, {chunks}, {chunk}>"
    kernel = device.compile("hopper/03_split_softmax.cu", names=[entry])[entry]
    return kernel.prepare(
        grid=cluster * min(rows, max(1, (blocks or 2 * multiprocessors(device)) // cluster)),
        block=threads,
        cluster=cluster,
        shared=chunks * chunk * 4 + cluster * 8 + 256 + (chunks + 2) * 8,
        args=(x, y, cols, cols, rows, cols),
    )


@dataclass(frozen=True)
class Work:
    """One kernel with its inputs and result on the host. plain: numpy's computation in float32. exact, rounding: the
    reference, and the error that rounding may cause."""

    name: str
    idea: str
    inputs: tuple
    plain: object
    prepare: object
    exact: np.ndarray
    rounding: object
    flops: float | None = None


def copying(shape, rng):
    cols = shape[1]
    if cols % 4:
        raise Refused(f"copy_ring: rows must be multiples of 16 bytes, 4 float32; got {cols} columns")
    x = rng.standard_normal(shape).astype(np.float32)
    exact = 2 * x.astype(np.float64) + 1
    return Work(
        "copy_ring", "tensor copies through a ring of tiles", (x,), lambda: 2 * x + 1,
        lambda device, x, y: copy_ring(device, x, y, 2.0, 1.0), exact, 0.0,
    )  # fmt: skip


def multiplying(shape, rng):
    m, n, k = shape
    if n % 8 or k % 8:
        raise Refused(f"wgmma_product: rows must be multiples of 16 bytes, 8 bfloat16; got n = {n}, k = {k}")
    a, b = (rng.standard_normal(size).astype(bfloat16) for size in ((m, k), (n, k)))
    exact = PRODUCT.exact((a, b.T))
    return Work(
        "wgmma_product", "wgmma, a pair of blocks shares B", (a, b), lambda: PRODUCT.baseline_of((a, b.T)),
        wgmma_product, exact, PRODUCT.allowed(exact, (a, b.T)), 2 * m * n * k,
    )  # fmt: skip


def normalising(shape, rng):
    cols = shape[1]
    if cols % 4:
        raise Refused(f"split_softmax: rows must be multiples of 16 bytes, 4 float32; got {cols} columns")
    x = rng.standard_normal(shape).astype(np.float32)
    exact = SOFTMAX.exact((x,))
    return Work(
        "split_softmax", "a cluster per row, asynchronous stores", (x,), lambda: SOFTMAX.baseline_of((x,)),
        split_softmax, exact, SOFTMAX.allowed(exact, (x,)),
    )  # fmt: skip


# the maker of each kernel's work, the number of its dimensions, and the shapes on a GPU and on the simulated device
KERNELS = {
    "copy_ring": (copying, 2, [(16384, 8192), (5000, 4004)], [(50, 300)]),
    "wgmma_product": (multiplying, 3, [(4096,), (8192,), (1000, 2008, 3000)], [(200, 136, 200)]),
    "split_softmax": (normalising, 2, [(4096, 32768), (512, 262144), (400, 100004)], [(3, 4100)]),
}


def measure(device, stream, work, shape):
    """Yield the rows of numpy and of the kernel."""
    dtype = work.inputs[0].dtype.name
    cpu = Row(Subject(work.name, "cpu", None, shape, dtype, idea="numpy on the host"))
    cpu.judge(within(work.plain(), work.exact, work.rounding))
    cpu.timed(wall_clock(work.plain, most=3))
    yield cpu
    row = Row(Subject(work.name, work.name, 1, shape, dtype, idea=work.idea))
    yield row
    arrays = [device.array(host, stream=stream) for host in work.inputs]
    result = device.empty(work.exact.shape, work.inputs[0].dtype, stream=stream)
    result.fill(math.nan, stream)
    launch = work.prepare(device, *arrays, result).launch
    if device.kind == "sim":
        with device.counters() as counters:
            launch(stream)
            stream.synchronize()
        (counted,) = counters.values()
        row.counters = counted.as_dict()
    else:
        launch(stream)
    row.judge(within(result.numpy(stream), work.exact, work.rounding))
    if device.kind == "gpu" and row.ok:
        traffic = sum(array.nbytes for array in (*arrays, result))
        row.timed(GpuTimer(device, stream).time([lambda: launch(stream)]), traffic=traffic, flops=work.flops)


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    if unknown := sorted(set(arguments.kernels) - set(KERNELS)):
        raise Refused(f"no kernel {unknown[0]!r}; there are {', '.join(KERNELS)}")
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        report = BenchReport(device.info())
        rng = np.random.default_rng(0)
        for name in arguments.kernels:
            make, dimensions, on_gpu, on_sim = KERNELS[name]
            for given in arguments.shapes or (on_gpu if device.kind == "gpu" else on_sim):
                shape = given * dimensions if len(given) == 1 else given
                if len(shape) != dimensions or 0 in shape:
                    raise Refused(f"{name}: a shape has {dimensions} sizes of at least 1, got {shape_text(given)}")
                report.rows += measure(device, stream, make(shape, rng), shape)
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument(
        "--kernels", type=cli.parse_names, default=list(KERNELS), metavar="NAME,...", help="only these kernels"
    )
    parser.add_argument("--shapes", type=cli.parse_shapes, metavar="S,...", help="ROWSxCOLS; MxNxK for wgmma_product")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
