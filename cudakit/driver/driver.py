"""One driver interface for a GPU and the simulated device: `cuda.bindings.driver`, or the simulated driver.

Both have the same functions with the same arguments and `(CUresult, value...)` results, so nothing above this module
knows which one it uses. `open()` accepts:

    None, "auto"          $CUDAKIT_DEVICE, else the first GPU, else (without a GPU) the simulated device
    "gpu", "gpu:1", 1     that GPU, or an error that says what is missing
    "sim", "sim:sm_80"    the simulated device; sm_90a by default (sm_90 lacks its instructions)
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cudakit import nvtx, system, tracebacks
from cudakit.driver import at_exit
from cudakit.errors import CudakitError, DeviceUnavailable, check, failure

DEFAULT_SIM_ARCH = "sm_90a"

# NO_DEVICE and the toolkit's stub library mean that there is no GPU: the automatic choice takes the simulated device.
# Any other failure of cuInit means that a GPU exists but does not start, which must be reported.
_NO_GPU = frozenset({34, 100})

_lock = threading.Lock()
_sim_drivers: dict[str, Any] = {}
# called with each simulated driver that is opened
_watch: Watch | None = None
# every simulated driver of the process, and what is called for each that is opened
_all_sims: weakref.WeakSet[Any] = weakref.WeakSet()
_beginnings: list[Callable[[Any], None]] = []
_said = False


@dataclass(frozen=True)
class Opened:
    """A driver and one of its devices. kind: "gpu" or "sim". spec: the text that opens it again."""

    driver: Any
    ordinal: int
    kind: str
    spec: str


class _NoGpu(CudakitError):
    """There is no GPU; the text says why."""


def open(spec: str | int | Opened | None = None, *, fresh: bool = False, **options: Any) -> Opened:
    """Return the driver and device that `spec` names (see the module's text).

    Args:
        spec: A device, or None for the automatic choice.
        fresh: Make a new simulated device, with its own memory and checks, instead of the one this process shares.
        options: Options of the simulated driver (checks, memory, devices); they imply `fresh`, and a GPU rejects them.

    Raises:
        DeviceUnavailable: If there is no such device.
        ValueError: If `spec` is malformed, or options are given for a GPU.
    """
    if isinstance(spec, Opened):
        return spec
    asked = spec
    if spec is None or spec == "auto":
        spec = os.environ.get("CUDAKIT_DEVICE", "").strip() or "auto"
        asked = f"CUDAKIT_DEVICE={spec}" if spec != "auto" else "auto"
    if spec == "auto":
        return _automatic(fresh, options)
    if isinstance(spec, int) and not isinstance(spec, bool):
        spec = f"gpu:{spec}"
    match = re.fullmatch(r"gpu(?::(\d+))?", str(spec))
    if match:
        if options:
            raise ValueError(f"{', '.join(options)}: for the simulated device only, but {asked!r} is a GPU; use 'sim'")
        try:
            return _gpu(int(match[1] or 0))
        except _NoGpu as error:
            raise DeviceUnavailable(
                f"{asked!r} was requested, but {error}. The simulated device (CUDAKIT_DEVICE=sim) needs no GPU."
            ) from error
    match = re.fullmatch(r"sim(?::(sm_\d+[af]?))?(?::([0-7]))?", str(spec))
    if match:
        return _sim(match[1] or DEFAULT_SIM_ARCH, int(match[2] or 0), fresh, options)
    raise ValueError(f"unknown device {asked!r}; use 'gpu', 'gpu:1', 'sim', 'sim:sm_80' or 'auto'")


def count(opened: Opened) -> int:
    """Return the number of devices of its driver."""
    return int(check(opened.driver, "cuDeviceGetCount", opened.driver.cuDeviceGetCount()))


def numbered(opened: Opened, ordinal: int) -> Opened:
    """Return device number `ordinal` of the same driver. Raises DeviceUnavailable if there are fewer."""
    there = count(opened)
    if ordinal >= there:
        raise DeviceUnavailable(f"device number {ordinal} was requested, but there are {there}, numbered from 0")
    base = "gpu" if opened.kind == "gpu" else ":".join(opened.spec.split(":")[:2])
    spec = f"{base}:{ordinal}" if opened.kind == "gpu" or ordinal else base
    return Opened(opened.driver, ordinal, opened.kind, spec)


# The simulated device -------------------------------------------------------------------------------------------------


def all_checks() -> tuple[str, ...]:
    """Return the names of the checks that `checks=` of a simulated device accepts."""
    from cudakit import sim

    return tuple(sorted(sim.ALL_CHECKS))


def default_checks() -> tuple[str, ...]:
    """Return the names of the checks that a simulated device has without `checks=`."""
    from cudakit import sim

    return tuple(sorted(sim.DEFAULT_CHECKS))


def name_files(name_of: Callable[[str], str]) -> None:
    """Make errors and reports use name_of(file) as the name of each Python file, because a notebook cell has no path.
    linecache must have the file's lines under that name."""
    from cudakit.sim.driver import faults

    tracebacks.name_files(name_of)
    faults.name_files(name_of)


def occupancy(arch: str, threads: int, registers: int, shared: int) -> Any | None:
    """Return the theoretical occupancy (blocks, limit, warps, most_warps, fraction) of blocks of `threads` threads,
    with `registers` per thread and `shared` bytes per block, on the chip simulated for `arch`; None if there is no such
    chip."""
    from cudakit.sim.chips.occupancy import active_blocks
    from cudakit.sim.chips.properties import chip

    try:
        return active_blocks(chip(arch), threads, registers, shared)
    except ValueError:
        return None


def is_simulated(arch: str) -> bool:
    """Return whether there is a simulated device for an architecture such as "sm_90a"."""
    return occupancy(arch, 32, 1, 0) is not None


@dataclass
class Watch:
    """The simulated devices opened while it is active, with their launches and reports.

    checks: the default checks of these devices; None keeps theirs.
    """

    checks: frozenset[str] | None
    drivers: list[Any] = field(default_factory=list)
    _counts: list[Any] = field(default_factory=list)

    def add(self, driver: Any) -> None:
        self.drivers.append(driver)
        self._counts.append(driver.simCount(together=True))

    def finish(self) -> None:
        """Run the work still queued. Raises CudakitError, with the report, if any work fails or has failed."""
        for driver in self.drivers:
            for ordinal in range(check(driver, "cuDeviceGetCount", driver.cuDeviceGetCount())):
                active = check(driver, "cuDevicePrimaryCtxGetState", driver.cuDevicePrimaryCtxGetState(ordinal))[1]
                if active:
                    primary = check(driver, "cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(ordinal))
                    try:
                        check(driver, "cuCtxSetCurrent", driver.cuCtxSetCurrent(primary))
                        check(driver, "cuCtxSynchronize", driver.cuCtxSynchronize())
                    except CudakitError as error:
                        report = driver.simLastReport()
                        if report is None:
                            raise
                        # The driver's error has advice for a GPU, and may be of a context that was lost earlier.
                        plain = CudakitError(str(report))
                        plain.report = report
                        raise plain from error
                    finally:
                        driver.cuDevicePrimaryCtxRelease(ordinal)

    def launches(self) -> list[Any]:
        """Return a record per kernel and shape that completed: name, grid, block, shared memory, registers, and the
        counters summed over its launches."""
        return [record for count in self._counts for record in count.records]

    def reports(self) -> list[Any]:
        """Return the reports of all devices, oldest first per device."""
        return [report for driver in self.drivers for report in driver.simReports()]


@contextlib.contextmanager
def last_store(driver: Any, address: int, size: int) -> Iterator[list[Any]]:
    """Record the last kernel store to `size` bytes at `address` within the `with` block.

    After the block the list has that store's report (kernel, block, thread, places, launched), or is empty if there was
    no store.
    """
    found: list[Any] = []
    watch = driver.simWatch(address, size)
    try:
        yield found
    finally:
        driver.simEndWatch(watch)
        found += [] if watch.store is None else [watch.store]


@contextlib.contextmanager
def on_simulated(begin: Callable[[Any], None]) -> Iterator[None]:
    """Call begin(driver) for each simulated driver of this process, and in the block for each that is opened."""
    with _lock:
        _beginnings.append(begin)
        known = list(_all_sims)
    try:
        for driver in known:
            begin(driver)
        yield
    finally:
        _beginnings.remove(begin)


def trace_writes(driver: Any, layout: Any, chosen: list[int] | None, limit: int, *, reads: bool) -> Any:
    """Record writes to elements of an array of a simulated driver, with their flat indices `chosen`, or to all (None).

    layout: an object with the array's `pointer`, `shape`, `strides` in bytes and `dtype`. limit: the most writes that
    are kept. reads: also record the values from which kernels computed the stored values. Returns the recording
    (`WriteLog` in `sim/checks/write_history.py`), which `driver.simEndTrace` ends. Raises ValueError if the memory is
    not allocated on the device.
    """
    from cudakit.sim.checks.write_history import Elements
    from cudakit.sim.probing.source_trace import SourceTrace

    elements = Elements(layout.pointer, layout.shape, layout.strides, layout.dtype, chosen)
    return driver.simTraceWrites(elements, limit, SourceTrace() if reads else None)


def earlier_writes(driver: Any) -> Any:
    """Begin to remember the copies, fills and launches of a simulated driver, for histories that begin later; see
    `EarlierWrites` in `sim/checks/write_history.py`. `driver.simEndWatch` ends it."""
    from cudakit.sim.checks.write_history import EarlierWrites

    watch = EarlierWrites()
    driver.simBeginWatch(watch)
    return watch


@contextlib.contextmanager
def watching(checks: Iterable[str] | None = None) -> Iterator[Watch]:
    """Watch every simulated device that is opened in the block; each of them is a new one."""
    global _watch, _sim_drivers
    watch = Watch(None if checks is None else frozenset(checks))
    with _lock:
        if _watch is not None:
            raise CudakitError("a watch of simulated devices was requested while another is active; end that one first")
        before, _sim_drivers, _watch = _sim_drivers, {}, watch
    try:
        yield watch
    finally:
        with _lock:
            _sim_drivers, _watch = before, None


@contextlib.contextmanager
def probing(*probes: Any, driver: Any = None) -> Iterator[None]:
    """Let probes (cudakit/sim/lockstep/probes.py) follow the kernels that run in the block: those of a simulated
    `driver`, or of every one that the process has or opens. Work that was queued before runs first, without them; work
    that is still queued at the end of the block runs then, and raises CudakitError if it fails."""
    followed: weakref.WeakSet[Any] = weakref.WeakSet()

    def begin(one: Any) -> None:
        followed.add(one)
        for probe in probes:
            one.simProbe(probe)

    for one in [driver] if driver is not None else list(_all_sims):
        run_queued(one)
    with contextlib.ExitStack() as stack:
        if driver is None:
            stack.enter_context(on_simulated(begin))
        else:
            begin(driver)
        try:
            yield
            # a child that was forked in the block cannot wait for its parent's devices
            for one in list(followed & _all_sims):
                run_queued(one)
        finally:
            for one in list(followed):
                for probe in probes:
                    one.simEndProbe(probe)


def run_queued(driver: Any) -> None:
    """Run the work that is queued on a simulated driver. Raises CudakitError if it fails; a driver whose context was
    lost is left alone, because a call has raised its failure."""
    if driver.simLost():
        return
    for ordinal in range(check(driver, "cuDeviceGetCount", driver.cuDeviceGetCount())):
        if check(driver, "cuDevicePrimaryCtxGetState", driver.cuDevicePrimaryCtxGetState(ordinal))[1]:
            primary = check(driver, "cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(ordinal))
            check(driver, "cuCtxPushCurrent", driver.cuCtxPushCurrent(primary))
            try:
                check(driver, "cuCtxSynchronize", driver.cuCtxSynchronize())
            finally:
                driver.cuCtxPopCurrent()
                driver.cuDevicePrimaryCtxRelease(ordinal)


def forget(opened: Opened) -> None:
    """Drop a simulated driver whose context was lost, so that the next request makes a new one."""
    with _lock:
        for key in [key for key, driver in _sim_drivers.items() if driver is opened.driver]:
            del _sim_drivers[key]


def _automatic(fresh: bool, options: dict[str, Any]) -> Opened:
    try:
        opened = _gpu(0)
    except _NoGpu:
        opened = _sim(DEFAULT_SIM_ARCH, 0, fresh, options)
        from cudakit.sim.chips.properties import chip

        model = chip(DEFAULT_SIM_ARCH).model
        _say_once(f"cudakit: no GPU found, using the simulated {model} (`cudakit info` shows the reason)")
        return opened
    if options:
        raise ValueError(f"{', '.join(options)}: options of the simulated device only; request 'sim' explicitly")
    _say_once(f"cudakit: using {opened.spec}")
    return opened


def _say_once(line: str) -> None:
    global _said
    with _lock:
        if _said:
            return
        _said = True
    if sys.stderr is not None:
        sys.stderr.write(line + "\n")


@nvtx.range("start driver")
def _gpu(ordinal: int) -> Opened:
    """Return GPU number `ordinal`. Raises _NoGpu if there is no GPU, DeviceUnavailable or CudaError otherwise."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise _NoGpu(f"cuda.bindings cannot be imported ({error})") from error
    try:
        result = driver.cuInit(0)
    except (RuntimeError, OSError) as error:
        # If libcuda is missing, the bindings raise (cuda.pathfinder.DynamicLibNotFoundError) and return no code.
        raise _NoGpu(
            f"the NVIDIA driver library ({system.DRIVER_LIBRARY}) was not found: {_first_line(error)}"
        ) from error
    if result[0]:
        failed = failure(driver, "cuInit", result[0])
        if int(result[0]) in _NO_GPU:
            raise _NoGpu(f"the NVIDIA driver finds no GPU ({failed.name})") from failed
        raise DeviceUnavailable(f"a GPU may be present but does not start: {failed}") from failed
    count = check(driver, "cuDeviceGetCount", driver.cuDeviceGetCount())
    if not count:
        raise _NoGpu("the NVIDIA driver reports 0 GPUs (CUDA_VISIBLE_DEVICES may hide them)")
    if ordinal >= count:
        raise DeviceUnavailable(f"gpu:{ordinal} was requested, but there are {count} GPUs, numbered from 0")
    return Opened(driver, ordinal, "gpu", f"gpu:{ordinal}")


def _sim(arch: str, ordinal: int, fresh: bool, options: dict[str, Any]) -> Opened:
    if ordinal and "devices" not in options:
        options = {**options, "devices": ordinal + 1}
    if fresh or options:
        driver = _started(arch, options)
    else:
        with _lock:
            driver = _sim_drivers.get(arch)
            if driver is None or driver.simLost():
                driver = _sim_drivers[arch] = _started(arch, {})
    return Opened(driver, ordinal, "sim", f"sim:{arch}" + (f":{ordinal}" if ordinal else ""))


@nvtx.range("start driver")
def _started(arch: str, options: dict[str, Any]) -> Any:
    from cudakit import sim

    if _watch is not None and _watch.checks is not None:
        options = {"checks": _watch.checks, **options}
    driver = sim.Driver(arch=arch, **options)
    check(driver, "cuInit", driver.cuInit(0))
    at_exit.watch(driver)
    _all_sims.add(driver)
    if _watch is not None:
        _watch.add(driver)
    for begin in _beginnings:
        begin(driver)
    return driver


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _after_fork_in_child() -> None:
    # A child has its own simulated devices, and a new lock, which no thread of the parent can hold.
    global _lock
    _lock = threading.Lock()
    _sim_drivers.clear()
    # what was begun before the fork stays in _beginnings: it also follows the devices that the child opens
    _all_sims.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
