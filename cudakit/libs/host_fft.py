"""cuFFT for the simulated device: the functions of nvmath.bindings.cufft, computed by numpy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cudakit.driver.context import Context
from cudakit.libs.host import DeviceOperand, enqueue
from cudakit.memory.array import as_dtype


class Fft:
    """The functions of nvmath.bindings.cufft that cudakit calls, for one simulated device.

    A transform writes its work area, as in cuFFT: a plan used on two streams at once is a race on it. A transform from
    complex to real also overwrites its input.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._plans: dict[int, dict[str, Any]] = {}
        self._numbers = itertools.count(1)

    def create(self) -> int:
        number = next(self._numbers)
        self._plans[number] = {"stream": 0, "area": 0}
        return number

    def destroy(self, plan: int) -> None:
        del self._plans[plan]

    def set_auto_allocation(self, plan: int, auto_allocate: int) -> None:
        """Ignored: the caller always allocates the work area."""

    def set_stream(self, plan: int, stream: int) -> None:
        self._plans[plan]["stream"] = stream

    def set_work_area(self, plan: int, work_area: int) -> None:
        self._plans[plan]["area"] = work_area

    def make_plan_many64(
        self, plan: int, rank: int, n: Sequence[int], inembed: Any, istride: int, idist: int, onembed: Any,
        ostride: int, odist: int, type: int, batch: int,
    ) -> int:  # fmt: skip
        """Return the size of the work area, in bytes. The arrays must be contiguous."""
        self._plans[plan].update(n=tuple(n), batch=batch, size=8 * math.prod(n) * batch)
        return int(self._plans[plan]["size"])

    def _exec(self, plan: int, name: str, idata: int, odata: int, kinds: tuple[Any, Any], inverse: bool) -> None:
        made = self._plans[plan]
        n, batch = made["n"], made["batch"]
        half = (*n[:-1], n[-1] // 2 + 1)
        to_real, of_real = (as_dtype(kind).kind == "f" for kind in (kinds[1], kinds[0]))
        shapes = (half if to_real else n), (half if of_real else n)
        source, target = (
            DeviceOperand(self._context, pointer, kind, (batch * math.prod(shape),), (as_dtype(kind).itemsize,))
            for pointer, kind, shape in zip((idata, odata), kinds, shapes, strict=True)
        )
        area = DeviceOperand(self._context, made["area"], np.uint8, (made["size"],), (1,))
        axes = tuple(range(1, len(n) + 1))

        def work() -> None:
            x = source.view().reshape(batch, *shapes[0])
            result: Any
            if to_real:
                result = np.fft.irfftn(x, n, axes, norm="forward")
                source.view()[...] = np.nan
            elif of_real:
                result = np.fft.rfftn(x, n, axes)
            elif inverse:
                result = np.fft.ifftn(x, n, axes, norm="forward")
            else:
                result = np.fft.fftn(x, n, axes)
            area.view()[...] = 0
            target.view()[...] = result.reshape(-1)

        written = [area, target, *([source] if to_real and idata != odata else [])]
        enqueue(self._context, made["stream"], name, work, [source], written)

    def exec_c2c(self, plan: int, idata: int, odata: int, direction: int) -> None:
        self._exec(plan, "cufftExecC2C", idata, odata, (np.complex64, np.complex64), direction > 0)

    def exec_z2z(self, plan: int, idata: int, odata: int, direction: int) -> None:
        self._exec(plan, "cufftExecZ2Z", idata, odata, (np.complex128, np.complex128), direction > 0)

    def exec_r2c(self, plan: int, idata: int, odata: int) -> None:
        self._exec(plan, "cufftExecR2C", idata, odata, (np.float32, np.complex64), False)

    def exec_d2z(self, plan: int, idata: int, odata: int) -> None:
        self._exec(plan, "cufftExecD2Z", idata, odata, (np.float64, np.complex128), False)

    def exec_c2r(self, plan: int, idata: int, odata: int) -> None:
        self._exec(plan, "cufftExecC2R", idata, odata, (np.complex64, np.float32), True)

    def exec_z2d(self, plan: int, idata: int, odata: int) -> None:
        self._exec(plan, "cufftExecZ2D", idata, odata, (np.complex128, np.float64), True)
