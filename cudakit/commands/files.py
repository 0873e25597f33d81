"""A `.cu` file on the command line: how it is compiled, which ops use it, which resources its kernels need."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudakit.commands import cli
from cudakit.compile import cache, compiler, headers
from cudakit.errors import Refused
from cudakit.family import one_or_all
from cudakit.launch import signature
from cudakit.launch.declarations import plain_types
from cudakit.launch.mangling import demangle
from cudakit.shapes import shape_text
from cudakit.show import outputs, terminal

if TYPE_CHECKING:
    from cudakit.device import Device
    from cudakit.family import Ladder, Launch


FILE = "a .cu file, in the working directory or among cudakit's own kernels"


def add_compile_arguments(parser: argparse.ArgumentParser, file: str = FILE) -> None:
    """Add the arguments for a file and its compilation. file: the help text of the file argument."""
    parser.add_argument("file", help=file)
    parser.add_argument(
        "--names", action="append", default=[], metavar="NAME", help='a template to instantiate: --names "gemm<128, 8>"'
    )
    parser.add_argument("--define", action="append", default=[], metavar="NAME[=VALUE]", help="a macro")
    parser.add_argument("--no-fmad", action="store_true", help="do not fuse a * b + c into one instruction")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="OPTION",
        help="an option of NVRTC: --option=-default-device, --option=-I../include",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print the compiler's options, and whether headers were precompiled",
    )


NO_ARCHITECTURE = "--arch names no architecture: write sm_80, sm_90a, ..."


def no_kernels(path: Path) -> str:
    """Return the error message for a file without kernels."""
    return f"{path} has no kernels: a template has one per --names"


def expect_options(arguments: argparse.Namespace) -> None:
    """Raise Refused for a --define that is not a macro, or an --option for which the command has its own flag."""
    for option in arguments.option:
        if option.startswith(("--gpu-architecture", "-arch")):
            raise Refused(f"--option={option}: pass the architecture with --arch")
    expect_defines(arguments)


def expect_defines(arguments: argparse.Namespace) -> None:
    """Raise Refused for a --define that is not a macro."""
    for pair in arguments.define:
        if not re.fullmatch(r"[A-Za-z_]\w*(\([\w\s,.]*\))?(=.*)?", pair, re.ASCII | re.DOTALL):
            raise Refused(f"--define {pair} is not a macro: write NAME or NAME=VALUE")


def compiled_for(
    arguments: argparse.Namespace,
    path: Path,
    arch: str,
    configs: Sequence[Launch],
    macros: Sequence[tuple[str, Any]] = (),
) -> compiler.Compiled:
    """Compile the file for one architecture, or take it from the cache, with the template instances that `configs`
    launch. macros: the launches' macros; a macro of the command line replaces one with the same name."""
    expect_options(arguments)
    defines: dict[str, Any] = dict(macros)
    defines |= {name: value or None for name, _, value in (pair.partition("=") for pair in arguments.define)}
    names = arguments.names or sorted({config.entry for config in configs if "<" in config.entry})
    return cache.compiled(
        compiler.request(
            outputs.read_text(path, "utf-8-sig"),
            name=str(path),
            arch=arch,
            defines=defines,
            names=tuple(names),
            fmad=not arguments.no_fmad,
            options=tuple(arguments.option),
        )
    )


def declared(path: Path) -> list[tuple[Any, Any]]:
    """The (family, variant) pairs of cudakit.ops that use a source file."""
    from cudakit import ops

    root = headers.kernel_root()
    return [
        (family, variant)
        for family in ops.families().values()
        for variant in family.variants
        if (root / variant.source).resolve() == path.resolve()
    ]


def declared_configs(path: Path) -> list[Launch]:
    """The distinct launches of a source file's variants for their families' shapes on the simulated device."""
    return launches_of(declared(path))


def launches_of(pairs: Sequence[tuple[Any, Any]]) -> list[Launch]:
    """The distinct launches of variants for their families' shapes on the simulated device, without arguments."""
    if not pairs:
        return []
    from cudakit.device import Device

    configs: dict[Launch, None] = {}
    with Device("sim") as device:
        for family, variant in pairs:
            for problem, *_ in problems(device, family):
                made = variant.answer(problem)
                if not isinstance(made, str):
                    # without arguments, because a struct argument cannot be hashed
                    own = (replace(one, args=None, entry=one.entry or variant.entry) for one in made if not one.source)
                    configs |= dict.fromkeys(own)
    return list(configs)


