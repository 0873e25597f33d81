"""Replays recorded launches on the simulated device or a GPU, and compares the memory after each.

Each launch starts from its own recorded memory, so that an earlier difference does not spoil later launches. Each array
is an allocation of its recorded size, so that the simulated device detects accesses outside of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from cudakit import reports
from cudakit.debugger import writes
from cudakit.debugger.arrays import ArrayLayout
from cudakit.debugger.who import Expression
from cudakit.debugger.writes import WriteHistory
from cudakit.device import Device
from cudakit.driver import driver as drivers
from cudakit.errors import CudakitError, LaunchError
from cudakit.memory.array import as_dtype
from cudakit.recording import difference
from cudakit.recording.difference import Difference
from cudakit.recording.file import RecordingError
from cudakit.recording.launches import ArrayArgument, RecordedLaunch, SavedLaunches
from cudakit.recording.loading import Loaded, Loader
from cudakit.recording.memory import Contents

EQUAL, ROUNDING, DIFFERS, FAULT, REFUSED = "equal", "rounding", "differs", "fault", "refused"
#: A pattern for the name of an array: of a parameter or a variable of C++, or the number of a parameter.
_NAME = r"[\w:$.]+"


@dataclass
class Writer:
    """The last store to an element. element: "y[3]". before, recorded, replayed: its value before and after the launch;
    "" if unknown. report: the store, with its kernel, thread and line; None if the launch did not store to it. history:
    all writes of the launch to the element, with the values that they were computed from, if that was requested."""

    element: str
    before: str
    recorded: str
    replayed: str
    report: reports.Report | None
    history: WriteHistory | None = None

    def __str__(self) -> str:
        recorded = self.recorded or "unknown"
        values = f"{self.element}: {self.before} before, recorded {recorded}, replayed {self.replayed}"
        if self.history is not None and len(self.history):
            return f"{values}\n{self.history}"
        if self.report is None:
            return f"{values}\n  not written by this launch"
        by = self.report
        lines = [values, f"  last written by kernel {by.kernel}, block {by.block}, thread {by.thread}"]
        at = [("at", by.file, by.line, by.text)]
        at += [("inlined from", one.file, one.line, one.text) for one in by.inlined]
        for word, file, line, text in at:
            lines += [f"  {word} {file}:{line}", *([f"      {text}"] if text else [])]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The store in plain types, for JSON."""
        values: dict[str, Any] = {name: getattr(self, name) for name in ("element", "before", "recorded", "replayed")}
        if self.history is not None:
            values["history"] = self.history.as_dict()
        by = self.report
        if by is None:
            return {**values, "store": None}
        return {**values, "store": {"block": by.block, "thread": by.thread, "file": by.file, "line": by.line}}


@dataclass
class LaunchReport:
    """The outcome of one launch.

    Attributes:
        launch: The launch.
        outcome: "equal", "rounding", "differs", "fault" or "refused".
        written: The names of the arrays that the launch changed, in the recording.
        differences: One per array that differs.
        writer: The last store to the first element that differs, or to the element that was asked for.
        fault: The failure's report.
        text: The refusal, or the text of the failure.
    """

    launch: RecordedLaunch
    outcome: str
    written: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    writer: Writer | None = None
    fault: reports.Report | None = None
    text: str = ""

    @property
    def ok(self) -> bool:
        """Whether the results are equal, except for rounding."""
        return self.outcome in (EQUAL, ROUNDING)

    def as_dict(self) -> dict[str, Any]:
        """The outcome in plain types, for JSON."""
        launch, fault = self.launch, self.fault
        return {
            "launch": launch.number,
            "kernel": launch.kernel,
            "grid": list(launch.grid),
            "block": list(launch.block),
            "outcome": self.outcome,
            "written": list(self.written),
            "differences": [one.as_dict() for one in self.differences],
            "writer": None if self.writer is None else self.writer.as_dict(),
            "fault": None if fault is None else {"kind": fault.kind, "file": fault.file, "line": fault.line},
            "text": self.text,
        }


