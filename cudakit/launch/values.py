"""Checks of Python values that are passed as kernel arguments, and their descriptions in errors."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from cudakit.launch.strides import StridedArgument
from cudakit.memory import libraries
from cudakit.memory.array import DeviceArray

_THIS_ORDER = f"__ctype_{sys.byteorder[0]}e__"


def describe(value: Any) -> str:
    """Return the type and the relevant details of a value, for an error."""
    kind = type(value).__name__
    if isinstance(value, StridedArgument):
        return f"{describe(value.array)}, declared strided"
    if isinstance(value, DeviceArray):
        return f"a DeviceArray of {value.dtype}"
    if isinstance(value, np.ndarray):
        return f"a numpy array of {value.dtype}"
    if _is_torch(value):
        return f"a torch tensor of {str(value.dtype).removeprefix('torch.')} on {value.device}"
    if hasattr(value, "__cuda_array_interface__"):
        return f"a {type(value).__module__.partition('.')[0]} {kind} of {getattr(value, 'dtype', 'unknown dtype')}"
    if isinstance(value, (int, float, np.generic, str, complex)) or value is None:
        return f"{kind} {value!r}" if value is not None else "None"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    return f"a {kind}"


def _is_torch(value: Any) -> bool:
    library = libraries.of(type(value), exact=False)
    return library is not None and library.name == "torch"


def is_integer(value: Any) -> bool:
    """Return whether `value` is an int or a numpy integer; a duration, which numpy counts as an integer, is not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, np.timedelta64)


def is_bytes(value: Any) -> bool:
    """Return whether `value` is a view of bytes or structures, whose memory can be passed as it is; numbers are not."""
    if isinstance(value, memoryview):
        return value.format in ("B", "b", "c") or value.format.startswith("T{")
    return isinstance(value, ctypes.Array) and value._type_ in (ctypes.c_char, ctypes.c_byte, ctypes.c_ubyte)


def is_swapped(value: Any) -> bool:
    """Return whether a structure has numbers that are not in native byte order."""
    if isinstance(value, (np.void, np.ndarray)):
        return not value.dtype.isnative
    # A ctypes number has its native-order type as an attribute; for bytes it is the same type.
    kinds: list[Any] = [type(value)]
    for kind in kinds:
        if issubclass(kind, (ctypes.Structure, ctypes.Union)):
            kinds += [field[1] for base in kind.__mro__ for field in base.__dict__.get("_fields_", ())]
        elif issubclass(kind, ctypes.Array):
            kinds.append(kind._type_)
    return any(getattr(kind, _THIS_ORDER, kind) is not kind for kind in kinds)


def scalar_advice(value: Any) -> str:
    """Return how to convert `value` to a number, as the end of an advice; "" if that is unclear."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return ", array.item()"
    if isinstance(value, (DeviceArray, np.ndarray)):
        return ": arrays go to pointer parameters"
    if isinstance(value, (float, np.floating)):
        return ", such as int(x) if rounding is intended"
    if isinstance(value, np.generic):
        return ", converted explicitly"
    return ""
