"""Fourier transforms of our own beside cuFFT and torch: times in turns, and the errors of each.

Each case is timed in five rounds. A round times every library once, so that a change of the clock affects all of them.
cuFFT's plans are made beforehand. `error_l2` and `error_max` are the errors against numpy in float64, relative to the
root of the mean square of the result: of all compared elements together, and of the worst one.

    python examples/fft.py
    python examples/fft.py --shapes 262144x1024 --modes in_place --json -
"""

import argparse
import functools
import math
import sys
from dataclasses import dataclass

import numpy as np

from cudakit import ops
from cudakit.commands import cli, ladder
from cudakit.errors import CudakitError
from cudakit.libs import fft, library
from cudakit.measure.ceilings import copy_ceiling
from cudakit.measure.peers.installed import torch_on
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import GpuTimer, Spread, rotations
from cudakit.show import outputs

ROUNDS = 5
COMPARED = 1 << 17  # elements at each end of an array that are compared with numpy
# Transforms of their own results grow: values this small overflow only after more launches than a round makes.
SMALL = 1e-36
# The variants that are timed, the first one that supports the problem and each other one that is for such problems.
FAST = ("rows", "long_rows", "planes")

# name: family, axes, dtype of the input, whether the output is the input
MODES = {
    "": ("fft", 1, "complex64", False),
    "in_place": ("fft", 1, "complex64", True),
    "float16": ("fft", 1, "float16", False),
    "rfft": ("rfft", 1, "float32", False),
    "irfft": ("irfft", 1, "complex64", False),
    "2d": ("fft", 2, "complex64", False),
    "2d_in_place": ("fft", 2, "complex64", True),
    "2d_rfft": ("rfft", 2, "float32", False),
    "2d_irfft": ("irfft", 2, "complex64", False),
}
KINDS = {"fft": "C2C", "rfft": "R2C", "irfft": "C2R"}


@dataclass(slots=True)
class FftRow(Row):
    """A row with the errors of its result, relative to the result's root mean square."""

    error_l2: float | None = None
    error_max: float | None = None


