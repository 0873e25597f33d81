"""Context: a device's primary context, its attributes and limits, and the thread on which it is current.

The primary context is retained, not created, so torch and CuPy in the same process share it. Everything a context makes
(streams, events, memory, modules) is registered with it and freed by a finalizer that never raises, or by `close()`.
Only pinned host memory outlives it, as long as a numpy array uses it.
"""

from __future__ import annotations

import copy
import itertools
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from cudakit import nvtx
from cudakit.driver import at_exit
from cudakit.driver import driver as drivers
from cudakit.driver.captures import Captures
from cudakit.driver.end_report import end_warnings
from cudakit.driver.in_flight import InFlight
from cudakit.driver.loss import first_failure
from cudakit.driver.modes import Relaxed
from cudakit.driver.primary import Primary, finalizer, report_later
from cudakit.errors import (
    STICKY,
    Closed,
    ContextLost,
    DeviceMismatch,
    ForkedProcess,
    UnseenFault,
    check,
    failure,
)
from cudakit.tracebacks import outside_level

_PEER_ALREADY_ENABLED = 704


class _Thread(threading.local):
    """The token of the context that cudakit last made current on this thread."""

    token: object = None


_thread = _Thread()


def _after_fork_in_child() -> None:
    # No context is current in a child, so each takes the slow path there, which detects the new process id.
    _thread.token = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class MemoryInfo(NamedTuple):
    """Free and total device memory, in bytes, shared by all processes."""

    free: int
    total: int


