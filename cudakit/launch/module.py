"""Module: a compiled source loaded on a device, with its kernels by name and its variables as arrays.

module = Module(context, compiled)
kernel = module["tree_reduce"]
kernel.launch(stream, grid=rows, block=256, shared=1024, args=(x, y, rows, cols))
"""

from __future__ import annotations

import collections
import difflib
import functools
import re
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cudakit.compile.compiler import Compiled, Resources
from cudakit.driver.context import Context
from cudakit.driver.stream import LEGACY_DEFAULT, Stream
from cudakit.errors import CudaError, CudakitError
from cudakit.launch import definitions
from cudakit.launch.cxx import Type
from cudakit.launch.image import Image
from cudakit.launch.kernel import Kernel
from cudakit.launch.mangling import Signature, demangle
from cudakit.launch.signature import PtxParameter, ptx_entries
from cudakit.memory import array as memory
from cudakit.memory import makers
from cudakit.memory.allocation import Allocation
from cudakit.memory.array import DeviceArray

# Dtypes of the PTX types of variables that are plain numbers. Arrays and structs are byte arrays in PTX.
_PTX_DTYPES = {
    "u8": "uint8", "s8": "int8", "u16": "uint16", "s16": "int16", "u32": "uint32", "s32": "int32",
    "u64": "uint64", "s64": "int64", "f16": "float16", "f32": "float32", "f64": "float64",
}  # fmt: skip
_C_DTYPES = {
    "bool": "bool", "char": "int8", "signed char": "int8", "unsigned char": "uint8", "short": "int16",
    "unsigned short": "uint16", "int": "int32", "unsigned": "uint32", "unsigned int": "uint32", "long": "int64",
    "unsigned long": "uint64", "long long": "int64", "unsigned long long": "uint64", "float": "float32",
    "double": "float64", "__half": "float16", "half": "float16", "__nv_bfloat16": "bfloat16",
    "int8_t": "int8", "uint8_t": "uint8", "int16_t": "int16", "uint16_t": "uint16", "int32_t": "int32",
    "uint32_t": "uint32", "int64_t": "int64", "uint64_t": "uint64", "size_t": "uint64",
    "float2": "float32", "float3": "float32", "float4": "float32", "int2": "int32", "int4": "int32",
}  # fmt: skip


class UnknownName(CudakitError, KeyError):
    """A module has no kernel or variable of that name, or more than one; the text lists the candidates."""

    def __str__(self) -> str:
        return str(self.args[0])


def _compact(name: str) -> str:
    """Return a C++ name without insignificant spaces and a leading void."""
    return re.sub(r"\s*([<>,()*&])\s*", r"\1", name.strip()).removeprefix("void ")


_MACHINE_CODE = (b"\x7fELF", b"\x50\xed\x55\xba")  # the first bytes of a cubin, and of a fat binary
_JIT_LOG = 16384  # bytes


@dataclass(frozen=True)
class ObjectCode:
    """The output of another compiler: PTX text, or machine code (a cubin or fat binary); the other field is empty."""

    name: str
    ptx: str = ""
    cubin: bytes = b""
    log: str = ""
    source: str = ""
    lowered: dict[str, str] = field(default_factory=dict)
    resources: dict[str, Resources] = field(default_factory=dict)
    types: dict[str, tuple[Type, ...]] = field(default_factory=dict)  # parameter types per kernel, if known

    def __repr__(self) -> str:
        return f"ObjectCode({self.name!r}: {len(self.ptx)} bytes of PTX, {len(self.cubin)} of machine code)"


def object_code(image: str | bytes, name: str) -> ObjectCode:
    """Return `image` (PTX as text or bytes, or machine code) as ObjectCode. Raises ValueError for anything else."""
    if isinstance(image, bytes) and image.startswith(_MACHINE_CODE):
        return ObjectCode(name, cubin=image)
    try:
        text = image if isinstance(image, str) else image.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        text = ""
    if ".version" not in text:
        raise ValueError(f"{name} must be PTX (it has no .version line), a cubin or a fat binary")
    return ObjectCode(name, ptx=text)