class Case:
    """One shape of one mode: its arrays, and the rows of all libraries."""

    def __init__(self, device, stream, shape, mode):
        self.device, self.stream, self.shape, self.mode = device, stream, shape, mode
        self.form, axes, self.dtype, self.in_place = MODES[mode]
        self.family = ops.families()[self.form]
        self.options = {"axes": axes, "norm": None}
        if self.form == "irfft":
            self.options["n"] = shape[-1]
        given = (*shape[:-1], shape[-1] // 2 + 1) if self.form == "irfft" else shape
        self.given = (*given, 2) if self.dtype == "float16" else given
        self.sets = [self.arrays()]
        nbytes = sum(array.nbytes for array in self.sets[0])
        if device.kind == "gpu":
            self.sets += [self.arrays() for _ in range(rotations(nbytes, device.attribute("L2_CACHE_SIZE")) - 1)]
        self.rows, self.timed = [], []

    @property
    def traffic(self):
        """The least bytes of memory traffic: the input read once and the output written once."""
        x, y = self.sets[0]
        return x.nbytes + y.nbytes

    def arrays(self):
        x = self.device.empty(self.given, self.dtype, stream=self.stream)
        self.fill(x)
        if self.in_place:
            return x, x
        made = self.family.outputs_like((x,), **self.options)[0]
        return x, self.device.full(made[0], np.nan, made[1], stream=self.stream)

    def fill(self, x, scale=1.0):
        """Fill an array with normal numbers."""
        if x.dtype == np.float16:
            wide = ops.normal(x.shape, seed=7, device=self.device, stream=self.stream)
            ops.cast(wide, "float16", out=x, stream=self.stream)
            return
        flat = x.reshape(-1).view(np.float32)
        if self.form == "irfft":  # the terms of a real array; other terms have another result in cuFFT
            real = ops.normal(self.shape, seed=7, device=self.device, stream=self.stream)
            ops.rfft(real, self.options["axes"], out=x, norm="ortho", stream=self.stream)
        else:
            ops.normal(out=flat, seed=7, stream=self.stream)
        if scale != 1:
            ops.scale(flat, scale, out=flat, stream=self.stream)

    def ends(self, array):
        """The first and the last transforms of an array, on the host."""
        count = max(1, COMPARED // max(math.prod(self.shape[1:]), 1))
        if 2 * count >= len(array):
            return array.numpy(self.stream)
        return np.concatenate([array[:count].numpy(self.stream), array[-count:].numpy(self.stream)])

    def row(self, name, idea, rung=None):
        row = FftRow(Subject(self.form, name, rung, self.shape, self.dtype, self.mode, idea))
        row.rates.ceiling = "cufft"
        self.rows.append(row)
        return row

    def add(self, row, make):
        """Check a library's transform, and keep its launches for timing. make(x, y) returns a launch."""
        try:
            launches = [make(*arrays) for arrays in self.sets]
            x, y = self.sets[0]
            self.fill(x)
            given = self.ends(x)
            launches[0]()
            self.stream.synchronize()
        except Exception as error:  # a peer may lack the transform, or its package
            if row.subject.rung:
                raise
            row.skip(f"{type(error).__name__}: {error}".splitlines()[0])
            return
        found = self.ends(y)
        exact = self.family.exact((given,), [found.dtype], **self.options)
        variant = self.family[row.subject.variant] if row.subject.rung else None
        allowed = self.family.allowed(exact, (given,), variant, [found.dtype], **self.options)
        # A peer that computes in float16 rounds in each step of radix 2.
        if self.dtype == "float16" and variant is None:
            steps = math.log2(math.prod(self.shape[-self.options["axes"] :]))
            allowed = steps * float(np.finfo(np.float16).eps) / 2 * np.abs(exact).max()
        row.judge(self.family.compared(found, exact, allowed))
        size = np.sqrt(np.mean(np.square(np.abs(exact), dtype=np.float64)))
        error = np.abs(found.astype(exact.dtype) - exact)
        row.error_l2 = float(np.sqrt(np.mean(np.square(error))) / size)
        row.error_max = float(error.max() / size)
        self.timed.append((row, launches))

    def libraries(self):
        """Add the rows of cuFFT, torch and our variants."""
        stream, axes = self.stream, self.options["axes"]
        if self.dtype != "float16":
            plan_shape = self.shape[-axes:]
            batch = math.prod(self.shape[:-axes])
            plan = functools.partial(fft.plan_for, stream, plan_shape, KINDS[self.form], batch, "complex64")
            direction = fft.INVERSE if self.form == "irfft" else fft.FORWARD
            self.add(
                self.row("cufft", "NVIDIA's library, plan made beforehand", 0 if self.device.kind == "gpu" else None),
                lambda x, y: functools.partial(plan().run, x, y, direction, stream),
            )
        torch = torch_on(self.device.ordinal) if self.device.kind == "gpu" and not self.in_place else None
        if torch is not None:
            self.add(self.row("peer:torch", "torch.fft"), functools.partial(self.torch, torch))
        problem = self.family.problem_of([self.sets[0][0]], self.sets[0][1], **self.options)
        supported = [name for name in FAST if self.supports(name, problem)]
        for name in [name for name in supported if name == supported[0] or name == "planes"]:
            variant = self.family[name]
            launch = functools.partial(self.prepared, variant, problem)
            self.add(self.row(name, variant.idea, self.family.rung(variant)), launch)

    def supports(self, name, problem):
        known = [variant.name for variant in self.family]
        return name in known and self.family[name].refusal(problem, self.device.arch) is None

    def prepared(self, variant, problem, x, y):
        """A launch of a variant without the work of the call on the host."""
        launches = self.family.launches(variant, problem)
        scratch = self.family.scratch(self.device, launches, self.stream)
        plans = []
        for each in launches:
            kernel = self.family.kernel(self.device, variant, each)
            plans.append(kernel.prepare(**self.family.keywords(each, kernel, problem, [x], y, scratch)))

        def launch(_held=scratch):
            for plan in plans:
                plan.launch(self.stream)

        return launch

    def torch(self, torch, x, y):
        """torch's transform; for float16 with complex32, for which it takes powers of two."""
        import torch as package

        (given,), out = torch.tensors([x], y)
        axes = self.options["axes"]
        last = tuple(range(-axes, 0))
        function = getattr(package.fft, f"{self.form}n")
        if self.dtype == "float16":
            given, out = package.view_as_complex(given), package.view_as_complex(out)
        extents = {"s": self.shape[-axes:], "norm": "forward"} if self.form == "irfft" else {}

        def launch():
            with torch.on_stream(self.stream, self.device.ordinal):
                function(given, dim=last, out=out, **extents)

        return launch

    def time(self, report):
        timer = GpuTimer(self.device, self.stream, budget_ms=20.0)
        samples = [[] for _ in self.timed]
        for _ in range(ROUNDS):
            for taken, (row, launches) in zip(samples, self.timed, strict=True):
                if row.ok:
                    if self.in_place or self.form == "irfft":  # cuFFT overwrites irfft's input
                        for x, _ in self.sets:
                            self.fill(x, SMALL)
                    taken.append(timer.time(launches).median)
        ceiling = None
        for taken, (row, _) in zip(samples, self.timed, strict=True):
            if taken:
                row.timed(Spread.of(taken), traffic=self.traffic)
                if row.subject.variant == "cufft":
                    ceiling = row.times.device.median
        for row, _ in self.timed:
            if ceiling is not None:
                row.hold_against(ceiling)
        copied = copy_ceiling(self.device, timer, self.traffic)
        report.ceilings.setdefault("copy", []).append({"shape": self.shape, "mode": self.mode, **copied})


def measure(device, stream, shapes, planes, modes, timed=True):
    """The report of each mode, of `shapes` along the last axis or of `planes`."""
    report = BenchReport(device.info() | {"libraries": {"cufft": library(device, "cufft")}})
    for mode in modes:
        for shape in planes if MODES[mode][1] == 2 else shapes:
            try:
                case = Case(device, stream, shape, mode)
                case.libraries()
                if device.kind == "gpu" and timed:
                    case.time(report)
            except CudakitError as error:
                if device.context.lost is not None:
                    raise
                case.row("rows", "").fail(str(error))
            report.rows += case.rows
    return report


def mode_names(text):
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in MODES:
            raise argparse.ArgumentTypeError(f"unknown mode {name!r}; known are {', '.join(map(repr, MODES))}")
    return names


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        gpu = device.kind == "gpu"
        rows = ((2**20, 256), (2**18, 1024), (2**16, 4096), (2**18, 1000), (170_000, 1536)) if gpu else ((9, 60),)
        planes = ((256, 1024, 1024),) if gpu else ((3, 12, 10),)
        report = measure(
            device, stream, arguments.shapes or rows, arguments.planes or planes, arguments.modes or MODES,
            not arguments.once,
        )  # fmt: skip
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--shapes", type=cli.parse_shapes, metavar="RxN", help="rows of n elements")
    parser.add_argument("--planes", type=cli.parse_shapes, metavar="PxMxN", help="planes of m x n elements")
    parser.add_argument("--modes", type=mode_names, metavar="NAME,...", help=f"{', '.join(MODES)[2:]} (default: all)")
    parser.add_argument("--once", action="store_true", help="only check the results (implied under ncu)")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
