"""One product on several GPUs: each device has some columns of B, and gets the other columns of C from the others.

Every device holds A and its own columns of B and computes its columns of C, one block of rows at a time; while the next
block is being multiplied, the block's columns are exchanged. At the end all devices hold all of C (an all-gather). The
rows of the report differ in the exchange:

- one device: the whole product, without an exchange;
- peer copies: each device copies the other devices' columns, with two streams per device and events;
- NCCL, one process: `cudakit.parallel.column_product` with a communicator per device;
- NCCL, processes: the same with one process per device.

All rows are measured in turns in three rounds; a row's time is the median of the rounds, and its speed-up is relative
to one device in the same run. Its bound is the time of the slower part alone: the local products without an exchange,
or the exchange, at the rate of bare peer copies, without products.

    python examples/tensor_parallel.py
    python examples/tensor_parallel.py --shapes 8192,16384x8192x4096 --dtype bfloat16
"""

import argparse
import contextlib
import itertools
import multiprocessing
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from cudakit import ops, parallel
from cudakit.commands import cli, ladder
from cudakit.compare import within
from cudakit.device import Device
from cudakit.errors import CudakitError, Refused
from cudakit.libs import nccl
from cudakit.measure.rows import BenchReport, Rates, Row, Subject
from cudakit.measure.timing import Spread
from cudakit.memory.array import as_dtype
from cudakit.shapes import shape_text
from cudakit.show import outputs

ROUNDS, BUDGET_S, REST_S = 3, 0.5, 0.3
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


@dataclass
class Problem:
    """A product on `count` devices. blocks: the extents of the blocks of rows."""

    shape: tuple[int, int, int]
    dtype: str
    count: int
    blocks: list[int]
    variant: str
    ctas: int | None
    copy_engines: bool

    @property
    def cuts(self):
        return [slice(*ends) for ends in itertools.pairwise(itertools.accumulate(self.blocks, initial=0))]

    @property
    def widths(self):
        """The number of columns of each device."""
        ends = [self.shape[1] * i // self.count for i in range(self.count + 1)]
        return [stop - start for start, stop in itertools.pairwise(ends)]

    def columns(self, number):
        first = sum(self.widths[:number])
        return slice(first, first + self.widths[number])

    def operands(self):
        """A and B on the host; the same numbers in each process."""
        m, n, k = self.shape
        kind = as_dtype(self.dtype)
        return normal((m, k), 0).astype(kind, copy=False), normal((k, n), 1).astype(kind, copy=False)

    @property
    def sample(self):
        """Rows to check: all of a large product would take minutes on the host."""
        return np.unique(np.linspace(0, self.shape[0] - 1, 48).astype(int))

    @property
    def sampled_columns(self):
        """Columns to check."""
        return np.unique(np.linspace(0, self.shape[1] - 1, 8192).astype(int))


def normal(shape, seed):
    """Normal numbers, made by several threads."""
    made, step = np.empty(shape, np.float32), 256

    def fill(first):
        rng = np.random.Generator(np.random.SFC64([seed, first]))
        rng.standard_normal(out=made[first : first + step], dtype=np.float32)

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(0, shape[0], step)))
    return made


def sampled(array, rows, stream):
    """Some rows of a device array, on the host."""
    return np.stack([array[int(row)].numpy(stream) for row in rows])


# One process ----------------------------------------------------------------------------------------------------------


class OneDevice:
    idea = "the whole product"

    @staticmethod
    def name_for(_):
        return "1 device"

    def __init__(self, problem, devices, a, b):
        (self.device, *_), self.problem = devices, problem
        self.stream = self.device.stream()
        self.a, self.b = (self.device.array(x, stream=self.stream) for x in (a, b))
        self.c = self.device.empty((problem.shape[0], problem.shape[1]), a.dtype, self.stream)

    def run(self):
        ops.gemm(self.a, self.b, self.c, stream=self.stream)
        self.stream.synchronize()

    def poison(self):
        self.c.view(np.uint8).fill(255, self.stream)

    def samples(self):
        return [sampled(self.c, self.problem.sample, self.stream)]

    def close(self):
        self.stream.synchronize()


