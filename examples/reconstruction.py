"""Ptychography until it converges: reconstruct an object from the diffraction amplitudes of overlapping patches.

An iteration multiplies every patch by the known probe, transforms it, sets the measured amplitudes, transforms it back,
and moves the object towards the waves of all patches: the mean of conj(probe) * change, weighted by |probe|^2. Patches
overlap, so a kernel with one thread per element of a patch would race when it adds to the object. The kernel `gather`
has one thread per element of the object instead: it sums the patches that cover its element, without atomics, always in
the same order. With momentum, the next iteration starts from an extrapolation of the last two objects.

The object is synthetic, from a seed, so the error is known. Amplitudes do not determine the global phase, so the error
is the relative distance after the best common phase: min over phi of |object - exp(i phi) truth| / |truth|.

    python examples/reconstruction.py
    python examples/reconstruction.py --side 32 --size 256 --step 32 --iterations 200 --json -
"""

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cudakit.commands import cli, ladder
from cudakit.compare import within
from cudakit.errors import Refused
from cudakit.libs import fft, library
from cudakit.measure.rows import BenchReport, Row, Subject
from cudakit.measure.timing import GpuTimer, wall_clock
from cudakit.rounding import U, of_set_amplitudes
from cudakit.show import outputs, terminal

BLOCK = 256
TILE = (32, 8)  # columns and rows of the object per block of `gather`
LEAST = 0.01  # least weight of an element, relative to the probe's maximum; limits the step at the object's edge


@dataclass(frozen=True)
class Scan:
    """A measurement: the object (to be found), the probe, the corners of the patches, and the amplitudes."""

    truth: np.ndarray
    probe: np.ndarray
    corners: np.ndarray
    measured: np.ndarray

    def inner(self, image):
        """Return the part in which the error is measured, in double precision: without half a patch at each edge, which
        few patches cover."""
        margin = len(self.probe) // 2
        return image[margin:-margin, margin:-margin].astype(np.complex128)

    @cached_property
    def inner_truth(self):
        return self.inner(self.truth)

    def error(self, found):
        """Return the relative distance of an object from the truth after the best common phase. The square of that
        distance is |a|^2 + |b|^2 - 2 |<a, b>|."""
        a, b = self.inner(found), self.inner_truth
        own, true, common = np.vdot(a, a).real, np.vdot(b, b).real, abs(np.vdot(a, b))
        return float(np.sqrt(max(own + true - 2 * common, 0.0) / true))


