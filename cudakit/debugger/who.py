"""`--who "out[12, 7]"`: the writes to elements of arrays that a script has not made yet, by name.

The name is that of a kernel's parameter, or of a Python variable at a launch. The history of an array begins at its
first launch; earlier copies and fills are added without all their values.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

from cudakit.debugger.arrays import (
    ArrayLayout,
    flat_indices,
    index_text,
    live_arrays,
    parameter_name,
    simulated_contexts,
)
from cudakit.debugger.writes import WriteHistory, begin
from cudakit.device import Device
from cudakit.driver import driver as drivers
from cudakit.driver.context import Context
from cudakit.launch.mangling import demangle
from cudakit.memory.array import DeviceArray

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# distinct arrays with the name, each with a history
_MOST_ARRAYS = 64
_INTEGER = r"\s*[+-]?\d+\s*"
_KEY = re.compile(rf"{_INTEGER}|\s*\.\.\.\s*|({_INTEGER}|\s*):({_INTEGER}|\s*)(?::({_INTEGER}|\s*))?")


@dataclass(frozen=True)
class Expression:
    """A name and an index of ints and slices; () for all elements."""

    name: str
    index: tuple[Any, ...] = ()

    @classmethod
    def parse(cls, text: str, name: str = r"[A-Za-z_]\w*") -> Expression:
        """Read `out[12, 7]`, `out[-1]`, `out[3, 4:6]` or `out`. Raises ValueError for anything else, and for step 0.
        name: a pattern for the name."""
        found = re.fullmatch(rf"\s*({name})\s*(?:\[([^\[\]]*)\])?\s*", text)
        keys = found[2].split(",") if found is not None and found[2] is not None else []
        if found is None or not all(_KEY.fullmatch(key) for key in keys):
            raise ValueError(
                f"{text!r} names no element: write the name of a kernel's parameter or of a variable, with an index of "
                "integers and slices, such as out[12, 7], out[-1] or out[3, 4:6]"
            )
        index = tuple(_key(key.strip()) for key in keys)
        if any(isinstance(key, slice) and key.step == 0 for key in index):
            raise ValueError(f"{text!r} has a slice with step 0, which selects no elements: write a step other than 0")
        return cls(found[1], index)

    def __str__(self) -> str:
        return self.name + index_text(self.index)


def _key(text: str) -> Any:
    if text == "...":
        return Ellipsis
    if ":" not in text:
        return int(text)
    return slice(*(int(part) if part.strip() else None for part in text.split(":")))


@dataclass
class WatchedParameter:
    """The histories of all arrays that an expression named, one per array, in the order of their first launches.
    `notes` say why a launch's array has no history."""

    expression: Expression
    histories: list[WriteHistory] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [str(history) for history in self.histories]
        if not lines and not self.notes:
            lines = [f"no launch had a parameter or variable named {self.expression.name}, so no writes were recorded"]
        return "\n".join(lines + [f"note: {note}" for note in self.notes])

    def as_dict(self) -> dict[str, Any]:
        """The histories in plain types, for JSON."""
        histories = [history.as_dict() for history in self.histories]
        return {"expression": str(self.expression), "histories": histories, "notes": list(self.notes)}


class _Finder:
    """Finds the arrays at the launches of one driver."""

    def __init__(self, driver: Any, watched: WatchedParameter, reads: bool) -> None:
        self.driver, self.watched, self.reads = driver, watched, reads
        self.known: set[tuple[int, str]] = set()
        self.earlier = drivers.earlier_writes(driver)
        driver.simOnLaunch(self.launch)

    def end(self) -> None:
        self.driver.simEndOnLaunch(self.launch)
        self.driver.simEndWatch(self.earlier)

    def launch(self, launched: Any) -> None:
        """A launch is about to be queued, in the thread that makes it."""
        name = self.watched.expression.name
        named = [
            (number, value)
            for number, (label, value) in enumerate(launched.pointers)
            if parameter_name(label) == name and value
        ]
        for _, value in named:
            if (value, launched.kernel) not in self.known:
                self.known.add((value, launched.kernel))
                self._begin(self._layouts(value, name, launched), launched, f"parameter {name}")
        if not named:
            variable = _variable(name, self.driver)
            if variable is not None and (key := (ArrayLayout.of(variable).pointer, "")) not in self.known:
                self.known.add(key)
                self._begin([ArrayLayout.of(variable)], launched, f"variable {name}")

    def _layouts(self, value: int, name: str, launched: Any) -> list[ArrayLayout]:
        """The possible layouts of the array at an address, the one that was passed first."""
        arrays = [one for one in _passed() if ArrayLayout.of(one).pointer == value]
        arrays += [one for one in live_arrays(self.driver) if one.pointer == value]
        found = [ArrayLayout.of(one) for one in arrays if one.size]
        bounds = self.driver.simAllocation(value)
        if not found and bounds is not None:
            dtype = _element_type(launched, name)
            count = (bounds[1] - value) // dtype.itemsize
            found = [ArrayLayout(value, (count,), (dtype.itemsize,), dtype)] if count else []
        return found

    def _begin(self, layouts: list[ArrayLayout], launched: Any, what: str) -> None:
        watched, index = self.watched, self.watched.expression.index
        kernel = _kernel(launched.kernel)
        if not layouts:
            watched.notes.append(f"{what} of kernel {kernel} points to no memory of the device")
            return
        fitting = [one for one in layouts if _fits(one, index)]
        layout = (fitting or layouts)[0]
        context = _context(self.driver, layout.pointer)
        if context is None:
            return
        if any(history.covers(layout) for history in watched.histories):
            return
        if len(watched.histories) >= _MOST_ARRAYS:
            note = f"more than {_MOST_ARRAYS} arrays are named {watched.expression.name}; the others have no history"
            watched.notes += [note] if note not in watched.notes else []
            return
        try:
            history = begin(context, layout, index or None, reads=self.reads, name=watched.expression.name)
        except (IndexError, TypeError, ValueError) as error:
            watched.notes.append(f"{what} of kernel {kernel} has shape {layout.shape}: {error}")
            return
        history.add_earlier(self.earlier)
        history.learn(launched)
        watched.histories.append(history)


