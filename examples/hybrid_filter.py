"""A filter made of kernels and library calls on one stream: threshold, FFT, low-pass, inverse FFT, normalize.

Two common mistakes. Reals must be converted to complex numbers by a kernel: a copy of their bytes would put two
neighbours into each number. And frequency 0 is at element (0, 0), not in the middle: a filter centred on (rows / 2,
cols / 2) keeps the frequencies that it should remove. The check: a constant image must come out unchanged.

    python examples/hybrid_filter.py
    python examples/hybrid_filter.py --size 4096 --json -
"""

import argparse
import sys

import numpy as np

from cudakit.commands import cli, ladder
from cudakit.compare import compare
from cudakit.libs import fft, library
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import GpuTimer, wall_clock
from cudakit.show import outputs

CUT, CUTOFF = 0.3, 0.1
BLOCK = 256


def by_numpy(image, dtype):
    """The result of each stage, in float64 or float32."""
    kind = np.result_type(dtype, np.complex64)
    x = np.where(image < CUT, 0, image).astype(kind)
    v, u = np.meshgrid(*(np.fft.fftfreq(extent) for extent in image.shape), indexing="ij")
    gain = 1 / (1 + ((u * u + v * v) / CUTOFF**2) ** 2)
    spectrum = np.fft.fft2(x).astype(kind)
    passed = spectrum * gain.astype(dtype)
    unscaled = np.fft.ifft2(passed, norm="forward").astype(kind)
    return [x, spectrum, passed, unscaled, (unscaled.real / image.size).astype(dtype)]


def stages(device, stream, image, spectrum, out):
    """The name and launch of each stage, in order."""
    module = device.compile("hybrid/filter.cu")
    rows, cols = image.shape
    grid = -(-image.size // BLOCK)

    def launch(name, *args):
        module[name].launch(stream, grid=grid, block=BLOCK, args=(*args, image.size))

    return [
        ("threshold", lambda: launch("threshold_to_complex", image, spectrum, CUT)),
        ("fft", lambda: fft.fft(spectrum, axes=2, out=spectrum, norm=None, stream=stream)),
        ("low_pass", lambda: launch("low_pass", spectrum, CUTOFF, rows, cols)),
        ("inverse_fft", lambda: fft.ifft(spectrum, axes=2, out=spectrum, norm=None, stream=stream)),
        ("normalize", lambda: launch("normalize", spectrum, out, 1 / image.size)),
    ]


class Filter:
    """The arrays and the stages of one image."""

    def __init__(self, device, stream, host):
        self.stream = stream
        self.image = device.array(host, stream=stream)
        self.spectrum = device.empty(host.shape, np.complex64, stream=stream)
        self.out = device.full(host.shape, np.nan, np.float32, stream=stream)
        self.stages = stages(device, stream, self.image, self.spectrum, self.out)

    def run(self):
        for _, step in self.stages:
            step()

    def result(self):
        self.run()
        return self.out.numpy(self.stream)


def measure(device, stream, size):
    """The report of an image of size x size: all stages together, and each one alone."""
    shape = (size, size)
    host = np.random.default_rng(0).random(shape, dtype=np.float32)
    exact, plain = by_numpy(host, np.float64), by_numpy(host, np.float32)
    report = BenchReport(device.info() | {"libraries": {"cufft": library(device, "cufft")}})
    cpu = Row(Subject("hybrid filter", "cpu", None, shape, "float32", idea="numpy, all stages"))
    cpu.judge(compare(plain[-1], exact[-1], plain[-1], size))
    cpu.timed(wall_clock(lambda: by_numpy(host, np.float32)))
    work = Filter(device, stream, host)
    row = Row(Subject("hybrid filter", "all stages", 1, shape, "float32", idea="one stream, no wait between stages"))
    row.judge(compare(work.result(), exact[-1], plain[-1], size))
    flat = Filter(device, stream, np.full(shape, 0.5, np.float32)).result()
    if not np.allclose(flat, 0.5, rtol=1e-5, atol=0):
        row.fail(f"an image of 0.5 comes out as {flat.min()} to {flat.max()}: frequency 0 is misplaced")
    report.rows += [cpu, row]
    for (name, step), right, usual in zip(work.stages, exact, plain, strict=True):
        part = Row(Subject("hybrid filter", name, None, shape, "float32", idea="this stage alone"))
        step()
        part.judge(compare((work.out if name == "normalize" else work.spectrum).numpy(stream), right, usual, size))
        report.rows.append(part)
    if device.kind == "gpu":
        timer = GpuTimer(device, stream)
        row.timed(timer.time([work.run]))
        row.times.end_to_end = wall_clock(lambda: Filter(device, stream, host).result()).median
        for (_, step), part in zip(work.stages, report.rows[2:], strict=True):
            part.timed(timer.time([step]))
    return report


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        report = measure(device, stream, arguments.size or (1024 if device.kind == "gpu" else 48))
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument(
        "--size", type=cli.positive, metavar="N", help="rows and columns (default: 1,024; 48 on the simulated one)"
    )
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
