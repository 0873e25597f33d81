"""The party wall: which driver a device talks to, `cuda.bindings.driver` or the simulated one.

Both offer the same functions with the same arguments and `(CUresult, value...)` results, so nothing above this module
knows which it has. `open()` reads what the user asked for:

    None, "auto"          $CUDAKIT_DEVICE, else the first GPU, else (where there is none) the simulated device
    "gpu", "gpu:1", 1     that GPU, or an error that says what is missing
    "sim", "sim:sm_80"    the simulated device, an sm_90 unless named otherwise
"""

from __future__ import annotations

import os
import re
import sys
import threading
from dataclasses import dataclass
from typing import Any

from cudakit.errors import CudakitError, DeviceUnavailable, check, failure

DEFAULT_SIM_ARCH = "sm_90"

# NO_DEVICE and the toolkit's stub library: "there is no GPU here", for which the automatic choice takes the simulated
# device. Any other failure of cuInit is a GPU that is there and broken, which must not pass unseen.
_NO_GPU = frozenset({34, 100})

_lock = threading.Lock()
_sim_drivers: dict[str, Any] = {}
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
    Raises DeviceUnavailable where it is not there, ValueError for a spec that is none.
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
    found = re.fullmatch(r"gpu(?::(\d+))?", str(spec))
    if found:
        if options:
            raise ValueError(f"{', '.join(options)}: an option of the simulated device only, and {asked!r} is a GPU")
        try:
            return _gpu(int(found[1] or 0))
        except _NoGpu as error:
            raise DeviceUnavailable(
                f"{asked!r} was asked for, but {error}. The simulated device (CUDAKIT_DEVICE=sim) needs no GPU."
            ) from error
    found = re.fullmatch(r"sim(?::(sm_\d+[af]?))?(?::([0-7]))?", str(spec))
    if found:
        return _sim(found[1] or DEFAULT_SIM_ARCH, int(found[2] or 0), fresh, options)
    raise ValueError(f"{asked!r} names no device: say 'gpu', 'gpu:1', 'sim', 'sim:sm_80' or 'auto'")


def forget(opened: Opened) -> None:
    """Drop a simulated driver whose context was lost, so that the next one asked for starts afresh."""
    with _lock:
        for key in [key for key, driver in _sim_drivers.items() if driver is opened.driver]:
            del _sim_drivers[key]


def _automatic(fresh: bool, options: dict[str, Any]) -> Opened:
    try:
        opened = _gpu(0)
        why = ""
    except _NoGpu as error:
        opened = _sim(DEFAULT_SIM_ARCH, 0, fresh, options)
        why = f"{error}; "
    else:
        if options:
            raise ValueError(f"{', '.join(options)}: options of the simulated device only; ask for 'sim' by name")
    _say_once(f"cudakit: {why}using {opened.spec}")
    return opened


def _say_once(line: str) -> None:
    global _said
    with _lock:
        if _said:
            return
        _said = True
    if sys.stderr is not None:
        sys.stderr.write(line + "\n")


def _gpu(ordinal: int) -> Opened:
    """GPU number `ordinal`. Raises _NoGpu where there is none at all, DeviceUnavailable or CudaError otherwise."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise _NoGpu(f"cuda.bindings cannot be imported ({error})") from error
    try:
        result = driver.cuInit(0)
    except (RuntimeError, OSError) as error:
        # Without a libcuda the bindings raise (cuda.pathfinder.DynamicLibNotFoundError) where they would return a code.
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
    from cudakit import sim

    if ordinal and "devices" not in options:
        options = {**options, "devices": ordinal + 1}
    if fresh or options:
        driver = _started(sim.Driver(arch=arch, **options))
    else:
        with _lock:
            driver = _sim_drivers.get(arch)
            if driver is None:
                driver = _sim_drivers[arch] = _started(sim.Driver(arch=arch))
    return Opened(driver, ordinal, "sim", f"sim:{arch}" + (f":{ordinal}" if ordinal else ""))


def _started(driver: Any) -> Any:
    check(driver, "cuInit", driver.cuInit(0))
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
