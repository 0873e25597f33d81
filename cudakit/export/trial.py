"""Guess arguments for the kernels of a file that no family declares, so that the example can launch them.

Each kernel runs on the simulated device with one small block; integer arguments are numbers that most kernels can use
as sizes. If it runs without a report, the example launches it in the same way and expects the same results; if not, it
prints the reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from cudakit.compile import compiler
from cudakit.device import Device
from cudakit.driver import driver as drivers
from cudakit.errors import CudakitError
from cudakit.export.samples import Recorder, Sample
from cudakit.export.sources import Bundle, Entry
from cudakit.launch.arguments import pointer_dtypes
from cudakit.launch.module import Module, ObjectCode
from cudakit.launch.signature import Parameter
from cudakit.memory.array import DeviceArray, as_dtype
from cudakit.shipped import order

NOT_SIMULATED = "it was not run: no architecture of the export can be simulated"

_SIZE = 16  # the value of each integer parameter
_ELEMENTS = 1 << 12  # length of each array: enough for three dimensions of _SIZE
_THREADS = 32
_SHARED = 4096


def run(bundle: Bundle) -> tuple[list[Sample], dict[int, str]]:
    """Return one sample per kernel that runs, and for each other entry the reason, by the entry's number."""
    samples: list[Sample] = []
    reasons: dict[int, str] = {}
    for number, entry in enumerate(bundle.entries):
        arch = newest_simulated(entry.resources)
        if arch is None:
            reasons[number] = NOT_SIMULATED
            continue
        code = bundle.images[entry.image].compiled[arch]
        try:
            with Device(f"sim:{arch}", fresh=True) as device:
                samples.append(_try(number, entry, code, device))
        except (CudakitError, ValueError) as error:
            reasons[number] = f"its arguments are unknown, and guessed ones failed: {_first_line(error)}"
    return samples, reasons


def _first_line(error: BaseException) -> str:
    lines = (str(error).strip() or type(error).__name__).splitlines()
    joined = " ".join(line.strip() for line in lines[: 2 if lines[0].endswith(":") else 1])
    return joined.removesuffix(":")


def newest_simulated(architectures: Iterable[str]) -> str | None:
    """The newest architecture that can be simulated, or None."""
    return max(filter(drivers.is_simulated, architectures), key=order, default=None)


def _try(number: int, entry: Entry, code: compiler.Compiled, device: Device) -> Sample:
    module = Module(device.context, ObjectCode(entry.name, ptx=code.ptx, resources=code.resources, source=code.source))
    kernel = module[entry.mangled]
    block = entry.block or min(_THREADS, entry.max_threads or _THREADS)
    cluster = entry.required_cluster or (1, 1, 1)
    stream = device.default_stream
    rng = np.random.default_rng(0)
    arrays: dict[str, DeviceArray] = {}
    arguments: list[Any] = []
    for parameter in kernel.parameters:
        if entry.parameters[parameter.index].kind == "pointer":
            arrays[parameter.name or f"buffer{parameter.index}"] = array = device.array(
                _values(entry.parameters[parameter.index], rng)
            )
            arguments.append(array)
        else:
            arguments.append(_number(entry.parameters[parameter.index]))
    recorder = Recorder(f"{entry.name} with arguments guessed on the simulated device", arrays)
    shared = min(_SHARED, kernel.max_dynamic_shared) if ".extern .shared" in code.ptx else 0
    keywords: dict[str, Any] = {"grid": cluster, "block": block, "shared": shared, "args": tuple(arguments)}
    if entry.cooperative:
        keywords["cooperative"] = True
    recorder.launch(number, kernel, stream, keywords)
    device.synchronize()
    compared = {name: _compared(array.numpy()) for name, array in arrays.items()}
    return recorder.sample(compared)


def _values(parameter: Parameter, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return the contents of an array: small numbers; integers are valid indices into the array."""
    target = parameter.type.target
    names = pointer_dtypes(target) if target is not None else None
    name = names[0] if names else "float32"
    if name == "void":
        return np.zeros(_ELEMENTS * 4, np.uint8)
    dtype = as_dtype(name)
    if dtype.kind == "b":
        return rng.integers(0, 2, _ELEMENTS).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, _SIZE, _ELEMENTS).astype(dtype)
    return rng.uniform(0.5, 1.5, _ELEMENTS).astype(dtype)


def _number(parameter: Parameter) -> Any:
    """Return a scalar argument: a size, a small float, or zero bytes for a struct."""
    kind = parameter.type
    if kind.kind == "float":
        return 0.5
    if kind.kind == "bool":
        return True
    if kind.kind in ("int", "enum", "bits"):
        return _SIZE
    if kind.kind == "vector" and kind.target is not None:
        return (0.5 if kind.target.kind == "float" else _SIZE,) * kind.lanes
    return bytes(parameter.size)


def _compared(found: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Return the expected result on a GPU, and a tolerance that allows another order of summation and approximate
    functions."""
    if found.dtype.kind in "iub":
        return found, 0
    wide = found.astype(np.float64)
    exponent = {2: -7, 4: -16, 8: -40}.get(found.dtype.itemsize, -7)
    size = np.where(np.isfinite(wide), np.abs(wide), 0)
    return wide, math.ldexp(1, exponent) * np.maximum(size, 1)
