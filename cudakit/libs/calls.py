"""What every call of a library shares: which library it is, its handle for a stream, and the checks before it.

A handle belongs to one device and one stream, which is set once. The call for arrays of certain shapes, strides and
dtypes is planned once (`CallPlan`), and their addresses are filled in once too: a call with arrays that came before is
a look-up and the library's own call.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cudakit import nvtx
from cudakit.device import Device
from cudakit.driver.context import Context
from cudakit.driver.modes import Relaxed
from cudakit.driver.stream import Stream
from cudakit.errors import Closed, CudaError, CudakitError, DeviceMismatch
from cudakit.libs import host_blas, host_fft
from cudakit.memory import layout
from cudakit.memory.array import DeviceArray

MOST = 2**31 - 1  # what the libraries' sizes and strides hold
REAL = {"complex64": "float32", "complex128": "float64"}  # the real dtype of a complex one
_KEPT = 512  # calls, and layouts, that one stream's handle remembers
_FOREIGN_STREAMS = 16
_lock = threading.RLock()

_HINTS = {
    "ALLOC_FAILED": "Free arrays that are no longer needed: the library found no memory of its own.",
    "NOT_SUPPORTED": "This library or this GPU does not do that.",
    "ARCH_MISMATCH": "This GPU does not do that: float16 and bfloat16 products need sm_80 or later.",
    "EXECUTION_FAILED": "Run the same script with --device sim, which checks what the call reads and writes.",
    "EXEC_FAILED": "Run the same script with --device sim, which checks what the call reads and writes.",
}


@functools.cache
def installed() -> bool:
    """Whether nvmath-python, which has the libraries' bindings, is installed."""
    return importlib.util.find_spec("nvmath") is not None


def bindings(device: Device, name: str) -> Any:
    """The module "cublas" or "cufft" of nvmath-python's bindings, or what stands in for it on the simulated device.

    Raises CudakitError where nvmath-python is not installed.
    """
    module = device.kept.get(("library", name))
    if module is None:
        if device.kind == "sim":
            made: Any = host_blas.Blas if name == "cublas" else host_fft.Fft
            module = made(device.context)
        else:
            try:
                module = importlib.import_module(f"nvmath.bindings.{name}")
            except ImportError as error:
                raise CudakitError(
                    f"{name} is called through nvmath-python, which is not there ({error}): pip install 'cudakit[libs]'"
                ) from error
        device.kept["library", name] = module
    return module


@dataclass
class CallPlan:
    """What one call does to arrays of one set of layouts. writes: which of them it writes. bind: the call for arrays at
    these addresses, all arguments filled in; None where nothing is to be done. kept: what the call reads on the host.
    again: whether what bind gives may be called again. spans: of the arrays, from their addresses."""

    bind: Callable[[Any, Sequence[int]], Callable[[], Any] | None]
    writes: frozenset[int]
    kept: Any = None
    again: bool = True
    spans: tuple[tuple[int, int], ...] = ()


@dataclass
class Handle:
    """A library's handle for one stream, and the calls that were made by it."""

    context: Context
    library: Any
    stream: int  # the driver's handle of it: holding the Stream would keep it from being dropped
    works: dict[Hashable, CallPlan] = field(default_factory=dict)
    bound: dict[Hashable, tuple[Callable[[], Any], CallPlan]] = field(default_factory=dict)


def on_stream(context: Context, stream: Any) -> Stream:
    """The stream that a call without one, or with one of any kind, is for."""
    if stream is None:
        return Device.of(context).default_stream
    return Stream.of(context, stream)


def handle(name: str, stream: Stream, make: Callable[[Device, Any, Stream], Any]) -> Any:
    """The handle of library `name` for a stream; `make` makes the first."""
    of_stream = stream.kept.get(name)
    if of_stream is None:
        with _lock:
            of_stream = stream.kept.get(name)
            if of_stream is None:
                stream.expect_open()
                device = Device.of(stream.context)
                # A foreign stream comes in a new Stream each time.
                kept = device.kept.setdefault(("foreign streams", name), {}) if stream.foreign else stream.kept
                key = int(stream) if stream.foreign else name
                if key not in kept:
                    if len(kept) >= _FOREIGN_STREAMS and stream.foreign:
                        del kept[next(iter(kept))]
                    library = bindings(device, name)
                    try:
                        kept[key] = make(device, library, stream)
                    except Exception as error:
                        raise told(error, library) from error
                of_stream = stream.kept[name] = kept[key]
    return of_stream


