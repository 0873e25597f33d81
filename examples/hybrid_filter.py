"""A filter of images in five stages on one stream: threshold, FFT, low-pass, inverse FFT, normalize. Four versions:

- cufft: a kernel per element-wise stage, complex transforms by cuFFT.
- cufft_real: the same with real transforms, which have half the terms.
- own_fft: the stages of cufft with `ops.fft`, kernels of our own.
- fused: three launches with real transforms of our own: rows, with the threshold in the load; columns forward, low-pass
  and inverse in one kernel; rows, with the normalisation in the store.

Two common mistakes. Reals must be converted to complex numbers by a kernel: a copy of their bytes would put two
neighbours into each number. And frequency 0 is at element (0, 0), not in the middle: a filter centred on (rows / 2,
cols / 2) keeps the frequencies that it should remove. The check: a constant image must come out unchanged.

    python examples/hybrid_filter.py
    python examples/hybrid_filter.py --size 4096 --batches 1,8 --json -
"""

import argparse
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hybrid.fused import LOW_PASS, THRESHOLD, Fused

from cudakit import ops
from cudakit.commands import cli, ladder
from cudakit.compare import compare
from cudakit.errors import Refused, UnsupportedVariant
from cudakit.family import ceil_div
from cudakit.libs import fft, library
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import GpuTimer, Spread, rotations, wall_clock
from cudakit.show import outputs

CUT, CUTOFF = float(THRESHOLD[1]), float(LOW_PASS[1])
BLOCK = 256
ROUNDS = 5  # of timing; each round times every version
COMPARED = 3  # images of a batch that are compared with numpy


# numpy ----------------------------------------------------------------------------------------------------------------


