"""Machine code that calls numpy's own loops: a transcendental function has the bits of the interpreter only so.

The addresses of the loops are those of this process, so kernels call them through functions of a module of their own,
which is not kept (kept_code.py).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from cudakit.sim.compiled.ir import Module, Value, lanes
from cudakit.sim.compiled.lanewise import Unsupported
from cudakit.sim.values.approximations import FUNCTIONS

# of the names of the functions that call the loops
PREFIX = "numpy_"
# numpy changes this name if the layout of the structure changes
_CAPSULE = b"numpy_1.24_ufunc_call_info"


class _CallInfo(ctypes.Structure):
    """The structure that numpy documents for ``ufunc._get_strided_loop``."""

    _fields_ = (
        ("strided_loop", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("auxdata", ctypes.c_void_p),
        ("requires_pyapi", ctypes.c_ubyte),
        ("no_floatingpoint_errors", ctypes.c_ubyte),
    )


@dataclass(frozen=True)
class _Loop:
    """The addresses of a loop and of its first and last argument, valid as long as ``capsule`` lives."""

    function: int
    context: int
    auxiliary: int
    capsule: Any


@cache
def _loop(function: np.ufunc) -> _Loop | None:
    """The loop of a function of contiguous float64 values; None if it cannot run without Python."""
    ufunc: Any = function
    double = np.dtype(np.float64)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        types, capsule = ufunc._resolve_dtypes_and_context((double, None))
        ufunc._get_strided_loop(capsule, fixed_strides=(8, 8))
        info = _CallInfo.from_address(pointer(capsule, _CAPSULE))
    except (AttributeError, TypeError, ValueError):
        return None
    if types != (double, double) or info.requires_pyapi or not info.strided_loop:
        return None
    return _Loop(info.strided_loop, info.context or 0, info.auxdata or 0, capsule)


def applied(function: np.ufunc, value: Value) -> Value:
    """A numpy function of f64 values; raises Unsupported if its loop cannot be called."""
    if _loop(function) is None:
        raise Unsupported(f"numpy.{function.__name__}")
    code = value.code
    count = max(lanes(value.kind), 1)
    given, made = code.array("double", count), code.array("double", count)
    data, sizes = code.array("ptr", 2), code.array("i64", 3)
    given.store(value)
    data.store(given)
    data.at(8).store(made)
    # the number of values, and the strides
    for place, number in enumerate((count, 8, 8)):
        sizes.at(8 * place).store(code.const("i64", number))
    code.call(PREFIX + function.__name__, "i32", data, sizes, sizes.at(8))
    return made.load(value.kind)


def callers() -> Module:
    """A function for each numpy function with a loop, which calls the loop."""
    module = Module()
    for function, _ in FUNCTIONS.values():
        loop = _loop(function)
        if loop is None:
            continue
        with module.function(PREFIX + function.__name__, "i32", data="ptr", count="ptr", strides="ptr") as code:
            address, context, auxiliary = (
                code.pointer(code.const("i64", one)) for one in (loop.function, loop.context, loop.auxiliary)
            )
            code.return_(code.call_pointer(address, "i32", context, code.data, code.count, code.strides, auxiliary))
    return module