def run(
    name: str,
    start: Callable[[Device, Any, Stream], Handle],
    make: Callable[..., CallPlan],
    arrays: tuple[Any, ...],
    options: tuple[Any, ...] = (),
    stream: Any = None,
) -> None:
    """Queue a call: what `make(handle, arrays, *options)` says, checked the first time for these arrays.

    Raises TypeError, ValueError, DeviceMismatch or Closed for what must not be queued.
    """
    if type(stream) is not Stream:
        _expect_array(arrays[0], 0)
        stream = on_stream(arrays[0].context, stream)
    of = stream.kept.get(name) or handle(name, stream, start)
    try:
        # By the arrays' tags, which keep no memory alive.
        key = make, options, *[array.tag for array in arrays]
        bound = of.bound.get(key)
    except (AttributeError, TypeError):
        key, bound = (), None  # something that is no array, or no number: said below
    if bound is not None:
        for array in arrays:
            if not array.allocation.open:
                break
        else:
            of.context.make_current()
            if of.context.captures:
                keep_for_graph(of.context, of.stream, of, *arrays)
            try:
                if nvtx.listeners:
                    with _range(name, make, options):
                        bound[0]()
                else:
                    bound[0]()
            except Exception as error:
                raise told(error, of.library) from error
            return
    with _range(name, make, options):
        _run_checked(of, stream, make, arrays, options, key)


def _range(name: str, make: Callable[..., CallPlan], options: tuple[Any, ...]) -> nvtx.range:
    """The NVTX range of a call: "cublas.gemm"; of those that share a `make` and say their name, by that."""
    named = options[0] if options and isinstance(options[0], str) else make.__name__.strip("_")
    return nvtx.range(f"{name}.{named}")


def _run_checked(
    of: Handle, stream: Stream, make: Callable[..., CallPlan], arrays: Any, options: Any, known_by: tuple[Any, ...]
) -> None:
    context = stream.context
    for place, array in enumerate(arrays):
        if not isinstance(array, DeviceArray):
            _expect_array(array, place)
        if not array.allocation.open:
            raise Closed(f"{array.summary} was closed and its memory freed; use it before close()")
        if array.context is not context and not array.context.same_device(context):
            numbers = array.context.told_apart(context)
            raise DeviceMismatch(
                f"{array.summary} was given to a call on {context.spec}{numbers}: copy it there with array()"
            )
    try:
        key = make, options, *[(array.shape, array.strides, array.dtype) for array in arrays]
        work = of.works.get(key)
    except TypeError:
        raise TypeError(f"numbers and names are wanted as options, not {options}") from None
    if work is None:
        work = make(of, arrays, *options)
        work.spans = tuple(layout.span(array.shape, array.strides, array.itemsize) for array in arrays)
        for place in work.writes:
            arrays[place].expect_writable()
        _remember(of.works, key, work)
    pointers = [array.pointer for array in arrays]
    _expect_separate(arrays, pointers, work)
    context.make_current()
    call = work.bind(of, pointers)
    if call is None:
        return
    for array in arrays:
        array.allocation.uses.add(stream)
    if context.captures:
        keep_for_graph(context, of.stream, of, *arrays)
    try:
        call()
    except Exception as error:
        raise told(error, of.library) from error
    if work.again:
        _remember(of.bound, known_by, (call, work))


def keep_for_graph(context: Context, stream: int, owner: object, *arrays: DeviceArray) -> None:
    """Where a stream is being captured, have the graph keep what its launches will use: the arrays, and what owns the
    library's handle and work area."""
    capture = context.captures.of(stream)
    if capture is not None:
        capture.kept += [owner, *(array.allocation for array in arrays)]


def _remember(kept: dict[Any, Any], key: Any, value: Any) -> None:
    if len(kept) >= _KEPT:
        kept.clear()
    kept[key] = value


