"""Scratch memory of kernels: one block per stream and thread, and one per captured graph."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from cudakit import system
from cudakit.driver.stream import Stream
from cudakit.memory.allocation import Allocation

LEAST = 1 << 20  # size of the first allocation on a stream, in bytes
_KEPT = "scratch"


def scratch(stream: Stream, nbytes: int) -> int:
    """Return the address of `nbytes` of scratch memory for work that this thread queues on `stream` after this call.

    The next request on the stream returns the same bytes, because work on one stream runs in order. Each stream and
    each thread has its own memory, so two threads may alternate launches on a stream. On a stream that is being
    captured the memory belongs to the graph: no other work uses it, and it lives as long as the graph. Its contents are
    undefined.
    """
    if stream.capturing:
        return _of_graph(stream, nbytes)
    key = (_KEPT, threading.get_ident())
    space: Allocation | None = stream.kept.get(key)
    if space is None or space.span[1] - space.pointer < nbytes:
        if space is not None:
            del stream.kept[key]
            space.close()  # waits for the device, and so for all work that uses it
        space = stream.kept[key] = Allocation.unordered(stream.context, stream, _rounded(nbytes))
        stream.context.own.add(space)
    return space.pointer


def _rounded(nbytes: int) -> int:
    """Round up to a power of two, so that growing requests allocate only a few times."""
    return max(LEAST, 1 << (nbytes - 1).bit_length())


def _of_graph(stream: Stream, nbytes: int) -> int:
    """Return memory owned by the graph being captured on `stream`, shared by the graph's work on that stream."""
    context = stream.context
    _, number, graph, *_ = context.call("cuStreamGetCaptureInfo", stream.handle)
    key = (_KEPT, threading.get_ident(), "graph")
    known, reference = stream.kept.get(key, (None, None))
    space: Allocation | None = None if reference is None or known != int(number) else reference()
    if space is None or space.span[1] - space.pointer < nbytes:
        space = Allocation.unordered(context, stream, nbytes)
        capture = context.captures.of(stream.handle)
        if capture is not None:
            capture.kept.append(space)
        else:
            _keep_with(graph, space)
        stream.kept[key] = int(number), weakref.ref(space)
    return space.pointer


# Graphs of other libraries call a function when they are destroyed, on a thread of the driver that must call neither
# Python nor the driver. So the function only raises a semaphore, and the memory is freed later: by the next capture
# here that finds the semaphore raised, or when the device is closed.
_NO_DESTRUCTOR_SYNC, _MOVE = 1, 1  # CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, CU_GRAPH_USER_OBJECT_MOVE
_of_graphs: dict[int, tuple[system.Semaphore, Allocation]] = {}  # (semaphore, memory) by the semaphore's address


def _keep_with(graph: Any, space: Allocation) -> None:
    context = space.context
    ended = system.Semaphore()
    user = context.call(
        "cuUserObjectCreate", ended.address, context.driver.CUhostFn(ended.post), 1, _NO_DESTRUCTOR_SYNC
    )
    context.call("cuGraphRetainUserObject", graph, user, 1, _MOVE)
    _of_graphs[ended.address] = ended, space
    for address, (semaphore, _) in _of_graphs.copy().items():
        # Other threads may run this loop too: a semaphore that was raised once lets only one of them pass.
        if semaphore.try_wait():
            del _of_graphs[address]
