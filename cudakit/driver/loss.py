"""The error by which a context is lost: what to do about it, on a GPU and on the simulated device."""

from __future__ import annotations

import os

from cudakit.errors import KERNEL_FAULTS, ContextLost, DeviceFault
from cudakit.tracebacks import outside_place


def first_failure(spec: str, kind: str, error: ContextLost) -> DeviceFault:
    """`error` with the advice for its device, a "gpu" or "sim", and the simulated device's report of it: kernel,
    thread, address, file and line."""
    if kind == "sim":
        hint = f"{spec} is lost with all that was on it; a new Device('sim') starts afresh."
    else:
        hint = f"{error.hint} {_found_by(error.code)}".strip()
    fault = DeviceFault(error.routine, error.code, error.name, error.text, hint)
    fault.report = error.report
    return fault


def _found_by(code: int) -> str:
    """Which call found a failure of a GPU, and how to find the launch that made it."""
    found = f"The call at {outside_place()} found it"
    if code not in KERNEL_FAULTS:
        return f"{found}."
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0").strip() not in ("", "0"):
        return f"{found}; with CUDA_LAUNCH_BLOCKING set, that is the launch, or a copy."
    return (
        f"{found}, and the launch was before it: with CUDA_LAUNCH_BLOCKING=1 each launch waits for its kernel and "
        "raises its fault."
    )