class Context:
    """The primary context of one device.

    driver: its driver. ordinal, kind ("gpu" or "sim"), spec: which device it is. handle: the CUcontext. device: the
    CUdevice.
    """

    def __init__(self, spec: str | int | drivers.Opened | None = None) -> None:
        opened = drivers.open(spec)
        self._opened = opened
        self.driver = opened.driver
        self.ordinal = opened.ordinal
        self.kind = opened.kind
        self.spec = opened.spec
        self.pid = os.getpid()
        self._lost: tuple[weakref.ref[ContextLost], ContextLost] | None = None
        self.closed = False
        with nvtx.range("create context"), Relaxed(opened.driver):
            self._primary: Primary | None = Primary(opened.driver, opened.ordinal)
        self.handle = self._primary.handle
        self.device = self._primary.device
        self.captures = Captures(self._primary)
        self.in_flight = InFlight(self._primary, self.captures)
        # The number of arrays and modules closed so far: graphs check their arrays and modules again after it has
        # changed.
        self.closings = 0
        self._attributes: dict[str, int] = {}
        self.device_object: Any = None  # the Device over this context, which arrays need
        # Streams made here, by handle, to recognise one that returns in another library's wrapper.
        self.streams: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        # Objects that cudakit made for itself: default streams, modules in the device's cache. Not leaks.
        self.own: weakref.WeakSet[Any] = weakref.WeakSet()
        self._peers: set[int] = {opened.ordinal}
        self._children: dict[int, weakref.finalize[Any, Any]] = {}
        self._keys = itertools.count()
        # With one device only this context can be current, so a comparison is enough. With several, another library
        # may have made another device's context current, so ours is set at each call.
        count = check(self.driver, "cuDeviceGetCount", self.driver.cuDeviceGetCount())
        self.alone = count == 1
        self._token = object()
        self._finalizer = finalizer(self, InFlight.close, self.in_flight)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ", lost" if self.lost else ""
        return f"Context({self.spec!r}{state})"

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(warn=kind in (None, SystemExit))

    @property
    def lost(self) -> ContextLost | None:
        """The failure that lost the context, or None. Once nothing else refers to the exception, a copy without
        traceback."""
        if self._lost is None:
            return None
        reference, kept = self._lost
        return reference() or kept

    # Calls ------------------------------------------------------------------------------------------------------------

    def make_current(self) -> None:
        """Make this context current on the calling thread; only a comparison if it already is.

        Raises Closed, ContextLost or ForkedProcess if it can no longer be used.
        """
        if _thread.token is not self._token:
            self._enter()

    def _enter(self) -> None:
        # Closing, losing and forking all replace the token, so that the fast path needs only the comparison.
        if os.getpid() != self.pid:
            raise ForkedProcess(
                f"{self.spec} was opened in process {self.pid} but is used in its forked child {os.getpid()}; "
                "CUDA does not work after a fork: open the device in the child, or start children by 'spawn'"
            )
        if self.lost is not None:
            raise self._lost_again()
        if self.closed:
            raise self._closed()
        self.check("cuCtxSetCurrent", self.driver.cuCtxSetCurrent(self.handle))
        _thread.token = self._token if self.alone else None

    def call(self, routine: str, *arguments: Any) -> Any:
        """Call a driver routine in this context and return its values (see `errors.check`)."""
        if _thread.token is not self._token:
            self._enter()
        result = getattr(self.driver, routine)(*arguments)
        if result[0]:
            raise self.failed(routine, result[0])
        if len(result) == 2:
            return result[1]
        return result[1:] if len(result) > 2 else None

    def check(self, routine: str, result: tuple[Any, ...]) -> Any:
        """Return the values of a result that the caller obtained after make_current(); raises as `call` does."""
        if result[0]:
            raise self.failed(routine, result[0])
        if len(result) == 2:
            return result[1]
        return result[1:] if len(result) > 2 else None

    def failed(self, routine: str, code: Any) -> Exception:
        """Return the exception for an error code. A sticky error marks this context as lost."""
        if self.lost is not None and int(code) in STICKY:
            return self._lost_again()
        error = failure(self.driver, routine, code)
        if self.captures:
            self.captures.failed(routine, code)
        if isinstance(error, ContextLost):
            error = first_failure(self.spec, self.kind, error)
            self._lose(error)
        return error

    def _lose(self, error: ContextLost) -> None:
        # A traceback's frames keep the failed run's arrays alive, so a copy that is never raised is kept.
        kept = copy.copy(error)
        kept.report = error.report
        self._lost = weakref.ref(error), kept
        self._token = object()
        drivers.forget(self._opened)
        # The lost context has nothing in flight.
        self.in_flight.let_go()
        self.captures.late.clear()

    def _lost_again(self) -> ContextLost:
        first = self.lost
        if first is None:
            raise RuntimeError("_lost_again() needs a lost context, but this one is not lost")
        again = ContextLost(
            first.routine,
            first.code,
            first.name,
            f"{self.spec} was lost after an earlier failure: {first.text}",
            first.hint,
        )
        again.report = first.report
        again.__cause__ = first
        return again

    def relaxed(self) -> Relaxed:
        """Let this thread load modules, allocate and query while another library captures; see `modes.Relaxed`."""
        self.make_current()
        return Relaxed(self.driver)

    # Children ---------------------------------------------------------------------------------------------------------

    def adopt(self, child: object, release: Callable[..., object], *arguments: Any) -> weakref.finalize[Any, Any]:
        """Register `release(*arguments)` to be called once, when `child` is dropped or closed, or this context closes.

        Returns the finalizer: call it to free the child now; `.alive` is True while the child still owns something.
        `release` is not called if there is nothing left to free (a lost context, a forked child). It runs on whatever
        thread drops the child, so it must call the driver through `attempt`, and must not refer to the child.
        """
        key = next(self._keys)
        made = finalizer(child, self._release_child, key, release, arguments)
        self._children[key] = made
        if self.closed:
            # Another thread closed the device during the call.
            made()
            raise self._closed()
        return made

    def made(self) -> list[object]:
        """Return the adopted objects that are not freed yet."""
        children = (made.peek() for made in list(self._children.values()))
        return [child[0] for child in children if child is not None]

    def adopt_handle(self, child: object, routine: str, handle: Any) -> weakref.finalize[Any, Any]:
        """Call `adopt` for a handle that one driver routine frees."""
        return self.adopt(child, self.attempt, routine, handle)

    def _release_child(self, key: int, release: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._children.pop(key, None)
        if self.lost is not None or os.getpid() != self.pid:
            return
        try:
            release(*arguments)
        except Exception:
            # A finalizer must not raise, because it runs inside whatever code dropped the object. attempt() has
            # recorded the driver's failures; the next call raises them.
            return

    def attempt(self, routine: str, *arguments: Any) -> int:
        """Call a driver routine from a finalizer. Never raises; returns the code (-1: not called).

        The thread's current context is not changed. A sticky failure marks the context as lost; the next call raises.
        """
        if self.lost is not None:
            return -1
        if _thread.token is self._token:
            try:
                # Python may drop an object while another library is capturing.
                with Relaxed(self.driver):
                    result = getattr(self.driver, routine)(*arguments)
                    report_later(self.driver, result)
                code = int(result[0])
            except Exception:
                # At interpreter exit the driver may be partly torn down.
                return -1
        elif self._primary is not None:
            code = self._primary.attempt(routine, *arguments)
        else:
            return -1
        if code in STICKY and self.lost is None:
            self.failed(routine, self.driver.CUresult(code))
        return code

    @nvtx.range("close device")
    def close(self, *, warn: bool = True) -> None:
        """Free everything this context made, newest first, and release the primary context. A second call does nothing.

        Waits for queued work, since pinned memory may be in flight. Pinned arrays stay readable.
        When its last context is closed, the simulated device warns of leaks (LeakWarning): arrays, pinned memory,
        streams, events and modules that are still referenced, except the device's own (default streams, the modules
        that compile() keeps). It also warns (UnseenFault) of failed work and mistakes in host code that no call has
        raised. `warn=False` skips both warnings. A `with` block that ends with an exception skips them too, because the
        traceback keeps objects alive.
        """
        if self.closed:
            return
        endings: list[Warning] = []
        if warn and self.kind == "sim" and self._primary is not None and self.lost is None:
            endings = end_warnings(self._primary, self.in_flight, self.own)
        # First, so that other threads start no new work here.
        self.closed = True
        self._token = object()
        if self._primary is not None and self.lost is None:
            self._primary.attempt("cuCtxSynchronize")
            if not warn and self.kind == "sim":
                self.driver.simTold(self.handle)  # an exception is being raised
        while self._children:
            with suppress(KeyError):  # another thread removed the last one
                self._children.popitem()[1]()
        self.captures.close()
        self._finalizer()
        # Pinned arrays in use hold the primary context themselves.
        self._primary = None
        for warning in endings:
            warnings.warn(warning, stacklevel=outside_level())
            if isinstance(warning, UnseenFault) and not warning.report.told:
                at_exit.warned()

    @property
    def primary(self) -> Primary:
        """The retained primary context, for objects that must outlive this one."""
        if self._primary is None:
            raise self._closed()
        return self._primary

    def _closed(self) -> Closed:
        return Closed(f"{self.spec} was closed; open the device again, and make new arrays, streams and modules on it")

    # Attributes -------------------------------------------------------------------------------------------------------

    def attribute(self, name: Any) -> int:
        """Return a device attribute, by its driver name without the prefix ("MULTIPROCESSOR_COUNT") or enum member."""
        key = name if isinstance(name, str) else name.name
        key = key.upper().removeprefix("CU_DEVICE_ATTRIBUTE_")
        value = self._attributes.get(key)
        if value is None:
            members = self.driver.CUdevice_attribute
            member = getattr(members, f"CU_DEVICE_ATTRIBUTE_{key}", None)
            if member is None:
                raise ValueError(
                    f"unknown device attribute {name!r}; use a name of CUdevice_attribute without CU_DEVICE_ATTRIBUTE_"
                )
            value = self._attributes[key] = int(self.call("cuDeviceGetAttribute", member, self.device))
        return value

    @property
    def name(self) -> str:
        """The device's name, as the driver reports it."""
        text = self.call("cuDeviceGetName", 256, self.device)
        return bytes(text).split(b"\0")[0].decode(errors="replace")

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor)."""
        return self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")

    def memory_info(self) -> MemoryInfo:
        """Return free and total device memory in bytes."""
        free, total = self.call("cuMemGetInfo")
        return MemoryInfo(int(free), int(total))

    def _limit(self, name: str) -> Any:
        member = getattr(self.driver.CUlimit, "CU_LIMIT_" + name.upper().removeprefix("CU_LIMIT_"), None)
        if member is None:
            raise ValueError(f"unknown limit {name!r}; use STACK_SIZE, PRINTF_FIFO_SIZE or another name of CUlimit")
        return member

    def limit(self, name: str) -> int:
        """Return a limit of the context, such as STACK_SIZE, in its own unit (bytes for most)."""
        return int(self.call("cuCtxGetLimit", self._limit(name)))

    def set_limit(self, name: str, value: int) -> None:
        """Set a limit. The driver may round it, so read it back. All users of the primary context share it."""
        with self.relaxed():
            self.call("cuCtxSetLimit", self._limit(name), int(value))

    def stream_priorities(self) -> tuple[int, int]:
        """Return (least, greatest), the range a stream's priority is clamped to. Smaller numbers run first: (0, -5)."""
        least, greatest = self.call("cuCtxGetStreamPriorityRange")
        return int(least), int(greatest)

    def synchronize(self) -> None:
        """Wait for all work of the device, from any library; raises the error of any that failed."""
        with nvtx.range("synchronize device"):
            self.call("cuCtxSynchronize")
        self.in_flight.prune()

    # Peers ------------------------------------------------------------------------------------------------------------

    def same_device(self, other: Context) -> bool:
        """Return whether both are on one device of one driver."""
        return self.driver is other.driver and self.ordinal == other.ordinal

    def told_apart(self, other: Context) -> str:
        """Return the numbers of two simulated devices with the same spec, for an error that names both; else ""."""
        if self.spec != other.spec or self.kind != "sim" or other.kind != "sim":
            return ""
        return f" (simulated devices {self.driver.number} and {other.driver.number})"

    def can_access(self, other: Context) -> bool:
        """Return whether kernels here may use memory of `other`: the same device, or after enable_peer()."""
        return self.driver is other.driver and other.ordinal in self._peers

    def enable_peer(self, other: Context) -> None:
        """Allow kernels of this device to use memory of `other`, pool memory included. One direction only.

        A second call does nothing. Raises DeviceMismatch if the devices cannot access each other.
        """
        if self.can_access(other):
            return
        if self.driver is not other.driver:
            both = f"{self.spec} and {other.spec}{self.told_apart(other)}"
            raise DeviceMismatch(f"{both} have different drivers and cannot access each other; copy through the host")
        if not self.call("cuDeviceCanAccessPeer", self.device, other.device):
            raise DeviceMismatch(
                f"kernels on {self.spec} cannot access the memory of {other.spec}; use copy_from() instead"
            )
        result = self.driver.cuCtxEnablePeerAccess(other.handle, 0)
        if int(result[0]) != _PEER_ALREADY_ENABLED:
            self.check("cuCtxEnablePeerAccess", result)
        # Memory of a stream-ordered pool follows the pool's access list, not the context's.
        if other.attribute("MEMORY_POOLS_SUPPORTED"):
            pool = other.call("cuDeviceGetDefaultMemPool", other.device)
            access = self.driver.CUmemAccessDesc()
            access.location.type = self.driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = self.ordinal
            access.flags = self.driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            self.call("cuMemPoolSetAccess", pool, [access], 1)
        self._peers.add(other.ordinal)
