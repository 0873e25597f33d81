"""A filter made of kernels and library calls on one stream: threshold, FFT, low-pass, inverse FFT, normalize.

Two traps. Reals become complex numbers by a kernel: their bytes copied over the pairs would put two neighbours into
each number. And the transform has frequency 0 at element (0, 0), not in the middle, so a filter that is centred on
(rows / 2, cols / 2) keeps what it should remove: an image of one value must come through as it is, and is the check.

    python examples/hybrid_filter.py
    python examples/hybrid_filter.py --size 4096 --json -
"""

import argparse
import sys

import numpy as np

from cudakit import cli, ladder
from cudakit.bench import Report, Row
from cudakit.compare import compare
from cudakit.libs import fft, library
from cudakit.timing import GpuTimer, wall_clock

CUT, CUTOFF = 0.3, 0.1
BLOCK = 256


def filtered(image, dtype):
    """By numpy, in float64 or float32."""
    x = np.where(image > CUT, image, 0).astype(dtype)
    v, u = np.meshgrid(*(np.fft.fftfreq(extent) for extent in image.shape), indexing="ij")
    gain = 1 / (1 + ((u * u + v * v) / CUTOFF**2) ** 2)
    kind = np.result_type(dtype, np.complex64)
    return np.fft.ifft2(np.fft.fft2(x.astype(kind)).astype(kind) * gain.astype(dtype)).real.astype(dtype)


def stages(device, stream, image, spectrum, out):
    """Name and launch of each stage, in order."""
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


def apply(device, stream, host):
    """The filtered image, and the stages on its arrays."""
    image = device.array(host, stream=stream)
    spectrum = device.empty(host.shape, np.complex64, stream=stream)
    out = device.full(host.shape, np.nan, np.float32, stream=stream)
    work = stages(device, stream, image, spectrum, out)
    for _, step in work:
        step()
    return out.numpy(stream), work


def run(arguments):
    cli.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        size = arguments.size or (1024 if device.kind == "gpu" else 48)
        shape = (size, size)
        host = np.random.default_rng(0).random(shape, dtype=np.float32)
        exact, plain = filtered(host, np.float64), filtered(host, np.float32)
        report = Report(device.info() | {"libraries": {"cufft": library(device, "cufft")}})
        cpu = Row("hybrid filter", "cpu", None, shape, "float32", idea="numpy, all stages")
        cpu.judge(compare(plain, exact, plain))
        cpu.time_ms = wall_clock(lambda: filtered(host, np.float32)).as_dict()
        report.rows.append(cpu)
        result, work = apply(device, stream, host)
        row = Row("hybrid filter", "all stages", 1, shape, "float32", idea="one stream, no wait between stages")
        row.judge(compare(result, exact, plain))
        flat, _ = apply(device, stream, np.full(shape, 0.5, np.float32))
        if not np.allclose(flat, 0.5, rtol=1e-5, atol=0):
            row.fail(
                f"an image of 0.5 comes out as {flat.min()} to {flat.max()}: frequency 0 is not where it should be"
            )
        report.rows.append(row)
        if device.kind == "gpu":
            timer = GpuTimer(device, stream)
            row.time_ms = timer.time([lambda: [step() for _, step in work]]).as_dict()
            row.end_to_end_ms = wall_clock(lambda: apply(device, stream, host)).median
        for name, step in work:
            part = Row("hybrid filter", name, None, shape, "float32", idea="a stage of it", ok=row.ok)
            if device.kind == "gpu":
                part.time_ms = timer.time([step]).as_dict()
            report.rows.append(part)
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument(
        "--size", type=int, metavar="N", help="rows and columns (default: 1,024; 48 on the simulated one)"
    )
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