@dataclass
class Report:
    """The outcome of a replay. `ok`: all launches are equal, except for rounding."""

    device: str
    launches: list[LaunchReport] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(one.ok for one in self.launches)

    def as_dict(self) -> dict[str, Any]:
        """The outcomes in plain types, for JSON."""
        return {"device": self.device, "ok": self.ok, "launches": [one.as_dict() for one in self.launches]}


class Debugger(Protocol):
    """Runs the launches of a replay. variables: whether modules are compiled again with their variables."""

    variables: bool

    def run(self, loaded: Loaded) -> object:
        """Run a launch whose memory is on the device."""

    def say(self, text: str) -> object:
        """Receive the reason if a module cannot be compiled again."""


def replay(
    recording: SavedLaunches,
    device: Device | str | None = None,
    launches: Iterable[int] | None = None,
    *,
    who: str | None = None,
    checks: Iterable[str] | None = None,
    debugger: Debugger | None = None,
    progress: Callable[[LaunchReport], object] = lambda report: None,
) -> Report:
    """Replay launches, each from its recorded memory, and compare the memory after it with the recorded one.

    Args:
        recording: The recording.
        device: A device or its name; by default a simulated device of the recorded architecture.
        launches: Numbers of launches; None for all.
        who: An element such as "y[3, 4]" or "y": report the last store to it, even if it does not differ. Only on the
            simulated device.
        checks: The checks of a simulated device that this function opens, if not its default ones.
        debugger: Runs the launches.
        progress: Called with the outcome of each launch.

    Returns:
        The outcomes.

    Raises:
        RecordingError: If there is no such launch or element, or the file is damaged.
        DeviceUnavailable: If there is no such device.
    """
    numbers = None if launches is None else list(launches)
    chosen = recording.launches if numbers is None else [recording.launch(number) for number in numbers]
    if who is not None and not any(_has(launch, who) for launch in chosen):
        _target(chosen[0], who)  # raises the error
    with contextlib.ExitStack() as ours:
        opened = device if isinstance(device, Device) else _opened(recording, device, checks, ours)
        if who is not None and opened.kind != "sim":
            raise RecordingError("who= needs the simulated device, which knows the last store to an element")
        report = Report(opened.context.spec)
        run = Loaded.run if debugger is None else debugger.run
        say = debugger.say if debugger is not None and debugger.variables else None
        loader = _loader(recording, opened, ours, say)
        for launch in chosen:
            lost = loader.device.context.lost is not None
            if lost and opened.kind == "sim":
                reopened = loader.device.reopened()
                ours.callback(reopened.context.close, warn=False)
                loader = _loader(recording, reopened, ours, say)
            if lost and opened.kind != "sim":
                found = LaunchReport(launch, REFUSED, text=f"{opened.context.spec} was lost by an earlier launch")
            else:
                found = _replayed(loader, launch, who, run)
            report.launches.append(found)
            progress(found)
    return report


def _loader(
    recording: SavedLaunches, device: Device, ours: contextlib.ExitStack, say: Callable[[str], object] | None
) -> Loader:
    """Return a loader, whose modules are unloaded at the end."""
    loader = Loader(recording, device, say)
    ours.callback(loader.close)
    return loader


def _opened(
    recording: SavedLaunches, device: str | None, checks: Iterable[str] | None, ours: contextlib.ExitStack
) -> Device:
    """Open the device of a replay, which is closed at its end."""
    arch = recording.device.get("arch", drivers.DEFAULT_SIM_ARCH)
    spec = device
    if spec in (None, "sim"):
        if not drivers.is_simulated(arch):
            raise RecordingError(
                f"{recording.path} was recorded on {arch}, which is not simulated; replay it on such a GPU (gpu)"
            )
        spec = f"sim:{arch}"
    if not str(spec).startswith("sim"):
        if checks is not None:
            raise RecordingError("checks are of the simulated device; leave them out on a GPU")
        opened = Device(spec)
    else:
        chosen = drivers.default_checks() if checks is None else frozenset(checks)
        opened = Device(spec, fresh=True, checks=chosen)
    ours.callback(opened.context.close, warn=False)
    return opened


