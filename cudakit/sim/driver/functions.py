"""Driver calls about modules and functions."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, field
from typing import Any

from cuda.bindings import driver as cu

from cudakit.sim.chips.occupancy import max_threads
from cudakit.sim.chips.properties import Chip
from cudakit.sim.driver.arguments import Handle, member, name_bytes, signed, unsigned
from cudakit.sim.driver.faults import CallError, Result, caller
from cudakit.sim.driver.fills import FillCalls
from cudakit.sim.driver.objects import Context
from cudakit.sim.driver.state import call
from cudakit.sim.lockstep.report import Origin
from cudakit.sim.machine.loading import LoadedFunction, LoadedModule
from cudakit.sim.ptx.ir import PtxError, UnsupportedPtx

_ATTRIBUTE = cu.CUfunction_attribute
_CLUSTER_SETTINGS = range(
    int(_ATTRIBUTE.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH),
    int(_ATTRIBUTE.CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE) + 1,
)
_REQUIRED_CLUSTER = (
    _ATTRIBUTE.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
    _ATTRIBUTE.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT,
    _ATTRIBUTE.CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH,
)


@dataclass(eq=False)
class Module:
    """A loaded module."""

    handle: int
    context: Context
    loaded: LoadedModule
    place: Origin
    functions: dict[str, Function] = field(default_factory=dict)


@dataclass(eq=False)
class Function:
    """A kernel and its attributes. ``registers`` and ``local_bytes`` are the compiler's figures if simSetResources has
    set them. ``labels`` are the names of its parameters in reports; ``pointers``: which parameters may be addresses.
    """

    handle: int
    module: Module
    loaded: LoadedFunction
    chip: Chip
    registers: int
    local_bytes: int
    max_dynamic: int
    settings: dict[int, int] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    pointers: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        self.labels = tuple(f"parameter {number}" for number in range(len(self.loaded.params)))
        self.pointers = tuple(size == 8 for _, size in self.loaded.params)

    @property
    def max_threads(self) -> int:
        return min(self.loaded.max_threads, max_threads(self.chip, self.registers))


UNSUPPORTED_HINT = (
    "The simulated device does not support this yet: run it on a GPU, or use other code for the simulated device."
)


class FunctionCalls(FillCalls):
    """cuModule*, cuFunc*."""

    _sources: dict[str, str]

    # ---- modules ----

    @call(1)
    def cuModuleLoadData(self, image: Any) -> Any:
        return self._load(image)

    @call(1)
    def cuModuleLoadDataEx(self, image: Any, numOptions: int, options: Any, optionValues: Any) -> Any:
        return self._load(image)

    def _load(self, image: Any) -> Any:
        data = _image_bytes(image)
        if data[:4] == b"\x7fELF" or data[:4] == b"\x50\xed\x55\xba":
            raise CallError(
                Result.CUDA_ERROR_NO_BINARY_FOR_GPU,
                "the image is machine code (a cubin or fat binary); the simulated device runs PTX: pass PTX",
            )
        context = self._context()
        try:
            text = data.split(b"\0")[0].decode("utf-8")
            self._check_target(text, context.device.chip)
            loaded = LoadedModule(text, self._space, self._sources.get)
        except UnicodeDecodeError as error:
            raise CallError(Result.CUDA_ERROR_INVALID_IMAGE, f"the image is neither PTX nor a cubin: {error}") from None
        except UnsupportedPtx as error:
            raise CallError(Result.CUDA_ERROR_INVALID_PTX, str(error), UNSUPPORTED_HINT) from None
        except PtxError as error:
            raise CallError(Result.CUDA_ERROR_INVALID_PTX, str(error)) from None
        module = Module(self._new_handle(), context, loaded, caller())
        self._objects[module.handle] = context.modules[module.handle] = module
        return cu.CUmodule(module.handle)

    @staticmethod
    def _check_target(text: str, chip: Chip) -> None:
        """Raise CallError if the PTX is for another chip: a newer one, or with chip-specific features ("sm_90a")."""
        target = next((line.split()[1].rstrip(",") for line in text.splitlines() if line.startswith(".target")), "")
        if not re.fullmatch(r"sm_\d+[af]?", target) or chip.runs(target):
            return  # the parser reports an unknown target
        why = "" if target[-1:].isdigit() else ", because a target with a letter runs only on the chips that it names"
        raise CallError(
            Result.CUDA_ERROR_INVALID_PTX,
            f"PTX for {target} does not run on {chip.arch}{why}: compile it for {chip.arch}, or use a {target}",
        )

    def _module(self, handle: Handle) -> Module:
        module = self._object(handle, Module, "a module")
        self._usable(module.context)
        return module

    def _unload(self, loaded: Any) -> None:
        for function in loaded.functions.values():
            self._objects.pop(function.handle, None)
        self._objects.pop(loaded.handle, None)
        loaded.context.modules.pop(loaded.handle, None)
        loaded.loaded.close()
        for address in [a for a, m in self._memory.items() if not m.allocation.live]:
            del self._memory[address]  # its variables
        self._variables = {a: m for a, m in self._variables.items() if m.allocation.live}

    @call()
    def cuModuleUnload(self, hmod: Handle) -> None:
        module = self._module(hmod)
        # queued kernels still need the module, so the driver waits for them
        self._finish_context(module.context)
        self._unload(module)

    @call(1)
    def cuModuleGetFunction(self, hmod: Handle, name: bytes) -> Any:
        return cu.CUfunction(self._function_named(self._module(hmod), name_bytes(name)).handle)

    def _function_named(self, module: Module, name: str) -> Function:
        function = module.functions.get(name)
        if function is None:
            loaded = module.loaded.functions.get(name)
            if loaded is None:
                known = ", ".join(sorted(module.loaded.functions)) or "none"
                raise CallError(Result.CUDA_ERROR_NOT_FOUND, f"no kernel {name!r} in this module, which has {known}")
            chip = module.context.device.chip
            function = Function(
                self._new_handle(),
                module,
                loaded,
                chip,
                min(loaded.registers, chip.max_registers_per_thread),
                loaded.local_bytes,
                max(chip.shared_per_block - loaded.static_shared, 0),
            )
            module.functions[name] = self._objects[function.handle] = function
        return function

    @call(2)
    def cuModuleGetGlobal(self, hmod: Handle, name: bytes) -> tuple[Any, int]:
        module = self._module(hmod)
        try:
            found = module.loaded.globals.get(name_bytes(name))
        except UnsupportedPtx as error:
            raise CallError(Result.CUDA_ERROR_NOT_SUPPORTED, str(error), UNSUPPORTED_HINT) from None
        if found is None:
            known = ", ".join(sorted(module.loaded.globals)) or "none"
            raise CallError(
                Result.CUDA_ERROR_NOT_FOUND, f"no variable {name_bytes(name)!r} in this module; it has {known}"
            )
        address, size = found
        self._memory[address] = self._variable(address, module.context)
        return cu.CUdeviceptr(address), size

    @call(1)
    def cuModuleGetFunctionCount(self, mod: Handle) -> int:
        return len(self._module(mod).loaded.functions)

    @call(1)
    def cuModuleEnumerateFunctions(self, numFunctions: int, mod: Handle) -> list[Any]:
        module = self._module(mod)
        names = list(module.loaded.functions)[: unsigned(numFunctions)]
        return [cu.CUfunction(self._function_named(module, name).handle) for name in names]

    @call(1, context=False)
    def cuModuleGetLoadingMode(self) -> Any:
        return cu.CUmoduleLoadingMode.CU_MODULE_EAGER_LOADING

    # ---- functions ----

    def _function(self, handle: Handle) -> Function:
        function = self._object(handle, Function, "a function")
        self._usable(function.module.context)
        return function

    @call(context=False)
    def cuFuncLoad(self, function: Handle) -> None:
        self._function(function)

    @call(1, context=False)
    def cuFuncIsLoaded(self, function: Handle) -> Any:
        self._function(function)
        return cu.CUfunctionLoadingState.CU_FUNCTION_LOADING_STATE_LOADED

    @call(1, context=False)
    def cuFuncGetName(self, hfunc: Handle) -> bytes:
        return self._function(hfunc).loaded.name.encode()

    @call(1, context=False)
    def cuFuncGetModule(self, hfunc: Handle) -> Any:
        return cu.CUmodule(self._function(hfunc).module.handle)

    @call(2, context=False)
    def cuFuncGetParamInfo(self, func: Handle, paramIndex: int) -> tuple[int, int]:
        function = self._function(func)
        index = unsigned(paramIndex, 64)
        if index >= len(function.loaded.params):
            raise CallError(
                Result.CUDA_ERROR_INVALID_VALUE,
                f"parameter {index} does not exist: the kernel has {len(function.loaded.params)} (from 0)",
            )
        return function.loaded.params[index]

    @call(1)
    def cuFuncGetAttribute(self, attrib: Any, hfunc: Handle) -> int:
        function = self._function(hfunc)
        major, minor = function.chip.capability
        values = {
            _ATTRIBUTE.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: function.max_threads,
            _ATTRIBUTE.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: function.loaded.static_shared,
            _ATTRIBUTE.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: function.local_bytes,
            _ATTRIBUTE.CU_FUNC_ATTRIBUTE_NUM_REGS: function.registers,
            _ATTRIBUTE.CU_FUNC_ATTRIBUTE_PTX_VERSION: 10 * major + minor,
            _ATTRIBUTE.CU_FUNC_ATTRIBUTE_BINARY_VERSION: 10 * major + minor,
            _ATTRIBUTE.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: function.max_dynamic,
            _ATTRIBUTE.CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: int(function.loaded.cluster_must_be_set),
        }
        if function.loaded.required_cluster is not None:
            values.update(zip(_REQUIRED_CLUSTER, function.loaded.required_cluster, strict=True))
        number = int(attrib)
        for key, value in values.items():
            if int(key) == number:
                return value
        member(_ATTRIBUTE, attrib, "function attribute")
        carveout = int(_ATTRIBUTE.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
        return function.settings.get(number, -1 if number == carveout else 0)

    @call()
    def cuFuncSetAttribute(self, hfunc: Handle, attrib: Any, value: int) -> None:
        function, number, value = self._function(hfunc), int(attrib), signed(value)
        if number == int(_ATTRIBUTE.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES):
            most = function.chip.shared_per_block_optin - function.loaded.static_shared
            if not 0 <= value <= most:
                raise CallError(
                    Result.CUDA_ERROR_INVALID_VALUE,
                    f"{value} bytes of dynamic shared memory; at most {most} are allowed",
                )
            function.max_dynamic = value
        elif number == int(_ATTRIBUTE.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT):
            if not -1 <= value <= 100:
                raise CallError(
                    Result.CUDA_ERROR_INVALID_VALUE, f"the carveout must be a percentage or -1, got {value}"
                )
            function.settings[number] = value
        elif number in _CLUSTER_SETTINGS:
            function.settings[number] = value
        else:
            raise CallError(Result.CUDA_ERROR_INVALID_VALUE, f"{attrib!r} cannot be set")

    @call()
    def cuFuncSetCacheConfig(self, hfunc: Handle, config: Any) -> None:
        self._function(hfunc)


def _image_bytes(image: Any) -> bytes:
    """The bytes of a module image: an object with a buffer, or the address of text that ends with a zero byte."""
    if isinstance(image, str):
        raise TypeError("a module image must be bytes, got str")
    if image is None:
        raise CallError(Result.CUDA_ERROR_INVALID_VALUE, "the image is None")
    if isinstance(image, int):
        return ctypes.string_at(image)
    return bytes(image)
