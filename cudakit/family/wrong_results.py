"""Reports of a failing variant: the source line of a fault, and that of a wrong result.

For a wrong result the problem is run again on the simulated device, which records the last store to the wrong element.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudakit import reports
from cudakit.driver import driver as drivers
from cudakit.errors import CudakitError, LaunchError
from cudakit.family.declaration import Variant, several
from cudakit.launch.definitions import definition_line
from cudakit.reports import Report

#: Called with the output (a tuple of several); returns the context within which the kernels run.
Watch = Callable[[Any], AbstractContextManager[Any]]

if TYPE_CHECKING:
    from cudakit.compare import Comparison
    from cudakit.device import Device
    from cudakit.memory.array import DeviceArray


def of_error(error: BaseException, variant: Variant[Any] | None) -> list[Report]:
    """Return the reports of an error that a variant's launch raised. They name the variant's function as the launch
    site, because the error was raised at a line of this package."""
    if isinstance(error, CudakitError):
        error.report = without_harness(error.report)
    site = None if variant is None else reports.defined(variant.launch)
    found = reports.of_error(error, launched=site)
    if isinstance(error, LaunchError) and site is not None:  # the launch is wrong, not a line of the kernel
        found = [one.at(site.file, site.line) for one in found]
    return found


def text(found: Sequence[Report]) -> str:
    """Return the printed text of the reports of one failure of a variant, with the function that launches it."""
    lines = list(dict.fromkeys(one.full_text for one in found))
    site = next((one.launched for one in found if one.launched is not None), None)
    return "\n".join([*lines, *([] if site is None else [f"  launched by {site.file}:{site.line}"])])


def report(
    device: Device, verdict: Comparison, run: Callable[[Watch], object], variant: Variant[Any] | None = None
) -> Report:
    """Return the report of a wrong result, of `variant` if given. run(watch): runs the problem again, with its kernels
    within watch(output).

    On the simulated device the report has the kernel, block, thread and source line of the last store to the wrong
    element; if no kernel stored to it, the line of the last kernel's definition. On a GPU it has no location.
    """
    site = None if variant is None else reports.defined(variant.launch)
    return replace(_found(device, verdict, run), launched=site)


def _found(device: Device, verdict: Comparison, run: Callable[[Watch], object]) -> Report:
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
    except CudakitError:  # the failure is not reproducible
        return found
    return _stored(found, stores[-1]) if stores else _not_stored(found, counted)


def _address(output: DeviceArray, verdict: Comparison) -> int:
    """Return the wrong element's address."""
    if verdict.stray is not None:
        return output.pointer + verdict.stray * output.itemsize
    at = list(verdict.worst_at or ())
    if at and output.dtype.kind == "c":
        at[-1] //= 2  # complex numbers are compared as pairs
    return output.pointer + sum(index * stride for index, stride in zip(at, output.strides, strict=True))


def without_harness(fault: Any) -> Any:
    """Return a report of the simulated device without the Python lines that launched the kernel and made its arrays:
    they are lines of this package, of hypothesis or of pytest."""
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
