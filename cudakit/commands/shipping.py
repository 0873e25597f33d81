"""`cudakit export`: kernels for programs without cudakit or a compiler."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from cudakit.commands import cli, files
from cudakit.compile import headers
from cudakit.errors import Refused
from cudakit.export import identifiers, sources, trial, writing
from cudakit.show import terminal

HELP = """Writes kernels as fat binaries with a C header, a C++ example and a manifest for cudakit.load.

    cudakit export scale.cu -o out
    cudakit export gemm.cu --names "gemm<128, 8>" --names "gemm<64, 8>" --arch sm_80,sm_90a -o out

The header has a launcher per kernel, typed by the kernel's own signature. It opens libcuda when the program runs, so
that a program builds without CUDA's libraries. docs/shipping_kernels.md describes each file.

PTX for later devices is included if --arch has an architecture without a letter, such as sm_80.

Exit status 0 if the folder was written; 2 if it could not be."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    files.add_compile_arguments(parser)
    parser.add_argument(
        "--arch", type=cli.parse_list, default=["sm_80", "sm_90a"], metavar="A,...", help="(default: sm_80,sm_90a)"
    )
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="the folder to write; made if needed")
    parser.add_argument("--name", help="of the header and its functions (default: the file's)")
    parser.add_argument(
        "--no-ptx", action="store_true", help="write machine code alone: not for later devices, nor the simulated one"
    )
    parser.add_argument("--no-trial", action="store_true", help="do not try the kernels out for the example")
    parser.add_argument("--force", action="store_true", help="replace files that export did not write")


def main(arguments: argparse.Namespace) -> int:
    """The command. Returns the exit status."""
    files.expect_defines(arguments)
    path = headers.find_source(arguments.file)
    defines = dict(pair.partition("=")[::2] for pair in arguments.define)
    options = {"defines": {name: value or None for name, value in defines.items()}, "fmad": not arguments.no_fmad}
    name = path.stem if arguments.name is None else arguments.name
    if not re.search("[A-Za-z0-9]", name):
        raise Refused(
            f"{name!r} is not a name that functions of C can begin with: write one with a letter, --name scale"
        )
    prefix = identifiers.identifier(name)
    if identifiers.is_header(prefix):
        raise Refused(f"{prefix}.h is a header of C or CUDA: choose another with --name")
    wanted = arguments.names
    source = sources.Source(path, (), {**options, "names": tuple(wanted)})
    bundle = sources.build(name, [source], arguments.arch, ptx=not arguments.no_ptx)
    untried = dict.fromkeys(range(len(bundle.entries)), "--no-trial")
    samples, reasons = trial.run(bundle) if not arguments.no_trial else ([], untried)
    made = writing.contents(bundle, arguments.version, samples, reasons, ptx=not arguments.no_ptx)
    out = terminal.wrapping(sys.stdout)
    written = writing.write(Path(arguments.output), made, force=arguments.force)
    for entry in bundle.entries:
        terminal.say(f"{prefix}_{entry.identifier}: {entry.text}", out)
    for number, reason in reasons.items():
        terminal.say(f"  the example does not launch {bundle.entries[number].name}: {reason}", out)
    for file in written:
        terminal.say(str(file), out)
    return cli.EXIT_OK
