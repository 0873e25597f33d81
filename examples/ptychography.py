"""A step of ptychography for a batch of positions: probe product, FFT, constraint, inverse FFT, object update.

The measured amplitudes replace the computed ones and the phases stay; the change updates the object. The two transforms
are surrounded by eight element-wise steps. One kernel per step passes over memory eight times, 148 bytes per element;
fused into three kernels the steps move 60 bytes (and 16 of the probe, which stays in cache; the simulated device counts
them too). The transforms move the rest. Each stream has its own plan: two simultaneous transforms must not share a
plan's work area.

    python examples/ptychography.py
    python examples/ptychography.py --positions 2048 --size 256 --json -
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

BLOCK = 256
BYTES = {"separate": 148, "fused": 60}  # per element, of the element-wise steps


def update(patches, probe, measured):
    """numpy's update, in the precision of its arguments: o + conj(p) / max|p|^2 (F^-1(m F(p o) / |F(p o)|) - p o)."""
    kind = patches.dtype
    exits = probe * patches
    spectra = np.fft.fft2(exits).astype(kind)
    amplitudes = np.abs(spectra)
    safe = np.where(amplitudes > 0, amplitudes, 1)
    changed = np.fft.ifft2(np.where(amplitudes > 0, measured * (spectra / safe), measured)).astype(kind)
    step = (1 / np.max(np.abs(probe)) ** 2).astype(measured.dtype)
    return patches + step * np.conj(probe) * (changed - exits)


class Step:
    """The arrays of one update and its two ways."""

    def __init__(self, device, stream, patches, probe, measured):
        self.device, self.stream, self.count, self.size = device, stream, patches.size, probe.size
        self.patches, self.probe, self.measured = (device.array(x, stream=stream) for x in (patches, probe, measured))
        self.exits, self.spectra, self.updated = (device.empty_like(self.patches, stream=stream) for _ in range(3))
        self.amplitudes = device.empty(measured.shape, np.float32, stream=stream)
        self.step = float(1 / np.max(np.abs(probe)) ** 2)
        self.apart, self.together = (device.compile(f"ptychography/{name}.cu") for name in ("separate", "fused"))

    def launch(self, module, name, *args):
        grid = -(-self.count // BLOCK)
        module[name].launch(self.stream, grid=grid, block=BLOCK, args=(*args, self.count))

    def separate(self):
        """Queue the update with one kernel per step."""
        z, exits, size = self.spectra, self.exits, self.size
        self.launch(self.apart, "times_probe", self.patches, self.probe, exits, size)
        fft.fft(exits, axes=2, out=z, norm=None, stream=self.stream)
        self.launch(self.apart, "amplitude", z, self.amplitudes)
        self.launch(self.apart, "phase", z, self.amplitudes)
        self.launch(self.apart, "times_real", z, self.measured)
        fft.ifft(z, axes=2, out=z, norm=None, stream=self.stream)
        self.launch(self.apart, "scale", z, 1 / size)
        self.launch(self.apart, "difference", z, exits)
        self.launch(self.apart, "times_conjugate", z, self.probe, self.step, size)
        self.launch(self.apart, "add", self.patches, z, self.updated)

    def fused(self):
        """Queue the update with three kernels around the transforms."""
        z, size = self.spectra, self.size
        self.launch(self.together, "illuminate", self.patches, self.probe, z, size)
        fft.fft(z, axes=2, out=z, norm=None, stream=self.stream)
        self.launch(self.together, "constrain", z, self.measured, 1 / size)
        fft.ifft(z, axes=2, out=z, norm=None, stream=self.stream)
        self.launch(self.together, "update", self.patches, self.probe, z, self.updated, self.step, size)


def make(positions, size):
    """Patches of a smooth object, a probe with a round edge, and amplitudes of another object's waves."""
    rng = np.random.default_rng(0)

    def waves(shape):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)

    y, x = np.meshgrid(*2 * [np.linspace(-1, 1, size)], indexing="ij")
    probe = (np.exp(-4 * (x * x + y * y)) * np.exp(2j * (x * x - y))).astype(np.complex64)
    patches, others = 1 + 0.3 * waves((positions, size, size)), 1 + 0.3 * waves((positions, size, size))
    measured = np.abs(np.fft.fft2(probe * others)).astype(np.float32)
    return patches.astype(np.complex64), probe, measured


def measure(device, stream, arguments):
    """The report of separate and fused kernels, and of the transforms alone."""
    gpu = device.kind == "gpu"
    positions, size = arguments.positions or (512 if gpu else 3), arguments.size or (256 if gpu else 16)
    hosts = make(positions, size)
    shape = hosts[0].shape
    exact = update(*(x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in hosts))
    plain = update(*hosts).astype(np.complex64)
    report = BenchReport(device.info() | {"libraries": {"cufft": library(device, "cufft")}})
    cpu = Row(Subject("ptychography", "cpu", None, shape, "complex64", idea="numpy"))
    cpu.judge(compare(plain, exact, plain, size))
    cpu.timed(wall_clock(lambda: update(*hosts), most=3))
    report.rows.append(cpu)
    step = Step(device, stream, *hosts)
    for rung, (name, idea) in enumerate((("separate", "eight element-wise kernels"), ("fused", "three")), 1):
        subject = Subject(
            "ptychography", name, rung, shape, "complex64", idea=f"{idea}, {BYTES[name]} bytes per element"
        )
        row = Row(subject)
        step.updated.fill(complex(np.nan, np.nan), stream)
        work = getattr(step, name)
        if gpu:
            work()
        else:
            with device.counters() as counters:
                work()
            total = sum(counted.global_bytes for counted in counters.values())
            row.counters = {"bytes_per_element": total / hosts[0].size}
        row.judge(compare(step.updated.numpy(stream), exact, plain, size))
        if gpu:
            row.timed(GpuTimer(device, stream).time([work]), traffic=BYTES[name] * hosts[0].size)
        report.rows.append(row)
    transforms = Row(Subject("ptychography", "transforms", None, shape, "complex64", idea="the two FFTs alone"))
    z = step.spectra

    def both():
        fft.fft(z, axes=2, out=z, norm=None, stream=stream)
        fft.ifft(z, axes=2, out=z, norm=None, stream=stream)

    z.copy_from(step.patches, stream)
    both()
    there_and_back = np.fft.ifft2(np.fft.fft2(hosts[0]).astype(np.complex64)).astype(np.complex64)
    transforms.judge(compare(z.numpy(stream) / step.size, hosts[0].astype(np.complex128), there_and_back, size))
    if gpu:
        transforms.timed(GpuTimer(device, stream).time([both]))
    report.rows.append(transforms)
    return report


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        report = measure(device, stream, arguments)
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--positions", type=cli.positive, metavar="N", help="default: 512; 3 on the simulated device")
    parser.add_argument("--size", type=cli.positive, metavar="N", help="rows and columns of a patch (default: 256; 16)")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