class Module(Image):
    """A loaded module. `module["name"]` is a kernel; `constant` and `variable` return arrays over its memory.

    Made by `Device.compile` and `Device.load`.

    Attributes:
        name: The source's path or label.
        compiled: The compile's result, or the object code that was loaded.
        ptx: The PTX text; "" if it was loaded from machine code.
        cubin: The machine code; b"" if there is only PTX.
        log: The compiler's log.
    """

    def __init__(self, context: Context, compiled: Compiled | ObjectCode) -> None:
        image = compiled.cubin
        if context.kind == "sim":
            if not compiled.ptx:
                raise CudakitError(
                    f"{compiled.name} is machine code for GPUs, but {context.spec} runs PTX; pass the PTX it was made "
                    "from"
                )
            context.make_current()
            if isinstance(compiled, Compiled):
                # Lets reports quote source that has no file.
                context.driver.simSource(compiled.name, compiled.source)
        if context.kind == "sim" or not image:
            image = compiled.ptx.encode() + b"\0"
        if isinstance(compiled, ObjectCode):
            self.again = "load"
        try:
            super().__init__(context, compiled.name, image)
        except CudaError as error:
            if context.kind == "sim" or compiled.cubin or type(error) is not CudaError:
                raise
            raise _explained(error, context, image) from None
        self.compiled = compiled
        self.ptx = compiled.ptx
        self.cubin = compiled.cubin
        self.log = compiled.log
        self._entries: dict[str, tuple[PtxParameter, ...] | None] = {**ptx_entries(compiled.ptx)}
        if not compiled.ptx:
            self._entries = dict.fromkeys(self._names())
        self._signatures = {mangled: _signature(mangled) for mangled in self._entries}
        self._variables = {space: _ptx_variables(compiled.ptx, space) for space in ("const", "global")}
        self._kernels: dict[str, Kernel] = {}
        self._by_name: dict[str, Kernel] = {}
        self._lock = threading.Lock()
        self._taken: weakref.WeakSet[Allocation] = weakref.WeakSet()

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unload it after the work that uses it is done. Its kernels and arrays are then unusable. Idempotent."""
        super().close()
        for allocation in self.variables:
            allocation.close()

    def _names(self) -> list[str]:
        """Return the names of the kernels that the driver reports."""
        count = self.context.call("cuModuleGetFunctionCount", self.handle)
        handles = self.context.call("cuModuleEnumerateFunctions", count, self.handle)
        names = [self.context.call("cuFuncGetName", handle) for handle in handles]
        return sorted(name.decode() for name in names)

    # Kernels ----------------------------------------------------------------------------------------------------------

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels, in the order of the source; those not found in the source are in the order of PTX."""
        return tuple(self._kernel(mangled) for mangled in self._ordered)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the kernels, in the order of `kernels`; overloads have their full signature."""
        names = {mangled: self._signatures[mangled].name for mangled in self._ordered}
        often = collections.Counter(names.values())
        return iter([name if often[name] == 1 else self._signatures[one].text for one, name in names.items()])

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return True  # also without kernels, so that `if module` tests for None only

    @functools.cached_property
    def _ordered(self) -> list[str]:
        """The mangled names of the kernels, in the order of the source."""
        asked = {mangled: place for place, mangled in enumerate(self.compiled.lowered.values())}
        places = definitions.positions(self.compiled.source)
        end = len(self.compiled.source)

        def key(mangled: str) -> tuple[int, int]:
            base = self._signatures[mangled].base
            place = places.get(base, places.get(definitions.last_name(base), end))
            return place, asked.get(mangled, 0)

        return sorted(self._entries, key=key)

    def kernel_of(self, handle: Any) -> Kernel | None:
        """Return the kernel of a driver's function, if it was looked up before; else None."""
        for kernel in list(self._kernels.values()):
            if int(kernel.handle) == int(handle):
                return kernel
        return None

    def __getitem__(self, name: str) -> Kernel:
        """Return a kernel by name.

        Args:
            name: A C++ name if it is unique ("k", "ns::k"); a name expression or name with template arguments ("k<4>",
                "ns::k<4>"); a full signature ("k(float*, int)"); or a mangled name.

        Raises:
            UnknownName: If there is no such kernel, or several.
        """
        kernel = self._by_name.get(name)
        if kernel is None:
            kernel = self._by_name[name] = self._kernel(self._lookup(name))
        return kernel

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        try:
            self._lookup(name)
        except UnknownName:
            return False
        return True

    def _lookup(self, name: str) -> str:
        """Return the mangled name of the kernel that `name` refers to."""
        lowered = self.compiled.lowered.get(name)
        if lowered in self._entries:
            return lowered
        if name in self._entries:
            return name
        wanted = _compact(name)
        for expression, lowered in self.compiled.lowered.items():
            if lowered in self._entries and _compact(expression) == wanted:
                return lowered
        matches: list[str] = []
        for spell in _SPELLINGS:
            matches = [
                mangled for mangled, signature in self._signatures.items() if _compact(spell(signature)) == wanted
            ]
            if len(matches) == 1:
                return matches[0]
            if matches:
                break
        raise self._unknown(name, matches)

    def _unknown(self, name: str, matches: list[str]) -> UnknownName:
        if matches:
            listed = "; ".join(self._signatures[mangled].text for mangled in matches)
            return UnknownName(f"{name!r} is the name of several kernels of {self.name}: {listed}. Use the full text")
        if not self._entries and isinstance(self.compiled, ObjectCode):
            return UnknownName(f"{self.name} has no kernel {name!r}: it has no kernels at all")
        if not self._entries:
            return UnknownName(
                f"{self.name} has no kernel {name!r}: it has no kernels at all. A template is only compiled if it is "
                'named: compile(..., names=("k<4>",))'
            )
        texts = [signature.text for signature in self._signatures.values()]
        spellings: dict[str, str] = {}
        for signature in self._signatures.values():
            for spell in _SPELLINGS:
                spellings.setdefault(spell(signature), signature.text)
        near = dict.fromkeys(spellings[close] for close in difflib.get_close_matches(name, spellings, n=3, cutoff=0.5))
        advice = f"Similar: {'; '.join(near)}" if near else f"It has: {'; '.join(texts)}"
        if "<" in name and isinstance(self.compiled, Compiled):
            advice += f'. A template is only compiled if it is named: compile(..., names=("{name}",))'
        return UnknownName(f"{self.name} has no kernel {name!r}. {advice}")

    def _kernel(self, mangled: str) -> Kernel:
        with self._lock:
            kernel = self._kernels.get(mangled)
            if kernel is None:
                self.expect_open()
                name, resources = self._signatures[mangled].name, self.compiled.resources.get(mangled)
                types = self.compiled.types.get(mangled) if isinstance(self.compiled, ObjectCode) else None
                kernel = self._kernels[mangled] = Kernel(
                    self, mangled, name, self._entries[mangled], resources, types, self.compiled.source
                )
        return kernel

    # Variables --------------------------------------------------------------------------------------------------------

    def constant(self, name: str, dtype: Any = None, stream: Any = None) -> DeviceArray:
        """Return the `__constant__` variable `name` as an array; fill it with `copy_from`.

        Events order the copy before launches on another stream, as for any array.

        Args:
            name: "table", "ns::table", or its last part alone if that is unique.
            dtype: The elements' dtype; needed only if neither PTX nor the source's text shows it.
            stream: The array's home stream; the legacy default stream if None.

        Returns:
            A 1-D array, or a 0-D one for a single number.

        Raises:
            UnknownName: If there is no such variable, or several.
            ValueError: If the dtype is unknown, or does not divide the variable's size.
        """
        return self._global("const", name, dtype, stream)

    def variable(self, name: str, dtype: Any = None, stream: Any = None) -> DeviceArray:
        """Return the `__device__` variable `name` as an array; everything else is as for `constant`.

        Args:
            name: "table", "ns::table", or its last part alone if that is unique.
            dtype: The elements' dtype; needed only if neither PTX nor the source's text shows it.
            stream: The array's home stream; the legacy default stream if None.
        """
        return self._global("global", name, dtype, stream)

    @property
    def variables(self) -> tuple[Allocation, ...]:
        """The memory of those variables that arrays were made over."""
        return tuple(self._taken)

    def _global(self, space: str, name: str, dtype: Any, stream: Any) -> DeviceArray:
        self.expect_open()
        # a cubin has no variable types
        declared = self._variables[space] if self.ptx else {name: ("b8", True)}
        mangled = self.compiled.lowered.get(name, self.compiled.lowered.get(f"&{name}", name))
        if mangled not in declared:
            spelled = {_signature(known).name: known for known in declared}
            kind = "__constant__" if space == "const" else "__device__"
            if name not in spelled:
                near = [full for full in spelled if full.rpartition("::")[2] == name]
                if len(near) > 1:
                    raise UnknownName(
                        f"{name!r} is the name of several {kind} variables of {self.name}: {', '.join(near)}. Use the "
                        "full name"
                    )
                name = near[0] if near else name
            if name not in spelled:
                there = ", ".join(spelled) or "none"
                raise UnknownName(
                    f"{self.name} has no {kind} variable {name!r}; it has: {there}. The compiler may omit an unused "
                    f'variable unless it is named: compile(..., names=("&{name}",))'
                )
            mangled = spelled[name]
        pointer, size = self.context.call("cuModuleGetGlobal", self.handle, mangled.encode())
        element = memory.as_dtype(dtype) if dtype is not None else self._dtype(name, declared[mangled])
        if element is None:
            raise ValueError(f"{name} of {self.name} has {int(size)} bytes of unknown type; pass its dtype")
        if int(size) % element.itemsize:
            raise ValueError(f"{name} of {self.name} has {int(size)} bytes, not a multiple of {element}'s size")
        count = int(size) // element.itemsize
        shape = () if count == 1 and not declared[mangled][1] else (count,)
        on = Stream(self.context, handle=LEGACY_DEFAULT) if stream is None else stream
        made = makers.over(self.context, on, int(pointer), shape, element, owner=self)
        self._taken.add(made.allocation)
        return made

    def _dtype(self, name: str, declared: tuple[str, bool]) -> np.dtype[Any] | None:
        """Return a variable's dtype, from the source's declaration or from PTX; None if neither shows it."""
        short = name.rpartition("::")[2]
        kinds = "|".join(sorted(map(re.escape, _C_DTYPES), key=len, reverse=True))
        match = re.search(rf"\b({kinds})\s+(?:{re.escape(short)})\b\s*[\[=;{{,]", self.compiled.source)
        if match:
            return memory.as_dtype(_C_DTYPES[match[1]])
        known = _PTX_DTYPES.get(declared[0])
        return np.dtype(known) if known is not None and not declared[1] else None


