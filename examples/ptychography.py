"""A step of ptychography for a batch of positions: probe product, FFT, constraint, inverse FFT, object update.

The measured amplitudes replace the computed ones and the phases stay; the change updates the object. The two transforms
are surrounded by eight element-wise steps. One kernel per step passes over memory eight times, 148 bytes per element;
fused into three kernels the steps move 60 bytes (and 16 of the probe, which stays in cache; the simulated device counts
them too). The transforms move the rest. Each stream has its own plan: two simultaneous transforms must not share a
plan's work area.

With --sweep it compares both at each size from 64 to 2048, in batches with the same number of elements, and for one
patch. The GPU's time does not include the launches; `loop_ms` does: the time per step in a loop of the host.

    python examples/ptychography.py
    python examples/ptychography.py --positions 2048 --size 256 --json -
    python examples/ptychography.py --sweep
"""

import argparse
import math
import sys
from dataclasses import dataclass

import numpy as np

from cudakit.commands import cli, ladder
from cudakit.compare import compare, within
from cudakit.errors import Refused
from cudakit.libs import fft, library
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import GpuTimer, wall_clock
from cudakit.rounding import U, of_set_amplitudes
from cudakit.show import outputs

BLOCK = 256
BYTES = {"separate": 148, "fused": 60}  # per element, of the element-wise steps
DISTINCT = 1 << 21  # elements of the patches that differ, in each case of --sweep


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


class Case:
    """The update of a batch of patches, its reference, and the rounding that float32 may add. At most `distinct`
    patches differ; the batch repeats them."""

    def __init__(self, positions, size, distinct=None):
        self.size, self.hosts = size, make(min(positions, distinct or positions), size)
        self.shape = (positions, size, size)
        self.rows = []
        patches, probe, measured = (x.astype(np.complex128 if x.dtype.kind == "c" else float) for x in self.hosts)
        self.exact = update(patches, probe, measured)
        bounds = of_set_amplitudes(np.fft.fft2(probe * patches), measured)[:, None, None]
        light = np.abs(probe)
        self.rounding = light / np.max(light) ** 2 * bounds + 8 * U * (np.abs(patches) + np.abs(self.exact))

    def row(self, variant, rung, idea):
        self.rows.append(StepRow(Subject("ptychography", variant, rung, self.shape, "complex64", idea=idea)))
        return self.rows[-1]

    def repeated(self):
        """The patches, the probe and the amplitudes of the whole batch."""
        patches, probe, measured = self.hosts
        return np.resize(patches, self.shape), probe, np.resize(measured, self.shape)

    def check(self, group):
        """Compare a repetition of the patches, or the first of them, with the reference."""
        few = len(group)
        return within(group, self.exact[:few], self.rounding[:few])

    def judge(self, row, results, check):
        """Check all results: the first repetition of the patches, and each other one that differs from it."""
        size = len(self.exact)
        groups = [results[at : at + size] for at in range(0, len(results), size)]
        row.judge(check(groups[0]))
        for number, group in enumerate(groups[1:], 1):
            if not np.array_equal(group, groups[0][: len(group)]):
                verdict = check(group)
                if not verdict.ok:
                    row.fail(f"repetition {number} of the patches: {verdict.why}")


@dataclass
class StepRow(Row):
    """A row with the milliseconds per step in a loop of the host."""

    loop_ms: float | None = None


def looped(work, stream, step_ms):
    """Milliseconds per call of `work` in a loop of about 20 ms that ends with a synchronisation."""
    calls = max(3, min(200, math.ceil(20 / step_ms)))

    def loop():
        for _ in range(calls):
            work()
        stream.synchronize()

    return wall_clock(loop, most=5).median / calls


def measured_rows(device, stream, case):
    """The rows of separate and fused kernels, and of the transforms alone."""
    gpu, count = device.kind == "gpu", math.prod(case.shape)
    hosts = case.repeated()
    step = Step(device, stream, *hosts)

    def timed(row, work, **rates):
        if gpu:
            row.timed(GpuTimer(device, stream).time([work]), **rates)
            row.loop_ms = looped(work, stream, row.times.device.median)

    for rung, (name, idea) in enumerate((("separate", "eight element-wise kernels"), ("fused", "three")), 1):
        row = case.row(name, rung, f"{idea}, {BYTES[name]} bytes per element")
        step.updated.fill(complex(np.nan, np.nan), stream)
        work = getattr(step, name)
        if gpu:
            work()
        else:
            with device.counters() as counters:
                work()
            total = sum(counted.global_bytes for counted in counters.values())
            row.counters = {"bytes_per_element": total / count}
        case.judge(row, step.updated.numpy(stream), case.check)
        timed(row, work, traffic=BYTES[name] * count)
    transforms = case.row("transforms", None, "the two FFTs alone")
    z, patches = step.spectra, case.hosts[0]

    def both():
        fft.fft(step.patches, axes=2, out=z, norm=None, stream=stream)
        fft.ifft(z, axes=2, out=z, norm=None, stream=stream)

    both()
    references = patches.astype(np.complex128), np.fft.ifft2(np.fft.fft2(patches)).astype(np.complex64)
    results = z.numpy(stream) / np.float32(step.size)
    case.judge(transforms, results, lambda group: compare(group, *(x[: len(group)] for x in references), case.size))
    timed(transforms, both)
    return case.rows


def cpu_row(case):
    row = case.row("cpu", None, "numpy")
    row.judge(case.check(update(*case.hosts).astype(np.complex64)))
    row.timed(wall_clock(lambda: update(*case.hosts), most=3))
    return row


def sweep(arguments, gpu):
    """The cases of --sweep: each size in a batch of --elements, and as one patch."""
    for size in arguments.sizes or ([64, 128, 256, 512, 1024, 2048] if gpu else [4, 8, 16]):
        positions = (arguments.elements or (1 << 25 if gpu else 512)) // size**2
        if positions < 1:
            raise Refused(f"a patch of {size}x{size} has more elements than --elements allows: pass at least {size**2}")
        for number in dict.fromkeys((positions, 1)):
            yield Case(number, size, max(1, DISTINCT // size**2))


def measure(device, stream, arguments):
    """The report of one case, or of all cases of --sweep."""
    gpu = device.kind == "gpu"
    report = BenchReport(device.info() | {"libraries": {"cufft": library(device, "cufft")}})
    if arguments.sweep:
        for case in sweep(arguments, gpu):
            report.rows += measured_rows(device, stream, case)
    else:
        case = Case(arguments.positions or (512 if gpu else 3), arguments.size or (256 if gpu else 16))
        cpu_row(case)
        report.rows = measured_rows(device, stream, case)
    return report


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        report = measure(device, stream, arguments)
    return ladder.finish(report, arguments, table)


def sizes(text):
    return [cli.positive(part) for part in text.split(",")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--positions", type=cli.positive, metavar="N", help="default: 512; 3 on the simulated device")
    parser.add_argument("--size", type=cli.positive, metavar="N", help="rows and columns of a patch (default: 256; 16)")
    parser.add_argument("--sweep", action="store_true", help="compare sizes, in equal batches and for one patch")
    parser.add_argument("--sizes", type=sizes, metavar="N,...", help="sizes of --sweep (default: 64 to 2048; 4,8,16)")
    parser.add_argument("--elements", type=cli.positive, metavar="N", help="elements per batch (default: 2^25; 512)")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
