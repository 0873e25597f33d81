"""Launches by Triton's own `kernel[grid](...)`, which calls the driver from C.

Within a recording, the `run` of Triton's compiled kernels is replaced. Triton calls it with the grid, the stream and
the arguments of the Python function, after it has chosen the compiled kernel. It exists since Triton 3.0. Kernels that
torch.compile makes may have taken `run` before the recording started, or use a launcher of torch: they are not seen.
"""

from __future__ import annotations

import contextlib
import importlib
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from cudakit.driver.context import Context
from cudakit.errors import CudakitError
from cudakit.launch.cxx import BUILTIN, VOID, Type
from cudakit.launch.signature import Parameter, PtxParameter, ptx_entries
from cudakit.recording import memory
from cudakit.recording.code import Code
from cudakit.recording.file import RecordingError
from cudakit.recording.snapshot import Call, Config, caller

_INTEGERS = {"i1": 1, "u1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8}
_FLOATS = {"fp32": "<f", "f32": "<f", "fp64": "<d", "f64": "<d", "fp16": "<e", "f16": "<e"}
_FIXED = 9  # arguments of `run` before those of the kernel: grid, stream, function, metadata and hooks


class Receiver(Protocol):
    """The recorder, as far as this module uses it."""

    def around(self, context: Context, stream: Any, call: Call) -> AbstractContextManager[list[bool]]:
        """Record a launch that the block queues. The block appends whether the driver accepted it."""

    def note(self, text: str) -> None:
        """Note in the file that something was not recorded."""


@contextlib.contextmanager
def followed(recorder: Receiver) -> Iterator[None]:
    """Record Triton's own launches within the block."""
    compiled = _compiled_kernel(recorder)
    if compiled is None:
        yield
        return
    run = compiled.__dict__["run"]

    def recorded(self: Any) -> Callable[..., Any]:
        launch: Callable[..., Any] = run.__get__(self, type(self))

        def launched(*arguments: Any, **named: Any) -> Any:
            if 0 in arguments[:3]:  # Triton launches nothing
                return launch(*arguments, **named)
            context = _current()
            call = _call(self, launch, arguments)
            with recorder.around(context, arguments[3], call) as sent:
                result = launch(*arguments, **named)
                sent.append(True)
            return result

        return launched

    compiled.run = property(recorded)
    try:
        yield
    finally:
        compiled.run = run


def _compiled_kernel(recorder: Receiver) -> Any:
    """Return Triton's class of compiled kernels; None if Triton is not installed, or cannot launch here."""
    if "torch" not in sys.modules and "triton" not in sys.modules:
        return None  # Triton needs torch, or another library's arrays, which are imported before
    try:
        found = importlib.import_module("triton.compiler.compiler").CompiledKernel
    except (ImportError, AttributeError):
        return None
    if not isinstance(found.__dict__.get("run"), property):
        recorder.note(
            "launches by Triton's own kernel[grid](...) were not recorded, because this version of Triton has no "
            "CompiledKernel.run; use Triton 3.0 or later, or launch through cudakit.frontends.triton"
        )
        return None
    return found


def _current() -> Context:
    """Return the context of torch's current GPU."""
    from cudakit.device import Device

    torch = sys.modules["torch"]
    return Device.of_gpu(int(torch.cuda.current_device())).context


def _call(kernel: Any, launch: Any, arguments: tuple[Any, ...]) -> Call:
    """Return a launch of a compiled kernel. arguments: those of its `run`."""
    meta, ptx = kernel.metadata, kernel.asm["ptx"]
    given = [_plain(value) for value in arguments[_FIXED:]]
    signature = {str(name): kind for name, kind in kernel.src.signature.items()}
    passed = {name: kind for name, kind in signature.items() if kind != "constexpr"}
    if len(given) == len(signature):
        values = dict(zip(signature, given, strict=True))
    elif len(given) == len(passed):  # before Triton 3.3, constants are not among the arguments
        values = dict(zip(passed, given, strict=True))
    else:
        raise RecordingError(f"{meta.name}: Triton passes {len(given)} arguments for {len(signature)} parameters")
    names = list(getattr(getattr(kernel.src, "fn", None), "arg_names", ()))
    entry = ptx_entries(ptx)[meta.name]
    refusals = _refusals(kernel, passed, entry)
    parameters, packed, arrays = _packed(passed, values, entry, names)
    blocks_per_program = int(meta.num_ctas)
    cluster = None if blocks_per_program == 1 else (blocks_per_program, 1, 1)
    grid = (int(arguments[0]) * blocks_per_program, int(arguments[1]), int(arguments[2]))
    cooperative, programmatic = (bool(getattr(meta, name, False)) for name in ("launch_cooperative_grid", "launch_pdl"))
    fn = getattr(kernel.src, "fn", None)
    return Call(
        meta.name,
        meta.name,
        kernel,
        Code(_file(fn), "", ptx, kernel.asm["cubin"], str(getattr(fn, "src", "")), {}, _module(kernel)),
        Config(grid, (32 * int(meta.num_warps), 1, 1), int(meta.shared), cluster, cooperative, programmatic),
        packed,
        tuple(parameter.offset for parameter in parameters),
        parameters,
        arrays,
        launched=caller(),
        refusals=refusals,
    )


def _file(fn: Any) -> str:
    code = getattr(getattr(fn, "fn", None), "__code__", None)
    return "triton kernel" if code is None else str(code.co_filename)


def _module(kernel: Any) -> Any:
    """Return the driver's module, as an object that cuModuleGetGlobal takes."""
    from cuda.bindings import driver

    return driver.CUmodule(int(kernel.module)) if isinstance(kernel.module, int) else kernel.module


def _plain(value: Any) -> Any:
    return getattr(value, "value", value) if type(value).__name__ == "constexpr" else value


def _refusals(kernel: Any, passed: Mapping[str, Any], entry: tuple[PtxParameter, ...]) -> tuple[str, ...]:
    """Return why a launch cannot be replayed."""
    found = []
    complicated = [name for name, kind in passed.items() if _size(kind) is None]
    if complicated or len(entry) < len(passed):
        found.append(
            f"its parameter {(complicated or ['?'])[0]} is a tuple or a descriptor, which is passed in several parts; "
            "pass pointers and numbers"
        )
    for name in ("global_scratch_size", "profile_scratch_size"):
        if int(getattr(kernel.metadata, name, 0) or 0):
            found.append(f"it uses scratch memory that Triton allocates for each launch ({name})")
    return tuple(found)


def _size(kind: Any) -> int | None:
    """Return the bytes of a parameter of Triton's type; None for tuples and descriptors."""
    if not isinstance(kind, str):
        return None
    if kind.startswith("*"):
        return 8
    return _INTEGERS.get(kind) or (2 if kind == "bf16" else None) or (
        struct.calcsize(_FLOATS[kind]) if kind in _FLOATS else None
    )  # fmt: skip


def _packed(
    passed: Mapping[str, Any], values: Mapping[str, Any], entry: tuple[PtxParameter, ...], names: list[str]
) -> tuple[list[Parameter], bytes, dict[int, memory.Described]]:
    """Return the parameters of the machine code, their bytes, and the arrays among them. Scratch pointers, which follow
    the function's parameters, are null."""
    parameters: list[Parameter] = []
    packed = bytearray()
    arrays: dict[int, memory.Described] = {}
    kinds = [(name, kind) for name, kind in passed.items() if _size(kind) is not None]
    for index, ptx in enumerate(entry):
        offset = -(-len(packed) // max(ptx.align, 1)) * ptx.align
        packed += bytes(offset - len(packed))
        name, kind = kinds[index] if index < len(kinds) else ("", "*i8")
        value = values[name] if index < len(kinds) else None
        if kind.startswith("*"):
            found = memory.described(value) if hasattr(value, "data_ptr") else None
            if found is not None:
                arrays[index] = found
            address = found.pointer if found is not None else int(value or 0)
            data = struct.pack("<Q", address)
            typed = Type("void*", "pointer", 8, target=VOID)
        else:
            data = _number(kind, value)
            typed = BUILTIN["x"] if kind in _INTEGERS else BUILTIN["d"]
        packed += data[: ptx.size].ljust(ptx.size, b"\0")
        # in older versions the signature has the parameters' numbers
        label = names[int(name)] if name.isdigit() and int(name) < len(names) else name.strip("(),")
        parameters.append(Parameter(index, typed, offset, ptx.size, label))
    return parameters, bytes(packed), arrays


def _number(kind: str, value: Any) -> bytes:
    if kind in _INTEGERS:
        size = _INTEGERS[kind]
        return (int(value) % (1 << 8 * size)).to_bytes(8, "little")
    if kind == "bf16":
        return struct.pack("<f", float(value))[2:]  # Triton truncates
    try:
        return struct.pack(_FLOATS[kind], float(value))
    except OverflowError as error:
        raise CudakitError(f"{value!r} does not fit {kind}: {error}") from error
