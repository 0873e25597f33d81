"""The launch plan: how the arguments of a kernel become the bytes the driver takes.

A plan is made once for each thread, kernel and tuple of argument types. It is one generated function over one kept
struct, one buffer and one array of pointers to the parameters in it: each call tests what may differ from call to call
(dtype, device, open, range) and packs. Whatever a test does not pass goes to the converters of `arguments`, which hold
the rules, say what is wrong, or pack the value after all.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from cudakit.arguments import Converter
from cudakit.context import Context
from cudakit.errors import LaunchError
from cudakit.memory import DeviceArray
from cudakit.signature import Parameter
from cudakit.stream import Stream

Arguments = tuple[Any, ...]


class Plan(NamedTuple):
    """pack(arguments, stream) puts arguments where `pointers` (an address for cuLaunchKernel's kernelParams) leads.

    The function owns that memory. A launch on `stream` is noted with the arrays; None notes nothing.
    """

    pack: Callable[[Arguments, Stream | None], None]
    pointers: int


class Plans(threading.local):
    """One thread's plans of one kernel, by argument types."""

    def __init__(self) -> None:
        self.plans: dict[tuple[type, ...], Plan] = {}


def struct_format(parameters: Sequence[Parameter], codes: Sequence[str]) -> str:
    """The struct that lays values out as the driver's parameter layout does."""
    parts = ["<"]
    position = 0
    for parameter, code in zip(parameters, codes, strict=True):
        if parameter.offset > position:
            parts.append(f"{parameter.offset - position}x")
        parts.append(code)
        position = parameter.offset + parameter.size
    return "".join(parts)


def make_plan(
    kernel: str, context: Context, parameters: Sequence[Parameter], arguments: Arguments, stream: Stream | None
) -> Plan:
    """A plan for `arguments` and others of their types.

    Raises LaunchError where their count or one of them is wrong. The arguments are packed when it returns.
    """
    if len(arguments) != len(parameters):
        listed = ", ".join(parameter.text for parameter in parameters)
        raise LaunchError(f"{kernel}: takes {len(parameters)} arguments ({listed}), and {len(arguments)} were given")
    converters = [Converter(kernel, parameter, context) for parameter in parameters]
    layout = struct.Struct(struct_format(parameters, [converter.code for converter in converters]))
    buffer = ctypes.create_string_buffer(max(layout.size, 1))
    base = ctypes.addressof(buffer)
    pointers = (ctypes.c_void_p * max(len(parameters), 1))(*(base + parameter.offset for parameter in parameters))

    def convert(values: Arguments, on: Stream | None) -> None:
        layout.pack_into(buffer, 0, *(converter(value) for converter, value in zip(converters, values, strict=True)))
        if on is not None:
            for value in values:
                if isinstance(value, DeviceArray):
                    value.allocation.uses.add(on)

    convert(arguments, stream)
    names: dict[str, Any] = {
        "context": context,
        "pack_into": layout.pack_into,
        "buffer": buffer,
        "convert": convert,
        "Unfit": (struct.error, OverflowError, TypeError, ValueError),
        "pointers": pointers,  # kept alive with the function
    }
    for converter, argument in zip(converters, arguments, strict=True):
        index = converter.parameter.index
        names[f"c{index}"] = converter
        if isinstance(argument, DeviceArray):
            names[f"d{index}"] = argument.dtype
    exec(pack_source(converters, arguments), names)
    return Plan(names["pack"], ctypes.addressof(pointers))


def pack_source(converters: Sequence[Converter], arguments: Arguments) -> str:
    """The text of a plan's function: it tests what may differ between calls of these types, notes the stream, packs."""
    tests: list[str] = []
    notes: list[str] = []
    values: list[str] = []
    for converter, argument in zip(converters, arguments, strict=True):
        i = converter.parameter.index
        target = converter.parameter.type.target
        if converter.parameter.kind == "pointer" and type(argument) is DeviceArray:
            tests.append(f"a{i}.context is context and a{i}.allocation.open")
            if converter.dtypes is not None:
                tests.append(f"a{i}.dtype is d{i}")
            if target is not None and not target.const:
                tests.append(f"not a{i}.readonly")
            if converter.alignment > 1:
                tests.append(f"not a{i}.pointer & {converter.alignment - 1}")
            notes.append(f"    if a{i}.allocation.uses.home is not stream: a{i}.allocation.uses.add(stream)\n")
            values.append(f"a{i}.pointer")
        elif _packs_itself(converter, argument):
            values.append(f"a{i}")
        else:
            values.append(f"c{i}(a{i})")
    unpacked = "".join(f"a{i}, " for i in range(len(values)))
    return (
        "def pack(arguments, stream):\n"
        + (f"    {unpacked.rstrip()} = arguments\n" if values else "")
        + (f"    if not ({' and '.join(tests)}):\n        return convert(arguments, stream)\n" if tests else "")
        + "".join(notes)
        + "    try:\n"
        + f"        pack_into({', '.join(['buffer', '0', *values])})\n"
        + "    except Unfit:\n"
        + "        convert(arguments, stream)\n"
    )


def _packs_itself(converter: Converter, argument: Any) -> bool:
    """Whether struct packs values of this type as the converter would, or fails where the converter decides."""
    kind = converter.parameter.type
    if kind.kind in ("int", "enum"):
        return len(converter.code) == 1 and isinstance(argument, (int, np.integer))
    if kind.kind == "float":
        return (
            kind.dtype != "bfloat16" and type(argument) is not bool and isinstance(argument, (int, float, np.floating))
        )
    return kind.kind == "bool" and isinstance(argument, (bool, np.bool_))
