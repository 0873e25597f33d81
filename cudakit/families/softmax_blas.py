"""Row softmax by a BLAS library's reductions: two variants of the softmax ladder that show the cost of several calls
per row.

amax and asum are enough for a softmax: find the maximum of a row, subtract it and take exponentials, sum them, divide.
One variant copies every maximum back to the host, which waits for the device at least once per row. The other makes the
same calls but leaves their results on the device, and the host never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cudakit.families.softmax_problem import RowProblem
from cudakit.family import Launch, ceil_div, variant
from cudakit.libs import blas

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.driver.stream import Stream
    from cudakit.launch.kernel import Kernel
    from cudakit.memory.array import DeviceArray

BLOCK = 256
# At least three calls per row: more rows take long and show nothing new.
MOST_ROWS = 4096

KernelOf = Callable[[Launch], "Kernel"]


class _Steps:
    """The kernels on the arrays of one problem, and their intermediate arrays."""

    def __init__(
        self, device: Device, kernel_of: KernelOf, problem: RowProblem, x: DeviceArray, y: DeviceArray, stream: Stream
    ) -> None:
        rows, cols = problem.rows, problem.cols
        self.kernel_of, self.problem, self.stream = kernel_of, problem, stream
        self.x, self.y = (a if a.ndim == 2 else a[None] for a in (x, y))
        self.keys = device.empty((2, rows, cols), np.float32, stream)
        self.places = device.empty((2, rows), np.int32, stream)
        self.maxima, self.sums = (device.empty(rows, np.float32, stream) for _ in range(2))

    def close(self) -> None:
        for array in (self.keys, self.places, self.maxima, self.sums):
            array.close()

    def _launch(self, entry: str, threads: int, *args: Any) -> None:
        launch = Launch(ceil_div(threads, BLOCK), BLOCK, entry=entry)
        self.kernel_of(launch).launch(self.stream, **launch.keywords(args))

    def find_keys(self) -> None:
        p = self.problem
        args = (self.x, self.keys[0], self.keys[1], *p.x_strides, p.rows, p.cols)
        self._launch("blas_keys", p.rows * p.cols, *args)

    def pick_maxima(self) -> None:
        p = self.problem
        args = (self.x, self.places[0], self.places[1], self.maxima, *p.x_strides, p.rows)
        self._launch("blas_maxima", p.rows, *args)

    def exponentials(self, rows: slice) -> None:
        p = self.problem
        x, y, count = self.x[rows], self.y[rows], len(range(*rows.indices(p.rows)))
        args = (x, y, self.maxima[rows], *p.x_strides, *p.y_strides, count, p.cols)
        self._launch("blas_exponentials", count * p.cols, *args)

    def quotients(self, rows: slice) -> None:
        p = self.problem
        count = len(range(*rows.indices(p.rows)))
        self._launch("blas_quotients", count * p.cols, self.y[rows], self.sums[rows], *p.y_strides, count, p.cols)

    def read_maximum(self, row: int) -> Any:
        """Return the maximum of a row; read from the device until the maximum is certain."""
        value: Any = np.nan
        for values in (self.x[row], self.keys[0, row], self.keys[1, row]):
            place = blas.amax(values, self.places[0, row], stream=self.stream).numpy(self.stream)
            value = self.x[row, int(place) - 1].numpy(self.stream)
            if value > 0:  # a positive value of largest magnitude is the maximum; otherwise try the keys
                break
        return value


def _read_back(
    device: Device,
    kernel_of: KernelOf,
    problem: RowProblem,
    inputs: Sequence[DeviceArray],
    output: DeviceArray,
    stream: Stream,
) -> None:
    """Compute one row at a time and read its maximum back to the host; the device is idle until the host continues."""
    steps = _Steps(device, kernel_of, problem, inputs[0], output, stream)
    try:
        steps.find_keys()
        for row in range(problem.rows):
            one = slice(row, row + 1)
            steps.maxima[one].fill(steps.read_maximum(row), stream)
            steps.exponentials(one)
            blas.asum(steps.y[row], steps.sums[row], stream=stream)
            steps.quotients(one)
    finally:
        steps.close()


def _on_device(
    device: Device,
    kernel_of: KernelOf,
    problem: RowProblem,
    inputs: Sequence[DeviceArray],
    output: DeviceArray,
    stream: Stream,
) -> None:
    """Make the same calls with their results left on the device: the host only queues work and never waits."""
    steps = _Steps(device, kernel_of, problem, inputs[0], output, stream)
    everything = slice(0, problem.rows)
    try:
        steps.find_keys()
        for row in range(problem.rows):
            for half in (0, 1):
                blas.amax(steps.keys[half, row], steps.places[half, row], stream=stream)
        steps.pick_maxima()
        steps.exponentials(everything)
        for row in range(problem.rows):
            blas.asum(steps.y[row], steps.sums[row], stream=stream)
        steps.quotients(everything)
    finally:
        steps.close()


def _answer(problem: RowProblem) -> tuple[Launch, ...] | str:
    """Return no launches, as `run` makes them all; or the reason why these variants do not support a problem."""
    if not problem.blas:
        return "cuBLAS's bindings are not installed: pip install 'cudakit[libs]'"
    if problem.rows > MOST_ROWS:
        return f"at most {MOST_ROWS} rows supported, got {problem.rows} (several calls per row)"
    if problem.cols > 1 and problem.x_strides[1] < 1:
        return "BLAS supports only positive strides within a row"
    return ()


@variant("softmax/14_blas.cu", run=_read_back, waits=True, problems="forwards")
def blas_read_back(problem: RowProblem) -> tuple[Launch, ...] | str:
    """amax and asum of a BLAS library, every maximum read back to the host"""
    return _answer(problem)


@variant("softmax/14_blas.cu", run=_on_device, problems="forwards")
def blas_on_device(problem: RowProblem) -> tuple[Launch, ...] | str:
    """the same calls, results left on the device"""
    return _answer(problem)