class _Target(NamedTuple):
    """An element whose last store is wanted. byte: its first byte in the region. array, at: the array argument that
    the user has named, and the element's index; all writes to it are recorded."""

    element: str
    region: int
    byte: int
    kind: np.dtype[Any]
    array: ArrayArgument | None = None
    at: tuple[int, ...] = ()


def _replayed(loader: Loader, launch: RecordedLaunch, who: str | None, run: Callable[[Loaded], object]) -> LaunchReport:
    """Replay one launch; if the result differs, replay it again to find the last store to the first difference."""
    try:
        target = _target(launch, who) if who is not None and _has(launch, who) else None
        found = _run(loader, launch, target, run)
        first = found.differences[0] if found.differences else None
        if first is not None and target is None and loader.device.kind == "sim" and run is Loaded.run:
            kind = as_dtype(first.dtype) if first.dtype else np.dtype(np.uint8)
            again = _run(loader, launch, _Target(first.element, first.region, first.byte, kind), run)
            found.writer = again.writer
        return found
    except CudakitError as error:  # of its module, its memory or its configuration
        return LaunchReport(launch, REFUSED, _written(launch), text=str(error))


def _run(
    loader: Loader, launch: RecordedLaunch, target: _Target | None, run: Callable[[Loaded], object]
) -> LaunchReport:
    written = _written(launch)
    with loader.loaded(launch) as loaded:
        stores: list[Any] = []
        history = None
        if target is not None and target.array is not None:
            history = _history(loaded, target.array, target.at)
        try:
            if target is None:
                run(loaded)
            else:
                address = loaded.addresses[target.region] + target.byte
                with drivers.last_store(loader.device.context.driver, address, target.kind.itemsize) as stores:
                    run(loaded)
        except (RecordingError, LaunchError):
            raise
        except CudakitError as error:
            fault = _fault(error, launch)
            text = fault.full_text
            if history is not None:
                text += f"\n\nup to the fault: {history.end(wait=False)}"
            return LaunchReport(launch, FAULT, written, fault=fault, text=text)
        finally:
            if history is not None:
                history.end(wait=False)
        differences = tuple(_differences(loaded))
        writer = None if target is None else _writer(loaded, target, stores)
        if writer is not None:
            writer.history = history
    if launch.after is None:
        why = f"the recorded launch did not end ({launch.error or 'the process crashed'}), and the replay did not fail"
        return LaunchReport(launch, DIFFERS, written, writer=writer, text=why)
    outcome = DIFFERS if any(not one.rounding for one in differences) else ROUNDING if differences else EQUAL
    return LaunchReport(launch, outcome, written, differences, writer)


def _history(loaded: Loaded, array: ArrayArgument, index: tuple[int, ...]) -> WriteHistory:
    """Begin the history of an element, with the values that it is computed from."""
    context = loaded.device.context
    context.synchronize()  # the history begins after the copies of the recorded memory
    others = [_layout(loaded, one) for one in loaded.launch.arrays if one.dtype]
    history = writes.begin(context, _layout(loaded, array), index, reads=True, name=array.name, others=others)
    history.launched = loaded.launch.launched or None
    history.launch = loaded.launch.number
    return history


def _layout(loaded: Loaded, array: ArrayArgument) -> ArrayLayout:
    pointer = loaded.addresses[array.region] + array.offset
    return ArrayLayout(pointer, tuple(array.shape), tuple(array.strides), array.kind)


def _written(launch: RecordedLaunch) -> tuple[str, ...]:
    if launch.after is None:
        return ()
    states = zip(launch.regions, launch.before, launch.after, strict=True)
    return tuple(region.name or "memory" for region, before, after in states if before != after)


