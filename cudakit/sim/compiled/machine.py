"""Compiles LLVM IR with llvmlite. Importing this module requires it."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from cudakit.sim.compiled.ir import Module
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


class Machine:
    """The machine code of a module, kept as long as this object."""

    def __init__(self, module: Module, *, speed: int) -> None:
        """``speed``: LLVM's level of optimisation."""
        parsed = llvm.parse_assembly(module.text())
        parsed.verify()
        # one per module: the execution engine owns it, and frees it
        host, cpu, features = _host()
        level = 0 if module.lines() > _LARGE else 2
        target = host.create_target_machine(cpu=cpu, features=features, opt=level)
        options = llvm.create_pipeline_tuning_options(speed_level=speed)
        # the code is in vectors already, and loops over them are not faster if they are unrolled
        options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
        builder = llvm.create_pass_builder(target, options)
        builder.getModulePassManager().run(parsed, builder)
        if llvm.llvm_version_info <= _FAULTY and "+avx512f" in features and _chooses_bits(str(parsed)):
            target = host.create_target_machine(cpu=cpu, features=f"{features},-avx512f", opt=level)
        self._engine = llvm.create_mcjit_compiler(parsed, target)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        found: int = self._engine.get_function_address(name)
        return found


@cache
def shared_machine() -> Machine:
    """The machine code of the runtime; kernels find its functions by their names."""
    module = runtime()
    made = Machine(module, speed=2)
    for name in module.defined:
        llvm.add_symbol(name, made.address(name))
    return made


@cache
def run_blocks() -> Any:
    """The runtime's function that runs blocks."""
    return RUN_BLOCKS(shared_machine().address("run_blocks"))