class Shards:
    """The devices of this process, each with A, its columns of B, and memory for all of C."""

    def __init__(self, problem, devices, a, b):
        self.problem, self.devices = problem, devices
        self.streams = [device.stream() for device in devices]
        places = [(device, stream) for device, stream in zip(devices, self.streams, strict=True)]
        m, n, _ = problem.shape
        self.a = [device.array(a, stream=stream) for device, stream in places]
        parts = [np.ascontiguousarray(b[:, problem.columns(i)]) for i in range(problem.count)]
        self.b = [d.array(part, stream=stream) for (d, stream), part in zip(places, parts, strict=True)]
        self.c = [device.empty((m, n), a.dtype, stream) for device, stream in places]
        self.finish()

    def run(self):
        self.step()
        self.finish()

    def finish(self):
        for stream in self.streams:
            stream.synchronize()

    def poison(self):
        for c, stream in zip(self.c, self.streams, strict=True):
            c.view(np.uint8).fill(255, stream)
        self.finish()

    def samples(self):
        pairs = zip(self.c, self.streams, strict=True)
        return [sampled(c, self.problem.sample, stream) for c, stream in pairs]

    def products(self):
        """The local products alone."""
        for rows in self.problem.cuts:
            self.multiply(rows)
        self.finish()

    def multiply(self, rows):
        for i, stream in enumerate(self.streams):
            columns = self.problem.columns(i)
            ops.gemm(self.a[i][rows], self.b[i], self.c[i][rows, columns], variant=self.problem.variant, stream=stream)

    def close(self):
        self.finish()


class PeerCopies(Shards):
    idea = "columns copied from device to device"

    @staticmethod
    def name_for(count):
        return f"{count} devices, peer copies"

    def __init__(self, problem, devices, a, b):
        super().__init__(problem, devices, a, b)
        self.takes = [device.stream(device.context.stream_priorities()[1]) for device in devices]

    def step(self):
        everyone = range(self.problem.count)
        for rows in self.problem.cuts:
            self.multiply(rows)
            for to, source in itertools.permutations(everyone, 2):
                self.takes[to].wait(self.streams[source])
                columns = self.problem.columns(source)
                self.c[to][rows, columns].copy_from(self.c[source][rows, columns], self.takes[to])
        for one, other in itertools.product(everyone, repeat=2):
            self.streams[one].wait(self.takes[other])  # the next product must not overwrite data that is being copied

    def exchange(self):
        """Peer copies of contiguous memory, as many bytes as a step's."""
        for to, source in itertools.permutations(range(self.problem.count), 2):
            whole, size = self.c[source].reshape(-1), self.problem.shape[0] * self.problem.widths[source]
            self.c[to].reshape(-1)[size * source :][:size].copy_from(whole[size * source :][:size], self.takes[to])
        for take in self.takes:
            take.synchronize()


class OneProcess(Shards):
    idea = "NCCL's all-gather, one process for all devices"

    @staticmethod
    def name_for(count):
        return f"{count} devices, NCCL"

    def __init__(self, problem, devices, a, b):
        super().__init__(problem, devices, a, b)
        options = {"max_ctas": problem.ctas, "zero_ctas": problem.copy_engines}
        self.ranks = nccl.communicators(devices, **options)
        self.scratch = gather_memory(problem, self.ranks)

    def step(self):
        parallel.column_product(
            self.streams, self.ranks, self.a, self.b, self.c, columns=self.problem.widths,
            blocks=self.problem.blocks, variant=self.problem.variant, scratch=self.scratch,
        )  # fmt: skip

    def close(self):
        self.finish()
        self.scratch = None
        for rank in self.ranks:
            rank.close()


def gather_memory(problem, ranks):
    """Registered memory for the gathered blocks, which the copy engines need; otherwise None."""
    elements = problem.shape[0] * problem.count * max(problem.widths)
    return nccl.registered(ranks, (elements,), problem.dtype) if problem.copy_engines else None


# One process per device -----------------------------------------------------------------------------------------------