def _fault(error: CudakitError, launch: RecordedLaunch) -> reports.Report:
    """Return the report of a failure, with the recorded line of the launch instead of lines of this package."""
    fault, site = error.report, _site(launch)
    if fault is None:
        return reports.of_error(error, kernel=launch.kernel, launched=site)[0]
    changes: dict[str, Any] = {"launched": None} if hasattr(fault, "launched") else {}
    if fault.allocation is not None:
        changes["allocation"] = replace(fault.allocation, origin="")
    fault = replace(fault, **changes)
    lines = [str(fault), *([] if site is None else [f"  launched by {site.file}:{site.line}"])]
    return reports.of_fault(fault, launched=site, full_text="\n".join(lines))


def _site(launch: RecordedLaunch) -> reports.Place | None:
    file, _, line = launch.launched.rpartition(":")
    return reports.Place(file, int(line)) if file and line.isdigit() else None


# Differences ----------------------------------------------------------------------------------------------------------


def _differences(loaded: Loaded) -> Iterator[Difference]:
    """Yield the difference of each region that differs."""
    launch = loaded.launch
    for number, state in enumerate(launch.after or ()):
        old, new = loaded.recorded(number, state), loaded.contents(number)
        expected, found = old.data, new.data
        if old.undefined is not None and new.undefined is not None:
            written = ~(old.undefined & new.undefined)
            expected, found = expected * written, found * written
        places = np.flatnonzero(expected != found)
        if places.size:
            array = _array_at(launch, number, int(places[0]))
            yield difference.compare(expected, found, array)


def _array_at(launch: RecordedLaunch, region: int, byte: int) -> ArrayArgument:
    """Return the array argument that contains a byte of a region; the region as bytes if there is none."""
    inside = [array for array in launch.arrays if array.region == region and array.name]
    for array in inside:
        last = sum((extent - 1) * stride for extent, stride in zip(array.shape, array.strides, strict=True))
        if array.offset <= byte < array.offset + last + array.kind.itemsize:
            return array
    one = launch.regions[region]
    name = one.name or f"the memory at {one.address:#x}"
    return inside[0] if inside else ArrayArgument(-1, name, region, 0, "", (one.size,), (1,))


# The last store -------------------------------------------------------------------------------------------------------


def _has(launch: RecordedLaunch, who: str) -> bool:
    """Whether a launch has an element such as "y[3]"."""
    try:
        _target(launch, who)
    except RecordingError:
        return False
    return True


def _target(launch: RecordedLaunch, who: str) -> _Target:
    """Return the element that a text such as "y[3, 4]" names. Raises RecordingError."""
    try:
        named = Expression.parse(who, _NAME)
    except ValueError:
        named = None
    if named is None or not all(isinstance(one, int) for one in named.index):
        raise RecordingError(f"{who!r} is not an element: write an array's name and an index, such as y[3] or y[2, 0]")
    array = launch.named(named.name)
    index = named.index or (0,) * len(array.shape)
    if len(index) != len(array.shape):
        raise RecordingError(f"{who!r} has {len(index)} indices, and {array.name} has the shape {array.shape}")
    index = tuple(i + extent if i < 0 else i for i, extent in zip(index, array.shape, strict=True))
    if any(not 0 <= i < extent for i, extent in zip(index, array.shape, strict=True)):
        raise RecordingError(f"{who!r} is outside of {array.name}, whose shape is {array.shape}")
    byte = array.offset + sum(i * stride for i, stride in zip(index, array.strides, strict=True))
    element = f"{array.name}[{', '.join(map(str, index))}]"
    return _Target(element, array.region, byte, array.kind, array, index)


def _writer(loaded: Loaded, target: _Target, stores: list[Any]) -> Writer:
    launch, place = loaded.launch, slice(target.byte, target.byte + target.kind.itemsize)

    def shown(contents: Contents) -> str:
        if contents.undefined is not None and contents.undefined[place].all():
            return "uninitialised"
        return difference.text(np.ascontiguousarray(contents.data[place]).view(target.kind)[0])

    before = shown(loaded.recorded(target.region, launch.before[target.region]))
    recorded = "" if launch.after is None else shown(loaded.recorded(target.region, launch.after[target.region]))
    report = reports.of_fault(stores[-1], launched=_site(launch)) if stores else None
    return Writer(target.element, before, recorded, shown(loaded.contents(target.region)), report)