def by_numpy(rows, cols, dtype, kind="complex"):
    """The stages of a version as functions by name, each of the result of the one before, in float64 or float32.
    kind: "complex", "real" or "fused"."""
    wide = np.result_type(dtype, np.complex64)
    v, u = np.meshgrid(np.fft.fftfreq(rows), np.fft.fftfreq(cols), indexing="ij")
    gain = (1 / (1 + ((u * u + v * v) / CUTOFF**2) ** 2)).astype(dtype)
    half = gain[:, : cols // 2 + 1]

    def threshold(x):
        return np.where(x < np.float32(CUT), 0, x)

    def normalize(z):
        return (z.real / (rows * cols)).astype(dtype)

    def filter_columns(z):
        return np.fft.ifft(np.fft.fft(z, axis=-2).astype(wide) * half, axis=-2, norm="forward").astype(wide)

    if kind == "fused":
        return {
            "rows": lambda x: np.fft.rfft(threshold(x).astype(dtype)).astype(wide),
            "columns": filter_columns,
            "rows_back": lambda z: (np.fft.irfft(z, cols, norm="forward") / (rows * cols)).astype(dtype),
        }
    if kind == "real":
        return {
            "threshold": lambda x: threshold(x).astype(dtype),
            "fft": lambda x: np.fft.rfft2(x).astype(wide),
            "low_pass": lambda z: z * half,
            "inverse_fft": lambda z: np.fft.irfft2(z, (rows, cols), norm="forward").astype(dtype),
            "normalize": normalize,
        }
    return {
        "threshold": lambda x: threshold(x).astype(wide),
        "fft": lambda z: np.fft.fft2(z).astype(wide),
        "low_pass": lambda z: z * gain,
        "inverse_fft": lambda z: np.fft.ifft2(z, norm="forward").astype(wide),
        "normalize": normalize,
    }


def results(stages, images):
    """The result of each stage, by name."""
    made = {}
    for name, stage in stages.items():
        images = made[name] = stage(images)
    return made


# The versions ---------------------------------------------------------------------------------------------------------


@dataclass
class Version:
    """The stages of one version: by name, the function that queues it and the array that it writes. The last one writes
    the filtered images."""

    stages: dict[str, tuple[Callable[[], object], Any]]

    def run(self):
        for step, _ in self.stages.values():
            step()

    @property
    def out(self):
        return list(self.stages.values())[-1][1]


def complex_version(device, stream, images, library):
    """Five stages with complex transforms, in place, by the `fft` and `ifft` of a library."""
    module = device.compile("hybrid/filter.cu")
    rows, cols = images.shape[-2:]
    spectra = device.empty(images.shape, np.complex64, stream=stream)
    out = device.full(images.shape, np.nan, np.float32, stream=stream)

    transform = {"axes": 2, "out": spectra, "norm": None, "stream": stream}

    def launch(name, *args):
        module[name].launch(stream, grid=ceil_div(images.size, BLOCK), block=BLOCK, args=(*args, images.size))

    return Version(
        {
            "threshold": (lambda: launch("threshold_to_complex", images, spectra, CUT), spectra),
            "fft": (lambda: library.fft(spectra, **transform), spectra),
            "low_pass": (lambda: launch("low_pass", spectra, CUTOFF, rows, cols), spectra),
            "inverse_fft": (lambda: library.ifft(spectra, **transform), spectra),
            "normalize": (lambda: launch("normalize", spectra, out, 1 / (rows * cols)), out),
        }
    )


def cufft(device, stream, images):
    return complex_version(device, stream, images, fft)


def own_fft(device, stream, images):
    return complex_version(device, stream, images, ops)


def cufft_real(device, stream, images):
    """Five stages with real transforms. The inverse one overwrites its input."""
    lead, rows, cols = images.shape
    kept, out = (device.full(images.shape, np.nan, np.float32, stream=stream) for _ in range(2))
    spectra = device.empty((lead, rows, cols // 2 + 1), np.complex64, stream=stream)
    low_pass = device.compile("hybrid/filter.cu")["low_pass_half"]
    forward, inverse = (fft.plan_for(stream, (rows, cols), kind, lead, "complex64") for kind in ("R2C", "C2R"))
    args, grid = (spectra, CUTOFF, rows, cols, spectra.size), ceil_div(spectra.size, BLOCK)
    return Version(
        {
            "threshold": (lambda: ops.threshold(images, CUT, out=kept, stream=stream), kept),
            "fft": (lambda: forward.forward(kept, spectra, stream=stream), spectra),
            "low_pass": (lambda: low_pass.launch(stream, grid=grid, block=BLOCK, args=args), spectra),
            "inverse_fft": (lambda: inverse.inverse(spectra, out, stream=stream), out),
            "normalize": (lambda: ops.scale(out, 1 / (rows * cols), out=out, stream=stream), out),
        }
    )


def fused(device, stream, images):
    out = device.full(images.shape, np.nan, np.float32, stream=stream)
    work = Fused(device, stream, *images.shape)
    return Version(
        {
            "rows": (lambda: work.forward(images), work.spectra[..., : work.half]),
            "columns": (lambda: work.filter(images), work.spectra[..., : work.half]),
            "rows_back": (lambda: work.inverse(out), out),
        }
    )


# name: (function that makes it, numpy's stages, idea)
VERSIONS = {
    "cufft": (cufft, "complex", "five stages, complex transforms by cuFFT"),
    "cufft_real": (cufft_real, "real", "five stages, real transforms by cuFFT"),
    "own_fft": (own_fft, "complex", "five stages, complex transforms of our own"),
    "fused": (fused, "fused", "three launches, real transforms of our own"),
}


# Measuring ------------------------------------------------------------------------------------------------------------


class Batch:
    """The rows of all versions on one batch of images."""

    def __init__(self, device, stream, host):
        self.device, self.stream, self.host = device, stream, host
        # timed: rows, with the launches that the timer calls in turns. trips: rows, with the work including the copies.
        self.rows, self.timed, self.trips = [], [], []
        # Together, the arrays of the launches do not fit into the L2.
        sets = rotations(16 * host.size, device.attribute("L2_CACHE_SIZE")) if device.kind == "gpu" else 1
        self.images = [device.array(host, stream=stream) for _ in range(sets)]
        self.chosen = sorted({int(i) for i in np.linspace(0, len(host) - 1, COMPARED)})
        self.expected = {}  # of the chosen images, in float64 and float32

    def row(self, name, mode="", idea="", rung=None, ceiling="cufft"):
        shape = self.host.shape[1:] if len(self.host) == 1 else self.host.shape
        row = Row(Subject("hybrid filter", name, rung, shape, "float32", mode, idea))
        row.rates.ceiling = ceiling
        self.rows.append(row)
        return row

    def judge(self, row, kind, stage, found):
        """Compare the chosen images that a stage made with numpy's."""
        if kind not in self.expected:
            extents, x = self.host.shape[1:], self.host[self.chosen]
            self.expected[kind] = [results(by_numpy(*extents, dtype, kind), x) for dtype in (np.float64, np.float32)]
        exact, plain = (made[stage] for made in self.expected[kind])
        found = plain if found is None else np.stack([found[i].numpy(self.stream) for i in self.chosen])
        if exact.dtype.kind == "c":  # an error of a large term is spread over the terms of the whole image
            found, exact, plain = (array.reshape(len(array), -1) for array in (found, exact, plain))
        row.judge(compare(found, exact, plain, max(self.host.shape[1:])))

    def cpu(self):
        """Measure numpy: all stages, and each alone."""
        stages, x = by_numpy(*self.host.shape[1:], np.float32), self.host
        whole = self.row("cpu", idea="numpy")
        self.judge(whole, "complex", "normalize", None)
        whole.timed(wall_clock(lambda: results(stages, self.host), least=5))
        for name, stage in stages.items():
            part = self.row("cpu", name, "numpy, this stage alone")
            self.judge(part, "complex", name, None)
            part.timed(wall_clock(lambda stage=stage, x=x: stage(x), least=5))
            x = stage(x)

    def add(self, name):
        """Check a version: all its stages, each alone, and all as a CUDA graph."""
        make, kind, idea = VERSIONS[name]
        whole = self.row(name, idea=idea, rung=list(VERSIONS).index(name) + 1)
        try:
            versions = [make(self.device, self.stream, images) for images in self.images]
            first, last = versions[0], list(versions[0].stages)[-1]
            first.run()
        except (Refused, UnsupportedVariant) as error:
            whole.skip(str(error))
            return
        self.judge(whole, kind, last, first.out)
        if whole.ok and np.isnan(first.out.numpy(self.stream)).any():
            whole.fail("some images were not written")
        self.check_constant(whole, first)
        self.timed.append((whole, [version.run for version in versions]))
        self.trips.append((whole, lambda: self.trip(first)))
        for stage, (step, array) in first.stages.items():
            part = self.row(name, stage, "this stage alone")
            step()
            self.judge(part, kind, stage, array)
            self.timed.append((part, [version.stages[stage][0] for version in versions]))
        graphs = [captured(self.device, self.stream, version.run) for version in versions]
        replayed = self.row(f"{name}_graph", idea="replayed as a CUDA graph", ceiling="cufft_graph")
        first.out.fill(np.nan, self.stream)
        graphs[0].launch(self.stream)
        self.judge(replayed, kind, last, first.out)
        self.timed.append((replayed, [functools.partial(graph.launch, self.stream) for graph in graphs]))

    def check_constant(self, row, version):
        """Fail the row if an image with one value does not come out unchanged."""
        images = self.images[0]
        images.fill(0.5, self.stream)
        version.run()
        flat = version.out[-1].numpy(self.stream)
        if not np.allclose(flat, 0.5, rtol=1e-5, atol=0):
            row.fail(f"an image of 0.5 comes out as {flat.min()} to {flat.max()}: frequency 0 is misplaced")
        images.copy_from(self.host, self.stream)

    def trip(self, version):
        """Copy the images to the device, filter them, and copy the result back."""
        self.images[0].copy_from(self.host, self.stream)
        version.run()
        return version.out.numpy(self.stream)

    def time(self):
        """Time the rows in rounds; versions also in a row on the same arrays, and of one image with the copies."""
        timer = GpuTimer(self.device, self.stream, budget_ms=20.0)
        samples = [[] for _ in self.timed]
        for _ in range(ROUNDS):
            for taken, (row, launches) in zip(samples, self.timed, strict=True):
                if row.ok:
                    taken.append(timer.time(launches).median)
        medians = {}
        for taken, (row, launches) in zip(samples, self.timed, strict=True):
            if not taken:
                continue
            row.timed(Spread.of(taken))
            medians[row.subject.variant, row.subject.mode] = row.times.device.median
            ceiling = medians.get((row.rates.ceiling, row.subject.mode))
            if ceiling is not None:
                row.hold_against(ceiling)
            if not row.subject.mode:
                row.times.back_to_back = timer.back_to_back(launches[0])
        for row, trip in self.trips if len(self.host) == 1 else ():
            row.times.end_to_end = wall_clock(trip).median


def captured(device, stream, work):
    with device.capture(stream) as graph:
        work()
    return graph.instantiate()


def measure(device, stream, size, batches=(1,), versions=tuple(VERSIONS), timed=True):
    """The report of each batch of images of size x size; the CPU's rows are of one image."""
    report = BenchReport(device.info() | {"libraries": {"cufft": library(device, "cufft")}})
    for count in batches:
        batch = Batch(device, stream, np.random.default_rng(0).random((count, size, size), dtype=np.float32))
        if count == 1 and timed:
            batch.cpu()
        for name in versions:
            batch.add(name)
        if device.kind == "gpu" and timed:
            batch.time()
        report.rows += batch.rows
    return report


def counts(text):
    return [cli.positive(count) for count in cli.parse_names(text)]


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        gpu = device.kind == "gpu"
        batches = arguments.batches or ((1, 64, 256) if gpu else (1, 5))
        report = measure(
            device, stream, arguments.size or (1024 if gpu else 48), batches, arguments.versions or VERSIONS
        )
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument(
        "--size", type=cli.positive, metavar="N", help="rows and columns (default: 1,024; 48 on the simulated one)"
    )
    parser.add_argument(
        "--batches",
        type=counts,
        metavar="N,N",
        help="images per batch (default: 1,64,256; 1,5 on the simulated)",
    )
    parser.add_argument(
        "--versions", nargs="+", choices=VERSIONS, metavar="NAME", help=f"{', '.join(VERSIONS)} (default: all)"
    )
    parser.add_argument("--once", action="store_true", help="only check the versions (implied under ncu)")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