def each(function, count):
    """Call function(0) to function(count - 1) in threads (numpy releases the interpreter's lock)."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, range(count)))


def smooth(rng, shape):
    """Return random numbers without frequencies much above 0.1 per element, of at most 1 in magnitude."""
    down, right = (np.fft.fftfreq(extent) for extent in shape)
    low = np.exp(-(down[:, None] ** 2 + right**2) / 0.02)
    numbers = np.fft.ifft2(np.fft.fft2(rng.standard_normal(shape)) * low).real
    return numbers / np.abs(numbers).max()


def make(side, size, step, seed=0):
    """Return a scan of side * side patches, `step` elements apart and displaced by up to a quarter of it: a regular
    grid has solutions that repeat with its step."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(*2 * [np.arange(side) * step], indexing="ij"), axis=-1).reshape(-1, 2)
    corners = (grid + rng.integers(0, step // 4 + 1, grid.shape)).astype(np.int32)
    extent = (side - 1) * step + step // 4 + size
    shape = (extent, extent)
    truth = (0.8 - 0.2 * smooth(rng, shape)) * np.exp(1.5j * smooth(rng, shape))
    # Centred on element size / 2. A probe that is symmetric about the middle has a spectrum with zeros, whose phase is
    # only rounding.
    axis = 2 * np.arange(size) / size - 1
    square = axis[:, None] ** 2 + axis**2
    probe = (np.exp(-2 * square) * np.exp(1j * np.pi * size / 8 * square)).astype(np.complex64)

    def amplitudes(j):
        row, col = corners[j]
        return np.abs(np.fft.fft2(probe * truth[row : row + size, col : col + size])).astype(np.float32)

    measured = np.stack(each(amplitudes, len(corners)))
    return Scan(truth.astype(np.complex64), probe, corners, measured)


def iterated(scan, found, ahead, factor, kind, bounded=True):
    """Return numpy's next object and its extrapolation, in the precision `kind`, and the rounding that float32 may add
    to the object, if `bounded`."""
    size, probe = len(scan.probe), scan.probe.astype(kind)
    measured, light = scan.measured.astype(probe.real.dtype), np.abs(probe)

    def change(j):
        row, col = scan.corners[j]
        exits = probe * ahead[row : row + size, col : col + size]
        spectrum = np.fft.fft2(exits).astype(kind)
        length = np.abs(spectrum)
        safe = np.where(length > 0, length, 1)
        constrained = np.where(length > 0, measured[j] * (spectrum / safe), measured[j])
        rounding = of_set_amplitudes(spectrum, measured[j]) * light if bounded else 0.0
        return np.conj(probe) * (np.fft.ifft2(constrained).astype(kind) - exits), rounding

    total, rounding = np.zeros(found.shape, kind), np.zeros(found.shape)
    weight = np.full(found.shape, light.max() ** 2 * LEAST)
    for (row, col), (own, error) in zip(scan.corners, each(change, len(scan.corners)), strict=True):
        part = np.s_[row : row + size, col : col + size]
        total[part] += own
        rounding[part] += error
        weight[part] += light**2
    next_one = (ahead + total / weight).astype(kind)
    further = next_one + probe.real.dtype.type(factor) * (next_one - found)
    return next_one, further, rounding / weight + 16 * U * (np.abs(ahead) + np.abs(next_one))


def tiles(corners, size, shape):
    """Return the positions whose patches overlap each tile: `first`, where the list of each tile begins, and `listed`,
    all lists one after the other, each in ascending order."""
    touches = []
    for axis, length in ((0, TILE[1]), (1, TILE[0])):
        begins = np.arange(0, shape[axis], length)[:, None]
        touches.append((corners[:, axis] < begins + length) & (corners[:, axis] + size > begins))
    overlap = (touches[0][:, None] & touches[1][None]).reshape(-1, len(corners))
    first = np.concatenate([[0], np.cumsum(overlap.sum(axis=1))])
    return first.astype(np.int32), np.nonzero(overlap)[1].astype(np.int32)


class Reconstruction:
    """The arrays of one reconstruction, and its iterations on one stream. It starts from a constant object of 1."""

    def __init__(self, device, stream, scan, momentum=True):
        self.device, self.stream, self.scan, self.momentum = device, stream, scan, momentum
        self.size, self.shape = len(scan.probe), scan.truth.shape
        hosts = (scan.probe, scan.measured, scan.corners, *tiles(scan.corners, self.size, self.shape))
        self.probe, self.measured, self.corners, self.first, self.listed = (
            device.array(host, stream=stream) for host in hosts
        )
        self.object, self.ahead = (device.empty(self.shape, np.complex64, stream) for _ in range(2))
        self.waves = device.empty(scan.measured.shape, np.complex64, stream)
        self.least = float(LEAST * np.max(np.abs(scan.probe)) ** 2)
        self.overlapping, self.fused = (device.compile(f"ptychography/{name}.cu") for name in ("overlapping", "fused"))
        self.restart()

    def restart(self):
        self.done = 0
        self.object.fill(1, self.stream)
        self.ahead.fill(1, self.stream)

    @property
    def factor(self):
        """The momentum of the next iteration: k / (k + 3) for iteration k, or 0 without momentum."""
        return self.done / (self.done + 3) if self.momentum else 0.0

    def check(self):
        """Queue one iteration, and compare it with numpy's from the same object. Return the comparison of the object
        and of its extrapolation."""
        before = [array.numpy(self.stream).astype(np.complex128) for array in (self.object, self.ahead)]
        factor = self.factor
        self.iterate()
        found, further, rounding = iterated(self.scan, *before, factor, np.complex128)
        return [
            within(self.object.numpy(self.stream), found, rounding),
            within(self.ahead.numpy(self.stream), further, (1 + 2 * factor) * rounding),
        ]

    def iterate(self):
        """Queue one iteration."""
        waves, size, (rows, cols), count = self.waves, self.size, self.shape, self.scan.measured.size
        grid = -(-count // BLOCK)
        self.overlapping["illuminate"].launch(
            self.stream, grid, BLOCK, args=(self.ahead, self.corners, self.probe, waves, size, cols, count)
        )
        fft.fft(waves, axes=2, out=waves, norm=None, stream=self.stream)
        self.fused["constrain"].launch(self.stream, grid, BLOCK, args=(waves, self.measured, 1 / size**2, count))
        fft.ifft(waves, axes=2, out=waves, norm=None, stream=self.stream)
        self.overlapping["gather"].launch(
            self.stream, (-(-cols // TILE[0]), -(-rows // TILE[1])), TILE,
            args=(
                self.object, self.ahead, self.corners, self.first, self.listed, self.probe, waves, self.least,
                self.factor, size, rows, cols,
            ),
        )  # fmt: skip
        self.done += 1

    def errors(self, iterations):
        """Run some iterations from the start. Return the error before the first and after each one."""
        self.restart()
        found = [self.scan.error(self.object.numpy(self.stream))]
        for _ in range(iterations):
            self.iterate()
            found.append(self.scan.error(self.object.numpy(self.stream)))
        return found


@dataclass
class ErrorsRow(Row):
    """A row with the size of the object, the number of iterations, and the error before the first and after each. Its
    time is that of one iteration."""

    extent: tuple = ()
    iterations: int = 0
    errors: list = field(default_factory=list)
    last_error: float | None = None


WAYS = (("plain", False, "each iteration starts from the last object"), ("momentum", True, "from an extrapolation"))


def measure(device, stream, arguments):
    """The report of numpy and of the two ways, on one scan."""
    gpu = device.kind == "gpu"
    side, size = arguments.side or (32 if gpu else 5), arguments.size or (256 if gpu else 12)
    iterations = arguments.iterations or (200 if gpu else 40)
    if side < 2 or size < 2:
        raise Refused(f"--side and --size must be at least 2, got {side} and {size}: the error leaves out the edges")
    scan = make(side, size, arguments.step or max(size // (8 if gpu else 4), 1))
    shape = scan.measured.shape
    report = BenchReport(device.info() | {"libraries": {"cufft": library(device, "cufft")}})
    start = np.ones(scan.truth.shape, np.complex64)
    cpu = ErrorsRow(Subject("reconstruction", "cpu", None, shape, "complex64", idea="numpy"), extent=scan.truth.shape)
    exact, _, rounding = iterated(scan, start, start, 0.0, np.complex128)
    own = []
    cpu.timed(wall_clock(lambda: own.append(iterated(scan, start, start, 0.0, np.complex64, bounded=False)), most=1))
    cpu.judge(within(own[0][0], exact, rounding))
    report.rows.append(cpu)
    for rung, (name, momentum, idea) in enumerate(WAYS, 1):
        subject = Subject("reconstruction", name, rung, shape, "complex64", idea=idea)
        row = ErrorsRow(subject, extent=scan.truth.shape, iterations=iterations)
        work = Reconstruction(device, stream, scan, momentum)
        verdicts = work.check()
        with nullcontext({}) if gpu else device.counters() as counters:
            work.iterate()
        if not gpu:
            total = sum(counted.global_bytes for counted in counters.values())
            row.counters = {"bytes_per_element": total / scan.measured.size}
        verdicts += work.check()  # the third iteration has momentum
        row.judge(max(verdicts, key=lambda verdict: (not verdict.ok, verdict.max_abs_error)))
        row.errors = work.errors(iterations)
        row.last_error = row.errors[-1]
        if not row.last_error < row.errors[0]:
            row.fail(f"the error did not fall: {row.errors[0]:.4g} at first, {row.last_error:.4g} at the end")
        if gpu:
            row.timed(GpuTimer(device, stream).time([work.iterate]))
        report.rows.append(row)
    return report


def show_errors(rows, console):
    """Print the error of each way after some of the iterations."""
    ways = [row for row in rows if row.errors]
    last = ways[0].iterations
    some = [number for number in (0, 1, 2, 5, 10, 20, 50, 100, 200, 500) if number < last] + [last]
    columns = [terminal.Column("iterations", [str(number) for number in some])]
    for row in ways:
        columns.append(terminal.Column(row.subject.variant, [f"{row.errors[number]:.4f}" for number in some]))
    terminal.show_table(console, "error", columns)


def run(arguments):
    outputs.check_destination("--json", arguments.json)
    table, _ = cli.consoles(arguments)
    with cli.open_device(arguments.device) as device, device.stream() as stream:
        report = measure(device, stream, arguments)
    show_errors(report.rows, table)
    return ladder.finish(report, arguments, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=cli.HelpFormatter)
    cli.add_common_arguments(parser)
    parser.add_argument("--side", type=cli.positive, metavar="N", help="patches per row and column (default: 32; 5)")
    parser.add_argument("--size", type=cli.positive, metavar="N", help="rows and columns of a patch (default: 256; 12)")
    parser.add_argument("--step", type=cli.positive, metavar="N", help="elements between patches (default: size/8; /4)")
    parser.add_argument("--iterations", type=cli.positive, metavar="N", help="iterations (default: 200; 40)")
    sys.exit(cli.guarded(lambda: run(parser.parse_args())))
