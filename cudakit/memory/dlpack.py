"""DLPack and `__cuda_array_interface__`: exchange of arrays with torch, CuPy, numpy and others without a copy.

Capsules are made and read here with ctypes: versioned (1.0) if the consumer requests it, else unversioned.
Struct layouts: dlpack.h. Protocol rules: the Python array API standard, 2023.12.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudakit import system
from cudakit.memory import layout

CPU = 1
CUDA = 2
CUDA_HOST = 3
CUDA_MANAGED = 13

_MOST_AXES = 64  # the limit of numpy and torch

READ_ONLY = 1
COPIED = 2

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
# numpy's 16-byte "float" is the C compiler's long double, which no other library supports.
_SIZES = {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16), "b": (1,)}
_BFLOAT = 4
# The small floats have codes since DLPack 1.1; these are the names of ml_dtypes.
_SMALL_FLOATS = {
    "float8_e3m4": 7,
    "float8_e4m3": 8,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


# Capsules keep the address of their name, so the names must live as long as the module.
_NAME = b"dltensor"
_NAME_VERSIONED = b"dltensor_versioned"
_USED = b"used_dltensor"
_USED_VERSIONED = b"used_dltensor_versioned"

_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_api = system.python_library()
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_New.restype = ctypes.py_object
# A destructor receives a capsule whose reference count is zero, so ctypes must not take a reference: plain addresses.
_api.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_api.PyCapsule_GetPointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_SetName.argtypes = [ctypes.c_void_p, ctypes.c_char_p]

# The objects that exported capsules keep alive, by the address of their struct.
_exports: dict[int, tuple[Any, ...]] = {}


def _delete(address: int | None) -> None:
    if address is not None:
        kept = _exports.pop(address, None)
        del kept


def _destroy(capsule: int | None) -> None:
    # A capsule that no consumer took still owns its struct; a consumer renames the capsule it takes.
    for name in (_NAME, _NAME_VERSIONED):
        if _api.PyCapsule_IsValid(capsule, name):
            _delete(_api.PyCapsule_GetPointer(capsule, name))


_c_delete = _Deleter(_delete)
_c_destroy = _Destructor(_destroy)
# Never freed: consumers may call these after this module has been torn down.
for _callback in (_c_delete, _c_destroy):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))


@dataclass(frozen=True)
class ImportedArray:
    """An array of another library: its address, shape, strides (bytes), and the object that keeps it alive."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    readonly: bool
    device: tuple[int, int]
    owner: object


