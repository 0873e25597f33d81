"""Compiles LLVM IR with llvmlite, or loads the machine code that an earlier process kept. Importing this module
requires llvmlite."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from cudakit.sim.compiled import kept_code, measured
from cudakit.sim.compiled.ir import Module
from cudakit.sim.compiled.numpy_loops import PREFIX, callers
from cudakit.sim.compiled.runtime import runtime

RUN_BLOCKS = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
# lines of a module above which code generation is not optimised: LLVM's time grows faster than the code
_LARGE = 20_000


@cache
def _host() -> tuple[Any, str, str]:
    """This machine's target, processor and features."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def converts_halves() -> bool:
    """Whether the processor converts between f16 and f32."""
    _host()
    return bool(llvm.get_host_cpu_features().get("f16c"))


# A choice of bits by a constant mask: (a & mask) | (b & ~mask). If lanes of a or b are then kept by a condition, LLVM
# generates wrong code of AVX-512 (llvm/llvm-project issue 157929), in this version and those before.
_FAULTY = (22, 1, 0)
_AND = re.compile(r" = and (<\d+ x i\d+>) \S+, (?:splat \()?(.*)")


def _chooses_bits(text: str) -> bool:
    """Whether optimised code may choose bits by constant masks of vectors."""
    if "@llvm.copysign" in text:
        return True
    masks = {(kind, tuple(map(int, re.findall(r"i\d+ (-?\d+)", values)))) for kind, values in _AND.findall(text)}
    return any((kind, tuple(~value for value in values)) in masks for kind, values in masks if values)


@cache
def _runtime() -> Module:
    return runtime()


@cache
def _circumstances() -> str:
    """A digest of this processor, LLVM and the runtime: machine code depends on them and on the text of its module."""
    host, cpu, features = _host()
    parts = (host.triple, cpu, features, llvmlite.__version__, str(llvm.llvm_version_info), _runtime().text())
    return kept_code.name_of(*parts)


def kept(name: str, module: Module) -> bytes | None:
    """The machine code of a module that an earlier process kept under a name; None if there is none."""
    return kept_code.read(name, _circumstances() + module.text())


class Machine:
    """The machine code of a module, held as long as this object."""

    def __init__(self, module: Module, name: str = "", *, speed: int) -> None:
        """``name``: that of its file in the store of machine code, "" if it is not kept; ``speed``: LLVM's level of
        optimisation."""
        if any(declared.startswith(PREFIX) for declared in module.declared):
            _link_numpy()
        for declared in module.declared:
            if declared.startswith(measured.PREFIX):
                _link_table(declared)
        code = kept(name, module) if name else None
        if code is None:
            text = module.text()
            code = _compile(text, 0 if module.lines() > _LARGE else 2, speed)
            if name:
                kept_code.write(name, _circumstances() + text, code)
        # one target machine per module: the execution engine owns it, and frees it
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target(2))
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        found: int = self._engine.get_function_address(name)
        return found


def _target(level: int, more: str = "") -> Any:
    """This processor as a target of LLVM. ``level``: how far code generation optimises, 0 to 3; ``more``: features."""
    host, cpu, features = _host()
    return host.create_target_machine(cpu=cpu, features=features + more, opt=level)


def _compile(text: str, level: int, speed: int) -> bytes:
    """The object file of a module. ``level``: how far code generation optimises, 0 to 3."""
    parsed = llvm.parse_assembly(text)
    parsed.verify()
    target = _target(level)
    options = llvm.create_pipeline_tuning_options(speed_level=speed)
    # the code is in vectors already, and loops over them are not faster if they are unrolled
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(target, options)
    builder.getModulePassManager().run(parsed, builder)
    if llvm.llvm_version_info <= _FAULTY and "+avx512f" in _host()[2] and _chooses_bits(str(parsed)):
        target = _target(level, ",-avx512f")
    code: bytes = target.emit_object(parsed)
    return code


@cache
def shared_machine() -> Machine:
    """The machine code of the runtime; kernels find its functions by their names."""
    return _linked(_runtime(), Machine(_runtime(), kept_code.name_of("runtime", _circumstances()), speed=2))


@cache
def _link_numpy() -> Machine:
    """The functions that call numpy's loops."""
    module = callers()
    return _linked(module, Machine(module, speed=1))


@cache
def _link_table(name: str) -> Machine:
    """The function that returns the address of a table."""
    module = measured.locator(name)
    return _linked(module, Machine(module, speed=1))


def _linked(module: Module, made: Machine) -> Machine:
    for name in module.defined:
        llvm.add_symbol(name, made.address(name))
    return made


@cache
def run_blocks() -> Any:
    """The runtime's function that runs blocks."""
    return RUN_BLOCKS(shared_machine().address("run_blocks"))
