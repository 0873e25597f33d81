"""Reads the elements of a device array for its repr, without waiting for queued work.

On a GPU, the streams that the array is used on are queried, and a few bytes are copied on a separate stream. On the
simulated device no queued work runs, and the checks ignore the read.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cudakit.driver.stream import Event
from cudakit.driver.stream_set import keeps_its_handle
from cudakit.errors import NOT_READY, STICKY
from cudakit.memory import layout

#: Limits of the elements that are read, and of the copies that read them.
MOST_ELEMENTS = 10_000
MOST_COPIES = 1024

CAPTURED, IN_FLIGHT, LOST = "being captured", "work in flight", "device lost"


class Peeked(NamedTuple):
    """The elements of a repr.

    values: the elements; along each shortened axis, one placeholder is in place of those left out. edge: the number of
    elements read at each end of a shortened axis; 0 if all elements were read. unknown: a mask of the elements that are
    uninitialised or left out; None if no element is known to be uninitialised.
    """

    values: npt.NDArray[Any]
    edge: int
    unknown: npt.NDArray[np.bool_] | None


class _Piece(NamedTuple):
    """A copy of `width` bytes at `address` to byte `offset` of the values."""

    offset: int
    address: int
    width: int


def state(array: Any) -> str:
    """Return why an array cannot be read: "closed", "device lost" or "of another process"; "" if it can."""
    context = array.context
    if not array.allocation.open or context.closed:
        return "closed"
    if context.lost is not None:
        return LOST
    return "of another process" if os.getpid() != context.pid else ""


def peek(array: Any, threshold: int, edge: int) -> Peeked | str:
    """Return the elements to show, or the state that prevents reading them ("" if there would be too many).

    threshold, edge: numpy's printing options. For arrays with more elements than `threshold`, only the ends are read.
    """
    reason = state(array)
    if reason:
        return reason
    threshold, edge = min(threshold, MOST_ELEMENTS), max(1, min(edge, MOST_ELEMENTS))
    for cut in (0, *range(edge, 0, -1)):
        if cut == 0 and array.size > threshold:
            continue
        made = _pieces(array, cut)
        if made is not None:
            return _read(array, cut, *made)
    return ""


def _pieces(array: Any, edge: int) -> tuple[npt.NDArray[Any], list[_Piece]] | None:
    """Return an array for the elements to read, and the copies that fill it; None if there are too many."""
    ends = [extent > 2 * edge if edge else False for extent in array.shape]
    shape = tuple(2 * edge + 1 if cut else extent for extent, cut in zip(array.shape, ends, strict=True))
    if math.prod(shape) > MOST_ELEMENTS:
        return None
    values = np.zeros(shape, array.dtype)
    pieces: list[_Piece] = []
    if array.size == 0:
        return values, pieces
    for piece in _corners(array, values, ends, edge):
        if len(pieces) == MOST_COPIES:
            return None
        pieces.append(piece)
    return values, pieces


def _corners(array: Any, values: npt.NDArray[Any], ends: list[bool], edge: int) -> Iterator[_Piece]:
    parts = [
        [(0, 0, edge), (edge + 1, extent - edge, edge)] if cut else [(0, 0, extent)]
        for extent, cut in zip(array.shape, ends, strict=True)
    ]
    for corner in itertools.product(*parts):
        to = sum(place * stride for (place, _, _), stride in zip(corner, values.strides, strict=True))
        from_ = sum(place * stride for (_, place, _), stride in zip(corner, array.strides, strict=True))
        extents = tuple(extent for _, _, extent in corner)
        # max_pitch=0 rules out 2-D copies, so that each copy is one run of bytes
        plan = layout.plan(extents, array.itemsize, values.strides, array.strides, max_pitch=0)
        if plan is not None:
            for there, here in plan.offsets():
                yield _Piece(to + there, array.pointer + from_ + here, plan.width)


def _read(array: Any, edge: int, values: npt.NDArray[Any], pieces: list[_Piece]) -> Peeked | str:
    if not pieces:
        return Peeked(values, edge, None)
    raw = np.ndarray((values.nbytes,), np.uint8, values)
    if array.context.kind == "gpu":
        return _read_gpu(array, raw, pieces) or Peeked(values, edge, None)
    streams = [int(thing.handle) for thing in array.allocation.uses.waits() if not isinstance(thing, Event)]
    ranges = [(piece.address, piece.width) for piece in pieces]
    found = array.context.driver.simPeek(array.context.handle, ranges, streams)
    if isinstance(found, str):
        return LOST if found == "lost" else found
    undefined = np.ones(values.nbytes, np.uint8)
    for piece, (data, unset) in zip(pieces, found, strict=True):
        raw[piece.offset : piece.offset + piece.width] = data
        undefined[piece.offset : piece.offset + piece.width] = 0 if unset is None else unset
    if all(unset is None for _, unset in found):
        return Peeked(values, edge, None)
    # an element is uninitialised if none of its bytes were written
    return Peeked(values, edge, np.asarray(undefined.reshape(*values.shape, values.itemsize).all(axis=-1)))


def _read_gpu(array: Any, raw: npt.NDArray[np.uint8], pieces: list[_Piece]) -> str:
    """Fill `raw` and return "", or return the state that prevents reading."""
    primary = array.context.primary
    for thing in array.allocation.uses.waits():
        if isinstance(thing, Event):
            code = primary.attempt("cuEventQuery", thing.handle) if thing.alive else 0
        elif not keeps_its_handle(thing):
            return IN_FLIGHT  # its handle may be invalid, so it must not be queried
        elif primary.is_capturing(thing.handle):
            return CAPTURED
        else:
            code = primary.attempt("cuStreamQuery", thing.handle)
        if code:
            return IN_FLIGHT if code == NOT_READY else LOST if code in STICKY else "not readable"
    made = primary.quiet("cuStreamCreate", int(array.context.driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
    if made is None or made[0]:
        return "not readable"
    try:
        start = raw.ctypes.data
        codes = [primary.attempt("cuMemcpyDtoHAsync", start + to, at, width, made[1]) for to, at, width in pieces]
        codes.append(primary.attempt("cuStreamSynchronize", made[1]))
    finally:
        primary.attempt("cuStreamDestroy", made[1])
    return "not readable" if any(codes) else ""