def _explained(error: CudaError, context: Context, ptx: bytes) -> CudaError:
    """Return the driver's error for rejected PTX, with the messages of its compiler."""
    driver = context.driver
    log = bytearray(_JIT_LOG)
    options = driver.CUjit_option
    names = [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    with context.relaxed():
        driver.cuModuleLoadDataEx(ptx, len(names), names, [log, len(log)])
    said = log.partition(b"\0")[0].decode(errors="replace").strip()
    text = f"{error.text}\n{said}" if said else error.text
    return CudaError(error.routine, error.code, error.name, text, error.hint)


def _signature(mangled: str) -> Signature:
    return demangle(mangled) or Signature(mangled, mangled, None)


def _ptx_variables(ptx: str, space: str) -> dict[str, tuple[str, bool]]:
    """Return the variables of a PTX state space: mangled name to (PTX type, whether it is an array)."""
    pattern = re.compile(
        rf"^\s*(?:\.visible\s+|\.weak\s+|\.extern\s+|\.common\s+)*\.{space}\s+(?:\.attribute\([^)]*\)\s+)?"
        r"(?:\.align\s+\d+\s+)?\.(\w+)\s+([\w$]+)\s*(\[)?",
        re.MULTILINE,
    )
    return {name: (kind, bool(array)) for kind, name, array in pattern.findall(ptx) if "$str" not in name}


def _full(signature: Signature) -> str:
    return signature.text


def _named(signature: Signature) -> str:
    return signature.name


def _based(signature: Signature) -> str:
    return signature.base


def _last_named(signature: Signature) -> str:
    """Return the last component with its template arguments: "k<4>" of "ns::k<4>"."""
    outer = signature.base.rpartition("::")
    return signature.name.removeprefix(outer[0] + outer[1])


def _last(signature: Signature) -> str:
    return signature.base.rpartition("::")[2]


# The ways to name a kernel, most exact first.
_SPELLINGS = (_full, _named, _based, _last_named, _last)