def work(pipe, spec, rank, unique_id, problem):
    """The main function of a worker process: answers the requests of the main process."""
    try:
        with Device(spec) as device:
            stream, (a, b) = device.stream(), problem.operands()
            options = {"max_ctas": problem.ctas, "zero_ctas": problem.copy_engines}
            with nccl.Communicator(device, rank, problem.count, unique_id, **options) as communicator:
                scratch = gather_memory(problem, [communicator])
                first = device.array(a, stream=stream)
                second = device.array(np.ascontiguousarray(b[:, problem.columns(rank)]), stream=stream)
                c = device.full((problem.shape[0], problem.shape[1]), np.nan, a.dtype, stream=stream)
                start = device.zeros(1, stream=stream)
                del a, b
                pipe.send(("ready", None))
                while (request := pipe.recv())[0] != "end":
                    if request[0] == "samples":
                        pipe.send(("samples", sampled(c, problem.sample, stream)))
                        continue
                    times = []
                    for _ in range(request[1]):
                        communicator.all_reduce(stream, start, start)  # all processes begin together
                        communicator.wait(stream)
                        begin = time.perf_counter()
                        parallel.column_product(
                            [stream], [communicator], [first], [second], [c], columns=problem.widths,
                            blocks=problem.blocks, variant=problem.variant, scratch=scratch,
                        )  # fmt: skip
                        stream.synchronize()  # more precise than wait(); the main process ends one that hangs
                        times.append((time.perf_counter() - begin) * 1e3)
                    pipe.send(("times", times))
                scratch = first = second = c = start = None
    except BaseException:
        with contextlib.suppress(OSError):
            pipe.send(("failed", traceback.format_exc()))


class Processes:
    idea = "NCCL's all-gather, one process per device"

    @staticmethod
    def name_for(count):
        return f"{count} processes, NCCL"

    def __init__(self, problem, devices, a, b):
        self.problem = problem
        context = multiprocessing.get_context("spawn")
        unique_id = nccl.unique_id(devices[0])
        self.pipes, self.workers = [], []
        for rank, device in enumerate(devices):
            pipe, theirs = context.Pipe()
            arguments = (theirs, device.context.spec, rank, unique_id, problem)
            worker = context.Process(target=work, args=arguments, daemon=True)
            worker.start()
            theirs.close()
            self.pipes.append(pipe)
            self.workers.append(worker)
        self.answers()

    def ask(self, *request):
        for pipe in self.pipes:
            pipe.send(request)
        return self.answers()

    def answers(self):
        found = []
        for rank, pipe in enumerate(self.pipes):
            try:
                if not pipe.poll(120):
                    raise CudakitError(f"the process of rank {rank} has not answered in 120 s")
                kind, value = pipe.recv()
            except EOFError:
                kind, value = "failed", "it has ended"
            if kind == "failed":
                raise CudakitError(f"the process of rank {rank} failed: {value}")
            found.append(value)
        return found

    def times(self, count):
        """The milliseconds of each step: those of the slowest process."""
        return [max(each) for each in zip(*self.ask("run", count), strict=True)]

    def run(self):
        self.times(1)

    def poison(self):
        """The memory holds NaN before the first step."""

    def samples(self):
        return self.ask("samples")

    def close(self):
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(("end",))
        for worker in self.workers:
            worker.join(20)
            if worker.is_alive():
                worker.terminate()


# The report -----------------------------------------------------------------------------------------------------------


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
    if problem.count == 1:
        return [OneDevice], [PeerCopies, OneProcess, Processes], "this machine has only one GPU"
    if devices[0].kind == "gpu":
        try:
            nccl.unique_id("gpu")
        except CudakitError as error:
            return [OneDevice, PeerCopies], [OneProcess, Processes], str(error)
    return [OneDevice, PeerCopies, OneProcess, Processes], [], ""


def rows_for(devices, problem, progress):
    """The rows of one product."""
    m, n, k = problem.shape
    gpu = devices[0].kind == "gpu"

    def new(name, rung, idea):
        subject = Subject("tensor parallel", name, rung, problem.shape, problem.dtype, idea=idea)
        return ParallelRow(subject, Rates(ceiling="one device"))

    a, b = problem.operands()
    wide = [x.astype(np.float32, copy=False) for x in (a, b)]
    begin = time.perf_counter()
    plain = wide[0] @ wide[1]
    took = (time.perf_counter() - begin) * 1e3
    columns = problem.sampled_columns
    some = a[problem.sample], np.ascontiguousarray(b[:, columns])
    exact = some[0].astype(np.float64) @ some[1].astype(np.float64)
    family = ops.families()["gemm" if problem.dtype == "float32" else "gemm_half"]
    rounding = family.allowed(exact, some)
    cpu = new("cpu", None, "numpy on the host" + ("" if problem.dtype == "float32" else ", in float32"))
    cpu.judge(within(plain[problem.sample][:, columns].astype(a.dtype, copy=False), exact, rounding))
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