def problems(device: Device, family: Ladder[Any]) -> Iterator[tuple[Any, list[Any], Any, Mapping[str, Any], str]]:
    """Yield the problems of a family for the simulated device, for each shape, dtype and mode: the problem, its inputs
    and output on `device`, the options, and a description."""
    import numpy as np

    for mode, options in family.modes.items():
        for name in family.usual_dtypes:
            for shape in family.shapes["sim"]:
                hosts = family.inputs_for(shape, name, np.random.default_rng(0), **options)
                inputs = [device.array(host) for host in hosts]
                written = tuple(device.empty(*like) for like in family.outputs_like(hosts, **options))
                if family.in_place:
                    written = (inputs[family.over],)
                elif family.initial is not None:
                    for array in written:
                        array.fill(family.initial)
                output: Any = one_or_all(written)
                said = " ".join(part for part in (shape_text(shape), name, mode) if part)
                yield family.problem_of(inputs, output, **options), inputs, output, options, said


@dataclass(frozen=True)
class KernelFacts:
    """Signature and resources of a compiled kernel. `name`: its name expression or C++ name. `types`: its parameter
    types in C++ or PTX. `bound`: the most threads per block that its launch bounds allow, or None."""

    mangled: str
    name: str
    types: tuple[str, ...]
    resources: compiler.Resources
    bound: int | None

    @property
    def text(self) -> str:
        """Its signature, registers, shared memory, spills and stack, on one line."""
        resources = self.resources
        needs = [f"{resources.registers} registers"]
        for amount, what in ((resources.static_shared, "static shared"), (resources.stack, "stack")):
            needs += [f"{amount} bytes {what}"] if amount else []
        needs.append(f"SPILLS {self.spilled} bytes" if self.spilled else "no spills")
        return f"{self.name}({', '.join(self.types)}): {', '.join(needs)}"

    @property
    def spilled(self) -> int:
        """Bytes of spill stores and loads."""
        return self.resources.spill_stores + self.resources.spill_loads


_BOUND = re.compile(r"\.entry\s+([\w$%]+)[^{]*?\.(?:maxntid|reqntid)\s+([\d, ]+)")


def kernel_facts(compiled: compiler.Compiled) -> list[KernelFacts]:
    """The signature and resources of every kernel, in the order of the PTX."""
    by_mangled = {mangled: expression for expression, mangled in compiled.lowered.items()}
    bounds = {match[1]: math.prod(map(int, match[2].split(","))) for match in _BOUND.finditer(compiled.ptx)}
    facts = []
    for mangled, entry in signature.ptx_entries(compiled.ptx).items():
        known = demangle(mangled)
        if known is not None and known.types:
            types = [kind.text for kind in known.types]
        else:  # extern "C": use the types in the source, if they are plain C types
            plain = plain_types(compiled.source, mangled, len(entry))
            types = [
                kind.text if kind is not None and kind.size == parameter.size else _ptx_type(parameter)
                for parameter, kind in zip(entry, plain, strict=True)
            ]
        name = by_mangled.get(mangled) or (known.name if known is not None else mangled)
        resources = compiled.resources.get(mangled, compiler.Resources())
        facts.append(KernelFacts(mangled, name, tuple(types), resources, bounds.get(mangled)))
    return facts


def _ptx_type(parameter: signature.PtxParameter) -> str:
    return f"struct of {parameter.size} bytes" if parameter.array else parameter.type


def warnings_of(log: str) -> list[str]:
    return [line for line in log.splitlines() if "warning" in line]


def compile_file(arguments: argparse.Namespace) -> int:
    """`cudakit compile`."""
    if arguments.arch.strip(", ") == "":
        return cli.nothing_checked(NO_ARCHITECTURE)
    for flag in ("--ptx", "--cubin"):
        outputs.check_destination(flag, getattr(arguments, flag[2:]))
    path = headers.find_source(arguments.file)
    compiled = compiled_for(arguments, path, arguments.arch, declared_configs(path))
    out = sys.stderr if arguments.ptx == "-" else sys.stdout
    version = ".".join(map(str, compiled.nvrtc_version))
    terminal.say(f"{path} for {compiled.arch} by NVRTC {version}", out)
    kernels = kernel_facts(compiled)
    for line in [*(kernel.text for kernel in kernels), *warnings_of(compiled.log)]:
        terminal.say(f"  {line}", out)
    if arguments.verbose:
        terminal.say(f"  options: {' '.join(compiled.options)}", out)
        terminal.say(f"  precompiled headers: {compiled.precompiled or 'not used: the kernels were in the cache'}", out)
    if arguments.ptx == "-":
        sys.stdout.write(compiled.ptx)
    elif arguments.ptx:
        outputs.write_file(arguments.ptx, compiled.ptx)
    if arguments.cubin:
        outputs.write_file(arguments.cubin, compiled.cubin)
    if not kernels:
        return cli.nothing_checked(no_kernels(path))
    return cli.EXIT_OK
