"""Arguments of driver calls, converted as the bindings convert them."""

from __future__ import annotations

import ctypes
import operator
from typing import Any

from cudakit.sim.driver.faults import CallError, Result

Handle = Any


def as_handle(value: Any) -> int:
    """Convert a handle, device or pointer (an int, a binding's object, or None for 0) to an int."""
    if value is None:
        return 0
    if isinstance(value, (str, bytes, float)):
        raise TypeError(f"an integer or a handle is required, got {type(value).__name__}")
    try:
        return operator.index(value)
    except TypeError:
        return int(value)


def unsigned(value: Any, bits: int = 32) -> int:
    """An unsigned C integer; raises OverflowError if the value does not fit, as the bindings do."""
    number = operator.index(value)
    if number < 0:
        raise OverflowError(f"can't convert negative value to a C unsigned integer of {bits} bits")
    if number >> bits:
        raise OverflowError(f"value too large to convert to a C unsigned integer of {bits} bits")
    return number


def signed(value: Any) -> int:
    """A C int."""
    number = operator.index(value)
    if not -(2**31) <= number < 2**31:
        raise OverflowError("value too large to convert to int")
    return number


def size_t(value: Any) -> int:
    return unsigned(value, 64)


def name_bytes(value: Any) -> str:
    """A ``char *`` argument as text; it must be bytes, as in the bindings."""
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"expected bytes, {type(value).__name__} found")
    return bytes(value).split(b"\0")[0].decode("utf-8", "surrogateescape")


def read_c_array(address: int, count: int) -> list[int]:
    """``count`` 64-bit words at a host address."""
    return list((ctypes.c_uint64 * count).from_address(address))


def member(kind: Any, value: Any, what: str) -> Any:
    """Convert a member or its number to the enum member; raises CallError (INVALID_VALUE) if there is no such
    member."""
    try:
        return kind(int(value))
    except ValueError:
        raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"{value!r} is not a {what}") from None