def _fits(layout: ArrayLayout, index: tuple[Any, ...]) -> bool:
    """Whether an index names elements of an array and has as many axes as the array."""
    try:
        flat_indices(layout.shape, index)
    except (IndexError, TypeError):
        return False
    return len(index) == len(layout.shape) or not index or Ellipsis in index


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_array(value: Any) -> bool:
    return type(value) is DeviceArray or type(value) is np.ndarray


def _passed() -> list[Any]:
    """The arrays among the arguments of the calls in progress."""
    values = [value for frame in _frames() for value in frame.f_locals.values()]
    nested = [one for value in values if type(value) in (tuple, list) and len(value) < 256 for one in value]
    return [value for value in (*nested, *values) if _is_array(value)]


def _variable(name: str, driver: Any) -> Any:
    """The array on this driver's devices that a variable of the calling code holds."""
    for frame in _frames():
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            value = frame.f_locals.get(name, frame.f_globals.get(name))
            if type(value) is DeviceArray and value.context.driver is driver and value.size and not value.closed:
                return value
    return None


def _element_type(launched: Any, name: str) -> np.dtype[Any]:
    """The type that a pointer parameter points to, if the kernel's mangled name shows it; else a 32-bit integer."""
    signature = demangle(launched.kernel)
    number = next((n for n, label in enumerate(launched.labels) if parameter_name(label) == name), None)
    types = () if signature is None else signature.types or ()
    if number is not None and number < len(types):
        target = types[number].target
        with contextlib.suppress(TypeError):
            if target is not None and target.dtype is not None:
                return np.dtype(target.dtype)
    return np.dtype(np.uint32)


def _kernel(mangled: str) -> str:
    signature = demangle(mangled)
    return mangled if signature is None else signature.name


def _context(driver: Any, address: int) -> Context | None:
    """The context of the device that an array at an address is on, or else of any device of the driver."""
    arrays = [array.context for array in live_arrays(driver) if array.pointer == address]
    return next((context for context in (*arrays, *simulated_contexts()) if context.driver is driver), None)


@contextlib.contextmanager
def watch_parameter(expression: str, device: Device | None = None, *, reads: bool = True) -> Iterator[WatchedParameter]:
    """Record the writes to the elements that an expression names, of arrays that do not exist yet.

    The name is that of a kernel's parameter; if a launch has no such parameter, that of a variable of the code that
    launches. A history begins at the array's first launch: copies and fills before it are included, but only the value
    of the last one; launches before it are named in the history's notes.

    Args:
        expression: `out[12, 7]`, `out[-1]`, `out[3, 4:6]` (at most 1024 elements) or `out`.
        device: A simulated device; None for all, also those that are opened in the block.
        reads: Also record the values from which kernels computed the stored values.

    Yields:
        The histories. The end of the block waits for the devices, unless an exception ended it.

    Raises:
        ValueError: If the expression is malformed, or a slice has step 0.
    """
    watched = WatchedParameter(Expression.parse(expression))
    finders: list[_Finder] = []

    def start(driver: Any) -> None:
        if device is None or device.context.driver is driver:
            finders.append(_Finder(driver, watched, reads))

    finished = False
    try:
        with drivers.on_simulated(start):
            yield watched
            finished = True
    finally:
        for finder in finders:
            finder.end()
        with contextlib.ExitStack() as stack:
            for history in watched.histories:
                stack.callback(history.end, wait=finished)
