"""Failures of simulated driver calls: CallError, error texts, injected faults, reports of mistakes in host code."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from cuda.bindings import driver as cu

from cudakit.sim.lockstep.memory import MemoryFault
from cudakit.sim.lockstep.report import FaultReport, HostReport, Origin, Other, python_place

Result = cu.CUresult
SUCCESS = Result.CUDA_SUCCESS

# to find the user's line, skip frames of the package that contains `sim`, and of the modules through which it is called
# back (by finalizers, by `with`)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_BETWEEN = frozenset(module.__file__ for module in (contextlib, functools, weakref))


class CallError(Exception):
    """Ends a call with ``code``. ``simLastMessage`` returns the message, ``simLastHint`` the ``hint``: the advice, if
    the usual one for the code would be wrong. ``report``, which ``simFailureReport`` returns, is the report whose text
    is the message, or None."""

    def __init__(self, code: Any, message: str, hint: str | None = None, report: FaultReport | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
        self.report = report

    @classmethod
    def by(cls, code: Any, report: FaultReport) -> CallError:
        """An error whose message is the text of a report."""
        return cls(code, str(report), report=report)


class OperationFault(Exception):
    """Queued work failed when it ran; its context is lost."""

    def __init__(self, code: Any, report: FaultReport) -> None:
        super().__init__(str(report))
        self.code = code
        self.report = report


def _as_it_is(file: str) -> str:
    return file


_name_of: Callable[[str], str] = _as_it_is


def _is_between(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    # torch calls the kernels of its ops
    return file.startswith(_PACKAGE) or file in _BETWEEN or str(frame.f_globals.get("__name__")).startswith("torch.")


def caller() -> Origin:
    """The line of the innermost frame of the user's code."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_between(frame):
        frame = frame.f_back
    return Origin(_name_of(frame.f_code.co_filename), frame.f_lineno)


def name_files(name_of: Callable[[str], str]) -> None:
    """Set the function that returns a Python file's name for reports, for example of a notebook cell, which has no
    path. linecache must know the file's lines under that name."""
    global _name_of
    _name_of = name_of


def host_report(kind: str, detail: str, call: str, place: Origin | None, **more: Any) -> HostReport:
    """A report of a mistake in host code. ``call`` is the driver function, ``place`` the line that called it."""
    places = () if place is None else (python_place(place.file, place.line),)
    return HostReport(kind, detail, call=call, places=places, **more)


def interrupted(label: str, place: Origin | None) -> tuple[Any, HostReport]:
    """The code and the report of a context that is lost because ``label``, queued work or a call, was interrupted."""
    return Result.CUDA_ERROR_LAUNCH_FAILED, host_report("interrupted", f"{label} did not finish", label, place)


def other_access(access: str, place: Origin | None) -> Other:
    """The queued work that a mistake in host code conflicts with, by the line that queued it."""
    return Other(access, places=() if place is None else (python_place(place.file, place.line),))


def memory_report(fault: MemoryFault, call: str, place: Origin | None) -> HostReport:
    """The report of a host call, or of work that it queued, whose memory is not allocated."""
    return host_report(fault.kind, fault.where, call, place, allocation=fault.allocation)


