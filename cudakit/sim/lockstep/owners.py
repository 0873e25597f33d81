"""Whose variable an address of local memory names.

On hardware, the generic addresses of local memory are the same in every thread: a pointer to a local variable that
another thread dereferences silently names that thread's own memory. Here, an address that cvta makes also contains the
thread and the call of the function whose variable it names, so that such an access, and one after the function has
returned, is reported. A thread that reads back a pointer of its own, from any memory, may use it.

The bits of a local address, from the lowest: a signed offset in the thread's local memory, the call, and the thread;
both are 0 in an address that only the function itself uses. A generic address is the local address plus the window.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from cudakit.sim.lockstep.fragment import Batch, Fragment
from cudakit.sim.lockstep.lanes import Array, LaneSet
from cudakit.sim.lockstep.memory import LOCAL_WINDOW
from cudakit.sim.lockstep.pieces import LOCAL
from cudakit.sim.lockstep.sites import Site

_OFFSET_BITS, _CALL_BITS, _THREAD_BITS = 24, 11, 22
_HALF = 1 << (_OFFSET_BITS - 1)
_THREAD_SHIFT = _OFFSET_BITS + _CALL_BITS
# calls and threads are numbered from 1 to these numbers, and then again from 1
_CALLS, _THREADS = (1 << _CALL_BITS) - 1, (1 << _THREAD_BITS) - 1


def note_call(batch: Batch, lanes: LaneSet, depth: int) -> None:
    """Number the call of a function with local memory by these lanes; ``depth`` is the number of its callers."""
    calls = batch.local_calls.get(depth)
    if calls is None:
        calls = batch.local_calls[depth] = np.zeros(batch.geometry.lanes, np.uint16)
    batch.call_count += 1
    calls[lanes.lanes] = batch.call_count % _CALLS + 1


def to_generic(f: Fragment, address: Any) -> Any:
    """The generic addresses of local addresses: with the thread, unless they have it already."""
    owned = (address >= np.uint64(_HALF)) & (address < np.uint64(LOCAL_WINDOW))
    plain = address + np.uint64(LOCAL_WINDOW)
    if owned.all() or f.batch.run.local_bytes > _HALF:
        return plain
    tags = _threads(f.batch, f.lanes) << _THREAD_SHIFT
    if f.batch.local_calls:
        offsets = np.broadcast_to(address, (f.lanes.count,)).view(np.int64)
        tags = tags | _calls_at(f, f.lanes, offsets) << _OFFSET_BITS
    tagged = plain + tags.view(np.uint64)
    return np.where(owned, plain, tagged) if owned.any() else tagged


def to_local(f: Fragment, address: Any) -> Any:
    """The local addresses of generic addresses: without the thread, if they name a variable of their own thread."""
    local = np.broadcast_to(address - np.uint64(LOCAL_WINDOW), (f.lanes.count,)).view(np.int64)
    offsets, calls, threads = _parts(local)
    own = threads == _threads(f.batch, f.lanes)
    if f.batch.local_calls:
        own &= calls == _calls_at(f, f.lanes, offsets)
    return np.where(own, offsets, local).view(np.uint64)


def own_offsets(f: Fragment, lanes: LaneSet, addresses: Array, site: Site, size: int) -> Array:
    """The offsets that the local addresses of an access name in their lane's memory. Stops the kernel if an address
    names a variable of another thread, or of a call that has returned."""
    plain: Array = addresses - (_threads(f.batch, lanes) << _THREAD_SHIFT)
    if int(plain.min()) >= 0 and int(plain.max()) + size <= f.frames[0].program.local_bytes:
        # the kernel's own variables
        return plain
    offsets, calls, threads = _parts(np.broadcast_to(addresses, (lanes.count,)))
    owned = (threads > 0) & (threads <= min(f.batch.run.config.blocks * f.batch.geometry.threads, _THREADS))
    foreign = owned & (threads != _threads(f.batch, lanes))
    if foreign.any():
        _fail_foreign(f, site, size, foreign, int(threads[np.argmax(foreign)]))
    if f.batch.local_calls:
        wrong = owned & (calls != _calls_at(f, lanes, offsets))
        if wrong.any():
            stale = wrong.copy()
            for depth, frame in enumerate(f.frames):
                if frame.program.local_bytes:
                    # a variable of a function that still runs
                    stale &= calls != _numbers(f.batch, lanes, depth)
            if stale.any():
                _fail_stale(f, site, size, stale, int(offsets[np.argmax(stale)]))
            _fail_past(f, site, size, wrong, int(offsets[np.argmax(wrong)]))
    return np.where(owned, offsets, addresses)


def own_offset(f: Fragment, lane: int, address: int) -> int:
    """The offset that a generic address of local memory names in the memory of the lane at a position; -1 if it names
    another thread's."""
    return int(named_offsets(f, np.array([lane]), np.array([address - LOCAL_WINDOW]))[0])


