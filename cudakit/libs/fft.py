"""cuFFT on cudakit's arrays and streams: transforms of one to three axes, complex and real, single and double.

    from cudakit.libs import fft
    f = fft.fft(x, axes=2)                 # the last two axes, every image of a stack; numpy's scaling
    y = fft.ifft(f, axes=2)

    plan = fft.Plan(dev, (256, 256), batch=100)
    plan.forward(x, f)                     # unscaled, as cuFFT has it: inverse(forward(x)) is 65536 * x

A plan has one work area, which a transform writes to, so it serves one stream at a time: two streams that run at once
need a plan each, as the functions here take one for each shape and stream.
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

#: Plans that the functions here keep for one stream; the one not used for longest is let go of first.
PLANS = 16
FORWARD, INVERSE = -1, 1
_RANGES = {FORWARD: nvtx.range("cufft.forward"), INVERSE: nvtx.range("cufft.inverse")}
# cufftType and the function that runs it, by kind and the dtype of the complex side.
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
    """A transform of `batch` arrays of one shape, each contiguous, one behind the other.

    shape: one to three extents, those of the real side for "R2C" and "C2R"; the complex side's last is n // 2 + 1.
    kind: "C2C", "R2C" or "C2R". dtype: of the complex side, "complex64" or "complex128". stream: where it runs unless
    a call says otherwise; the device's default stream unless given. nbytes: of its work area in device memory.

    The area is written by every transform, so a call on another stream must be ordered after the plan's earlier work
    by the caller, or it races with that; the simulated device reports it. ValueError for what cuFFT does not do.
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
            raise TypeError(f"a plan is made on a Device, not {type(device).__name__}: give the device first")
        extents, name = layout.as_shape(shape), memory.as_dtype(dtype).name
        if (kind, name) not in _EXECUTE:
            raise ValueError(
                f"cuFFT does C2C, R2C and C2R, complex64 or complex128 on the complex side, not {kind!r} with {name}"
            )
        if not 1 <= len(extents) <= 3 or 0 in extents or batch < 1 or max(*extents, batch) > MOST:
            raise ValueError(f"{batch} transforms of shape {extents}: cuFFT does 1 or more, of 1 to 3 axes, none empty")
        self.context: Context = device.context
        self.shape, self.kind, self.batch, self.dtype = extents, kind, int(batch), memory.as_dtype(name)
        half = (*extents[:-1], extents[-1] // 2 + 1)
        real = memory.as_dtype(REAL[name])
        self._source = (half if kind == "C2R" else extents, real if kind == "R2C" else self.dtype)
        self._target = (half if kind == "R2C" else extents, real if kind == "C2R" else self.dtype)
        self._stream: Stream | None = calls.on_stream(device.context, stream)
        self._stream.expect_open()
        self._library = calls.bindings(device, "cufft")
        self._lock = threading.Lock()  # cuFFT takes one thread a plan
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
        """Bytes of its work area."""
        return self._area.nbytes

    def close(self) -> None:
        """Free the plan and its work area, once the device is done. Idempotent."""
        with self._lock:
            self._bound.clear()
            self._destroy()
            self._area.close()

    def lend(self) -> None:
        """Keep no stream alive, being kept by one: calls name theirs. What the work area holds is nobody's leak."""
        self._stream = None
        self.context.own.add(self._area)

    def forward(self, x: DeviceArray, out: DeviceArray | None = None, *, stream: Any = None) -> DeviceArray:
        """Queue the transform with e^(-2 pi i jk/n), unscaled, of "C2C" and "R2C". Returns `out`, a new array unless
        given; it may be x itself for "C2C"."""
        if self.kind == "C2R":
            raise ValueError("a C2R plan goes from complex to real only: use inverse(), or make an R2C or C2C plan")
        return self.run(x, out, FORWARD, stream)

    def inverse(self, x: DeviceArray, out: DeviceArray | None = None, *, stream: Any = None) -> DeviceArray:
        """Queue the transform with e^(+2 pi i jk/n), unscaled, of "C2C" and "C2R". Returns `out`, a new array unless
        given; it may be x itself for "C2C". "C2R" writes over x, as cuFFT does: copy x first where it is needed."""
        if self.kind == "R2C":
            raise ValueError("an R2C plan goes from real to complex only: use forward(), or make a C2R or C2C plan")
        return self.run(x, out, INVERSE, stream)

    def run(
        self, x: DeviceArray, out: DeviceArray | None, direction: int, stream: Any = None, scale: float = 1.0
    ) -> DeviceArray:
        """forward() or inverse(), by `direction`; then `out` is multiplied by `scale`, in a pass of cuBLAS's."""
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
            # What scales is the stream's cuBLAS.
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
            raise Closed(f"{self!r} was closed: make another")
        on.expect_open()
        for name, array, (shape, dtype) in (("x", x, self._source), ("out", out, self._target)):
            if not array.context.same_device(self.context) or not on.context.same_device(self.context):
                raise DeviceMismatch(f"{name} or the stream is not of {self.context.spec}, which the plan is for")
            if not array.allocation.open:
                raise Closed(f"{array.summary} was closed and its memory freed; use it before close()")
            lead = array.shape[: max(array.ndim - len(shape), 0)]
            if array.shape != lead + shape or math.prod(lead) != self.batch:
                wanted = f"{self.batch} of {shape}" if self.batch > 1 else f"{shape}"
                raise ValueError(f"{name} has shape {array.shape}, and {self!r} takes {wanted}")
            if array.dtype != dtype:
                raise TypeError(f"{name} is {array.dtype}, and {self!r} takes {dtype}")
            if not array.is_contiguous:
                raise ValueError(
                    f"{name} has strides {array.strides} (bytes), and a plan's arrays are contiguous: copy() it"
                )
            if array.pointer % self.dtype.itemsize:
                raise ValueError(
                    f"{name} begins at {array.pointer:#x}, and cuFFT takes multiples of {self.dtype.itemsize} bytes "
                    "only: copy() it"
                )
        if self.kind == "C2R":
            x.expect_writable()
        out.expect_writable()
        if memory.touch(x, out) and not calls.same(x, out):
            raise ValueError("x and out overlap without being the same array: give the same one, or a separate one")
        for array in (x, out):
            array.allocation.uses.add(on)
        way = (direction,) if self.kind == "C2C" else ()
        work: list[Callable[[], Any]] = [functools.partial(self._execute, self._number, x.pointer, out.pointer, *way)]
        return work if scale == 1 else [*work, *cublas.scaling(on, out, scale)]


# Functions that keep their plans --------------------------------------------------------------------------------------


@dataclass
class _Plans:
    """The plans of one stream, oldest use first. known: the plan and the factor of calls that came before, by their
    arrays' tags and their options."""

    plans: OrderedDict[Any, Plan] = field(default_factory=OrderedDict)
    known: dict[Any, tuple[Plan, float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


def plan_for(stream: Stream, shape: tuple[int, ...], kind: str, batch: int, dtype: str) -> Plan:
    """The plan that a stream keeps for such a transform; made when it is first asked for."""
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
            # Who is using it meanwhile keeps it; its memory is freed after that.
            kept.plans.popitem(last=False)
            kept.known.clear()
        return plan


def fft(x: Any, axes: Any = 1, out: Any = None, *, norm: str | None = "backward", stream: Any = None) -> Any:
    """The discrete Fourier transform of the last `axes` axes (1, 2 or 3) of a complex array, for every index of those
    before them. Returns `out`, a new array unless given, without waiting; out may be x.

    x: contiguous, complex64 or complex128; and so is out. axes: a count, or the axes by number, as numpy's `axes`.
    norm: numpy's "backward" (none here, 1/n in ifft), "ortho" (1/sqrt(n) in both) or "forward" (1/n here); None: no
    scaling in either, as cuFFT has it, which saves a pass over the result where there would be one.
    Raises ValueError, TypeError or DeviceMismatch before anything is queued.
    """
    return _transform("C2C", x, axes, out, FORWARD, norm, stream)


def ifft(x: Any, axes: Any = 1, out: Any = None, *, norm: str | None = "backward", stream: Any = None) -> Any:
    """The inverse of `fft`, with the same arguments."""
    return _transform("C2C", x, axes, out, INVERSE, norm, stream)


def rfft(x: Any, axes: Any = 1, out: Any = None, *, norm: str | None = "backward", stream: Any = None) -> Any:
    """`fft` of a real array, float32 or float64: of the last axis only n // 2 + 1 terms, as the others follow."""
    return _transform("R2C", x, axes, out, FORWARD, norm, stream)


def irfft(
    x: Any, axes: Any = 1, out: Any = None, *, n: int | None = None, norm: str | None = "backward", stream: Any = None
) -> Any:
    """The inverse of `rfft`. n: the last extent of the result, 2 * (m - 1) for m terms unless given (or out tells it).

    cuFFT writes over the input of such a transform, so a copy of x is made first; `Plan.inverse` does without.
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
        raise TypeError(f"this transform takes {' or '.join(taken)}, and x is {name}: convert it first")
    count = _count(axes, x.ndim)
    shape = x.shape[x.ndim - count :]
    if kind == "C2R":
        if last is None:
            last = out.shape[-1] if out is not None and out.ndim else 2 * (shape[-1] - 1)
        if last // 2 + 1 != shape[-1]:
            raise ValueError(
                f"a real transform of {last} has {last // 2 + 1} terms on its last axis, and x has {shape[-1]}"
            )
        shape = (*shape[:-1], int(last))
    factor = _factor(norm, direction, math.prod(shape))
    lead = x.shape[: x.ndim - count]
    batch = math.prod(lead)
    if 0 in shape:
        raise ValueError(f"x has shape {x.shape}: a transform of no elements is not defined")
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
    """How many of the last axes `axes` means."""
    if isinstance(axes, (tuple, list)):
        numbers = [axis + ndim if axis < 0 else axis for axis in axes]
        if not numbers or numbers != list(range(ndim - len(numbers), ndim)):
            raise ValueError(
                f"axes {tuple(axes)} of an array of {ndim}: the last ones are transformed, in order; bring others "
                "there with transpose() and copy()"
            )
        axes = len(numbers)
    if isinstance(axes, bool) or not isinstance(axes, int) or not 1 <= axes <= 3:
        raise ValueError(f"axes is how many of the last axes to transform, 1 to 3, or their numbers, not {axes!r}")
    if axes > ndim:
        raise ValueError(f"{axes} axes of an array of {ndim}")
    return axes


def _factor(norm: str | None, direction: int, size: int) -> float:
    if norm not in ("backward", "ortho", "forward", None):
        raise ValueError(f'norm is "backward", "ortho", "forward" or None, not {norm!r}')
    if norm == "ortho":
        return 1 / math.sqrt(size)
    return 1 / size if norm == ("forward" if direction == FORWARD else "backward") else 1.0


__all__ = ["FORWARD", "INVERSE", "Plan", "fft", "ifft", "irfft", "plan_for", "rfft"]
