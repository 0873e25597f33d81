"""The commands on a `.cu` file: compile it and say what its kernels need, and check it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudakit import cache, cli, compiler, headers, signature
from cudakit.errors import CompileError
from cudakit.mangling import demangle


def add_compile_arguments(parser: argparse.ArgumentParser) -> None:
    """The file and how it is compiled."""
    parser.add_argument("file", help="a .cu file; looked for here, then among cudakit's own kernels")
    parser.add_argument(
        "--names", action="append", default=[], metavar="NAME", help='a template to instantiate: --names "gemm<128, 8>"'
    )
    parser.add_argument("--define", action="append", default=[], metavar="NAME[=VALUE]", help="a macro")
    parser.add_argument("--no-fmad", action="store_true", help="do not fuse a * b + c")


def compiled_for(arguments: argparse.Namespace, path: Path, arch: str) -> compiler.Compiled:
    """The file compiled (or found in the cache) for one architecture, templates that ops declare included."""
    defines = dict(pair.partition("=")[::2] for pair in arguments.define)
    names = arguments.names or sorted(entry for entry in declared_entries(path) if "<" in entry)
    return cache.compiled(
        compiler.request(
            path.read_text(encoding="utf-8"),
            name=str(path),
            arch=arch,
            defines={name: value or None for name, value in defines.items()},
            names=tuple(names),
            fmad=not arguments.no_fmad,
        )
    )


def declared(path: Path) -> list[tuple[Any, Any]]:
    """The (family, variant) pairs of cudakit.ops that a source file is declared by."""
    from cudakit import ops

    root = headers.kernel_root()
    return [
        (family, variant)
        for family in ops.families().values()
        for variant in family.variants
        if (root / variant.source).resolve() == path.resolve()
    ]


def declared_entries(path: Path) -> set[str]:
    """The entries that a source file's variants launch for their families' shapes on the simulated device."""
    pairs = declared(path)
    if not pairs:
        return set()
    import numpy as np

    import cudakit

    entries = set()
    with cudakit.Device("sim") as device:
        for family, variant in pairs:
            for shape in family.shapes["sim"]:
                hosts = family.make_inputs(shape, np.dtype(np.float32), np.random.default_rng(0))
                inputs = [device.array(host) for host in hosts]
                problem = family.problem(inputs, device.empty(*family.output_like(hosts)))
                if variant.supports(problem) is True:
                    entries.add(variant.configure(problem).entry)
    return entries


def describe(compiled: compiler.Compiled) -> list[str]:
    """A line a kernel: its signature, registers, shared memory, spills and stack."""
    by_mangled = {mangled: expression for expression, mangled in compiled.lowered.items()}
    lines = []
    for mangled, entry in signature.ptx_entries(compiled.ptx).items():
        resources = compiled.resources.get(mangled, compiler.Resources())
        known = demangle(mangled)
        declared_types = known.types if known is not None else None
        types = [kind.text for kind in declared_types or ()] or [parameter.type for parameter in entry]
        name = by_mangled.get(mangled) or (known.name if known is not None else mangled)
        needs = [f"{resources.registers} registers"]
        for amount, what in ((resources.static_shared, "static shared"), (resources.stack, "stack")):
            needs += [f"{amount} bytes {what}"] if amount else []
        spilled = resources.spill_stores + resources.spill_loads
        needs.append(f"SPILLS {spilled} bytes" if spilled else "no spills")
        lines.append(f"{name}({', '.join(types)}): {', '.join(needs)}")
    return lines


def warnings_of(log: str) -> list[str]:
    return [line for line in log.splitlines() if "warning" in line]


def compile_file(arguments: argparse.Namespace) -> int:
    """`cudakit compile`."""
    path = headers.find_source(arguments.file)
    compiled = compiled_for(arguments, path, arguments.arch)
    out = sys.stderr if arguments.ptx == "-" else sys.stdout
    version = ".".join(map(str, compiled.nvrtc_version))
    print(f"{path} for {compiled.arch} by NVRTC {version}", file=out)
    for line in [*describe(compiled), *warnings_of(compiled.log)]:
        print(f"  {line}", file=out)
    if not signature.ptx_entries(compiled.ptx):
        print("  no kernels: a template gives one for each --names", file=out)
    if arguments.ptx == "-":
        sys.stdout.write(compiled.ptx)
    elif arguments.ptx:
        Path(arguments.ptx).write_text(compiled.ptx, encoding="utf-8")
    if arguments.cubin:
        Path(arguments.cubin).write_bytes(compiled.cubin)
    return cli.EXIT_OK


def check_file(arguments: argparse.Namespace) -> int:
    """`cudakit check`."""
    from cudakit import fuzzing

    path = headers.find_source(arguments.file)
    failures = 0
    for arch in arguments.arch:
        print(f"{path} for {arch}")
        try:
            compiled = compiled_for(arguments, path, arch)
        except CompileError as error:
            failures += 1
            print(f"  FAILED: {error}")
            continue
        lines: Sequence[str] = describe(compiled)
        for line in [*lines, *warnings_of(compiled.log)]:
            print(f"  {line}")
    pairs = declared(path)
    if not pairs:
        print("no family of cudakit.ops declares a kernel of this file, so nothing was run")
    for family, variant in pairs if not failures else ():
        found = fuzzing.run("sim", family, [variant.name], arguments.examples)
        print(found.text())
        failures += not found.ok
    return cli.EXIT_FALSE if failures else cli.EXIT_OK
