"""The exceptions of cudakit, and the check of driver and NVRTC results.

Every exception here is a `CudakitError`, except `Refused`, which is about a request and not about a device. Those with
a result code of the driver or NVRTC are `CudaError`.
"""

from __future__ import annotations

from typing import Any

from cudakit import tracebacks

#: The sticky codes (below) that a kernel causes.
KERNEL_FAULTS = frozenset(
    {
        700,  # ILLEGAL_ADDRESS
        702,  # LAUNCH_TIMEOUT
        710,  # ASSERT
        714,  # HARDWARE_STACK_ERROR
        715,  # ILLEGAL_INSTRUCTION
        716,  # MISALIGNED_ADDRESS
        717,  # INVALID_ADDRESS_SPACE
        718,  # INVALID_PC
        719,  # LAUNCH_FAILED
        721,  # TENSOR_MEMORY_LEAK
    }
)

#: Codes after which every call in the context returns the same error: its memory and its work are lost.
STICKY = KERNEL_FAULTS | {
    4,  # DEINITIALIZED
    214,  # ECC_UNCORRECTABLE
    220,  # NVLINK_UNCORRECTABLE
    226,  # CONTAINED
    709,  # CONTEXT_IS_DESTROYED
    911,  # EXTERNAL_DEVICE
}

OUT_OF_MEMORY = 2
NOT_READY = 600
NOT_SUPPORTED = 801

_SANITIZE = (
    "Run the same script with --device sim (or CUDAKIT_DEVICE=sim), which names the kernel's line, or under "
    "compute-sanitizer. This context is lost: start the process again."
)

_HINTS = {
    "CUDA_ERROR_INVALID_VALUE": "An argument is outside its limits: look at this call's sizes, pointers and flags.",
    "CUDA_ERROR_OUT_OF_MEMORY": "Free arrays that are no longer needed, work in chunks, or look at memory_info() for "
    "what other processes hold.",
    "CUDA_ERROR_NOT_INITIALIZED": "The driver was never started in this process: make a Device first.",
    "CUDA_ERROR_DEINITIALIZED": "The driver is shutting down: close devices before the process ends.",
    "CUDA_ERROR_STUB_LIBRARY": "A stub libcuda.so of the toolkit was loaded: take its folder out of LD_LIBRARY_PATH.",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "Another process holds the GPU in exclusive mode: see nvidia-smi.",
    "CUDA_ERROR_NO_DEVICE": "The driver sees no GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use the simulated "
    "device (CUDAKIT_DEVICE=sim).",
    "CUDA_ERROR_INVALID_DEVICE": "There is no device of that number: numbers go from 0 to the count less one.",
    "CUDA_ERROR_INVALID_IMAGE": "This is neither a cubin, a fat binary nor PTX that this driver can read.",
    "CUDA_ERROR_INVALID_CONTEXT": "Something in this process destroyed or popped the context: keep to the primary one.",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "The module was built for another chip: compile it for this device's architecture "
    "(device.arch).",
    "CUDA_ERROR_ECC_UNCORRECTABLE": "The GPU's memory has a hardware error: see nvidia-smi -q, then reset the GPU.",
    "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED": "These two GPUs cannot read each other's memory: copy through copy_from().",
    "CUDA_ERROR_INVALID_PTX": "The PTX does not assemble here: it may use instructions of another architecture.",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "The PTX is from an NVRTC newer than this driver: load the cubin instead, "
    "or update the driver.",
    "CUDA_ERROR_JIT_COMPILER_NOT_FOUND": "The driver's PTX compiler is missing: load a cubin, or repair the driver.",
    "CUDA_ERROR_INVALID_SOURCE": "The module's text was not accepted: look at its architecture and its contents.",
    "CUDA_ERROR_OPERATING_SYSTEM": "The operating system refused the driver a call: look at ulimits and permissions.",
    "CUDA_ERROR_INVALID_HANDLE": "The stream, event, module or function was closed, or belongs to another device.",
    "CUDA_ERROR_NOT_FOUND": "The module has no kernel or variable of that name: see module.kernels for what it has.",
    "CUDA_ERROR_NOT_READY": "Work is still under way: synchronize() the stream or the event first.",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "A kernel touched memory that is not allocated. " + _SANITIZE,
    "CUDA_ERROR_MISALIGNED_ADDRESS": "A kernel made an access at an address that is not a multiple of its size. "
    + _SANITIZE,
    "CUDA_ERROR_LAUNCH_FAILED": "A kernel failed while it ran: out-of-bounds shared memory, for one. " + _SANITIZE,
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "A kernel met a trap, or an instruction this GPU does not have. " + _SANITIZE,
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "A kernel used a pointer of the wrong memory space. " + _SANITIZE,
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "A kernel's stack overflowed: set_limit('STACK_SIZE', bytes), or recurse less. "
    + _SANITIZE,
    "CUDA_ERROR_INVALID_PC": "A kernel jumped to an address with no code. " + _SANITIZE,
    "CUDA_ERROR_ASSERT": "An assert() in a kernel failed; its text is on stdout. This context is lost: start the "
    "process again.",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "The display watchdog stopped a kernel that ran too long: split the work. This "
    "context is lost: start the process again.",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "The block needs more registers or shared memory than there are: use fewer "
    "threads, less shared memory, or __launch_bounds__.",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": "A cooperative grid must be resident at once: at most "
    "kernel.occupancy(block, shared) x multiprocessors blocks.",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": "The grid must be a multiple of the cluster, and a cluster at most 8 blocks "
    "unless the kernel opts in to more.",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED": "The primary context was reset by something in this process.",
    "CUDA_ERROR_NOT_PERMITTED": "This is not allowed here: profiling counters, for one, need the administrator.",
    "CUDA_ERROR_NOT_SUPPORTED": "This device or driver does not do that: look at the device's attributes.",
    "CUDA_ERROR_SYSTEM_NOT_READY": "The system is not ready for CUDA: with NVSwitch, start the fabric manager.",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "The kernel module and libcuda are of different versions: reboot, or "
    "reinstall the driver.",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "The forward-compatibility libcuda does not support this GPU: use the "
    "driver's own.",
    "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED": "This call cannot be part of a graph: do it before the capture begins, or "
    "after it.",
    "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED": "An earlier call broke the capture: its own error says which.",
    "CUDA_ERROR_STREAM_CAPTURE_UNJOINED": "A stream that waited for the captured one must be waited for in turn: "
    "stream.wait(other), before the capture ends.",
    "CUDA_ERROR_STREAM_CAPTURE_ISOLATION": "The event was recorded outside the capture: wait for it before the "
    "capture begins.",
    "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT": "The legacy default stream waits for a stream that is being captured: "
    "capture a stream of device.stream(), which it is not ordered with.",
    "CUDA_ERROR_STREAM_CAPTURE_MERGE": "Two captures are under way: end one before its streams wait for the other's.",
    "CUDA_ERROR_CAPTURED_EVENT": "An event recorded in a capture orders the graph's nodes and never happens: record "
    "another outside of it.",
    "CUDA_ERROR_UNKNOWN": "The driver does not say why: look at dmesg for Xid messages.",
    "NVRTC_ERROR_INVALID_OPTION": "NVRTC does not know one of the options: its log says which.",
    "NVRTC_ERROR_COMPILATION": "The source does not compile: the log says where.",
    "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID": "A name expression names no __global__ function, __device__ or "
    "__constant__ variable of the source.",
}


