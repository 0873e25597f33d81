"""ArgumentBuffer: the arguments of a launch as the bytes that the driver reads."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

from cudakit.driver.context import Context
from cudakit.errors import LaunchError
from cudakit.launch.arguments import Converter
from cudakit.launch.signature import Parameter


def struct_format(parameters: Sequence[Parameter], codes: Sequence[str]) -> str:
    """Return the struct format that matches the driver's parameter layout."""
    parts = ["<"]
    position = 0
    for parameter, code in zip(parameters, codes, strict=True):
        if parameter.offset > position:
            parts.append(f"{parameter.offset - position}x")
        parts.append(code)
        position = parameter.offset + parameter.size
    return "".join(parts)


class ArgumentBuffer:
    """One buffer for the arguments of one kernel, and the array of pointers to each parameter in it.

    memory: the buffer; its length is a multiple of 8. address: the address of the pointer array, for cuLaunchKernel's
    kernelParams; this object owns both. converters: the rules of each parameter. pack_into(memory, 0, *values): writes
    converted values.

    Raises LaunchError if `count` is not the number of parameters.
    """

    def __init__(self, kernel: str, context: Context, parameters: Sequence[Parameter], count: int) -> None:
        if count != len(parameters):
            listed = ", ".join(parameter.text for parameter in parameters)
            raise LaunchError(f"{kernel}: takes {len(parameters)} arguments ({listed}), got {count}")
        self.converters = [Converter(kernel, parameter, context) for parameter in parameters]
        layout = struct.Struct(struct_format(parameters, [converter.code for converter in self.converters]))
        self.memory = ctypes.create_string_buffer(-(-max(layout.size, 1) // 8) * 8)
        base = ctypes.addressof(self.memory)
        self._pointers = (ctypes.c_void_p * max(len(parameters), 1))(
            *(base + parameter.offset for parameter in parameters)
        )
        self.address = ctypes.addressof(self._pointers)
        self.pack_into = layout.pack_into

    def convert(self, values: Sequence[Any]) -> None:
        """Convert the values by the rules and write them. Raises LaunchError if a parameter does not take its value."""
        self.pack_into(self.memory, 0, *(rule(value) for rule, value in zip(self.converters, values, strict=True)))

    def put(self, index: int, value: Any) -> None:
        """Convert one value by the rules of its parameter and write it."""
        rule = self.converters[index]
        struct.pack_into(f"<{rule.code}", self.memory, rule.parameter.offset, rule(value))
