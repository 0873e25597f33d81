"""Conversion of Python values to kernel arguments, and the rules for rejecting them.

`Converter` holds the rules for one parameter: it converts a value to what the parameter's struct code packs, or raises
LaunchError with the kernel, the parameter's number and type, and the value that was passed.

    pointer      DeviceArray of the pointed-to dtype, None (null), pinned numpy array, torch or CuPy array on this GPU
                 (any object with __cuda_array_interface__), or an explicit address: ctypes.c_void_p(address).
                 void* takes any dtype; char* int8 and uint8; float4* arrays of float32 at a multiple of 16 bytes.
                 The launch does not wait for work on another library's own streams: launch on its stream.
                 An array that is not C-contiguous is rejected, unless it is declared for a kernel that takes its
                 strides (`cudakit.strided`). Axes of length 1 and empty arrays may have any strides.
                 A negated or conjugated view of torch is rejected, because its memory holds other values.
    integer      int, numpy integer, bool (0 or 1) or IntEnum that fits; negative ones for signed parameters only.
                 Floats and numpy durations are rejected
    float        float, int or numpy float, rounded to the parameter's width (an int above 2**53 may change). A finite
                 value that would overflow is rejected; NaN and infinity are accepted, bool is not
    bool         bool or numpy bool
    float4 etc.  a sequence of as many numbers, each by the rules above, or a complex number for two; bytes as a struct
    CUtensorMap  cudakit.TensorMap, a CUtensorMap of cuda.bindings, or 128 bytes of one. The parameter must be declared
                 __grid_constant__, or the kernel's copy is in local memory, which tensor copies cannot read
    struct       numpy structured scalar, ctypes structure or union, or bytes (bytes, bytearray, memoryview of bytes),
                 of exactly its size. Numbers are rejected, whatever their size
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from cudakit.driver.context import Context
from cudakit.errors import LaunchError
from cudakit.launch.cxx import Type
from cudakit.launch.signature import Parameter
from cudakit.launch.strides import StridedArgument
from cudakit.launch.values import describe, is_bytes, is_integer, is_swapped, scalar_advice
from cudakit.memory import dlpack, layout, libraries, pinned
from cudakit.memory.array import DeviceArray
from cudakit.memory.libraries import Library
from cudakit.memory.tensor_map import TensorMap

_SIGNED = {1: "b", 2: "h", 4: "i", 8: "q"}
_FLOATS = {"float16": "e", "float32": "f", "float64": "d", "bfloat16": "H"}

_COMPLEX = {"float32": "complex64", "float64": "complex128"}
# The dtype that a pointer to a library's complex class takes; the layouts are equal.
_COMPLEX_CLASSES = {"complex<float>": "complex64", "complex<double>": "complex128"}


def struct_code(parameter: Parameter) -> str:
    """Return the struct module's code for a parameter's converted value."""
    kind = parameter.type
    if kind.kind in ("pointer", "bits"):
        return "Q"
    if kind.kind in ("int", "enum") and parameter.size in _SIGNED:
        code = _SIGNED[parameter.size]
        return code if kind.signed else code.upper()
    if kind.kind == "float" and kind.dtype in _FLOATS:
        return _FLOATS[kind.dtype]
    if kind.kind == "bool":
        return "?"
    return f"{parameter.size}s"


def pointer_dtypes(target: Type) -> tuple[str, ...] | None:
    """Return the dtype names that a pointer to `target` takes, the natural one first; None for any."""
    if target.kind == "void":
        return None
    if target.kind == "vector" and target.target is not None:
        component = target.target.dtype or ""
        paired = (_COMPLEX[component],) if target.lanes == 2 and component in _COMPLEX else ()
        return (component, *paired)
    if target.kind == "pointer":
        return ("uint64", "int64")
    if target.kind == "tensor map":
        return ("uint64", "void", "uint8")
    if target.text.removeprefix("const ").removeprefix("volatile ") == "char":
        return ("int8", "uint8")
    if target.dtype is not None:
        return (target.dtype,)
    for name, dtype in _COMPLEX_CLASSES.items():
        if target.text.endswith(name):
            return (dtype,)
    return ("void", "uint8")


class Converter:
    """The rules for one parameter of one kernel on one device. Call it with a value to convert it."""

    def __init__(self, kernel: str, parameter: Parameter, context: Context) -> None:
        self.kernel = kernel
        self.parameter = parameter
        self.context = context
        self.code = struct_code(parameter)
        self.dtypes: tuple[str, ...] | None = None
        self.alignment = 1
        target = parameter.type.target
        if parameter.kind == "pointer" and target is not None:
            self.dtypes = pointer_dtypes(target)
            if target.kind == "vector":
                # The largest power of two that divides the size, up to 16 bytes, the widest single access.
                self.alignment = min(target.size & -target.size, 16)
        convert = {
            "pointer": self._pointer,
            "bits": self._bits,
            "int": self._integer,
            "enum": self._integer,
            "float": self._float,
            "bool": self._bool,
            "vector": self._vector,
            "tensor map": self._tensor_map,
        }.get(parameter.kind, self._bytes)
        if self.code.endswith("s") and parameter.kind not in ("vector", "tensor map"):
            convert = self._bytes
        self._convert: Callable[[Any], Any] = convert

    def __call__(self, value: Any) -> Any:
        """Return the value that `code` packs. Raises LaunchError if the parameter does not take it."""
        return self._convert(value)

    def refuse(self, value: Any, advice: str) -> LaunchError:
        """Return the error for a rejected value."""
        return LaunchError(
            f"{self.kernel}: {self.parameter.label} is {self.parameter.text}, got {describe(value)}: {advice}"
        )

    # Pointers ---------------------------------------------------------------------------------------------------------

    def _pointer(self, value: Any) -> int:
        declared = isinstance(value, StridedArgument)
        if declared:
            value = value.array
        if isinstance(value, DeviceArray):
            self._expect_usable(value, value)
            self._match(value, value.dtype, value.readonly)
            if not (declared or value.is_contiguous):
                raise self._refuse_layout(value, value.shape, value.strides, "x.copy()")
            address = value.pointer
        elif isinstance(value, TensorMap):
            raise self.refuse(value, "declare the parameter `const __grid_constant__ CUtensorMap`, or pass the array")
        elif value is None:
            return 0
        elif isinstance(value, ctypes.c_void_p):
            return value.value or 0
        elif isinstance(value, np.ndarray):
            address = self._host(value, declared)
        elif (library := libraries.of(type(value), exact=False)) is not None and not library.described:
            address = self._foreign(library, value, declared)
        elif hasattr(value, "__cuda_array_interface__"):
            address = self._interface(value, declared)
        elif isinstance(value, (int, np.integer)):
            raise self.refuse(
                value, "an int is not accepted as an address; pass an array, or ctypes.c_void_p(address) if it is one"
            )
        else:
            raise self.refuse(value, "pass a DeviceArray, another library's array on this device, or None")
        if address % self.alignment:
            raise self.refuse(
                value,
                f"its address {address:#x} must be a multiple of {self.alignment} for {self.parameter.text}",
            )
        return address

    def _expect_usable(self, value: Any, array: DeviceArray) -> None:
        """Reject an argument whose array was closed, or is on a device that the kernel cannot access."""
        if array.closed:
            raise self.refuse(value, "it was closed and its memory freed; launch before close()")
        context = array.context
        if context is not self.context and not self.context.can_access(context):
            peers = context.driver is self.context.driver
            advice = "copy it, or call device.enable_peer(other) first" if peers else "copy it through the host"
            raise self.refuse(
                value,
                f"it is on {context.spec}, but the kernel is on {self.context.spec}"
                f"{context.told_apart(self.context)}; {advice}",
            )

    def _refuse_layout(self, array: Any, shape: Any, strides: Any, advice: str) -> LaunchError:
        """Return the error for an array that is not C-contiguous. advice: an expression for a contiguous copy."""
        return self.refuse(
            array,
            f"it is not contiguous (shape {tuple(shape)}, strides {tuple(strides)}), and a pointer parameter receives "
            f"no strides; pass {advice}, or cudakit.strided(x) if the kernel takes the strides as parameters",
        )

    def _match(self, array: Any, dtype: np.dtype[Any], read_only: bool = False) -> None:
        """Reject an array whose dtype or read-only state does not fit."""
        target = self.parameter.type.target
        if (
            self.dtypes is not None
            and dtype.name not in self.dtypes
            and not ("void" in self.dtypes and dtype.kind == "V")
        ):
            wanted = " or ".join("a structured dtype" if name == "void" else name for name in self.dtypes)
            raise self.refuse(array, f"the dtype must be {wanted}; convert the array, or change the kernel's parameter")
        if not dtype.isnative:
            raise self.refuse(array, f"its dtype {dtype.str} is not in native byte order; convert it with astype()")
        if read_only and target is not None and not target.const:
            raise self.refuse(array, "the array is read-only; declare the pointer const, or pass a writable copy")

    def _host(self, array: np.ndarray[Any, Any], declared: bool) -> int:
        if array.nbytes and not pinned.is_pinned(self.context, array):
            raise self.refuse(
                array,
                "it is in pageable host memory, which kernels cannot access; copy it to the device (device.array) or "
                "pin it (device.pinned)",
            )
        self._match(array, array.dtype, not array.flags.writeable)
        if not (declared or array.flags.c_contiguous):
            raise self._refuse_layout(array, array.shape, array.strides, "a contiguous pinned copy")
        return int(array.ctypes.data) if array.nbytes else 0

    def _need(self, kind: str, value: Any) -> None:
        if self.context.kind != kind:
            raise self.refuse(value, f"it is in GPU memory, but the kernel runs on {self.context.spec}; copy it first")

    def _foreign(self, library: Library, tensor: Any, declared: bool) -> int:
        device = library.read(library.device)(tensor)
        if device < 0:
            raise self.refuse(tensor, "it is in host memory; move it to the GPU first")
        self._need(library.kind, tensor)
        if device != self.context.ordinal:
            raise self.refuse(tensor, f"the kernel runs on {self.context.spec}; copy it there first")
        if self.dtypes is not None and library.dtype_name(library.read(library.dtype)(tensor)) not in self.dtypes:
            raise self.refuse(tensor, f"the dtype must be {' or '.join(self.dtypes)}; convert the tensor")
        if library.unresolved(tensor):
            raise self.refuse(
                tensor,
                "it is a lazily negated or conjugated view, so its memory holds other values; pass "
                "x.resolve_neg().resolve_conj()",
            )
        try:
            address = int(library.read(library.pointer)(tensor))
            contiguous = declared or library.read(library.contiguous)(tensor)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            raise self.refuse(tensor, f"it has no address ({why}); pass a dense tensor") from error
        if not contiguous:
            strides = library.read(library.strides)(tensor)
            advice = "cupy.ascontiguousarray(x)" if library.name == "cupy" else "x.contiguous()"
            raise self._refuse_layout(tensor, tensor.shape, strides, advice)
        return address

    def _interface(self, value: Any, declared: bool) -> int:
        self._need("gpu", value)
        interface = value.__cuda_array_interface__
        try:
            if interface.get("mask") is not None:
                raise self.refuse(value, "it is masked, which a pointer cannot express; apply the mask first")
            said = dlpack.take_interface(value, interface)
        except (AttributeError, BufferError, LookupError, TypeError, ValueError) as error:
            raise self.refuse(value, f"its __cuda_array_interface__ does not describe an array ({error!r})") from error
        self._match(value, said.dtype, said.readonly)
        if not (declared or layout.is_contiguous(said.shape, said.strides, said.dtype.itemsize)):
            raise self._refuse_layout(value, said.shape, said.strides, "a contiguous copy")
        address = said.pointer
        if address and not self.context.alone:
            attribute = self.context.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
            ordinal = self.context.call("cuPointerGetAttribute", attribute, address)
            if int(ordinal) != self.context.ordinal:
                raise self.refuse(
                    value, f"it is on gpu:{int(ordinal)}, but the kernel runs on {self.context.spec}; copy it there"
                )
        return address

    def _bits(self, value: Any) -> int:
        """Convert a value for 8 bytes of unknown type (extern "C"): an address or an integer."""
        if is_integer(value):
            number = int(value)
            if not -(2**63) <= number < 2**64:
                raise self.refuse(value, "it must fit 64 bits")
            return number % 2**64
        if isinstance(value, (float, np.generic)):
            if self.parameter.type.dtype == "any" and isinstance(value, (np.float64, np.void)) and value.nbytes == 8:
                return int.from_bytes(value.tobytes(), sys.byteorder)
            raise self.refuse(value, "pass an integer, an array or None")
        return self._pointer(value)

    # Numbers ----------------------------------------------------------------------------------------------------------

    def _integer(self, value: Any) -> int:
        if not (is_integer(value) or isinstance(value, np.bool_)):
            raise self.refuse(value, "pass an integer" + scalar_advice(value))
        number = int(value)
        bits = 8 * self.parameter.size
        signed = self.parameter.type.signed
        low = 0 if signed is False else -(2 ** (bits - 1))
        high = 2 ** (bits - 1) if signed else 2**bits
        if not low <= number < high:
            raise self.refuse(value, f"it must be in {low}..{high - 1}")
        return number % 2**bits if signed is None else number

    def _float(self, value: Any) -> Any:
        """Return the value as a Python float, or as a bfloat16's bits."""
        name = self.parameter.type.dtype
        small = isinstance(value, np.generic) and value.dtype.name == "bfloat16"
        taken = isinstance(value, (float, int, np.floating)) or small
        if not taken or isinstance(value, bool):
            raise self.refuse(value, "pass a float" + scalar_advice(value))
        try:
            number = float(value)
        except OverflowError as error:
            raise self.refuse(value, f"it is too large for {self.parameter.text}") from error
        if isinstance(value, np.longdouble) and np.isinf(number) and not np.isinf(value):
            raise self.refuse(value, f"it is too large for {self.parameter.text}")
        if name == "bfloat16":
            return self._bfloat16(value, number)
        with np.errstate(over="ignore"):
            rounded = float(np.dtype(name).type(number))
        if np.isinf(rounded) and not np.isinf(number):
            raise self.refuse(value, f"it is too large for {self.parameter.text}")
        return number

    def _bfloat16(self, value: Any, number: float) -> int:
        import ml_dtypes

        rounded = ml_dtypes.bfloat16(number)
        if np.isinf(float(rounded)) and not np.isinf(number):
            raise self.refuse(value, f"it is too large for {self.parameter.text}")
        return int.from_bytes(rounded.tobytes(), sys.byteorder)

    def _bool(self, value: Any) -> bool:
        if not isinstance(value, (bool, np.bool_)):
            raise self.refuse(value, "pass True or False")
        return bool(value)

    # Bytes ------------------------------------------------------------------------------------------------------------

    def _vector(self, value: Any) -> bytes:
        kind = self.parameter.type
        component = kind.target
        if component is None:
            return self._bytes(value)
        if kind.lanes == 2 and isinstance(value, (complex, np.complexfloating)):
            value = (value.real, value.imag)
        row = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind != "V"
        if row or (isinstance(value, ctypes.Array) and not is_bytes(value)):
            value = list(value)
        if isinstance(value, (tuple, list)):
            if len(value) != kind.lanes:
                raise self.refuse(value, f"{kind.lanes} values are needed, got {len(value)}")
            part = Parameter(self.parameter.index, component, 0, component.size, self.parameter.name)
            converter = Converter(f"{self.kernel} ({kind.text})", part, self.context)
            return struct.pack(f"={kind.lanes}{converter.code}", *map(converter, value))
        return self._bytes(value)

    def _tensor_map(self, value: Any) -> bytes:
        """Return the bytes of a tensor map."""
        if self.parameter.copied:
            raise LaunchError(
                f"{self.kernel}: {self.parameter.label} is {self.parameter.text}, which the kernel copies to local "
                "memory, but tensor copies cannot read it there: declare it `const __grid_constant__ CUtensorMap`"
            )
        if isinstance(value, TensorMap):
            self._expect_usable(value, value.array)
            return value.data
        if type(value).__name__ == "CUtensorMap" and hasattr(value, "getPtr"):
            return ctypes.string_at(value.getPtr(), self.parameter.size)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._bytes(value)
        raise self.refuse(
            value,
            "pass cudakit.TensorMap(array, box=...), or in a family's Launch cudakit.TensorMapSlot(p.x, box=...)",
        )

    def _bytes(self, value: Any) -> bytes:
        """Return the bytes of a struct passed by value."""
        size = self.parameter.size
        if isinstance(value, TensorMap):
            if self.parameter.text not in (f"struct of {len(value.data)} bytes", f"{len(value.data)} bytes"):
                raise self.refuse(value, "a tensor map goes to a parameter `const __grid_constant__ CUtensorMap`")
            return self._tensor_map(value)  # the parameter's class is not known
        if isinstance(value, (bytes, bytearray, ctypes.Structure, ctypes.Union)) or is_bytes(value):
            data = bytes(value)
        elif isinstance(value, np.void) or (
            isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind == "V"
        ):
            data = value.tobytes()
        else:
            numbers = "" if self.parameter.kind != "vector" else f"{self.parameter.type.lanes} numbers, "
            raise self.refuse(
                value, f"pass {numbers}a numpy structured scalar, a ctypes structure or bytes, of exactly {size} bytes"
            )
        if len(data) != size:
            raise self.refuse(value, f"got {len(data)} bytes, the parameter needs {size}")
        if is_swapped(value):
            raise self.refuse(value, "its numbers are not in native byte order; convert them first")
        return data