class Refused(Exception):
    """A command cannot be carried out as requested; the text says why and what to do."""


@tracebacks.meant
class CudakitError(RuntimeError):
    """The base of every exception of cudakit."""

    #: The simulated device's report of a fault or of an error in host code: `kind`, `detail`, `file`, `line`, `places`,
    #: `others`, `allocation`, `name` (the kernel's) and `as_dict()`; if a kernel caused it, also `block`, `thread`,
    #: `address` and `launched` (the line that launched it). None on a GPU, or if there is no report.
    report: Any = None

    def _render_traceback_(self) -> list[str]:
        return tracebacks.rendered(self)


class CudaError(CudakitError):
    """A driver or NVRTC routine failed.

    Attributes:
        routine: The routine's name.
        code: The result as an int.
        name: The result's name.
        text: The driver's description, or the simulated device's report.
        hint: What to do about it, or "".
    """

    def __init__(self, routine: str, code: int, name: str, text: str = "", hint: str = "") -> None:
        self.routine = routine
        self.code = code
        self.name = name
        self.text = text
        self.hint = hint
        message = f"{routine} failed with {name} ({code})"
        if "\n" in text:
            # A report of several lines starts at the margin, and the hint has its own line.
            message += f":\n{text}" + (f"\n{hint}" if hint else "")
        else:
            message += f": {text}" if text else ""
            message += f"{'' if message.endswith('.') else '.'} {hint}" if hint else ""
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.routine, self.code, self.name, self.text, self.hint), {"report": self.report}


class OutOfMemory(CudaError):
    """There is not enough device memory, or pinned host memory, left."""


class ContextLost(CudaError):
    """The device's context was lost by an earlier failure, whose text is included. Open a new device."""


class DeviceFault(ContextLost):
    """The failure that lost the context, such as an out-of-bounds access of a kernel.

    On the simulated device its text is the fault's report, with the kernel's line.
    """


class LeakWarning(ResourceWarning):
    """Arrays, streams, events or modules were still alive when their simulated device was closed, which freed them.

    Python hides ResourceWarnings by default: use `python -X dev`, or make it an error with
    `pytest -W error::cudakit.LeakWarning`.

    Attributes:
        report: The simulated device's report, with the Python line that made each object.
    """

    def __init__(self, report: Any) -> None:
        self.report = report
        super().__init__(str(report))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self.report),)