def data_type(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the DLPack (code, bits) of a dtype; BufferError if DLPack does not have the dtype."""
    bits = dtype.itemsize * 8
    if dtype.isbuiltin == 1 and dtype.isnative and dtype.itemsize in _SIZES.get(dtype.kind, ()):
        return _CODES[dtype.kind], bits
    if dtype.name == "bfloat16":
        return _BFLOAT, bits
    if dtype.name in _SMALL_FLOATS:
        return _SMALL_FLOATS[dtype.name], bits
    raise BufferError(f"DLPack has no data type for {dtype}; export a view of another dtype")


def numpy_dtype(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    """Return the numpy (or ml_dtypes) dtype of a DLPack one; BufferError if there is none."""
    if lanes == 1:
        for kind, number in _CODES.items():
            if code == number and bits // 8 in _SIZES[kind]:
                return np.dtype("?" if kind == "b" else f"{kind}{bits // 8}")
        name: str | None = "bfloat16" if (code, bits) == (_BFLOAT, 16) else None
        if bits == 8:
            name = next((known for known, number in _SMALL_FLOATS.items() if number == code), name)
        if name is not None:
            import ml_dtypes

            small = getattr(ml_dtypes, name, None)
            if small is not None:
                dtype: np.dtype[Any] = np.dtype(small)
                return dtype
    raise BufferError(f"numpy has no dtype for DLPack's code {code} with {bits} bits and {lanes} lanes")


def export(
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    device: tuple[int, int],
    owner: object,
    versioned: bool,
    flags: int = 0,
) -> Any:
    """Return a capsule over memory that `owner` keeps alive. strides: bytes; BufferError if not whole elements."""
    code, bits = data_type(dtype)
    itemsize = dtype.itemsize
    if any(stride % itemsize for extent, stride in zip(shape, strides, strict=True) if extent > 1):
        raise BufferError(
            f"strides {strides} are not whole elements of {dtype}, the unit of DLPack's strides; copy() the array first"
        )
    ndim = len(shape)
    extents = (ctypes.c_int64 * max(ndim, 1))(*shape)
    steps = (ctypes.c_int64 * max(ndim, 1))(*(stride // itemsize for stride in strides))
    managed: _Managed | _ManagedVersioned = _ManagedVersioned() if versioned else _Managed()
    tensor = managed.tensor
    tensor.data = pointer if 0 not in shape else None
    tensor.device.device_type, tensor.device.device_id = device
    tensor.ndim = ndim
    tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = code, bits, 1
    tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_c_delete, ctypes.c_void_p).value
    if isinstance(managed, _ManagedVersioned):
        managed.major, managed.minor, managed.flags = 1, 0, flags
    address = ctypes.addressof(managed)
    _exports[address] = (managed, extents, steps, owner)
    try:
        return _api.PyCapsule_New(
            address, _NAME_VERSIONED if versioned else _NAME, ctypes.cast(_c_destroy, ctypes.c_void_p).value
        )
    except BaseException:
        _delete(address)
        raise


class _Taken:
    """A struct taken from a capsule; its deleter is called after the last array over it is dropped."""

    def __init__(self, address: int, deleter: int | None) -> None:
        if deleter:
            finalizer = weakref.finalize(self, _Deleter(deleter), address)
            # At exit the producer may be torn down already, and the process's memory is freed anyway.
            finalizer.atexit = False


def take(exporter: Any, stream: int | None) -> ImportedArray:
    """Return the array that an object with `__dlpack__` exports.

    stream: the consumer's stream, as the protocol counts (1: legacy default), or None for an array in host memory.
    Raises the exporter's errors, BufferError for an array that numpy cannot describe, TypeError if the object does not
    export one.
    """
    named: dict[str, Any] = {} if stream is None else {"stream": stream}
    try:
        capsule = exporter.__dlpack__(max_version=(1, 0), **named)
    except TypeError:
        # Exporters older than the 2023.12 standard do not accept max_version.
        capsule = exporter.__dlpack__(**named)
    where = id(capsule)
    if _api.PyCapsule_IsValid(where, _NAME_VERSIONED):
        address = _api.PyCapsule_GetPointer(where, _NAME_VERSIONED)
        head = _ManagedVersioned.from_address(address)
        if head.major != 1:
            raise BufferError(
                f"{type(exporter).__name__} exports DLPack {head.major}.{head.minor}, but only 1.x is supported"
            )
        managed: Any = head
        readonly = bool(head.flags & READ_ONLY)
        _api.PyCapsule_SetName(where, _USED_VERSIONED)
    elif _api.PyCapsule_IsValid(where, _NAME):
        address = _api.PyCapsule_GetPointer(where, _NAME)
        managed = _Managed.from_address(address)
        readonly = False
        _api.PyCapsule_SetName(where, _USED)
    else:
        raise TypeError(
            f"{type(exporter).__name__}.__dlpack__() must return an unused DLPack capsule, got {type(capsule).__name__}"
        )
    # From here on the struct must be deleted by us, even if an error follows.
    owner = _Taken(address, managed.deleter)
    tensor = managed.tensor
    dtype = numpy_dtype(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
    if not 0 <= tensor.ndim <= _MOST_AXES:
        raise BufferError(f"{type(exporter).__name__} exports {tensor.ndim} axes; 0 to {_MOST_AXES} are supported")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    _expect_extents(exporter, shape)
    if tensor.strides:
        strides = tuple(tensor.strides[axis] * dtype.itemsize for axis in range(tensor.ndim))
    else:
        strides = layout.contiguous(shape, dtype.itemsize)
    pointer = (tensor.data or 0) + tensor.byte_offset
    device = (int(tensor.device.device_type), int(tensor.device.device_id))
    return ImportedArray(pointer, shape, strides, dtype, readonly, device, owner)


def _expect_extents(exporter: Any, shape: tuple[int, ...]) -> None:
    if min(shape, default=0) < 0:
        raise BufferError(f"{type(exporter).__name__} exports shape {shape}, which has a negative extent")


def take_interface(exporter: Any, description: dict[str, Any]) -> ImportedArray:
    """Return the array of a `__cuda_array_interface__`, with device (CUDA, -1). The caller waits for its "stream"."""
    if description.get("mask") is not None:
        raise BufferError(f"{type(exporter).__name__} has a mask, which device arrays do not support; apply it first")
    dtype = interface_dtype(description)
    shape = tuple(int(extent) for extent in description["shape"])
    _expect_extents(exporter, shape)
    strides = description.get("strides")
    strides = layout.contiguous(shape, dtype.itemsize) if strides is None else tuple(int(stride) for stride in strides)
    pointer, readonly = description["data"]
    return ImportedArray(int(pointer or 0), shape, strides, dtype, bool(readonly), (CUDA, -1), exporter)


def interface(
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: np.dtype[Any],
    readonly: bool,
    stream: int,
) -> dict[str, Any]:
    """Return a `__cuda_array_interface__`, version 3. strides: bytes, None if contiguous. stream: to wait for.

    Raises AttributeError for a dtype that the interface does not have.
    """
    if dtype.kind == "V" and dtype.names is None:
        raise AttributeError(f"__cuda_array_interface__ has no name for {dtype}; use DLPack")
    description: dict[str, Any] = {
        "shape": shape,
        "typestr": dtype.str,
        "data": (pointer, readonly),
        "version": 3,
        "strides": strides,
        "stream": stream,
    }
    if dtype.names is not None:
        description["descr"] = dtype.descr
    return description


def interface_dtype(description: dict[str, Any]) -> np.dtype[Any]:
    """Return the dtype of an array interface: its `descr` for structured types, else its `typestr`."""
    typestr: Any = description["typestr"]
    descr = description.get("descr")
    if typestr[1:2] == "V" and descr and (len(descr) > 1 or descr[0][0]):
        typestr = descr
    dtype: np.dtype[Any] = np.dtype(typestr)
    return dtype
