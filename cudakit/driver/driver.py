"""One driver interface for a GPU and the simulated device: `cuda.bindings.driver`, or the simulated driver.

Both offer the same functions with the same arguments and `(CUresult, value...)` results, so nothing above this module
knows which it has. `open()` reads what the user asked for:

    None, "auto"          $CUDAKIT_DEVICE, else the first GPU, else (if there is none) the simulated device
    "gpu", "gpu:1", 1     that GPU, or an error that says what is missing
    "sim", "sim:sm_80"    the simulated device, an sm_90 unless named otherwise
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cudakit import nvtx
from cudakit.driver import at_exit
from cudakit.errors import CudakitError, DeviceUnavailable, check, failure

DEFAULT_SIM_ARCH = "sm_90"

# NO_DEVICE and the toolkit's stub library: "there is no GPU here", for which the automatic choice takes the simulated
# device. Any other failure of cuInit is a GPU that is there and broken, which must not pass unseen.
_NO_GPU = frozenset({34, 100})

_lock = threading.Lock()
_sim_drivers: dict[str, Any] = {}
_watch: Watch | None = None
_said = False


@dataclass(frozen=True)
class Opened:
    """A driver and one device of it. kind: "gpu" or "sim". spec: how to ask for it again."""

    driver: Any
    ordinal: int
    kind: str
    spec: str


class _NoGpu(CudakitError):
    """There is no GPU here; the text says why."""


def open(spec: str | int | Opened | None = None, *, fresh: bool = False, **options: Any) -> Opened:
    """The driver and device that `spec` names (see the module's text).

    fresh: a simulated device of its own, with its own memory and checks, instead of the one this process shares.
    options: given to the simulated driver (checks, memory, devices), and imply `fresh`; refused for a GPU.
    Raises DeviceUnavailable if it is not there, ValueError for a spec that is none.
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
            raise ValueError(f"{', '.join(options)}: an option of the simulated device only, and {asked!r} is a GPU")
        try:
            return _gpu(int(match[1] or 0))
        except _NoGpu as error:
            raise DeviceUnavailable(
                f"{asked!r} was asked for, but {error}. The simulated device (CUDAKIT_DEVICE=sim) needs no GPU."
            ) from error
    match = re.fullmatch(r"sim(?::(sm_\d+[af]?))?(?::([0-7]))?", str(spec))
    if match:
        return _sim(match[1] or DEFAULT_SIM_ARCH, int(match[2] or 0), fresh, options)
    raise ValueError(f"{asked!r} names no device: say 'gpu', 'gpu:1', 'sim', 'sim:sm_80' or 'auto'")


def count(opened: Opened) -> int:
    """How many devices its driver has."""
    return int(check(opened.driver, "cuDeviceGetCount", opened.driver.cuDeviceGetCount()))


def numbered(opened: Opened, ordinal: int) -> Opened:
    """Device number `ordinal` of the same driver. Raises DeviceUnavailable if there are fewer."""
    there = count(opened)
    if ordinal >= there:
        raise DeviceUnavailable(f"device number {ordinal} was asked for, but there are {there}, numbered from 0")
    base = "gpu" if opened.kind == "gpu" else ":".join(opened.spec.split(":")[:2])
    spec = f"{base}:{ordinal}" if opened.kind == "gpu" or ordinal else base
    return Opened(opened.driver, ordinal, opened.kind, spec)


# The simulated device's own ------------------------------------------------------------------------------------------


def all_checks() -> tuple[str, ...]:
    """The names of the checks that `checks=` of a simulated device takes."""
    from cudakit import sim

    return tuple(sorted(sim.ALL_CHECKS))


def occupancy(arch: str, threads: int, registers: int, shared: int) -> Any | None:
    """Theoretical occupancy of blocks of `threads` threads at `registers` a thread and `shared` bytes a block on the
    chip that stands for `arch` (blocks, limit, warps, most_warps, fraction); None if no chip does."""
    from cudakit.sim.chips.occupancy import active_blocks
    from cudakit.sim.chips.properties import chip

    try:
        return active_blocks(chip(arch), threads, registers, shared)
    except ValueError:
        return None


def is_simulated(arch: str) -> bool:
    """Whether there is a simulated device for an architecture such as "sm_90a"."""
    return occupancy(arch, 32, 1, 0) is not None


@dataclass
class Watch:
    """What the simulated devices that were opened while it was open have done. checks: theirs, unless they were given
    others."""

    checks: frozenset[str] | None
    drivers: list[Any] = field(default_factory=list)
    _counts: list[Any] = field(default_factory=list)

    def add(self, driver: Any) -> None:
        self.drivers.append(driver)
        self._counts.append(driver.simCount(together=True))

    def finish(self) -> None:
        """Run what is still queued. Raises CudakitError, with the report, if some of it fails or failed."""
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
                        # The error adds advice for a GPU, and may be of a context that was lost before.
                        plain = CudakitError(str(report))
                        plain.report = report
                        raise plain from error
                    finally:
                        driver.cuDevicePrimaryCtxRelease(ordinal)

    def launches(self) -> list[Any]:
        """A record of each kernel and shape that ran to its end: name, grid, block, shared memory, registers, counters
        added up over its launches."""
        return [record for count in self._counts for record in count.records]

    def reports(self) -> list[Any]:
        """The reports of all devices, oldest first per device."""
        return [report for driver in self.drivers for report in driver.simReports()]


@contextlib.contextmanager
def last_store(driver: Any, address: int, size: int) -> Iterator[list[Any]]:
    """Look for the stores of kernels that a simulated driver runs in the block to `size` bytes at `address`. The list
    has the last one's report (kernel, block, thread, places, launched) after the block, and is empty if there was
    none."""
    found: list[Any] = []
    watch = driver.simWatch(address, size)
    try:
        yield found
    finally:
        store = driver.simEndWatch(watch)
        found += [] if store is None else [store]


@contextlib.contextmanager
def watching(checks: Iterable[str] | None = None) -> Iterator[Watch]:
    """Watch every simulated device that is opened in the block; all of them are made afresh."""
    global _watch, _sim_drivers
    watch = Watch(None if checks is None else frozenset(checks))
    with _lock:
        if _watch is not None:
            raise CudakitError("simulated devices are being watched already: one watch at a time")
        before, _sim_drivers, _watch = _sim_drivers, {}, watch
    try:
        yield watch
    finally:
        with _lock:
            _sim_drivers, _watch = before, None


def forget(opened: Opened) -> None:
    """Drop a simulated driver whose context was lost, so that the next one asked for starts afresh."""
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
        _say_once(f"cudakit: no GPU here: using the simulated {model} (for the reason: cudakit info)")
        return opened
    if options:
        raise ValueError(f"{', '.join(options)}: options of the simulated device only; ask for 'sim' by name")
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
    """GPU number `ordinal`. Raises _NoGpu if there is none at all, DeviceUnavailable or CudaError otherwise."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise _NoGpu(f"cuda.bindings cannot be imported ({error})") from error
    try:
        result = driver.cuInit(0)
    except (RuntimeError, OSError) as error:
        # Without a libcuda the bindings raise (cuda.pathfinder.DynamicLibNotFoundError) instead of returning a code.
        raise _NoGpu(f"there is no NVIDIA driver library here (libcuda.so.1): {_first_line(error)}") from error
    if result[0]:
        failed = failure(driver, "cuInit", result[0])
        if int(result[0]) in _NO_GPU:
            raise _NoGpu(f"the NVIDIA driver finds no GPU ({failed.name})") from failed
        raise DeviceUnavailable(f"a GPU may be there but does not start: {failed}") from failed
    count = check(driver, "cuDeviceGetCount", driver.cuDeviceGetCount())
    if not count:
        raise _NoGpu("the NVIDIA driver counts no GPU (CUDA_VISIBLE_DEVICES may hide it)")
    if ordinal >= count:
        raise DeviceUnavailable(f"gpu:{ordinal} was asked for, but there are {count} GPUs, numbered from 0")
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
    if _watch is not None:
        _watch.add(driver)
    return driver


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _after_fork_in_child() -> None:
    # A child gets simulated devices of its own, and a lock that no thread of the parent can be holding.
    global _lock
    _lock = threading.Lock()
    _sim_drivers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
