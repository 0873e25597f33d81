"""Resolved calls: the cached result of resolving a call of an op, for later calls of the same kind.

The first call with a signature chooses the variant, compiles its kernels and checks every rule. The result is a
ResolvedCall: launches whose pointers and numbers are replaced in place. Later calls with the same signature differ only
in addresses and numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cudakit.device import Device
from cudakit.driver.stream import Stream
from cudakit.errors import LaunchError
from cudakit.family import kernels
from cudakit.family.declaration import Slot, TensorMapSlot, Variant, scratch_bytes
from cudakit.family.ladder import Ladder
from cudakit.family.scalars import MarkedFloat, MarkedInt, Scalar, mark, unmarked
from cudakit.launch.following import Layout
from cudakit.launch.patchable import PatchableLaunch
from cudakit.memory import layout, makers
from cudakit.memory.array import DeviceArray
from cudakit.memory.scratch import scratch
from cudakit.memory.tensor_map import Encoding, TensorMap

# Immutable types.
_IMMUTABLE = (float, int, np.generic)
MOST_ADDRESSES = 64  # remembered per tensor map


class _Number:
    """An option of a resolved call. value: the value last passed to the kernels. places: (launch, parameter,
    factor)."""

    __slots__ = ("_places", "_read", "kind", "value")

    def __init__(self, scalar: Scalar, value: Any) -> None:
        self._read, self.kind = scalar.read, scalar.kind
        self._places: list[tuple[PatchableLaunch, int, float | None]] = []
        self.value = value if isinstance(value, _IMMUTABLE) else self

    def at(self, launch: PatchableLaunch, parameter: int, factor: float | None) -> None:
        self._places.append((launch, parameter, factor))

    def become(self, value: Any) -> None:
        """Write another value into the launches. Raises the error that the first call would have raised for it."""
        number = self._read(value)
        self.value = self  # equals no option, so that the next call tries again if a put fails
        for launch, parameter, factor in self._places:
            launch.put(parameter, number if factor is None else number * factor)
        if isinstance(value, _IMMUTABLE):
            self.value = value


class AddressedMap(dict[int, bytes]):
    """A tensor map among the arguments of a launch: its bytes by the tensor's address.

    view: the map's place in the arguments: `view[:] = addressed_map[address]`. role, offset: the tensor's address is
    that of the array with this index, plus `offset`.
    """

    def __init__(self, view: memoryview, role: int, offset: int, encoding: Encoding, refusal: str) -> None:
        self.view, self.role, self.offset = view, role, offset
        self._encoding, self._refusal = encoding, refusal

    def __missing__(self, address: int) -> bytes:
        if len(self) >= MOST_ADDRESSES:
            self.clear()
        try:
            data = self[address] = self._encoding.at(address)
        except ValueError as error:
            raise LaunchError(f"{self._refusal}: {error}") from error
        return data


class ResolvedCall:
    """One kind of call of one op on one device, for one thread.

    shape, dtype: those of the output. numbers: the options that are plain numbers.
    """

    def __init__(
        self,
        device: Device,
        family: Ladder[Any],
        variant: Variant[Any],
        problem: Any,
        arrays: Sequence[DeviceArray],
        options: Mapping[str, Any],
    ) -> None:
        *inputs, output = arrays
        self.family = family  # kept alive, because signatures contain its id
        self.shape, self.dtype = output.shape, output.dtype
        self.numbers = {
            name: _Number(scalar, options[name])
            for name, scalar in family.scalars.items()
            if options.get(name) is not None
        }
        self.apart = _apart(inputs, output)
        self.scratch_bytes = 0
        self.launches: list[PatchableLaunch] = []
        self.slots: list[tuple[tuple[int, int, int], ...]] = []
        self.maps: list[tuple[AddressedMap, ...]] = []
        self._layouts: list[list[Layout | None]] = []  # per launch and parameter, for recordings
        self._range = family.range(variant)
        self.attention: Any = ()
        self.guard: Any = None  # made by guards.make_guard
        self.guard_names: dict[str, Any] = {}
        if not family.is_empty(output):
            self._build(device, variant, problem, arrays, options)

    def _build(
        self,
        device: Device,
        variant: Variant[Any],
        problem: Any,
        arrays: Sequence[DeviceArray],
        options: Mapping[str, Any],
    ) -> None:
        family = self.family
        *inputs, output = arrays
        passed = mark(problem, family.scalars, options)
        launches = family.launches(variant, passed)
        self.scratch_bytes = scratch_bytes(launches)
        stand_in = None
        if self.scratch_bytes:
            # A placeholder address, which each call replaces.
            stand_in = makers.over(device.context, output.stream, _NOWHERE, self.scratch_bytes, np.uint8)
        for each in launches:
            kernel = family.kernel(device, variant, each)
            values = family.arguments_of(each, kernel, passed)
            actual = kernels.placed(family.name, kernel, values, (*arrays, stand_in), len(inputs), 1)
            launch = kernel.patchable(**each.keywords(list(map(unmarked, actual))))
            slots, maps = [], []
            layouts: list[Layout | None] = [None] * len(values)
            for index, value in enumerate(values):
                if isinstance(value, (Slot, TensorMapSlot)):
                    layouts[index] = _layout(value, arrays, value.place(len(inputs), 1))
                if isinstance(value, TensorMapSlot):
                    view, role = launch.bytes_of(index), value.place(len(inputs), 1)
                    refusal = kernels.no_map(family.name, kernel, index)
                    maps.append(AddressedMap(view, role, value.offset, actual[index].encoding, refusal))
                elif isinstance(value, Slot):
                    offset = value.offset if actual[index].size else 0
                    slots.append((launch.place(index), value.place(len(inputs), 1), offset))
                elif isinstance(value, (MarkedFloat, MarkedInt)):
                    self.numbers[value.option].at(launch, index, value.factor)
                elif isinstance(value, (DeviceArray, TensorMap)):
                    what = "an array" if isinstance(value, DeviceArray) else "the tensor map of an array"
                    raise LaunchError(
                        f"{kernel.signature}: {kernel.parameters[index].label} is passed {what} that is neither an "
                        f"input nor an output of {family.name}: declare it as an input"
                    )
            self.launches.append(launch)
            self._layouts.append(layouts)
            self.slots.append(tuple(slots))
            self.maps.append(tuple(maps))
        self.attention = self.launches[0].attention if self.launches else ()

    def takes(self, pointers: tuple[int, ...], fresh: bool) -> bool:
        """Return whether it can be launched at these addresses: its modules are open, and no input that was separate
        from the output in the first call shares memory with it.

        fresh: the output is new and not in `pointers`; a new output shares no memory.
        """
        if any(launch.retired for launch in self.launches):
            return False
        if not fresh:
            output = pointers[-1]
            for place, low, high in self.apart:
                if low < pointers[place] - output < high:
                    return False
        return True

    def __call__(self, stream: Stream, pointers: tuple[int, ...]) -> None:
        """Queue its launches on `stream`. pointers: the addresses of the inputs, then of the output."""
        stream.expect_open()
        if self.guard_names:
            # so that the guard does not assume that the launches still have the addresses of its own last call
            self.guard_names["last"] = self.guard_names["nothing"]
        if self.scratch_bytes:
            pointers = (*pointers, scratch(stream, self.scratch_bytes))
        for launch, slots, maps in zip(self.launches, self.slots, self.maps, strict=True):
            for word, role, offset in slots:
                launch.words[word] = pointers[role] + offset
            for each in maps:
                each.view[:] = each[pointers[each.role] + each.offset]
        handle = stream.handle
        if self.attention:
            self.attended(handle)
            return
        for launch in self.launches:
            result = launch.send(handle, launch.address, 0)
            if result[0]:
                launch.again(launch.send, handle, result[0])

    def attended(self, handle: Any) -> None:
        """Queue the launches within an NVTX range, and make the context current if there are several devices."""
        with self._range:
            for launch, layouts in zip(self.launches, self._layouts, strict=True):
                send = launch.attended(launch.send, layouts)
                result = send(handle, launch.address, 0)
                if result[0]:
                    launch.again(send, handle, result[0])


_NOWHERE = 1 << 40


def _layout(slot: Slot | TensorMapSlot, arrays: Sequence[DeviceArray], role: int) -> Layout | None:
    """Return the layout of the array of a slot; None for scratch memory, and for parts or other elements of an array.
    role: the array's index."""
    if slot.offset or role >= len(arrays):
        return None
    array = arrays[role]
    if isinstance(slot, Slot) and slot.elements not in ("", array.dtype.name):
        return None
    return Layout(array.shape, array.strides, array.dtype.name)


def _apart(inputs: Sequence[DeviceArray], output: DeviceArray) -> tuple[tuple[int, int, int], ...]:
    """Return (index, low, high) for each input that is not at the output's address. If the input's address minus the
    output's, in bytes, is between low and high, the two share memory, and the call must be checked again."""
    low, high = layout.span(output.shape, output.strides, output.itemsize)
    bounds = []
    for place, array in enumerate(inputs):
        if array.pointer != output.pointer:
            first, last = layout.span(array.shape, array.strides, array.itemsize)
            bounds.append((place, low - last, high - first))
    return tuple(bounds)


class _ThreadCalls(threading.local):
    """One thread's resolved calls on one device, by signature."""

    def __init__(self) -> None:
        self.by_signature: dict[Any, ResolvedCall] = {}


def thread_calls(device: Device) -> dict[Any, ResolvedCall]:
    """Return this thread's resolved calls on a device, by signature. They are dropped when the device is closed."""
    made: _ThreadCalls | None = device.kept.get(_ThreadCalls)
    return (made if made is not None else device.kept.setdefault(_ThreadCalls, _ThreadCalls())).by_signature
