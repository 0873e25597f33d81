"""cuFFT on cudakit's arrays and streams: transforms of one to three axes, complex and real, single and double.

    from cudakit.libs import fft
    f = fft.fft(x, axes=2)                 # the last two axes, every image of a stack; numpy's scaling
    y = fft.ifft(f, axes=2)

    plan = fft.Plan(dev, (256, 256), batch=100)
    plan.forward(x, f)                     # unscaled, as in cuFFT: inverse(forward(x)) is 65536 * x

A plan has one work area, which each transform writes to, so a plan must run on one stream at a time: concurrent streams
need a plan each. The functions here keep a plan per shape and stream.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cudakit import nvtx
from cudakit.device import Device
from cudakit.driver.context import Context
from cudakit.driver.stream import Stream
from cudakit.errors import Closed, DeviceMismatch
from cudakit.libs import calls, cublas
from cudakit.libs.calls import MOST, REAL, Area
from cudakit.memory import array as memory
from cudakit.memory import layout
from cudakit.memory.array import DeviceArray

#: Plans that the functions here keep per stream; the least recently used one is dropped first.
PLANS = 16
FORWARD, INVERSE = -1, 1
_RANGES = {FORWARD: nvtx.range("cufft.forward"), INVERSE: nvtx.range("cufft.inverse")}
# cufftType, and the function that runs it, by kind and the dtype of the complex side.
_EXECUTE = {
    ("C2C", "complex64"): (0x29, "exec_c2c"),
    ("R2C", "complex64"): (0x2A, "exec_r2c"),
    ("C2R", "complex64"): (0x2C, "exec_c2r"),
    ("C2C", "complex128"): (0x69, "exec_z2z"),
    ("R2C", "complex128"): (0x6A, "exec_d2z"),
    ("C2R", "complex128"): (0x6C, "exec_z2d"),
}
_COMPLEX = {real: wide for wide, real in REAL.items()}


class Plan:
    """A transform of `batch` arrays of one shape in one contiguous array.

    Each transform writes the plan's work area. If calls use several streams, the caller must order them, for example by
    events; otherwise they race, which the simulated device reports.

    Args:
        device: The device that runs it.
        shape: One to three extents; for "R2C" and "C2R" those of the real side. The last extent of the complex side is
            then n // 2 + 1.
        kind: "C2C", "R2C" or "C2R".
        batch: Number of arrays.
        dtype: Dtype of the complex side, "complex64" or "complex128".
        stream: The stream for calls that pass none; the device's default stream if None.

    Raises:
        ValueError: If cuFFT does not support the transform.
        TypeError: If `device` is not a Device.
    """

    def __init__(
        self,
        device: Device,
        shape: int | Sequence[int],
        kind: str = "C2C",
        *,
        batch: int = 1,
        dtype: Any = "complex64",
        stream: Any = None,
    ) -> None:
        if not isinstance(device, Device):
            raise TypeError(f"the first argument of Plan must be a Device, got {type(device).__name__}")
        extents, name = layout.as_shape(shape), memory.as_dtype(dtype).name
        if (kind, name) not in _EXECUTE:
            raise ValueError(
                f"cuFFT supports C2C, R2C and C2R with complex64 or complex128 on the complex side, got {kind!r} with "
                f"{name}"
            )
        if not 1 <= len(extents) <= 3 or 0 in extents or batch < 1 or max(*extents, batch) > MOST:
            raise ValueError(
                f"cuFFT supports 1 to 3 axes, none empty, and batches of 1 or more, got shape {extents}, batch {batch}"
            )
        self.context: Context = device.context
        self.shape, self.kind, self.batch, self.dtype = extents, kind, int(batch), memory.as_dtype(name)
        half = (*extents[:-1], extents[-1] // 2 + 1)
        real = memory.as_dtype(REAL[name])
        self._source = (half if kind == "C2R" else extents, real if kind == "R2C" else self.dtype)
        self._target = (half if kind == "R2C" else extents, real if kind == "C2R" else self.dtype)
        self._stream: Stream | None = calls.on_stream(device.context, stream)
        self._stream.expect_open()
        self._library = calls.bindings(device, "cufft")
        self._lock = threading.Lock()  # cuFFT supports one thread per plan at a time
        self._bound: dict[Any, list[Callable[[], Any]]] = {}
        self.context.make_current()
        type_, execute = _EXECUTE[kind, name]
        try:
            self._number: int = self._library.create()
            self._destroy = self.context.adopt(self, calls.release, self.context, self._library.destroy, self._number)
            self._library.set_auto_allocation(self._number, 0)
            lies = ((list(each), 1, math.prod(each)) for each in (self._source[0], self._target[0]))
            nbytes = self._library.make_plan_many64(
                self._number, len(extents), list(extents), *next(lies), *next(lies), type_, self.batch
            )
            self._area = Area(self.context, int(nbytes))
            if nbytes:
                self._library.set_work_area(self._number, self._area.handle)
            self._set_for = int(self._stream)
            self._library.set_stream(self._number, self._set_for)
        except Exception as error:
            raise calls.told(error, self._library) from error
        self._execute = getattr(self._library, execute)

    def __repr__(self) -> str:
        return f"Plan({self.context.spec!r}, {self.shape}, {self.kind!r}, batch={self.batch}, dtype={self.dtype})"

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def nbytes(self) -> int:
        """Size of its work area in device memory, in bytes."""
        return self._area.nbytes

    def close(self) -> None:
        """Free the plan and its work area after the device has finished their work. Idempotent."""
        with self._lock:
            self._bound.clear()
            self._destroy()
            self._area.close()

    def lend(self) -> None:
        """Prepare the plan to be kept by its stream: drop the reference to it, and do not report the area as a leak."""
        self._stream = None
        self.context.own.add(self._area)

    def forward(self, x: DeviceArray, out: DeviceArray | None = None, *, stream: Any = None) -> DeviceArray:
        """Queue the forward transform, with e^(-2 pi i jk/n) and unscaled, of a "C2C" or "R2C" plan.

        Args:
            x: The input, contiguous, of the plan's shape; (batch, *shape) for a batch.
            out: The result; a new array if None. For "C2C" it may be x.
            stream: The stream the call is queued on; the plan's stream if None.

        Returns:
            `out`; the call does not wait.
        """
        if self.kind == "C2R":
            raise ValueError("a C2R plan only transforms complex to real: use inverse(), or make an R2C or C2C plan")
        return self.run(x, out, FORWARD, stream)

    def inverse(self, x: DeviceArray, out: DeviceArray | None = None, *, stream: Any = None) -> DeviceArray:
        """Queue the inverse transform, with e^(+2 pi i jk/n) and unscaled, of a "C2C" or "C2R" plan.

        Args:
            x: The input, contiguous, of the plan's shape; (batch, *shape) for a batch. A "C2R" plan overwrites it, as
                cuFFT does: copy it first if it is still needed.
            out: The result; a new array if None. For "C2C" it may be x.
            stream: The stream the call is queued on; the plan's stream if None.

        Returns:
            `out`; the call does not wait.
        """
        if self.kind == "R2C":
            raise ValueError("an R2C plan only transforms real to complex: use forward(), or make a C2R or C2C plan")
        return self.run(x, out, INVERSE, stream)

    def run(
        self, x: DeviceArray, out: DeviceArray | None, direction: int, stream: Any = None, scale: float = 1.0
    ) -> DeviceArray:
        """Queue forward() or inverse(), then multiply the result by a factor, which cuBLAS does in a second pass.

        Args:
            x: The input, as for `forward` and `inverse`.
            out: The result; a new array if None.
            direction: FORWARD or INVERSE.
            stream: The stream the call is queued on; the plan's stream if None.
            scale: The factor; 1 needs no second pass.

        Returns:
            `out`; the call does not wait.
        """
        on = self._stream if stream is None else stream
        if type(on) is not Stream:
            on = calls.on_stream(self.context, on)
        if out is None:
            calls.expect_arrays(x)
            lead = x.shape[: max(x.ndim - len(self.shape), 0)]
            out = memory.empty(self.context, on, lead + self._target[0], self._target[1])
        calls.expect_arrays(x, out)
        key = (x.tag, out.tag, direction, scale, on.tag)
        work = self._bound.get(key)
        if work is None or not (x.allocation.open and out.allocation.open and self._destroy.alive):
            work = self._checked(x, out, direction, scale, on)
            if len(self._bound) >= 64:
                self._bound.clear()
            self._bound[key] = work
        self.context.make_current()
        stream_number = int(on.handle)
        if self.context.captures:
            # The stream's cuBLAS does the scaling, so the graph must keep it too.
            calls.keep_for_graph(self.context, stream_number, (self, on.kept.get("cublas")), x, out)
        try:
            with self._lock:
                if self._set_for != stream_number:
                    self._library.set_stream(self._number, stream_number)
                    self._set_for = stream_number
                with _RANGES[direction]:
                    for call in work:
                        call()
        except Exception as error:
            raise calls.told(error, self._library) from error
        return out

    def _checked(
        self, x: DeviceArray, out: DeviceArray, direction: int, scale: float, on: Stream
    ) -> list[Callable[[], Any]]:
        if not self._destroy.alive:
            raise Closed(f"{self!r} was closed: make a new plan")
        on.expect_open()
        for name, array, (shape, dtype) in (("x", x, self._source), ("out", out, self._target)):
            if not array.context.same_device(self.context) or not on.context.same_device(self.context):
                raise DeviceMismatch(f"{name} or the stream is not on {self.context.spec}, the device of the plan")
            if not array.allocation.open:
                raise Closed(f"{array.summary} was closed and its memory freed; use it before close()")
            lead = array.shape[: max(array.ndim - len(shape), 0)]
            if array.shape != lead + shape or math.prod(lead) != self.batch:
                wanted = f"{self.batch} of {shape}" if self.batch > 1 else f"{shape}"
                raise ValueError(f"{name} has shape {array.shape}, {self!r} needs {wanted}")
            if array.dtype != dtype:
                raise TypeError(f"{name} is {array.dtype}, {self!r} needs {dtype}")
            if not array.is_contiguous:
                raise ValueError(f"{name} must be contiguous, got strides {array.strides} (bytes): copy() it")
            if array.pointer % self.dtype.itemsize:
                raise ValueError(
                    f"{name} must be aligned to {self.dtype.itemsize} bytes for cuFFT, got address "
                    f"{array.pointer:#x}: copy() it"
                )
        if self.kind == "C2R":
            x.expect_writable()
        out.expect_writable()
        if memory.touch(x, out) and not calls.same(x, out):
            raise ValueError("x and out overlap but are not the same array: pass the same array, or separate ones")
        for array in (x, out):
            array.allocation.uses.add(on)
        way = (direction,) if self.kind == "C2C" else ()
        work: list[Callable[[], Any]] = [functools.partial(self._execute, self._number, x.pointer, out.pointer, *way)]
        return work if scale == 1 else [*work, *cublas.scaling(on, out, scale)]


# Functions that keep their plans --------------------------------------------------------------------------------------


@dataclass
class _Plans:
    """The plans of one stream, least recently used first. known: plan and factor of earlier calls, by the tags of their
    arrays and their options."""

    plans: OrderedDict[Any, Plan] = field(default_factory=OrderedDict)
    known: dict[Any, tuple[Plan, float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


def plan_for(stream: Stream, shape: tuple[int, ...], kind: str, batch: int, dtype: str) -> Plan:
    """Return the plan that a stream keeps for a transform; the first call makes it.

    Args:
        stream: The stream the plan runs on.
        shape: As for `Plan`.
        kind: "C2C", "R2C" or "C2R".
        batch: Number of arrays.
        dtype: Dtype of the complex side.
    """
    kept = calls.handle("cufft", stream, lambda *_: _Plans())
    key = (shape, kind, batch, dtype)
    with kept.lock:
        plan: Plan | None = kept.plans.get(key)
        if plan is not None:
            kept.plans.move_to_end(key)
            return plan
        plan = Plan(Device.of(stream.context), shape, kind, batch=batch, dtype=dtype, stream=stream)
        plan.lend()
        kept.plans[key] = plan
        if len(kept.plans) > PLANS:
            # A call in progress keeps a reference, so its memory is freed after the call.
            kept.plans.popitem(last=False)
            kept.known.clear()
        return plan


def fft(x: Any, axes: Any = 1, out: Any = None, *, norm: str | None = "backward", stream: Any = None) -> Any:
    """Compute the discrete Fourier transform of the last axes of a complex array; all axes before them are a batch.

    Args:
        x: A contiguous array, complex64 or complex128.
        axes: The number of last axes to transform, 1 to 3; or these axes by number, as numpy's `axes`.
        out: The result, contiguous, of x's shape and dtype; a new array if None. It may be x.
        norm: Scaling as in numpy: "backward" (none here, 1/n in ifft), "ortho" (1/sqrt(n) in both) or "forward" (1/n
            here, none in ifft); None for no scaling in either, as in cuFFT, which saves a pass over the result.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `out`; the call does not wait.

    Raises:
        ValueError: If shape, axes or norm do not fit; nothing was queued.
        TypeError: If the dtype does not fit, or x is not a device array; nothing was queued.
        DeviceMismatch: If out or the stream is on another device; nothing was queued.
    """
    return _transform("C2C", x, axes, out, FORWARD, norm, stream)


def ifft(x: Any, axes: Any = 1, out: Any = None, *, norm: str | None = "backward", stream: Any = None) -> Any:
    """Compute the inverse of `fft`.

    Args:
        x: A contiguous array, complex64 or complex128.
        axes: The number of last axes to transform, 1 to 3; or these axes by number.
        out: The result, contiguous, of x's shape and dtype; a new array if None. It may be x.
        norm: As for `fft`.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `out`; the call does not wait.
    """
    return _transform("C2C", x, axes, out, INVERSE, norm, stream)


def rfft(x: Any, axes: Any = 1, out: Any = None, *, norm: str | None = "backward", stream: Any = None) -> Any:
    """Compute `fft` of a real array. The last axis of the result has n // 2 + 1 terms, which determine the others.

    Args:
        x: A contiguous array, float32 or float64.
        axes: The number of last axes to transform, 1 to 3; or these axes by number.
        out: The result, contiguous and complex; a new array if None.
        norm: As for `fft`.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `out`; the call does not wait.
    """
    return _transform("R2C", x, axes, out, FORWARD, norm, stream)


def irfft(
    x: Any, axes: Any = 1, out: Any = None, *, n: int | None = None, norm: str | None = "backward", stream: Any = None
) -> Any:
    """Compute the inverse of `rfft`.

    cuFFT overwrites the input of this transform, so x is copied first; `Plan.inverse` makes no copy.

    Args:
        x: A contiguous array, complex64 or complex128, with m terms on its last axis.
        axes: The number of last axes to transform, 1 to 3; or these axes by number.
        out: The result, contiguous and real; a new array if None.
        n: The last extent of the result; that of `out` if None, or 2 * (m - 1) without `out`.
        norm: As for `fft`.
        stream: The stream the call is queued on; the device's default stream if None.

    Returns:
        `out`; the call does not wait.
    """
    return _transform("C2R", x, axes, out, INVERSE, norm, stream, n)


def _transform(
    kind: str, x: Any, axes: Any, out: Any, direction: int, norm: str | None, stream: Any, last: int | None = None
) -> Any:
    calls.expect_arrays(x, *(() if out is None else (out,)))
    on = stream if type(stream) is Stream else calls.on_stream(x.context, stream)
    known = on.kept["cufft"].known if "cufft" in on.kept else {}
    key = None if out is None or kind == "C2R" or isinstance(axes, list) else (x.tag, out.tag, direction, axes, norm)
    plan_and_factor = known.get(key)
    if plan_and_factor is not None:
        plan, factor = plan_and_factor
        return plan.run(x, out, direction, on, factor)
    name = x.dtype.name
    taken = tuple(_COMPLEX if kind == "R2C" else REAL)
    if name not in taken:
        raise TypeError(f"x must be {' or '.join(taken)} for this transform, got {name}: convert it first")
    count = _count(axes, x.ndim)
    shape = x.shape[x.ndim - count :]
    if kind == "C2R":
        if last is None:
            last = out.shape[-1] if out is not None and out.ndim else 2 * (shape[-1] - 1)
        if last // 2 + 1 != shape[-1]:
            raise ValueError(
                f"x must have {last // 2 + 1} terms on its last axis for a real result of {last}, got {shape[-1]}"
            )
        shape = (*shape[:-1], int(last))
    factor = _factor(norm, direction, math.prod(shape))
    lead = x.shape[: x.ndim - count]
    batch = math.prod(lead)
    if 0 in shape:
        raise ValueError(f"x has shape {x.shape}, with no elements along a transformed axis: pass at least one")
    if batch == 0:
        of_target = name if kind == "C2C" else _COMPLEX[name] if kind == "R2C" else REAL[name]
        ends = (*shape[:-1], shape[-1] // 2 + 1) if kind == "R2C" else shape
        return memory.empty(x.context, on, (*lead, *ends), of_target) if out is None else out
    plan = plan_for(on, shape, kind, batch, _COMPLEX.get(name, name))
    if kind != "C2R":
        out = plan.run(x, out, direction, on, factor)
        if key is not None:
            if len(known) >= 64:
                known.clear()
            on.kept["cufft"].known[key] = plan, factor
        return out
    copied = x.copy(on)
    try:
        return plan.run(copied, out, direction, on, factor)
    finally:
        copied.close()  # in stream order


def _count(axes: Any, ndim: int) -> int:
    """Return the number of last axes that `axes` selects."""
    if isinstance(axes, (tuple, list)):
        numbers = [axis + ndim if axis < 0 else axis for axis in axes]
        if not numbers or numbers != list(range(ndim - len(numbers), ndim)):
            raise ValueError(
                f"axes must be the last ones, in order, got {tuple(axes)} of {ndim} axes: move others to the end with "
                "transpose() and copy()"
            )
        axes = len(numbers)
    if isinstance(axes, bool) or not isinstance(axes, int) or not 1 <= axes <= 3:
        raise ValueError(f"axes must be a count of last axes, 1 to 3, or their numbers, got {axes!r}")
    if axes > ndim:
        raise ValueError(f"axes must be at most {ndim}, the axes of x, got {axes}")
    return axes


def _factor(norm: str | None, direction: int, size: int) -> float:
    if norm not in ("backward", "ortho", "forward", None):
        raise ValueError(f'norm must be "backward", "ortho", "forward" or None, got {norm!r}')
    if norm == "ortho":
        return 1 / math.sqrt(size)
    return 1 / size if norm == ("forward" if direction == FORWARD else "backward") else 1.0


__all__ = ["FORWARD", "INVERSE", "Plan", "fft", "ifft", "irfft", "plan_for", "rfft"]
