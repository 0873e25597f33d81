"""The resources of a file's kernels on an architecture: registers, shared memory, spills, occupancy, warnings."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from cudakit import reports
from cudakit.commands import files
from cudakit.commands.outcome import Outcome
from cudakit.compile import compiler, diagnostics
from cudakit.driver import driver as drivers
from cudakit.errors import CompileError
from cudakit.show import outputs, terminal

# block sizes shown if the kernel's block sizes are unknown
_USUAL_BLOCKS = (128, 256, 512, 1024)


def compile_for(
    arguments: argparse.Namespace,
    path: Path,
    arch: str,
    configs: Sequence[Any],
    macros: Sequence[tuple[str, Any]],
    outcome: Outcome,
    out: IO[str],
) -> compiler.Compiled | None:
    """Compile a file for one architecture with the macros of its launches, and print its kernels' resources.

    Returns None if it does not compile.
    """
    began = time.monotonic()
    try:
        return _compile_for(arguments, path, arch, configs, macros, outcome, out)
    finally:
        outcome.architectures[-1]["seconds"] = time.monotonic() - began


def _compile_for(
    arguments: argparse.Namespace,
    path: Path,
    arch: str,
    configs: Sequence[Any],
    macros: Sequence[tuple[str, Any]],
    outcome: Outcome,
    out: IO[str],
) -> compiler.Compiled | None:
    given = "".join(f" {name}={value}" for name, value in macros)
    print(f"{path} for {arch}{given}", file=out)
    about: dict[str, Any] = {"step": f"compile {path.name} {arch}{given}", "arch": arch}
    entry: dict[str, Any] = {**about, "file": str(path), "ok": True, "error": None, "warnings": [], "kernels": []}
    outcome.architectures.append(entry)
    try:
        compiled = files.compiled_for(arguments, path, arch, configs, macros)
    except CompileError as error:
        entry |= {"ok": False, "error": str(error)}
        outcome.add(reports.of_error(error, **about))
        terminal.say_error(f"  FAILED: {error}", out)
        if arguments.verbose:
            print(f"  options: {' '.join(error.options)}", file=out)
        return None
    for kernel in files.kernel_facts(compiled):
        print(f"  {kernel.text}", file=out)
        occupancies = list(_occupancies(kernel, arch, configs, compiled))
        if occupancies:
            print(f"    occupancy: {'; '.join(map(_occupancy_text, occupancies))}", file=out)
        entry["kernels"].append(
            {
                "name": kernel.name,
                "registers": kernel.resources.registers,
                "static_shared": kernel.resources.static_shared,
                "stack": kernel.resources.stack,
                "spill_bytes": kernel.spilled,
                "max_threads": kernel.bound,
                "occupancy": occupancies,
            }
        )
    entry["warnings"] = files.warnings_of(compiled.log)
    found = diagnostics.in_source(compiled.log, str(path), outputs.read_text(path, "utf-8-sig"))
    outcome.add(reports.of_diagnostics(found, **about))
    for line in entry["warnings"]:
        print(f"  {line}", file=out)
    if not entry["kernels"]:
        print("  no kernels: a template has one per --names", file=out)
    return compiled


def _occupancies(
    kernel: files.KernelFacts, arch: str, configs: Sequence[Any], compiled: compiler.Compiled
) -> Iterator[dict[str, Any]]:
    """Theoretical occupancy for the block sizes that a kernel is launched with, or for common block sizes."""
    known: list[tuple[int, int]] = []
    for config in configs:
        if compiled.lowered.get(config.entry) == kernel.mangled or config.entry == kernel.name:
            threads = math.prod(config.block) if isinstance(config.block, tuple) else config.block
            known.append((threads, config.shared))
    if not known and kernel.bound is not None:
        known = [(kernel.bound, 0)]
    for threads, shared in dict.fromkeys(known or [(threads, 0) for threads in _USUAL_BLOCKS]):
        static = kernel.resources.static_shared
        resident = drivers.occupancy(arch, threads, kernel.resources.registers, static + shared)
        if resident is None:
            return
        yield {
            "threads": threads,
            "shared": shared,
            "blocks": resident.blocks,
            "occupancy": resident.fraction,
            "limit": resident.limit,
        }


def _occupancy_text(occupancy: dict[str, Any]) -> str:
    """ "50 % with 1024 threads (1 block, limited by registers)"."""
    dynamic = f" and {occupancy['shared']} bytes" if occupancy["shared"] else ""
    blocks = f"{occupancy['blocks']} block{'s' * (occupancy['blocks'] != 1)}"
    share = f"{100 * occupancy['occupancy']:.3g} %"
    return f"{share} with {occupancy['threads']} threads{dynamic} ({blocks}, by {occupancy['limit']})"
