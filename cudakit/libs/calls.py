"""Calls of libraries: the bindings, a handle per stream, and the checks before a call.

A handle belongs to one device and one stream, which is set once. A call is planned once per set of shapes, strides and
dtypes (`CallPlan`), and bound once per set of arrays. Repeating a call with the same arrays takes a look-up and the
library's own call.
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

MOST = 2**31 - 1  # the largest size or stride of the libraries
REAL = {"complex64": "float32", "complex128": "float64"}  # the real dtype of a complex dtype
_KEPT = 512  # calls, and layouts, kept per handle
_FOREIGN_STREAMS = 16
_lock = threading.RLock()

_HINTS = {
    "ALLOC_FAILED": "The library could not allocate its own memory. Free arrays that are no longer needed.",
    "NOT_SUPPORTED": "This library or this GPU does not support the call.",
    "ARCH_MISMATCH": "This GPU does not support the call: float16 and bfloat16 products need sm_80 or later.",
    "EXECUTION_FAILED": "Run the same script with --device sim, which checks what the call reads and writes.",
    "EXEC_FAILED": "Run the same script with --device sim, which checks what the call reads and writes.",
}


@functools.cache
def installed() -> bool:
    """Whether nvmath-python, the package of the libraries' bindings, is installed."""
    return importlib.util.find_spec("nvmath") is not None


def bindings(device: Device, name: str) -> Any:
    """Return the module "cublas" or "cufft" of nvmath-python's bindings; on the simulated device, its numpy version.

    Raises CudakitError if nvmath-python is not installed.
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
                    f"{name} needs nvmath-python, which is not installed ({error}): pip install 'cudakit[libs]'"
                ) from error
        device.kept["library", name] = module
    return module


@dataclass
class CallPlan:
    """One call for arrays with given layouts.

    bind: returns the call for arrays at given addresses, with all arguments filled in; None if there is nothing to do.
    writes: indices of the arrays that it writes. kept: host memory that the call reads. again: whether the result of
    `bind` may be called again. spans: first and last byte of each array, relative to its address.
    """

    bind: Callable[[Any, Sequence[int]], Callable[[], Any] | None]
    writes: frozenset[int]
    kept: Any = None
    again: bool = True
    spans: tuple[tuple[int, int], ...] = ()


@dataclass
class Handle:
    """A library's handle for one stream, and the calls planned for it."""

    context: Context
    library: Any
    stream: int  # the driver's handle, because a reference to the Stream would keep it alive
    works: dict[Hashable, CallPlan] = field(default_factory=dict)
    bound: dict[Hashable, tuple[Callable[[], Any], CallPlan]] = field(default_factory=dict)


def on_stream(context: Context, stream: Any) -> Stream:
    """Return `stream`, of any kind, as a Stream; the device's default stream if None."""
    if stream is None:
        return Device.of(context).default_stream
    return Stream.of(context, stream)


def handle(name: str, stream: Stream, make: Callable[[Device, Any, Stream], Any]) -> Any:
    """Return the handle of library `name` for a stream; `make` makes it on first use."""
    of_stream = stream.kept.get(name)
    if of_stream is None:
        with _lock:
            of_stream = stream.kept.get(name)
            if of_stream is None:
                stream.expect_open()
                device = Device.of(stream.context)
                # A foreign stream is wrapped in a new Stream each time, so its handle is kept by the device.
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
    """Queue the call planned by `make(handle, arrays, *options)`; arrays are checked on their first use.

    Raises TypeError, ValueError, DeviceMismatch or Closed before anything is queued.
    """
    if type(stream) is not Stream:
        _expect_array(arrays[0], 0)
        stream = on_stream(arrays[0].context, stream)
    of = stream.kept.get(name) or handle(name, stream, start)
    try:
        # The key has the arrays' tags, because the arrays themselves would keep memory alive.
        key = make, options, *[array.tag for array in arrays]
        bound = of.bound.get(key)
    except (AttributeError, TypeError):
        key, bound = (), None  # not an array or not a number: _run_checked raises the error
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
    """Return the NVTX range of a call, such as "cublas.gemm"; calls that share a `make` are named by `options`."""
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
                f"{array.summary} was passed to a call on {context.spec}{numbers}: copy it there with device.array(x)"
            )
    try:
        key = make, options, *[(array.shape, array.strides, array.dtype) for array in arrays]
        work = of.works.get(key)
    except TypeError:
        raise TypeError(f"options must be numbers and names, got {options}") from None
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
    """If a stream is being captured, let the graph keep the arrays, and the owner of the handle and its work area."""
    capture = context.captures.of(stream)
    if capture is not None:
        capture.kept += [owner, *(array.allocation for array in arrays)]


def _remember(kept: dict[Any, Any], key: Any, value: Any) -> None:
    if len(kept) >= _KEPT:
        kept.clear()
    kept[key] = value


def expect_arrays(*arrays: Any) -> None:
    """Raise TypeError if one is not a device array."""
    for place, array in enumerate(arrays):
        _expect_array(array, place)


def _expect_array(array: Any, place: int) -> None:
    if not isinstance(array, DeviceArray):
        raise TypeError(
            f"operand {place + 1} is a {type(array).__module__}.{type(array).__name__}, not a cudakit device array: "
            "make one with device.array(x) or device.wrap(x)"
        )


def _expect_separate(arrays: Sequence[DeviceArray], pointers: Sequence[int], work: CallPlan) -> None:
    """Raise ValueError if an array that is written is read-only or shares memory with another array."""
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
    # In order of addresses, each array must begin after the end of the written arrays before it; one that is written,
    # after the end of all arrays before it.
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
        f"{second!r} at {second.pointer:#x}. Pass a separate array"
    )


def same(one: DeviceArray, other: DeviceArray) -> bool:
    """Whether two arrays have the same elements in memory, in the same order."""
    return (one.pointer, one.shape, one.strides, one.dtype) == (other.pointer, other.shape, other.strides, other.dtype)


def told(error: Exception, library: Any) -> Exception:
    """Return a library's error as a cudakit error; return any other error unchanged."""
    status = getattr(error, "status", None)
    if status is None:
        if not type(error).__module__.startswith("nvmath"):
            return error
        # The bindings load the library when the first function is called.
        return CudakitError(
            f"{library.__name__} cannot be used: {error}. Install the libraries: pip install 'cudakit[libs]'"
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
    """Work area of a library in device memory. handle: its address; 0 if it is empty.

    It is not allocated from a stream's pool: it lives as long as its owner, and freeing it waits for the device.
    """

    def __init__(self, context: Context, nbytes: int) -> None:
        self.nbytes = nbytes
        with context.relaxed():
            self.handle = int(context.call("cuMemAlloc", nbytes)) if nbytes else 0
        self._finalizer = context.adopt_handle(self, "cuMemFree", self.handle) if nbytes else None

    def close(self) -> None:
        """Free it after the device has finished its work. Idempotent."""
        if self._finalizer is not None:
            self._finalizer()


def release(context: Context, destroy: Callable[[int], Any], number: int) -> None:
    """Destroy a library's handle in its context, from any thread; for finalizers."""
    if context.kind == "sim":
        destroy(number)
    elif context.attempt("cuCtxPushCurrent", context.handle) == 0:
        try:
            with Relaxed(context.driver):  # it frees memory, possibly during another library's capture
                destroy(number)
        finally:
            context.attempt("cuCtxPopCurrent")
