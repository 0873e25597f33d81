"""Capturing: what is queued on a stream becomes a Graph; a function becomes one graph per set of arguments."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cudakit.driver.captures import ActiveCapture
from cudakit.driver.stream import LEGACY_DEFAULT, Stream
from cudakit.errors import CudaError, GraphError
from cudakit.graph.graph import Executable, Graph
from cudakit.launch.strides import StridedArgument, unwrapped
from cudakit.memory.array import DeviceArray

_UNJOINED = 904  # CUDA_ERROR_STREAM_CAPTURE_UNJOINED
_MOST = 64  # graphs that a captured function keeps


@contextlib.contextmanager
def capture(stream: Stream, *, allow_empty: bool = False) -> Iterator[Graph]:
    """Capture what is queued on `stream` in the block into a Graph; nothing of it runs.

    Calls that wait for the stream or look at it (synchronize, query, copies to and from pageable memory) are errors in
    the block, as are allocations on the stream. Raises GraphError if the capture was broken, if a stream that
    joined it is not waited for, and if nothing was captured (unless allow_empty).
    """
    context = stream.context
    handle = stream.expect_open()
    if int(handle) in (0, LEGACY_DEFAULT):
        raise GraphError("the legacy default stream cannot be captured: capture a stream of device.stream()")
    mode = context.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    context.call("cuStreamBeginCapture", handle, mode)
    graph, number = Graph(context), None
    try:
        try:
            number = int(context.call("cuStreamGetCaptureInfo", handle)[1])
            begun = context.captures.begin(number)
            yield graph
        except BaseException:
            result = context.driver.cuStreamEndCapture(handle)
            if not result[0]:
                context.attempt("cuGraphDestroy", result[1])
            raise
        graph.take(_ended(stream, handle, begun), begun.kept)
    finally:
        if number is not None:
            context.captures.end(number)
    if not graph.nodes and not allow_empty:
        graph.close()
        raise GraphError(
            f"nothing was captured on {stream!r}: the block queued no work on it. Work queued on another stream is "
            "captured where that stream waits for this one: other.wait(stream.record())"
        )


def _ended(stream: Stream, handle: Any, begun: ActiveCapture) -> Any:
    """The driver's graph of a capture, which ends here. Raises GraphError if it was broken."""
    context = stream.context
    context.make_current()
    result = context.driver.cuStreamEndCapture(handle)
    if not result[0]:
        return result[1]
    broken = begun.broken
    error = context.failed("cuStreamEndCapture", result[0])
    if not isinstance(error, CudaError) or context.lost is not None:
        raise error
    if int(result[0]) == _UNJOINED:
        why = f"a stream that became part of it was not waited for: {stream!r}.wait(other) before the block ends"
    else:
        why = f"it was broken by {broken or 'a call that cannot be part of a graph'}"
    raise GraphError(f"the capture on {stream!r} gives no graph: {why}") from error


# Functions ------------------------------------------------------------------------------------------------------------


class Captured:
    """A function of device arrays that is captured once for each set of arrays, and replayed after. See `captured`."""

    def __init__(self, function: Callable[..., Any], most: int = _MOST) -> None:
        if not callable(function):
            raise TypeError(f"captured() takes a function, not {type(function).__name__}")
        if most < 1:
            raise ValueError(f"most={most}: a captured function keeps at least one graph")
        functools.update_wrapper(self, function)
        self.function = function
        self.most = most
        # Each graph (None where nothing was queued), what the function gave, and the arrays that its key is made of.
        self._ready: dict[Any, tuple[Executable | None, Any, tuple[object, ...]]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Captured({getattr(self.function, '__name__', self.function)!r}, {len(self._ready)} graphs)"

    def __len__(self) -> int:
        """How many graphs it holds."""
        return len(self._ready)

    def __call__(self, where: Any, *arguments: Any) -> Any:
        """Do what function(where, *arguments) does, on the same stream; returns what the captured call returned."""
        stream = where if hasattr(where, "__cuda_stream__") else getattr(where, "stream", None)
        if stream is None or isinstance(where, DeviceArray):
            raise TypeError(
                f"a captured function is called with a stream, or a thing that has one, and not with a "
                f"{type(where).__name__}: the stream comes first"
            )
        key = tuple(map(_key, arguments))
        entry = self._ready.get(key)
        if entry is None:
            with self._lock:
                entry = self._ready.get(key)
                if entry is None:
                    entry = self._capture(stream, where, arguments)
                    while len(self._ready) >= self.most:
                        # what is queued still runs: the driver destroys a graph once it has
                        del self._ready[next(iter(self._ready))]
                    self._ready[key] = entry
        ready, given, _ = entry
        if ready is not None:
            ready.launch(stream)
        return given

    def _capture(
        self, stream: Any, where: Any, arguments: tuple[Any, ...]
    ) -> tuple[Executable | None, Any, tuple[object, ...]]:
        values = tuple(map(unwrapped, arguments))
        arrays = [value for value in values if isinstance(value, DeviceArray)]
        owners = tuple(value.allocation if isinstance(value, DeviceArray) else value for value in values)
        if not isinstance(stream, Stream):
            if not arrays:
                raise GraphError(
                    "another library's stream is captured with at least one DeviceArray among the arguments"
                )
            stream = Stream.of(arrays[0].context, stream)
        with capture(stream, allow_empty=True) as graph:
            graph.keep(*owners)
            given = self.function(where, *arguments)
        if not graph.nodes and any(array.size for array in arrays):
            raise GraphError(
                f"{self!r} has queued nothing on {stream!r}, so a replay would do nothing: the function must queue its "
                "work on the stream it is given (stream=..., or chunk.stream)"
            )
        return (graph.instantiate() if graph.nodes else None), given, owners

    def close(self) -> None:
        """Let go of all its graphs, once what is queued has run. The next call captures again."""
        with self._lock:
            self._ready.clear()


def captured(function: Callable[..., Any], *, most: int = _MOST) -> Captured:
    """`function` with its first call for each set of arguments captured into a graph, which later calls replay.

    function: function(where, *arguments) queues work on a stream and waits for nothing. where: a Stream, or a thing
    with a `stream` (a pipeline's chunk), of which it may use nothing else. arguments: device arrays, pinned arrays,
    both also as `cudakit.strided(x)`, numbers, text, None. Arrays are the same if they have the same memory, shape,
    strides and dtype. most: graphs kept, the oldest of which is let go of for another. Each graph keeps its arrays
    alive.

        step = captured(lambda stream, x, y: blur.launch(stream, grid, block, args=(x, y, n)))
        for _ in range(100):
            step(stream, x, y)
            step(stream, y, x)
    """
    return Captured(function, most)


def _key(value: Any) -> Any:
    """By what an argument is known again. Arrays are kept as long as their key, so no other has the identity of one."""
    if isinstance(value, StridedArgument):
        return StridedArgument, _key(value.array)
    if isinstance(value, DeviceArray):
        return id(value.allocation), value.pointer, value.shape, value.strides, value.dtype, value.readonly
    if isinstance(value, np.ndarray):
        return value.ctypes.data, value.shape, value.strides, value.dtype
    if isinstance(value, (float, complex, np.generic)):
        return type(value), np.asarray(value).tobytes()  # by their bits: -0.0 equals 0.0, and NaN not even itself
    if value is None or isinstance(value, (int, str, bytes)):
        return type(value), value
    raise TypeError(
        "a captured function takes device and pinned arrays, numbers, text and None, by which its graph is found "
        f"again, and not a {type(value).__name__}: make it part of the function, or wrap an array (device.wrap)"
    )
