"""The hybrid filter in three launches, on Fourier transforms of our own."""

from dataclasses import replace

import numpy as np

from cudakit.compile.headers import kernel_root
from cudakit.errors import Refused
from cudakit.families.fft_plan import Plan, plan_for
from cudakit.family import ceil_div, cpp_bool

THRESHOLD, LOW_PASS = ("Threshold", np.float32(0.3)), ("LowPass", np.float32(0.1))
LINE = 16  # complex numbers per 128-byte line
WIDEST, NARROWEST = 8, 4  # columns per block of Fused
# Plans of Fused for rows, forward and inverse, by the values of a transform
ROWS: dict[int, tuple[Plan, Plan]] = {512: (Plan(512, 64, 2, False, (8, 8, 8), 8),) * 2}
# Plans of Fused for columns, by the values and the columns per block
COLUMNS: dict[tuple[int, int], Plan] = {
    (1024, 4): Plan(1024, 64, 4, True, (16, 4, 16), 2),
    (1024, 8): Plan(1024, 32, 8, True, (32, 32), 2),
}


class Fused:
    """The filter of images of one shape in three launches.

    Args:
        device: The device.
        stream: The stream of all launches.
        images: The number of images per launch; it has the memory of their spectra.
        rows: Rows of an image. Its prime factors are at most 13, and a column fits into a block's shared memory.
        cols: Columns of an image, likewise.
        before: The functor that is applied to each pixel: its name in kernels/hybrid/fused.cu, and its fields.
        gain: The functor that returns the gain at a frequency: its name, and its fields.
        source: A text that includes hybrid/fused.cu and defines functors of your own.
        plans: Plans of the rows, the columns and the result's rows.

    Raises:
        Refused: If a row or column has too many values or large prime factors.
    """

    def __init__(
        self, device, stream, images, rows, cols, *, before=THRESHOLD, gain=LOW_PASS, source=None, plans=None,
    ):  # fmt: skip
        self.stream, self.images, self.rows, self.cols = stream, images, rows, cols
        self.half = cols // 2 + 1
        self.before, self.gain = (bytes(fields) for _, fields in (before, gain))
        self.plan, self.columns, self.plan_back = plans or self.plans(device)
        self.back = replace(self.columns, radices=self.columns.radices[::-1])
        even = cpp_bool(cols % 2 == 0)
        names = (
            f"rows_to_spectra<{self.plan.text}, {even}, {before[0]}, {self.plan.blocks}>",
            f"filter_columns<{self.columns.text}, {self.back.text}, {cols}, {gain[0]}, {self.columns.blocks}>",
            f"spectra_to_rows<{self.plan_back.text}, {even}, {self.plan_back.blocks}>",
        )
        if source is None:
            module = device.compile("hybrid/fused.cu", names=names)
        else:
            module = device.compile(source=source, name="own_filter.cu", names=names, include=[kernel_root()])
        self.kernels = [module[name] for name in names]
        self.spectra = device.empty((images, rows, ceil_div(self.half, LINE) * LINE), np.complex64, stream=stream)

    def found(self, device, n, inner, rows=0, *, form):
        """The plan of rows or columns of n values; rows: how many per block, 0 for the default."""
        shared = device.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        plan = plan_for(n, inner, form == "fft", shared, rows=rows, form=form)
        if isinstance(plan, str):
            raise Refused(f"the fused filter does not support images of {self.rows}x{self.cols}: {plan}")
        return plan

    def plans(self, device):
        """The default plans. With few images, a block has fewer columns, so that each multiprocessor has a block."""
        n = self.cols if self.cols % 2 else self.cols // 2
        wide = WIDEST
        while wide > NARROWEST and ceil_div(self.half, wide) * self.images < device.multiprocessors:
            wide //= 2
        columns = COLUMNS.get((self.rows, wide)) or self.found(device, self.rows, self.half, wide, form="fft")
        forward, inverse = ROWS.get(n) or (
            self.found(device, n, self.images * self.rows, form=form) for form in ("rfft", "irfft")
        )
        return forward, columns, inverse

    def forward(self, images):
        """Queue the threshold and the transforms of the rows."""
        self._rows(0, self.plan, images.size // self.cols, images, self.spectra, self.before)

    def filter(self, images):
        """Queue the transforms of the columns, the filter, and the inverse transforms."""
        count = images.size // (self.rows * self.cols)
        self.kernels[1].launch(
            self.stream, grid=ceil_div(self.half, self.columns.rows) * count, block=self.columns.block,
            shared=max(self.columns.shared, self.back.shared),
            args=(self.spectra, self.gain),
        )  # fmt: skip

    def inverse(self, out):
        """Queue the inverse transforms of the rows, normalised."""
        self._rows(2, self.plan_back, out.size // self.cols, self.spectra, out, 1 / (self.rows * self.cols))

    def _rows(self, number, plan, count, source, target, last):
        self.kernels[number].launch(
            self.stream, grid=ceil_div(count, plan.rows), block=plan.block, shared=plan.shared,
            args=(source, target, count, last),
        )  # fmt: skip

    def run(self, images, out):
        """Queue the filter of any number of images, at most `self.images` per launch."""
        for first in range(0, len(images), self.images):
            part = slice(first, first + self.images)
            self.queue(images[part], out[part])

    def queue(self, images, out):
        self.forward(images)
        self.filter(images)
        self.inverse(out)