class UnseenFault(UserWarning):
    """Work on a simulated device failed after the last call that waited, so that no error reported it.

    The process exits with status 1, except under pytest.

    Attributes:
        report: The simulated device's report.
    """

    def __init__(self, report: Any) -> None:
        self.report = report
        super().__init__(str(report))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self.report),)


class CompileError(CudakitError):
    """NVRTC reported errors in a source. The text has the excerpt, or the log if there is no excerpt.

    Attributes:
        log: NVRTC's log.
        options: The options of the compilation.
        excerpt: The numbered source lines around each diagnostic, with its message.
        diagnostics: The errors and warnings of the log, each with `file`, `line`, `source_column`, `kind` and
            `message`.
    """

    def __init__(
        self,
        message: str,
        *,
        log: str = "",
        options: tuple[str, ...] = (),
        excerpt: str = "",
        diagnostics: tuple[Any, ...] = (),
    ) -> None:
        self.message = message
        self.log = log
        self.options = tuple(options)
        self.excerpt = excerpt
        self.diagnostics = tuple(diagnostics)
        parts = [message]
        if excerpt:
            parts.append(excerpt)
        elif log and log not in message:
            parts.append(f"NVRTC's log:\n{log.rstrip()}")
        super().__init__("\n".join(parts))

    def __reduce__(self) -> tuple[Any, ...]:
        return _compile_error, (self.message, self.log, self.options, self.excerpt, self.diagnostics)


class LaunchError(CudakitError):
    """A launch was rejected before anything ran; the text names the kernel, the parameter or limit, and what was
    given."""


class UnsupportedVariant(CudakitError):
    """A variant does not support this problem; the text says why."""


class GraphError(CudakitError):
    """A graph could not be captured, instantiated, launched or updated; the text says why."""


class DeviceMismatch(CudakitError):
    """An array, stream or event of one device was used on another."""


class DeviceUnavailable(CudakitError):
    """The requested device does not exist; the text says what is missing."""


class CollectiveTimeout(CudakitError):
    """A collective did not end in time; the text says which one, and which ranks are missing.

    A process of the communicator has ended or hangs, or the ranks make their calls in different orders. The
    communicator was aborted and cannot be used any more.
    """


class GradientError(CudakitError):
    """A tensor that requires gradients was passed to an operation without a gradient; the text says what to do."""


class Closed(CudakitError):
    """The object or its device was closed."""


class ForkedProcess(CudakitError):
    """A forked child used a device of its parent, which CUDA does not support."""


def _compile_error(
    message: str, log: str, options: tuple[str, ...], excerpt: str, diagnostics: tuple[Any, ...]
) -> CompileError:
    return CompileError(message, log=log, options=options, excerpt=excerpt, diagnostics=diagnostics)


def _decoded(answer: Any, fallback: str) -> str:
    """The text in a (result, bytes) tuple of cuGetErrorName and similar routines; `fallback` if there is no text."""
    if answer[0] or answer[1] is None:
        return fallback
    text = answer[1]
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def describe(driver: Any, code: Any) -> tuple[str, str]:
    """Return (name, text) of a result code. driver: the bindings of the driver or of NVRTC."""
    name = getattr(code, "name", str(int(code)))
    if hasattr(driver, "nvrtcGetErrorString"):
        answer = driver.nvrtcGetErrorString(code)
        return name, _decoded((0, answer[1]), "")
    name = _decoded(driver.cuGetErrorName(code), name)
    return name, _decoded(driver.cuGetErrorString(code), "")


def failure(driver: Any, routine: str, code: Any, *, hint: str | None = None) -> CudaError:
    """The exception for a result that is not success; `hint` replaces the usual one."""
    # The simulated driver knows what was wrong with the call. It is read first, because querying the error names is a
    # call too.
    said = getattr(driver, "simLastMessage", None)
    detail = str(said()).removeprefix(f"{routine}: ") if said is not None else ""
    if hint is None and said is not None:
        hint = driver.simLastHint()
    name, text = describe(driver, code)
    report = driver.simFailureReport() if said is not None else None
    if report is not None and detail == str(report):
        text = detail
        hint = "" if hint is None else hint
    elif detail:
        text = f"{text}: {detail}"
    number = int(code)
    kind = CudaError
    if routine.startswith("cu"):
        if number == OUT_OF_MEMORY:
            kind = OutOfMemory
        elif number in STICKY:
            kind = DeviceFault
    error = kind(routine, number, name, text, _HINTS.get(name, "") if hint is None else hint)
    error.report = report
    return error


def check(driver: Any, routine: str, result: tuple[Any, ...]) -> Any:
    """Return the values of a result tuple: None, the one value, or a tuple of several.

    Args:
        driver: The bindings of the routine (the driver's or NVRTC's), which have the text of errors.
        routine: The routine's name.
        result: The result code and the values.

    Raises:
        CudaError: If the code is not success.
    """
    if result[0]:
        raise failure(driver, routine, result[0])
    if len(result) == 2:
        return result[1]
    return result[1:] if len(result) > 2 else None
