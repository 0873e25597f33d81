"""Chooses for each launch whether the interpreter or machine code runs it.

Machine code (``sim/compiled``) needs llvmlite. To compile a kernel takes as long as several small launches of it in the
interpreter, so that is done only after the interpreter has worked on it for a while: before its next launch, or in the
middle of a launch that is far from its end. Memory is then put back, and the launch starts again. If an earlier process
has kept the kernel's machine code (sim/compiled/kept_code.py), it runs from the first launch on.

$CUDAKIT_SIM_ENGINE: "auto" (the default), "interpreter", or "compiled", which compiles each kernel before its first
launch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from cudakit.sim.compiled import kept_code
from cudakit.sim.lockstep.memory import Allocation
from cudakit.sim.lockstep.run import KernelRun
from cudakit.sim.machine.loading import LoadedFunction

if TYPE_CHECKING:
    from cudakit.sim.compiled.launch import CompiledKernel, KernelSource

MODES = ("auto", "interpreter", "compiled")
# seconds that the interpreter works on a kernel before anything else is tried
_PATIENCE = 0.3
# a launch starts again if the interpreter needs this much longer for the rest of it than compiling takes
_WORTH = 2.0
# machine code is not tried again after this many launches in a row that it left to the interpreter
_ATTEMPTS = 3
# the most bytes that are copied so that a launch can start again
_MOST_KEPT = 1 << 27


def mode() -> str:
    """The engine that $CUDAKIT_SIM_ENGINE names. Raises ValueError for a name that is not in MODES."""
    named = os.environ.get("CUDAKIT_SIM_ENGINE", "").strip() or "auto"
    if named not in MODES:
        raise ValueError(f"CUDAKIT_SIM_ENGINE={named!r} is unknown; it may be {', '.join(MODES)}")
    if named == "compiled" and not _installed():
        raise ValueError("CUDAKIT_SIM_ENGINE=compiled needs llvmlite 0.45 or later: pip install 'cudakit[compiled]'")
    return named if _installed() else "interpreter"


@cache
def _llvmlite() -> str:
    """The version of llvmlite; "" if it is not installed."""
    try:
        return version("llvmlite")
    except PackageNotFoundError:
        return ""


@cache
def _installed() -> bool:
    """Whether llvmlite is installed, in a version with LLVM's current interface."""
    if not _llvmlite():
        return False
    major, minor, *_ = _llvmlite().split(".")
    return (int(major), int(minor)) >= (0, 45)


class Engine:
    """One kernel's choice. ``seconds`` is the interpreter's time for it, ``refusal`` says why it cannot be compiled.
    ``compiled_launches`` counts the launches that machine code ran to their end, ``left`` those in a row that it left
    to the interpreter. It lives as long as the kernel, which it must not keep alive."""

    def __init__(self) -> None:
        self._kernel: CompiledKernel | None = None
        self._compiled = False
        # the name of the file of its machine code, and whether there was one at the first launch
        self._name = ""
        self._kept = False
        self.refusal = ""
        self.seconds = 0.0
        self.compiled_launches = self.left = 0

    def cost(self, function: LoadedFunction) -> float | None:
        """The seconds that compiling the kernel still takes, about; None if it cannot be compiled."""
        kernel = self._written(function)
        if kernel is None:
            return None
        return 0.0 if self._compiled else kernel.cost

    def _written(self, function: LoadedFunction) -> CompiledKernel | None:
        """The kernel as text for LLVM; None if it cannot be compiled."""
        from cudakit.sim.compiled.arithmetic import Unsupported
        from cudakit.sim.compiled.launch import CompiledKernel

        if self._kernel is None and not self.refusal:
            try:
                self._kernel = CompiledKernel(_source(function), self._file(function))
            except Unsupported as error:
                self.refusal = str(error)
        return self._kernel

    def _file(self, function: LoadedFunction) -> str:
        """The name of the file of the kernel's machine code."""
        if not self._name:
            self._name = kept_code.name_of(_llvmlite(), function.module.digest, function.name)
            self._kept = kept_code.has(self._name)
        return self._name

    def ready(self, function: LoadedFunction, *, now: bool) -> CompiledKernel | None:
        """The kernel's machine code; None if there is none yet. It is compiled if the interpreter has worked on it for
        as long as that takes, or ``now``."""
        self._file(function)
        if not (now or self._compiled or self._kept or self.seconds >= _PATIENCE):
            return None
        kernel = self._written(function)
        if kernel is None or self._compiled:
            return kernel
        if not now and self.seconds < kernel.cost:
            return None
        kernel.compile()
        self._compiled = True
        return kernel

    def run(self, function: LoadedFunction, run: KernelRun, *, now: bool) -> bool:
        """Run a launch in machine code; False if the interpreter must run it, and memory is as before. ``now``: compile
        the kernel even if the interpreter has hardly worked on it."""
        kernel = self.ready(function, now=now) if self.left < _ATTEMPTS else None
        if kernel is None:
            return False
        from cudakit.sim.compiled.launch import run_compiled

        done = run_compiled(kernel, run, function.reach.written(run))
        self.compiled_launches += done
        self.left = 0 if done else self.left + 1
        return done

    def restarts(self, function: LoadedFunction, run: KernelRun) -> Restart | None:
        """The state to which a launch can be put back to start again in machine code; None if it cannot."""
        if self.refusal or self.left:
            return None
        written = function.reach.written(run)
        if written is None or sum(len(allocation.store) for allocation in written) > _MOST_KEPT:
            return None
        return Restart(self, function, written)


class Restart:
    """A launch in the interpreter that may start again in machine code: memory as it was before."""

    def __init__(self, engine: Engine, function: LoadedFunction, written: Iterable[Allocation]) -> None:
        self._engine, self._function = engine, function
        self._started = perf_counter()
        self._kept = [(one, one.store.copy(), one.undefined_at(0, one.size)) for one in written]

    def due(self, blocks: int, total: int) -> bool:
        """Whether the launch, after ``blocks`` of ``total``, would end sooner if it started again in machine code."""
        spent = perf_counter() - self._started
        if spent < _PATIENCE:
            return False
        cost = self._engine.cost(self._function)
        return cost is not None and spent * (total - blocks) > _WORTH * cost * blocks

    def put_back(self) -> None:
        """Undo the launch's stores."""
        for allocation, store, undefined in self._kept:
            allocation.store[:] = store
            allocation.define(like=None if undefined is None else undefined[None])

    def run(self, run: KernelRun) -> bool:
        """Put memory back and run the launch in machine code; False if the interpreter must run it."""
        self.put_back()
        return self._engine.run(self._function, run, now=True)


def _source(function: LoadedFunction) -> KernelSource:
    from cudakit.sim.compiled.launch import KernelSource

    shared, variables = function.shared_symbols, function.module.globals

    def address_of(name: str) -> int:
        return shared[name] if name in shared else variables[name][0]

    params = zip(function.program.function.params, function.params, strict=True)
    plain = len(function.reachable) == 1 and not (function.reserves_shared or function.spins)
    return KernelSource(
        function.program,
        function.module.sites.all,
        {param.name: offset for param, (offset, _) in params},
        address_of,
        function.reach.shared_granule,
        function.reach.global_granule,
        "" if plain else "calls, cooperative groups of several blocks, or lanes that wait for others",
    )


_engines: WeakKeyDictionary[LoadedFunction, Engine] = WeakKeyDictionary()


def engine_of(function: LoadedFunction) -> Engine:
    """The engine of a kernel."""
    found = _engines.get(function)
    if found is None:
        found = _engines[function] = Engine()
    return found