def expect_arrays(*arrays: Any) -> None:
    """Raise TypeError where one is no device array."""
    for place, array in enumerate(arrays):
        _expect_array(array, place)


def _expect_array(array: Any, place: int) -> None:
    if not isinstance(array, DeviceArray):
        raise TypeError(
            f"operand {place + 1} is a {type(array).__module__}.{type(array).__name__}, not one of cudakit's device "
            "arrays: make one with device.array(x) or device.wrap(x)"
        )


def _expect_separate(arrays: Sequence[DeviceArray], pointers: Sequence[int], work: CallPlan) -> None:
    """Raise ValueError where an array is written that shares memory with another, or is read-only."""
    for place in work.writes:
        if arrays[place].readonly:
            arrays[place].expect_writable()
    if len(work.writes) == 1:
        (place,) = work.writes
        first, last = work.spans[place]
        first, last = first + pointers[place], last + pointers[place]
        for other, (low, high) in enumerate(work.spans):
            if other != place and pointers[other] + low < last and first < pointers[other] + high:
                raise _overlap(arrays, place, other)
        return
    # In order of their addresses, an array begins past all that are written, or past all if it is written itself.
    end = written_end = -1
    at = at_written = 0
    spans = sorted(
        (pointers[place] + low, pointers[place] + high, place) for place, (low, high) in enumerate(work.spans)
    )
    for low, high, place in spans:
        if low < written_end and high > low:
            raise _overlap(arrays, at_written, place)
        if low < end and high > low and place in work.writes:
            raise _overlap(arrays, place, at)
        if high > end:
            end, at = high, place
        if high > written_end and place in work.writes:
            written_end, at_written = high, place


def _overlap(arrays: Sequence[DeviceArray], written: int, other: int) -> ValueError:
    first, second = arrays[written], arrays[other]
    return ValueError(
        f"operand {written + 1}, which is written, overlaps operand {other + 1}: {first!r} at {first.pointer:#x} and "
        f"{second!r} at {second.pointer:#x}. Give a separate array"
    )


def same(one: DeviceArray, other: DeviceArray) -> bool:
    """Whether two arrays are the same elements in the same order."""
    return (one.pointer, one.shape, one.strides, one.dtype) == (other.pointer, other.shape, other.strides, other.dtype)


def told(error: Exception, library: Any) -> Exception:
    """A library's error as cudakit's; others as they are."""
    status = getattr(error, "status", None)
    if status is None:
        if not type(error).__module__.startswith("nvmath"):
            return error
        # The bindings load the library itself when the first function is called.
        return CudakitError(
            f"{library.__name__} cannot be used: {error}. pip install 'cudakit[libs]' brings the libraries"
        )
    number = int(status)
    status_enum = getattr(library, "Status", None) or getattr(library, "Result", None)
    try:
        name = status_enum(number).name if status_enum is not None else str(number)
    except ValueError:
        name = str(number)
    routine = getattr(library, "__name__", "library").rpartition(".")[2]
    return CudaError(routine, number, name, str(error), _HINTS.get(name, ""))


class Area:
    """Device memory that a library works in. handle: its address, 0 where it has no bytes.

    Not of the stream's pool: it lives as long as what it is kept with, and its free waits for the device.
    """

    def __init__(self, context: Context, nbytes: int) -> None:
        self.nbytes = nbytes
        with context.relaxed():
            self.handle = int(context.call("cuMemAlloc", nbytes)) if nbytes else 0
        self._finalizer = context.adopt_handle(self, "cuMemFree", self.handle) if nbytes else None

    def close(self) -> None:
        """Free it, once the device is done. Idempotent."""
        if self._finalizer is not None:
            self._finalizer()


def release(context: Context, destroy: Callable[[int], Any], number: int) -> None:
    """Destroy a library's handle in its context, on whatever thread: for finalizers."""
    if context.kind == "sim":
        destroy(number)
    elif context.attempt("cuCtxPushCurrent", context.handle) == 0:
        try:
            with Relaxed(context.driver):  # it frees memory, while another library may capture
                destroy(number)
        finally:
            context.attempt("cuCtxPopCurrent")