def named_offsets(f: Fragment, positions: Array, addresses: Array) -> Array:
    """The offsets that local addresses name in the memory of the lanes at some positions; -1 if they name another
    thread's."""
    offsets, _, threads = _parts(addresses)
    own = (threads == 0) | (threads == _threads(f.batch, f.lanes).take(positions))
    found: Array = np.where(own, offsets, -1)
    return found


def _parts(addresses: Array) -> tuple[Array, Array, Array]:
    """The offset, the call and the thread of local addresses."""
    shifted = addresses + _HALF
    offsets = (shifted & ((1 << _OFFSET_BITS) - 1)) - _HALF
    return offsets, shifted >> _OFFSET_BITS & _CALLS, shifted >> _THREAD_SHIFT


def _threads(batch: Batch, lanes: LaneSet) -> Array:
    """The number of each lane's thread."""
    first = batch.first_block * batch.geometry.threads
    found: tuple[int, Array] | None = lanes.cache.get("owners")
    if found is None or found[0] != first:
        found = lanes.cache["owners"] = (first, (lanes.lanes + first) % _THREADS + 1)
    return found[1]


def _numbers(batch: Batch, lanes: LaneSet, depth: int) -> Any:
    """The number of each lane's call at a depth; 0 if its function has no local memory, or is the kernel."""
    calls = batch.local_calls.get(depth)
    return 0 if calls is None else calls.take(lanes.lanes).astype(np.int64)


def _calls_at(f: Fragment, lanes: LaneSet, offsets: Array) -> Array:
    """The number of the call to which each offset belongs: the last one that begins at or before it."""
    bases = [frame.local_base for frame in f.frames]
    depths = np.maximum(np.searchsorted(bases, offsets, side="right") - 1, 0)
    found = np.zeros(lanes.count, np.int64)
    for depth in np.unique(depths).tolist():
        if f.frames[depth].program.local_bytes:
            found = np.where(depths == depth, _numbers(f.batch, lanes, depth), found)
    return found


def _fail_foreign(f: Fragment, site: Site, size: int, wrong: Array, thread: int) -> NoReturn:
    geometry = f.batch.geometry
    whose = "of another thread"
    if f.batch.run.config.blocks * geometry.threads <= _THREADS:
        block, inner = divmod(thread - 1, geometry.threads)
        whose = f"of block {f.batch.grid_index(block)}, thread {geometry.thread_index(inner)}"
    _fail(
        f,
        site,
        size,
        "out of bounds",
        f"at the address of a local variable {whose}: a thread can access only its own local memory",
        wrong,
        "pass the value, or a pointer to shared or global memory: on a GPU the address names the accessing thread's "
        "own local memory",
    )


def _fail_past(f: Fragment, site: Site, size: int, wrong: Array, offset: int) -> NoReturn:
    _fail(
        f,
        site,
        size,
        "out of bounds",
        f"at byte {offset} of local memory, by a pointer to a variable of another function, which ends before",
        wrong,
        "keep indices within the array that the pointer names",
    )


def _fail_stale(f: Fragment, site: Site, size: int, wrong: Array, offset: int) -> NoReturn:
    _fail(
        f,
        site,
        size,
        "use after free",
        f"at byte {offset} of local memory, by a pointer to a local variable of a function that has returned",
        wrong,
        "return the value, or pass a variable of the caller by pointer",
    )


def _fail(f: Fragment, site: Site, size: int, kind: str, where: str, wrong: Array, advice: str) -> NoReturn:
    places = np.flatnonzero(wrong)
    f.fail(
        site.instruction,
        kind,
        f"{site.kind} of {size} byte{'s' * (size != 1)} {where}",
        int(places[0]),
        places,
        space=LOCAL,
        access=site.kind,
        notes=[advice],
    )
