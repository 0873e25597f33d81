"""Allocation: one piece of device memory, shared by an array and its views, and the streams that it is used on."""

from __future__ import annotations

import weakref
from typing import Any

from cudakit import nvtx
from cudakit.driver.context import Context
from cudakit.driver.stream import Event, Stream, StreamEnd
from cudakit.driver.stream_set import StreamSet, keeps_its_handle
from cudakit.errors import CudaError, OutOfMemory

#: Whether each context's device has a stream-ordered pool; some virtual GPUs do not.
_pooled: weakref.WeakKeyDictionary[Context, bool] = weakref.WeakKeyDictionary()


class Uses(StreamSet):
    """The streams that use one allocation: its home stream, which frees it, and the others, which are waited for."""

    __slots__ = ("context", "home")

    def __init__(self, context: Context, home: Stream) -> None:
        super().__init__()
        self.context = context
        self.home = home

    def add(self, stream: Stream) -> None:
        """Add a stream that uses the memory."""
        home = self.home
        if stream is home:
            return
        # A second object for the home stream is added only if it alone keeps the stream alive.
        same = stream.foreign and home.foreign and int(home) == int(stream)
        if not same or (home.owner is None and stream.owner is not None):
            super().add(stream)

    def at_home(self) -> Stream:
        """Return the home stream; if it was closed, the legacy default stream, ordered after it."""
        home = self.home
        if home.closed:
            self.home = Stream(self.context, handle=0)
            if home.last is not None:
                self.home.wait(home.last)
        return self.home

    def synchronize(self) -> None:
        """Wait for all work on the allocation; raises the error of any that failed."""
        for thing in self.waits():
            thing.synchronize()
        self.prune()

    def waits(self) -> list[Stream | Event]:
        """Return streams and events that cover all work queued so far."""
        home = self.home.last if self.home.closed else self.home
        return [*([] if home is None else [home]), *super().waits()]

    def join(self) -> Any:
        """Make one stream wait for all the others; returns its handle. For finalizers: never raises."""
        primary = self.context.primary
        home = self.home
        handle = 0 if home.closed else home.handle
        if home.closed:
            self._after_closed(home, handle)
        for other in self.others:
            if other.closed:
                self._after_closed(other, handle)
            elif not keeps_its_handle(other):
                # The stream may be destroyed, as nothing keeps its handle alive: wait for the whole device instead.
                primary.wait()
            elif int(other) != int(handle):
                self._after(other, handle)
        return handle

    def captured_elsewhere(self) -> bool:
        """Return whether another library is capturing one of the streams. For finalizers: never raises."""
        # Without an owner, a handle may be invalid and must not be queried.
        return any(
            stream.foreign and keeps_its_handle(stream) and self.context.primary.is_capturing(stream.handle)
            for stream in (self.home, *self.others)
        )

    def _after_closed(self, stream: Stream | StreamEnd, handle: Any) -> None:
        if stream.last is None:
            self.context.primary.wait()
        elif stream.last.alive:
            self.context.attempt("cuStreamWaitEvent", handle, stream.last.handle, 0)

    def _after(self, stream: Stream | StreamEnd, handle: Any) -> None:
        context = stream.context
        if context.closed:
            return
        primary = context.primary
        made = primary.quiet("cuEventCreate", int(context.driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        if made is None or made[0]:
            primary.attempt("cuStreamSynchronize", stream.handle)
            return
        if primary.attempt("cuEventRecord", made[1], stream.handle) == 0:
            self.context.attempt("cuStreamWaitEvent", handle, made[1], 0)
        # The queued wait keeps what it needs of the event.
        primary.attempt("cuEventDestroy", made[1])


class Allocation:
    """One piece of device memory, shared by an array and its views.

    pointer: its address, 0 if empty. span: (first address, one past the last). open: False once close() was called.
    uses: the streams it is used on. owner: keeps memory of another library alive, None for our own.
    """

    __slots__ = ("__weakref__", "_finalizer", "context", "open", "owner", "pointer", "span", "uses")

    def __init__(
        self, context: Context, pointer: int, uses: Uses, owner: object = None, span: tuple[int, int] = (0, 0)
    ) -> None:
        self.context = context
        self.pointer = pointer
        self.span = span
        self.uses = uses
        self.owner = owner
        self.open = True
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def handle(self) -> int:
        """Its address, by which the leak report recognises memory that cudakit keeps for itself."""
        return self.pointer

    @classmethod
    def make(cls, context: Context, stream: Stream, nbytes: int) -> Allocation:
        """Allocate memory, from the pool if the device has one.

        Raises OutOfMemory, which reports the free memory, and GraphError if the stream is being captured.
        """
        uses = Uses(context, stream)
        if nbytes == 0:
            context.make_current()
            return cls(context, 0, uses)
        if context.captures or stream.foreign:
            context.captures.refuse(
                stream.expect_open(),
                f"{nbytes} bytes of device memory cannot be allocated on {stream!r} while it is being captured: they "
                "would belong to the graph. Make the array before the capture, and pass functions an out= array",
            )
        if context.captures.late:
            context.captures.let_go()
        try:
            expect_countable("cuMemAllocAsync", nbytes)
            # Relaxed mode: if another library is capturing, allocating is otherwise forbidden.
            with nvtx.range("allocate"), context.relaxed():
                pooled = _has_pool(context)
                if pooled:
                    pointer = int(context.call("cuMemAllocAsync", nbytes, stream.expect_open()))
                else:
                    pointer = int(context.call("cuMemAlloc", nbytes))
        except OutOfMemory as error:
            raise _out_of_memory(context, error, nbytes) from error
        made = cls(context, pointer, uses, span=(pointer, pointer + nbytes))
        made.release_with(_free_async if pooled else _free, context, pointer, uses)
        return made

    @classmethod
    def unordered(cls, context: Context, stream: Stream, nbytes: int) -> Allocation:
        """Allocate memory outside the stream-ordered pool, which works even while a stream is being captured.

        Freeing it waits for the device. Raises OutOfMemory, which reports the free memory.
        """
        try:
            with nvtx.range("allocate"), context.relaxed():
                pointer = int(context.call("cuMemAlloc", nbytes))
        except OutOfMemory as error:
            raise _out_of_memory(context, error, nbytes) from error
        made = cls(context, pointer, Uses(context, stream), span=(pointer, pointer + nbytes))
        made.release_with(_free, context, pointer, made.uses)
        return made

    def release_with(self, release: Any, *arguments: Any) -> None:
        """Set the function that frees the memory. It is called once: after the last view, at close(), or with the
        context."""
        self._finalizer = self.context.adopt(
            self, _release, self.context, self.pointer, self.span, self.uses, release, arguments
        )

    def close(self) -> None:
        """Free it now, in stream order. A second call does nothing."""
        self.open = False
        self.context.closings += 1
        self.owner = None
        if self._finalizer is not None:
            self._finalizer()


def _release(
    context: Context, pointer: int, span: tuple[int, int], uses: Uses, release: Any, arguments: tuple[Any, ...]
) -> None:
    if not context.closed and (context.captures or uses.captured_elsewhere()):
        # A free must not become a node of the graph, because later launches may use the memory. The stream that frees
        # it must not wait for a captured stream either, because that would join the capture.
        kept = Allocation(context, pointer, uses, span=span)
        kept.release_with(release, *arguments)
        context.captures.late.append(kept)
        return
    with nvtx.range("free"):
        release(*arguments)


def _free_async(context: Context, pointer: int, uses: Uses) -> None:
    context.attempt("cuMemFreeAsync", pointer, uses.join())


def _free(context: Context, pointer: int, uses: Uses) -> None:
    # cuMemFree waits for the whole device, and so for every stream.
    context.attempt("cuMemFree", pointer)


def _has_pool(context: Context) -> bool:
    known = _pooled.get(context)
    if known is None:
        known = bool(context.attribute("MEMORY_POOLS_SUPPORTED"))
        if known:
            # By default the pool returns unused memory to the system at each synchronize(). Keeping it makes an
            # allocation cost a microsecond instead of a millisecond.
            driver = context.driver
            pool = context.call("cuDeviceGetDefaultMemPool", context.device)
            threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
            context.call("cuMemPoolSetAttribute", pool, threshold, driver.cuuint64_t(2**64 - 1))
        _pooled[context] = known
    return known


def trim(context: Context, keep: int = 0) -> None:
    """Return unused pool memory to the system, except `keep` bytes."""
    with context.relaxed():
        if _has_pool(context):
            pool = context.call("cuDeviceGetDefaultMemPool", context.device)
            context.call("cuMemPoolTrimTo", pool, keep)


def expect_countable(routine: str, nbytes: int) -> None:
    """Raise OutOfMemory if `nbytes` does not fit the 64-bit argument of `routine`."""
    if nbytes >= 2**64:
        raise OutOfMemory(
            routine, 2, "CUDA_ERROR_OUT_OF_MEMORY", f"{nbytes} bytes were requested, which is more than 64 bits address"
        )


def _out_of_memory(context: Context, error: OutOfMemory, nbytes: int) -> OutOfMemory:
    text = f"{error.text}: {nbytes} bytes were requested on {context.spec}"
    try:
        free, total = context.memory_info()
    except CudaError:
        # Report the allocation's failure even if the free memory cannot be queried.
        pass
    else:
        text += f", {free} of {total} bytes are free"
    return OutOfMemory(error.routine, error.code, error.name, text, error.hint)
