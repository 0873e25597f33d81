"""The error that loses a context, with advice for a GPU and for the simulated device."""

from __future__ import annotations

import os

from cudakit.errors import KERNEL_FAULTS, ContextLost, DeviceFault
from cudakit.tracebacks import outside_place


def first_failure(spec: str, kind: str, error: ContextLost) -> DeviceFault:
    """Return `error` with advice for its device ("gpu" or "sim") and, on the simulated device, the report of the fault:
    kernel, thread, address, file and line."""
    if kind == "sim":
        hint = f"{spec} is lost, with its memory and queued work; open a new Device('sim')."
    else:
        hint = f"{error.hint} {_found_by(error.code)}".strip()
    fault = DeviceFault(error.routine, error.code, error.name, error.text, hint)
    fault.report = error.report
    return fault


def _found_by(code: int) -> str:
    """Return which call detected a GPU's failure, and how to find the launch that caused it."""
    found = f"The call at {outside_place()} detected it"
    if code not in KERNEL_FAULTS:
        return f"{found}."
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0").strip() not in ("", "0"):
        return f"{found}; with CUDA_LAUNCH_BLOCKING set, that is the launch, or a copy."
    return (
        f"{found}; the faulty launch came earlier. Set CUDA_LAUNCH_BLOCKING=1 to make each launch wait for its kernel "
        "and raise its fault."
    )
