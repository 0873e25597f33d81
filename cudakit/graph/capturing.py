"""Capture of the work on a stream into a Graph, and of a function into one graph per set of arguments."""

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
from cudakit.memory.tensor_map import TensorMap

_UNJOINED = 904  # CUDA_ERROR_STREAM_CAPTURE_UNJOINED
_MOST = 64  # graphs kept per captured function


@contextlib.contextmanager
def capture(stream: Stream, *, allow_empty: bool = False) -> Iterator[Graph]:
    """Capture the work queued on `stream` in the block into a Graph; none of it runs.

    In the block, calls that wait for the stream or query it (synchronize, query, copies from and to pageable memory)
    and allocations on the stream raise GraphError.

    Args:
        stream: A stream of the device, but not the legacy default stream.
        allow_empty: Accept a block that queues nothing.

    Raises:
        GraphError: If a call broke the capture, if a stream that joined it is not waited for, or if nothing was
            captured.
    """
    context = stream.context
    handle = stream.expect_open()
    if int(handle) in (0, LEGACY_DEFAULT):
        raise GraphError("the legacy default stream cannot be captured; use a stream of device.stream()")
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
            f"nothing was captured on {stream!r}: the block queued no work on it. To capture work on another stream, "
            "make that stream wait for this one first: other.wait(stream.record())"
        )


def _ended(stream: Stream, handle: Any, begun: ActiveCapture) -> Any:
    """End a capture and return the driver's graph. Raises GraphError if the capture was broken."""
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
        why = f"a stream that joined it was not waited for; call {stream!r}.wait(other) before the block ends"
    else:
        why = f"it was broken by {broken or 'a call that cannot be part of a graph'}"
    raise GraphError(f"the capture on {stream!r} failed: {why}") from error


# Functions ------------------------------------------------------------------------------------------------------------


class Captured:
    """A function of device arrays, captured once per set of arguments and then replayed. Made by `captured`."""

    def __init__(self, function: Callable[..., Any], most: int = _MOST) -> None:
        if not callable(function):
            raise TypeError(f"captured() needs a function, got {type(function).__name__}")
        if most < 1:
            raise ValueError(f"most must be at least 1, the number of graphs to keep, got {most}")
        functools.update_wrapper(self, function)
        self.function = function
        self.most = most
        # Each graph (None if nothing was queued), the function's result, and the arrays that its key refers to.
        self._ready: dict[Any, tuple[Executable | None, Any, tuple[object, ...]]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Captured({getattr(self.function, '__name__', self.function)!r}, {len(self._ready)} graphs)"

    def __len__(self) -> int:
        """The number of graphs it holds."""
        return len(self._ready)

    def __call__(self, where: Any, *arguments: Any) -> Any:
        """Capture the function or replay its graph, on the given stream; returns the result of the captured call."""
        stream = where if hasattr(where, "__cuda_stream__") else getattr(where, "stream", None)
        if stream is None or isinstance(where, DeviceArray):
            raise TypeError(
                f"the first argument of a captured function must be a stream, or an object with a .stream, got "
                f"{type(where).__name__}"
            )
        key = tuple(map(_key, arguments))
        entry = self._ready.get(key)
        if entry is None:
            with self._lock:
                entry = self._ready.get(key)
                if entry is None:
                    entry = self._capture(stream, where, arguments)
                    while len(self._ready) >= self.most:
                        # The driver destroys a graph after its queued launches have run.
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
                    "capturing another library's stream needs at least one DeviceArray among the arguments"
                )
            stream = Stream.of(arrays[0].context, stream)
        with capture(stream, allow_empty=True) as graph:
            graph.keep(*owners)
            given = self.function(where, *arguments)
        if not graph.nodes and any(array.size for array in arrays):
            raise GraphError(
                f"{self!r} queued nothing on {stream!r}, so a replay would do nothing; the function must queue its "
                "work on the stream it receives (stream=..., or chunk.stream)"
            )
        return (graph.instantiate() if graph.nodes else None), given, owners

    def close(self) -> None:
        """Release all graphs after their queued launches. The next call captures again."""
        with self._lock:
            self._ready.clear()


def captured(function: Callable[..., Any], *, most: int = _MOST) -> Captured:
    """Return `function` with its first call per set of arguments captured into a graph, which later calls replay.

    Arrays count as the same if they have the same memory, shape, strides and dtype. Each graph keeps its arrays alive.

    Args:
        function: Queues work on a stream and waits for nothing. Its first argument is a Stream, or an object with a
            `stream` attribute (a pipeline's chunk), whose other attributes the function must not use. Its other
            arguments are device arrays, pinned arrays (both also as `cudakit.strided(x)`), numbers, text and None.
        most: The number of graphs to keep; beyond it, the oldest is released.

    Returns:
        An object that is called like `function`.

    Raises:
        TypeError: If `function` cannot be called.
        ValueError: If `most` is below 1.

    Example:

        step = captured(lambda stream, x, y: blur.launch(stream, grid, block, args=(x, y, n)))
        for _ in range(100):
            step(stream, x, y)
            step(stream, y, x)
    """
    return Captured(function, most)


def _key(value: Any) -> Any:
    """Return an argument's key. Arrays live as long as their key, so no other object can have their identity."""
    if isinstance(value, StridedArgument):
        return StridedArgument, _key(value.array)
    if isinstance(value, TensorMap):
        return TensorMap, value.data, _key(value.array)
    if isinstance(value, DeviceArray):
        return id(value.allocation), value.pointer, value.shape, value.strides, value.dtype, value.readonly
    if isinstance(value, np.ndarray):
        return value.ctypes.data, value.shape, value.strides, value.dtype
    if isinstance(value, (float, complex, np.generic)):
        return type(value), np.asarray(value).tobytes()  # bitwise: -0.0 equals 0.0, and NaN does not equal itself
    if value is None or isinstance(value, (int, str, bytes)):
        return type(value), value
    raise TypeError(
        "the arguments of a captured function must be device or pinned arrays, numbers, text or None, which identify "
        f"its graph, got {type(value).__name__}; make it part of the function, or wrap an array (device.wrap)"
    )
