"""Readers of the arrays of a call: cudakit's own, torch's and CuPy's, all read in the same way.

A Reader is for one type of arrays and one number of arrays. Its `read` is generated code, because one Python call per
attribute would double the cost; `_source` shows an example.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cudakit.device import Device
from cudakit.driver.stream import Stream
from cudakit.errors import DeviceMismatch
from cudakit.memory import array as memory
from cudakit.memory import dlpack, interop, layout, libraries, makers
from cudakit.memory.allocation import Allocation, Uses
from cudakit.memory.array import DeviceArray
from cudakit.memory.libraries import Library

#: Functions from a device number to the Device, by the kind of devices of a library's arrays.
device_of: dict[str, Callable[[int], Device]] = {"gpu": Device.of_gpu}

MOST_STREAMS = 64  # the most streams of other libraries that are cached per thread and device

# (addresses; the first array's Context, or its device's number; the rest of the call's signature).
Seen = tuple[tuple[int, ...], Any, tuple[Any, ...]]


class Reader:
    """Reads arrays of one type; this class reads cudakit's own.

    read(*arrays): returns Seen, or None if one of the arrays is of another type.
    """

    name = "cudakit"

    def __init__(self, read: Callable[..., Seen | None]) -> None:
        self.read = read

    def device(self, where: Any) -> Device:
        """Return the device of the first array, from the second value that `read` returned."""
        device: Device | None = where.device_object
        return Device.of(where) if device is None else device

    def place(self, array: Any) -> Device:
        """Return the device of an array. Raise ValueError if the array is not on a device."""
        return self.device(array.context)

    def stream(self, device: Device, given: Any) -> Stream:
        """Return the stream to use, after it has been made to wait for earlier work on the arrays. given: the caller's
        choice, or None."""
        return device.default_stream if given is None else Stream.of(device.context, given)

    def empty(self, device: Device, on: Stream, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, int]:
        """Return a new contiguous array and its address."""
        made = device.empty(shape, dtype, stream=on)
        return made, made.pointer

    def used(self, arrays: Sequence[Any], on: Stream, given: Any) -> None:
        """Order frees of the arrays after the work queued on `on`."""
        for array in arrays:
            uses = array.allocation.uses
            if uses.home is not on:
                uses.add(on)

    def view(self, device: Device, on: Stream, array: Any) -> DeviceArray:
        """Return `array` as a DeviceArray with its own Allocation, which identifies it among a kernel's arguments.
        Raise DeviceMismatch for an array of another device."""
        if not array.context.same_device(device.context):
            numbers = array.context.told_apart(device.context)
            raise DeviceMismatch(f"{array.summary} is not on {device.context.spec}{numbers}: copy it with array()")
        of = array.allocation
        own = Allocation(of.context, of.pointer, Uses(of.context, of.uses.home), of, of.span)
        own.open = of.open
        return DeviceArray(own, array.pointer, array.shape, array.strides, array.dtype, array.readonly)


class ForeignReader(Reader):
    """Reads another library's arrays; the default stream is that library's current stream."""

    def __init__(self, read: Callable[..., Seen | None], library: Library) -> None:
        super().__init__(read)
        self.library = library
        self.name = library.name
        self._pointer = library.read(library.pointer)

    def device(self, where: Any) -> Device:
        return device_of[self.library.kind](where)

    def place(self, array: Any) -> Device:
        number = self.library.read(self.library.device)(array)
        if number < 0:
            raise ValueError(
                f"the {self.name} tensor is on {array.device}: move it to a GPU with .cuda(), or copy it "
                "to a device, simulated ones too, with device.array(tensor)"
            )
        return self.device(number)

    def stream(self, device: Device, given: Any) -> Stream:
        current = self._current(device)
        if given is None:
            return current
        chosen = Stream.of(device.context, given)
        chosen.expect_open()
        # A capture cannot wait for work outside of it, and runs nothing itself that would have to wait.
        if int(chosen) != int(current) and (current.capturing or not chosen.capturing):
            chosen.wait(current)
        return chosen

    def _current(self, device: Device) -> Stream:
        address = self.library.current_stream(device.context.ordinal)
        known = _streams(device).by_address
        stream = known.get(address)
        if stream is None or stream.closed:
            stream = device.context.streams.get(address)  # one of our streams that was passed to the library
            if stream is None or stream.closed:
                owner = self.library.stream_owner(device.context.ordinal) if self.library.stream_owner else None
                stream = Stream(device.context, handle=address, owner=owner)
            if len(known) >= MOST_STREAMS:
                del known[next(iter(known))]
            known[address] = stream
        return stream

    def empty(self, device: Device, on: Stream, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, int]:
        made = self.library.maker(shape, dtype.name, device.context.ordinal)()
        return made, self._pointer(made)

    def used(self, arrays: Sequence[Any], on: Stream, given: Any) -> None:
        # On the library's current stream, its allocator orders the free after the work.
        number = on.context.ordinal
        if given is None or int(on) == self.library.current_stream(number):
            return
        capture = on.context.captures.of(on.handle)
        if capture is not None:
            capture.kept.extend(arrays)
            return
        for array in arrays:
            if self.library.record_use is not None:
                self.library.record_use(array, int(on), number)
            else:
                on.context.in_flight.hold(on.handle, array)

    def view(self, device: Device, on: Stream, array: Any) -> DeviceArray:
        library = self.library
        number = library.read(library.device)(array)
        kind = dlpack.CUDA if library.kind == "gpu" and number >= 0 else dlpack.CPU
        interop.expect_same_device(device.context, array, kind, number)
        if library.unresolved(array):
            raise ValueError(
                f"the {self.name} {type(array).__name__} is a negated or conjugated view, whose memory holds other "
                "values: call resolve_neg() or resolve_conj() first"
            )
        dtype = memory.as_dtype(library.dtype_name(array.dtype))
        shape, strides = tuple(array.shape), library.strides_of(array)
        if layout.is_contiguous(shape, strides, dtype.itemsize):
            strides = layout.contiguous(shape, dtype.itemsize)  # the strides of axes of length 1 have no meaning
        return makers.over(device.context, on, self._pointer(array), shape, dtype, strides=strides, owner=array)


class _ThreadStreams(threading.local):
    """One thread's Stream objects for other libraries' streams, by address."""

    def __init__(self) -> None:
        self.by_address: dict[int, Stream] = {}


def _streams(device: Device) -> _ThreadStreams:
    made: _ThreadStreams | None = device.kept.get(_ThreadStreams)
    return made if made is not None else device.kept.setdefault(_ThreadStreams, _ThreadStreams())


# Readers by the first array's type and the number of arrays.
_readers: dict[tuple[type, int], Reader] = {}


def reader_of(arrays: Sequence[Any]) -> Reader:
    """Return the Reader of arrays. Raise TypeError if the first is not a device array."""
    key = (type(arrays[0]), len(arrays))
    return _readers.get(key) or _make(*key)


def expect_one_library(arrays: Sequence[Any]) -> None:
    """Raise ValueError for arrays of several libraries, TypeError for an object that is not an array on a device."""
    names = {reader_of((array,)).name for array in arrays}
    if len(names) > 1:
        raise ValueError(f"the arrays are of different libraries ({', '.join(sorted(names))}): pass all of one")


def _make(kind: type, count: int) -> Reader:
    library = libraries.of(kind, exact=False)
    if issubclass(kind, DeviceArray):
        text = _source(count, _OWN)
        made = Reader(_define(text, {"types": (DeviceArray,)}))
    elif library is None:
        raise TypeError(
            f"{kind.__module__}.{kind.__name__} is not an array on a device: "
            "copy it there with device.array(x), or pass a torch or CuPy array"
        )
    elif kind in library.types:
        flags = tuple(flag for flag in (library.negated, library.conjugated) if flag)
        parts = (library.device, library.pointer, library.dtype, library.shape, library.strides, library.device, *flags)
        made = ForeignReader(_define(_source(count, parts), {"types": library.types}), library)
    else:
        return ForeignReader(lambda *_: None, library)  # a subclass may override anything: resolved at each call
    _readers[kind, count] = made
    return made


# Expressions of an array: its context, its address, and the rest of its signature.
_OWN = (
    "{0}.context",
    "{0}.pointer",
    "{0}.dtype",
    "{0}.shape",
    "{0}.strides",
    "{0}.readonly",
    "{0}.allocation.open",
    "{0}.context",
)


def _source(count: int, parts: Sequence[str]) -> str:
    """Return the source of `read` for `count` arrays; the last is the output. For two arrays of cudakit it is:

    def read(a0, a1):
        if type(a1) not in types: return None
        p0 = a0.pointer
        p1 = a1.pointer
        return (p0, p1), a0.context, (
            p0 & 15, p0 == p1, a0.dtype, a0.shape, a0.strides, a0.readonly, a0.allocation.open, a0.context,
            p1 & 15, p1 == p1, a1.dtype, a1.shape, a1.strides, a1.readonly, a1.allocation.open, a1.context,
        )
    """
    where, pointer, *known = parts
    names = [f"a{i}" for i in range(count)]
    others = " or ".join(f"type({name}) not in types" for name in names[1:])
    lines = [f"def read({', '.join(names)}):"]
    if others:
        lines.append(f"    if {others}: return None")
    lines += [f"    p{i} = {pointer.format(name)}" for i, name in enumerate(names)]
    addresses = ", ".join(f"p{i}" for i in range(count))
    lines.append(f"    return ({addresses},), {where.format('a0')}, (")
    for i, name in enumerate(names):
        lines.append(f"        p{i} & 15, p{i} == p{count - 1}, {', '.join(part.format(name) for part in known)},")
    return "\n".join([*lines, "    )", ""])


def _define(text: str, names: dict[str, Any]) -> Callable[..., Seen | None]:
    exec(compile(text, f"{__file__}:read", "exec"), names)
    read: Callable[..., Seen | None] = names["read"]
    return read