_TEXTS = {
    "CUDA_SUCCESS": "no error",
    "CUDA_ERROR_INVALID_VALUE": "invalid argument",
    "CUDA_ERROR_OUT_OF_MEMORY": "out of memory",
    "CUDA_ERROR_NOT_INITIALIZED": "initialization error",
    "CUDA_ERROR_DEINITIALIZED": "driver shutting down",
    "CUDA_ERROR_NO_DEVICE": "no CUDA-capable device is detected",
    "CUDA_ERROR_INVALID_DEVICE": "invalid device ordinal",
    "CUDA_ERROR_INVALID_IMAGE": "device kernel image is invalid",
    "CUDA_ERROR_INVALID_CONTEXT": "invalid device context",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "no kernel image is available for execution on the device",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "uncorrectable ECC error encountered",
    "CUDA_ERROR_UNSUPPORTED_LIMIT": "limit is not supported on this architecture",
    "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED": "peer access is not supported between these two devices",
    "CUDA_ERROR_INVALID_PTX": "a PTX JIT compilation failed",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "the provided PTX was compiled with an unsupported toolchain.",
    "CUDA_ERROR_ILLEGAL_STATE": "the operation cannot be performed in the present state",
    "CUDA_ERROR_INVALID_HANDLE": "invalid resource handle",
    "CUDA_ERROR_NOT_FOUND": "named symbol not found",
    "CUDA_ERROR_NOT_READY": "device not ready",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "an illegal memory access was encountered",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "too many resources requested for launch",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "the launch timed out and was terminated",
    "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED": "peer access is already enabled",
    "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED": "peer access has not been enabled",
    "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE": "cannot set while device is active in this process",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": "context is destroyed",
    "CUDA_ERROR_ASSERT": "device-side assert triggered",
    "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED": "part or all of the requested memory range is already mapped",
    "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED": "pointer does not correspond to a registered memory region",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "hardware stack error",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "an illegal instruction was encountered",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "misaligned address",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "operation not supported on global/shared address space",
    "CUDA_ERROR_INVALID_PC": "invalid program counter",
    "CUDA_ERROR_LAUNCH_FAILED": "unspecified launch failure",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": "too many blocks in cooperative launch",
    "CUDA_ERROR_NOT_PERMITTED": "operation not permitted",
    "CUDA_ERROR_NOT_SUPPORTED": "operation not supported",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": "operation not permitted when stream is capturing",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": "cluster misconfiguration",
    "CUDA_ERROR_UNKNOWN": "unknown error",
}


def result(code: Any) -> Any | None:
    """The ``CUresult`` of a member or a number; None if there is no such member."""
    try:
        return Result(int(code))
    except ValueError:
        return None


def text(code: Any) -> str:
    """The driver's long text of an error."""
    name = str(code.name)
    return _TEXTS.get(name, name.removeprefix("CUDA_ERROR_").lower().replace("_", " "))


ALLOCATORS = frozenset(
    ("cuMemAlloc", "cuMemAllocPitch", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemAllocHost", "cuMemHostAlloc")
)

# named faults: the calls that count towards `after` ("*": any that needs a context, "kernel": a kernel when it runs),
# and the default result
NAMED = {
    "out_of_memory": (ALLOCATORS, Result.CUDA_ERROR_OUT_OF_MEMORY),
    "launch_failure": (frozenset({"kernel"}), Result.CUDA_ERROR_LAUNCH_FAILED),
    "context_lost": (frozenset({"*"}), Result.CUDA_ERROR_ECC_UNCORRECTABLE),
}


@dataclass
class Injection:
    """A pending injected fault: the calls it counts, how many of them still pass, and how many fail after that."""

    fault: str
    calls: frozenset[str]
    code: Any
    after: int
    times: int


class Injector:
    """The faults requested with ``simInject``, in order."""

    def __init__(self) -> None:
        self.injections: list[Injection] = []

    def add(self, fault: str, after: int, times: int, code: Any | None) -> None:
        """Add a fault. Raises ValueError for invalid counts, an unknown fault, or a driver function without a code."""
        if after < 0 or times < 1:
            raise ValueError(f"after must be at least 0 and times at least 1, got {after} and {times}")
        calls, default = NAMED.get(fault, (frozenset({fault}), None))
        if default is None and not fault.startswith("cu"):
            raise ValueError(f"unknown fault {fault!r}; use one of {', '.join(NAMED)}, or a driver function's name")
        chosen = default if code is None else code
        if chosen is None:
            raise ValueError(f"pass the CUresult that {fault} returns: simInject({fault!r}, code=...)")
        self.injections.append(Injection(fault, calls, Result(int(chosen)), after, times))

    def hit(self, call: str, *, needs_context: bool = False) -> Injection | None:
        """The injection that makes this call fail, or None. Every injection that counts the call is updated."""
        found = None
        for injection in list(self.injections):
            if call not in injection.calls and not (needs_context and "*" in injection.calls):
                continue
            if injection.after > 0:
                injection.after -= 1
            elif found is None:
                found = injection
                injection.times -= 1
                if injection.times == 0:
                    self.injections.remove(injection)
        return found
