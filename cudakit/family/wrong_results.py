"""The line of a wrong result: the problem is run again on the simulated device, which notes the last store to the wrong
element."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudakit import reports
from cudakit.driver import driver as drivers
from cudakit.errors import CudakitError
from cudakit.family.declaration import several
from cudakit.launch.definitions import definition_line
from cudakit.reports import Report

#: Called with the output (a tuple of several); the kernels run within the context that it returns.
Watch = Callable[[Any], AbstractContextManager[Any]]

if TYPE_CHECKING:
    from cudakit.compare import Comparison
    from cudakit.device import Device
    from cudakit.memory.array import DeviceArray


def report(device: Device, verdict: Comparison, run: Callable[[Watch], object]) -> Report:
    """The report of a wrong result. run(watch): runs the problem again, its kernels within watch(output).

    On the simulated device it has the kernel, block, thread and line of the last store to the wrong element; if no
    kernel stored to it, the last kernel's definition. On a GPU it has no place.
    """
    found = Report("wrong result", verdict.why, full_text=verdict.why)
    if device.kind != "sim":
        return found
    stores: list[Any] = []

    @contextlib.contextmanager
    def watch(output: Any) -> Iterator[None]:
        array = several(output)[verdict.output]
        with drivers.last_store(device.context.driver, _address(array, verdict), array.itemsize) as last:
            yield
        stores.extend(last)

    try:
        with device.counters() as counted:
            run(watch)
    except CudakitError:  # it depends on chance
        return found
    return _stored(found, stores[-1]) if stores else _not_stored(found, counted)


def _address(output: DeviceArray, verdict: Comparison) -> int:
    """The wrong element's address."""
    if verdict.stray is not None:
        return output.pointer + verdict.stray * output.itemsize
    at = list(verdict.worst_at or ())
    if at and output.dtype.kind == "c":
        at[-1] //= 2  # complex numbers are compared as pairs
    return output.pointer + sum(index * stride for index, stride in zip(at, output.strides, strict=True))


def without_harness(fault: Any) -> Any:
    """A report of the simulated device without the lines of Python that launched the kernel and made its arrays: they
    are those of this package, and of hypothesis or pytest."""
    less: dict[str, Any] = {"launched": None} if hasattr(fault, "launched") else {}
    if fault is not None and fault.allocation is not None:
        less["allocation"] = replace(fault.allocation, origin="")
    return replace(fault, **less) if less else fault


def _stored(found: Report, store: Any) -> Report:
    store = without_harness(store)
    at = reports.of_fault(store, launched=None)
    block, thread = at.block, at.thread
    lines = [found.message, f"  last stored by kernel {at.kernel}, block {block}, thread {thread}"]
    places: list[Any] = [at, *at.inlined]
    for word, place in zip(("at", *("inlined from" for _ in at.inlined)), places, strict=True):
        lines += [f"  {word} {place.file}:{place.line}", *([f"      {place.text}"] if place.text else [])]
    return replace(at, kind=found.kind, message=found.message, full_text="\n".join(lines))


def _not_stored(found: Report, counted: dict[str, Any]) -> Report:
    for name, counters in reversed(counted.items()):
        for file in dict.fromkeys(file for file, _ in counters.per_line):
            with contextlib.suppress(OSError):
                line = definition_line(Path(file).read_text(encoding="utf-8-sig", errors="replace"), name)
                if line is not None:
                    text = f"{found.message}\n  no kernel stored to it; kernel {name} at {file}:{line}"
                    return replace(found, kernel=name, full_text=text).at(file, line)
    return found
