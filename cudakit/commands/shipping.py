"""`cudakit export`: kernels for programs without cudakit or a compiler."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudakit.commands import cli, files
from cudakit.compile import headers
from cudakit.errors import ContextLost, Refused
from cudakit.export import identifiers, ladders, sources, trial, writing
from cudakit.family import wrong_results
from cudakit.shipped import expect_architecture
from cudakit.show import terminal

if TYPE_CHECKING:
    from cudakit.export.samples import Sample
    from cudakit.export.sources import Bundle
    from cudakit.family import Ladder

HELP = """Writes kernels as fat binaries with a C header, a C++ example and a manifest for cudakit.load.

    cudakit export mine.py:FAMILY -o out
    cudakit export softmax --variants registers,span -o out
    cudakit export scale.cu -o out
    cudakit export gemm.cu --names "gemm<128, 8>" --names "gemm<64, 8>" --arch sm_80,sm_90a -o out

The header has one launcher per kernel, with the types of the kernel's signature. It opens libcuda at run time, so a
program builds without CUDA's libraries. docs/shipping_kernels.md describes each file.

The kernels of a family are those that its variants launch for its shapes. Each variant first runs on the simulated
device; nothing is exported if one is wrong or faults.

PTX for later devices is included if --arch has an architecture without a letter, such as sm_80.

Exit status: 0 if the folder was written; 1 if a variant is wrong; 2 if the request was wrong."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    files.add_compile_arguments(
        parser, "mine.py:FAMILY, package.module:FAMILY, softmax, ..., or a .cu file, also of cudakit's own"
    )
    parser.add_argument("--variants", type=cli.parse_names, metavar="NAME,...", help="only these (default: all)")
    parser.add_argument(
        "--arch",
        type=cli.parse_list,
        default=["sm_80", "sm_90a"],
        metavar="A,...",
        help="the architectures (default: sm_80,sm_90a)",
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="FOLDER", help="the folder to write; created if needed"
    )
    parser.add_argument(
        "--name", help="name of the header and prefix of its functions (default: the family's or file's name)"
    )
    parser.add_argument(
        "--no-ptx",
        action="store_true",
        help="write only machine code, which runs neither on later devices nor on the simulated one",
    )
    parser.add_argument("--no-trial", action="store_true", help="do not run the kernels for the example")
    parser.add_argument("--force", action="store_true", help="replace files that export did not write")


def main(arguments: argparse.Namespace) -> int:
    """The command. Returns the exit status."""
    files.expect_options(arguments)
    if not arguments.arch:
        raise Refused(files.NO_ARCHITECTURE)
    for arch in arguments.arch:
        expect_architecture(arch)
    if arguments.file.endswith((".cu", ".cuh")):
        return _export_file(arguments, headers.find_source(arguments.file))
    return _export_family(arguments, cli.family(arguments.file))


def _export_file(arguments: argparse.Namespace, path: Path) -> int:
    """The kernels of a file."""
    if arguments.variants:
        raise Refused("--variants needs a family: select the kernels of a file with --names")
    name = _name(arguments, path.stem)
    defines = dict(pair.partition("=")[::2] for pair in arguments.define)
    names = arguments.names or {one.entry: None for one in files.declared_configs(path) if "<" in one.entry}
    options: dict[str, Any] = {
        "defines": {key: value or None for key, value in defines.items()},
        "fmad": not arguments.no_fmad,
        "options": tuple(arguments.option),
        "names": tuple(names),
    }
    bundle = sources.build(name, [sources.Source(path, (), options)], arguments.arch, ptx=not arguments.no_ptx)
    if arguments.no_trial:
        return _write(arguments, bundle, [], _untried(bundle, "--no-trial"), {})
    return _write(arguments, bundle, *trial.run(bundle), {})


def _export_family(arguments: argparse.Namespace, family: Ladder[Any]) -> int:
    """The kernels of a family's variants."""
    from cudakit.device import Device

    if arguments.names or arguments.define or arguments.no_fmad or arguments.option:
        raise Refused("--names, --define, --no-fmad and --option need a .cu file: a family declares how it is compiled")
    name = _name(arguments, family.name)
    arch = trial.newest_simulated(arguments.arch)
    with (
        Device("sim" if arch is None else f"sim:{arch}", fresh=True) as device,
        contextlib.closing(ladders.collect(family, arguments.variants or (), arguments.arch, device)) as kernels,
    ):
        bundle = sources.build(name, kernels.sources, arguments.arch, ptx=not arguments.no_ptx)
        samples: list[Sample] = []
        if arch is None or arguments.no_trial:
            reasons = _untried(bundle, "--no-trial" if arguments.no_trial else trial.NOT_SIMULATED)
        else:
            recording = ladders.Recording(family, kernels, bundle)
            try:
                samples, reasons = recording.samples()
            except ladders.WrongResult as wrong:
                found = wrong_results.report(device, wrong.verdict, wrong.again, recording.variant)
                return _failed(f"{wrong}\n{wrong_results.text([found]).partition(chr(10))[2]}")
            except ContextLost as error:
                said = wrong_results.text(wrong_results.of_error(error, recording.variant))
                return _failed(f"{recording.current}: {said}")
    return _write(arguments, bundle, samples, reasons, kernels.left_out)


def _name(arguments: argparse.Namespace, usual: str) -> str:
    """Return the name of the export. Raises Refused if a header cannot have this name."""
    name = usual if arguments.name is None else arguments.name
    if not re.search("[A-Za-z0-9]", name):
        raise Refused(f"{name!r} cannot be a prefix of C functions: pass a name with a letter, --name scale")
    prefix = identifiers.identifier(name)
    if identifiers.is_header(prefix):
        raise Refused(f"{prefix}.h is a header of C or CUDA: choose another with --name")
    return name


def _untried(bundle: Bundle, why: str) -> dict[int, str]:
    return dict.fromkeys(range(len(bundle.entries)), why)


def _failed(text: str) -> int:
    terminal.say_error(f"{text.rstrip()}\nNOTHING EXPORTED", sys.stderr)
    return cli.EXIT_FALSE


def _write(
    arguments: argparse.Namespace,
    bundle: Bundle,
    samples: Sequence[Sample],
    reasons: Mapping[int, str],
    left_out: Mapping[str, str],
) -> int:
    """Write the folder and print its contents."""
    made = writing.contents(bundle, arguments.version, samples, reasons, ptx=not arguments.no_ptx)
    written = writing.write(Path(arguments.output), made, force=arguments.force)
    out = terminal.wrapping(sys.stdout)
    prefix = identifiers.identifier(bundle.name)
    for entry in bundle.entries:
        terminal.say(f"{prefix}_{entry.identifier}: {entry.text}", out)
    for number, reason in reasons.items():
        terminal.say(f"  the example does not launch {bundle.entries[number].name}: {reason}", out)
    for variant, reason in left_out.items():
        terminal.say(f"  variant {variant} is left out: {reason}", out)
    for file in written:
        terminal.say(str(file), out)
    return cli.EXIT_OK
